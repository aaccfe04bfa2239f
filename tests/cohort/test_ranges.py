"""Impossible values never become plausible ones, in either layout and from whatever source."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from input_trees import AdniTree, BidsTree

from heatlas.pipeline.cohort.bids.tables import BASELINE_COLUMNS, COLUMNS
from heatlas.pipeline.cohort.candidates import Candidate, possible_scans
from heatlas.pipeline.cohort.cells.tables import RANGES, plain_name, possible_cells
from heatlas.pipeline.cohort.people.inclusion import MEASURES
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.cohort.records import Scan

OF_ADNIMERGE = dict(age="AGE", field_strength="FLDSTRENG", apoe4="APOE4", mmse="MMSE", cdr="CDGLOBAL", tiv_mm3="ICV")
OF_ADNIMERGE |= dict(hippocampus_mm3="Hippocampus", amyloid_pet="AV45", fdg_pet="FDG", education="PTEDUCAT")
OF_ADNIMERGE |= dict(logical_memory_delayed="LDELTOTAL")
SHOWN = [name for name in RANGES if name not in ("brain_volume_mm3", "apoe_allele", "years_bl")]
"""Columns of ``scans.tsv`` and ``clinical.tsv``."""
BAD = ["1e9", "99999999", "-70", "inf", "-inf", "1e999", "#REF!", "seventy", "7O", "7_0", "٧٠"]
P = "002_S_0295"


def value(cohort: InputCohort, scan_id: str, column: str) -> float | None:
    assert cohort.clinical is not None
    for frame in (cohort.table.frame(), cohort.clinical.frame):
        if column in frame.columns:
            found = frame.set_index("scan_id").loc[scan_id, column]
            return None if pd.isna(found) else float(found)
    return None


def test_every_number_of_both_tables_has_a_range() -> None:
    numbers = [f.name for f in dataclasses.fields(Scan) if "float" in str(f.type) or "int" in str(f.type)]
    assert {*numbers, *MEASURES} == set(SHOWN)
    names = {plain_name(name) for names in (*COLUMNS.values(), *BASELINE_COLUMNS.values()) for name in names}
    known = {plain for name, one in RANGES.items() for plain in (plain_name(name), *one.names)}
    words = {"diagnosis", "dx", "diagnosisbl", "diagnosissc", "dxbl", "sex", "gender"}
    assert names - known == {*words, "site", "siteid", "center", "centre"}
    assert len(known) == sum(1 + len(one.names) for one in RANGES.values())  # no name means two columns


def named(cohort: InputCohort) -> str:
    (note,) = [note for note in cohort.notes if note.startswith("impossible values")]
    return note


@pytest.mark.parametrize("column", SHOWN)
def test_impossible_cells_of_adnimerge_are_missing_and_named(adni: AdniTree, column: str) -> None:
    name = OF_ADNIMERGE.get(column, column.upper())
    for number, text in enumerate(BAD, 1):
        adni.image(f"002_S_010{number}", number=f"I{number}")
        adni.row(f"002_S_010{number}", **{name: text})
    cohort = adni.read()
    assert [value(cohort, f"I{number}", column) for number in range(1, len(BAD) + 1)] == [None] * len(BAD)
    for line, text in enumerate(BAD, 2):
        assert f"ADNIMERGE_01Jan2025.csv line {line}, {name} '{text}' (" in named(cohort)


@pytest.mark.parametrize("column", SHOWN)
def test_impossible_cells_of_a_bids_table_are_missing_and_named(bids: BidsTree, column: str) -> None:
    rows = []
    for number, text in enumerate(BAD, 1):
        bids.image(f"sub-{number}/anat/sub-{number}_T1w.nii")
        rows.append(f"sub-{number} {'FM'[number % 2]} {text}")
    bids.table("participants.tsv", f"participant_id sex {column}", *rows)
    cohort = bids.read(contrast_column="sex", negative="F", positive="M")
    assert [value(cohort, f"sub-{number}_T1w", column) for number in range(1, len(BAD) + 1)] == [None] * len(BAD)
    for line, text in enumerate(BAD, 2):
        assert f"participants.tsv line {line}, {column} '{text}' (" in named(cohort)


@pytest.mark.parametrize("column", SHOWN)
@settings(max_examples=25)
@given(st.data())
def test_possible_values_are_kept_and_no_other_is(column: str, data: st.DataObject) -> None:
    allowed = RANGES[column]
    number = data.draw(
        st.floats(-1e10, 1e10) | st.floats(allowed.low, allowed.high) | st.integers(-5, 130).map(lambda n: n / 2)
    )
    problems: list[str] = []
    text = format(number, ".4f")
    kept = possible_cells("t", 7, {column: text}, problems)
    missing = float(text) in (-1, -4) or (float(text) == 0 and column.endswith("_mm3"))
    assert (column in kept) == (allowed.holds(float(text)) or missing)
    assert problems == ([] if column in kept else [f"t line 7, {column} '{text}' (must be {allowed})"])


@pytest.mark.parametrize("text", ["-1", "-4", "-4.0", "", "n/a", "nan"])
def test_codes_for_missing_are_missing_without_a_note(adni: AdniTree, text: str) -> None:
    adni.image(P)
    adni.row(P, MMSE=text, AGE=text)
    cohort = adni.read()
    assert (value(cohort, "I1001", "mmse"), value(cohort, "I1001", "age")) == (None, None)
    assert not any("possible" in note for note in cohort.notes)


@pytest.mark.parametrize(("text", "age"), [("89", 89.0), ("89+", 89.0), ("95", 89.0), ("120", 89.0), ("121", None)])
def test_ages_are_checked_before_they_are_capped(bids: BidsTree, text: str, age: float | None) -> None:
    for person in "12":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    bids.table("participants.tsv", "participant_id sex age", f"sub-1 F {text}", "sub-2 M 70")
    assert value(bids.read(contrast_column="sex", negative="F", positive="M"), "sub-1_T1w", "age") == age


def test_an_age_that_dates_make_impossible_is_missing_and_named(adni: AdniTree) -> None:
    adni.image(P, "2006-04-18")
    adni.row(P, EXAMDATE_bl="1990-04-10", AGE="110")
    cohort = adni.read()
    assert value(cohort, "I1001", "age") is None
    assert any("I1001/brain.nii, age 126.02 (must be 1 to 120)" in note for note in cohort.notes)


@pytest.mark.parametrize(("column", "bad"), [("age", 740.0), ("field_strength", 740.0), ("mmse", 999.0)])
def test_values_from_headers_and_sidecars_are_held_to_the_same_ranges(column: str, bad: float) -> None:
    scans = [Scan("sub-1", None, "I1", "a.nii", **{column: bad}), Scan("sub-2", None, "I2", "b.nii", age=70)]  # type: ignore[arg-type]
    checked, notes = possible_scans([Candidate(scan) for scan in scans])
    assert [getattr(one.scan, column) for one in checked] == [None, 70 if column == "age" else None]
    assert notes[0].startswith(f"impossible values, treated as missing (1): a.nii, {column} {bad:g} (must be")


@pytest.mark.parametrize("word", ["X", "family", "Mujer", "3", "unknown"])
def test_a_word_for_no_sex_is_named(adni: AdniTree, word: str) -> None:
    adni.image(P)
    adni.row(P, PTGENDER=word)
    cohort = adni.read()
    assert next(scan for scan in cohort.table if scan.scan_id == "I1001").sex is None
    assert any(f"line 2, PTGENDER '{word}' (not F or M)" in note for note in cohort.notes)


@pytest.mark.parametrize(
    ("file", "header", "row", "named"),
    [
        ("CDR_01Jan2025.csv", "RID,VISCODE,EXAMDATE,CDGLOBAL", "295,bl,2006-04-10,7", "line 2, CDGLOBAL '7'"),
        ("UCSFFSX51.csv", "RID,VISCODE,EXAMDATE,ST29SV,ST88SV", "295,bl,2006-04-10,3.9,4000", "line 2, ST29SV '3.9'"),
        ("list.csv", "Image Data ID,Subject,Age,Sex", "I1001,002_S_0295,740,F", "line 2, age '740'"),
        ("MPRAGEMETA.csv", "ImageUID,MagStrength", "1001,150", "line 2, magstrength '150'"),
    ],
)
def test_other_tables_of_adni_are_held_to_the_same_ranges(
    adni: AdniTree, file: str, header: str, row: str, named: str
) -> None:
    adni.image(P)
    adni.row(P)
    (adni.root / file).write_text(f"{header}\n{row}\n", encoding="utf-8")
    assert any(f"{file} {named} (must be" in note for note in adni.read().notes)


def test_people_without_images_are_not_spoken_of(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P)
    adni.row("002_S_0413", AGE="740")
    assert not any("740" in note for note in adni.read().notes)
