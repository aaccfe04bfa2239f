from __future__ import annotations

import datetime
from pathlib import Path

import pandas as pd
import pytest
from input_trees import AdniTree, BidsTree

from heatlas.pipeline.cohort.people.diagnosis import OTHER_DEMENTIA, Diagnosis, follow_up
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
