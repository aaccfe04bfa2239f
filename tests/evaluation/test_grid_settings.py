"""Grids: how cells lie, what settings promise, and what claims say of them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from grid_toys import CELL, CLASSES, LAYOUT, flattened, grid_map, pooled, scans
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heatlas.pipeline.attribution.cam.masked_volumes import AblationCam, ScoreCam
from heatlas.pipeline.attribution.cam.weighted_maps import GradCam, LayerCam
from heatlas.pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedBackprop
from heatlas.pipeline.attribution.gradient.paths import (
    ExpectedGradients,
    IntegratedGradients,
    IntegratedGradientsFromMean,
)
from heatlas.pipeline.attribution.lrp.relevance import Lrp
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.perturbation.masking import Occlusion
from heatlas.pipeline.attribution.reference.deeplift import DeepLift
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.grids.directions import (
    DIRECTIONS_TABLE,
    GRIDS_TABLE,
    NEAR,
    Claim,
    Side,
    by_participant,
    claims,
    directions,
    summary_of_grids,
)
from heatlas.studies.grids.grid_scores import SETTINGS, Setting, grid_maps, is_local, network_of
from heatlas.studies.grids.layout import Candidates, Kind, Layout, confident, draw_grids
from heatlas.studies.grids.locality import convolved, filled_up, local_layers, looking_at_cell, reach

# What each setting promises: locality bit for bit, identities between settings, and refusals (spec B.11).

NETWORKS = {"pooled": pooled, "flattened": flattened, "instance norm": lambda: pooled(norm=nn.InstanceNorm3d)}
LOCAL: dict[str, Method] = {
    "gradient": Gradient(),
    "input-x-gradient": InputTimesGradient(),
    "integrated-gradients": IntegratedGradients(steps=20, tolerance=1),
    "layer-cam": LayerCam(),
    "lrp": Lrp(),
    "lrp focus": Lrp(rules="focus"),
    "guided-backpropagation": GuidedBackprop(),
}
CELLS = range(LAYOUT.cells)


def other_cells_changed(cells: Tensor, cell: int, seed: int) -> Tensor:
    noise = torch.randn(cells.shape, dtype=cells.dtype, generator=torch.Generator().manual_seed(seed)) * 50
    noise[cell] = cells[cell]
    return noise


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("cell", CELLS)
def test_difull_is_local_bit_by_bit(name: str, cell: int) -> None:
    model, cells = NETWORKS[name](), scans()
    network = network_of(model, LAYOUT, cells, cell, "DiFull")
    whole = LAYOUT.compose(cells)
    assert torch.equal(network(whole), model(cells[cell : cell + 1]))
    for seed in range(3):
        assert torch.equal(network(LAYOUT.compose(other_cells_changed(cells, cell, seed))), network(whole))


@pytest.mark.parametrize(("network", "stage"), [("pooled", 0), ("pooled", 1), ("pooled", 2), ("flattened", 1)])
@pytest.mark.parametrize("name", LOCAL)
def test_difull_methods_that_follow_the_network_mark_one_cell_only(name: str, network: str, stage: int) -> None:
    cells, model = scans(), pooled() if network == "pooled" else flattened(padding=0)
    for cell in (0, 3):
        values = grid_map(model, LAYOUT, cells, 1, cell, LOCAL[name], stage)
        assert values.shape == LAYOUT.shape(CELL)
        elsewhere = torch.cat([LAYOUT.cell(values[None, None], n) for n in CELLS if n != cell])
        assert not elsewhere.any()
        alone = attribute(model, cells[cell : cell + 1], 1, LOCAL[name], stage)
        torch.testing.assert_close(LAYOUT.cell(values[None, None], cell), alone.speaking_for, rtol=1e-9, atol=1e-12)


def test_difull_exposes_maps_that_mark_what_the_head_cannot_see() -> None:
    cells = scans()
    cells[3] = cells[0]
    for method in (GradCam(), ScoreCam(batch=2), AblationCam()):
        by_class = [LAYOUT.shares(grid_map(pooled(), LAYOUT, cells, target, 0, method, 2)) for target in range(CLASSES)]
        (shares, *_) = [one for one in by_class if one.sum() > 0]
        assert shares[0] < 0.7
        if not isinstance(method, ScoreCam):  # which masks the scan, and so breaks the likeness
            assert shares[3] == pytest.approx(float(shares[0]))


@pytest.mark.parametrize("setting", SETTINGS)
def test_occlusion_finds_its_cell_in_difull_and_not_only_there_otherwise(setting: Setting) -> None:
    shares = LAYOUT.shares(grid_map(pooled(), LAYOUT, scans(), 2, 1, Occlusion(size=4, stride=4), 0, setting))
    assert float(shares.sum()) == pytest.approx(1)
    assert (shares[1] == 1) == (setting == "DiFull")


def test_heads_of_dipart_average_to_gridpg_and_read_their_cell() -> None:
    model, cells = pooled(), scans()
    whole = LAYOUT.compose(cells)
    heads = torch.stack([network_of(model, LAYOUT, cells, cell, "DiPart")(whole) for cell in CELLS])
    torch.testing.assert_close(heads.mean(0), model(whole), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        heads.mean(0), network_of(model, LAYOUT, cells, 0, "GridPG")(whole), rtol=1e-12, atol=1e-12
    )
    features = model.stages[1](model.stages[0](whole))
    for cell in CELLS:
        own = model.stages[2](LAYOUT.cell(features, cell))
        torch.testing.assert_close(heads[cell], own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gradient", "input-x-gradient", "lrp", "guided-backpropagation"])
def test_dipart_evidence_stays_within_the_receptive_field(name: str) -> None:
    layout, cell = Layout((2, 1, 1)), (32, 8, 12)
    model, cells = pooled(), scans(2, cell=cell)
    values = grid_map(model, layout, cells, 1, 0, LOCAL[name], 0, "DiPart")
    border = reach(local_layers(model))[0]
    assert 0 < border < 32
    assert values[:32].abs().sum() > 0
    assert not values[32 + border :].any()
    if name == "gradient":
        assert values[32 : 32 + border].any()


def test_dipart_conserves_relevance() -> None:
    cells = scans()
    network = looking_at_cell(pooled(), LAYOUT, 2)
    answer = attribute(network, LAYOUT.compose(cells), 1, Lrp(rules="founding"))
    ledger = answer.ledger
    assert ledger is not None
    assert float(ledger.residual) == pytest.approx(0, abs=1e-12)
    assert float(ledger.map_sum) != 0


def without_last_bias() -> StagedModel:
    """A network whose logits are made by its features alone; classes 1 and 2 have logits of either sign."""
    model = pooled()
    head = model.stages[2][3]  # type: ignore[index]
    nn.init.zeros_(head.bias)
    head.weight.data[1] = torch.tensor([1.0, -0.5, 0.8, -1.2, 0.6, -0.9])
    head.weight.data[2] = -head.weight.data[1]
    return model


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", [Lrp(rules="focus"), Lrp(rules="composite"), Lrp(rules="composite", epsilon=0.0)])
def test_relevance_is_positive_where_features_speak_for_a_class_whatever_its_logit(
    method: Lrp, setting: Setting
) -> None:
    """The ε-rule of a linear head keeps the signs of contributions: at the last stage the shares are those of IxG."""
    model, cells, signs = without_last_bias(), scans(), set()
    for target in (1, 2):
        logit = network_of(model, LAYOUT, cells, 1, setting)(LAYOUT.compose(cells))[0, target]
        signs.add(bool(logit > 0))
        relevance = grid_map(model, LAYOUT, cells, target, 1, method, 2, setting)
        contributions = grid_map(model, LAYOUT, cells, target, 1, InputTimesGradient(), 2, setting)
        inside = LAYOUT.cell(relevance[None, None], 1), LAYOUT.cell(contributions[None, None], 1)
        assert torch.corrcoef(torch.stack([one.flatten() for one in inside]))[0, 1] == pytest.approx(1)
        if setting != "DiFull":  # where relevance outside the cell is 0 by construction
            assert LAYOUT.shares(relevance).tolist() == pytest.approx(LAYOUT.shares(contributions).tolist(), abs=1e-3)
    assert signs == {False, True}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_negative_logit_turns_relevance_of_one_signed_rules_back(setting: Setting) -> None:
    """β = 0 shares the start value among positive contributions, which speak for the class whatever its logit."""
    model, cells = without_last_bias(), scans()
    for target in (1, 2):
        values = grid_map(model, LAYOUT, cells, target, 1, Lrp(beta=0.0), 2, setting)
        assert float(values.min()) >= 0
        assert float(values.sum()) > 0


@pytest.mark.parametrize("logit", [-50.0, 50.0])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rules", ["focus", "composite"])
def test_a_bias_that_makes_the_sign_of_a_logit_does_not_turn_the_map(rules: str, bias: bool, logit: float) -> None:
    model, cells = without_last_bias(), scans()
    method = Lrp(rules=rules, bias=bias)  # type: ignore[arg-type]
    plain = LAYOUT.shares(grid_map(model, LAYOUT, cells, 1, 0, method, 2, "GridPG")).tolist()
    nn.init.constant_(model.stages[2][3].bias, logit)  # type: ignore[index]
    assert LAYOUT.shares(grid_map(model, LAYOUT, cells, 1, 0, method, 2, "GridPG")).tolist() == pytest.approx(plain)


def places_of_either_sign(against: float) -> tuple[StagedModel, Tensor]:
    """A head without biases whose logit is the first voxel of a cell less the second, and two cells.

    The first cell has the logit 0.5, the second ``-against``; slid along their axis it sees one after the other.
    """
    head = nn.Linear(2, 2, bias=False)
    head.weight.data[:] = torch.tensor([1.0, -1.0])
    same = nn.Conv3d(1, 1, 1, bias=False)
    nn.init.ones_(same.weight)
    model = StagedModel([nn.Sequential(same, nn.ReLU()), nn.Sequential(nn.Flatten(), head)]).double().eval()
    return model, torch.tensor([[1.0, 0.5], [0.5, 0.5 + against]], dtype=torch.float64).view(2, 1, 1, 1, 2)


@pytest.mark.parametrize("against", [0.2, 3.0])
def test_a_mixture_marks_the_place_whose_logit_speaks_for_the_class(against: float) -> None:
    """Focus of a slid head: ε hands each place its logit, z+ keeps its sign; *composite* keeps those of all voxels."""
    model, cells = places_of_either_sign(against)
    pair = Layout((2, 1, 1))
    logit = network_of(model, pair, cells, 0, "GridPG")(pair.compose(cells))[0, 1]
    assert (float(logit) > 0) == (against < 0.5)
    focus = grid_map(model, pair, cells, 1, 0, Lrp(rules="focus"), 1, "GridPG").flatten()
    torch.testing.assert_close(
        focus, torch.tensor([0.25, 0, -against / 2, 0], dtype=torch.float64), rtol=1e-5, atol=1e-6
    )
    for gamma in (0.0, 0.25):
        method = Lrp(rules="composite", gamma=gamma)
        assert torch.sign(grid_map(model, pair, cells, 1, 0, method, 1, "GridPG")).flatten().tolist() == [1, -1, 1, -1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("cell", [0, 3])
def test_integrated_gradients_are_complete_in_every_setting(cell: int) -> None:
    model, cells = pooled(), scans()
    method = IntegratedGradients(steps=64, tolerance=1)
    for setting in SETTINGS:
        network = network_of(model, LAYOUT, cells, cell, setting)
        whole = LAYOUT.compose(cells)
        with torch.no_grad():
            difference = float((network(whole) - network(torch.zeros_like(whole)))[0, 1])
        total = float(grid_map(model, LAYOUT, cells, 1, cell, method, 0, setting).sum())
        assert total == pytest.approx(difference, abs=0.01 * abs(difference) + 1e-3)


@pytest.mark.parametrize("shape", [CELL, (24, 8, 16)])
def test_a_head_slid_over_its_own_size_is_the_head(shape: tuple[int, int, int]) -> None:
    founding = FoundingCNN((26, 31, 28), channels=(2, 3), pools=(2, 3), hidden_units=4).double().eval()
    for model, x in ((flattened(), scans()), (founding, scans(2, cell=(26, 31, 28)))):
        slid = convolved(model, tuple(x.shape[-3:]))
        torch.testing.assert_close(slid(x), model(x), rtol=1e-12, atol=1e-12)
        assert len(slid.stages) == len(model.stages)
        larger = slid(LAYOUT.compose(x[:1].expand(4, -1, -1, -1, -1)))
        assert larger.shape == (1, model(x).shape[1])


def test_logits_of_a_slid_head_are_averaged_over_all_positions() -> None:
    model, cells = flattened(), scans()
    whole = LAYOUT.compose(cells)
    features = model.stages[0](whole)
    d, h, _ = (side // n for side, n in zip(features.shape[-3:], LAYOUT.counts, strict=True))
    places = [features[:, :, a : a + d, b : b + h] for a in range(d + 1) for b in range(h + 1)]
    logits = [model.stages[2](model.stages[1](place.contiguous())) for place in places]
    torch.testing.assert_close(convolved(model, CELL)(whole), torch.stack(logits).mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("setting", ["GridPG", "DiPart"])
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("name", LOCAL)
def test_all_methods_run_in_all_settings_at_every_stage(name: str, stage: int, setting: Setting) -> None:
    values = grid_map(pooled(), LAYOUT, scans(), 1, 2, LOCAL[name], stage, setting)
    assert values.shape == LAYOUT.shape(CELL)
    assert torch.isfinite(values).all()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: pooled(norm=nn.InstanceNorm3d), "InstanceNorm3d.*DiFull"),
        (lambda: pooled(norm=nn.GroupNorm), "GroupNorm.*DiFull"),
        (flattened, "DiFull"),
        (lambda: FoundingCNN(CELL, channels=(2,), pools=(2,), hidden_units=3).double().eval(), "DiFull"),
    ],
)
def test_dipart_of_a_network_that_is_not_local_is_refused(model: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        grid_map(model(), LAYOUT, scans(), 1, 0, Gradient(), 0, "DiPart")  # type: ignore[operator]


class Places(nn.Module):
    """Adds a weight per voxel of one size, as embeddings of places do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CELL, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def test_gridpg_of_a_network_for_one_size_is_refused_and_difull_is_not() -> None:
    model = StagedModel([Places(), *pooled().stages]).eval()
    with pytest.raises(UsageError, match=r"cannot take .* DiFull is defined"):
        grid_map(model, LAYOUT, scans(), 1, 0, Gradient(), 0, "GridPG")
    assert LAYOUT.shares(grid_map(model, LAYOUT, scans(), 1, 0, Gradient(), 0, "DiFull"))[0] == 1


