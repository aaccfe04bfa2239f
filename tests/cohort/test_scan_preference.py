from __future__ import annotations

import random

import pytest
from adni_csv import write_csv
from input_trees import AdniTree

from heatlas.pipeline.cohort.adni.download import CRITERIA, preference
from heatlas.pipeline.cohort.adni.image_tables import ImageFacts, read_image_tables
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig

P = "002_S_0295"
MAYO = "loni_image,loni_series,series_type,series_selected,series_quality\n"


def rank(
    description: str = "MPRAGE",
    number: str = "I5",
    facts: ImageFacts | None = None,
    days: int | None = 3,
    **settings: str,
) -> tuple[int, ...]:
    return preference(description, number, facts or ImageFacts(), days, CohortConfig(**settings))  # type: ignore[arg-type]


PAIRS = [
    (rank(facts=ImageFacts(grade=3)), rank(facts=ImageFacts(failed="x"))),
    (rank("MPRAGE_Repeat"), rank("Accelerated_Sagittal_MPRAGE")),
    (rank(facts=ImageFacts(grade=3)), rank(facts=ImageFacts(selected=False))),
    (rank("MPRAGE_Repeat"), rank("MPR__GradWarp", facts=ImageFacts(grade=2))),
    (rank("MPR-R__GradWarp__B1_Correction__N3__Scaled"), rank("MPR__GradWarp__N3")),
    (rank("MPRAGE", facts=ImageFacts(field_strength=3.0)), rank("MPRAGE_Repeat", facts=ImageFacts(field_strength=1.5))),
    (rank(facts=ImageFacts(field_strength=1.5), days=80), rank(facts=ImageFacts(field_strength=3.0), days=1)),
    (rank(number="I99", days=1), rank(number="I5", days=2)),
    (rank(number="I5"), rank(number="I40")),
]


