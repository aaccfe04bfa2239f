"""Splits of people, and folds alike in sex, age and site."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatlas.pipeline.cohort.people.balance import balance_sentence, balanced, features_of, imbalance
from heatlas.pipeline.cohort.people.splits import Fold, Split, make_split, require_disjoint, split_balance
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
        (
            table(20, 2),
            {},
            r"Add participants, at least 1 of AD: the fewest are 3 of each class, with cohort.folds = 3, or choose",
        ),
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


# Folds alike in sex, age and site: fewer differences than by chance, the same numbers per class, nobody twice.

EVERYTHING = ("sex", "age", "site")


def cohort(n: int = 120, seed: int = 0, **changes: object) -> ScanTable:
    """Two classes that differ in age, eight sites of unequal size, one or two scans each."""
    rng = np.random.default_rng(seed)
    scans = []
    for number in range(n):
        label = "AD" if number % 3 == 0 else "CN"
        facts = {
            "age": float(rng.integers(55, 90) + 4 * (label == "AD")),
            "sex": str(rng.choice(["F", "M"])),
            "site": str(int(rng.exponential(2)) % 8),
        } | changes
        scans += [
            Scan(f"sub-{number:03d}", f"ses-M{12 * visit:03d}", f"{number}-{visit}", "a.nii", label=label, **facts)
            for visit in range(1 + number % 2)
        ]
    return ScanTable(tuple(scans))


def config(*balance: str) -> CohortConfig:
    return CohortConfig(balance=balance)  # type: ignore[arg-type]


def counts(split: Split, table: ScanTable) -> list[tuple[int, int]]:
    label = {scan.participant_id: scan.label for scan in table}
    return [tuple(sum(label[who] == one for who in fold.test) for one in ("CN", "AD")) for fold in split.folds]  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(5))
def test_folds_are_more_alike_than_by_chance_with_the_same_numbers_of_each_class(seed: int) -> None:
    table = cohort(seed=seed)
    split, plain = make_split(table, config(*EVERYTHING), seed), make_split(table, config(), seed)
    found = split_balance(split, table, config(*EVERYTHING), seed).set_index("variable")
    before = split_balance(plain, table, config(), seed).set_index("variable")
    for name in EVERYTHING:
        assert found.loc[name, "imbalance"] < min(before.loc[name, "imbalance"], 0.7 * found.loc[name, "by_chance"])
        assert bool(found.loc[name, "balanced"])
        assert not before.loc[name, "balanced"]
    assert found.loc["age", "imbalance"] < 0.1
    assert found.loc["sex", "imbalance"] < 0.1
    assert counts(split, table) == counts(plain, table)
    assert sorted(who for fold in split.folds for who in fold.test) == sorted({scan.participant_id for scan in table})
    for fold in split.folds:
        assert not set(fold.test) & {*fold.train, *fold.validation}
    assert make_split(table, config(*EVERYTHING), seed) == split
    assert make_split(table, config(*EVERYTHING), seed + 1) != split


@pytest.mark.parametrize("known", [{"age": None, "sex": None, "site": None}, {"age": 70.0, "sex": "F", "site": "1"}])
def test_where_nothing_is_known_or_varies_the_folds_stay_as_drawn_by_class(known: dict[str, object]) -> None:
    table = cohort(**known)
    assert make_split(table, config(*EVERYTHING), 43) == make_split(table, config(), 43)
    found = split_balance(make_split(table, CohortConfig(), 43), table, CohortConfig(), 43)
    assert found["variable"].tolist() == ["class"]
    assert balance_sentence(found) == ""


@pytest.mark.parametrize("column", EVERYTHING)
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_missing_values_stop_no_split_and_the_other_variables_are_balanced(column: str, share: float) -> None:
    rng = np.random.default_rng(1)
    unknown = set(rng.permutation(120)[: int(120 * share)])
    scans = [
        dataclasses.replace(scan, **{column: None}) if int(scan.participant_id[4:]) in unknown else scan
        for scan in cohort()
    ]
    table = ScanTable(tuple(scans))
    split = make_split(table, CohortConfig(), 43)
    found = split_balance(split, table, CohortConfig(), 43).set_index("variable")
    assert (column in found.index) == (share < 1)
    if share < 1:
        assert found.loc[column, "n_participants"] == 120 - len(unknown)
    others = [name for name in EVERYTHING if name != column]
    assert (found.loc[others, "imbalance"] < 0.7 * found.loc[others, "by_chance"]).all()


def test_one_person_under_two_names_moves_as_one() -> None:
    names = [f"sub-ADNI{site}S{number:04d}" for number in range(60) for site in ("002", "131")]
    rng = np.random.default_rng(0)
    scans = [
        Scan(name, "ses-M000", str(i), "a.nii", label="AD" if i // 2 % 2 else "CN", age=float(rng.integers(60, 80)),
             sex=str(rng.choice(["F", "M"])), site=name[8:11])
        for i, name in enumerate(names)
    ]  # fmt: skip
    for fold in make_split(ScanTable(tuple(scans)), CohortConfig(), 43).folds:
        assert len({name[-4:] for name in fold.test}) * 2 == len(fold.test)
        assert not {name[-4:] for name in fold.test} & {name[-4:] for name in (*fold.train, *fold.validation)}


@pytest.mark.parametrize("sessions", [(None, "ses-M000"), (None,), ("ses-9", "ses-10"), ("", "ses-1")])
@pytest.mark.parametrize("age", [None, 70.0])
def test_folds_are_made_whatever_sessions_are_called(sessions: tuple[str | None, ...], age: float | None) -> None:
    """In a BIDS folder some people may have sessions and others none, with ages that tie or are unknown."""
    rng = np.random.default_rng(0)
    scans = [
        Scan(f"sub-{i:02d}", name, f"{i}-{name}", "a.nii", label="AD" if i % 2 else "CN", age=age, sex="FM"[i // 2 % 2])
        for i in range(20)
        for name in sessions
    ]
    split = make_split(ScanTable(tuple(scans)), CohortConfig(), 0)
    rng.shuffle(scans)  # type: ignore[arg-type]
    assert make_split(ScanTable(tuple(scans)), CohortConfig(), 0) == split
    assert sorted(who for fold in split.folds for who in fold.test) == sorted({scan.participant_id for scan in scans})


@pytest.mark.parametrize("seed", range(3))
def test_validation_parts_are_as_alike_as_test_folds_with_the_same_numbers_of_each_class(seed: int) -> None:
    table = cohort(seed=seed)
    first = {scan.participant_id: scan for scan in reversed(tuple(table))}
    chosen, plain = (make_split(table, config(*balance), seed).folds for balance in (EVERYTHING, ()))

    def apart(folds: tuple[Fold, ...], name: str) -> float:
        found = []
        for fold in folds:
            people = [first[who] for who in (*fold.train, *fold.validation)]
            values = np.array([float(one.age or 0) if name == "age" else float(one.sex == "F") for one in people])
            part = np.repeat([0, 1], [len(fold.train), len(fold.validation)])
            found.append(imbalance(values, part, number=name == "age"))
        return float(np.mean(found))

    for name in ("age", "sex"):
        assert apart(chosen, name) < 0.5 * apart(plain, name)
    for one, other in zip(chosen, plain, strict=True):
        for label in ("AD", "CN"):
            numbers = [sum(first[who].label == label for who in fold.validation) for fold in (one, other)]
            assert numbers[0] == numbers[1]


def test_exchanges_end_where_no_exchange_lowers_the_imbalance() -> None:
    rng = np.random.default_rng(3)
    fold, stratum = np.arange(24) % 3, (np.arange(24) < 9).astype(np.intp)
    features = rng.normal(size=(24, 2)) - rng.normal(size=2)
    features -= features.mean(axis=0)

    def objective(of: np.ndarray) -> float:
        total = sum((features[of == one].sum(axis=0) ** 2).sum() for one in range(3))
        for kind in (0, 1):
            mean = features[stratum == kind].mean(axis=0)
            total += sum(
                ((features[(of == one) & (stratum == kind)] - mean).sum(axis=0) ** 2).sum() for one in range(3)
            )
        return total

    found = balanced(fold.astype(np.intp), stratum, features, np.random.default_rng(0))
    assert objective(found) < objective(fold)
    for i in range(24):
        for j in range(24):
            if stratum[i] == stratum[j]:
                other = found.copy()
                other[[i, j]] = other[[j, i]]
                assert objective(other) >= objective(found) - 1e-8
    for kind in (0, 1):
        assert np.bincount(found[stratum == kind]).tolist() == np.bincount(fold[stratum == kind]).tolist()


def test_measures_are_those_of_the_textbook() -> None:
    fold = np.array([0, 0, 1, 1, 2, 2])
    ages = np.array([1.0, 3, 2, 4, 6, 8])
    assert imbalance(ages, fold, number=True) == pytest.approx((7 - 2.5) / ages.std(ddof=1))
    sex = np.array([0.0, 1, 0, 1, 0, 1])
    assert imbalance(sex, fold, number=False) == 0
    assert imbalance(fold.astype(float), fold, number=False) == pytest.approx(1)
    assert np.isnan(imbalance(np.full(6, np.nan), fold, number=False))
    assert np.isnan(imbalance(ages, np.zeros(6, int), number=True))
    facts = pd.DataFrame({"age": [1.0, 2, np.nan, 4], "site": ["a", "b", None, "c"]})
    features = features_of(facts, ("age", "site"))
    assert (features[2] == 0).all()
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose([(features[:, 0] ** 2).sum() / 3, (features[:, 1:] ** 2).sum() / 3], 1)


def test_a_single_split_is_described_over_its_parts() -> None:
    table, settings = cohort(240), CohortConfig(split="single")
    found = split_balance(make_split(table, settings, 43), table, settings, 43).set_index("variable")
    assert not found.loc[list(EVERYTHING), "balanced"].any()
    assert found.loc["sex", "n_participants"] == 240
    assert "in mean age by 0." in balance_sentence(found.reset_index())
