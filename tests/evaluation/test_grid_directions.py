"""Claims about grids: planted differences are found, no difference is open, what is missing has no answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.evaluation.grids.directions import DIRECTION_COLUMNS, Claim, Side, claims, directions
from pipeline.run.errors import BadInputError

GRIDS = 24
PEOPLE = {scan: f"p{scan // 2}" for scan in range(GRIDS)}
BETTER = Claim("better", Side("GridPG", "a", "last"), Side("GridPG", "a"))


def table(shift: float, noise: float = 0.05, seed: int = 0) -> pd.DataFrame:
    """Method a at stages 0 and 2; the later one has larger shares by `shift`."""
    rng = np.random.default_rng(seed)
    rows = [
        {"setting": "GridPG", "method": "a", "stage": stage, "grid": grid, "scan": grid, "chance": 0.25,
         "share": 0.4 + shift * (stage == 2) + rng.normal(0, noise)}
        for stage in (0, 2) for grid in range(GRIDS)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("shift", "holds"), [(0.2, "yes"), (-0.2, "no"), (0.0, "open")])
def test_a_claim_holds_where_its_interval_says_so(shift: float, holds: str) -> None:
    row = directions(table(shift), PEOPLE, [BETTER]).iloc[0]
    assert list(row.index) == list(DIRECTION_COLUMNS)
    assert row["holds"] == holds
    assert row["n_participants"] == GRIDS / 2
    assert row["ci_low"] < row["difference"] < row["ci_high"]
    wide = table(shift).pivot_table(index="grid", columns="stage", values="share")
    by_hand = (wide[2] - wide[0]).groupby(wide.index // 2).mean().mean()
    assert row["difference"] == pytest.approx(by_hand)


def test_without_effect_one_claim_in_twenty_is_an_answer() -> None:
    answers = [directions(table(0.0, seed=n), PEOPLE, [BETTER], draws=300)["holds"].iloc[0] for n in range(60)]
    assert answers.count("open") >= 49


def test_undefined_maps_count_as_a_share_of_nothing() -> None:
    scores = table(0.0, noise=0.01)
    scores.loc[(scores["stage"] == 2) & (scores["grid"] % 2 == 0), "share"] = np.nan
    row = directions(scores, PEOPLE, [BETTER]).iloc[0]
    assert (row["holds"], row["n_participants"]) == ("no", GRIDS / 2)
    assert row["difference"] == pytest.approx(-0.2, abs=0.02)


def test_chance_is_a_side_too() -> None:
    below = Claim("below chance", None, Side("GridPG", "a"))
    assert directions(table(0.0), PEOPLE, [below])["holds"].iloc[0] == "no"
    assert directions(table(0.0).assign(share=0.1 + 0.01 * np.arange(2 * GRIDS) / GRIDS), PEOPLE, [below])[
        "holds"
    ].tolist() == ["yes"]


def test_a_method_without_scores_has_no_answer() -> None:
    found = directions(table(0.2), PEOPLE, claims())
    assert len(found) == len(claims())
    assert found["holds"].isna().all()
    assert (found["n_participants"] == 0).all()
    one_stage = directions(table(0.2).query("stage == 2"), PEOPLE, [BETTER])
    assert one_stage["holds"].isna().all()
    assert directions(table(0.2).query("stage == 0"), PEOPLE, [BETTER])["holds"].isna().all()


def test_a_scan_without_a_participant_is_refused() -> None:
    with pytest.raises(BadInputError, match="scan 5 has no participant"):
        directions(table(0.2), {scan: who for scan, who in PEOPLE.items() if scan != 5}, [BETTER])
