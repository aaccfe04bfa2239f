"""DICOM to NIfTI as a unit of work: values and geometry, faults, repeats, and no word of the header."""

from __future__ import annotations

import gzip
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
from dicom_series import SECRET_WORDS, volume, write_series

from heatlas.pipeline.cohort.images import conversion
from heatlas.pipeline.cohort.images.conversion import convert_scans
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.jobs import Outcome


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
def test_the_real_series(real_data: Path, tmp_path: Path) -> None:
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