def test_dipart_of_cells_that_strides_do_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="strides do not divide"):
        grid_map(pooled(), LAYOUT, scans(cell=(15, 9, 12)), 1, 0, Gradient(), 0, "DiPart")


def resnet10() -> StagedModel:
    """A network of the run: strides of 16 and shortcuts beside its convolutions."""
    model = {"architecture": "resnet10", "width": 0.0625, "stem_stride": 1}
    return build_network(load_config(overrides={"model": model}).model, (20, 18, 17), CLASSES).double().eval()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("network", "side", "filled"), [(pooled, (15, 9, 12), (16, 12, 12)), (resnet10, (20, 18, 17), (32, 32, 32))]
)
def test_cells_filled_up_with_air_have_a_local_dipart(network, side, filled) -> None:
    """No brain box is a multiple of the strides; the methods then run on every cell of the grid."""
    model, cells = network(), scans(cell=side)
    cells_filled = filled_up(cells, model)
    assert cells_filled.shape[-3:] == filled
    a, b, c = side
    assert torch.equal(cells_filled[..., :a, :b, :c], cells)
    assert float(cells_filled.sum()) == pytest.approx(float(cells.sum()))
    assert is_local(model, LAYOUT, cells_filled, 1, "DiPart")
    values = grid_map(model, LAYOUT, cells_filled, 1, 3, InputTimesGradient(), 0, "DiPart")
    assert LAYOUT.shares(values)[3] > 1 / LAYOUT.cells


