"""Collection lists and per-image XML, alone, together, and against the folders."""

from __future__ import annotations

import dataclasses
import re
from datetime import date
from pathlib import Path

import pytest
from input_trees import AdniTree

from heatlas.pipeline.cohort.adni.image_tables import MAX_BYTES, ImageRecord, parse_image_xml, read_image_xmls
from heatlas.pipeline.cohort.records import Scan

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
