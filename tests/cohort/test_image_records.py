"""Images of a cohort: lists, headers and volumes."""

from __future__ import annotations

import dataclasses
import gzip
import io
import re
from datetime import date
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from input_trees import AdniTree, BidsTree, image_bytes, write_csv
from other_user import nobody

from heatlas.pipeline.cohort.adni.image_tables import MAX_BYTES, ImageRecord, parse_image_xml, read_image_xmls
from heatlas.pipeline.cohort.images.headers import check_header
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.subjects import complete_volumes, plausible_volumes, read_aseg
from heatlas.pipeline.run.errors import BadInputError

# Collection lists and per-image XML, alone, together, and against the folders.

P = "002_S_0295"
HEADER = "Image Data ID,Subject,Group,Sex,Age,Visit,Modality,Description,Type,Acq Date,Format,Downloaded"

ORIGINAL = """<?xml version="1.0" encoding="UTF-8"?>
<idaxs xmlns="http://ida.loni.usc.edu" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
       xsi:schemaLocation="/xsds/idaxs_2_0.xsd">
<project xmlns=""><projectIdentifier>ADNI</projectIdentifier><siteKey>Quasimodo</siteKey>
 <subject><subjectIdentifier>{ptid}</subjectIdentifier><researchGroup>AD</researchGroup><subjectSex>{sex}</subjectSex>
  <subjectInfo item="APOE A1">3</subjectInfo>
  <visit><visitIdentifier>ADNI Screening</visitIdentifier>
   <assessment name="MMSE"><component name="MMSE Total"><assessmentScore>28.0</assessmentScore></component></assessment>
  </visit>
  <study><subjectAge>{age}</subjectAge><weightKg>71.2</weightKg>
   <series><seriesIdentifier>13408</seriesIdentifier><modality>MRI</modality>
    <dateAcquired>{day} 08:20:30.0</dateAcquired>
    {image}
   </series>
  </study>
 </subject>
</project></idaxs>
"""
ACQUIRED = """<imagingProtocol><imageUID>{number}</imageUID><description>MP-RAGE</description>
     <protocolTerm><protocol term="Acquisition Type">3D</protocol><protocol term="Weighting">T1</protocol>
     <protocol term="Field Strength">{tesla}</protocol></protocolTerm></imagingProtocol>"""
PROCESSED = """<seriesLevelMeta><derivedProduct><imageUID>{number}</imageUID>
     <processedDataLabel>MPR; GradWarp; B1 Correction; N3; Scaled</processedDataLabel></derivedProduct>
     <relatedImageDetail><originalRelatedImage><relatedImage><imageUID>13722</imageUID><description>MP-RAGE</description>
     <protocolTerm><protocol term="Field Strength">{tesla}</protocol></protocolTerm></relatedImage>
     </originalRelatedImage></relatedImageDetail></seriesLevelMeta>"""


def xml(image: str = ACQUIRED, **changed: str) -> str:
    values = {"ptid": P, "sex": "F", "age": "74.3", "day": "2006-04-18", "number": "1001", "tesla": "3.0", **changed}
    return ORIGINAL.format(image=image.format(**values), **values)


def collection(adni: AdniTree, *rows: str, name: str = "ADNI1_Annual_2_Yr_1.5T_4_18_2020.csv") -> None:
    (adni.root / name).write_text("\n".join(['"' + HEADER.replace(",", '","') + '"', *rows]) + "\n", encoding="utf-8")


def row(number: str = "I1001", ptid: str = P, sex: str = "F", age: str = "74", day: str = "4/18/2006") -> str:
    return f'"{number}","{ptid}","CN","{sex}","{age}","sc","MRI","MP-RAGE","Original","{day}","DCM",""'


def scan_and_notes(adni: AdniTree) -> tuple[Scan, str]:
    adni.image(P)
    adni.row(P)
    cohort = adni.read()
    return next(scan for scan in cohort.table if scan.scan_id == "I1001"), "\n".join(cohort.notes)


