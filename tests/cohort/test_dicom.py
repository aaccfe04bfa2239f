"""DICOM series found, grouped and judged by their headers."""

from __future__ import annotations

import zipfile
from datetime import date
from pathlib import Path

import pydicom
import pytest
from dicom_series import SECRET_WORDS, volume, write_series
from other_user import nobody
from pydicom.uid import BasicTextSRStorage

from heatlas.pipeline.cohort.candidates import walk_input
from heatlas.pipeline.cohort.images.dicom import DicomSeries, read_folder, series_of
from heatlas.pipeline.cohort.images.files import dicom_files


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
