"""Clinical columns, diagnoses, visits and progression."""

from __future__ import annotations

import datetime
import itertools
import re
from datetime import date, timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from input_trees import AdniTree, BidsTree, write_csv

from heatlas.pipeline.cohort.adni.visit_tables import VisitRow
from heatlas.pipeline.cohort.cells.values import Visit, month_session, visit_code, visit_of
from heatlas.pipeline.cohort.people.diagnosis import (
    OTHER_DEMENTIA,
    Diagnosis,
    cdr_diagnosis,
    diagnosis_at,
    diagnosis_history,
    dxsum_value,
    follow_up,
    progression,
)
from heatlas.pipeline.cohort.people.inclusion import Clinical, clinical_table
from heatlas.pipeline.cohort.reading import InputCohort, ScanSelection, read_cohort
from heatlas.pipeline.cohort.sharing import Disguise
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table, write_table

KEY = "0123456789abcdef" * 4


def clinical_of(cohort: InputCohort) -> Clinical:
    assert cohort.clinical is not None
    return cohort.clinical


def by_scan(cohort: InputCohort) -> pd.DataFrame:
    return clinical_of(cohort).frame.set_index("scan_id")


def test_columns_at_the_visit_of_the_scan_under_any_of_their_names(adni: AdniTree) -> None:
    adni.image("002_S_0295", "2006-04-18", "I1")
    adni.image("002_S_0295", "2007-04-20", "I2")
    adni.row("002_S_0295", "bl", "2006-04-10", CDRSB="0.5", ADAS13="9.67", PTEDUCAT="16", FAQ="-4", ABETA=">1700")
    adni.row("002_S_0295", "m12", "2007-04-20", CDRSB="1", PTEDUCAT="16", TAU="<80", MOCA="late")
    cohort = adni.read()
    frame = by_scan(cohort)
    first, second = frame.loc["I1"], frame.loc["I2"]
    assert (first["cdrsb"], first["adas13"], first["education"], first["abeta"]) == (0.5, 9.67, 16, 1700)
    assert (second["cdrsb"], second["tau"]) == (1, 80)
    assert pd.isna(second["adas13"])
    # Nobody has a usable value of these: no column.
    assert not {"faq", "moca", "ptau"} & set(frame.columns)
    notes = " ".join(cohort.notes)
    assert "abeta '>1700' (1 scan), tau '<80' (1 scan)" in notes
    assert "treated as missing (1): ADNIMERGE_01Jan2025.csv line 3, MOCA 'late' (not a number)" in notes
    assert list(clinical_of(cohort).columns) == list(clinical_of(cohort).frame.columns)


def test_one_row_per_kept_scan_in_the_order_of_the_scan_table(adni: AdniTree) -> None:
    adni.image("002_S_0295", "2006-04-18", "I2")
    adni.image("002_S_0295", "2006-04-18", "I1", sequence="MPRAGE_again")
    adni.image("002_S_0296", "2006-04-18", "I3")  # no row: dropped
    adni.row("002_S_0295", CDRSB="0")
    cohort = adni.read()
    assert len(cohort.table) > len(cohort.table.kept)
    assert list(clinical_of(cohort).frame["scan_id"]) == [scan.scan_id for scan in cohort.table.kept]


def test_years_since_the_first_scan_go_by_the_months_of_sessions(adni: AdniTree) -> None:
    for day, number, code in (("2006-04-18", "I1", "bl"), ("2008-05-30", "I2", "m24")):
        adni.image("002_S_0295", day, number)
        adni.row("002_S_0295", code, day)
    frame = by_scan(adni.read())
    assert frame.loc[["I1", "I2", "I9999"], "years_since_first_scan"].tolist() == [0.0, 2.0, 0.0]