class TestXml:
    def test_an_original_image(self) -> None:
        found = parse_image_xml(xml().encode())
        assert found is not None
        number, record = found
        assert number == "I1001"
        assert (record.ptid, record.sex, record.age, record.date) == (P, "F", 74.3, date(2006, 4, 18))
        assert record.visit is not None
        assert (record.visit.session_id, record.modality) == ("ses-M000", "MRI")
        assert (record.sequence, record.field_strength) == ("MP-RAGE", 3.0)

    def test_a_processed_image_goes_by_its_own_number_not_the_original_ones(self) -> None:
        found = parse_image_xml(xml(PROCESSED, number="118671").encode())
        assert found is not None
        assert (found[0], found[1].sequence) == ("I118671", "MPR; GradWarp; B1 Correction; N3; Scaled")
        assert found[1].field_strength == 3.0

    @pytest.mark.parametrize("text", ["<idaxs/>", "<page>hello</page>", xml().replace("imageUID", "other")])
    def test_another_xml_file_describes_no_image(self, text: str) -> None:
        assert parse_image_xml(text.encode()) is None

    def test_only_what_is_used_is_kept(self) -> None:
        assert not [word for word in ("Quasimodo", "71.2", "28.0") if word in repr(parse_image_xml(xml().encode()))]

    @pytest.mark.parametrize(
        "content",
        [
            b"<idaxs><project>",
            b"",
            b'<?xml version="1.0" encoding="klingon"?><idaxs/>',
            b'<!DOCTYPE x [<!ENTITY a "aaaa">]><idaxs>&a;</idaxs>',
            b"<idaxs>" + b" " * MAX_BYTES + b"</idaxs>",
        ],
    )
    def test_a_damaged_or_hostile_file_is_named_and_passed_over(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "bad.xml").write_bytes(content)
        (tmp_path / "good.xml").write_text(xml(), encoding="utf-8")
        records, notes = read_image_xmls(tmp_path, ["bad.xml", "good.xml", "absent.xml"])
        assert list(records) == ["I1001"]
        assert notes == ["2 XML files cannot be read and are skipped: bad.xml, absent.xml"]


def described(folder: Path, *contents: str) -> tuple[ImageRecord, list[str]]:
    names = [f"{letter}.xml" for letter in "abc"[: len(contents)]]
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_text(content, encoding="utf-8")
    records, notes = read_image_xmls(folder, names)
    return records["I1001"], notes


FACTS = {
    "ptid": "<subjectIdentifier>002_S_0413</subjectIdentifier>",
    "sex": "<subjectSex>M</subjectSex>",
    "age": "<subjectAge>55</subjectAge>",
    "visit": "<visitIdentifier>ADNI1/GO Month 12</visitIdentifier>",
    "date": "<dateAcquired>2009-01-01</dateAcquired>",
    "modality": "<modality>PET</modality>",
    "field_strength": '<protocol term="Field Strength">7.0</protocol>',
}
TAGS = {
    "ptid": r"<subjectIdentifier>.*?</subjectIdentifier>",
    "sex": r"<subjectSex>.*?</subjectSex>",
    "age": r"<subjectAge>.*?</subjectAge>",
    "visit": r"<visitIdentifier>.*?</visitIdentifier>",
    "date": r"<dateAcquired>.*?</dateAcquired>",
    "modality": r"<modality>.*?</modality>",
    "field_strength": r'<protocol term="Field Strength">.*?</protocol>',
}


class TestSeveralFilesOfOneImage:
    @pytest.mark.parametrize("order", [1, -1])
    @pytest.mark.parametrize("fact", FACTS)
    def test_what_they_contradict_is_not_used_and_both_are_named(self, tmp_path: Path, fact: str, order: int) -> None:
        other, found = re.subn(TAGS[fact], FACTS[fact], xml())
        assert found == 1
        record, notes = described(tmp_path, *[xml(), other][::order])
        assert getattr(record, fact) is None
        assert record == dataclasses.replace(described(tmp_path, xml())[0], **{fact: None})
        assert notes == [
            "1 image is described differently by several XML files, these are not used: "
            f"I1001 in a.xml and b.xml ({fact})"
        ]

    def test_equal_ones_are_no_fault(self, tmp_path: Path) -> None:
        assert described(tmp_path, xml(), xml(), xml()) == described(tmp_path, xml())

    @pytest.mark.parametrize("order", [1, -1])
    def test_one_fills_the_gaps_of_the_other(self, tmp_path: Path, order: int) -> None:
        silent = re.sub(TAGS["age"], "", xml())
        assert described(tmp_path, *[xml(), silent][::order]) == described(tmp_path, xml())

    @pytest.mark.parametrize(("fact", "text"), [("age", "740"), ("age", "seventy"), ("field_strength", "150")])
    def test_impossible_values_are_named_by_file(self, tmp_path: Path, fact: str, text: str) -> None:
        record, notes = described(tmp_path, re.sub(TAGS[fact], re.sub(r">[^<]*<", f">{text}<", FACTS[fact]), xml()))
        assert getattr(record, fact) is None
        assert notes[0].startswith("impossible values, treated as missing (1): a.xml, ")
        assert f"'{text}'" in notes[0]


