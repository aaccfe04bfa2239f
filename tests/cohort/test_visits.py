from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.cohort.cells.values import Visit, month_session, visit_code, visit_of

KNOWN = {
    "bl": 0,
    "sc": 0,
    "scmri": 0,
    "m03": 3,
    "m06": 6,
    "M6": 6,
    " m120 ": 120,
    "4_sc": 0,
    "4_bl": 0,
    "scr": 0,
    "v01": 0,
    "v02": 0,
    "v03": 0,
    "v04": 3,
    "ADNIGO Screening MRI": 0,
    "ADNI2 Month 3 MRI-New Pt": 3,
    "v05": 6,
    "Screening": 0,
    "ADNI Baseline": 0,
    "ADNI2 Screening MRI-New Pt": 0,
    "ADNI1/GO Month 6": 6,
    "ADNI1/GO Month 120": 120,
}
WITHIN_PHASE = {
    "y1": 12,
    "4_m12": 12,
    "4_y2": 24,
    "v07": 6,
    "v21": 24,
    "ADNI4 Month 12": 12,
    "ADNI3 Year 1 Visit": 12,
    "Y10": 120,
    "v11": 12,
    "v12": 18,
    "v51": 60,
    "init": 0,
    "4_init": 0,
    "v06": 0,
    "ADNI2 Year 2 Visit": 24,
    "ADNI3 Initial Visit-Cont Pt": 0,
}


@pytest.mark.parametrize(("code", "months"), KNOWN.items())
def test_codes_that_count_from_baseline(code: str, months: int) -> None:
    assert visit_of(code) == Visit(f"ses-M{months:03d}", months, within_phase=False)


@pytest.mark.parametrize(("code", "months"), WITHIN_PHASE.items())
def test_codes_that_count_within_a_phase(code: str, months: int) -> None:
    assert visit_of(code) == Visit(f"ses-M{months:03d}", months, within_phase=True)


@pytest.mark.parametrize(
    ("code", "session"),
    [
        ("nv", "ses-NV"),
        ("No Visit Defined", "ses-NV"),
        ("f", "ses-F"),
        ("uns1", "ses-UNS1"),
        ("tau", "ses-TAU"),
        ("4_uns2", "ses-UNS2"),
        ("Unscheduled", "ses-UNS"),
    ],
)
def test_codes_that_say_nothing_about_time(code: str, session: str) -> None:
    assert visit_of(code) == Visit(session)


@pytest.mark.parametrize(
    ("code", "session"), [("", "ses-X"), ("m12.5", "ses-XM125"), ("m1200", "ses-XM1200"), ("m-12", "ses-XM12")]
)
def test_codes_that_are_not_adnis_are_marked(code: str, session: str) -> None:
    assert visit_of(code) == Visit(session, known=False)


def test_viscode2_counts_from_the_first_baseline_and_goes_before_viscode() -> None:
    assert visit_code({"VISCODE": "y1", "VISCODE2": "m132"}) == "m132"
    assert visit_code({"VISCODE": "m06"}) == "m06"
    assert visit_code({}) == ""


@given(st.text() | st.sampled_from([*KNOWN, *WITHIN_PHASE]) | st.from_regex(r"[a-z0-9_. ]{0,6}", fullmatch=True))
def test_every_text_is_a_visit_and_months_name_the_session(code: str) -> None:
    visit = visit_of(code)
    assert re.fullmatch(r"ses-[A-Za-z0-9]+", visit.session_id)
    if visit.months is None:
        assert not re.fullmatch(r"ses-M\d+", visit.session_id)
        assert not visit.within_phase
    else:
        assert visit.session_id == month_session(visit.months)


@given(st.integers(0, 999), st.sampled_from(["m{}", "M{:02d}", "m{:03d}", "4_m{}", "Month {}"]))
def test_months_come_back(months: int, form: str) -> None:
    assert visit_of(form.format(months)).months == months
