"""DICOM: series and headers, their conversion, and ADNI downloads of them."""

from __future__ import annotations

import gzip
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
from dicom_series import SECRET_WORDS, volume, write_series
from input_trees import AdniTree
from other_user import nobody
from pydicom.uid import BasicTextSRStorage

from heatlas.pipeline.cohort.candidates import walk_input
from heatlas.pipeline.cohort.images import conversion
from heatlas.pipeline.cohort.images.conversion import convert_scans
from heatlas.pipeline.cohort.images.dicom import DicomSeries, read_folder, series_of
from heatlas.pipeline.cohort.images.files import dicom_files
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.jobs import Outcome

# DICOM series found, grouped and judged by their headers.


def read(root: Path, folder: str = "series", max_voxel_mm: float = 5.0) -> list[DicomSeries]:
    return read_folder(root.resolve(), folder, walk_input(root).dicom[folder], max_voxel_mm)


def the_problem(root: Path, max_voxel_mm: float = 5.0) -> str:
    (series,) = read(root, max_voxel_mm=max_voxel_mm)
    assert series.problem is not None
    return series.problem


def test_a_whole_series(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "series")
    (series,) = read(tmp_path)
    assert series.problem is None
    assert series.files == tuple(f"series/{path.name}" for path in paths)
    assert series.name == "series 2 (18 slices of 12 x 10)"
    assert (series.field_strength, series.date, series.patient) == (3.0, date(2006, 4, 18), "HOSP-998877")
    assert "MPRAGE" in series.description


@pytest.mark.parametrize("suffix", ["", ".IMA", ".1234", ".DCM"])
def test_files_without_the_usual_ending(tmp_path: Path, suffix: str) -> None:
    write_series(tmp_path / "series", suffix=suffix)
    (tmp_path / "series" / "README").write_text("not DICOM" * 50)
    (tmp_path / "series" / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
    files = walk_input(tmp_path)
    assert files.dicom_count == 18
    (series,) = read(tmp_path)
    assert (series.problem, len(series.files)) == (None, 18)


def test_files_without_a_preamble(tmp_path: Path) -> None:
    for path in write_series(tmp_path / "series"):
        content = path.read_bytes()
        path.write_bytes(content[132:])
    (series,) = read(tmp_path)
    assert (series.problem, len(series.files)) == (None, 18)


@pytest.mark.parametrize(
    ("absent", "reason"),
    [
        ([7], "missing slices: 1 of 24, after slice 7; download the series again"),
        ([3, 10, 11], "missing slices: 3 of 24, after slice 3, after slice 9; download the series again"),
    ],
)
def test_a_missing_slice(tmp_path: Path, absent: list[int], reason: str) -> None:
    paths = write_series(tmp_path / "series", volume(24))
    for index in absent:
        paths[index].unlink()
    assert the_problem(tmp_path) == reason


def test_slices_missing_at_the_end_where_the_header_counts_them(tmp_path: Path) -> None:
    write_series(tmp_path / "series", ImagesInAcquisition=20)
    assert the_problem(tmp_path).startswith("missing slices: 2 of 20 that the header announces")


def test_uneven_slices(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "series", volume(20))
    for path in paths[10:]:
        header = pydicom.dcmread(path)
        header.ImagePositionPatient[2] -= 1.0
        header.save_as(path)
    assert the_problem(tmp_path) == "uneven slices: 2.00 to 3.00 mm apart"


def test_two_series_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    write_series(tmp_path / "series")
    write_series(tmp_path / "series", volume(3), SeriesNumber=1)
    localizer, scan = read(tmp_path)
    assert (localizer.number, localizer.problem) == (1, "too few slices for a head: 3, a localizer or a fragment")
    assert (scan.number, scan.problem, len(scan.files)) == (2, None, 18)
    one = "series/2_0004.dcm"
    assert series_of(tmp_path, one, dicom_files(tmp_path / one), 5.0) == scan


def test_slices_in_several_directions(tmp_path: Path) -> None:
    for path in write_series(tmp_path / "series")[12:]:
        header = pydicom.dcmread(path)
        header.ImageOrientationPatient = [0, 1, 0, 0, 0, -1]
        header.save_as(path)
    assert the_problem(tmp_path) == "mixed series: slices in several directions, as a localizer has them"


def test_several_images_under_one_number(tmp_path: Path) -> None:
    write_series(tmp_path / "series", SeriesInstanceUID="1.2.3.4")
    write_series(tmp_path / "series", SeriesInstanceUID="1.2.3.4", SeriesNumber=3, EchoTime=7.0)
    assert the_problem(tmp_path) == (
        "mixed series: 18 of 36 slices lie where another one lies (2 echoes); give one volume"
    )


def test_slices_of_two_sizes(tmp_path: Path) -> None:
    write_series(tmp_path / "series", SeriesInstanceUID="1.2.3.4")
    write_series(tmp_path / "series", volume(18, 9, 8), SeriesInstanceUID="1.2.3.4", SeriesNumber=3)
    assert the_problem(tmp_path) == "mixed series: slices of 2 sizes, 9 x 8, 12 x 10"


def test_a_slice_stored_twice_is_one_slice(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "series")
    (tmp_path / "series" / "copy of 4.dcm").write_bytes(paths[4].read_bytes())
    (series,) = read(tmp_path)
    assert (series.problem, len(series.files)) == (None, 18)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("BodyPartExamined", "KNEE", "not a head by its DICOM header: body part KNEE"),
        ("Modality", "CT", "not an MR image by its DICOM header: modality CT"),
        ("Modality", "Quasimodo", "not an MR image by its DICOM header: modality unknown"),
    ],
)
def test_no_mr_image_of_a_head(tmp_path: Path, field: str, value: str, reason: str) -> None:
    write_series(tmp_path / "series", **{field: value})
    assert the_problem(tmp_path) == reason