def test_sessions_that_are_no_months_go_by_age(bids: BidsTree) -> None:
    for session in ("one", "two"):
        bids.image(f"sub-1/ses-{session}/anat/sub-1_ses-{session}_T1w.nii")
        bids.image(f"sub-2/ses-{session}/anat/sub-2_ses-{session}_T1w.nii")
    bids.table("participants.tsv", "participant_id diagnosis", "sub-1 CN", "sub-2 AD")
    bids.table("sub-1/sub-1_sessions.tsv", "session_id age", "ses-one 70", "ses-two 71.5")
    frame = clinical_of(bids.read()).frame
    years = frame.set_index(["participant_id", "session_id"])["years_since_first_scan"]
    assert years["sub-1", "ses-two"] == 1.5
    assert pd.isna(years["sub-2", "ses-two"])  # nothing tells


def test_one_age_of_a_person_does_not_date_their_visits(bids: BidsTree) -> None:
    """As in many public datasets: participants.tsv has one age, sessions.tsv none."""
    for person in ("1", "2"):
        for session in ("one", "two")[: int(person)]:
            bids.image(f"sub-{person}/ses-{session}/anat/sub-{person}_ses-{session}_T1w.nii")
    bids.table("participants.tsv", "participant_id diagnosis age", "sub-1 CN 70", "sub-2 AD 71")
    cohort = bids.read()
    years = clinical_of(cohort).frame.set_index(["participant_id", "session_id"])["years_since_first_scan"]
    assert years["sub-1", "ses-one"] == 0
    assert years["sub-2"].isna().all()
    assert any("1 participant with several sessions: neither" in note for note in cohort.notes)


def diagnoses(*known: tuple[float, str]) -> list[Diagnosis]:
    start = datetime.date(2006, 4, 10)
    return [
        Diagnosis(value, start + datetime.timedelta(days=round(30.4375 * months)), "", None, "x")
        for months, value in known
    ]


@pytest.mark.parametrize(
    ("known", "converted", "months", "followed", "competing"),
    [
        ([(0, "MCI"), (12, "MCI"), (24, "AD"), (36, "AD")], True, 24, 36, False),
        ([(0, "MCI"), (12, "MCI"), (48, "CN")], False, None, 48, False),
        ([(0, "CN"), (12, "MCI"), (60, "AD")], True, 60, 60, False),
        ([(0, "MCI")], False, None, 0, False),
        ([(0, "MCI"), (12, "AD"), (24, "AD"), (36, OTHER_DEMENTIA)], True, 12, 36, False),
        ([(0, "MCI"), (12, "AD"), (24, "MCI"), (36, "AD")], True, 12, 36, False),
        ([(0, "MCI"), (12, "MCI"), (24, OTHER_DEMENTIA), (36, "AD")], False, None, 24, True),
    ],
)
def test_time_to_conversion_or_censoring(
    known: list[tuple[float, str]], converted: bool, months: float | None, followed: float, competing: bool
) -> None:
    history = diagnoses(*known)
    later = follow_up(history, history[0])
    assert later is not None
    assert later.converted is converted
    assert later.months_to_conversion == (None if months is None else pytest.approx(months, abs=0.02))
    assert later.months_followed == pytest.approx(followed, abs=0.02)
    assert later.other_dementia is competing


def test_neither_dementia_at_the_scan_nor_a_withdrawn_one_is_time_at_risk() -> None:
    revised = diagnoses((0, "MCI"), (12, "AD"), (24, "MCI"), (36, OTHER_DEMENTIA))
    assert follow_up(revised, revised[0]) is None
    known = diagnoses((0, "MCI"), (12, "AD"), (24, "MCI"))
    assert follow_up(known, known[0]) is None
    assert follow_up(known, known[1]) is None
    assert follow_up(known, None) is None
    assert follow_up(known, known[2]) is not None


def test_conversion_is_read_from_visits_without_a_scan(adni: AdniTree) -> None:
    adni.image("002_S_0295")
    for code, day, dx in (("bl", "2006-04-10", "MCI"), ("m12", "2007-04-10", "MCI"), ("m24", "2008-04-10", "Dementia")):
        adni.row("002_S_0295", code, day, dx)
    frame = by_scan(adni.read())
    assert frame.loc["I1001", "converted"] == 1
    assert frame.loc["I1001", "months_to_conversion"] == pytest.approx(24, abs=0.1)
    assert pd.isna(frame.loc["I9999", "converted"])  # AD already
    assert frame.loc["I9998", ["converted", "months_followed"]].tolist() == [0, 0]


