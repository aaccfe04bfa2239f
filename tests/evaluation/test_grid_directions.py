"""Claims about grids: planted differences are found, no difference is open, what is missing has no answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.run.errors import BadInputError
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

GRIDS = 24
PEOPLE = {scan: f"p{scan // 2}" for scan in range(GRIDS)}
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
    row = directions(table(shift), PEOPLE, [BETTER]).iloc[0]
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
    row = directions(table(shift, noise), PEOPLE, [Claim("alike", LAST, INPUT, near=True)]).iloc[0]
    assert (row["holds"], row["expected"]) == (holds, "near")


@pytest.mark.ci
def test_without_effect_one_claim_in_twenty_is_an_answer() -> None:
    answers = [directions(table(0.0, seed=n), PEOPLE, [BETTER])["holds"].iloc[0] for n in range(40)]
    assert answers.count("open") >= 33


def test_undefined_maps_count_as_a_share_of_nothing() -> None:
    scores = table(0.0, noise=0.01)
    scores.loc[(scores["stage"] == 2) & (scores["grid"] % 2 == 0), "share"] = np.nan
    row = directions(scores, PEOPLE, [BETTER]).iloc[0]
    assert (row["holds"], row["n_participants"]) == ("no", GRIDS / 2)
    assert row["difference"] == pytest.approx(-0.2, abs=0.02)


def test_chance_and_a_perfect_map_are_sides_too() -> None:
    below, perfect = Claim("below", "chance", INPUT), Claim("perfect", INPUT, "1", near=True)
    assert directions(table(0.0), PEOPLE, [below, perfect])["holds"].tolist() == ["no", "no"]
    low = table(0.0).assign(share=0.1 + 0.01 * np.arange(2 * GRIDS) / GRIDS)
    assert directions(low, PEOPLE, [below])["holds"].tolist() == ["yes"]
    assert directions(table(0.0).assign(share=1.0), PEOPLE, [perfect])["holds"].tolist() == ["yes"]


def test_grids_of_another_kind_are_another_side() -> None:
    both = pd.concat([table(0.0), table(0.3, seed=1).assign(kind="pair", grid=lambda rows: rows["grid"] + GRIDS)])
    pairs = Claim("pairs", Side("GridPG", "a", "last", "pair"), LAST)
    assert directions(both, PEOPLE, [pairs])["difference"].iloc[0] == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_method_without_scores_has_no_answer(pooled: bool) -> None:
    asked = claims((3, 5, 7), pooled)
    found = directions(table(0.2), PEOPLE, asked)
    assert len(found) == len(asked) == len({one.name for one in asked})
    assert found["holds"].isna().all()
    assert (found["n_participants"] == 0).all()
    for stage in (2, 0):
        one_stage = directions(table(0.2).query(f"stage == {stage}"), PEOPLE, [BETTER])
        assert one_stage["holds"].isna().all()


def test_a_claim_that_cannot_fail_is_no_answer() -> None:
    perfect = Claim("cell alone", INPUT, "1", near=True, constructed=True)
    assert directions(table(0.0).assign(share=1.0), PEOPLE, [perfect])["holds"].tolist() == ["by construction"]
    assert directions(table(0.0), PEOPLE, [perfect])["holds"].tolist() == ["no"]
    said = {one.larger.method for one in claims((3, 5, 7), True) if one.constructed}  # type: ignore[union-attr]
    assert said == {"guided-backpropagation", "lrp focus"}


def test_too_few_participants_leave_a_claim_open() -> None:
    few = table(0.2).query("scan < 4")
    assert directions(few, PEOPLE, [BETTER])["holds"].tolist() == ["open"]


def test_a_scan_without_a_participant_is_refused() -> None:
    with pytest.raises(BadInputError, match="scan 5 has no participant"):
        directions(table(0.2), {scan: who for scan, who in PEOPLE.items() if scan != 5}, [BETTER])


def test_a_participant_counts_once_in_the_summary() -> None:
    scores = table(0.0).assign(cells=4, depth=0.0, class_chance=0.25, undefined=0, note=None)
    scores["class_share"] = scores["share"]
    scores["top_share"] = scores["share"] + 0.05
    scores = pd.concat([scores, scores[scores["scan"] == 0].assign(share=0.9, class_share=0.9)] * 1)
    found = summary_of_grids(scores, PEOPLE)
    assert list(found.columns) == list(GRIDS_TABLE.meanings)
    own = scores[scores["stage"] == 0]
    means = own.groupby(own["scan"] // 2)["share"].mean()
    assert found["share"].iloc[0] == pytest.approx(means.mean())
    assert found["n_participants"].tolist() == [GRIDS / 2] * 2
    assert (found["ci_low"] < found["share"]).all()
    assert (found["top_gain_low"] <= found["top_share"] - found["share"]).all()
    assert (found["top_gain_high"] > 0).all()
    assert by_participant(own, PEOPLE).to_numpy() == pytest.approx(
        means.to_numpy()[np.argsort(means.index.astype(str).map(lambda n: f"p{n}"))]
    )