class TestAgreement:
    def test_the_xml_knows_the_scanner_better_than_the_table(self, adni: AdniTree) -> None:
        (adni.root / "ADNI_002_S_0295_I1001.xml").write_text(xml(), encoding="utf-8")
        scan, notes = scan_and_notes(adni)
        assert (scan.kept, scan.field_strength, scan.sex) == (True, 3.0, "F")
        assert "disagree" not in notes

    def test_the_list_names_the_sequence_where_the_folder_does_not(self, adni: AdniTree) -> None:
        collection(adni, row())
        path = adni.image(P, sequence="download")
        adni.row(P)
        assert adni.scan("I1001").kept
        assert path.is_file()

    def test_the_list_does_not_overrule_a_folder_of_another_sequence(self, adni: AdniTree) -> None:
        collection(adni, row())
        adni.image(P, sequence="Axial_T2_FLAIR")
        adni.row(P)
        assert adni.scan("I1001").reason == "not named as a T1-weighted sequence (MPRAGE, SPGR): Axial_T2_FLAIR"

    @pytest.mark.parametrize("source", ["list", "xml"])
    def test_another_participant_than_the_folder_drops_the_image(self, adni: AdniTree, source: str) -> None:
        if source == "list":
            collection(adni, row(ptid="002_S_0413"))
        else:
            (adni.root / "a.xml").write_text(xml(ptid="002_S_0413"), encoding="utf-8")
        scan, _ = scan_and_notes(adni)
        assert scan.reason == (f"unclear participant: the folder says {P}, the collection list or XML 002_S_0413")

    def test_a_participant_of_the_same_rid_is_the_same(self, adni: AdniTree) -> None:
        collection(adni, row(ptid="127_S_0295"))
        assert scan_and_notes(adni)[0].kept

    def test_another_date_than_the_folder_is_reported(self, adni: AdniTree) -> None:
        collection(adni, row(day="4/25/2006"), row("I2", day="4/19/2006"))
        adni.image(P, number="I2", sequence="FLAIR")
        scan, notes = scan_and_notes(adni)
        assert scan.kept
        assert "1 image has another date in the collection list or XML than in the folder" in notes

    def test_sex_and_age_against_adnimerge(self, adni: AdniTree) -> None:
        collection(adni, row(sex="M", age="68"))
        scan, notes = scan_and_notes(adni)
        assert (scan.sex, scan.kept) == ("F", True)
        assert "disagree on the sex of 1 scan, ADNIMERGE is used: I1001" in notes
        assert "disagree on the age of 1 scan by more than 2 years, ADNIMERGE is used: I1001" in notes

    def test_list_and_xml_that_differ(self, adni: AdniTree) -> None:
        collection(adni, row(day="4/17/2006"))
        (adni.root / "a.xml").write_text(xml(), encoding="utf-8")
        assert (
            "collection list and XML disagree on the date of 1 image, the XML is used: I1001" in scan_and_notes(adni)[1]
        )

    def test_a_list_that_names_an_image_twice(self, adni: AdniTree) -> None:
        collection(adni, row(), row(sex="M"))
        text = "collection lists describe 1 image twice and differently, the first row is used: I1001"
        assert text in scan_and_notes(adni)[1]

    def test_images_without_a_file_and_files_without_a_row(self, adni: AdniTree) -> None:
        collection(adni, row(), row("I7777"))
        _, notes = scan_and_notes(adni)
        assert "1 image of the collection list or XML without a file here: I7777" in notes
        assert "2 images here in no collection list or XML: I9998, I9999" in notes

    def test_age_and_sex_stand_in_where_adnimerge_is_silent(self, adni: AdniTree) -> None:
        collection(adni, row(sex="M", age="73"))
        adni.image(P)
        adni.row(P, AGE="", PTGENDER="")
        scan = adni.scan("I1001")
        assert (scan.sex, scan.age) == ("M", 73.0)


MAX_VOXEL_MM = 5.0


def header_problem(root: Path, image: str) -> str | None:
    return check_header(root, image, MAX_VOXEL_MM).problem


GOOD = image_bytes()


