"""The contrast that is learned, other tasks, and cohorts that networks are applied to."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.cohort.applied import read_scan, to_apply
from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Fold, Split, fitting_folds, make_split, require_labels
from heatlas.pipeline.cohort.people.tasks import participant_strata, quantiles, shuffled_labels, task_of, with_labels
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.files import config_to_toml, load_config, read_config
from heatlas.pipeline.run.config.settings import CohortConfig, Config, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache


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


def test_the_diagnosis_at_the_scan_is_proposed_before_that_at_enrolment() -> None:
    people = [candidate(n, known, DX_bl=known, DX=known) for n, known in enumerate(["CN", "AD", "CN"])]
    with pytest.raises(BadInputError, match="Did you mean --contrast diagnosis=CN,AD\\?"):
        labels(people, contrast_column="group", negative="CN", positive="AD")


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


# Tasks beside two classes: labels, strata, and input that cannot be used.

SEVERAL = CohortConfig(classes=("CN", "MCI", "AD"))
AGE = CohortConfig(target="age")


def tasks_candidate(number: int, diagnosis: str | None = None, age: float | None = None, **columns: str) -> Candidate:
    return Candidate(Scan(f"sub-{number:02d}", None, f"I{number}", "x.nii", diagnosis=diagnosis, age=age), columns)


def table(labels: list[str]) -> ScanTable:
    return ScanTable(tuple(Scan(f"sub-{n:02d}", None, f"I{n}", None, label=label) for n, label in enumerate(labels)))


def test_a_number_is_the_label_and_a_scan_without_one_is_dropped_with_the_reason() -> None:
    found = with_labels([tasks_candidate(1, age=71.5), tasks_candidate(2), tasks_candidate(3, age=93.0)], AGE)
    assert [one.scan.label for one in found] == ["71.5", None, "89"]  # no table shows an age above 89
    assert found[1].scan.reason == "no value to predict: none in age"
    of_source = with_labels(
        [tasks_candidate(1, ADAS13="12"), tasks_candidate(2, ADAS13="7.25")], CohortConfig(target="ADAS13")
    )
    assert [task_of(CohortConfig(target="ADAS13")).value(one.scan.label, "") for one in of_source] == [12.0, 7.25]


@pytest.mark.parametrize("text", ["old", "7,5", "nan", "inf", "70 years"])
def test_text_in_the_column_of_a_number_is_named(text: str) -> None:
    with pytest.raises(BadInputError, match=r"cohort.target = 'AGEBAND': sub-02 has .* not a finite number. Correct"):
        with_labels(
            [tasks_candidate(1, AGEBAND="70"), tasks_candidate(2, AGEBAND=text)], CohortConfig(target="AGEBAND")
        )


def test_an_unknown_column_of_a_number_is_named_with_those_that_have_values() -> None:
    with pytest.raises(BadInputError, match=r"cohort.target = 'brainage'.*With values: ADAS, age\. .*--target COLUMN"):
        with_labels([tasks_candidate(1, age=70.0, ADAS="3")], CohortConfig(target="brainage"))


def test_three_classes_are_labelled_and_a_scan_outside_them_is_dropped() -> None:
    found = with_labels([tasks_candidate(n, name) for n, name in enumerate(["CN", "MCI", "AD", None])], SEVERAL)
    assert [one.scan.label for one in found] == ["CN", "MCI", "AD", None]
    assert "networks of several classes are not applied" in (found[3].scan.reason or "")
    assert [task_of(SEVERAL).value(one.scan.label, "") for one in found[:3]] == [0, 1, 2]


def test_a_class_that_no_scan_has_is_named() -> None:
    with pytest.raises(BadInputError, match=r"cohort.classes\[1\] = 'MCI'.*AD \(1 scan\), CN \(1 scan\)"):
        with_labels([tasks_candidate(1, "CN"), tasks_candidate(2, "AD")], SEVERAL)


def test_someone_with_scans_of_several_classes_counts_as_the_last_of_them() -> None:
    strata = task_of(SEVERAL).kind.strata
    assert strata({"a": [0, 1], "b": [2, 0], "c": [0]}, 5) == {"a": 1, "b": 2, "c": 0}


def test_every_fold_has_each_class_in_each_part() -> None:
    split = make_split(table(["CN", "MCI", "AD"] * 6), CohortConfig(classes=("CN", "MCI", "AD"), folds=3), 7)
    label = {f"sub-{n:02d}": ("CN", "MCI", "AD")[n % 3] for n in range(18)}
    for fold in split.folds:
        assert Counter(label[person] for person in fold.test) == {"CN": 2, "MCI": 2, "AD": 2}
        assert (
            {label[person] for person in fold.train}
            == {label[person] for person in fold.validation}
            == {*SEVERAL.classes}
        )


def test_every_fold_has_low_and_high_numbers_in_each_part() -> None:
    ages = [50 + n for n in range(30)]
    split = make_split(table([str(age) for age in ages]), CohortConfig(target="age", folds=5), 7)
    for fold in split.folds:
        own = [ages[int(person.removeprefix("sub-"))] for person in fold.test]
        assert len(own) == 6
        assert sorted((age - 50) // 6 for age in own) in ([0, 0, 1, 2, 3, 4], [0, 1, 1, 2, 3, 4], [0, 1, 2, 2, 3, 4],
                                                          [0, 1, 2, 3, 3, 4], [0, 1, 2, 3, 4, 4])  # fmt: skip


def test_quantiles_have_members_for_every_fold() -> None:
    strata = quantiles({f"p{n:02d}": [float(n)] for n in range(12)}, folds=3)
    assert Counter(strata.values()) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert max(quantiles({f"p{n}": [float(n)] for n in range(4)}, folds=4).values()) == 0


@pytest.mark.parametrize(
    ("config", "labels", "said"),
    [
        (SEVERAL, ["CN"] * 9 + ["MCI"] * 9 + ["AD"] * 2, r"labelled participants are CN 9, MCI 9, AD 2"),
        (SEVERAL, ["CN"] * 9 + ["AD"] * 9, r"3 classes are needed.*MCI 0"),
        (AGE, ["60", "70", "80"], r"cohort.folds = 5.*all 3"),
    ],
)
def test_too_few_participants_are_counted(config: CohortConfig, labels: list[str], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        make_split(table(labels), config, 1)


def test_a_task_answers_what_differs_between_kinds() -> None:
    two, several, age = task_of(CohortConfig()), task_of(SEVERAL), task_of(AGE)
    assert [task.classes for task in (two, several, age)] == [("CN", "AD"), ("CN", "MCI", "AD"), ()]
    assert [task.units for task in (two, several, age)] == [(1,), (0, 1, 2), ()]
    assert [task.scores for task in (two, age)] == [["probability"], ["prediction"]]
    assert several.scores == ["probability_CN", "probability_MCI", "probability_AD"]
    assert [several.is_control(label) for label in SEVERAL.labels] == [True, False, False]
    assert [several.explains(label) for label in SEVERAL.labels] == [False, False, True]
    assert age.is_control("70")
    assert age.explains("70")
    assert several.ranks_by(["CN", "MCI", "AD"], "abc") == [0.0, 0.0, 1.0]
    assert age.ranks_by(["60", "70", "80"], "abc") == pytest.approx([-(1.5**0.5), 0.0, 1.5**0.5])
    assert age.ranks_by(["70", "70"], "ab") == [0.0, 0.0]
    assert [task.kind.of_person([0.0, 2.0, 1.0]) for task in (several, age)] == [2.0, 1.0]


def test_a_part_in_which_all_have_one_number_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"fold 2: the validation part .* fewer than two values of age"):
        require_labels(2, "validation", ["70", "70"], task_of(AGE))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cohort": {"classes": ["CN", "AD"]}}, "at least three classes"),
        ({"cohort": {"classes": ["MCI", "CN", "AD"]}}, "must begin with cohort.negative"),
        ({"cohort": {"classes": ["CN", "MCI", "pMCI"]}}, "hold cohort.positive"),
        ({"cohort": {"target": "age", "classes": ["CN", "MCI", "AD"]}}, "exclude each other"),
        ({"cohort": {"target": "age"}, "attribution": {"start_value": "probability"}}, "not defined for a number"),
        ({"cohort": {"target": "age", "split": "single"}}, "counts participants per class"),
        ({"training": {"devices": 5}}, "training.devices must lie in 1..batch_size"),
        ({"training": {"augmentation": {"noise_probability": 2.0}}}, "noise_probability must lie between"),
        ({"training": {"augmentation": {"gamma": [1.5, 0.5]}}}, "gamma must be in rising order"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_config(overrides=settings)


# One image as a cohort, and cohorts without labels of both classes.


def image(path: Path, affine: np.ndarray | None = None, values: np.ndarray | None = None, codes: int = 1) -> Path:
    values = np.random.default_rng(1).random((20, 24, 22), np.float32) if values is None else values
    made = nib.Nifti1Image(values, np.diag([8.0, 8.0, 8.0, 1.0]) if affine is None else affine)
    made.set_sform(made.affine, codes)
    made.set_qform(made.affine, codes)
    nib.save(made, path)
    return path


CONFIG = CohortConfig(max_voxel_mm=10.0)


def test_one_image_is_a_cohort_of_one_person_of_whom_nothing_is_known(tmp_path) -> None:
    cohort = read_scan(image(tmp_path / "sub-07_ses-M12_T1w.nii.gz"), CONFIG)
    (scan,) = cohort.table.kept
    assert (scan.participant_id, scan.session_id, scan.image) == ("sub-07", "ses-M12", "sub-07_ses-M12_T1w.nii.gz")
    assert (scan.entry, scan.label, scan.age, scan.sex) == ("scan", None, None, None)
    assert cohort.root == tmp_path
    assert cohort.notes[-1].endswith("no account of the person's age and sex; add --age YEARS and --sex F or M")


@pytest.mark.parametrize(
    ("age", "sex", "unsaid"),
    [(72.0, "F", []), (72.0, None, ["sex; add --sex F or M"]), (None, "M", ["age; add --age YEARS"])],
)
def test_age_and_sex_of_one_image_are_facts_and_no_label(tmp_path, age, sex, unsaid) -> None:
    config = dataclasses.replace(CONFIG, target="age")
    cohort = read_scan(image(tmp_path / "scan.nii.gz"), config, age=age, sex=sex)
    (scan,) = cohort.table.kept
    assert (scan.age, scan.sex, scan.label) == (age, sex, None)
    assert [note.partition("the person's ")[2] for note in cohort.notes if "no account" in note] == unsaid


def test_ages_of_one_image_are_written_as_89_at_most(tmp_path) -> None:
    cohort = read_scan(image(tmp_path / "scan.nii.gz"), CONFIG, age=93.0, sex="F")
    assert cohort.table.kept[0].age == 89.0
    assert "ages above 89" in " ".join(cohort.notes)


def test_the_name_says_whether_the_brain_was_extracted(tmp_path) -> None:
    assert read_scan(image(tmp_path / "sub-07_desc-brain_T1w.nii.gz"), CONFIG).table.kept[0].entry == "brain"
    plain = image(tmp_path / "scan.nii.gz")
    assert read_scan(plain, dataclasses.replace(CONFIG, start_at="brain")).table.kept[0].entry == "brain"


def test_someone_of_the_run_is_refused_under_the_names_of_sources(tmp_path) -> None:
    table = tmp_path / "splits.tsv"
    table.write_text("participant_id\nsub-ADNI131S0295\n")
    config = dataclasses.replace(CONFIG, without=str(table))
    with pytest.raises(BadInputError, match="sub-ADNI002S0295, who is among the people of the run"):
        read_scan(image(tmp_path / "ADNI_002_S_0295_MR.nii.gz"), config)
    assert read_scan(image(tmp_path / "ADNI_002_S_0296_MR.nii.gz"), config).table.kept
    table.unlink()
    with pytest.raises(BadInputError, match=r"cohort.without = '.*splits.tsv': no such file, from .*Correct its path"):
        read_scan(image(tmp_path / "ADNI_002_S_0296_MR.nii.gz"), config)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.with_name("notes.txt"), "not an image"),
        (lambda path: image(path, codes=0), "no usable orientation in the header"),
        (lambda path: image(path, values=np.zeros((4, 4, 4, 2), np.float32)), "4D image where one 3D volume"),
        (lambda path: image(path, values=np.ones((20, 24, 22), np.float32)), "every voxel is 1"),
        (lambda path: image(path, values=np.full((20, 24, 22), np.nan, np.float32)), "voxels are NaN or infinite"),
        (lambda path: image(path, values=np.arange(-1e4, 560, dtype=np.float32).reshape(20, 24, 22)), "are negative"),
        (lambda path: image(path, np.diag([0.8, 0.8, 0.8, 1.0])), "covers only 16 x 19 x 18 mm, less than a brain"),
        (lambda path: image(path.with_name("sub-1_space-MNI305_T1w.nii.gz")), "in another space"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(tmp_path, make, said) -> None:
    path = make(tmp_path / "scan.nii.gz")
    path.touch()
    with pytest.raises(BadInputError, match=said) as raised:
        read_scan(path, CONFIG)
    assert str(raised.value).startswith(str(path))
    assert len(str(raised.value).splitlines()) == 1


def test_an_image_that_ends_too_early_is_refused_before_it_is_registered(tmp_path) -> None:
    path = image(tmp_path / "scan.nii.gz")
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(BadInputError, match="truncated file"):
        read_scan(path, CONFIG)


def cohort_of(**labels: int) -> InputCohort:
    scans = [
        Scan(f"sub-{label}{number}", None, f"{label}{number}", f"{label}{number}.nii", diagnosis=label,
             label=None if label == "MCI" else label)
        for label, count in labels.items() for number in range(count)
    ]  # fmt: skip
    return InputCohort(Path("/input"), "bids", ScanTable(tuple(scans)), ())


@pytest.mark.parametrize(
    ("labels", "counts"), [({"AD": 5}, "CN 0, AD 5"), ({"AD": 5, "CN": 2}, "CN 2, AD 5"), ({"MCI": 3}, "CN 0, AD 0")]
)
def test_without_three_people_of_each_class_nobody_has_a_label(labels, counts) -> None:
    config = Config()
    config = dataclasses.replace(config, attribution=dataclasses.replace(config.attribution, keep_maps="none"))
    cohort, settings = to_apply(cohort_of(**labels), config)
    assert {scan.label for scan in cohort.table} == {None}
    assert {scan.diagnosis for scan in cohort.table} == set(labels)
    assert counts in cohort.notes[-1]
    assert settings.attribution.keep_maps == "all"  # the map of a person is what is asked for


def test_with_both_classes_folds_are_as_many_as_they_can_be() -> None:
    wanted = cohort_of(CN=4, AD=3)
    cohort, settings = to_apply(wanted, Config())
    assert cohort is wanted
    assert settings.cohort.folds == 3
    assert to_apply(cohort_of(CN=40, AD=30), Config())[1] == Config()
    assert [fitting_folds(n, 10) for n in (3, 4, 5, 100)] == [3, 4, 5, 10]


def test_a_task_of_several_classes_needs_its_labels(tmp_path) -> None:
    config = dataclasses.replace(Config(), cohort=dataclasses.replace(SEVERAL, max_voxel_mm=10.0))
    with pytest.raises(BadInputError, match=r"networks that tell several classes are applied to cohorts with .* only"):
        to_apply(read_scan(image(tmp_path / "scan.nii.gz"), config.cohort), config)


def test_an_image_of_freesurfer_is_of_the_person_whose_folder_it_lies_in(tmp_path) -> None:
    (tmp_path / "sub-01" / "mri").mkdir(parents=True)
    path = tmp_path / "sub-01" / "mri" / "brain.mgz"
    nib.save(nib.MGHImage(np.arange(5544, dtype=np.float32).reshape(14, 18, 22), np.diag([7, 7, 7, 1])), path)
    (scan,) = read_scan(path, CONFIG).table.kept
    assert (scan.participant_id, scan.scan_id, scan.entry) == ("sub-01", "sub-01", "brain")
    known = tmp_path / "known.tsv"
    known.write_text("participant_id\nsub-01\n")
    with pytest.raises(BadInputError, match="sub-01, who is among the people of the run"):
        read_scan(path, dataclasses.replace(CONFIG, without=str(known)))


@pytest.fixture
def applied_to_copies(tmp_path: Path) -> tuple[InputCohort, Config]:
    """Three new people: copies of someone trained with and of someone who was not, and a scan of someone else."""
    run = RunLayout(tmp_path / "run")
    for folder in (tmp_path / "old", tmp_path / "new", run.logs):
        folder.mkdir(parents=True)
    run.config.write_text('[run]\ninput = "../old"\npreset = "standard"\n')
    Split((Fold(0, ("sub-a",), (), ("sub-b",)),)).write(run)
    ScanTable(tuple(Scan(f"sub-{name}", None, name, f"{name}.nii") for name in "abc")).write(run)
    digests = DigestCache(run.digests)
    for name, content in (("a", "one"), ("b", "two"), ("c", "six")):
        (tmp_path / "old" / f"{name}.nii").write_text(content)
        digests.stamp(tmp_path / "old" / f"{name}.nii")
    digests.save()
    shutil.rmtree(tmp_path / "old")  # the scans of a run need not be there
    for name, content in (("x", "one"), ("y", "six"), ("z", "ten")):
        (tmp_path / "new" / f"{name}.nii").write_text(content)
    scans = ScanTable(tuple(Scan(f"sub-{name}", None, name, f"{name}.nii") for name in "xyz"))
    config = dataclasses.replace(Config(), training=TrainingConfig(networks_of=str(run.root)))
    config = dataclasses.replace(config, cohort=CohortConfig(without=str(SPLITS_TABLE.path(run))))
    return InputCohort(tmp_path / "new", "bids", scans, ()), config


def test_copies_of_people_of_the_run_are_left_out_under_any_id(applied_to_copies) -> None:
    cohort, config = applied_to_copies
    table = to_apply(cohort, config)[0].table
    assert [scan.participant_id for scan in table.kept] == ["sub-y", "sub-z"]
    assert (
        table.scans[0].reason == "has the same image, byte for byte, as a person of the run whose networks are applied"
    )
    alone = dataclasses.replace(cohort, table=ScanTable(cohort.table.scans[:1]))
    with pytest.raises(BadInputError, match=r"byte for byte.*: sub-x\. Give scans of other people"):
        to_apply(alone, config)


def test_copies_among_new_people_are_named(applied_to_copies) -> None:
    cohort, config = applied_to_copies
    cohort, _ = to_apply(cohort, dataclasses.replace(config, cohort=CohortConfig()))
    assert len(cohort.table.kept) == 3
    assert any("byte for byte" in note and note.endswith(": sub-x") for note in cohort.notes)