@pytest.mark.parametrize("name", ["flattened", "instance norm"])
def test_networks_without_a_dipart_see_their_volumes_as_they_are(name: str) -> None:
    cells = scans(cell=(15, 9, 12))
    assert filled_up(cells, NETWORKS[name]()) is cells


def test_no_weight_or_mode_of_the_model_changes() -> None:
    model = pooled()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for setting in SETTINGS:
        grid_map(model, LAYOUT, scans(), 1, 0, InputTimesGradient(), 0, setting)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="known are GridPG"):
        network_of(pooled(), LAYOUT, scans(), 0, "GridPh")  # type: ignore[arg-type]


CONTROLS = Reference(scans(3, seed=8), ("a", "b", "c"))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", [ExpectedGradients, IntegratedGradientsFromMean, DeepLift])
def test_a_grid_is_compared_with_grids_of_each_control(method: type, setting: Setting) -> None:
    model, cells = pooled(), scans()
    own = {} if method is DeepLift else {"tolerance": 1.0}  # of a toy, whose path bends more than few points can follow
    values = grid_map(model, LAYOUT, cells, 1, 2, method(reference=CONTROLS, **own), 0, setting, "evidence")
    network, whole = network_of(model, LAYOUT, cells, 2, setting), LAYOUT.compose(cells)
    grids = torch.cat([LAYOUT.join([one] * LAYOUT.cells) for one in torch.split(CONTROLS.volumes, 1)])
    if method is DeepLift:  # complete up to rounding
        logits = [network(one)[0] for one in (whole, grids.mean(0, keepdim=True))]
        of_scan, of_controls = (one[1] - (one[0] + one[2]) / 2 for one in logits)
        assert float(values.sum()) == pytest.approx(float(of_scan - of_controls), abs=1e-9)
    if setting == "DiFull":
        assert LAYOUT.shares(values)[2] == 1
        alone = attribute(model, cells[2:3], 1, method(reference=CONTROLS, **own), 0, "evidence").values
        torch.testing.assert_close(LAYOUT.cell(values[None, None], 2), alone, rtol=1e-9, atol=1e-12)


