"""ADNIMERGE as it comes out of a spreadsheet, a merge or a hurry."""

from __future__ import annotations

import pytest
from adni_csv import write_csv
from input_trees import AdniTree

from heatlas.pipeline.cohort.adni.visit_tables import newest_tables
from heatlas.pipeline.cohort.people.splits import make_split
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

P, Q = "002_S_0295", "002_S_0300"
HEADER = "RID,PTID,VISCODE,EXAMDATE,DX,Hippocampus,ICV,SITE\n"


def two_people(adni: AdniTree, content: str, encoding: str = "utf-8") -> None:
    adni.image(P, "2006-04-18", "I1")
    adni.image(Q, "2006-04-18", "I2")
    write_csv(adni.root / "ADNIMERGE.csv", content, encoding)


def diagnoses(adni: AdniTree) -> dict[str, str | None]:
    return {scan.scan_id: scan.diagnosis for scan in adni.read(as_is=True).table}


ROWS = f"295,{P},bl,2006-04-10,CN,7000.5,1500000,11\n300,{Q},bl,2006-04-12,Dementia,6000.5,1400000,11\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_encodings(adni: AdniTree, encoding: str) -> None:
    two_people(adni, HEADER.replace("SITE", "Größe") + ROWS, encoding)
    assert diagnoses(adni) == {"I1": "CN", "I2": "AD"}


@pytest.mark.parametrize("separator", [";", "\t"])
def test_separators_and_decimal_commas(adni: AdniTree, separator: str) -> None:
    content = (HEADER + ROWS).replace(",", separator)
    two_people(adni, content.replace("000.5", "000,5") if separator == ";" else content)
    volumes = {scan.scan_id: scan.hippocampus_mm3 for scan in adni.read(as_is=True).table}
    assert volumes == {"I1": 7000.5, "I2": 6000.5}


def test_a_header_without_rows_is_refused(adni: AdniTree) -> None:
    two_people(adni, HEADER)
    with pytest.raises(BadInputError, match=r"ADNIMERGE\.csv: a header without rows\. Download it at LONI"):
        adni.read(as_is=True)


def test_a_header_named_twice(adni: AdniTree) -> None:
    two_people(adni, HEADER.replace("SITE", "DX") + ROWS)
    with pytest.raises(BadInputError, match=r"ADNIMERGE\.csv: two columns are named DX and hold different values"):
        adni.read(as_is=True)


def test_a_header_named_twice_that_nobody_uses(adni: AdniTree) -> None:
    two_people(adni, HEADER.replace("RID", "FAQ").replace("SITE", "FAQ") + ROWS)
    assert diagnoses(adni) == {"I1": "CN", "I2": "AD"}


@pytest.mark.parametrize("header", ["dx", "Dx", "icv", "hippocampus", "Ptid"])
def test_a_header_named_twice_but_for_its_case(adni: AdniTree, header: str) -> None:
    two_people(adni, HEADER.replace("SITE", header) + ROWS)
    with pytest.raises(BadInputError, match=rf"two columns are named \w+ and {header} and hold different values"):
        adni.read(as_is=True)


@pytest.mark.parametrize("columns", ["FAQ,FAQ", "FAQ,faq"])
def test_columns_of_one_name_that_are_not_used_are_named(adni: AdniTree, columns: str) -> None:
    one, other = columns.split(",")
    two_people(adni, HEADER.replace("RID", one).replace("SITE", other) + ROWS)
    named = one if one == other else f"{one} (not {other})"
    said = f"ADNIMERGE.csv: columns with the same name differ, the first is used: {named}"
    assert said in adni.read(as_is=True).notes


RIDS = {"another": ("296", True), "with a decimal": ("300.0", False), "missing": ("-4", False), "empty": ("", False)}


@pytest.mark.parametrize("way", RIDS)
def test_a_row_about_two_people_is_left_out_and_named(adni: AdniTree, way: str) -> None:
    rid, wrong = RIDS[way]
    two_people(adni, HEADER + ROWS.replace(f"300,{Q}", f"{rid},{Q}"))
    cohort = (
        adni.read(as_is=True, negative="CN", positive="AD") if not wrong else read_cohort(adni.root, CohortConfig(), 43)
    )
    said = (
        "ADNIMERGE.csv: 1 row is left out because RID and PTID belong to different people; correct one of them: "
        "line 3 (RID 296, PTID 002_S_0300)"
    )
    assert (said in cohort.notes) == wrong
    kept = {scan.scan_id: scan.kept for scan in cohort.table}
    assert kept == {"I1": True, "I2": not wrong}


