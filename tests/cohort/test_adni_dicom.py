"""An ADNI download as DICOM: which series is which image, and what becomes of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from dicom_series import SECRET_WORDS, volume, write_series
from input_trees import AdniTree

from heatlas.pipeline.cohort.records import Scan

P = "002_S_0295"
FOLDER = f"ADNI/{P}/MPRAGE/2006-04-18_08_20_30.0/I1001"


def scans_of(adni: AdniTree) -> dict[str, Scan]:
    adni.row(P)
    return {s.scan_id: s for s in adni.read().table if s.participant_id == "sub-ADNI002S0295"}


def test_a_series_is_one_scan_named_by_its_first_file(adni: AdniTree) -> None:
    write_series(adni.root / FOLDER, suffix="")
    scan = scans_of(adni)["I1001"]
    assert (scan.kept, scan.session_id, scan.diagnosis) == (True, "ses-M000", "CN")
    assert scan.image == f"{FOLDER}/2_0000"
    assert scan.field_strength == 3.0  # of the header; the table says 1.5


def test_a_series_and_an_image_of_one_visit(adni: AdniTree) -> None:
    write_series(adni.root / FOLDER)
    adni.image(P, number="I0999", sequence="MPR__GradWarp__B1_Correction__N3")
    found = scans_of(adni)
    assert {number: scan.kept for number, scan in found.items()} == {"I0999": True, "I1001": False}
    assert (found["I1001"].reason or "").startswith("another scan of this session is preferred: I0999")


def test_a_fault_is_the_reason(adni: AdniTree) -> None:
    write_series(adni.root / FOLDER, volume(24))[9].unlink()
    assert scans_of(adni)["I1001"].reason == "missing slices: 1 of 24, after slice 9; download the series again"


def test_a_localizer_beside_the_scan_does_not_spoil_it(adni: AdniTree) -> None:
    write_series(adni.root / FOLDER)
    write_series(adni.root / FOLDER, volume(3), SeriesNumber=1)
    found = scans_of(adni)
    assert found["I1001"].kept
    assert found["I1001_series-1"].reason == "too few slices for a head: 3, a localizer or a fragment"
    assert f"1 folder holds several DICOM series, each is listed: {FOLDER}" in adni.read().notes


def test_another_sequence_beside_the_scan_is_told_by_its_header(adni: AdniTree) -> None:
    write_series(adni.root / FOLDER)
    write_series(adni.root / FOLDER, SeriesNumber=5, SeriesDescription="T2 TSE Quasimodo", ProtocolName="T2")
    found = scans_of(adni)
    assert found["I1001"].kept
    assert found["I1001_series-5"].reason == (
        "not named as a T1-weighted sequence by its DICOM header: series 5 (18 slices of 12 x 10)"
    )


def test_of_two_that_could_be_the_image_none_is_taken(adni: AdniTree) -> None:
    write_series(adni.root / FOLDER)
    write_series(adni.root / FOLDER, SeriesNumber=3)
    found = scans_of(adni)
    assert not any(scan.kept for scan in found.values())
    assert set(found) == {"I1001_series-2", "I1001_series-3"}
    for scan in found.values():
        assert (scan.reason or "").startswith("several series in one folder: series 2 (18 slices of 12 x 10), series 3")


def test_without_a_folder_of_the_sequence_the_header_names_it(adni: AdniTree) -> None:
    write_series(adni.root / "ADNI" / P / "2006-04-18_08_20_30.0" / "I1001")
    write_series(
        adni.root / "ADNI" / P / "2006-04-18_09_20_30.0" / "I1002",
        SeriesDescription="FLAIR for Esmeralda",
        ProtocolName="",
    )
    found = scans_of(adni)
    assert found["I1001"].kept
    assert found["I1002"].reason == "not named as a T1-weighted sequence (MPRAGE, SPGR): DICOM series"


def test_the_date_of_the_header_stands_in(adni: AdniTree) -> None:
    write_series(adni.root / "ADNI" / P / "MPRAGE" / "I1001")
    assert scans_of(adni)["I1001"].session_id == "ses-M000"
    write_series(adni.root / "ADNI" / P / "MPRAGE" / "I1002", AcquisitionDate="20110418")
    assert (scans_of(adni)["I1002"].reason or "").startswith("no row in ADNIMERGE within 92 days of the scan: 2011")


@pytest.mark.parametrize(
    ("patient", "kept"), [(P, True), ("099_S_0295", True), ("HOSP-1", True), ("002_S_0413", False)]
)
def test_a_header_of_another_participant(adni: AdniTree, patient: str, kept: bool) -> None:
    """099_S_0295 is the same person, RID 295, at another site; a hospital's number says nothing."""
    write_series(adni.root / FOLDER, PatientID=patient)
    scan = scans_of(adni)["I1001"]
    assert scan.kept == kept
    if not kept:
        assert scan.reason == (f"unclear participant: the folder says {P}, the DICOM header another participant")


def test_a_folder_of_series_alone_is_no_input_and_says_what_to_do(adni: AdniTree) -> None:
    write_series(adni.root / "series")
    with pytest.raises(
        Exception, match=r"18 DICOM files seen\. Put each DICOM series into a folder of its participant"
    ):
        adni.read(as_is=True)
    write_series(adni.root / FOLDER)
    scans_of(adni)
    assert "1 image outside participants' folders (NNN_S_NNNN) ignored: series (DICOM)" in adni.read().notes


def test_nothing_of_the_header_is_in_table_or_notes(adni: AdniTree, tmp_path: Path) -> None:
    for series, header in enumerate(({}, {"Modality": "CT"}, {"BodyPartExamined": "KNEE"}, {"SeriesDescription": "x"})):
        write_series(adni.root / FOLDER.replace("I1001", f"I200{series}"), **header)
    write_series(adni.root / FOLDER)
    write_series(adni.root / FOLDER, SeriesNumber=3)
    adni.row(P)
    cohort = adni.read()
    cohort.table.write(tmp_path / "scans.tsv")
    text = (tmp_path / "scans.tsv").read_text() + repr(cohort)
    assert not [word for word in SECRET_WORDS if word in text]