def test_bids_sessions_tell_the_course_too(bids: BidsTree) -> None:
    for person in "123":
        bids.image(f"sub-{person}/ses-M000/anat/sub-{person}_ses-M000_T1w.nii")
    bids.table("participants.tsv", "participant_id diagnosis", "sub-2 CN", "sub-3 AD")
    bids.table(
        "sub-1/sub-1_sessions.tsv", "session_id diagnosis adas_cog_13 cdr_sb",
        "ses-M000 MCI 17 1.5", "ses-M018 MCI 20 2", "ses-M030 AD 25 4",
    )  # fmt: skip
    cohort = bids.read()
    frame = clinical_of(cohort).frame.set_index("participant_id")
    known = frame.loc["sub-1", ["adas13", "cdrsb", "converted", "months_to_conversion", "months_followed"]]
    assert known.tolist() == [17, 1.5, 1, 30, 30]
    assert {scan.participant_id: scan.progression for scan in cohort.table}["sub-1"] == "pMCI"
    assert pd.isna(frame.loc["sub-3", "converted"])


def test_a_further_column_by_option(adni: AdniTree) -> None:
    adni.image("002_S_0295")
    adni.row("002_S_0295", PTMARRY="Widowed", ADNI_MEM="-0.874", EXAMINED="2006-04-18")
    row = by_scan(adni.read(clinical_columns=("ptmarry", "ADNI_MEM", "EXAMINED"))).loc["I1001"]
    assert (row["ptmarry"], row["ADNI_MEM"], row["EXAMINED"]) == ("Widowed", -0.874, "2006-04-18")
    selection = ScanSelection(disguise=Disguise(KEY, ("ids",)))
    hidden = read_cohort(adni.root, CohortConfig(clinical_columns=("EXAMINED",)), 1, selection)
    frame = clinical_of(hidden).frame
    assert set(frame["scan_id"]) == {scan.scan_id for scan in hidden.table.kept}
    assert frame["EXAMINED"].dropna().str[:4].astype(int).max() <= 1925
    assert not {"I1001", "sub-ADNI002S0295"} & set(frame.to_numpy().ravel().tolist())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GHOST", "no scan has a value in GHOST. With values: AGE"),
        ("PTID", "PTID names people"),
        ("SITE", "SITE is a column of the run already"),
        ("cdrsb", "cdrsb is a column of the run already"),
    ],
)
def test_a_column_that_cannot_be_had_is_named(adni: AdniTree, name: str, message: str) -> None:
    adni.image("002_S_0295")
    adni.row("002_S_0295", CDRSB="1")
    with pytest.raises(BadInputError, match=message):
        adni.read(clinical_columns=(name,))


@pytest.mark.parametrize(
    "name",
    [
        "Name",
        "DOB",
        "MRN",
        "surname",
        "patient_name",
        "email",
        "birth_year",
        "date_of_birth",
        "Phone",
        "home_address",
        "PatientName",
    ],
)
def test_a_column_that_says_who_people_are_is_used_nowhere(bids: BidsTree, name: str) -> None:
    bids.image("sub-1/anat/sub-1_T1w.nii")
    bids.table("participants.tsv", f"participant_id diagnosis {name}", "sub-1 AD Smith", "sub-2 CN Jones")
    for setting in (
        {"clinical_columns": (name,)}, {"target": name}, {"include": f"{name} == 'Smith'"},
        {"contrast_column": name, "negative": "Smith", "positive": "Jo"},
    ):  # fmt: skip
        with pytest.raises(BadInputError, match=f"cohort.{next(iter(setting))}: {name} names people") as refusal:
            read_cohort(bids.root, CohortConfig(**setting), 1)
        assert "Smith" not in str(refusal.value)


