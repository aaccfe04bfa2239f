"""Choices in halves of the patients: the rule, the halves, exact evidence of a stack, the page of the answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import patients_outside
import pytest
from patients_outside import PRESET, Half, Recipe, Study, in_short, summary

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "benchmarks" / "patients_outside.tsv"


def half(study: object = None) -> Half:
    return Half(study, 0, Path())


@pytest.mark.parametrize(
    ("better", "expected"),
    [
        (lambda recipe: recipe.intensities == "percentiles", Recipe(intensities="percentiles")),
        (lambda recipe: recipe.registration == "common", Recipe(registration="common")),
        # Only together with percentiles, which were not taken alone: choices are made one by one.
        (lambda recipe: recipe.intensities == "percentiles" and recipe.weight_decay == 1e-2, Recipe()),
        (lambda recipe: 0, Recipe()),  # at a tie the first value stays
    ],
)
def test_a_value_is_chosen_where_it_is_better_than_the_first(monkeypatch, better, expected) -> None:
    monkeypatch.setattr(patients_outside, "area", lambda rows: 0.5 + 0.1 * rows)
    monkeypatch.setattr(Half, "cross_validated", lambda _, recipe: better(recipe))
    assert half().chosen == expected


def test_halves_are_apart_and_alike_in_severity() -> None:
    severity = [0.0] * 13 + [0.5] * 8 + [1.0] * 3 + [2.0] * 2
    study = Study(Path(), Path())
    study.__dict__["scans"] = [SimpleNamespace(cdr=one) for one in severity]
    for number in range(3):
        first, second = study.halves(number)
        assert sorted([*first, *second]) == list(range(26))
        for part, counts in ((first, [7, 4, 3]), (second, [6, 4, 2])):
            assert np.unique(np.minimum(np.array(severity)[part], 1), return_counts=True)[1].tolist() == counts
    assert set(study.halves(0)[0]) != set(study.halves(1)[0])


def test_what_a_stack_adds_up_to_is_what_its_parts_add_up_to(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    logits, evidence = rng.normal(size=(2, 5)), rng.normal(size=(2, 5, 4))
    evidence[:, :, 3] += logits - evidence.sum(axis=2)
    own = half()
    own.__dict__.update({"stacked": (0.3, 0.6), "parts": (None, None)})
    monkeypatch.setattr(Half, "applied", lambda *_: logits[0])
    monkeypatch.setattr(Half, "evidence", lambda *_: evidence[0])
    monkeypatch.setattr(Half, "ridge", lambda *_: (logits[1], evidence[1]))
    said, parts, _ = own.together()
    np.testing.assert_allclose(said, 0.3 * logits[0] + 0.6 * logits[1])
    np.testing.assert_allclose(parts.sum(axis=1), said)


def test_the_page_has_the_table_of_the_kept_answers() -> None:
    page, rows = (ROOT / "docs" / "patients.md").read_text(encoding="utf-8"), pd.read_csv(KEPT, sep="\t")
    assert summary(rows) in page
    assert in_short(rows) in page.splitlines()
    assert PRESET.config.training.max_epochs == 20
    assert not rows.astype(str).apply(lambda column: column.str.contains("OAS|sub-")).to_numpy().any()