@pytest.mark.parametrize(("name", "header", "cells"), [("DXSUM.csv", "DIAGNOSIS", "3"), ("CDR.csv", "CDGLOBAL", "0.5")])
def test_a_row_of_a_visit_table_about_two_people_is_left_out_and_named(
    adni: AdniTree, name: str, header: str, cells: str
) -> None:
    two_people(adni, HEADER + ROWS.replace("CN", ""))
    lines = [f"295,{P},bl,2006-04-10,{cells}", f"295,{Q},bl,2006-04-10,{cells}"]
    write_csv(adni.root / name, "\n".join([f"RID,PTID,VISCODE,EXAMDATE,{header}", *lines, ""]))
    said = (
        f"{name}: 1 row is left out because RID and PTID belong to different people; correct one of them: "
        "line 3 (RID 295, PTID 002_S_0300)"
    )
    assert said in read_cohort(adni.root, CohortConfig(), 43).notes


def test_dates_day_first(adni: AdniTree) -> None:
    two_people(adni, HEADER + ROWS.replace("2006-04-10", "10/4/2006").replace("2006-04-12", "24/4/2006"))
    cohort = adni.read(as_is=True)
    assert {scan.session_id for scan in cohort.table.kept} == {"ses-M000"}
    assert "ADNIMERGE.csv: dates are read day first, because of 24/4/2006" in cohort.notes


def test_dates_of_both_orders_are_refused(adni: AdniTree) -> None:
    two_people(adni, HEADER + ROWS.replace("2006-04-10", "4/13/2006").replace("2006-04-12", "13/4/2006"))
    with pytest.raises(BadInputError, match=r"ADNIMERGE\.csv: column EXAMDATE holds dates of both orders"):
        adni.read(as_is=True)


def test_unreadable_dates_are_named_and_their_scans_dropped(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, "bl", "38817")
    cohort = adni.read()
    scan = next(scan for scan in cohort.table if scan.scan_id == "I1001")
    assert scan.reason == "no row of this participant in ADNIMERGE has an EXAMDATE"
    assert "ADNIMERGE_01Jan2025.csv: 1 value of EXAMDATE unreadable as a date (YYYY-MM-DD): '38817'" in cohort.notes
    assert "1 row of ADNIMERGE without a readable EXAMDATE (YYYY-MM-DD)" in cohort.notes


def test_repeated_rows_that_agree_are_one(adni: AdniTree) -> None:
    two_people(adni, HEADER + ROWS + ROWS.replace("7000.5", "7000.50"))
    cohort = adni.read(as_is=True)
    assert {scan.scan_id: scan.hippocampus_mm3 for scan in cohort.table} == {"I1": 7000.5, "I2": 6000.5}
    assert not any("differ between rows" in note for note in cohort.notes)


def test_repeated_rows_that_disagree_leave_the_value_empty_and_named(adni: AdniTree) -> None:
    two_people(adni, HEADER + ROWS + f"295,{P},bl,2006-04-10,MCI,7000.5,1500000,11\n")
    adni.image("002_S_0301", "2006-04-18", "I3")
    with (adni.root / "ADNIMERGE.csv").open("a", encoding="utf-8") as handle:
        handle.write("301,002_S_0301,bl,2006-04-10,CN,,,11\n")
    cohort = adni.read(as_is=True)
    scan = next(scan for scan in cohort.table if scan.scan_id == "I1")
    assert (scan.kept, scan.diagnosis, scan.hippocampus_mm3) == (True, None, 7000.5)
    assert (
        "1 value of ADNIMERGE left empty because rows of one visit differ: 002_S_0295 bl DX (CN or MCI)" in cohort.notes
    )


def test_unknown_visit_codes_are_named_and_matched_by_date(adni: AdniTree) -> None:
    two_people(adni, HEADER + ROWS.replace("bl,2006-04-10", "visit-q,2006-04-10"))
    cohort = adni.read(as_is=True)
    assert next(scan for scan in cohort.table if scan.scan_id == "I1").session_id == "ses-XVISITQ"
    assert "unknown visit codes in ADNIMERGE, matched by date only: 'visit-q' (1 row)" in cohort.notes