def test_ages_above_89_are_89_whatever_their_column_is_called(bids: BidsTree) -> None:
    for person in "123":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    bids.table(
        "participants.tsv", "participant_id diagnosis age_years AgeMonths age_now age_group birth_weight",
        "sub-1 AD 96.0 1152 96y 90-99 3400", "sub-2 CN 88 1056 88y 80-89 3500", "sub-3 CN 89.5 1069 95-99 80-89 91",
    )  # fmt: skip
    columns = ("age_years", "AgeMonths", "age_now", "age_group", "birth_weight")
    clinical = clinical_of(read_cohort(bids.root, CohortConfig(clinical_columns=columns), 1))
    assert clinical.columns["age_years"].endswith("as it stands there; ages above 89 as 89")
    assert {name: clinical.frame[name].tolist() for name in columns} == {
        "age_years": [89, 88, 89], "AgeMonths": [1068, 1056, 1068], "age_now": ["89y", "88y", "89-89"],
        "age_group": ["90-99", "80-89", "80-89"], "birth_weight": [3400, 3500, 91],
    }  # fmt: skip
    assert [scan.label for scan in read_cohort(bids.root, CohortConfig(target="age_years"), 1).table] == [
        "89", "88", "89",
    ]  # fmt: skip


def test_the_table_can_be_written_and_read(adni: AdniTree, tmp_path: Path) -> None:
    adni.image("002_S_0295", "2006-04-18", "I1")
    adni.row("002_S_0295", CDRSB="0.5")
    clinical = clinical_of(adni.read())
    write_table(tmp_path / "clinical.tsv", clinical.frame)
    read = read_table(tmp_path / "clinical.tsv").set_index("scan_id")
    assert read.loc["I1", "cdrsb"] == 0.5
    assert read["converted"].dropna().isin([0, 1]).all()


def test_no_scan_gives_an_empty_table() -> None:
    clinical, notes = clinical_table([])
    assert len(clinical.frame) == 0
    assert {"participant_id", "session_id", "scan_id"} <= set(clinical.columns)
    assert notes == []


P, Q = "002_S_0295", "002_S_0300"


@pytest.mark.parametrize(
    ("column", "codes"),
    [
        ("DXCURREN", {"1": "CN", "2": "MCI", "3": "AD"}),
        (
            "DXCHANGE",
            {"1": "CN", "2": "MCI", "3": "AD", "4": "MCI", "5": "AD", "6": "AD", "7": "CN", "8": "MCI", "9": "CN"},
        ),
        ("DIAGNOSIS", {"1": "CN", "2.0": "MCI", "3": "AD", "CN": "CN", "Dementia": "AD"}),
        ("DXCHANGE", {"Stable: NL": "CN", "Conversion: MCI to Dementia": "AD", "Reversion: MCI to NL": "CN"}),
    ],
)
def test_the_codings_of_dxsum(column: str, codes: dict[str, str]) -> None:
    assert {code: dxsum_value({column: code})[0] for code in codes} == codes


@pytest.mark.parametrize("code", ["10", "0", "2.5", "FTD"])
def test_an_unknown_code_is_no_diagnosis_and_its_column_is_told(code: str) -> None:
    assert dxsum_value({"DIAGNOSIS": code}) == (None, "DIAGNOSIS")
    assert dxsum_value({"DXCURREN": "-4"}) == (None, "")


@pytest.mark.parametrize(
    "cause",
    [
        {"DXDDUE": "2"},
        {"DXDDUE": "Dementia due to other etiology"},
        {"DXOTHDEM": "1"},
        {"DXOTHDEM": "Yes", "DXAD": "No"},
    ],
)
def test_dementia_of_another_cause_is_not_ad(cause: dict[str, str]) -> None:
    assert dxsum_value({"DIAGNOSIS": "3", **cause})[0] == "other dementia"
    assert dxsum_value({"DIAGNOSIS": "2", **cause})[0] == "MCI"
    assert dxsum_value({"DIAGNOSIS": "3", "DXOTHDEM": "1", "DXAD": "1", "DXDDUE": "1"})[0] == "AD"


def row(months: int, day: date | None, **columns: str) -> VisitRow:
    return VisitRow(f"ses-M{months:03d}", months, day, columns)


