"""Which scans enter: rules, preference, and images under several names."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from input_trees import AdniTree, BidsTree, image_bytes, write_csv

from heatlas.pipeline.cohort.adni.download import CRITERIA, preference
from heatlas.pipeline.cohort.adni.image_tables import ImageFacts, read_image_tables
from heatlas.pipeline.cohort.candidates import Candidate, same_images
from heatlas.pipeline.cohort.people.inclusion import apply_rule, steps
from heatlas.pipeline.cohort.people.splits import make_split
from heatlas.pipeline.cohort.reading import ScanSelection, read_cohort
from heatlas.pipeline.cohort.records import FollowUp, Scan
from heatlas.pipeline.cohort.sharing import Disguise
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.inclusion import read_rule
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError

# Inclusion by rule: what is met, what is unknown, what is refused, in every kind of input.

AGES = {"a": 55.0, "b": 60.0, "c": 75.0, "d": None, "e": 95.0}
CDRS = {"a": 0.0, "b": 0.5, "c": None, "d": 1.0, "e": 0.0}


def person(name: str, kept: bool = True, **columns: str) -> Candidate:
    scan = Scan(
        f"sub-{name}", None, name, f"{name}.nii", age=AGES[name], cdr=CDRS[name], sex="F" if name in "ab" else "M",
        kept=kept, reason=None if kept else "empty file",
    )  # fmt: skip
    return Candidate(scan, columns)


PEOPLE = [person(name) for name in AGES]


def kept_by(rule: str, people: list[Candidate] = PEOPLE) -> str:
    return "".join(one.scan.scan_id for one in apply_rule(people, rule) if one.scan.kept)


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("age >= 60", "bce"),
        ("age > 60", "ce"),
        ("60 <= age < 80", "bc"),
        ("age == 60 or age == 75", "bc"),
        ("age in [55, 60]", "ab"),
        ("age not in (55, 60)", "ce"),  # a missing age is not "not 55"
        ("not age < 60", "bce"),
        ("not (age < 60)", "bce"),
        ("cdr > 0 or sex == 'F'", "abd"),  # c: unknown or false is unknown
        ("age >= 60 and cdr >= 0", "be"),
        ("not (age >= 60 and cdr >= 0)", "a"),  # c and d are unknown
        ("cdr != 0", "bd"),
        ("sex in ['F']", "ab"),
        ("AGE > -1 and Sex != 'F'", "ce"),
        ("age > 89", ""),  # ages are capped at 89 in every table
    ],
)
def test_rules_by_kleenes_logic_on_missing_values(rule: str, left: str) -> None:
    if left:
        assert kept_by(rule) == left
    else:
        with pytest.raises(BadInputError, match="keeps none of 5 scans"):
            apply_rule(PEOPLE, rule)


def test_an_id_of_a_scan_that_was_dropped_before_is_known() -> None:
    assert kept_by("scan_id not in ['a', 'b']", [person("a", kept=False), person("b"), person("c")]) == "c"


def test_reason_is_the_first_part_that_is_not_met_and_says_whether_the_value_is_missing() -> None:
    people = [*PEOPLE, person("a", kept=False)]
    reasons = [one.scan.reason for one in apply_rule(people, "age >= 60 and cdr >= 0")]
    assert reasons == [
        "not included (age >= 60)", None, "not included (cdr >= 0), as the value is missing",
        "not included (age >= 60), as the value is missing", None, "empty file",
    ]  # fmt: skip


def test_each_part_is_counted_and_other_reasons_stand_apart() -> None:
    people = [*PEOPLE, person("a", kept=False)]
    scans = [one.scan for one in apply_rule(people, "age >= 60 and cdr >= 0")]
    table = pd.DataFrame({"kept": [s.kept for s in scans], "reason": [s.reason for s in scans]})
    made = steps(table, read_rule("age >= 60 and cdr >= 0"))
    assert [(one.part, len(one.left), one.not_met, one.unknown) for one in made] == [
        ("age >= 60", 3, 1, 1),
        ("cdr >= 0", 2, 0, 1),
    ]


def test_columns_of_the_source_and_of_the_clinical_table() -> None:
    people = [person("a", nWBV="0.71", **{"MR Delay": "0"}), person("b", nWBV="0.80", **{"MR Delay": "300"})]
    assert kept_by("nwbv > 0.75", people) == "b"
    assert kept_by("`MR Delay` == 0", people) == "a"
    seen = [Candidate(one.scan, follow_up=FollowUp(n == 1, None, 24.0)) for n, one in enumerate(people)]
    assert kept_by("converted == 1", seen) == "b"
    assert kept_by("years_since_first_scan == 0", people) == "ab"


def test_codes_of_adni_for_missing_are_missing() -> None:
    people = [person("a", FAQ2="-4"), person("b", FAQ2="3")]
    assert kept_by("FAQ2 < 5", people) == "b"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("agee >= 60", r"no scan has a value in agee. Did you mean age\? Columns with values: age, cdr, "),
        ("apoe4 == 1", "no scan has a value in apoe4"),
        ("sex > 1", r"sex holds text \(M, F\), not numbers; compare it with quoted text: sex == \"F\""),
        ("age == '60'", r"age holds numbers \(55.0, 60.0, 75.0, 95.0|89.0\); write them without quotes"),
        ("sex > 'F'", "text is compared by ==, != or in"),
        ("label == 'AD'", "no scan has a value in label"),
        (
            "age >= 60 and sex == 'male'",
            r"keeps none of 5 scans: age >= 60 leaves 3 \(1 not met, 1 unknown\); sex == 'male' leaves 0 \(3 not met, "
            r"0 unknown\). In the input, sex: M, F. Correct the rule",
        ),
        ("age > 100", r"age > 100 leaves 0 \(4 not met, 1 unknown\). In the input, age: 55 to 89"),
        (
            "scan_id not in ['a', 'aa'] and age > 50",  # one is known
            r"no scan has the scan_id aa. Did you mean a\? The 5 ids of the input begin a, b, c\.$",
        ),
        ("Participant_ID != 'b'", r"no scan has the participant_id b. Did you mean sub-b\? The 5 ids"),
        ("age > 50 or participant_id in ['sub-x', 'sub-yy']", "no scan has the participant_id sub-x, sub-yy. Did"),
    ],
)
def test_rules_that_do_not_fit_the_input_are_refused_with_the_remedy(rule: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        apply_rule(PEOPLE, rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("age >= ", "is no valid expression"),
        ("age = 60", "is no valid expression: equality is written =="),
        ("age >= 60and cdr == 0", "is no valid expression"),
        ("age", "names age without comparing it"),
        ("60 > 50", "compares no column"),
        ("age >= 60 + 1", r"holds 60 \+ 1, which is no column"),
        ("age.real > 60", "holds age.real"),
        ("__import__('os').system('true') == 0", "which is no column, no number and no quoted text"),
        ("(lambda: 1)() > age", "which is no column"),
        ("age in ages", "needs a list after in"),
        ("age in [60, 'x']", "needs numbers only or quoted text only"),
        ("age is 60", "equality is written =="),
        ("age > True", "holds True"),
        ("age > None", "holds None"),
        ("[x for x in age] == 1", "which is no column"),
        ("age if cdr > 0 else sex", "which is not a comparison"),
        ("(" * 300 + "age > 1" + ")" * 300, "is no valid expression"),
        ("age > 1 or " * 200 + "age > 1", "more than 1000 characters"),
        ("age > 1\x00", "without control characters"),
    ],
)
def test_anything_but_comparisons_is_refused_before_anything_is_read(rule: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config(overrides={"cohort": {"include": rule}})


def test_rules_may_not_write_out_what_pseudonyms_hide() -> None:
    with pytest.raises(UsageError, match=r"where cohort\.include names them"):
        load_config(overrides={"cohort": {"include": "site != '11'"}, "privacy": {"pseudonyms": ["sites"]}})


def test_adni_and_bids_are_included_alike(adni, bids) -> None:
    for number, (ptid, age, dx) in enumerate(
        [("002_S_0001", "61", "CN"), ("002_S_0002", "58", "Dementia"), ("002_S_0003", "70", "Dementia")]
    ):
        adni.image(ptid, number=f"I100{number}")
        adni.row(ptid, dx=dx, AGE=age)
    table = adni.read(as_is=True, include="age >= 60").table
    assert [scan.participant_id for scan in table.kept] == ["sub-ADNI002S0001", "sub-ADNI002S0003"]
    bids.table(
        "participants.tsv", "participant_id diagnosis age group", "sub-1 CN 61 x", "sub-2 AD 58 y", "sub-3 AD 70 y"
    )
    for one in "123":
        bids.image(f"sub-{one}/anat/sub-{one}_T1w.nii")
    table = bids.read(include="age >= 60 and group == 'y'").table
    assert [scan.participant_id for scan in table.kept] == ["sub-3"]


def test_the_image_of_a_session_is_chosen_among_those_included(bids) -> None:
    """Otherwise the preferred image would be left out, and the session with it."""
    bids.table("participants.tsv", "participant_id diagnosis", "sub-1 CN", "sub-2 AD")
    bids.image("sub-1/anat/sub-1_T1w.nii")
    bids.image("sub-2/anat/sub-2_run-1_T1w.nii")
    bids.image("sub-2/anat/sub-2_run-2_T1w.nii")
    table = bids.read(include="scan_id != 'sub-2_run-1_T1w'").table
    assert [scan.scan_id for scan in table.kept] == ["sub-1_T1w", "sub-2_run-2_T1w"]


def test_too_few_people_after_inclusion_are_said_to_be_left_by_the_rule(bids) -> None:
    rows = [f"sub-{n} {'AD' if n % 2 else 'CN'} {60 + n}" for n in range(12)]
    bids.table("participants.tsv", "participant_id diagnosis age", *rows)
    for n in range(12):
        bids.image(f"sub-{n}/anat/sub-{n}_T1w.nii")
    for rule, message in (
        ("age > 66", r"labelled participants are CN 2, AD 3.* are left by cohort.include = 'age > 66'"),
        ("age > 70", r"two classes are needed.*CN 0, AD 1.* are left by cohort.include = 'age > 70'"),
    ):
        config = CohortConfig(folds=3, include=rule)
        with pytest.raises(BadInputError, match=message):
            make_split(bids.read(include=rule).table, config, 43)


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


# One image that enters under several names: copied, linked, of other people or of another visit.

SEX = {"contrast_column": "sex", "negative": "F", "positive": "M"}


def head(name: str) -> bytes:
    """An image of one size for everyone, of other content for every name."""
    content = bytearray(image_bytes((40, 50, 60)))
    content[352:] = np.random.default_rng(sum(name.encode())).bytes(len(content) - 352)
    return bytes(content)


def four_people(bids: BidsTree) -> None:
    for name in "abcd":
        bids.image(f"sub-{name}/anat/sub-{name}_T1w.nii", head(name))
    bids.table(
        "participants.tsv", "participant_id sex", *(f"sub-{name} {'FM'[i % 2]}" for i, name in enumerate("abcd"))
    )


def linked(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


WAYS = {
    "copied": lambda path, other: path.write_bytes(other.read_bytes()),
    "linked": linked,
    "one byte differs": lambda path, other: path.write_bytes(other.read_bytes()[:-1] + b"\x99"),
    "the first bytes differ": lambda path, other: path.write_bytes(
        other.read_bytes()[:400] + b"\x99\x98\x97" + other.read_bytes()[403:]
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_image_of_two_people(bids: BidsTree, way: str) -> None:
    four_people(bids)
    WAYS[way](bids.root / "sub-b/anat/sub-b_T1w.nii", bids.root / "sub-d/anat/sub-d_T1w.nii")
    cohort = bids.read(**SEX)
    said = (
        "1 image is used as several scans, byte for byte; find out whom each shows and remove the copies: sub-b = sub-d"
    )
    same = way in ("copied", "linked")
    assert cohort.same_images == (said if same else "")
    assert (said in cohort.notes) == same
    assert len(cohort.table.kept) == 4


def test_images_of_two_visits_and_of_several_groups(bids: BidsTree) -> None:
    scans = [("a", "1", "x"), ("a", "2", "x"), ("b", "1", "y"), ("b", "2", "z"), ("c", "1", "y"), ("d", "1", "y")]
    for person, visit, content in scans:
        bids.image(f"sub-{person}/ses-{visit}/anat/sub-{person}_ses-{visit}_T1w.nii", head(content))
    bids.table("participants.tsv", "participant_id sex", "sub-a F", "sub-b M", "sub-c F", "sub-d M")
    said = bids.read(**SEX).same_images
    assert said.startswith("2 images are used as several scans")
    assert said.endswith(": sub-a_ses-1 = sub-a_ses-2, sub-b_ses-1 = sub-c_ses-1 = sub-d_ses-1")


def test_an_adni_download(adni: AdniTree) -> None:
    for n, ptid in enumerate(("002_S_0295", "002_S_0300", "002_S_0301"), 1):
        adni.image(ptid, "2006-04-18", f"I{n}", content=head("xyx"[n - 1]))
        adni.row(ptid, dx="CN")
    adni.both_classes()
    adni.image("999_S_9999", number="I9999", content=head("q"))
    assert adni.read().same_images.endswith(": sub-ADNI002S0295_ses-M000 = sub-ADNI002S0301_ses-M000")


def test_pseudonyms_are_kept(bids: BidsTree) -> None:
    four_people(bids)
    WAYS["copied"](bids.root / "sub-b/anat/sub-b_T1w.nii", bids.root / "sub-d/anat/sub-d_T1w.nii")
    disguise = Disguise("0123456789abcdef0123456789abcdef", ("ids", "sites"))
    cohort = read_cohort(bids.root, CohortConfig(**SEX), 43, ScanSelection(disguise=disguise))
    names = cohort.same_images.rpartition(": ")[2].split(" = ")
    assert len(names) == 2
    assert set(names) < {scan.participant_id for scan in cohort.table}
    assert not {"sub-b", "sub-d"} & set(names)


def test_whole_files_are_read_only_where_size_and_middle_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"a": b"1" * 99, "b": b"1" * 98, "c": b"2" * 200_000, "d": b"3" + b"2" * 199_999, "e": b"3" * 200_000}
    scans = [Scan(f"sub-{name}", None, name, name) for name in contents]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    read: list[str] = []
    from heatlas.pipeline.cohort import candidates as module

    monkeypatch.setattr(module, "file_digest", lambda path: read.append(path.name))
    module.same_images(tmp_path, scans)
    assert read == ["c", "d"]
    assert same_images(tmp_path, [dataclasses.replace(scans[0], image="gone")]) == []