def with_header(**values: object) -> bytes:
    image = nib.Nifti1Image(np.ones((7, 9, 11), np.int16), np.eye(4))
    content = bytearray(image.to_bytes())
    header = nib.Nifti1Header.from_fileobj(io.BytesIO(bytes(content)), check=False)
    for name, value in values.items():
        header[name] = value
    return header.binaryblock + bytes(content[348:])


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("shape", [(7, 9, 11), (7, 9, 11, 1)])
def test_a_good_image_has_no_problem(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    content = image_bytes(shape)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert header_problem(tmp_path, name) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"hello", "not a readable NIfTI file"),
        (GOOD[:200], "not a readable NIfTI file"),
        (GOOD[:400], "truncated file: 400 bytes of 1738"),
        (b"\0" * 2000, "not a readable NIfTI file"),
        (image_bytes((7, 9, 11, 3)), "4D image where one 3D volume is needed: 7x9x11x3"),
        (image_bytes((7, 9)), "2D image where one 3D volume is needed: 7x9"),
        (image_bytes((7, 9, 11), np.complex64), "voxels are not plain numbers: data type complex64"),
        (with_header(pixdim=[1, 1, 0, 1, 0, 0, 0, 0]), "impossible voxel size: 1 x 0 x 1 mm"),
        (with_header(pixdim=[1, 900, 1, 1, 0, 0, 0, 0]), "impossible voxel size: 900 x 1 x 1 mm"),
        (with_header(sform_code=0), "no usable orientation in the header: sform absent, qform absent"),
        (with_header(srow_z=[0, 1, 0, 0]), "no usable orientation in the header: sform singular, qform absent"),
        (with_header(pixdim=[1, 1, 1, 6, 0, 0, 0, 0], srow_z=[0, 0, 6, 0]), "slices too thick: voxels of 1 x 1 x 6 mm"),
        (with_header(dim=[3, 32767, 32767, 32767, 1, 1, 1, 1]), "more voxels than a scan of a head can have"),
        (with_header(pixdim=[1, np.nan, 1, 1, 0, 0, 0, 0]), "impossible voxel size: nan x 1 x 1 mm"),
        (with_header(magic=b"xxx"), "not a readable NIfTI file"),
        (with_header(datatype=9999), "not a readable NIfTI file"),
    ],
)
def test_unusable_images(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.nii").write_bytes(content)
    problem = header_problem(tmp_path, "a.nii")
    assert problem is not None
    assert problem.startswith(reason)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(GOOD)[:30], GOOD, b"\x1f\x8b\x08garbage", gzip.compress(b"hello")],
    ids=["cut short", "not gzip", "garbage", "no image"],  # gzip writes the time: ids made of it differ between workers
)
def test_unreadable_gzip(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.nii.gz").write_bytes(content)
    assert (header_problem(tmp_path, "a.nii.gz") or "").startswith("not a readable NIfTI file")


NOISE = nib.Nifti1Image(np.random.default_rng(0).integers(0, 999, (30, 30, 30), np.int16), np.eye(4)).to_bytes()
"""More than the 8 KB that gzip reads for a header."""


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_a_gzip_file_cut_short_after_its_header_is_truncated(tmp_path: Path, share: float) -> None:
    whole = gzip.compress(NOISE)
    (tmp_path / "a.nii.gz").write_bytes(whole[: int(share * len(whole))])
    assert (header_problem(tmp_path, "a.nii.gz") or "").startswith("truncated file: its compressed content has no end")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(NOISE[:-7]), f"truncated file: {len(NOISE) - 7} bytes of {len(NOISE)} after decompression"),
        (gzip.compress(NOISE[:20000]) + gzip.compress(NOISE[20000:]), None),
        (gzip.compress(NOISE) + gzip.compress(b""), None),
        (gzip.compress(NOISE) + bytes(512), None),
    ],
    ids=["content cut before compression", "two streams", "with the empty last block of bgzip", "padded with zeros"],
)
def test_the_size_of_compressed_content(tmp_path: Path, content: bytes, problem: str | None) -> None:
    (tmp_path / "a.nii.gz").write_bytes(content)
    assert header_problem(tmp_path, "a.nii.gz") == problem


def test_links(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "good.nii").write_bytes(GOOD)
    (tmp_path / "secret.nii").write_bytes(GOOD)
    (root / "inside.nii").symlink_to("good.nii")
    (root / "outside.nii").symlink_to("../secret.nii")
    (root / "dangling.nii").symlink_to("nowhere.nii")
    (root / "loop.nii").symlink_to("loop.nii")
    assert header_problem(root, "inside.nii") is None
    assert (header_problem(root, "outside.nii") or "").startswith("a link to a file outside the input folder: ")
    assert header_problem(root, "dangling.nii") == "a link that leads nowhere"
    assert header_problem(root, "loop.nii") is not None


def test_what_a_header_says_twice_and_differently_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.nii").write_bytes(with_header(qform_code=1, qoffset_x=25.0))
    finding = check_header(tmp_path, "a.nii", MAX_VOXEL_MM)
    assert finding.problem is None
    assert finding.repairs == ("qform differs by up to 25.0 mm",)


@pytest.mark.parametrize("image", ["../secret.nii", "/etc/secret.nii", "a/../../secret.nii"])
def test_paths_outside_the_input(tmp_path: Path, image: str) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "secret.nii").write_bytes(GOOD)
    assert header_problem(tmp_path / "in", image) == "a path outside the input folder: give one relative to it"


def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "a.nii").write_bytes(GOOD)
    (tmp_path / "a.nii").chmod(0)
    with nobody(tmp_path):
        problem = header_problem(tmp_path, "a.nii")
    assert problem == "no permission to read it"


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
