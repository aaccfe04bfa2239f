from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatlas.pipeline.cohort.people.splits import Fold, Split, make_split, require_disjoint
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError


def table(negatives: int, positives: int, both: int = 0, unlabelled: int = 0) -> ScanTable:
    scans = []
    people = ["CN"] * negatives + ["AD"] * positives + ["both"] * both + [None] * unlabelled
    for number, kind in enumerate(people):
        # As many scans as the number says, modulo 3, so that counting scans and counting people differ.
        for visit in range(2 if kind == "both" else 1 + number % 3):
            label = ["CN", "AD"][visit] if kind == "both" else kind
            scans.append(Scan(f"sub-{number:04d}", f"ses-M{12 * visit:03d}", f"{number}-{visit}", "a.nii", label=label))
    return ScanTable(tuple(scans))


def classes(scans: ScanTable) -> dict[str, str]:
    positive = {scan.participant_id for scan in scans if scan.label == "AD"}
    return {scan.participant_id: "AD" if scan.participant_id in positive else "CN" for scan in scans.labelled}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 20), st.integers(0, 12), st.integers(2, 6), st.integers(0, 10**6), st.floats(0.05, 0.6))
def test_folds_partition_stratify_and_repeat(more: int, both: int, folds: int, seed: int, share: float) -> None:
    scans = table(folds + 2 + more, folds + 2, both, unlabelled=3)
    config = CohortConfig(folds=folds, validation_fraction=share)
    split = make_split(scans, config, seed)
    kinds = classes(scans)
    assert [fold.index for fold in split.folds] == list(range(folds))
    assert sorted(person for fold in split.folds for person in fold.test) == sorted(kinds)
    for fold in split.folds:
        assert sorted(fold.train + fold.validation + fold.test) == sorted(kinds)
        for part in (fold.train, fold.validation, fold.test):
            assert {kinds[person] for person in part} == {"CN", "AD"}
        for kind in ("CN", "AD"):
            everyone = sum(value == kind for value in kinds.values())
            tested = sum(kinds[person] == kind for person in fold.test)
            validating = sum(kinds[person] == kind for person in fold.validation)
            assert tested in (everyone // folds, -(-everyone // folds))
            assert validating == min(max(round(share * (everyone - tested)), 1), everyone - tested - 1)
    assert make_split(scans, config, seed) == split


def test_another_seed_is_another_split() -> None:
    scans = table(20, 20)
    one, other = (make_split(scans, CohortConfig(), seed) for seed in (1, 2))
    assert [fold.test for fold in one.folds] != [fold.test for fold in other.folds]
    assert [fold.validation for fold in one.folds] != [fold.validation for fold in other.folds]


def test_someone_with_both_classes_is_stratified_as_positive() -> None:
    scans = table(5, 0, both=5)
    for fold in make_split(scans, CohortConfig(), 43).folds:
        assert len(fold.test) == 2
        assert sum(classes(scans)[person] == "AD" for person in fold.test) == 1


def test_the_single_split_of_the_founding_study() -> None:
    scans = table(151, 170, both=23)
    (fold,) = make_split(scans, CohortConfig(split="single"), 43).folds
    kinds = classes(scans)
    counts = [
        [sum(kinds[p] == kind for p in part) for kind in ("CN", "AD")]
        for part in (fold.train, fold.validation, fold.test)
    ]
    assert counts == [[103, 145], [18, 18], [30, 30]]
    assert make_split(scans, CohortConfig(split="single"), 43).folds == (fold,)
    assert make_split(scans, CohortConfig(split="single"), 44).folds != (fold,)


@pytest.mark.parametrize(
    ("scans", "changes", "message"),
    [
        (table(20, 0), {}, "two classes are needed, but labelled participants are CN 20, AD 0"),
        (table(0, 9), {}, "two classes are needed, but labelled participants are CN 0, AD 9"),
        (table(0, 0, both=7), {}, "two classes are needed, but labelled participants are CN 0, AD 7"),
        (table(20, 4), {}, r"cohort\.folds = 5: .* participants are CN 20, AD 4\. Set cohort\.folds = 4,"),
        (table(3, 20), {"folds": 2}, r"cohort\.folds = 2: .* are CN 3, AD 20\. Set cohort\.folds = 3,"),
        (table(20, 2), {}, r"Add participants, at least 1 of AD, for 3 of each class, or choose"),
        (
            table(49, 48),
            {"split": "single"},
            r"30 participants of each class to test, 18 to validate and one to train make 49, but .* are CN 49, AD 48",
        ),
    ],
)
def test_too_few_participants_are_refused_with_numbers_and_a_remedy(
    scans: ScanTable, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        make_split(scans, dataclasses.replace(CohortConfig(), **changes), 43)  # type: ignore[arg-type]


@given(st.integers(1, 12), st.integers(2, 8))
def test_the_number_of_folds_that_the_error_names_works(people: int, folds: int) -> None:
    scans = table(12, people)
    try:
        make_split(scans, CohortConfig(folds=folds), 43)
    except BadInputError as error:
        if "Set cohort.folds = " in str(error):
            named = int(str(error).split("Set cohort.folds = ")[1].split(",")[0])
            assert len(make_split(scans, CohortConfig(folds=named), 43).folds) == named
        else:
            for fewer in range(2, folds + 1):
                with pytest.raises(BadInputError):
                    make_split(scans, CohortConfig(folds=fewer), 43)


@pytest.mark.parametrize("parts", [("ab", "bc", "d"), ("ab", "c", "da"), ("a", "bc", "c")])
def test_a_participant_in_two_parts_is_refused(parts: tuple[str, str, str]) -> None:
    fold = Fold(3, *(tuple(part) for part in parts))
    with pytest.raises(BadInputError, match=r"split: fold 3 has [abc] in"):
        require_disjoint(fold)
    with pytest.raises(BadInputError):
        Split((fold,))


def test_a_participant_tested_twice_is_refused() -> None:
    with pytest.raises(BadInputError, match="split: c tested in more than one fold"):
        Split((Fold(0, ("a",), ("b",), ("c",)), Fold(1, ("a",), ("b",), ("c",))))


def test_a_split_is_read_as_it_was_written(tmp_path: Path) -> None:
    split = make_split(table(8, 9), CohortConfig(), 43)
    split.write(tmp_path / "splits.tsv")
    assert Split.read(tmp_path / "splits.tsv") == split
    assert all(split.fold_of_test(person) is fold for fold in split.folds for person in fold.test)
    assert split.fold_of_test("sub-nobody") is None


def test_a_tampered_split_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "splits.tsv"
    make_split(table(8, 9), CohortConfig(), 43).write(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text + "sub-0000\t0\ttrain\nsub-0000\t0\ttest\n", encoding="utf-8")
    with pytest.raises(BadInputError, match="sub-0000 in"):
        Split.read(path)
    path.write_text(text.replace("validation", "valid"), encoding="utf-8")
    with pytest.raises(BadInputError, match=r"column part: 'valid' is not one of train, validation, test"):
        Split.read(path)


@pytest.mark.parametrize("split", ["folds", "single"])
def test_two_names_of_one_rid_are_in_one_part(split: str) -> None:
    scans = []
    for number in range(24):
        label = "AD" if number % 2 else "CN"
        for site in ("002", "131")[: 1 + number % 3 // 2]:
            name = f"sub-ADNI{site}S{number:04d}"
            scans.append(Scan(name, "ses-M000", f"{site}-{number}", "a.nii", label=label if site == "002" else "AD"))
    config = CohortConfig(folds=3, split=split, test_participants_per_class=3, validation_participants_per_class=2)
    for seed in range(5):
        for fold in make_split(ScanTable(tuple(scans)), config, seed).folds:
            parts = [{name[-4:] for name in part} for part in (fold.train, fold.validation, fold.test)]
            assert sum(map(len, parts)) == len(set().union(*parts)) == 24
            assert {name for part in (fold.train, fold.validation, fold.test) for name in part} == {
                scan.participant_id for scan in scans
            }
            assert len(fold.train) + len(fold.validation) + len(fold.test) == len(scans)