def test_viscode2_goes_before_viscode(adni: AdniTree) -> None:
    two_people(adni, HEADER.replace("SITE", "VISCODE2") + ROWS.replace(",11\n", ",m48\n"))
    assert {scan.session_id for scan in adni.read(as_is=True).table} == {"ses-M048"}


def test_collection_lists_that_cannot_be_read_are_named(adni: AdniTree) -> None:
    two_people(adni, HEADER + ROWS)
    write_csv(adni.root / "list.csv", "Image Data ID,Visit,Acq Date\nI1,q,18.4.2006\nI2,bl\n,bl,18.4.2006\n")
    write_csv(adni.root / "list2.csv", "Image Data ID,Visit,Acq Date\nI1,bl,4/18/2006,extra\n")
    notes = adni.read(as_is=True).notes
    assert "unknown visits in collection lists, matched by date only: q" in notes
    assert any(note.startswith("list2.csv is not used: ") for note in notes)
    assert "list.csv: 1 row without Image Data ID left out" in notes


def test_diagnoses_that_cannot_be_placed_in_time_are_named(adni: AdniTree) -> None:
    two_people(adni, HEADER + ROWS)
    write_csv(adni.root / "DXSUM.csv", "RID,VISCODE,EXAMDATE,DIAGNOSIS\n295,y1,,2\n300,m12,,3\n")
    assert (
        "1 diagnosis without a date or visit code in months, unusable for conversion: "
        "RID 295 ses-M012 (DXSUM.csv DIAGNOSIS)"
    ) in adni.read(as_is=True).notes


def test_the_tables_are_found_by_name_whatever_is_appended() -> None:
    names = {
        "ADNIMERGE": "ADNIMERGE_14Oct2024.csv",
        "DXSUM": "x/DXSUM_PDXCONV_ADNIALL_12Oct2023.csv",
        "MAYOADIRL_MRI_QUALITY": "mayoadirl_mri_quality_adni3_15Feb2026.csv",
        "CDR": "CDR (1).csv",
        "MPRAGEMETA": "mpragemeta.csv",
        "MRIPROT": "MRIPROT_14Oct2024.csv",
        "MAYOADIRL_MRI_IMAGEQC": "MAYOADIRL_MRI_IMAGEQC_12_08_15_14Oct2024.csv",
        "UCSFFSX": "UCSFFSX_11_02_15.csv",
        "UCSFFSX51": "UCSFFSX51_11_08_19.csv",
    }
    others = ["CDRSB.csv", "RECMHIST.csv", "MRIPROTOCOL.csv", "UCSFFSXYZ.csv", "DXSUMMARY.csv"]
    assert newest_tables([*names.values(), *others]) == (names, [])


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("DXSUM.csv", "DXSUM_01Jan2019.csv"),
        ("DXSUM_30Dec2024.csv", "DXSUM_02Jan2025.csv"),
        ("UCSFFSX_11_02_15.csv", "UCSFFSX_01_08_16.csv"),
        ("CDR_20230101.csv", "CDR_2024-01-01.csv"),
    ],
)
def test_of_several_downloads_the_newest_is_used_and_the_others_named(older: str, newer: str) -> None:
    for names in ([older, newer], [newer, older]):
        files, notes = newest_tables(names)
        assert list(files.values()) == [newer]
        assert notes == [f"several {next(iter(files))} tables; {newer} is used, not {older}"]


def test_rows_without_scans_and_scans_without_rows(adni: AdniTree) -> None:
    two_people(adni, HEADER + ROWS + f"295,{P},m12,2007-04-10,CN,,,11\n400,003_S_0400,bl,2007-04-10,CN,,,11\n")
    adni.image("003_S_0500", "2007-04-18", "I3")
    cohort = adni.read(as_is=True)
    lost = next(scan for scan in cohort.table if scan.scan_id == "I3")
    assert (lost.kept, lost.reason) == (False, "no row of this participant in ADNIMERGE")
    assert "1 visit in ADNIMERGE without a scan here: 002_S_0295 ses-M012" in cohort.notes
    assert "1 participant in ADNIMERGE without an image here: 003_S_0400" in cohort.notes


