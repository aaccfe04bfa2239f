from __future__ import annotations

from datetime import date

import pytest
from adni_csv import write_csv
from input_trees import AdniTree

from heatlas.pipeline.cohort.adni.visit_tables import VisitRow
from heatlas.pipeline.cohort.people.diagnosis import cdr_diagnosis, diagnosis_at, diagnosis_history, dxsum_value
from heatlas.pipeline.run.errors import BadInputError

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