def test_the_nearest_diagnosis_within_the_window_stands_in_for_a_visit_without() -> None:
    visit = row(12, date(2007, 4, 10))
    near, far = row(12, date(2007, 7, 11), DXCHANGE="5"), row(12, date(2007, 7, 12), DXCHANGE="5")
    history, _ = diagnosis_history([visit], [near], "DXSUM.csv")
    found = diagnosis_at(history, visit, None)
    assert found is not None
    assert (found.value, found.source) == ("AD", "DXSUM.csv DXCHANGE")
    assert diagnosis_at(diagnosis_history([visit], [far], "DXSUM.csv")[0], visit, None) is None  # 93 days
    assert diagnosis_at(diagnosis_history([visit], [far], "D")[0], visit, date(2007, 4, 11)) is not None  # 92


def test_adnimerge_goes_before_dxsum_and_differences_are_told() -> None:
    visit = row(12, date(2007, 4, 10), DX="MCI")
    history, conflicts = diagnosis_history([visit], [row(12, date(2007, 4, 1), DIAGNOSIS="3")], "DXSUM.csv")
    assert [(one.value, one.source) for one in history] == [("MCI", "ADNIMERGE DX")]
    assert conflicts == ["ses-M012 MCI in ADNIMERGE, AD in DIAGNOSIS"]


def test_another_cause_in_dxsum_overrules_the_dementia_of_adnimerge() -> None:
    visit = row(12, date(2007, 4, 10), DX="Dementia")
    told = row(12, date(2007, 4, 1), DIAGNOSIS="3", DXDDUE="2")
    history, conflicts = diagnosis_history([visit], [told], "DXSUM.csv")
    assert [(one.value, one.source) for one in history] == [("other dementia", "DXSUM.csv DIAGNOSIS")]
    assert conflicts == []


def test_the_founding_rule_by_cdr() -> None:
    assert [cdr_diagnosis(cdr) for cdr in (0.0, 0.5, 1.0, 3.0, None)] == ["CN", None, "AD", "AD", None]


DXSUM = (
    "Phase,RID,VISCODE,VISCODE2,EXAMDATE,DXCURREN,DXCHANGE,DIAGNOSIS,DXDDUE\n"
    "ADNI1,295,bl,bl,2006-04-10,2,-4,-4,-4\n"
    "ADNI2,295,v11,m24,2008-04-12,-4,5,-4,-4\n"
    "ADNI3,300,y1,m12,2007-04-10,-4,-4,1,-4\n"
    "ADNI3,300,TEAM,,2010-04-10,-4,-4,10,-4\n"
)


def test_dxsum_fills_what_adnimerge_leaves_open(adni: AdniTree) -> None:
    adni.image(P, "2006-04-18", "I1001")
    adni.image(P, "2008-04-18", "I1002")
    adni.image(Q, "2007-04-18", "I1003")
    adni.row(P, "bl", "2006-04-10", "")
    adni.row(Q, "bl", "2006-04-10", "")
    write_csv(adni.root / "tables" / "dxsum_pdxconv_adniall_12Oct2023.csv", DXSUM)
    cohort = adni.read()
    scans = {scan.scan_id: scan for scan in cohort.table}
    name = "tables/dxsum_pdxconv_adniall_12Oct2023.csv"
    assert (scans["I1001"].diagnosis, scans["I1001"].diagnosis_source) == ("MCI", f"{name} DXCURREN")
    assert scans["I1001"].progression == "pMCI"
    assert (scans["I1002"].session_id, scans["I1002"].diagnosis, scans["I1002"].kept) == ("ses-M024", "AD", True)
    assert (scans["I1003"].session_id, scans["I1003"].diagnosis_source) == ("ses-M012", f"{name} DIAGNOSIS")
    assert scans["I9999"].diagnosis_source == "ADNIMERGE DX"
    assert f"3 visits found only in {name} and read from there" in cohort.notes
    unknown = "unknown diagnosis codes, treated as missing: DIAGNOSIS '10' (1 row)"
    assert f"{name}: {unknown}" in cohort.notes