def test_roll_over_participants_are_one_person_in_the_split(adni: AdniTree) -> None:
    for number in range(1, 13):
        dx = "CN" if number % 2 else "Dementia"
        first, later = f"002_S_{number:04d}", f"131_S_{number:04d}"
        adni.image(first, "2006-04-18", f"I{number}")
        adni.image(later, "2016-04-18", f"I{100 + number}")
        adni.row(first, "bl", "2006-04-10", dx, COLPROT="ADNI1")
        adni.row(later, "y1" if number == 3 else "m120", "2016-04-10", dx, COLPROT="ADNI3")
    table = adni.read(as_is=True).table
    assert len({scan.participant_id for scan in table}) == 12
    assert {scan.session_id for scan in table} == {"ses-M000", "ses-M120"}
    split = make_split(table, CohortConfig(folds=3), 43)
    for fold in split.folds:
        assert len({*fold.train, *fold.validation, *fold.test}) == 12


WITH_AGE = f"RID,PTID,VISCODE,EXAMDATE,DX,AGE,PTGENDER\n300,{Q},bl,2006-04-12,Dementia,70,Female\n"


@pytest.mark.parametrize(
    ("other", "age", "sex", "said"),
    [
        ("60,Male", 75.02, "M", f"{P} AGE (75 at ses-M000, 60 at ses-M006, 75 at ses-M012; 75.0 is used)"),
        ("75,Female", 75.02, "M", f"{P} PTGENDER (Male at ses-M000, Female at ses-M006, Male at ses-M012; M is used)"),
        ("75.4,Male", 75.02, "M", ""),
    ],
)
def test_age_at_baseline_and_sex_are_those_of_most_visits(adni: AdniTree, other, age, sex, said) -> None:
    adni.image(P, "2006-04-18", "I1")
    adni.image(P, "2006-10-18", "I2")
    adni.image(Q, "2006-04-18", "I3")
    write_csv(
        adni.root / "ADNIMERGE.csv",
        f"{WITH_AGE}295,{P},bl,2006-04-10,CN,75,Male\n295,{P},m06,2006-10-10,CN,{other}\n"
        f"295,{P},m12,2007-04-10,CN,75,Male\n",
    )
    cohort = adni.read(as_is=True)
    first, second, _ = sorted(cohort.table, key=lambda scan: scan.scan_id)
    assert (first.age, first.sex, second.sex) == (pytest.approx(age), sex, sex)
    assert second.age == pytest.approx(age + 0.5, abs=0.01) or other.startswith("75.4")
    assert (said in " ".join(cohort.notes)) if said else ("differs between visits" not in " ".join(cohort.notes))


def test_an_age_that_no_two_visits_share_is_left_empty(adni: AdniTree) -> None:
    adni.image(P, "2006-04-18", "I1")
    adni.image(Q, "2006-04-18", "I3")
    rows = f"295,{P},bl,2006-04-10,CN,75,Male\n295,{P},m06,2006-10-10,CN,60,Male\n"
    write_csv(adni.root / "ADNIMERGE.csv", WITH_AGE + rows)
    cohort = adni.read(as_is=True)
    assert [scan.age for scan in cohort.table if scan.scan_id == "I1"] == [None]
    assert f"{P} AGE (75 at ses-M000, 60 at ses-M006; left empty)" in " ".join(cohort.notes)


def test_visit_codes_against_their_dates_are_noted(adni: AdniTree) -> None:
    of_one = f"295,{P},sc,2007-04-10,CN,,,\n295,{P},m12,2006-04-10,CN,,,\n"
    two_people(adni, f"{HEADER}{of_one}300,{Q},bl,2006-04-12,Dementia,,,\n")
    notes = " ".join(adni.read(as_is=True).notes)
    assert f"{P} ses-M012 (2006-04-10) before ses-M000 (2007-04-10)" in notes


def test_a_visit_code_years_from_its_date_is_noted(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, "bl", "2006-04-10")
    adni.row(P, "m06", "2006-12-20")  # two months late
    adni.row(P, "m12", "2009-04-10")
    adni.row(P, "y5", "2010-04-10")  # of a later phase, which begins anew
    adni.row(P, "m60", "2011-04-10")
    (note,) = [note for note in adni.read().notes if "half a year from their dates" in note]
    assert note.endswith(f"correct the table: {P} m12 (2009-04-10, 36 months after 2006-04-10)")


def test_sexes_of_adni_as_0_and_1_are_refused(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, PTGENDER="0")
    adni.row(Q, PTGENDER="1")
    with pytest.raises(BadInputError, match=r"ADNIMERGE.*column PTGENDER holds 0 and 1"):
        adni.read()
