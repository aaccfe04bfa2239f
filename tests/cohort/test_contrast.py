from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.people.tasks import participant_strata, shuffled_labels, task_of, with_labels
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.files import config_to_toml, load_config, read_config
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError


def candidate(person: int, known: str | None = None, kept: bool = True, **columns: str) -> Candidate:
    scan = Scan(f"sub-{person}", None, f"{person}", f"{person}.nii", diagnosis=known, site="11", kept=kept)
    return Candidate(scan, columns)


def labels(candidates: list[Candidate], **settings: str) -> list[str | None]:
    return [one.scan.label for one in with_labels(candidates, CohortConfig(**settings))]  # type: ignore[arg-type]


def test_labels_by_diagnosis_leave_mci_outside() -> None:
    people = [candidate(1, "CN"), candidate(2, "MCI"), candidate(3, "AD"), candidate(4), candidate(5, "AD", kept=False)]
    assert labels(people) == ["CN", None, "AD", None, None]


def test_scans_outside_are_dropped_with_what_they_hold_where_networks_are_not_asked_about_them() -> None:
    people = [
        candidate(1, "CN"),
        candidate(2, "MCI"),
        candidate(3, "AD"),
        candidate(4),
        candidate(5, "MCI", kept=False),
    ]
    scans = [one.scan for one in with_labels(people, CohortConfig(apply_outside_contrast=False))]
    assert [(scan.label, scan.kept) for scan in scans] == [
        ("CN", True), (None, False), ("AD", True), (None, False), (None, False)
    ]  # fmt: skip
    outside = "outside the contrast (cohort.apply_outside_contrast is off)"
    assert [scan.reason for scan in scans[1::2]] == [
        f"{outside}: MCI in diagnosis",
        f"{outside}: no value in diagnosis",
    ]
    assert scans[4].reason is None  # dropped before, for a reason of its own


def test_labels_by_any_column_of_the_source() -> None:
    people = [candidate(1, age_group="young"), candidate(2, age_group="old"), candidate(3, age_group="middle")]
    settings = {"contrast_column": "age_group", "negative": "young", "positive": "old"}
    assert labels(people, **settings) == ["young", "old", None]


def test_a_column_of_both_may_be_named_as_either_writes_it() -> None:
    people = [candidate(1, "CN", diagnosis="NL"), candidate(2, None, diagnosis="FTD")]
    assert labels(people, negative="NL", positive="FTD") == ["NL", "FTD"]
    assert labels(people, negative="CN", positive="FTD") == ["CN", "FTD"]


def test_an_unknown_value_is_named_with_those_that_exist() -> None:
    people = [candidate(n, age_group=group) for n, group in enumerate(["young", "old", "young"])]
    message = "cohort.positive = 'elder': column 'age_group' has no such value. It has old (1 scan), young (2 scans)."
    with pytest.raises(BadInputError) as caught:
        labels(people, contrast_column="age_group", negative="young", positive="elder")
    assert str(caught.value) == message


def test_values_that_may_name_people_are_counted_and_not_shown() -> None:
    people = [candidate(n, name=f"Smith {n}") for n in range(6)]
    with pytest.raises(BadInputError, match="It has 6 values of one scan each") as caught:
        labels(people, contrast_column="name", negative="Smith 0", positive="elder")
    assert "Smith 1" not in str(caught.value)


def test_an_unknown_column_is_named_with_those_that_exist() -> None:
    with pytest.raises(
        BadInputError, match=r"contrast_column = 'agegroup'.* With values: age_group, site\. Choose with --contrast"
    ):
        labels([candidate(1, age_group="old")], contrast_column="agegroup", negative="young", positive="old")


def scans_of(sequences: list[list[str | None]]) -> list[Scan]:
    return [
        Scan(f"sub-{person:03d}", f"ses-M{12 * visit:03d}", f"{person}-{visit}", None, label=label, age=60.0 + person)
        for person, sequence in enumerate(sequences)
        for visit, label in enumerate(sequence)
    ]


def classes_of(scans: list[Scan]) -> dict[str, int]:
    names = {scan.participant_id: scan.participant_id for scan in scans}
    return participant_strata(scans, task_of(CohortConfig()), names, folds=5)


def test_someone_with_both_classes_counts_as_positive() -> None:
    scans = scans_of([["CN", "AD"], ["CN", "CN"], ["AD", "CN"], [None, None]])
    assert classes_of(scans) == {"sub-000": 1, "sub-001": 0, "sub-002": 1}


progress = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any).map(lambda n: ["CN"] * n[0] + ["AD"] * n[1])


@given(st.lists(progress, min_size=1, max_size=12), st.integers(0, 1000))
def test_shuffling_keeps_all_but_the_labels_and_the_number_of_each_class(
    sequences: list[list[str | None]], seed: int
) -> None:
    scans = scans_of(sequences)
    shuffled = shuffled_labels(scans, seed)
    assert [(scan.name, scan.age) for scan in shuffled] == [(scan.name, scan.age) for scan in scans]
    before, after = classes_of(scans), classes_of(shuffled)
    assert Counter(before.values()) == Counter(after.values())
    for person in before:
        own = [scan.label for scan in shuffled if scan.participant_id == person]
        assert own == sorted(own, reverse=True)  # CN before AD: no one recovers
    assert shuffled_labels(scans, seed) == shuffled


