from __future__ import annotations

from pathlib import Path

import pytest
from adni_csv import write_csv
from input_trees import AdniTree, BidsTree

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.subjects import complete_volumes, plausible_volumes, read_aseg
from heatlas.pipeline.run.errors import BadInputError

P = "002_S_0295"
ASEG = """# Title Segmentation Statistics
#
# generating_program mri_segstats
# cvs_version 7.4.1
# Measure MaskVol, MaskVol, Mask Volume, 1400000.0, mm^3
# Measure {icv}, {value}, mm^3
# NRows 3
# ColHeaders  Index SegId NVoxels Volume_mm3 StructName normMean normStdDev normMin normMax normRange
  1   4     5855     6245.9  Left-Lateral-Ventricle   37.7   11.0    20.0    89.0    69.0
  9  17     4166     {left}  Left-Hippocampus   71.7    9.2    26.0   101.0    75.0
 27  53     4250     {right}  Right-Hippocampus   71.7    9.2    26.0   101.0    75.0
"""


def aseg(
    folder: Path,
    subject: str,
    left: float = 3987.25,
    right: float = 4101.5,
    value: float = 1500000.5,
    icv: str = "EstimatedTotalIntraCranialVol, eTIV, Estimated Total Intracranial Volume",
    name: str = "aseg.stats",
) -> Path:
    return write_csv(folder / subject / "stats" / name, ASEG.format(left=left, right=right, value=value, icv=icv))


def volumes_of(scan: Scan) -> tuple[float | None, ...]:
    return scan.hippocampus_left_mm3, scan.hippocampus_right_mm3, scan.hippocampus_mm3, scan.tiv_mm3


def test_aseg_of_freesurfer(tmp_path: Path) -> None:
    path = aseg(tmp_path, "bert")
    write_csv(
        tmp_path / "bert" / "scripts" / "build-stamp.txt", "freesurfer-linux-centos7_x86_64-7.4.1-20230614-7eb8460"
    )
    found = read_aseg(path)
    assert (found.left, found.right, found.total, found.intracranial) == (3987.25, 4101.5, 8088.75, 1500000.5)
    assert found.source == found.intracranial_source == "aseg.stats (FreeSurfer 7.4.1)"


def test_aseg_of_old_freesurfer_and_of_fastsurfer(tmp_path: Path) -> None:
    old = aseg(tmp_path, "old", icv="IntraCranialVol, ICV, Intracranial Volume")
    assert read_aseg(old).intracranial == 1500000.5
    assert read_aseg(old).source == "aseg.stats (FreeSurfer, version unknown)"
    write_csv(tmp_path / "old/scripts/build-stamp.txt", "freesurfer-Linux-centos6_x86_64-stable-pub-v5.3.0")
    assert read_aseg(old).source == "aseg.stats (FreeSurfer 5.3.0)"
    fast = aseg(tmp_path, "fast", name="aseg+DKT.VINN.stats", icv="SegVol, x, y")
    assert (read_aseg(fast).source, read_aseg(fast).intracranial) == (
        "aseg+DKT.VINN.stats (FastSurfer, version unknown)",
        None,
    )
    surf = aseg(tmp_path, "surf")
    write_csv(tmp_path / "surf" / "scripts" / "deep-seg.log", "")
    assert "FastSurfer" in (read_aseg(surf).source or "")


def test_a_measure_in_another_unit_is_not_taken(tmp_path: Path) -> None:
    path = aseg(tmp_path, "x")
    path.write_text(path.read_text().replace("1500000.5, mm^3", "1500000.5, unitless"))
    assert read_aseg(path).intracranial is None


def test_structures_go_by_number_not_by_position(tmp_path: Path) -> None:
    path = aseg(tmp_path, "x")
    lines = path.read_text().replace("SegId NVoxels Volume_mm3", "NVoxels SegId Volume_mm3").splitlines()
    swapped = [
        " ".join([c[0], c[2], c[1], *c[3:]]) if not (c := line.split())[0].startswith("#") else line for line in lines
    ]
    path.write_text("\n".join(swapped[:-1] + swapped[-1:]))
    assert (read_aseg(path).left, read_aseg(path).right) == (3987.25, 4101.5)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = aseg(tmp_path, "x")
    path.write_text(path.read_text().rsplit("\n 27", 1)[0])
    with pytest.raises(BadInputError, match=r"aseg\.stats: no volume of both hippocampi .* cut short"):
        read_aseg(path)