def test_thick_slices(tmp_path: Path) -> None:
    write_series(tmp_path / "series", spacing_mm=6.0)
    assert the_problem(tmp_path) == "slices too thick: voxels of 4 x 5 x 6 mm, cohort.max_voxel_mm is 5"


@pytest.mark.parametrize("damage", ["pixels", "header", "text", "empty"])
def test_a_damaged_slice_is_named(tmp_path: Path, damage: str) -> None:
    path = write_series(tmp_path / "series")[17]
    content = path.read_bytes()
    spoilt = {"pixels": content[:-50], "header": content[:400], "text": b"<html>log in</html>", "empty": b""}
    path.write_bytes(spoilt[damage])
    problem = the_problem(tmp_path)
    assert problem.startswith("DICOM files in its folder that cannot be read: series/2_0017.dcm (")
    assert ("truncated" in problem) == (damage in ("pixels", "header"))


def test_a_series_that_may_not_be_read(tmp_path: Path) -> None:
    for path in write_series(tmp_path / "series"):
        path.chmod(0)
    with nobody(tmp_path):
        problem = the_problem(tmp_path)
    assert "series/2_0000.dcm and 17 more (no permission to read it)" in problem


def test_slices_linked_from_outside_are_not_read(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "elsewhere")
    series = tmp_path / "in" / "series"
    series.mkdir(parents=True)
    for path in paths:
        (series / path.name).symlink_to(path)
    assert "a link to a file outside the input folder" in the_problem(tmp_path / "in")


def test_objects_that_are_no_images_are_in_no_series(tmp_path: Path) -> None:
    path = write_series(tmp_path / "series")[0]
    report = pydicom.dcmread(path)
    for name in ("Rows", "Columns", "PixelData"):
        delattr(report, name)
    report.SOPInstanceUID, report.SeriesInstanceUID = "1.9.9", "1.9"
    report.SOPClassUID = BasicTextSRStorage
    report.save_as(tmp_path / "series" / "report.dcm")
    (series,) = read(tmp_path)
    assert (series.problem, len(series.files)) == (None, 18)


