"""Remove and retrain: what is removed, by whose ranking, how it is scored; a planted problem with a known answer."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.part import with_methods
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople, auc, balanced_accuracy, rank_p, scored
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.models.inputs import configured_input, read_network_volume, with_tissue, write_tissue
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.studies.retraining import stage
from heatlas.studies.retraining.removal import FULL, by_value, random_orders, removed, require_fillable
from heatlas.studies.retraining.stage import (
    AT_RANDOM,
    RETRAINING_TABLE,
    Removed,
    removal_lines,
    remove_and_retrain,
    require_controls,
    retraining_table,
    training_part,
)
from tests.evaluation.block_run import CONFIG, INFORMATIVE, block_cohort, scans, split, train_run
from tests.training.run_of_folds import Inline

SIZES = {f"g{n}": size for n, size in enumerate([400, 90, 60, 40, 30, 30, 25, 20, 20, 15, 10, 10, 0])}


@pytest.mark.parametrize("share", [0.05, 0.15, 0.4])
def test_sets_of_any_order_are_about_equally_large_and_follow_their_order(share: float) -> None:
    wanted = share * sum(SIZES.values())
    for order in random_orders(list(SIZES), 50, seed=1):
        chosen = removed(order, SIZES, share)
        reached = sum(SIZES[name] for name in chosen)
        rest = [size for name, size in SIZES.items() if size and name not in chosen]
        assert reached <= wanted
        assert reached >= FULL * wanted or wanted - reached < min(rest)  # full, or nothing more fits
        assert list(chosen) == [name for name in order if name in chosen]
        filled = 0
        for name in order[: order.index(chosen[-1]) + 1]:  # whoever was passed over did not fit
            assert (name in chosen) == (0 < SIZES[name] <= wanted - filled)
            filled += SIZES[name] * (name in chosen)


@pytest.mark.parametrize(
    ("sizes", "share"),
    [({"a": 90, "b": 10}, 0.05), ({"a": 50, "b": 50}, 0.3), ({"a": 5, "b": 1}, 2.5), ({"a": 0}, 0.1)],
    ids=["all too large", "none fits", "more volume than regions", "no region seen"],
)
def test_shares_that_regions_cannot_fill_are_refused_with_the_remedy(sizes, share: float) -> None:
    with pytest.raises(BadInputError, match=r"remove and retrain: .*(Take an atlas|no region)"):
        require_fillable(sizes, [share])


def test_orders() -> None:
    assert by_value(["a", "b", "c", "d"], np.array([1.0, np.nan, 2.0, 1.0])) == ("c", "a", "d", "b")
    drawn = random_orders(list(SIZES), 5, seed=3)
    assert drawn == random_orders(list(SIZES), 5, seed=3)
    assert drawn[:2] == random_orders(list(SIZES), 2, seed=3)  # more draws keep those that were trained
    assert len(set(drawn)) == 5
    assert all(sorted(one) == sorted(SIZES) for one in drawn)


def people(random: np.random.Generator, n: int = 30) -> HeldOutPeople:
    names = np.array([f"p{place % 24:02}" for place in range(n)])  # six have two scans
    fold = np.array([place % 24 % 3 for place in range(n)])
    return HeldOutPeople(names, fold, random.random(n) < 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_weighted_scores_are_those_of_repeated_scans(seed: int) -> None:
    random = np.random.default_rng(seed)
    who, margin = people(random), np.round(random.normal(size=30), 1)  # ties
    weights = who.weights(20, seed)
    for row, accuracy, area in zip(
        weights, balanced_accuracy(margin, who, weights), auc(margin, who, weights), strict=True
    ):
        again = np.repeat(np.arange(30), row.astype(int))
        assert accuracy == pytest.approx(balanced_accuracy_score(who.positive[again], margin[again] > 0))
        won, pairs = 0.0, 0
        for fold in range(3):
            own = again[who.fold[again] == fold]
            n = int(who.positive[own].sum() * (~who.positive[own]).sum())
            won, pairs = won + n * float(roc_auc_score(who.positive[own], margin[own])), pairs + n
        assert area == pytest.approx(won / pairs)


def test_people_are_drawn_whole_within_fold_and_class() -> None:
    who = people(np.random.default_rng(1))
    weights = who.weights(50, 0)
    for name in set(who.participant):
        assert (weights[:, who.participant == name].std(axis=1) == 0).all()
    single = pd.Series(who.positive).groupby(who.participant).agg(lambda own: bool(own.all() or not own.any()))
    of_one_class = single[who.participant].to_numpy()
    for fold in range(3):
        for side in (True, False):
            cell = (who.fold == fold) & (who.positive == side) & of_one_class
            names = pd.unique(who.participant[cell])
            firsts = [int(np.flatnonzero(who.participant == name)[0]) for name in names]
            assert (weights[:, firsts].sum(axis=1) == len(names)).all()


def test_an_interval_needs_people_and_a_perfect_score_claims_none() -> None:
    who = HeldOutPeople(np.array(["a", "b", "c", "d"]), np.zeros(4, int), np.array([True, True, False, False]))
    found = scored(np.array([2.0, 1.0, -1.0, -2.0]), who, who.weights(100, 0))
    assert found["auc"].value == 1
    assert np.isnan(found["auc"].interval).all()
    drop = found["auc"] - scored(np.array([-1.0, 1.0, 0.5, -2.0]), who, who.weights(100, 0))["auc"]
    assert drop.value == 0.25  # the patient with -1 comes after the control with 0.5, not after the other
    assert drop.interval[0] <= 0.25 <= drop.interval[1]


@pytest.mark.parametrize(("value", "p"), [(0.4, 0.2), (0.5, 0.4), (0.85, 0.6), (0.99, 1.0), (np.nan, np.nan)])
def test_ranks_among_random_removals_by_hand(value: float, p: float) -> None:
    np.testing.assert_equal(rank_p(value, np.array([0.5, 0.8, 0.9, 0.95])), p)
    assert np.isnan(rank_p(value, np.zeros(0)))


def test_only_the_replaced_voxels_change_and_they_are_alike_in_every_scan(tmp_path: Path) -> None:
    cohort = block_cohort(EvaluationLayout(tmp_path))
    spec = configured_input(CONFIG)
    replaced = cohort.atlas.labels_in(spec.box) == 4
    tissue = np.random.default_rng(0).random(spec.shape)
    write_tissue(tmp_path / "tissue.npz", replaced, tissue)
    without = dataclasses.replace(cohort.layout, tissue=tmp_path / "tissue.npz")
    for scan in cohort.scans[:4]:
        before, after = (
            read_network_volume(layout.scan(scan.participant_id, scan.session_id, 4.0), spec)
            for layout in (cohort.layout, without)
        )
        np.testing.assert_array_equal(after[replaced], tissue[replaced].astype(np.float32))
        np.testing.assert_array_equal(after[~replaced], before[~replaced])
    with pytest.raises(BadInputError, match=r"tissue\.npz: tissue on the grid"):
        with_tissue(np.zeros((3, 4, 5), np.float32), tmp_path / "tissue.npz")


def whole_cohort(labels: dict[str, str], fold: Fold) -> JudgedCohort:
    own = tuple(Scan(name, None, name, None, label=label) for name, label in labels.items())
    tested = tuple(scan for scan in own if scan.participant_id in fold.test)
    return JudgedCohort("run", EvaluationLayout(Path("out")), tested, Split((fold,)), CONFIG, None, None, own, own)  # type: ignore[arg-type]


def test_rankings_see_the_training_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {f"sub-{n}": "AD" if n % 2 else "CN" for n in range(20)}
    names = list(labels)
    fold = Fold(3, tuple(names[:12]), tuple(names[12:14]), tuple(names[14:]))
    cohort = whole_cohort(labels, fold)
    part = training_part(cohort, fold)
    assert {scan.participant_id for scan in part.scans} == set(fold.train)
    assert {part.fold_of(scan) for scan in part.scans} == {3}
    controls = controls_of(part.compared_with, part.split, part.config)
    for scan in part.scans:
        reference = {one.participant_id for one in controls.of(3, scan)}
        assert reference <= set(fold.train) - {scan.participant_id}  # nobody is compared with themselves
        assert reference
    monkeypatch.setattr(stage, "MOST", 4)
    few = training_part(cohort, fold)
    assert pd.Series([scan.label for scan in few.scans]).value_counts().to_dict() == {"CN": 4, "AD": 4}
    assert few.scans == training_part(cohort, fold).scans


@pytest.mark.parametrize(("label", "left"), [("CN", 0), ("CN", 1), ("AD", 0), ("AD", 1)])
def test_a_training_part_that_is_too_small_is_refused_before_any_work(label: str, left: int) -> None:
    other = "AD" if label == "CN" else "CN"
    labels = {f"sub-{n}": label if n < left or n > 9 else other for n in range(14)}
    names = list(labels)
    fold = Fold(1, tuple(names[:8]), (), tuple(names[8:]))
    with pytest.raises(BadInputError, match=f"fold 1 has {left} of {label} in its training part.*Use fewer folds"):
        require_controls(whole_cohort(labels, fold))


def test_rows_by_hand() -> None:
    who = HeldOutPeople(np.array(list("abcd")), np.zeros(4, int), np.array([True, True, False, False]))
    weights = who.weights(100, 0)

    def of(*margin: float):
        return scored(np.array(margin), who, weights)

    whole, half = of(2, 1, -1, -2), of(1, -1, 1, -1)
    sizes = {"a": 6, "b": 2, "c": 2}
    found = [
        Removed("m", 0.2, {0: ("b",), 1: ("c",)}, half),
        Removed("none at all", 0.2, {}, {}),
        Removed(AT_RANDOM, 0.2, {0: ("b",), 1: ("b",)}, whole),
        Removed(AT_RANDOM, 0.2, {0: ("c",), 1: ("c",)}, half),
        Removed(AT_RANDOM, 0.2, {0: ("c",), 1: ("c",)}, {}),
    ]
    table = retraining_table("run", whole, found, sizes, ["b"], {"m": "method-m"}, 4).set_index("map")
    assert table.loc["nothing", "auc"] == 1
    row = table.loc["m"]
    assert (row["removed_share"], row["planted_share"]) == (0.2, 0.5)
    assert (row["auc"], row["auc_drop"], row["auc_random_drop"], row["n_draws"]) == (0.5, 0.5, 0.25, 2)
    assert row["p_auc"] == pytest.approx(2 / 3)
    assert (row["balanced_accuracy"], row["balanced_accuracy_drop"]) == (0.5, 0.5)
    assert row["removed_groups"] == "b (1); c (1)"
    assert np.isnan(table.loc["none at all", "auc"])
    assert (table.loc[AT_RANDOM, "auc"], table.loc[AT_RANDOM, "auc_low"]) == (0.75, 0.5)
    lines = removal_lines(table.reset_index())
    assert lines[0].startswith("  without the 20 % of the volume that m ranks first: balanced accuracy 0.50 (1.00")
    assert lines[0].endswith("AUC 0.50 (1.00 with all, 0.75 without random ones, p = 0.67)")
    assert "not known" in lines[1]
    assert len(lines) == 2


@pytest.fixture(scope="module")
def block_run(tmp_path_factory) -> Iterator[JudgedCohort]:
    cohort = block_cohort(EvaluationLayout(tmp_path_factory.mktemp("blocks")))
    train_run(cohort)
    with pytest.MonkeyPatch.context() as few:
        few.setattr(stage, "MOST", 3)
        yield cohort


def asked(cohort: JudgedCohort):
    return explanations_of_run(with_methods(cohort.config, ["deeplift"]))


@pytest.mark.ci
def test_without_the_informative_block_accuracy_is_chance_and_without_others_it_stays(block_run: JudgedCohort) -> None:
    layout = block_run.layout
    shutil.rmtree(layout.evaluation, ignore_errors=True)  # what other tests have trained
    remove_and_retrain(block_run, asked(block_run), 2, Inline(), DigestCache(layout.digests), (1 / 8,))
    table = RETRAINING_TABLE.read(layout).set_index("map")
    assert table.loc["nothing", "auc"] == 1
    assert table.loc["deeplift", "removed_groups"] == f"{INFORMATIVE} (2)"
    assert table.loc["deeplift", "planted_share"] == 1
    assert abs(table.loc["deeplift", "auc"] - 0.5) < 0.25
    assert table.loc["deeplift", "auc_low"] < 0.5
    assert table.loc[AT_RANDOM, "planted_share"] == 0
    assert table.loc[AT_RANDOM, "auc_low"] > 0.95  # the least of all draws
    assert table.loc["deeplift", "p_auc"] == pytest.approx(1 / 3)
    trained = list((layout.evaluation / "models").glob("run_without-*/fold-*"))
    assert len(trained) == 2 * 3  # the image difference ranks the same block first, and is not trained again
    assert not list((layout.evaluation / "models").rglob("*.safetensors"))


@pytest.mark.ci
def test_a_run_without_all_predictions_is_refused_before_any_training(block_run: JudgedCohort) -> None:
    path = block_run.layout.fold(1).predictions
    kept = path.read_bytes()
    path.write_bytes(b"".join(kept.splitlines(keepends=True)[:-1]))
    try:
        with pytest.raises(BadInputError, match=r"no prediction of sub-23\. Run heatlas run again"):
            remove_and_retrain(block_run, asked(block_run), 5, Inline(), DigestCache(block_run.layout.digests), (0.3,))
    finally:
        path.write_bytes(kept)


@pytest.mark.ci
def test_a_second_call_trains_nothing_and_more_draws_only_what_is_new(block_run: JudgedCohort) -> None:
    layout = block_run.layout
    remove_and_retrain(block_run, asked(block_run), 2, Inline(), DigestCache(layout.digests), (1 / 8,))
    first = RETRAINING_TABLE.path(layout).read_bytes()
    outcomes = remove_and_retrain(block_run, asked(block_run), 2, Inline(), DigestCache(layout.digests), (1 / 8,))
    assert {one.status for one in outcomes} == {"unchanged"}
    assert RETRAINING_TABLE.path(layout).read_bytes() == first
    more = remove_and_retrain(block_run, asked(block_run), 3, Inline(), DigestCache(layout.digests), (1 / 8,))
    assert sum(one.status == "done" for one in more) <= 2


@pytest.mark.ci
def test_a_failed_training_leaves_its_row_without_scores_and_is_listed(block_run: JudgedCohort, tmp_path: Path) -> None:
    layout = block_run.layout
    broken = layout.scan(split().folds[0].train[-1], None, 4.0).t1w
    kept = broken.read_bytes()
    broken.write_bytes(b"no image")
    try:
        made = remove_and_retrain(block_run, asked(block_run), 1, Inline(), DigestCache(tmp_path / "d"), (1 / 8,))
    finally:
        broken.write_bytes(kept)
    assert any(not one.ok for one in made)
    table = RETRAINING_TABLE.read(layout).set_index("map")
    assert np.isnan(table.loc[AT_RANDOM, "auc"])
    assert table.loc["nothing", "auc"] == 1
    assert len(scans()) == table["n_participants"].iloc[0]
    assert broken.name in read_table(layout.failures)["message"].str.cat()
