"""Sides of regions taken away together, and what evidence goes with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from atlases.labels import load_atlas
from atlases.spaces import template_grid
from pipeline.evaluation.interactions.sides import (
    SCAN_COLUMNS,
    interaction,
    interaction_table,
    sided_groups,
)
from pipeline.evaluation.interactions.sources import standardised_slopes
from pipeline.run.tables import write_table


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


def table_of(folder: Path, name: str, rows: list[tuple[str, float, float, float]]) -> SimpleNamespace:
    path = folder / f"{name}.tsv"
    write_table(path, pd.DataFrame(rows, columns=list(SCAN_COLUMNS)))
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
    of_volume = standardised_slopes(-3 * volume + 0.1 * intensity, volume, intensity)
    assert of_volume[0] < -0.95 and abs(of_volume[1]) < 0.1  # noqa: PT018
    unknown = standardised_slopes(intensity, np.full(40, np.nan), intensity)
    assert np.isnan(unknown[0])
    assert unknown[1:] == pytest.approx((1.0, 1.0))
    assert all(np.isnan(standardised_slopes(volume[:5], volume[:5], intensity[:5])))
    assert all(np.isnan(standardised_slopes(np.zeros(40), volume, intensity)))
