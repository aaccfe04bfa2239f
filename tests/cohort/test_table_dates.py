from __future__ import annotations

from datetime import date
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.cohort.cells.values import read_date, with_iso_dates
from heatlas.pipeline.run.errors import BadInputError

PATH = Path("somewhere/DXSUM.csv")


def iso(*cells: str) -> tuple[list[str], list[str]]:
    frame, notes = with_iso_dates(PATH, pd.DataFrame({"EXAMDATE": list(cells)}, dtype=str), ["EXAMDATE", "absent"])
    return list(frame["EXAMDATE"]), notes


@given(
    st.dates(date(1990, 1, 1), date(2099, 12, 31)),
    st.sampled_from(["%Y-%m-%d", "%m/%d/%Y", "%Y%m%d", "%d.%m.%Y", "%d-%b-%Y", "%d%b%Y", "%Y-%m-%d 00:00:00.0"]),
)
def test_a_date_in_any_form_comes_back(day: date, form: str) -> None:
    assert read_date(day.strftime(form)) == day


@given(st.dates(date(1990, 1, 1), date(2099, 12, 31)))
def test_a_date_written_day_first_comes_back(day: date) -> None:
    assert read_date(day.strftime("%d/%m/%Y"), "day first") == day


@pytest.mark.parametrize(
    "text", ["4/18/06", "0206-04-18", "1900-01-00", "31/31/2006", "2006-02-30", "38825", "April", "2006", "18-4"]
)
def test_what_is_no_date_is_none_and_named(text: str) -> None:
    cells, notes = iso(text, "2006-04-18")
    assert cells == ["", "2006-04-18"]
    assert notes == [f"DXSUM.csv: 1 value of EXAMDATE unreadable as a date (YYYY-MM-DD): '{text}'"]


def test_a_column_that_is_day_first_is_read_so_and_said() -> None:
    cells, notes = iso("13/4/2006", "5/4/2006", "")
    assert cells == ["2006-04-13", "2006-04-05", ""]
    assert notes == ["DXSUM.csv: dates are read day first, because of 13/4/2006"]


def test_a_column_that_is_month_first_needs_no_note() -> None:
    assert iso("4/13/2006", "5/4/2006") == (["2006-04-13", "2006-05-04"], [])


def test_dates_that_can_be_read_either_way_are_read_as_loni_writes_and_said() -> None:
    cells, notes = iso("5/4/2006")
    assert cells == ["2006-05-04"]
    assert notes == ["DXSUM.csv: dates such as 5/4/2006 are read month first, as LONI writes them"]
    assert iso("4/4/2006") == (["2006-04-04"], [])


def test_dates_of_both_orders_are_refused_with_a_witness_of_each() -> None:
    with pytest.raises(
        BadInputError, match=r"DXSUM\.csv: column EXAMDATE .* 13/4/2006 \(day first\) and 4/13/2006 \(month"
    ):
        iso("13/4/2006", "4/13/2006")


def test_the_order_is_that_of_the_whole_table() -> None:
    frame = pd.DataFrame({"EXAMDATE": ["5/4/2006"], "EXAMDATE_bl": ["13/4/2006"]}, dtype=str)
    found, _ = with_iso_dates(PATH, frame, ["EXAMDATE", "EXAMDATE_bl"])
    assert list(found["EXAMDATE"]) == ["2006-04-05"]
