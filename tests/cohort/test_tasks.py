"""Tasks beside two classes: labels, strata, and input that cannot be used."""

from __future__ import annotations

from collections import Counter

import pytest

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.people.splits import make_split, require_labels
from heatlas.pipeline.cohort.people.tasks import quantiles, task_of, with_labels
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError

SEVERAL = CohortConfig(classes=("CN", "MCI", "AD"))
AGE = CohortConfig(target="age")


def candidate(number: int, diagnosis: str | None = None, age: float | None = None, **columns: str) -> Candidate:
    return Candidate(Scan(f"sub-{number:02d}", None, f"I{number}", "x.nii", diagnosis=diagnosis, age=age), columns)


def table(labels: list[str]) -> ScanTable:
    return ScanTable(tuple(Scan(f"sub-{n:02d}", None, f"I{n}", None, label=label) for n, label in enumerate(labels)))


def test_a_number_is_the_label_and_a_scan_without_one_is_dropped_with_the_reason() -> None:
    found = with_labels([candidate(1, age=71.5), candidate(2), candidate(3, age=93.0)], AGE)
    assert [one.scan.label for one in found] == ["71.5", None, "89"]  # no table shows an age above 89
    assert found[1].scan.reason == "no value to predict: none in age"
    of_source = with_labels([candidate(1, ADAS13="12"), candidate(2, ADAS13="7.25")], CohortConfig(target="ADAS13"))
    assert [task_of(CohortConfig(target="ADAS13")).value(one.scan.label, "") for one in of_source] == [12.0, 7.25]


@pytest.mark.parametrize("text", ["old", "7,5", "nan", "inf", "70 years"])
def test_text_in_the_column_of_a_number_is_named(text: str) -> None:
    with pytest.raises(BadInputError, match=r"cohort.target = 'AGEBAND': sub-02 has .* not a finite number. Correct"):
        with_labels([candidate(1, AGEBAND="70"), candidate(2, AGEBAND=text)], CohortConfig(target="AGEBAND"))


def test_an_unknown_column_of_a_number_is_named_with_those_that_have_values() -> None:
    with pytest.raises(BadInputError, match=r"cohort.target = 'brainage'.*With values: ADAS, age\. .*--target COLUMN"):
        with_labels([candidate(1, age=70.0, ADAS="3")], CohortConfig(target="brainage"))


def test_three_classes_are_labelled_and_a_scan_outside_them_is_dropped() -> None:
    found = with_labels([candidate(n, name) for n, name in enumerate(["CN", "MCI", "AD", None])], SEVERAL)
    assert [one.scan.label for one in found] == ["CN", "MCI", "AD", None]
    assert "only networks of two classes" in (found[3].scan.reason or "")
    assert [task_of(SEVERAL).value(one.scan.label, "") for one in found[:3]] == [0, 1, 2]


def test_a_class_that_no_scan_has_is_named() -> None:
    with pytest.raises(BadInputError, match=r"cohort.classes\[1\] = 'MCI'.*AD \(1 scan\), CN \(1 scan\)"):
        with_labels([candidate(1, "CN"), candidate(2, "AD")], SEVERAL)


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