@given(st.lists(st.sampled_from([["CN", "CN"], ["CN", "AD"], ["AD", "AD"]]), min_size=1, max_size=8))
def test_sequences_of_one_length_are_exchanged_whole(sequences: list[list[str | None]]) -> None:
    shuffled = shuffled_labels(scans_of(sequences), 1)
    received = [(shuffled[i].label, shuffled[i + 1].label) for i in range(0, len(shuffled), 2)]
    assert Counter(received) == Counter(map(tuple, sequences))


def test_shuffling_breaks_the_tie_between_label_and_person() -> None:
    scans = scans_of([["CN"]] * 100 + [["AD"]] * 100)
    agreement = sum(a.label == b.label for a, b in zip(scans, shuffled_labels(scans, 43), strict=True))
    assert 80 <= agreement <= 120  # 100 expected, standard deviation 7
    assert shuffled_labels(scans, 43) != shuffled_labels(scans, 44)


def test_scans_outside_the_contrast_stay_outside() -> None:
    scans = scans_of([["CN", None], [None, "AD"], [None]])
    assert [scan.label is None for scan in shuffled_labels(scans, 3)] == [scan.label is None for scan in scans]


def numbered(person: int, cdr: float | None = None, **columns: str) -> Candidate:
    return Candidate(Scan(f"sub-{person}", None, f"{person}", f"{person}.nii", cdr=cdr), columns)


def test_classes_by_number_have_readable_names_and_leave_the_others_outside() -> None:
    people = [numbered(1, 0.0), numbered(2, 0.5), numbered(3, 2.0), numbered(4)]
    config = CohortConfig(contrast_column="cdr", negative="0", positive=">=1")
    assert (config.negative, config.positive, config.labels) == ("cdr = 0", "cdr ≥ 1", ("cdr = 0", "cdr ≥ 1"))
    assert [one.scan.label for one in with_labels(people, config)] == ["cdr = 0", None, "cdr ≥ 1", None]
    assert replace(config, folds=3).labels == config.labels  # names are read as they are written
    assert CohortConfig(contrast_column="cdr", negative="0", positive="0.5").labels == ("0", "0.5")  # as values


def test_several_classes_by_number_hold_their_ends() -> None:
    people = [numbered(n, MMSE2=text) for n, text in enumerate(["27", "26", "20", "19.5", "-4", "unknown"])]
    config = CohortConfig(
        contrast_column="MMSE2", classes=(">=27", "<27 and >=20", "<20"), negative=">=27", positive="<20"
    )
    assert config.classes == ("MMSE2 ≥ 27", "MMSE2 ≥ 20 and < 27", "MMSE2 < 20")
    labelled = with_labels(people, config)
    assert [one.scan.label for one in labelled][:4] == [
        "MMSE2 ≥ 27", "MMSE2 ≥ 20 and < 27", "MMSE2 ≥ 20 and < 27", "MMSE2 < 20",
    ]  # fmt: skip
    assert [one.scan.kept for one in labelled] == [True] * 4 + [False] * 2  # -4 is ADNI's code for missing


def test_ages_are_compared_as_they_are_written_and_ranges_of_a_source_are_classes() -> None:
    old = [
        Candidate(Scan("sub-1", None, "1", "1.nii", age=96.0)),
        Candidate(Scan("sub-2", None, "2", "2.nii", age=60.0)),
    ]
    assert labels(old, contrast_column="age", negative="<80", positive=">=89") == ["age ≥ 89", "age < 80"]
    with pytest.raises(
        BadInputError, match=r"'age > 90': no scan is in this class; column 'age' has numbers from 60 to 96"
    ):
        labels(old, contrast_column="age", negative="<80", positive=">90")
    ranges = [candidate(1, age_group="<60"), candidate(2, age_group=">60"), candidate(3, age_group="60")]
    assert labels(ranges, contrast_column="age_group", negative="<60", positive=">60") == [
        "age_group < 60", "age_group > 60", None,
    ]  # fmt: skip
    with pytest.raises(BadInputError, match="column 'diagnosis' has no numbers"):
        labels([candidate(1, "CN"), candidate(2, "AD")], negative="=0", positive=">0")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (("<=0.5", ">=0.5"), "classes overlap: cdr ≤ 0.5 and cdr ≥ 0.5"),
        (("0", ">=0"), "classes overlap: cdr = 0 and cdr ≥ 0"),
        (("CN", ">=0.5"), "'CN' is no number or comparison, and cdr ≥ 0.5 is one"),
        (("0", ">2<1"), "no number can be in cdr > 2 and < 1"),
        ((">=0.5", "0.5<"), "'0.5<' is no number or comparison"),
    ],
)
def test_classes_by_number_that_overlap_or_are_none_are_refused(classes: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config(overrides={"cohort": {"contrast_column": "cdr", "negative": classes[0], "positive": classes[1]}})


def test_classes_by_number_are_the_same_in_the_settings_of_a_run(tmp_path: Path) -> None:
    config = load_config(overrides={"cohort": {"contrast_column": "cdr", "negative": "0", "positive": ">=0.5"}})
    (tmp_path / "config.toml").write_text(config_to_toml(config), encoding="utf-8")
    assert read_config(tmp_path / "config.toml") == config