def test_no_message_repeats_the_header(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where fields hold what they may not: pydicom would warn, quoting them."""
    write_series(tmp_path / "series", volume(3), PatientBirthDate="Quasimodo", PatientAge="Esmeralda is 90 years")
    (series,) = read(tmp_path)
    output = capfd.readouterr()
    text = f"{series.problem} {series.name} {output.out} {output.err}"
    assert not [word for word in SECRET_WORDS if word in text]


@pytest.mark.ci
def test_the_real_series(real_data: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(real_data / "dicom" / "studyforrest-t1w.zip") as archive:
        archive.extractall(tmp_path)
    (head,) = read(tmp_path, "studyforrest-t1w")
    assert (head.problem, head.name) == (None, "series 401 (384 slices of 384 x 274)")
    (fruit,) = read(real_data / "dicom", "fruit-ir-spgr")  # its header says nothing against a head
    assert (fruit.problem, fruit.name) == (None, "series 10 (196 slices of 256 x 256)")
    assert (fruit.field_strength, fruit.date) == (3.0, date(2024, 4, 25))
    (tmp_path / "studyforrest-t1w" / "N2D_0100.dcm").unlink()
    (head,) = read(tmp_path, "studyforrest-t1w")
    assert (head.problem or "").startswith("missing slices: 1 of 384, after slice 99")


# DICOM to NIfTI as a unit of work: values and geometry, faults, repeats, and no word of the header.


def scan(image: str, participant: str = "sub-01") -> Scan:
    return Scan(participant, "ses-M000", "I1", image)


def convert(root: Path, out: Path, *scans: Scan) -> tuple[list[Scan], list[Outcome]]:
    with ThreadPoolExecutor(1) as executor:
        return convert_scans(RunLayout(out), root, scans, 5.0, executor)


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_voxels_lie_where_the_header_says(tmp_path: Path) -> None:
    data = volume()
    write_series(tmp_path / "in" / "Ünder 1 score", data, suffix="")
    before = all_bytes(tmp_path / "in")
    ((converted,), (outcome,)) = convert(tmp_path / "in", tmp_path / "out", scan("Ünder 1 score/2_0000"))
    assert (outcome.status, outcome.message) == ("done", "")
    assert converted.image == "Ünder 1 score/2_0000"
    assert converted.file == str(tmp_path / "out/sub-01/ses-M000/anat/sub-01_ses-M000_desc-converted_T1w.nii.gz")
    image = nib.load(converted.file)
    assert sorted(image.shape) == [10, 12, 18]
    assert image.get_data_dtype() == np.int16
    assert int(image.header["sform_code"]) == int(image.header["qform_code"]) == 1
    # DICOM is LPS: x of the world is minus x of the header. Voxels are 5 (columns), 4 (rows), 3 mm.
    for k, j, i in [(0, 0, 0), (17, 11, 9), (5, 2, 7)]:
        world = [20.0 - 5 * i, 24.0 - 4 * j, 7.0 + 3 * k, 1]
        voxel = np.rint(np.linalg.inv(image.affine) @ world).astype(int)[:3]
        assert np.asarray(image.dataobj)[tuple(voxel)] == data[k, j, i]
    assert all_bytes(tmp_path / "in") == before
    assert not list((tmp_path / "out" / ".scratch").iterdir())


def test_a_second_run_does_nothing_and_another_folder_gets_the_same_bytes(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "in" / "series")
    one = scan("series/2_0000.dcm")
    ((first,), _) = convert(tmp_path / "in", tmp_path / "out", one)
    ((again,), (outcome,)) = convert(tmp_path / "in", tmp_path / "out", one)
    assert (again, outcome.status) == (first, "unchanged")
    ((other,), _) = convert(tmp_path / "in", tmp_path / "elsewhere", one)
    assert Path(other.file).read_bytes() == Path(first.file).read_bytes()
    changed = pydicom.dcmread(paths[3])
    changed.PixelData = bytes(len(changed.PixelData))
    changed.save_as(paths[3])
    ((_,), (outcome,)) = convert(tmp_path / "in", tmp_path / "out", one)
    assert outcome.status == "done"
    assert Path(first.file).read_bytes() != Path(other.file).read_bytes()


def test_only_the_chosen_series_of_a_folder(tmp_path: Path) -> None:
    write_series(tmp_path / "in" / "series")
    write_series(tmp_path / "in" / "series", volume(3), SeriesNumber=1)
    ((converted,), _) = convert(tmp_path / "in", tmp_path / "out", scan("series/2_0000.dcm"))
    assert sorted(nib.load(converted.file).shape) == [10, 12, 18]


def test_a_bad_series_fails_alone_with_its_reason_and_is_forgotten_when_gone(tmp_path: Path) -> None:
    write_series(tmp_path / "in" / "good")
    write_series(tmp_path / "in" / "bad", volume(24))[8].unlink()
    nifti, dropped = scan("brain.nii.gz", "sub-03"), scan("lost/1.dcm", "sub-04").dropped("not wanted")
    scans = (scan("good/2_0000.dcm"), scan("bad/2_0000.dcm", "sub-02"), nifti, dropped)
    left, outcomes = convert(tmp_path / "in", tmp_path / "out", *scans)
    assert [outcome.status for outcome in outcomes] == ["done", "failed"]
    assert [one.participant_id for one in left] == ["sub-01", "sub-03", "sub-04"]
    assert (left[1], left[2]) == (nifti, dropped)
    failures = read_table(RunLayout(tmp_path / "out").failures)
    assert failures["stage"].tolist() == ["conversion"]
    assert failures["message"][0] == (
        "bad/2_0000.dcm: missing slices: 1 of 24, after slice 8; download the series again."
    )
    assert convert(tmp_path / "in", tmp_path / "out", nifti) == ([nifti], [])
    assert not len(read_table(RunLayout(tmp_path / "out").failures))


def test_a_series_whose_pixels_cannot_be_decoded(tmp_path: Path) -> None:
    for path in write_series(tmp_path / "in" / "series"):
        header = pydicom.dcmread(path)
        header.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.90"  # JPEG 2000, which these pixels are not
        header["PixelData"].is_undefined_length = True
        header.PixelData = pydicom.encaps.encapsulate([b"no JPEG 2000 at all."])
        header.save_as(path)
    left, (outcome,) = convert(tmp_path / "in", tmp_path / "out", scan("series/2_0000.dcm"))
    assert (left, outcome.status) == ([], "failed")
    assert outcome.message.startswith("series/2_0000.dcm: dcm2niix makes no image of series 2 (18 slices of 12 x 10).")


def test_without_the_converter_the_message_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_series(tmp_path / "in" / "series")
    monkeypatch.setattr(conversion.importlib.util, "find_spec", lambda name: None)
    _, (outcome,) = convert(tmp_path / "in", tmp_path / "out", scan("series/2_0000.dcm"))
    assert outcome.message == "dcm2niix is needed to read DICOM and is not installed: pip install dcm2niix."


def test_no_word_of_the_header_is_in_any_file(tmp_path: Path) -> None:
    """dcm2niix's own files would hold the study's description, the institution, serial numbers and times."""
    write_series(tmp_path / "in" / "good")
    write_series(tmp_path / "in" / "bad", volume(24))[8].unlink()
    convert(tmp_path / "in", tmp_path / "out", scan("good/2_0000.dcm"), scan("bad/2_0000.dcm", "sub-02"))
    files = all_bytes(tmp_path / "out")
    assert any("failures" in name for name in files)
    image_name = next(name for name in files if name.endswith(".nii.gz"))
    files[image_name] = gzip.decompress(files[image_name])
    for name, content in files.items():
        assert not [word for word in (*SECRET_WORDS, "082030", "1.2.3", "MPRAGE") if word.encode() in content], name
    sidecar = json.loads(files[image_name.replace(".nii.gz", ".json")])
    assert sidecar["EchoTime"] == pytest.approx(0.00298)
    assert (sidecar["MagneticFieldStrength"], sidecar["Manufacturer"], sidecar["Slices"]) == (3, "Siemens", 18)
    assert sidecar["Sources"] == ["bids:raw:good/2_0000.dcm"]


@pytest.mark.ci
def test_the_real_series_conversion(real_data: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(real_data / "dicom" / "studyforrest-t1w.zip") as archive:
        archive.extractall(tmp_path / "in")
    ((head,), _) = convert(tmp_path / "in", tmp_path / "out", scan("studyforrest-t1w/N2D_0001.dcm"))
    image = nib.load(head.file)
    assert sorted(image.shape) == [274, 384, 384]
    np.testing.assert_allclose(sorted(image.header.get_zooms()), [2 / 3, 2 / 3, 0.7], atol=1e-3)
    content = gzip.decompress(Path(head.file).read_bytes())
    for word in (b"Hanke", b"Jane_Doe", b"19660101", b"132518"):  # physician, patient, birth date, time of day
        assert word not in content
        assert word.decode() not in Path(head.file.replace(".nii.gz", ".json")).read_text(encoding="utf-8")
    ((fruit,), _) = convert(real_data / "dicom", tmp_path / "out", scan("fruit-ir-spgr/00001.dcm", "sub-02"))
    image = nib.load(fruit.file)
    assert image.shape == (196, 256, 256)
    assert nib.aff2axcodes(image.affine) == ("R", "A", "S")


# An ADNI download as DICOM: which series is which image, and what becomes of the others.

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