def test_without_adnimerge_dxsum_is_enough(adni: AdniTree) -> None:
    adni.image(P, "2008-04-18", "I1002")
    adni.image(Q, "2007-04-18", "I1003")
    write_csv(adni.root / "DXSUM_18Feb2025.csv", DXSUM)
    cohort = adni.read(as_is=True)
    assert {scan.scan_id: (scan.diagnosis, scan.label) for scan in cohort.table} == {
        "I1002": ("AD", "AD"),
        "I1003": ("CN", "CN"),
    }
    assert any(
        note.startswith("no ADNIMERGE*.csv: visits and diagnoses come from DXSUM_18Feb") for note in cohort.notes
    )


def test_dementia_of_another_cause_is_kept_without_a_class(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, "bl", "2006-04-10", "Dementia")
    write_csv(adni.root / "DXSUM.csv", "RID,VISCODE,EXAMDATE,DIAGNOSIS,DXDDUE\n295,bl,2006-04-10,3,2\n")
    cohort = adni.read()
    scan = next(scan for scan in cohort.table if scan.scan_id == "I1001")
    assert (scan.kept, scan.diagnosis, scan.label) == (True, None, None)
    assert "diagnosis neither CN, MCI nor AD, treated as missing: 'other dementia' (1 scan)" in cohort.notes


@pytest.mark.parametrize("content", ["", "RID,VISCODE,DIAGNOSIS\n", "RID,VISCODE\n1,bl\n", "ID,DIAGNOSIS\n1,2\n"])
def test_an_optional_table_that_cannot_be_used_is_named_and_the_rest_read(adni: AdniTree, content: str) -> None:
    adni.image(P)
    adni.row(P)
    write_csv(adni.root / "DXSUM.csv", content)
    cohort = adni.read()
    assert next(scan for scan in cohort.table if scan.scan_id == "I1001").diagnosis == "CN"
    assert any(note.startswith("DXSUM.csv is not used: ") and "DXSUM.csv: " in note for note in cohort.notes)


def test_the_cdr_rule_takes_its_classes_from_the_cdr_table(adni: AdniTree) -> None:
    for number, ptid in ((1001, P), (1002, Q), (1003, "002_S_0301")):
        adni.image(ptid, number=f"I{number}")
        adni.row(ptid, dx="Dementia")
    content = "RID,VISCODE,VISCODE2,VISDATE,CDGLOBAL\n295,sc,sc,2006-04-01,0\n300,sc,sc,2006-04-01,1\n301,sc,sc,,0.5\n"
    write_csv(adni.root / "CDR_17Sep2026.csv", content)
    scans = {scan.scan_id: scan for scan in adni.read(diagnosis_rule="cdr").table}
    assert [scans[f"I{n}"].diagnosis for n in (1001, 1002, 1003)] == ["CN", "AD", None]
    assert [scans[f"I{n}"].cdr for n in (1001, 1002, 1003)] == [0.0, 1.0, 0.5]  # the last by its visit code
    assert scans["I1001"].diagnosis_source == "CDR_17Sep2026.csv CDGLOBAL"


def test_the_cdr_rule_without_a_cdr_says_what_to_get(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P)
    with pytest.raises(
        BadInputError, match=r"diagnosis_rule = 'cdr' needs the table CDR\*\.csv .* Download it at LONI"
    ):
        adni.read(diagnosis_rule="cdr")


def test_stable_and_progressive_mci_are_a_contrast(adni: AdniTree) -> None:
    for ptid, last in ((P, "Dementia"), (Q, "MCI")):
        adni.image(ptid, number=f"I{ptid[-3:]}")
        adni.row(ptid, "bl", "2006-04-10", "MCI")
        adni.row(ptid, "m36", "2009-04-10", last)
    cohort = adni.read(as_is=True, contrast_column="progression", negative="sMCI", positive="pMCI")
    assert {scan.scan_id: scan.label for scan in cohort.table} == {"I295": "pMCI", "I300": "sMCI"}


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


# What became of people after a scan, from planted visits: the courses of MCI, and the one meaning of conversion.

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
