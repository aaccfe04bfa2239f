"""Inclusion by rule: what is met, what is unknown, what is refused, in every kind of input."""

from __future__ import annotations

import pandas as pd
import pytest

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.people.inclusion import apply_rule, steps
from heatlas.pipeline.cohort.people.splits import make_split
from heatlas.pipeline.cohort.records import FollowUp, Scan
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.inclusion import read_rule
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError

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
