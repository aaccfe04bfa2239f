from __future__ import annotations

from datetime import date, timedelta

import pytest

from pipeline.cohort.diagnosis import OTHER_DEMENTIA, Diagnosis
from pipeline.cohort.progression import progression

BASELINE = date(2006, 4, 10)


def history(*later: tuple[float, str], dated: bool = True) -> list[Diagnosis]:
    """MCI at baseline, then other diagnoses so many months later."""
    return [
        Diagnosis(
            value,
            BASELINE + timedelta(days=round(months * 30.4375)) if dated else None,
            f"ses-M{round(months):03d}",
            round(months),
            "x",
        )
        for months, value in [(0.0, "MCI"), *later]
    ]


COURSES = (
    ([(12, "MCI"), (24, "AD")], "pMCI"),
    ([(36, "AD")], "pMCI"),
    ([(38.9, "AD")], "pMCI"),  # the visit of 36 months, late
    ([(39.2, "AD"), (35, "MCI")], "sMCI"),  # after it
    ([(12, "MCI"), (36, "MCI")], "sMCI"),
    ([(33.1, "MCI")], "sMCI"),  # the visit of 36 months, early
    ([(32.9, "MCI")], "uMCI"),  # follow-up ends before the horizon: not stable, unknown
    ([], "uMCI"),
    ([(12, "MCI"), (24, "CN"), (36, "CN")], "rMCI"),
    ([(12, "CN"), (36, "MCI")], "sMCI"),  # back for a while
    ([(12, "CN")], "uMCI"),
    ([(12, "AD"), (24, "MCI"), (36, "MCI")], "uMCI"),  # diagnosed and withdrawn
    ([(12, "AD"), (24, "MCI"), (36, "AD")], "pMCI"),
    ([(24, "MCI"), (48, "AD")], "uMCI"),  # converted somewhere between 24 and 48 months
    ([(24, "MCI"), (48, "MCI"), (60, "AD")], "sMCI"),
    ([(24, "MCI"), (48, "CN")], "rMCI"),
    ([(12, OTHER_DEMENTIA), (36, OTHER_DEMENTIA)], "uMCI"),
)


@pytest.mark.parametrize(("later", "expected"), COURSES)
def test_courses_over_36_months(later: list[tuple[float, str]], expected: str) -> None:
    known = sorted(history(*later), key=lambda one: one.months or 0)
    assert progression(known, known[0], 36) == expected


@pytest.mark.parametrize(
    ("later", "expected"), [one for one in COURSES if all(months == round(months) for months, _ in one[0])]
)
def test_without_dates_the_months_of_the_visit_codes_count(later: list[tuple[float, str]], expected: str) -> None:
    known = sorted(history(*later, dated=False), key=lambda one: one.months or 0)
    assert progression(known, known[0], 36) == expected


def test_the_horizon_is_an_option() -> None:
    known = history((12, "MCI"), (24, "AD"))
    assert [progression(known, known[0], months) for months in (12, 18, 24, 60)] == ["sMCI", "uMCI", "pMCI", "pMCI"]


def test_it_is_counted_from_the_diagnosis_of_the_scan() -> None:
    known = history((12, "MCI"), (48, "AD"))
    assert [progression(known, one, 36) for one in known] == ["uMCI", "pMCI", None]


@pytest.mark.parametrize("value", ["CN", "AD", OTHER_DEMENTIA])
def test_only_mci_has_a_course(value: str) -> None:
    one = Diagnosis(value, BASELINE, "ses-M000", 0, "x")
    assert progression([one], one, 36) is None
    assert progression([one], None, 36) is None