@pytest.mark.parametrize(
    ("volumes", "left_out"),
    [
        ((3.9, 4100.0, None, None), "left hippocampus of 3.9 mm3 (x) is outside 500 to 8000"),
        ((None, None, 7.1, None), "hippocampus of 7.1 mm3 (x) is outside 1000 to 16000"),
        ((None, None, 7100.0, 1450.0), "intracranial volume of 1450 mm3 (x) is outside 800000 to 2500000"),
        ((None, 9100.0, None, 1.5e6), "right hippocampus of 9100 mm3 (x) is outside 500 to 8000"),
    ],
)
def test_an_implausible_volume_is_left_out_and_named(volumes: tuple[float | None, ...], left_out: str) -> None:
    found = plausible_volumes(*volumes, "x")  # type: ignore[arg-type]
    assert found.problems == (left_out,)
    kept = (found.left, found.right, found.total, found.intracranial)
    assert sum(one is not None for one in kept) == sum(one is not None for one in volumes) - 1


def test_two_segmentations_are_not_mixed() -> None:
    total = plausible_volumes(None, None, 8000.0, None, "ADNIMERGE")
    same, other = (
        plausible_volumes(3990.0, 4020.0, None, 1.5e6, "UCSF"),
        plausible_volumes(3500.0, 4000.0, None, 1.5e6, "UCSF"),
    )
    assert complete_volumes(total, same).source == "ADNIMERGE; left and right: UCSF"
    assert (complete_volumes(total, same).total, complete_volumes(total, same).left) == (8000.0, 3990.0)
    assert (complete_volumes(total, other).total, complete_volumes(total, other).left) == (8000.0, None)
    assert complete_volumes(total, other).source == "ADNIMERGE"
    assert (complete_volumes(total, other).intracranial, complete_volumes(total, other).intracranial_source) == (
        1.5e6,
        "UCSF",
    )
    assert complete_volumes(plausible_volumes(None, None, None, None, "ADNIMERGE"), other).total == 7500.0


def test_adnimerge_and_ucsf_tables(adni: AdniTree) -> None:
    adni.image(P, "2006-04-18", "I1")
    adni.image("002_S_0300", "2006-04-18", "I2")
    adni.row(P, Hippocampus="8000", ICV="1500000", FSVERSION="Cross-Sectional FreeSurfer (5.1)")
    adni.image("002_S_0301", "2006-04-18", "I3")
    adni.row("002_S_0300", Hippocampus="-4", ICV="")
    adni.row("002_S_0301")
    content = (
        "RID,VISCODE,VISCODE2,EXAMDATE,VERSION,IMAGEUID,OVERALLQC,ST10CV,ST29SV,ST88SV\n"
        "295,v03,bl,2006-04-12,2012-01-01,77,Pass,1500000,3980,4020\n"
        "300,v03,bl,2006-04-12,2012-01-01,78,Pass,1400000,1111,1111\n"
        "300,v03,bl,2006-07-12,2012-01-01,2,Partial,1400000,3000,3100\n"
        "301,v03,bl,2006-04-12,2012-01-01,80,Fail,1400000,1111,1111\n"
        "301,v03,bl,2006-05-12,2012-01-01,81,,1400000,3200,3300\n"
    )
    write_csv(adni.root / "UCSFFSX51_11_08_19.csv", content)
    scans = {scan.scan_id: scan for scan in adni.read().table}
    assert volumes_of(scans["I1"]) == (3980.0, 4020.0, 8000.0, 1_500_000.0)
    assert scans["I1"].hippocampus_source == (
        "ADNIMERGE (Cross-Sectional FreeSurfer (5.1)); left and right: UCSFFSX51 (FreeSurfer 5.1)"
    )
    assert volumes_of(scans["I2"]) == (3000.0, 3100.0, 6100.0, 1_400_000.0)
    assert scans["I2"].hippocampus_source == scans["I2"].tiv_source == "UCSFFSX51 (FreeSurfer 5.1)"
    assert volumes_of(scans["I3"])[:2] == (3200.0, 3300.0)  # not those of the failed segmentation
    assert scans["I9999"].hippocampus_source is None


