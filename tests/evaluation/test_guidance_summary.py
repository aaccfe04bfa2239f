"""The tables of the guidance study are those of the kept answers, and no estimate lies outside its interval."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from guidance_study import conditions
from guidance_summary import summary

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "benchmarks" / "guidance_study.tsv"
PAGE = (ROOT / "docs" / "training_with_explanations.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def answers() -> pd.DataFrame:
    rows = pd.read_csv(KEPT, sep="\t")
    return rows[rows["part"] == "test"]


@pytest.fixture(scope="module")
def made(answers) -> list[str]:
    return summary(answers, conditions()).splitlines()


def test_the_page_has_the_tables_of_the_kept_answers(made) -> None:
    for line in made:
        assert line in PAGE.splitlines(), line


def test_every_difference_stands_under_its_own_name(answers, made) -> None:
    start = next(place for place, line in enumerate(made) if line.startswith("| condition | minus |"))
    names, *found = ([cell.strip() for cell in line.split("|")[1:-1]] for line in [made[start], *made[start + 2 :]])
    assert {len(cells) for cells in found} == {len(names)}
    means = answers.groupby(["condition", "person"])[["epg_brain", "iou_brain", "cosine"]].mean()
    for cells in found:
        row = dict(zip(names, cells, strict=True))
        if row["condition"] in ("kd+maps", "energy-brain") and row["minus"] in ("kd", "control"):
            change = (means.loc[row["condition"]] - means.loc[row["minus"]]).mean()
            shown = {"EPG": "epg_brain", "IoU": "iou_brain"} | ({"cosine": "cosine"} if row["cosine"] else {})
            assert {name: float(row[name].split()[0]) for name in shown} == pytest.approx(
                {name: change[column] for name, column in shown.items()}, abs=6e-4
            )


def test_estimates_lie_inside_their_intervals_and_worst_groups_have_none() -> None:
    """L1 lowered the worst group in no seed, by -.02 on average, and had the interval [+.04, +.20]."""
    random, rows = np.random.default_rng(3), []
    for condition, by_seed in (("control", (0, 0, 1)), ("l1-brain", (0, 0, 0))):
        for seed, others in enumerate(by_seed):
            for person in range(30):
                positive = person >= 15
                for marked in (False, True):
                    right = positive == marked or (person + seed) % 15 < (others if positive else 4)
                    rows.append([condition, seed, str(person), positive, marked, float(right), *random.random(2)])
    names = ["condition", "seed", "person", "positive", "marked", "correct", "epg_brain", "on_marker_brain"]
    text = summary(pd.DataFrame(rows, columns=names), conditions())
    (changed,) = [line for line in text.splitlines() if line.startswith("| l1-brain | control |")]
    cells = [cell.strip() for cell in changed.split("|")[3:]]
    assert cells[1] == "-0.02, 0/3"  # the least of four means in each seed; no interval
    for cell in cells:
        found = re.match(r"([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\]", cell)
        if found:
            change, low, high = map(float, found.groups())
            assert low <= change <= high
    (own,) = [line for line in text.splitlines() if line.startswith("| control |")]
    assert "| 0.02 | 0.00 0.00 0.07 | 0.43 (0.31 to 0.56) | 0.57 | 0.14 | 1.00 |" in own