@pytest.mark.parametrize(("position", "pair"), list(enumerate(PAIRS)))
def test_each_point_goes_before_all_later_ones(position: int, pair: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    better, worse = pair
    assert better < worse
    assert next(i for i, (one, other) in enumerate(zip(better, worse, strict=True)) if one != other) == position
    assert len(better) == len(CRITERIA) == len(PAIRS)


def test_an_image_without_a_grade_is_none_the_worse_for_it() -> None:
    assert rank() == rank(facts=ImageFacts(grade=1, selected=True))


def test_protocol_and_field_strength_are_options() -> None:
    fast, full = "Accelerated_Sag_IR-FSPGR", "Sag_IR-SPGR"
    assert rank(full) < rank(fast)
    assert rank(fast, preferred_protocol="accelerated") < rank(full, preferred_protocol="accelerated")
    weak, strong = ImageFacts(field_strength=1.494), ImageFacts(field_strength=3.0)
    assert rank(facts=weak) < rank(facts=strong) < rank()
    settings = {"preferred_field_strength": "3"}
    assert rank(facts=strong, **settings) < rank(facts=weak, **settings) < rank(**settings)


def test_a_table_has_the_last_word_on_acceleration() -> None:
    assert rank("MPRAGE", facts=ImageFacts(accelerated=True)) > rank(
        "MPRAGE_GRAPPA", facts=ImageFacts(accelerated=False)
    )


def scans_of(adni: AdniTree, **settings: str) -> dict[str, Scan]:
    return {scan.scan_id: scan for scan in adni.read(**settings).table if scan.participant_id.endswith("0295")}


def test_a_failed_scan_is_dropped_with_the_table_and_grade(adni: AdniTree) -> None:
    adni.image(P, number="I1")
    adni.image(P, number="I2", sequence="MPRAGE_Repeat")
    adni.row(P)
    write_csv(adni.root / "mayoadirl_mri_imageqc_12_08_15.csv", MAYO + "I1,S1,T1,1,4\nI2,S2,T1,0,2\n")
    scans = scans_of(adni)
    assert scans["I1"].reason == ("failed ADNI's quality control: mayoadirl_mri_imageqc_12_08_15.csv series_quality 4")
    assert scans["I2"].kept


def test_a_failed_scan_may_be_kept_and_then_comes_last(adni: AdniTree) -> None:
    adni.image(P, number="I1")
    adni.image(P, number="I2", sequence="MPRAGE_Repeat")
    adni.row(P)
    write_csv(adni.root / "MRIPROT_01Jan2025.csv", "RID,LONIUID,PASS\n295,S1,0\n295,S7,-4\n")
    write_csv(adni.root / "MPRAGEMETA.csv", "SubjectID,ImageUID,SeriesID,MagStrength\n002_S_0295,1,1,1.5\n")
    scans = scans_of(adni, failed_quality="keep")
    assert scans["I1"].reason == ("another scan of this session is preferred: I2 (it passed ADNI's quality control)")
    (adni.root / "ADNI" / P / "MPRAGE_Repeat").rename(adni.root / "aside")
    assert scans_of(adni, failed_quality="keep")["I1"].kept


@pytest.mark.parametrize(
    "header",
    [
        MAYO,
        "RID,LONI_STUDY,LONI_SERIES,LONI_IMAGE,SERIES_TYPE,SERIES_SELECTED,SERIES_QUALITY,T1_ACCELERATED,FIELD_STRENGTH\n",
    ],
)
def test_old_and_new_columns_of_the_grades(adni: AdniTree, header: str) -> None:
    adni.image(P, number="I1")
    adni.image(P, number="I2")
    adni.image(P, number="I3")
    adni.row(P)
    if header == MAYO:
        rows = "I1,S1,T1,0,1\nI2,S2,T1,1,3\nI3,S3,T1,0,-1\n"
    else:
        rows = "295,9,1,1,MT1,FALSE,1,,3.0\n295,9,2,2,MT1,TRUE,3,,3.0\n295,9,3,3,MT1,FALSE,-1,,3.0\n"
    name = "MAYOADIRL_MRI_IMAGEQC_12_08_15_14Oct2024.csv" if header == MAYO else "MAYOADIRL_MRI_QUALITY_ADNI3_x.csv"
    write_csv(adni.root / name, header + rows)
    scans = scans_of(adni)
    assert [scan_id for scan_id, scan in scans.items() if scan.kept] == ["I2"]
    assert scans["I1"].reason == "another scan of this session is preferred: I2 (selected by the Mayo Clinic)"
    assert scans["I2"].field_strength == (1.5 if header == MAYO else 3.0)


def test_a_grade_belongs_to_all_that_was_made_from_a_series(adni: AdniTree) -> None:
    made = "MPR__GradWarp__B1_Correction__N3__Scaled"
    adni.image(P, number="I11", sequence=made, name="ADNI_MR_x_S1_I11.nii")
    adni.image(P, number="I12", sequence=made, name="ADNI_MR_x_S2_I12.nii")
    adni.image(P, number="I2")
    adni.row(P)
    write_csv(adni.root / "MAYOADIRL_MRI_IMAGEQC.csv", MAYO + "I1,S1,T1,0,3\nI2,S2,T1,1,1\n")
    scans = scans_of(adni)
    assert [scan_id for scan_id, scan in scans.items() if scan.kept] == ["I12"]


def test_mpragemeta_gives_visit_date_and_field_where_folders_do_not(adni: AdniTree) -> None:
    adni.image(P, None, "I1001")
    adni.image(P, None, "I1002")
    adni.row(P, "bl", "2006-04-10")
    adni.row(P, "m12", "2007-04-10")
    content = (
        "SubjectID,Visit,MagStrength,Sequence,ScanDate,StudyID,SeriesID,ImageUID,Orig/Proc\n"
        "002_S_0295,ADNI Screening,3.0,MPRAGE,3/20/2006,1,1,1001,Original\n"
        "002_S_0295,ADNI1/GO Month 12,1.5,MPRAGE Repeat,2007-04-12,2,2,1002.0,Original\n"
    )
    write_csv(adni.root / "mpragemeta_14Oct2024.csv", content)
    scans = scans_of(adni)
    assert [(s.session_id, s.field_strength) for s in scans.values()] == [("ses-M000", 3.0), ("ses-M012", 1.5)]


@pytest.mark.parametrize("content", ["", "RID,PASS\n295,0\n", "LONIUID,PASS\n"])
def test_a_table_of_grades_that_cannot_be_used_is_named(adni: AdniTree, content: str) -> None:
    adni.image(P)
    adni.row(P)
    write_csv(adni.root / "MRIQUALITY.csv", content)
    cohort = adni.read()
    assert any(note.startswith("MRIQUALITY.csv is not used: ") for note in cohort.notes)
    assert next(scan for scan in cohort.table if scan.scan_id == "I1001").kept


def test_the_choice_does_not_depend_on_the_order_of_files(adni: AdniTree) -> None:
    ranks = [rank("MPRAGE", f"I{n}", days=n % 3) for n in range(8)] + [rank("MPRAGE_Repeat", "I9")]
    shuffled = ranks[:]
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled) == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


def test_two_rows_of_one_series_count_as_the_worse(adni: AdniTree) -> None:
    write_csv(adni.root / "a.csv", MAYO + "I1,S7,T1,1,1\n,,T1,0,4\nI2,S7,T1,0,3\n")
    tables, notes = read_image_tables(adni.root, {"MAYOADIRL_MRI_IMAGEQC": "a.csv"})
    assert notes == ["a.csv: 1 row without image or series number left out"]
    assert (tables.of("I9", "x/S7/I9/a.nii").grade, tables.of("I9", "x/S7/I9/a.nii").selected) == (3, True)
    assert tables.of("I1", "x/I1/a.nii").grade == 1
    assert tables.of("brain", "x/brain.nii") == ImageFacts()
