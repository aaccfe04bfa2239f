from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from input_trees import AdniTree, image_bytes

from heatlas.pipeline.cohort.adni.download import parse_image
from heatlas.pipeline.cohort.adni.visit_tables import VisitRow, match_visit
from heatlas.pipeline.cohort.cells.values import visit_of
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
