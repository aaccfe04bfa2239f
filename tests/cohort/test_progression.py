"""What became of people after a scan, from planted visits: the courses of MCI, and the one meaning of conversion."""

from __future__ import annotations

import itertools
from datetime import date, timedelta

import pytest

from heatlas.pipeline.cohort.people.diagnosis import OTHER_DEMENTIA, Diagnosis, follow_up, progression

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
    ([(12, "AD"), (24, "MCI"), (36, "MCI"), (48, "AD")], "pMCI"),  # not withdrawn after all
    ([(24, "AD"), (36, "AD"), (60, "MCI")], "uMCI"),  # withdrawn after the horizon
    ([(36, "MCI"), (48, "AD"), (60, "MCI")], "sMCI"),  # stable at the horizon, whatever was said later
    ([(24, "MCI"), (48, "AD")], "uMCI"),  # converted somewhere between 24 and 48 months
    ([(24, "MCI"), (48, "MCI"), (60, "AD")], "sMCI"),
    ([(24, "MCI"), (48, "CN")], "rMCI"),
    ([(24, "MCI"), (48, "AD"), (60, "MCI")], "uMCI"),
    ([(12, OTHER_DEMENTIA), (36, OTHER_DEMENTIA)], "uMCI"),
    ([(12, "AD"), (24, OTHER_DEMENTIA)], "pMCI"),  # converted; the cause was judged anew
    ([(12, "AD"), (18, "MCI"), (24, OTHER_DEMENTIA), (36, OTHER_DEMENTIA)], "uMCI"),  # withdrawn before it
    ([(12, "AD"), (18, "MCI"), (24, OTHER_DEMENTIA), (36, "AD")], "uMCI"),
    ([(12, OTHER_DEMENTIA), (24, "AD"), (36, "AD")], "uMCI"),
    ([(36, "MCI"), (48, OTHER_DEMENTIA)], "sMCI"),
    ([(24, "MCI"), (48, OTHER_DEMENTIA)], "uMCI"),  # on which side of the horizon it came cannot be said
    ([(24, "MCI"), (48, "MCI"), (60, OTHER_DEMENTIA)], "sMCI"),
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


@pytest.mark.parametrize(
    ("days", "value", "expected"),
    [
        (1095, "AD", "pMCI"),  # 36 months
        (1187, "AD", "pMCI"),  # 92 days after
        (1188, "AD", "uMCI"),
        (1004, "MCI", "sMCI"),  # 92 days before
        (1003, "MCI", "uMCI"),
        (1188, "MCI", "sMCI"),  # no visit at the horizon: the next one stands in
    ],
)
def test_the_visit_of_the_horizon_lies_within_92_days(days: int, value: str, expected: str) -> None:
    at = Diagnosis("MCI", BASELINE, "ses-M000", 0, "x")
    then = Diagnosis(value, BASELINE + timedelta(days=days), "", None, "x")
    assert progression([at, then], at, 36) == expected


def test_an_undated_visit_counts_at_its_months_not_at_the_end() -> None:
    """Histories sort undated visits last: taken in that order, this AD would be withdrawn by an older MCI."""
    known = [*history((24, "AD")), Diagnosis("MCI", None, "ses-M012", 12, "x")]
    assert progression(known, known[0], 36) == "pMCI"
    later = follow_up(known, known[0])
    assert later is not None
    assert later.converted
    assert later.months_followed == pytest.approx(24, abs=0.02)


def test_conversion_means_the_same_by_the_horizon_and_over_time() -> None:
    """All histories of five visits, each with a diagnosis or missed."""
    months, window = (12, 24, 36, 48, 60), 92 / 30.4375
    seen = set()
    for values in itertools.product((None, "CN", "MCI", "AD", OTHER_DEMENTIA), repeat=5):
        known = history(*((month, value) for month, value in zip(months, values, strict=True) if value is not None))
        course, later = progression(known, known[0], 36), follow_up(known, known[0])
        by_then = later is not None and later.converted and (later.months_to_conversion or 0) <= 36 + window
        assert (course == "pMCI") == by_then, values
        if course in ("sMCI", "rMCI"):
            assert "AD" not in values[:3], values
            assert OTHER_DEMENTIA not in values[:3], values
        if later is None:  # withdrawn: neither converted nor followed; stable only where that came after the horizon
            assert "AD" in values, values
            assert course != "pMCI", values
        seen.add((course, None if later is None else later.converted))
    others = itertools.product(("sMCI", "rMCI", "uMCI"), (None, True, False))  # AD withdrawn, found later, never found
    assert seen == {("pMCI", True), *others}
