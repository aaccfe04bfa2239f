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


@pytest.mark.ci
def test_the_page_has_the_tables_of_the_kept_answers() -> None:
    rows = pd.read_csv(KEPT, sep="\t")
    made = summary(rows[rows["part"] == "test"], conditions())
    for line in made.splitlines():
        assert line in PAGE.splitlines(), line


def test_cells_stand_below_their_columns() -> None:
    """Of a student: cosine and agreement are differences of the table above, and the IoU hardly moves."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("|")]
    means, changes = (next(place for place, line in enumerate(lines) if line[:2] == head) for head in
                      (["condition", "EPG"], ["condition", "minus"]))  # fmt: skip
    own, other = (dict(zip(lines[means], next(one for one in lines[means:] if one[0] == name), strict=True))
                  for name in ("kd+maps", "kd"))  # fmt: skip
    row = next(one for one in lines[changes:] if one[:2] == ["kd+maps", "kd"])
    change = dict(zip(lines[changes], row, strict=True))
    for name in ("cosine", "agreement ID", "OOD"):
        assert abs(float(change[name].split()[0]) - (float(own[name]) - float(other[name]))) < 0.011
    assert abs(float(change["IoU"].split()[0])) < 0.001


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