def test_several_betas_are_one_pass_and_the_same_maps() -> None:
    together = grid_maps(pooled(), LAYOUT, scans(), 1, 0, Lrp(beta=(0.0, 1.0)), 0, "GridPG")
    for beta, values in zip((0.0, 1.0), together, strict=True):
        torch.testing.assert_close(values, grid_map(pooled(), LAYOUT, scans(), 1, 0, Lrp(beta=beta), 0, "GridPG"))


class Leaky(nn.Module):
    """Lets every voxel know the mean of the volume."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean()


@pytest.mark.parametrize(("network", "setting", "kept"), [
    ("pooled", "DiFull", True), ("flattened", "DiFull", True), ("instance norm", "DiFull", True),
    ("pooled", "DiPart", True),
])  # fmt: skip
def test_promises_of_locality_are_kept(network: str, setting: Setting, kept: bool) -> None:
    assert is_local(NETWORKS[network](), LAYOUT, scans(), 1, setting) is kept


def test_a_broken_promise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pooled()
    leaky = StagedModel([Leaky(), *model.stages]).eval()
    monkeypatch.setattr("heatlas.studies.grids.grid_scores.network_of", lambda *_: leaky)
    for setting in ("DiFull", "DiPart"):
        assert not is_local(model, LAYOUT, scans(), 1, setting)


def test_gridpg_promises_nothing() -> None:
    with pytest.raises(UsageError, match="nothing to check"):
        is_local(pooled(), LAYOUT, scans(), 1, "GridPG")


# Grids: shares of cells, how cells lie, who stands in them, and refusals.

LAYOUTS = [Layout((2, 1, 1)), Layout((1, 2, 2)), Layout((2, 2, 1)), Layout((2, 3, 2))]
LAYOUT_CELL = (3, 5, 4)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_cells_stand_where_their_boxes_are(layout: Layout) -> None:
    cells = torch.arange(layout.cells).view(-1, 1, 1, 1, 1).expand(-1, 2, *LAYOUT_CELL).double()
    whole = layout.compose(cells)
    assert whole.shape == (1, 2, *(n * side for n, side in zip(layout.counts, LAYOUT_CELL, strict=True)))
    for number in range(layout.cells):
        assert (whole[0, 1][layout.box(number, LAYOUT_CELL)] == number).all()
        corner = tuple(n * side for n, side in zip(layout.place(number), LAYOUT_CELL, strict=True))
        assert whole[0, 0][corner] == number
    assert torch.equal(layout.split(whole), cells)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_even_map_has_the_share_of_chance(layout: Layout) -> None:
    shares = layout.shares(torch.full(layout.shape(LAYOUT_CELL), 0.3))
    assert shares.tolist() == pytest.approx([1 / layout.cells] * layout.cells)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(LAYOUTS), st.sampled_from([0.5, 2.0, 1e6]))
def test_shares_add_up_to_one_whatever_the_scale(seed: int, layout: Layout, scale: float) -> None:
    values = torch.randn(layout.shape(LAYOUT_CELL), generator=torch.Generator().manual_seed(seed))
    shares = layout.shares(values)
    assert float(shares.sum()) == pytest.approx(1)
    assert layout.shares(values * scale).tolist() == pytest.approx(shares.tolist())
    by_hand = [values[layout.box(n, LAYOUT_CELL)].clamp(min=0).sum() for n in range(layout.cells)]
    assert shares.tolist() == pytest.approx([float(one / sum(by_hand)) for one in by_hand], abs=1e-6)


def test_a_map_of_one_cell_is_perfect_and_a_negative_one_has_nothing() -> None:
    layout = Layout((2, 2, 1))
    cells = -torch.rand(4, 1, *LAYOUT_CELL)
    assert layout.shares(layout.compose(cells)[0, 0]).tolist() == [0, 0, 0, 0]
    cells[2] = 1
    assert layout.shares(layout.compose(cells)[0, 0]).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("broken", [0.0, math.nan, math.inf])
def test_undefined_maps_have_no_share(broken: float) -> None:
    values = torch.zeros(6, 5, 4)
    values[0, 0, 0] = broken
    assert torch.isnan(Layout((2, 1, 1)).shares(values)).all()


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 2), (0, 2, 1), (2, 1.5, 1), (2, -1, 1)])
def test_layouts_that_are_none_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="three whole numbers"):
        Layout(counts)


def test_volumes_and_cells_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInputError, match="cannot be cut"):
        Layout((2, 1, 1)).split(torch.zeros(1, 1, 5, 4, 3))
    with pytest.raises(BadInputError, match="needs 2 cells and gets 3"):
        Layout((2, 1, 1)).compose(torch.zeros(3, 1, 5, 4, 3))


LABELS = [0] * 6 + [1] * 6 + [2] * 6
PEOPLE = [f"p{n // 2}" for n in range(18)]


def probabilities(labels: list[int], seed: int = 0, classes: int = 3) -> np.ndarray:
    """Every scan recognised."""
    scores = np.random.default_rng(seed).random((len(labels), classes)) / 4
    scores[np.arange(len(labels)), labels] += 1
    return scores / scores.sum(axis=1, keepdims=True)


def everyone() -> Candidates:
    return confident(LABELS, PEOPLE, probabilities(LABELS), top=1)


def layout_of(kind: Kind) -> Layout:
    return Layout((2, 1, 1)) if kind == "pair" else Layout((2, 2, 1))


@pytest.mark.parametrize("kind", ["needle", "pair", "corner"])
def test_every_grid_is_as_its_kind_says(kind: Kind) -> None:
    layout = layout_of(kind)
    grids = draw_grids(everyone(), layout, kind, 1, 40, np.random.default_rng(4))
    for grid in grids:
        assert len(grid.scans) == layout.cells
        assert [LABELS[scan] for scan in grid.scans] == list(grid.labels)
        assert len({PEOPLE[scan] for scan in grid.scans}) == layout.cells
        assert grid.labels[grid.cell] == grid.target == 1
        same = {"corner": (0, layout.cells - 1)}.get(kind, (grid.cell,))
        assert grid.same_class == same
    targets = [grid.scans[grid.cell] for grid in grids]
    confidence = dict(zip(everyone().scans.tolist(), everyone().confidence.tolist(), strict=True))
    assert targets[:6] == sorted(set(targets), key=lambda scan: -confidence[scan])
    assert targets[6:12] == targets[:6]
    places = {grid.cell for grid in grids}
    assert places == ({0} if kind == "corner" else set(range(layout.cells)))
    assert grids == draw_grids(everyone(), layout, kind, 1, 40, np.random.default_rng(4))


def test_the_most_confident_scans_that_are_right_take_part() -> None:
    likely = probabilities(LABELS)
    likely[0] = [0.1, 0.8, 0.1]  # wrong, however sure
    found = confident(LABELS, PEOPLE, likely, top=0.5)
    assert 0 not in found.scans
    for label in range(3):
        own = [n for n in range(18) if LABELS[n] == label and n > 0]
        taken = found.scans[found.of(label)]
        limit = found.confidence[found.of(label)].min()
        assert limit == min(likely[n, label] for n in taken)
        assert all(likely[n, label] <= limit for n in set(own) - set(taken.tolist()))
        assert len(taken) == round(0.5 * len(own))


def test_a_class_that_is_never_recognised_is_refused_by_name() -> None:
    likely = probabilities(LABELS)
    likely[6:12] = [0.9, 0.05, 0.05]
    with pytest.raises(BadInputError, match="class 1 is recognised"):
        confident(LABELS, PEOPLE, likely)


def test_grids_of_more_cells_than_participants_are_refused() -> None:
    with pytest.raises(BadInputError, match="as many participants"):
        draw_grids(everyone(), Layout((3, 3, 2)), "needle", 1, 3, np.random.default_rng(0))


def test_a_participant_with_scans_of_two_classes_is_in_a_grid_once() -> None:
    found = confident([0, 1], ["p", "p"], probabilities([0, 1], classes=2), top=1)
    with pytest.raises(BadInputError, match="as many participants"):
        draw_grids(found, Layout((2, 1, 1)), "pair", 1, 1, np.random.default_rng(0))


@pytest.mark.parametrize(("top", "fewest", "taken"), [(0.1, 1, 1), (0.1, 4, 4), (0.5, 2, 3), (0.1, 40, 6)])
def test_at_least_as_many_scans_are_taken_as_a_grid_needs(top: float, fewest: int, taken: int) -> None:
    found = confident(LABELS, PEOPLE, probabilities(LABELS), top, fewest)
    assert [len(found.of(label)) for label in range(3)] == [taken] * 3


# Claims about grids: planted differences are found, no difference is open, what is missing has no answer.

GRIDS = 24
DIRECTIONS_PEOPLE = {scan: f"p{scan // 2}" for scan in range(GRIDS)}
LAST, INPUT = Side("GridPG", "a", "last"), Side("GridPG", "a")
BETTER = Claim("better", LAST, INPUT)


def table(shift: float, noise: float = 0.05, seed: int = 0) -> pd.DataFrame:
    """Method a at stages 0 and 2; the later one has larger shares by `shift`."""
    rng = np.random.default_rng(seed)
    rows = [
        dict(setting="GridPG", method="a", stage=stage, kind="needle", grid=grid, scan=grid, chance=0.25)
        | dict(share=0.4 + shift * (stage == 2) + rng.normal(0, noise))
        for stage in (0, 2)
        for grid in range(GRIDS)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("shift", "holds"), [(0.2, "yes"), (-0.2, "no"), (0.0, "open")])
def test_a_claim_holds_where_its_interval_says_so(shift: float, holds: str) -> None:
    row = directions(table(shift), DIRECTIONS_PEOPLE, [BETTER]).iloc[0]
    assert list(row.index) == list(DIRECTIONS_TABLE.meanings)
    assert row["holds"] == holds
    assert row["n_participants"] == GRIDS / 2
    assert row["ci_low"] < row["difference"] < row["ci_high"]
    wide = table(shift).pivot_table(index="grid", columns="stage", values="share")
    by_hand = (wide[2] - wide[0]).groupby(wide.index // 2).mean().mean()
    assert row["difference"] == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("shift", "noise", "holds"),
    [(0.0, 0.02, "yes"), (0.3, 0.02, "no"), (-0.3, 0.02, "no"), (NEAR, 0.1, "open"), (0.0, 0.0, "yes")],
)
def test_two_are_about_the_same_where_the_whole_interval_is_near(shift: float, noise: float, holds: str) -> None:
    row = directions(table(shift, noise), DIRECTIONS_PEOPLE, [Claim("alike", LAST, INPUT, near=True)]).iloc[0]
    assert (row["holds"], row["expected"]) == (holds, "near")


@pytest.mark.ci
def test_without_effect_one_claim_in_twenty_is_an_answer() -> None:
    answers = [directions(table(0.0, seed=n), DIRECTIONS_PEOPLE, [BETTER])["holds"].iloc[0] for n in range(40)]
    assert answers.count("open") >= 33


def test_undefined_maps_count_as_a_share_of_nothing() -> None:
    scores = table(0.0, noise=0.01)
    scores.loc[(scores["stage"] == 2) & (scores["grid"] % 2 == 0), "share"] = np.nan
    row = directions(scores, DIRECTIONS_PEOPLE, [BETTER]).iloc[0]
    assert (row["holds"], row["n_participants"]) == ("no", GRIDS / 2)
    assert row["difference"] == pytest.approx(-0.2, abs=0.02)


def test_chance_and_a_perfect_map_are_sides_too() -> None:
    below, perfect = Claim("below", "chance", INPUT), Claim("perfect", INPUT, "1", near=True)
    assert directions(table(0.0), DIRECTIONS_PEOPLE, [below, perfect])["holds"].tolist() == ["no", "no"]
    low = table(0.0).assign(share=0.1 + 0.01 * np.arange(2 * GRIDS) / GRIDS)
    assert directions(low, DIRECTIONS_PEOPLE, [below])["holds"].tolist() == ["yes"]
    assert directions(table(0.0).assign(share=1.0), DIRECTIONS_PEOPLE, [perfect])["holds"].tolist() == ["yes"]


def test_grids_of_another_kind_are_another_side() -> None:
    both = pd.concat([table(0.0), table(0.3, seed=1).assign(kind="pair", grid=lambda rows: rows["grid"] + GRIDS)])
    pairs = Claim("pairs", Side("GridPG", "a", "last", "pair"), LAST)
    assert directions(both, DIRECTIONS_PEOPLE, [pairs])["difference"].iloc[0] == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_method_without_scores_has_no_answer(pooled: bool) -> None:
    asked = claims((3, 5, 7), pooled)
    found = directions(table(0.2), DIRECTIONS_PEOPLE, asked)
    assert len(found) == len(asked) == len({one.name for one in asked})
    assert found["holds"].isna().all()
    assert (found["n_participants"] == 0).all()
    for stage in (2, 0):
        one_stage = directions(table(0.2).query(f"stage == {stage}"), DIRECTIONS_PEOPLE, [BETTER])
        assert one_stage["holds"].isna().all()


def test_a_claim_that_cannot_fail_is_no_answer() -> None:
    perfect = Claim("cell alone", INPUT, "1", near=True, constructed=True)
    assert directions(table(0.0).assign(share=1.0), DIRECTIONS_PEOPLE, [perfect])["holds"].tolist() == [
        "by construction"
    ]
    assert directions(table(0.0), DIRECTIONS_PEOPLE, [perfect])["holds"].tolist() == ["no"]
    said = {one.larger.method for one in claims((3, 5, 7), True) if one.constructed}  # type: ignore[union-attr]
    assert said == {"guided-backpropagation", "lrp focus"}


def test_too_few_participants_leave_a_claim_open() -> None:
    few = table(0.2).query("scan < 4")
    assert directions(few, DIRECTIONS_PEOPLE, [BETTER])["holds"].tolist() == ["open"]


def test_a_scan_without_a_participant_is_refused() -> None:
    with pytest.raises(BadInputError, match="scan 5 has no participant"):
        directions(table(0.2), {scan: who for scan, who in DIRECTIONS_PEOPLE.items() if scan != 5}, [BETTER])


def test_a_participant_counts_once_in_the_summary() -> None:
    scores = table(0.0).assign(cells=4, depth=0.0, class_chance=0.25, undefined=0, note=None)
    scores["class_share"] = scores["share"]
    scores["top_share"] = scores["share"] + 0.05
    scores = pd.concat([scores, scores[scores["scan"] == 0].assign(share=0.9, class_share=0.9)] * 1)
    found = summary_of_grids(scores, DIRECTIONS_PEOPLE)
    assert list(found.columns) == list(GRIDS_TABLE.meanings)
    own = scores[scores["stage"] == 0]
    means = own.groupby(own["scan"] // 2)["share"].mean()
    assert found["share"].iloc[0] == pytest.approx(means.mean())
    assert found["n_participants"].tolist() == [GRIDS / 2] * 2
    assert (found["ci_low"] < found["share"]).all()
    assert (found["top_gain_low"] <= found["top_share"] - found["share"]).all()
    assert (found["top_gain_high"] > 0).all()
    assert by_participant(own, DIRECTIONS_PEOPLE).to_numpy() == pytest.approx(
        means.to_numpy()[np.argsort(means.index.astype(str).map(lambda n: f"p{n}"))]
    )
