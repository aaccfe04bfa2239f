"""The table of grids and what is made of it: columns, undefined maps, refusals, bins, correlations, studies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from grid_toys import CELL, LAYOUT, flattened, pooled, scans
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.attribution.cam.weighted_maps import GradCam
from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedBackprop
from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients
from heatlas.pipeline.attribution.lrp.relevance import Lrp
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import NetworkView, explaining
from heatlas.pipeline.attribution.perturbation.masking import Occlusion
from heatlas.pipeline.attribution.perturbation.random_masks import Rise
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.evaluation.bench.part import Bench, BenchRequest
from heatlas.pipeline.evaluation.parts import chosen_parts
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import bias_of_chance, calibrate
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.graph.tracing import is_piecewise_linear
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.config.statistics import GridsConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.coda.network import build
from heatlas.studies.coda.records import CodaConfig
from heatlas.studies.grids.directions import GRIDS_TABLE, summary_of_grids
from heatlas.studies.grids.grid_scores import GRID_COLUMNS, LARGEST, GridMethod, grid_scores, network_of
from heatlas.studies.grids.job import picture
from heatlas.studies.grids.layout import Grid
from heatlas.studies.grids.stage import EDGES, aggregated, bin_edges, invariance_table
from heatlas.studies.grids.studies import (
    KERNEL_SHARES,
    asked_in_grids,
    cancelling_pair,
    depths,
    fitted,
    invariance_rows,
    regional,
    share_on_disconnected,
    smoothing_kernels,
    spearman_matrix,
    stem_depths,
)
from heatlas.studies.inherent import Inherent
from heatlas.studies.probes.network import build as build_probe
from heatlas.studies.probes.records import ProbeConfig

SCANS = scans(8)
GRIDS = (
    Grid("needle", (0, 1, 2, 3), (1, 0, 0, 0), 1, 0),
    Grid("needle", (4, 5, 6, 7), (0, 0, 1, 0), 1, 2),
    Grid("corner", (0, 5, 2, 7), (1, 0, 0, 1), 1, 0),
)
PEOPLE = {scan: f"sub-{scan}" for scan in range(len(SCANS))}


def read(scan: int) -> Tensor:
    return SCANS[scan]


@dataclass(frozen=True)
class Painted:
    """A map that does not look at the network: 1 in some scans of `SCANS`, or a constant."""

    name: ClassVar[str] = "painted"
    scans: tuple[int, ...] = ()
    elsewhere: float = 0.0

    def maps(self, view: NetworkView) -> Tensor:
        maps = torch.full_like(view.features, self.elsewhere)
        for cell in range(LAYOUT.cells):
            if any(torch.equal(LAYOUT.cell(view.features, cell)[0], SCANS[scan]) for scan in self.scans):
                maps[:, :, *LAYOUT.box(cell, CELL)] = 1
        return maps


def test_a_map_of_the_target_is_perfect_and_an_even_one_is_chance() -> None:
    asked = [
        GridMethod("oracle", Painted((0, 6))),
        GridMethod("even", Painted(elsewhere=2.0)),
        GridMethod("wrong", Painted((3, 4))),
    ]
    table = grid_scores(pooled(), read, LAYOUT, GRIDS[:2], asked, ["DiFull", "GridPG"])
    assert list(table.columns) == list(GRID_COLUMNS)
    assert len(table) == 2 * 3 * 2
    shares = table.groupby("method")["share"].unique()
    assert shares["oracle"].tolist() == [1]
    assert shares["even"].tolist() == [0.25]
    assert shares["wrong"].tolist() == [0]
    assert (table["chance"] == table["class_chance"]).all()


def test_the_largest_values_alone_may_stand_elsewhere_than_most() -> None:
    """One voxel in a hundred of the target has 50; every voxel of another cell has 1."""
    whole = torch.zeros(20, 20, 2)
    whole[:10, :10] = 0.01
    whole[0, 0] = 50
    whole[10:, 10:] = 1
    shares, top = LAYOUT.shares(whole), LAYOUT.shares(whole, LARGEST)
    assert float(shares[0]) == pytest.approx((100 + 1.98) / (100 + 1.98 + 200))
    kept = LAYOUT.shares(whole, 2 / whole.numel())
    assert kept.tolist() == [1, 0, 0, 0]
    assert top.tolist() == pytest.approx([100 / 300, 0, 0, 200 / 300])  # all that are equal to the least count
    assert LAYOUT.shares(torch.ones(20, 20, 2), LARGEST).tolist() == [0.25] * 4


def test_a_network_that_sums_over_places_sees_a_grid_as_its_cells() -> None:
    """With windows of one voxel nothing crosses borders: evidence of a grid is the sum over cells, exactly."""
    settings = CodaConfig(
        "coda-s", units=(4,), ranks=(3, 3), kernels=(1, 1), strides=(1, 1), temperature=0.5, embedding=0
    )
    torch.manual_seed(3)
    model = build(CELL, settings, 2).double().eval()
    bias = bias_of_chance(2)
    cells = SCANS[:4]
    network = network_of(model, LAYOUT, cells, 0, "GridPG")
    with torch.no_grad():
        torch.testing.assert_close(network(LAYOUT.compose(cells)) - bias, (model(cells) - bias).sum(0, keepdim=True))
    own = Inherent(compare="nothing")
    alone = torch.cat([attribute(model, one[None], 1, own).values for one in cells])
    (row,) = grid_scores(model, read, LAYOUT, GRIDS[:1], [GridMethod("own", own)], ["GridPG"]).to_dict("records")
    sums = alone.clamp(min=0).sum((1, 2, 3, 4))
    assert row["share"] == pytest.approx(float(sums[0] / sums.sum()))
    assert 0 < row["share"] < 1


def test_the_repeated_corner_counts_in_the_class_and_not_in_the_cell() -> None:
    table = grid_scores(pooled(), read, LAYOUT, GRIDS[2:], [GridMethod("both", Painted((0, 7)))], ["DiFull"])
    row = table.iloc[0]
    assert (row["share"], row["class_share"], row["chance"], row["class_chance"]) == (0.5, 1, 0.25, 0.5)


@pytest.mark.parametrize("level", [0.0, np.nan, np.inf])
def test_undefined_maps_stay_in_the_table_and_count_as_nothing(level: float) -> None:
    asked = [
        GridMethod("undefined", Painted((0,), elsewhere=level) if np.isfinite(level) else Painted(elsewhere=level))
    ]
    table = grid_scores(pooled(), read, LAYOUT, GRIDS[:2], asked, ["DiFull"])
    broken = table["undefined"] == 1
    assert broken.tolist() == ([False, True] if level == 0 else [True, True])
    assert table.loc[broken, "share"].isna().all()
    assert table.loc[broken, "note"].notna().all()
    summary = summary_of_grids(table, PEOPLE).iloc[0]
    assert (summary["n_grids"], summary["n_undefined"]) == (2, broken.sum())
    assert summary["share"] == (0.5 if level == 0 else 0)


@pytest.mark.parametrize(
    ("model", "setting", "words"),
    [(flattened, "DiPart", "DiFull"), (lambda: pooled(norm=nn.InstanceNorm3d), "DiPart", "InstanceNorm3d")],
)
def test_what_is_not_defined_is_one_row_that_says_so(model: object, setting: str, words: str) -> None:
    asked = [GridMethod("gradient", Gradient()), GridMethod("lrp", Lrp())]
    table = grid_scores(model(), read, LAYOUT, GRIDS[:2], asked, [setting])  # type: ignore[operator, list-item]
    assert len(table) == len(asked)
    assert table["grid"].isna().all()
    assert table["note"].str.contains(words).all()
    summary = summary_of_grids(table, PEOPLE)
    assert list(summary.columns) == list(GRIDS_TABLE.meanings)
    assert (summary["n_grids"] == 0).all()
    assert summary["note"].str.contains(words).all()


def test_maps_are_handed_on_with_their_grid() -> None:
    kept: list[tuple[str, str, int, float]] = []
    table = grid_scores(
        pooled(), read, LAYOUT, GRIDS[:2],
        [GridMethod("ixg", InputTimesGradient(), one.stage) for one in depths(pooled())],
        keep=lambda setting, name, stage, grid, values: kept.append((setting, stage, grid, float(values.sum()))),
    )  # fmt: skip
    assert len(kept) == len(table) == 3 * 3 * 2
    assert sorted({stage for _, stage, _, _ in kept}) == [0, 1, 2]


def random_table(seed: int, count: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [
        {"setting": "GridPG", "kind": "needle", "method": method, "stage": stage, "grid": grid, "share": rng.random()}
        for method in ("a", "b")
        for stage in (0, 2)
        for grid in range(count)
    ]
    return pd.DataFrame(rows, columns=["setting", "kind", "method", "stage", "grid", "share"])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000))
def test_correlations_are_of_ranks(seed: int) -> None:
    table = random_table(seed)
    matrix = spearman_matrix(table, "GridPG", "needle")
    assert matrix.index.tolist() == [("a", 0), ("a", 2), ("b", 0), ("b", 2)]
    assert np.diag(matrix) == pytest.approx(1)
    assert np.allclose(matrix, matrix.T)
    bent = table.assign(share=np.where(table["method"] == "a", table["share"] ** 5, table["share"]))
    assert np.allclose(spearman_matrix(bent, "GridPG", "needle"), matrix)
    by_hand = [table["share"][table["method"].eq(m) & table["stage"].eq(0)].rank().to_numpy() for m in "ab"]
    assert matrix.loc[("a", 0), ("b", 0)] == pytest.approx(np.corrcoef(*by_hand)[0, 1])


def test_an_undefined_share_is_the_lowest_rank_and_notes_are_no_grid() -> None:
    table = random_table(1)
    worst = table.assign(share=table["share"].where(table["grid"] != 3, 0.0))
    missing = table.assign(share=table["share"].where(table["grid"] != 3))
    pd.testing.assert_frame_equal(
        spearman_matrix(missing, "GridPG", "needle"), spearman_matrix(worst, "GridPG", "needle")
    )
    note = pd.DataFrame(
        [{"setting": "GridPG", "kind": "needle", "method": "c", "stage": 0, "grid": None, "share": None}]
    )
    both = pd.concat([table.astype({"grid": object, "share": object}), note]).astype({"share": float})
    assert len(spearman_matrix(both, "GridPG", "needle")) == 4
    assert spearman_matrix(table, "DiFull", "needle").empty


@pytest.mark.parametrize("count", [6, 7, 10, 33, 100, 1000])
def test_bins_hold_every_map_once_and_fall_in_order(count: int) -> None:
    rng = np.random.default_rng(count)
    shares = np.round(rng.random(count), 1)  # ties
    inside = rng.permutation(count) + 1.0
    maps = shares[:, None, None, None] * rng.random((1, 3, 2, 4))
    bins, limit = aggregated(maps, shares, inside)
    members = [one for bin_ in bins for one in bin_.members]
    assert sorted(members) == list(range(count))
    assert members == sorted(range(count), key=lambda n: (-shares[n], -inside[n]))
    assert all(a.share >= b.share for a, b in pairwise(bins))
    for bin_ in bins:
        assert bin_.mean == pytest.approx(maps[list(bin_.members)].mean(axis=0))
        assert bin_.members.index(bin_.example) == (len(bin_.members) - 1) // 2
    assert limit == pytest.approx(np.percentile([np.abs(bin_.mean) for bin_ in bins], 99.5))
    shuffled = rng.permutation(count)
    again, _ = aggregated(maps[shuffled], shares[shuffled], inside[shuffled])
    assert [[shuffled[one] for one in bin_.members] for bin_ in again] == [list(b.members) for b in bins]


def test_undefined_maps_are_in_no_bin() -> None:
    shares = np.where(np.arange(9) == 4, np.nan, np.arange(9) / 9)
    maps = np.where(np.isnan(shares), np.nan, 1.0)[:, None, None, None] * np.ones((1, 2, 3, 4))
    bins, _ = aggregated(maps, shares, np.ones(9))
    assert not any(4 in one.members for one in bins)
    assert all(np.isfinite(one.mean).all() for one in bins)
    with pytest.raises(BadInputError, match="at least 6 grids"):
        aggregated(maps[:5], shares[:5], np.ones(5))
    assert bin_edges(100) == list(EDGES)


def test_every_depth_from_the_input_to_the_last_map() -> None:
    assert [(one.stage, one.relative) for one in depths(pooled())] == [(0, 0), (1, 0.5), (2, 1)]
    assert [one.stage for one in depths(flattened())] == [0, 1]
    for stage in (1, 2):
        x = SCANS[:2]
        model = pooled()
        features = nn.Sequential(*model.stages[:stage])(x)
        torch.testing.assert_close(nn.Sequential(*model.stages[stage:])(features), model(x), rtol=0, atol=0)


CONFIG = load_config(overrides={"attribution": {"methods": [
    "lrp", "input-x-gradient", "integrated-gradients", "grad-cam", "occlusion", "rise", "region-occlusion",
    "expected-gradients", "integrated-gradients-from-mean",
]}})  # fmt: skip
EXPLANATIONS = explanations_of_run(CONFIG)
ATTENTION = load_config(overrides={"model": {"architecture": "vit"}, "attribution": {"methods": ["cgw1"]}})
USABLE = [one for one in EXPLANATIONS if not regional(one)]
CONTROLS = RunContext(None, None, Reference(scans(2, seed=8), ("a", "b")))  # type: ignore[arg-type]


def test_methods_that_hide_regions_of_one_brain_are_told() -> None:
    assert [one.entry.name for one in EXPLANATIONS if regional(one)] == ["region-occlusion"]


@pytest.mark.ci
def test_all_that_is_asked_runs_through_the_same_table() -> None:
    model = pooled()
    asked = asked_in_grids(USABLE, CONTROLS, model.float(), CELL, "needle")
    names = [(name, one.stage) for one in asked for name in one.names]
    assert len(set(names)) == len(names)
    kernels = len(smoothing_kernels(min(CELL)))
    assert len(KERNEL_SHARES) == 6  # of which the smallest three are one voxel in cells of eight
    assert kernels == 4
    # three stages of eight methods (five β, two of focus), IntGrad from air at two, five γ, four kernels of two
    assert len(names) == 3 * (5 + 2 + 7) + 2 + 5 + 2 * kernels
    table = grid_scores(model.double(), read, LAYOUT, GRIDS[:1], asked, ["GridPG", "DiPart"])
    at_input = table["note"].notna()
    assert set(table.loc[at_input, "method"]) == {"grad-cam"}  # which has one channel there
    assert table.loc[~at_input, "share"].between(0, 1).all()
    shares = table[(table["setting"] == "GridPG") & (table["stage"] == 0)].set_index("method")["share"]
    assert shares["smooth-input-x-gradient kernel=1"] == pytest.approx(shares["input-x-gradient"])
    assert shares["smooth-input-x-gradient kernel=9"] != pytest.approx(shares["input-x-gradient"])
    assert shares["lrp composite gamma=0"] != pytest.approx(shares["lrp composite gamma=0.25"])
    assert set(table["depth"]) == {0, 0.5, 1}


@pytest.mark.parametrize("kind", ["needle", "pair", "corner"])
@pytest.mark.parametrize("every", [True, False])
def test_every_method_has_a_row_at_every_stage_or_says_why_not(kind: str, every: bool) -> None:
    """Slow methods once vanished from grids that the network sees as a whole."""
    model = pooled()
    asked = asked_in_grids(USABLE, CONTROLS, model.float(), CELL, kind, every, GridsConfig(masks=4))  # type: ignore[arg-type]
    stages = (0, 1, 2) if every else (0, 2)
    names = {"lrp beta=0" if one.entry.name == "lrp" else one.entry.name for one in USABLE}
    assert {(name, stage) for name in names for stage in stages} <= {(one.name, one.stage) for one in asked}
    left_out = [(one.name, one.stage) for one in asked if one.note]
    quick = kind == "needle" and not every
    assert left_out == ([("occlusion", 0), ("rise", 0)] if quick else [])  # behind the last stage they cost little
    table = grid_scores(model.double(), read, LAYOUT, GRIDS[:1], [one for one in asked if one.note], ["GridPG"])
    assert table["note"].str.contains("without --quick").all()
    assert table["grid"].isna().all()
    assert ("lrp composite gamma=0.25" in {one.name for one in asked}) == (kind == "needle")


@pytest.mark.parametrize("every", [True, False])
def test_smoothgrad_is_asked_of_all_three_maps(every: bool) -> None:
    explanations = explanations_of_run(load_config(overrides={"attribution": {"methods": ["smoothgrad"]}}))
    asked = asked_in_grids(explanations, CONTROLS, pooled().float(), CELL, "needle", every, GridsConfig(steps=2))
    names = ["smoothgrad", "smoothgrad of=input-x-gradient", "smoothgrad of=integrated-gradients"]
    stages = (0, 1, 2) if every else (0, 2)
    assert [(one.name, one.stage) for one in asked] == [(name, stage) for stage in stages for name in names]
    left_out = [(one.name, one.stage) for one in asked if one.note]
    assert left_out == ([] if every else [(names[2], 0)])  # passes for each copy and each point
    assert {one.method.steps for one in asked} == {2}  # type: ignore[attr-defined]
    assert asked[-1].method.masking.inner == "zero"  # type: ignore[attr-defined]
    table = grid_scores(pooled(), read, LAYOUT, GRIDS[:1], asked, ["GridPG"])
    shares = table[table["stage"] == 0].set_index("method")["share"].dropna()
    assert sorted(shares.index) == names[: 3 if every else 2]
    assert shares.between(0, 1, inclusive="neither").all()
    assert np.diff(np.sort(shares)).min() > 1e-6


def test_settings_of_the_literature_come_first_and_ours_name_themselves() -> None:
    asked = {
        (one.name, one.stage): one.method for one in asked_in_grids(USABLE, CONTROLS, pooled().float(), CELL, "needle")
    }
    paths = {stage: asked["integrated-gradients", stage] for stage in (0, 1, 2)}
    assert [paths[stage].masking.inner for stage in (0, 1, 2)] == ["baseline", "zero", "zero"]  # type: ignore[union-attr]
    assert all(one.steps == 20 for one in paths.values())  # type: ignore[union-attr]
    assert ("integrated-gradients from=air", 0) not in asked  # air is 0
    assert asked["integrated-gradients from=air", 2].masking.inner == "baseline"  # type: ignore[union-attr]
    assert asked["rise", 0].masks == 1000  # type: ignore[union-attr]
    assert asked["rise", 2].masking.inner == asked["occlusion", 2].masking.inner == "zero"  # type: ignore[union-attr]
    assert asked["lrp focus", 0].bias  # type: ignore[union-attr]
    assert not asked["lrp focus bias=false", 0].bias  # type: ignore[union-attr]


@pytest.mark.parametrize("every", [True, False])
def test_attention_is_asked_at_the_tokens_of_a_transformer_and_of_a_probe_on_one(every: bool) -> None:
    torch.manual_seed(0)
    body = ViTConfig(patch=4, dim=6, depth=2, heads=2)
    model = build_network(body, CELL, 3).double().eval()
    model.stages[0][1].values.data.normal_()
    probe = build_probe(model, CELL, ProbeConfig(), False, 3).double().eval()
    probe.stages[-1].load_state_dict(model.stages[-1].state_dict())
    explanations = [one for one in explanations_of_run(ATTENTION) if one.entry.name == "cgw1"]
    assert len(explanations) == 1
    shares = {}
    for network, usual, relative in ((model, 1, 0.25), (probe, "stages.0.0.2", 0.0)):
        asked = asked_in_grids(explanations, CONTROLS, network, CELL, "needle", every)
        assert [one.depth for one in asked if one.stage == usual] == [relative]
        table = grid_scores(network, read, LAYOUT, GRIDS[:2], asked, ["GridPG"])
        assert table.loc[table["depth"] == 1, "note"].str.contains("no attention").all()
        shares[usual] = table.loc[table["depth"] == relative, "share"].tolist()
    assert len(shares[1]) == 2
    assert shares[1] == shares["stages.0.0.2"]
    assert all(0 < one < 1 for one in shares[1])


INHERENT = dict(attribution={"methods": ["inherent"], "settings": ["inherent:compare=nothing"]})
INHERENT |= dict(model={"architecture": "probe", "head": "coda", "body": '{"architecture": "resnet10"}'})


def hybrid() -> StagedModel:
    """Two conventional stages, and a head of dynamic alignment units."""
    model = build_probe(pooled(), CELL, ProbeConfig(head="coda", hidden_channels=3), False, 2).double()
    calibrate(model.train(), SCANS)
    return model.double().eval()


def test_a_hybrid_is_asked_for_inherent_maps_at_every_depth_and_inside_of_its_stem() -> None:
    model, explanations = hybrid(), explanations_of_run(load_config(overrides=INHERENT))
    asked = asked_in_grids(explanations, CONTROLS, model, CELL, "needle")
    assert [(one.name, one.stage, one.number) for one in asked] == [
        ("inherent", 0, 0), ("inherent", 1, 1), ("inherent", 2, 2), ("inherent", 3, 3),
        ("inherent stem=1", "stages.0.0", 0),
    ]  # fmt: skip
    assert [one.depth for one in asked] == pytest.approx([0, 1 / 3, 2 / 3, 1, 1 / 6])
    for setting, kind in (("GridPG", GRIDS[0]), ("DiFull", GRIDS[2])):
        table = grid_scores(model, read, LAYOUT, [kind], asked, [setting]).set_index("depth")
        assert "backbone of this probe is conventional" in table.loc[0, "note"]  # contributions are not exact there
        shares = table["share"].drop(index=0)
        assert shares.between(0, 1).all()
        if setting == "DiFull":  # cells of a network with local connections cannot see each other
            np.testing.assert_allclose(shares, 1)
        else:
            assert shares.max() - shares.min() > 0.01
    assert not any("stem" in one.name for one in asked_in_grids(explanations, CONTROLS, model, CELL, "needle", False))


def test_inside_of_a_stem_without_constants_maps_add_up_to_the_logit_as_behind_it() -> None:
    """Layers of the stem are piecewise linear: with constants the map of a stage inside of it no longer adds up."""
    model, volume = hybrid(), SCANS[:1]
    own = Inherent(compare="nothing")

    def sums() -> list[float]:
        found = []
        for stage in ("stages.0.0", 1, 2):
            with explaining(model, volume, 1, stage) as view:
                found.append(float(own.maps(view).sum()))
        return found

    logit = float(model(volume)[0, 1].detach())
    stem, *behind = sums()
    assert behind == pytest.approx([logit] * 2)
    assert abs(stem - logit) > 1e-6
    model.stages[0][1][0].bias.data.zero_()
    assert sums() == pytest.approx([float(model(volume)[0, 1].detach())] * 3)


@pytest.mark.parametrize("network", [lambda: pooled().float(), lambda: build(CELL, CodaConfig("coda-s"), 2)])
def test_networks_without_a_conventional_stem_have_no_depths_in_it(network: Callable[[], StagedModel]) -> None:
    assert stem_depths(network()) == ()
    with_linear_head = build_probe(pooled(), CELL, ProbeConfig(), False, 2)
    assert stem_depths(with_linear_head) == ()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("backbone", "linear"),
    [
        ('{"architecture": "resnet10", "width": 0.05}', True),
        ('{"architecture": "densenet121", "first_channels": 4, "growth": 2}', True),
        ('{"architecture": "seresnet50"}', False),
        ('{"architecture": "efficientnet-b0"}', False),
        ('{"architecture": "vit"}', False),
    ],
)
def test_only_piecewise_linear_stems_have_depths_in_them(backbone: str, linear: bool) -> None:
    settings = {**INHERENT["model"], "body": backbone, "hidden_channels": 2}
    config = load_config(overrides={**INHERENT, "model": settings})
    model = build_network(config.model, (64, 64, 64), 2).eval()
    assert len(model.stages[0]) > 1
    assert len(stem_depths(model)) == (len(model.stages[0]) - 1 if linear else 0)


def test_kinds_of_layers_that_a_stem_may_have() -> None:
    made = [nn.Conv3d(1, 2, 3), nn.BatchNorm3d(2), nn.LeakyReLU(), nn.MaxPool3d(2), nn.AvgPool3d(2), nn.Dropout3d()]
    assert is_piecewise_linear(nn.Sequential(*made, nn.Identity(), nn.Flatten(), nn.Linear(2, 2)))
    for other in (nn.GELU(), nn.Sigmoid(), nn.InstanceNorm3d(2), nn.SiLU(), nn.Softmax(1)):
        assert not is_piecewise_linear(nn.Sequential(*made, other)), other

    class Called(nn.Module):
        def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.function = function

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x)

    assert is_piecewise_linear(nn.Sequential(Called(lambda x: x + torch.relu(x))))
    for function in (lambda x: x * torch.relu(x), lambda x: x * torch.sigmoid(x), torch.exp):
        assert not is_piecewise_linear(nn.Sequential(Called(function)))
    assert not is_piecewise_linear(nn.Sequential(Called(lambda x: x if x.sum() > 0 else -x)))  # cannot be traced


def test_a_share_of_1_by_construction_says_so() -> None:
    """LRP and guided backpropagation in DiFull: the map is made of one cell alone, and its note says that."""
    asked = [GridMethod("lrp", Lrp()), GridMethod("guided", GuidedBackprop()), GridMethod("gradient", Gradient())]
    table = grid_scores(pooled(), read, LAYOUT, GRIDS[:1], asked, ["DiFull", "GridPG"])
    said = table["note"].fillna("").str.contains("by construction")
    assert table.loc[said, ["setting", "method"]].to_numpy().tolist() == [["DiFull", "lrp"], ["DiFull", "guided"]]
    assert (table.loc[table["setting"] == "DiFull", "share"] == 1).all()


def test_methods_fit_the_cell() -> None:
    assert fitted(Occlusion(), (16, 8, 2)).size == (5, 3, 1)
    assert fitted(Occlusion(), (16, 8, 2), settings=GridsConfig(boxes=4)).size == (4, 2, 1)
    assert fitted(IntegratedGradients(), CELL, settings=GridsConfig(steps=5)).steps == 5
    assert fitted(Rise(), CELL, settings=GridsConfig(masks=7)).masks == 7
    assert fitted(Gradient(), CELL, 1) == Gradient()


@pytest.mark.parametrize("cell", [0, 3])
def test_one_function_two_networks_two_maps_by_z_plus(cell: int) -> None:
    """Appendix A.8: logits agree; over half of z+ relevance moves to cells the head cannot see; gradients do not."""
    layout, shape = LAYOUT, (2, 3, 4)
    generator = torch.Generator().manual_seed(2)
    features = torch.rand((1, 1, *layout.shape(shape)), dtype=torch.float64, generator=generator)
    connected = torch.zeros(layout.shape(shape), dtype=torch.bool)
    connected[layout.box(cell, shape)] = True
    connected = connected.flatten()
    weight = torch.rand((2, connected.numel()), dtype=torch.float64, generator=generator) / 10
    plain, cancelling = cancelling_pair(weight, torch.tensor([0.1, -0.2], dtype=torch.float64), connected)
    torch.testing.assert_close(plain(features), cancelling(features), rtol=0, atol=1e-12)
    shares = [share_on_disconnected(one, features, connected, 1, Lrp(beta=0.0)) for one in (plain, cancelling)]
    assert shares[0] == 0
    assert shares[1] > 0.5
    for method in (InputTimesGradient(), Gradient(), IntegratedGradients(steps=3, tolerance=1)):
        for network in (plain, cancelling):
            assert share_on_disconnected(network, features, connected, 1, method) == 0


@pytest.mark.parametrize("all_of_them", [True, False])
def test_a_head_that_reads_everything_or_nothing_has_no_pair(all_of_them: bool) -> None:
    with pytest.raises(BadInputError, match="some features and not others"):
        cancelling_pair(torch.ones(2, 4), torch.zeros(2), torch.full((4,), all_of_them))


@pytest.mark.parametrize("cell", range(LAYOUT.cells))
def test_a_picture_has_the_explained_cell_first_and_sums_what_is_positive(cell: int) -> None:
    values = torch.full(LAYOUT.shape(CELL), -1.0)
    values[LAYOUT.box(cell, CELL)] = 2.0
    found = picture(values, LAYOUT, cell)
    assert found.shape == LAYOUT.shape(CELL)[:2]
    assert (found[: CELL[0], : CELL[1]] == 2 * CELL[2]).all()
    assert found.sum() == 2 * np.prod(CELL)


def test_methods_that_do_not_follow_the_function_are_told_from_those_that_do() -> None:
    """Through the table: z+ changes, gradients do not, and what cannot be asked has a note."""
    features = torch.rand((1, 1, 4, 3, 2), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    connected = torch.arange(24) < 6
    slopes = torch.rand((2, 24), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    asked = [GridMethod("z+", Lrp()), GridMethod("gradient", Gradient()), GridMethod("grad-cam", GradCam())]
    rows = invariance_rows(features, slopes, connected, 1, asked)
    table = invariance_table([pd.DataFrame(rows)] * 2, "run").set_index("method")
    assert (table["logit_difference"] < 1e-12).all()
    assert table["n_grids"].tolist() == [2, 2, 0]
    assert table["invariant"].tolist()[:2] == [False, True]
    assert table.loc["z+", "share_cancelling"] > 0.5
    assert pd.isna(table.loc["grad-cam", "invariant"])
    assert "channel" in table.loc["grad-cam", "note"]


def test_grids_of_a_hybrid_are_not_refused_where_its_input_is() -> None:
    """Other parts ask inherent maps at the input alone; grids have a row that says so, and go on."""
    small = {**INHERENT["model"], "body": '{"architecture": "resnet10", "width": 0.05}', "hidden_channels": 2}
    config = load_config(overrides={**INHERENT, "model": small, "registration": {"resolution_mm": 4.0}})
    atlas = load_atlas(config.regions.atlas, template_grid(4.0))

    def bench(part: str, method: str = "inherent", of: Config = config) -> Bench:
        request = BenchRequest((method,), chosen_parts([part]) if part else ())
        return Bench(None, request, (), Split(()), of, atlas, None, None)  # type: ignore[arg-type]

    bench("grids")._require_defined()
    with pytest.raises(UsageError, match="--method inherent --stage 1"):
        bench("faithfulness")._require_defined()
    with pytest.raises(UsageError, match="--method inherent --stage 1"):
        bench("")._require_defined()
    with pytest.raises(UsageError, match="deeplift"):  # only inherent maps are let through
        bench("grids", "deeplift")._require_defined()
    conventional = load_config(
        overrides={"model": {"architecture": "resnet10", "width": 0.05}, "registration": {"resolution_mm": 4.0}}
    )
    with pytest.raises(UsageError, match="not defined for networks of the family resnet10"):
        bench("grids", of=conventional)._require_defined()
