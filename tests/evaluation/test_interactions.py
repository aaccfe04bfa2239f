"""Sides of regions taken away together, and what evidence goes with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.evaluation.bench.judging import CohortMaps
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.interactions import sides
from heatlas.studies.interactions.sides import (
    SIDES_TABLE,
    ScanOfSides,
    interaction,
    interaction_table,
    paired_groups,
    require_pairs,
    score_sides,
    sided_groups,
)
from heatlas.studies.interactions.stage import (
    drawn_people,
    slope_bounds,
    source_table,
    standardised_slopes,
)

SHAPE = (4, 5, 6)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (lambda left, right: left + right, 0.0),
        (lambda left, right: max(left, right), 1.0),
        (lambda left, right: left * right, -1.0),
    ],
    ids=["adds up", "either suffices", "both are needed"],
)
def test_a_score_of_two_sides(score, expected) -> None:
    lost = [score(1, 1) - score(*kept) for kept in ((0, 1), (1, 0), (0, 0))]
    left, right, both = (np.array([float(one)]) for one in lost)
    assert interaction(left, right, both)[0] == expected


def test_every_group_with_two_sides_is_asked_and_no_other() -> None:
    atlas = load_atlas("neuromorphometrics-cat12", template_grid(4.0))
    found = sided_groups(atlas)  # type: ignore[arg-type]
    assert found["Hippocampus"] == ((48,), (47,))
    assert "Brain stem" not in found
    assert len(found) > 50


def test_pairs_of_regions_are_found_by_name_and_others_refused() -> None:
    groups = load_atlas("neuromorphometrics-cat12", template_grid(4.0)).regions.groups
    found = paired_groups(groups, ["Hippocampus+ Amygdala", "Amygdala + Thalamus"])
    assert found == {
        "Hippocampus + Amygdala": ((47, 48), (31, 32)),
        "Amygdala + Thalamus": ((31, 32), groups["Thalamus"]),
    }
    for pair, words in (
        ("Hippocampus", "is not two groups"),
        ("Amygdala + Amygdala", "is not two groups"),
        ("Hippocampus + Amigdala", "no group Amigdala. Did you mean Amygdala?"),
    ):
        config = load_config(overrides={"evaluation": {"pairs": [pair]}})
        with pytest.raises(UsageError, match=r"evaluation\.pairs") as caught:
            require_pairs(config)
        assert words in str(caught.value)
    require_pairs(load_config(overrides={"evaluation": {"pairs": list(found)}}))


def test_sides_and_pairs_of_a_linear_network_lose_their_own_contributions(tmp_path, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(2)
    volume, mean = torch.rand((2, *SHAPE), generator=generator)
    labels = np.arange(volume.numel()).reshape(SHAPE) % 5  # 1, 2: a; 3, 4: b
    linear = nn.Linear(volume.numel(), 2)
    evidence = ((linear.weight[1] - linear.weight[0]) * (volume - mean).flatten()).detach().numpy().reshape(SHAPE)
    regions = [
        SimpleNamespace(group=group, hemisphere=side, number=number)
        for number, (group, side) in enumerate([("a", "left"), ("a", "right"), ("b", "left"), ("b", "right")], 1)
    ]
    table = SimpleNamespace(regions=regions, groups={"a": (1, 2), "b": (3, 4)})
    atlas = SimpleNamespace(regions=table, labels_in=lambda _: labels)
    loaded = SimpleNamespace(
        model=StagedModel([nn.Sequential(nn.Flatten()), linear]).eval(),
        classes=("CN", "AD"),
        input=SimpleNamespace(box=None),
    )
    network = SimpleNamespace(
        load=lambda _: loaded, reference=lambda _: SimpleNamespace(mean=mean[None, None]), files=None
    )
    monkeypatch.setattr(sides, "read_network_volume", lambda *_: volume.numpy())
    task = ScanOfSides(None, network, "AD", TrainingConfig(), atlas, ("b+a",))  # type: ignore[arg-type]
    score_sides({"sides": tmp_path / "sides.tsv"}, task)
    found = SIDES_TABLE.read(tmp_path / "sides.tsv").set_index("group")
    of = {number: evidence[labels == number].sum() for number in range(5)}
    wanted = {"a": (of[1], of[2]), "b": (of[3], of[4]), "b + a": (of[3] + of[4], of[1] + of[2])}
    assert list(found.index) == list(wanted)
    for group, (first, second) in wanted.items():
        assert found.loc[group, ["left", "right", "both"]].tolist() == pytest.approx(
            [first, second, first + second], abs=1e-5
        )


def table_of(folder: Path, name: str, rows: list[tuple[str, float, float, float]]) -> SimpleNamespace:
    path = folder / f"{name}.tsv"
    SIDES_TABLE.write(path, rows)
    return SimpleNamespace(ok=True, job=SimpleNamespace(outputs={"sides": path}))


def test_the_table_has_means_and_intervals_over_participants(tmp_path) -> None:
    outcomes = [table_of(tmp_path, f"s{i}", [("a", 1.0 + i, 2.0, 3.0 + i), ("b", 1.0, 1.0, 1.0)]) for i in range(4)]
    outcomes.append(SimpleNamespace(ok=False))
    cohort = SimpleNamespace(name="run", config=SimpleNamespace(seed=1))
    table = interaction_table(cohort, outcomes).set_index("group")  # type: ignore[arg-type]
    assert (table.loc["a", "left"], table.loc["a", "both"], table.loc["a", "interaction"]) == (2.5, 4.5, 0.0)
    assert (table.loc["b", "interaction"], table.loc["b", "ci_low"], table.loc["b", "ci_high"]) == (-1, -1, -1)
    assert set(table["n_participants"]) == {4}
    few = interaction_table(cohort, outcomes[:2])  # type: ignore[arg-type]
    assert few[["ci_low", "ci_high"]].isna().all(axis=None)


def test_slopes_say_what_evidence_goes_with() -> None:
    random = np.random.default_rng(3)
    volume, intensity = random.standard_normal((2, 40))
    one = np.zeros(40, int)
    of_volume = standardised_slopes(-3 * volume + 0.1 * intensity, volume, intensity, one)
    assert of_volume[0] < -0.95 and abs(of_volume[1]) < 0.1  # noqa: PT018
    unknown = standardised_slopes(intensity, None, intensity, one)
    assert np.isnan(unknown[0])
    assert unknown[1:] == pytest.approx((1.0, 1.0))
    assert all(np.isnan(standardised_slopes(volume[:5], volume[:5], intensity[:5], one[:5])))
    assert all(np.isnan(standardised_slopes(np.zeros(40), volume, intensity, one)))
    assert all(np.isnan(standardised_slopes(volume[:12], volume[:12], intensity[:12], np.arange(12) // 2)))


@pytest.mark.parametrize("shifts", [(-4.0, 4.0), (4.0, -4.0), (0.0, 0.0)], ids=["the other way", "the same", "none"])
def test_classes_and_folds_do_not_pass_for_what_evidence_goes_with(shifts: tuple[float, float]) -> None:
    """Patients have more evidence and smaller regions, whatever makes the evidence within a class (Simpson)."""
    random = np.random.default_rng(4)
    cell = np.arange(60) % 4
    volume, intensity = random.standard_normal((2, 60))
    evidence = 0.8 * volume + 0.6 * intensity
    expected = standardised_slopes(evidence, volume, intensity, cell)
    assert min(expected[:2]) > 0.4
    moved = standardised_slopes(evidence + shifts[0] * cell, volume + shifts[1] * cell, intensity - cell, cell)
    assert moved == pytest.approx(expected)


@pytest.mark.parametrize("missing", [(), (3,), (0, 5, 11)])
def test_scans_without_a_volume_are_counted(missing: tuple[int, ...]) -> None:
    random = np.random.default_rng(5)
    scans = [SimpleNamespace(scan_id=f"I{i}", participant_id=f"sub-{i}", label=("CN", "AD")[i % 2]) for i in range(24)]
    config = SimpleNamespace(seed=1)
    cohort = SimpleNamespace(name="run", config=config, scans=scans, fold_of=lambda scan: int(scan.scan_id[1:]) // 12)
    values = {one.scan_id: random.standard_normal(2) for one in scans}
    rows = CohortMaps(pd.DataFrame(), {("real", "m"): values}, np.ones(2), ("a", "b"), {}, values)
    volumes = pd.DataFrame(
        [{"scan_id": f"I{i}", "group": name, "volume_mm3": 100.0 + i * i % 7}
         for i in range(24) for name in "ab" if name == "b" or i not in missing]
    )  # fmt: skip
    table = source_table(cohort, rows, ["m"], volumes).set_index("group")  # type: ignore[arg-type]
    assert table["n_missing"].to_dict() == {"a": len(missing), "b": 0}
    assert table["n_scans"].to_dict() == {"a": 24 - len(missing), "b": 24}
    assert table[["volume_slope", "intensity_slope"]].notna().all(axis=None)
    unknown = source_table(cohort, rows, ["m"], None)  # type: ignore[arg-type]
    assert unknown["volume_slope"].isna().all()
    assert set(unknown["n_missing"]) == {0}


def test_intervals_of_slopes_are_those_of_drawing_people_anew() -> None:
    """The closed form for two terms, draw by draw, against the regression of scans that are repeated as often."""
    random = np.random.default_rng(6)
    people = [f"sub-{i // 2}" for i in range(40)]
    cell = np.arange(40) // 2 % 3
    volume, intensity = random.standard_normal((2, 40))
    evidence = -0.7 * volume + 0.3 * intensity + 0.5 * random.standard_normal(40) + cell
    drawn = drawn_people(people, 1, 60)
    assert drawn.shape == (60, 40)
    assert (drawn.sum(1) == 40).all()
    assert (drawn[:, ::2] == drawn[:, 1::2]).all()
    for given in ((evidence, volume, intensity), (evidence, None, intensity)):
        slopes = []
        for row in drawn.astype(int):
            again = [None if one is None else np.repeat(one, row) for one in given]
            slopes.append(standardised_slopes(*again, np.repeat(cell, row))[:2])  # type: ignore[arg-type]
        wanted = np.quantile(np.array(slopes), [0.025, 0.975], axis=0).T.ravel()
        assert slope_bounds(*given, cell, drawn) == pytest.approx(wanted.tolist(), nan_ok=True, abs=1e-9)
    assert all(np.isnan(slope_bounds(evidence[:5], volume[:5], intensity[:5], cell[:5], drawn[:, :5])))
