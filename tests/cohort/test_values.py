from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.cohort.cells import values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CN", "CN"),
        ("NL", "CN"),
        ("SMC", "CN"),
        ("EMCI", "MCI"),
        ("lmci", "MCI"),
        (" Dementia ", "AD"),
        ("NL to MCI", "MCI"),
        ("Dementia to MCI", "MCI"),
        ("FTD", None),
        ("to", None),
        ("", None),
        (None, None),
    ],
)
def test_diagnosis(text: str | None, expected: str | None) -> None:
    assert values.diagnosis(text) == expected


def test_missing_codes_of_volumes_and_scores() -> None:
    assert [values.positive(text) for text in ("7123.5", "0", "-4", "nan", None)] == [7123.5, None, None, None, None]
    assert [values.score(text) for text in ("0", "27", "-1")] == [0.0, 27.0, None]
    assert [values.count(text) for text in ("2", "2.0", "1.5", "-4")] == [2, 2, None, None]


def test_words_of_adni() -> None:
    assert [values.sex(text) for text in ("Female", "M", "male", "1", "2", "Unknown", None)] == [
        *("F", "M", "M", "M", "F", None, None),
    ]
    assert [values.field_strength(text) for text in ("1.5 Tesla MRI", "3 Tesla MRI", "3.0", "", None)] == [
        *(1.5, 3.0, 3.0, None, None),
    ]
    assert [values.identifier(text) for text in ("11.0", "011", "1.5", None)] == ["11", "011", "1.5", None]


def test_dates_that_are_none() -> None:
    assert [values.calendar_date(text) for text in ("2006-13-01", "18/04/2006", "2006", "2006-04-181", None)] == [
        None
    ] * 5


@given(st.dates())
def test_dates_in_both_spellings(day: date) -> None:
    assert values.calendar_date(day.isoformat() + "_08_20_30.0") == day
    assert values.calendar_date(f"{day.month}/{day.day}/{day.year:04d}") == day


@given(st.text())
def test_no_text_is_an_accident(text: str) -> None:
    for read in (values.number, values.positive, values.score, values.count, values.sex, values.field_strength):
        read(text)
    values.diagnosis(text)
    values.calendar_date(text)