def test_implausible_volumes_of_adnimerge_are_noted(adni: AdniTree) -> None:
    adni.image(P)
    adni.row(P, Hippocampus="7.1", ICV="1500")
    cohort = adni.read()
    scan = next(scan for scan in cohort.table if scan.scan_id == "I1001")
    assert volumes_of(scan) == (None, None, None, None)
    assert (scan.hippocampus_source, scan.tiv_source) == (None, None)
    cells = "ADNIMERGE_01Jan2025.csv line 2, ICV '1500' (must be 800000 to 2500000)"
    assert any(note.startswith("impossible values, treated as missing (2)") and cells in note for note in cohort.notes)


def test_subjects_by_image_by_visit_and_by_person(adni: AdniTree, tmp_path: Path) -> None:
    adni.image(P, "2006-04-18", "I1")
    adni.image(P, "2007-04-18", "I2")
    adni.image("002_S_0300", "2006-04-18", "I3")
    adni.row(P, "bl", "2006-04-10", Hippocampus="8000", ICV="1500000")
    adni.row(P, "m12", "2007-04-10", Hippocampus="7900", ICV="1500000")
    adni.row("002_S_0300", "bl", "2006-04-10", Hippocampus="7000")
    folder = tmp_path / "subjects"
    aseg(folder, "I1", left=3001)
    aseg(folder, "002_S_0295_m12", left=3002)
    aseg(folder, "002_S_0295_m12.long.002_S_0295_base", left=3999)
    aseg(folder, "002_S_0300", left=3003)
    aseg(folder, P)
    aseg(folder, "fsaverage")
    cohort = adni.read(freesurfer_folder=str(folder))
    scans = {scan.scan_id: scan for scan in cohort.table}
    assert [scans[f"I{n}"].hippocampus_left_mm3 for n in (1, 2, 3)] == [3001, 3002, 3003]
    assert scans["I2"].hippocampus_mm3 == 3002 + 4101.5
    assert scans["I2"].hippocampus_source == scans["I2"].tiv_source == "aseg.stats (FreeSurfer, version unknown)"
    assert "3 scans have volumes from cohort.freesurfer_folder" in cohort.notes
    assert "1 subject there without a scan: fsaverage" in cohort.notes
    assert "1 subject there ignored, because several scans could be meant: 002_S_0295" in cohort.notes
    assert "2 scans without a subject there, volumes from other sources stay: I9998, I9999" in cohort.notes


def test_subjects_of_a_bids_dataset(bids: BidsTree, tmp_path: Path) -> None:
    for person in ("01", "02"):
        bids.image(f"in/sub-{person}/ses-M00/anat/sub-{person}_ses-M00_T1w.nii")
        aseg(tmp_path / "fs", f"sub-{person}/ses-M00/t1/freesurfer_cross_sectional/sub-{person}_ses-M00", left=3000)
    bids.table("in/participants.tsv", "participant_id diagnosis", "sub-01 CN", "sub-02 AD")
    cohort = BidsTree(bids.root / "in").read(freesurfer_folder=str(tmp_path / "fs"))
    assert {scan.hippocampus_left_mm3 for scan in cohort.table} == {3000}


def test_a_cut_subject_leaves_the_others_alone(adni: AdniTree, tmp_path: Path) -> None:
    adni.image(P, "2006-04-18", "I1")
    adni.row(P, "bl", "2006-04-10", Hippocampus="8000")
    folder = tmp_path / "subjects"
    write_csv(folder / P / "stats" / "aseg.stats", "# ColHeaders Index SegId NVoxels Volume_mm3\n")
    aseg(folder, "I9999")
    cohort = adni.read(freesurfer_folder=str(folder))
    scans = {scan.scan_id: scan for scan in cohort.table}
    assert (scans["I1"].hippocampus_mm3, scans["I9999"].hippocampus_mm3) == (8000.0, 8088.75)
    assert any(note.startswith("1 subject there unreadable: ") for note in cohort.notes)


@pytest.mark.parametrize(("made", "message"), [(False, "no such folder"), (True, r"no \*/stats/aseg\.stats below")])
def test_a_folder_without_subjects_is_refused(adni: AdniTree, tmp_path: Path, made: bool, message: str) -> None:
    adni.image(P)
    adni.row(P)
    if made:
        (tmp_path / "fs").mkdir()
    with pytest.raises(BadInputError, match=rf"cohort\.freesurfer_folder = '.*fs': {message}"):
        adni.read(freesurfer_folder=str(tmp_path / "fs"))
