"""ADNI downloads, clean and dirty."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from input_trees import AdniTree, image_bytes, write_csv

from heatlas.pipeline.cohort.adni.download import parse_image
from heatlas.pipeline.cohort.adni.visit_tables import VisitRow, match_visit, newest_tables
from heatlas.pipeline.cohort.cells.values import visit_of
from heatlas.pipeline.cohort.people.splits import make_split
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError

P = "002_S_0295"


def test_a_scan_carries_what_the_table_says_at_its_visit(adni: AdniTree) -> None:
    adni.image(P, "2006-04-18", "I1001")
    adni.image(P, "2007-05-02", "I1002")
    volumes = {"FSVERSION": "Cross-Sectional FreeSurfer (5.1)", "CDGLOBAL": "0.5"}
    adni.row(P, "bl", "2006-04-10", "CN", Hippocampus="7123.5", ICV="1500000", EXAMDATE_bl="2006-04-10", **volumes)
    adni.row(P, "m12", "2007-04-20", "MCI", Hippocampus="6900", ICV="-4", EXAMDATE_bl="2006-04-10", **volumes)
    first, second = (scan for scan in adni.read().table if scan.participant_id == "sub-ADNI002S0295")
    assert (first.session_id, first.diagnosis, first.label, first.kept) == ("ses-M000", "CN", "CN", True)
    assert (second.session_id, second.diagnosis, second.label, second.kept) == ("ses-M012", "MCI", None, True)
    assert first.image == "ADNI/002_S_0295/MPRAGE/2006-04-18_08_20_30.0/I1001/brain.nii"
    assert (first.sex, first.site, first.field_strength, first.apoe4) == ("F", "11", 1.5, 1)
    assert (first.mmse, first.cdr, first.tiv_mm3, first.hippocampus_mm3) == (27.0, 0.5, 1_500_000.0, 7123.5)
    assert first.hippocampus_source == "ADNIMERGE (Cross-Sectional FreeSurfer (5.1))"
    assert (second.tiv_mm3, second.hippocampus_mm3) == (None, 6900.0)
    assert first.age == round(74.3 + 8 / 365.25, 2)
    assert second.age == round(74.3 + (date(2007, 5, 2) - date(2006, 4, 10)).days / 365.25, 2)


def test_age_without_any_date_goes_by_years_then_by_months(adni: AdniTree) -> None:
    adni.image(P, None, "I1001")
    adni.image("002_S_0296", None, "I1002")
    adni.row(P, "m24", "", "CN", Years_bl="2.5")
    adni.row("002_S_0296", "m24", "", "CN")
    collection = "Image Data ID,Subject,Visit,Acq Date\nI1001,a,m24,\n1002,b,m24,\n"
    (adni.root / "list.csv").write_text(collection, encoding="utf-8")
    ages = {scan.scan_id: scan.age for scan in adni.read().table}
    assert ages["I1001"] == 76.8
    assert ages["I1002"] == 76.3


@pytest.mark.parametrize(
    ("dx", "dx_bl", "viscode", "expected"),
    [
        ("Dementia", "CN", "bl", "AD"),
        ("", "LMCI", "bl", "MCI"),
        ("", "CN", "m12", None),
        ("MCI to Dementia", "LMCI", "m12", "AD"),
        ("Frontotemporal", "CN", "bl", None),
    ],
)
def test_diagnosis_is_that_of_the_visit(adni: AdniTree, dx: str, dx_bl: str, viscode: str, expected: str) -> None:
    adni.image(P)
    adni.row(P, viscode, dx=dx, DX_bl=dx_bl)
    scan = adni.scan("I1001")
    assert (scan.diagnosis, scan.kept) == (expected, True)
    assert scan.label == (expected if expected in ("CN", "AD") else None)


def test_an_unknown_diagnosis_is_named(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, dx="Frontotemporal")
    assert "diagnosis neither CN, MCI nor AD, treated as missing: 'Frontotemporal' (1 scan)" in adni.read().notes


def test_an_old_table_in_latin1_with_semicolons_and_dots(adni: AdniTree) -> None:
    adni.image(P)
    adni.rows = [{"ptid": P, "VISCODE": "bl", "EXAMDATE": "4/10/2006", "DX": "NL", "DX.bl": "CN", "Años": "é"}]
    adni.rows += [{"ptid": "002_S_0001", "VISCODE": "bl", "EXAMDATE": "4/10/2006", "DX": "Dementia"}]
    adni.image("002_S_0001", number="I2")
    adni.table("adnimerge.csv", ";", "latin-1")
    cohort = adni.read(as_is=True)
    assert {scan.scan_id: scan.diagnosis for scan in cohort.table} == {"I1001": "CN", "I2": "AD"}
    assert "adnimerge.csv has no column AGE, PTGENDER, Hippocampus, ICV; these values stay empty" in cohort.notes


def test_a_byte_order_mark_does_not_hide_the_first_column(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P)
    adni.both_classes()
    adni.table(encoding="utf-8-sig")
    assert adni.scan("I1001").diagnosis == "CN"


def test_the_newest_table_is_used(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, dx="MCI")
    adni.table("ADNIMERGE_02Feb2024.csv")
    adni.rows = []
    adni.row(P, dx="CN")
    adni.both_classes()
    adni.table("tables/ADNIMERGE_2025-01-10.csv")
    cohort = adni.read()
    assert cohort.table.scans[0].diagnosis == "CN"
    assert any(note.startswith("several ADNIMERGE tables; tables/ADNIMERGE_2025-01-10.csv") for note in cohort.notes)


def visit_row(code: str, exam: date | None) -> VisitRow:
    visit = visit_of(code)
    return VisitRow(visit.session_id, visit.months, exam, {})


BL, M06, M12 = (
    visit_row(code, day) for code, day in (("bl", date(2006, 1, 1)), ("m06", date(2006, 7, 1)), ("m12", None))
)


@pytest.mark.parametrize(
    ("scan_date", "code", "session"),
    [
        (date(2006, 1, 20), None, "ses-M000"),
        (date(2006, 4, 3), None, "ses-M006"),  # 92 days from bl, 89 from m06
        (date(2006, 10, 1), None, "ses-M006"),  # 92 days
        (date(2006, 5, 20), "bl", "ses-M000"),  # the code wins over the nearest date
        (date(2006, 7, 4), "bl", "ses-M006"),  # unless half a year away
        (date(2006, 1, 5), "y1", "ses-M000"),  # a code within a phase yields to dates
        (date(2006, 1, 5), "nv", "ses-M000"),
        (None, "scmri", "ses-M000"),
        (None, "y1", "ses-M012"),
        (date(2007, 1, 2), "m12", "ses-M012"),  # the row has no date
    ],
)
def test_the_visit_of_a_scan(scan_date: date | None, code: str | None, session: str) -> None:
    found = match_visit([BL, M06, M12], scan_date, visit_of(code) if code else None)
    assert isinstance(found, VisitRow)
    assert found.session_id == session


@pytest.mark.parametrize(
    ("rows", "scan_date", "code", "reason"),
    [
        ([], date(2006, 1, 1), "bl", "no row of this participant in ADNIMERGE"),
        (
            [BL],
            date(2006, 4, 4),
            None,
            "no row in ADNIMERGE within 92 days of the scan: 2006-04-04, nearest is ses-M000, 93",
        ),
        ([BL], None, "m48", "no row in ADNIMERGE for its visit: ses-M048"),
        ([BL], None, None, "neither a date in its path nor a Visit"),
        ([M12], date(2006, 1, 1), None, "no row of this participant in ADNIMERGE has an EXAMDATE"),
    ],
)
def test_a_scan_without_a_visit_says_why(rows: list[VisitRow], scan_date: date, code: str, reason: str) -> None:
    found = match_visit(rows, scan_date, visit_of(code) if code else None)
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_a_year_of_a_later_phase_is_placed_by_its_date(adni: AdniTree) -> None:
    adni.image(P, "2017-04-12", "I1001")
    adni.row(P, "bl", "2006-04-10")
    adni.row(P, "y1", "2017-04-10")
    assert adni.scan("I1001").session_id == "ses-M132"


def test_the_collection_list_gives_visits_and_dates(adni: AdniTree) -> None:
    adni.image(P, None, "I1001")
    adni.image(P, None, "I1002")
    adni.row(P, "bl", "2006-04-10")
    adni.row(P, "m12", "2007-04-10")
    lines = ['"Image Data ID","Subject","Group","Visit","Acq Date"', '"I1001","x","CN","sc","3/01/2006"']
    lines.append('"I1002","x","CN","y1","4/11/2007"')
    (adni.root / "my_collection_4_18_2025.csv").write_text("\n".join(lines), encoding="utf-8")
    sessions = {scan.scan_id: scan.session_id for scan in adni.read().table}
    assert (sessions["I1001"], sessions["I1002"]) == ("ses-M000", "ses-M012")


def test_a_screening_row_fills_the_gaps_of_baseline(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, "sc", "2006-03-20", "MCI", Hippocampus="7000")
    adni.row(P, "bl", "2006-04-10", "CN", MMSE="30")
    cohort = adni.read()
    scan = cohort.table.scans[0]
    assert (scan.diagnosis, scan.mmse, scan.hippocampus_mm3) == ("CN", 30.0, 7000.0)
    assert (
        "1 repeated row of ADNIMERGE for the same session, used only to fill missing values: 002_S_0295 sc"
        in cohort.notes
    )


def test_roll_over_participants_are_one_person(adni: AdniTree) -> None:
    adni.image("002_S_0295", "2006-04-18", "I1001")
    adni.image("131_S_0295", "2012-04-18", "I1002")
    adni.row("002_S_0295", "bl", "2006-04-10")
    adni.row("131_S_0295", "m72", "2012-04-10")
    cohort = adni.read()
    person = [scan for scan in cohort.table if scan.scan_id in ("I1001", "I1002")]
    assert {scan.participant_id for scan in person} == {"sub-ADNI002S0295"}
    assert [scan.session_id for scan in person] == ["ses-M000", "ses-M072"]
    assert "1 PTID of one RID read as one person: 131_S_0295 as 002_S_0295" in cohort.notes


def test_one_scan_per_visit_by_preference(adni: AdniTree) -> None:
    sequences = {
        "I5": "MPR__GradWarp__B1_Correction__N3__Scaled",
        "I4": "MPR-R__GradWarp__B1_Correction__N3__Scaled",
        "I3": "MPR__GradWarp",
        "I1": "MPRAGE",
        "I12": "MPRAGE",
        "I2": "Accelerated_Sagittal_MPRAGE",
        "I0": "MPRAGE_Repeat",
    }
    for number, sequence in sequences.items():
        adni.image(P, number=number, sequence=sequence)
    adni.row(P)
    person = [scan for scan in adni.read().table if scan.participant_id.endswith("0295")]
    assert [scan.scan_id for scan in person if scan.kept] == ["I5"]
    why = "another scan of this session is preferred: I5"
    assert {scan.scan_id: scan.reason for scan in person if not scan.kept} == {
        "I4": f"{why} (the first acquisition, not a repeat)",
        "I3": f"{why} (more of ADNI's processing steps)",
        "I1": f"{why} (more of ADNI's processing steps)",
        "I12": f"{why} (more of ADNI's processing steps)",
        "I2": f"{why} (the preferred protocol)",
        "I0": f"{why} (more of ADNI's processing steps)",
    }


@pytest.mark.parametrize(
    "sequence", ["MP-RAGE", "MT1__GradWarp__N3m", "IR-SPGR", "Sag_IR-FSPGR", "3D_T1w", "MPR-R__GradWarp"]
)
def test_t1_weighted_sequences(adni: AdniTree, sequence: str) -> None:
    adni.image(P, sequence=sequence)
    adni.row(P)
    assert adni.scan("I1001").kept


@pytest.mark.parametrize(
    "sequence", ["Axial_T2-FLAIR", "Field_Mapping", "MPRAGE_Hippocampus_Mask", "B1-Calibration_Body"]
)
def test_other_sequences_are_dropped_by_name(adni: AdniTree, sequence: str) -> None:
    adni.image(P, sequence=sequence)
    adni.row(P)
    assert adni.scan("I1001").reason == f"not named as a T1-weighted sequence (MPRAGE, SPGR): {sequence}"


def test_image_ids_from_folder_name_or_file() -> None:
    found = [
        parse_image(f"{P}/MPRAGE/2006-04-18_08_20_30.0/{rest}")
        for rest in ("I55/a.nii", "S13408/ADNI_x_S13408_I118690.nii.gz", "S13408/a.nii", "plain.nii")
    ]
    assert [image.image_id for image in found if image] == [
        "I55",
        "I118690",
        "S13408",
        f"{P}_MPRAGE_2006-04-18_08_20_30.0_plain",
    ]
    assert parse_image("elsewhere/a.nii") is None


def test_files_named_alike_and_without_numbers_are_different_images() -> None:
    dates = ("2006-04-18_08_20_30.0", "2007-04-18_08_20_30.0")
    paths = [f"{ptid}/MPRAGE/{date}/brain.nii" for ptid in (P, "002_S_0300") for date in dates]
    paths.append(f"{P}/MPRAGE_Repeat/{dates[0]}/brain.nii")
    found = [parse_image(path) for path in paths]
    assert len({image.image_id for image in found if image}) == len(paths)


def test_rows_without_scans_and_images_outside_are_noted(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, "bl", "2006-04-10")
    adni.row(P, "m12", "2007-04-10")
    adni.row("002_S_0300")
    (adni.root / "atlas.nii").write_bytes(image_bytes())
    (adni.root / "truth").mkdir()
    (adni.root / "truth" / "severity.nii").write_bytes(image_bytes())
    notes = adni.read().notes
    assert "1 visit in ADNIMERGE without a scan here: 002_S_0295 ses-M012" in notes
    assert "1 participant in ADNIMERGE without an image here: 002_S_0300" in notes
    assert "1 image outside participants' folders (NNN_S_NNNN) ignored: atlas.nii" in notes


def test_a_duplicate_image_id_is_named_and_one_kept(adni: AdniTree) -> None:
    kept = adni.image(P, number="I7", name="a.nii")
    adni.image(P, number="I7", name="b.nii")
    adni.row(P)
    scans = [scan for scan in adni.read().table if scan.scan_id == "I7"]
    first = kept.relative_to(adni.root).as_posix()
    assert sorted((scan.kept, scan.reason) for scan in scans if not scan.kept) == [
        (False, f"duplicate image id: I7, {first} is used")
    ]
    assert [scan.image for scan in scans if scan.kept] == [first]


def test_an_unreadable_duplicate_gives_way_to_the_readable_one(adni: AdniTree) -> None:
    adni.image(P, number="I7", name="a.nii", content=b"not an image")
    adni.image(P, number="I7", name="b.nii")
    adni.row(P)
    scans = [scan for scan in adni.read().table if scan.scan_id == "I7"]
    assert [Path(scan.image or "").name for scan in scans if scan.kept] == ["b.nii"]


def test_an_unreadable_scan_gives_way_to_another_of_its_visit(adni: AdniTree) -> None:
    adni.image(P, number="I7", sequence="MPR__GradWarp", content=image_bytes()[:-1])
    adni.image(P, number="I8")
    adni.row(P)
    reasons = {scan.scan_id: scan.reason for scan in adni.read().table}
    assert reasons["I7"] == f"truncated file: {len(image_bytes()) - 1} bytes of {len(image_bytes())}"
    assert reasons["I8"] is None


def test_no_table_says_where_to_get_it(adni: AdniTree) -> None:
    adni.image(P)
    with pytest.raises(BadInputError, match=r"no ADNIMERGE\*\.csv below this folder\. Download it at LONI"):
        adni.read(as_is=True)


@pytest.mark.parametrize("column", ["PTID", "VISCODE", "EXAMDATE", "DX"])
def test_a_missing_column_is_named(adni: AdniTree, column: str) -> None:
    adni.image(P)
    adni.row(P)
    adni.rows = [{name: value for name, value in row.items() if name != column} for row in adni.rows]
    with pytest.raises(BadInputError, match=rf"ADNIMERGE_01Jan2025\.csv: column {column} is missing; found: .*LONI"):
        adni.read(as_is=True)


def test_only_columns_that_are_used_are_needed(adni: AdniTree) -> None:
    adni.image(P)
    adni.image("002_S_0001", number="I2")
    adni.rows = [
        {"PTID": P, "VISCODE": "bl", "EXAMDATE": "2006-04-10", "PTGENDER": "Male"},
        {"PTID": "002_S_0001", "VISCODE": "bl", "EXAMDATE": "2006-04-10", "PTGENDER": "Female"},
    ]
    cohort = adni.read(as_is=True, contrast_column="sex", negative="F", positive="M")
    assert {scan.scan_id: scan.label for scan in cohort.table} == {"I1001": "M", "I2": "F"}


@pytest.mark.parametrize("content", ["", "\n", "PTID,VISCODE\na,b,c,d\n"])
def test_an_empty_or_broken_table_is_refused(adni: AdniTree, content: str) -> None:
    adni.image(P)
    (adni.root / "ADNIMERGE.csv").write_text(content, encoding="utf-8")
    with pytest.raises(BadInputError, match=r"ADNIMERGE\.csv: .*again"):
        adni.read(as_is=True)


def test_rows_without_a_ptid_are_noted(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P)
    adni.row("pilot")
    assert any("1 row without a PTID such as 002_S_0295 left out: pilot" in note for note in adni.read().notes)


# ADNIMERGE as it comes out of a spreadsheet, a merge or a hurry.

DIRT_P, Q = "002_S_0295", "002_S_0300"
HEADER = "RID,PTID,VISCODE,EXAMDATE,DX,Hippocampus,ICV,SITE\n"


def two_people(adni: AdniTree, content: str, encoding: str = "utf-8") -> None:
    adni.image(DIRT_P, "2006-04-18", "I1")
    adni.image(Q, "2006-04-18", "I2")
    write_csv(adni.root / "ADNIMERGE.csv", content, encoding)


def diagnoses(adni: AdniTree) -> dict[str, str | None]:
    return {scan.scan_id: scan.diagnosis for scan in adni.read(as_is=True).table}


ROWS = f"295,{DIRT_P},bl,2006-04-10,CN,7000.5,1500000,11\n300,{Q},bl,2006-04-12,Dementia,6000.5,1400000,11\n"


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
    lines = [f"295,{DIRT_P},bl,2006-04-10,{cells}", f"295,{Q},bl,2006-04-10,{cells}"]
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
    adni.image(DIRT_P)
    adni.row(DIRT_P, "bl", "38817")
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
    two_people(adni, HEADER + ROWS + f"295,{DIRT_P},bl,2006-04-10,MCI,7000.5,1500000,11\n")
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
    two_people(adni, HEADER + ROWS + f"295,{DIRT_P},m12,2007-04-10,CN,,,11\n400,003_S_0400,bl,2007-04-10,CN,,,11\n")
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
        ("60,Male", 75.02, "M", f"{DIRT_P} AGE (75 at ses-M000, 60 at ses-M006, 75 at ses-M012; 75.0 is used)"),
        (
            "75,Female",
            75.02,
            "M",
            f"{DIRT_P} PTGENDER (Male at ses-M000, Female at ses-M006, Male at ses-M012; M is used)",
        ),
        ("75.4,Male", 75.02, "M", ""),
    ],
)
def test_age_at_baseline_and_sex_are_those_of_most_visits(adni: AdniTree, other, age, sex, said) -> None:
    adni.image(DIRT_P, "2006-04-18", "I1")
    adni.image(DIRT_P, "2006-10-18", "I2")
    adni.image(Q, "2006-04-18", "I3")
    write_csv(
        adni.root / "ADNIMERGE.csv",
        f"{WITH_AGE}295,{DIRT_P},bl,2006-04-10,CN,75,Male\n295,{DIRT_P},m06,2006-10-10,CN,{other}\n"
        f"295,{DIRT_P},m12,2007-04-10,CN,75,Male\n",
    )
    cohort = adni.read(as_is=True)
    first, second, _ = sorted(cohort.table, key=lambda scan: scan.scan_id)
    assert (first.age, first.sex, second.sex) == (pytest.approx(age), sex, sex)
    assert second.age == pytest.approx(age + 0.5, abs=0.01) or other.startswith("75.4")
    assert (said in " ".join(cohort.notes)) if said else ("differs between visits" not in " ".join(cohort.notes))


def test_an_age_that_no_two_visits_share_is_left_empty(adni: AdniTree) -> None:
    adni.image(DIRT_P, "2006-04-18", "I1")
    adni.image(Q, "2006-04-18", "I3")
    rows = f"295,{DIRT_P},bl,2006-04-10,CN,75,Male\n295,{DIRT_P},m06,2006-10-10,CN,60,Male\n"
    write_csv(adni.root / "ADNIMERGE.csv", WITH_AGE + rows)
    cohort = adni.read(as_is=True)
    assert [scan.age for scan in cohort.table if scan.scan_id == "I1"] == [None]
    assert f"{DIRT_P} AGE (75 at ses-M000, 60 at ses-M006; left empty)" in " ".join(cohort.notes)


def test_visit_codes_against_their_dates_are_noted(adni: AdniTree) -> None:
    of_one = f"295,{DIRT_P},sc,2007-04-10,CN,,,\n295,{DIRT_P},m12,2006-04-10,CN,,,\n"
    two_people(adni, f"{HEADER}{of_one}300,{Q},bl,2006-04-12,Dementia,,,\n")
    notes = " ".join(adni.read(as_is=True).notes)
    assert f"{DIRT_P} ses-M012 (2006-04-10) before ses-M000 (2007-04-10)" in notes


def test_a_visit_code_years_from_its_date_is_noted(adni: AdniTree) -> None:
    adni.image(DIRT_P)
    adni.row(DIRT_P, "bl", "2006-04-10")
    adni.row(DIRT_P, "m06", "2006-12-20")  # two months late
    adni.row(DIRT_P, "m12", "2009-04-10")
    adni.row(DIRT_P, "y5", "2010-04-10")  # of a later phase, which begins anew
    adni.row(DIRT_P, "m60", "2011-04-10")
    (note,) = [note for note in adni.read().notes if "half a year from their dates" in note]
    assert note.endswith(f"correct the table: {DIRT_P} m12 (2009-04-10, 36 months after 2006-04-10)")


def test_sexes_of_adni_as_0_and_1_are_refused(adni: AdniTree) -> None:
    adni.image(DIRT_P)
    adni.row(DIRT_P, PTGENDER="0")
    adni.row(Q, PTGENDER="1")
    with pytest.raises(BadInputError, match=r"ADNIMERGE.*column PTGENDER holds 0 and 1"):
        adni.read()
