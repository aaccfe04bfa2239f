"""Scores of maps against masks, and of regions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.scores.localisation import (
    IOU_THRESHOLDS,
    auprc,
    auroc,
    best_threshold,
    dose_response,
    energy_share,
    entropy,
    f1,
    gini,
    held_out_ious,
    hits_in_first,
    intersection_over_union,
    iou_curve,
    pointing,
    region_scores,
)
from heatlas.pipeline.evaluation.scores.map_scores import (
    BOX_COLUMNS,
    DELTAS,
    IOU_COLUMNS,
    MAP_SCORES,
    THRESHOLDS,
    attended_box,
    best_iou,
    box_accuracy,
    box_iou,
    boxes_of,
    largest_box,
    saliency_metric,
    score_map,
    set_scores,
    threshold_ious,
)
from heatlas.pipeline.run.errors import BadInputError

# Scores of a map against a mask: closed forms, all orders of ties counted by hand, identities, refusals.

SHAPE = (5, 7, 4)
MAPS = hnp.arrays(np.float64, SHAPE, elements=st.floats(-4, 4, width=16))


def box_mask(*boxes: tuple[slice, slice, slice], shape: tuple[int, int, int] = SHAPE) -> NDArray[np.bool_]:
    mask = np.zeros(shape, dtype=bool)
    for box in boxes:
        mask[box] = True
    return mask


ONE = box_mask((slice(1, 4), slice(2, 4), slice(0, 3)))
TWO = box_mask((slice(0, 2), slice(0, 2), slice(0, 2)), (slice(3, 5), slice(4, 7), slice(1, 4)))
ROUGH = ONE & ~box_mask((slice(1, 2), slice(2, 3), slice(0, 1)))
MASKS = {"one box": ONE, "two boxes": TWO, "no box": ROUGH}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("level", [0.1, 1.0, 7.0])
def test_a_map_that_is_even_everywhere_has_what_chance_gives(mask: NDArray[np.bool_], level: float) -> None:
    share = mask.mean()
    scores = score_map(np.full(SHAPE, level), mask)
    for name in ("pointing", *IOU_COLUMNS):
        assert scores[name] == pytest.approx(share, abs=1e-12), name
    even = np.full(SHAPE, level)
    for score in (auprc, energy_share):
        assert score(even, mask) == pytest.approx(share, abs=1e-12)
    assert auroc(even, mask) == 0.5
    assert scores["f1"] == pytest.approx(2 * share / (1 + share))
    largest = max(math.prod(s.stop - s.start for s in box) for box in boxes_of(mask)) / mask.size
    assert scores["le"] == pytest.approx(1 - largest)
    boxes = score_map(np.ones(SHAPE), mask)
    assert scores["sp"] == boxes["sp"] == pytest.approx(scores["ep"])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_the_mask_itself_is_a_perfect_map(mask: NDArray[np.bool_]) -> None:
    scores = score_map(mask * 3.0, mask)
    for name in ("pointing", "f1", "sp", "ep", *IOU_COLUMNS, *BOX_COLUMNS[1:]):
        assert scores[name] == 1, name
    assert [score(mask * 3.0, mask) for score in (auroc, auprc, energy_share)] == [1, 1, 1]
    assert scores["le"] == scores["om"] == 0
    assert set_scores(pd.DataFrame([scores, scores]), ["a", "b"]) == {"iou": 1, "ba": 1}
    assert tuple(scores) == (*MAP_SCORES, *IOU_COLUMNS, *BOX_COLUMNS)


@settings(max_examples=30, deadline=None)
@given(MAPS, st.sampled_from(list(MASKS)), st.sampled_from([0.25, 2.0, 1024.0]))
def test_scale_changes_no_score(values: NDArray[np.float64], name: str, scale: float) -> None:
    before, after = (score_map(one, MASKS[name]) for one in (values, values * scale))
    assert before == pytest.approx(after, nan_ok=True)


@settings(max_examples=30, deadline=None)
@given(MAPS, st.sampled_from(list(MASKS)))
def test_bounds_and_order(values: NDArray[np.float64], name: str) -> None:
    scores = score_map(values, MASKS[name], recognised=False)
    if not values.any():
        assert all(math.isnan(score) for score in scores.values())
        return
    if not (values > 0).any():
        assert all(math.isnan(scores[column]) for column in ("f1", "le", "om", "ep", *BOX_COLUMNS))
        return
    for column in set(scores) - {"sm"}:
        assert 0 <= scores[column] <= 1, column
    assert scores["om"] == 1 >= scores["le"]
    turned = [np.transpose(one, (2, 0, 1)) for one in (values, MASKS[name])]
    again = score_map(*turned, recognised=False)
    by_voxel = set(scores) - {"le", "sm", *BOX_COLUMNS}  # of two parts of one size, the first counts
    assert {name: again[name] for name in by_voxel} == pytest.approx({name: scores[name] for name in by_voxel})


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 0.0], ids=str)
def test_an_undefined_map_has_no_scores(broken: float) -> None:
    values = np.zeros(SHAPE) if broken == 0 else np.ones(SHAPE)
    values[2, 3, 1] = broken
    assert all(math.isnan(value) for value in score_map(values, ONE).values())


def test_a_negative_map_is_defined_and_points_nowhere() -> None:
    scores = score_map(-np.ones(SHAPE) - ONE, ONE)
    assert scores["pointing"] == auroc(-np.ones(SHAPE) - ONE, ONE) == 0
    for name in ("f1", "le", "om", "ep", "sm", *IOU_COLUMNS, *BOX_COLUMNS):
        assert math.isnan(scores[name]), name  # 0 / 0, or no box: not the worst score
    for unknown in (energy_share, intersection_over_union, f1):
        assert math.isnan(unknown(np.array([-1.0, 0.0]), np.array([True, False])))
    assert f1(np.array([-1.0, 1.0]), np.array([True, False])) == 0
    assert math.isnan(score_map(-np.ones(SHAPE), ONE, recognised=False)["om"])


def test_voxels_outside_the_brain_do_not_count() -> None:
    inside = box_mask((slice(0, 5), slice(1, 7), slice(0, 4)))
    values = np.random.default_rng(3).normal(size=SHAPE)
    changed = np.where(inside, values, np.nan)
    assert score_map(values, ONE, inside) == pytest.approx(score_map(changed, ONE, inside), nan_ok=True)
    assert score_map(np.ones(SHAPE), ONE, inside)["pointing"] == pytest.approx(ONE.sum() / inside.sum())


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.zeros(SHAPE, bool), "empty"),
        (np.ones(SHAPE, bool), "covers everything"),
        (np.ones((5, 7, 3), bool), "on one grid"),
        (np.ones((7, 5, 4), bool), "on one grid"),
    ],
)
def test_a_truth_that_nothing_can_be_scored_against_is_refused(mask: NDArray[np.bool_], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        score_map(np.ones(SHAPE), mask)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=5, max_size=6), st.integers(1, 4), st.integers(1, 5))
def test_ties_count_as_the_mean_over_all_orders(values: list[int], true: int, k: int) -> None:
    """Every order that the values allow, written out."""
    truth = np.arange(len(values)) < true
    orders = [
        o for o in itertools.permutations(range(len(values))) if [-values[n] for n in o] == sorted(-v for v in values)
    ]
    expected = np.mean([truth[list(order[:k])].sum() for order in orders])
    assert hits_in_first(np.array(values, float), truth, k) == pytest.approx(expected)
    assert pointing(np.array(values, float), truth) == pytest.approx(np.mean([truth[order[0]] for order in orders]))
    pairs = [(a > b) + (a == b) / 2 for a in values[:true] for b in values[true:]]
    assert auroc(np.array(values, float), truth) == pytest.approx(np.mean(pairs))


def test_average_precision_written_out() -> None:
    values, truth = np.array([5.0, 4.0, 4.0, 3.0, 1.0]), np.array([1, 0, 1, 0, 1], bool)
    precisions = [1 / 1, 2 / 3, 3 / 5]  # at the thresholds 5, 4 and 1, each for one more true place
    assert auprc(values, truth) == pytest.approx(np.mean(precisions))


def test_a_place_without_a_value_comes_last() -> None:
    values, truth = np.array([np.nan, -5.0, 1.0]), np.array([True, False, False])
    assert auroc(values, truth) == 0
    assert hits_in_first(values, truth, 2) == 0


def test_boxes_of_unequal_sides_are_where_they_are() -> None:
    assert boxes_of(ONE) == [(slice(1, 4), slice(2, 4), slice(0, 3))]
    assert largest_box(TWO) == (slice(3, 5), slice(4, 7), slice(1, 4))
    assert attended_box(ONE * 2.0 + 0.1) == (slice(1, 4), slice(2, 4), slice(0, 3))
    assert largest_box(np.zeros(SHAPE, bool)) is attended_box(-np.ones(SHAPE)) is None
    a, b = (slice(0, 2), slice(0, 3), slice(0, 4)), (slice(1, 3), slice(1, 4), slice(2, 6))
    grids = [box_mask(box, shape=(6, 6, 6)) for box in (a, b)]
    assert box_iou(a, b) == (grids[0] & grids[1]).sum() / (grids[0] | grids[1]).sum()


def test_box_accuracy_takes_one_threshold_for_all_maps() -> None:
    truth = boxes_of(ONE)
    near = np.where(ONE, 1.0, 0.45)
    ious = np.stack([threshold_ious(near, truth), threshold_ious(ONE * 1.0, truth)])
    whole = best_iou((slice(0, 5), slice(0, 7), slice(0, 4)), truth)
    assert ious[0].tolist() == [whole] * 5 + [1] * 5
    assert box_accuracy(ious) == 1
    accuracies = [box_accuracy(ious[:, :4], (delta,)) for delta in (0.1, 0.3, 0.5, 0.9)]
    assert accuracies == sorted(accuracies, reverse=True)


def test_box_accuracy_of_a_set_is_not_the_mean_of_that_of_each_map() -> None:
    """Two maps, one sharp and one faint around it, have their right boxes at different thresholds."""
    low, high = np.where(ONE, 1.0, 0.0), np.where(ONE, 0.2, 0.0)
    low[0, 0, 0] = 0.0
    high[4, 6, 3] = 1.0  # one bright voxel: ONE is the largest part below a threshold of .2 only
    blurred = np.where(ONE, 1.0, 0.35)  # and this map is whole below .35
    rows = pd.DataFrame([score_map(one, ONE) for one in (high, blurred)])
    each = [box_accuracy(rows[list(BOX_COLUMNS)].to_numpy(float)[[n]], (0.9,)) for n in (0, 1)]
    assert each == [1, 1]
    assert box_accuracy(rows[list(BOX_COLUMNS)].to_numpy(float), (0.9,)) == 0.5
    at = [[best_iou(largest_box(one > t), boxes_of(ONE)) >= d for one in (high, blurred)]
          for d in DELTAS for t in THRESHOLDS]  # fmt: skip
    wanted = np.mean(np.array(at).mean(1).reshape(len(DELTAS), len(THRESHOLDS)).max(1))  # equation 1.20, written out
    assert set_scores(rows, ["a", "b"])["ba"] == pytest.approx(wanted)
    assert wanted < 1
    with_undefined = pd.concat([rows, pd.DataFrame([score_map(-np.ones(SHAPE), ONE)])])
    assert set_scores(with_undefined, ["a", "b", "c"])["ba"] == pytest.approx(wanted)
    assert math.isnan(box_accuracy(np.full((2, len(THRESHOLDS)), np.nan)))


def test_the_threshold_of_an_iou_is_that_of_other_people() -> None:
    rng = np.random.default_rng(1)
    maps = [rng.random(SHAPE) ** 6 * np.where(ONE, 1.0, 0.2) for _ in range(4)]
    people = ["a", "a", "b", "c"]
    by_hand = []
    for values, who in zip(maps, people, strict=True):
        others = [one for one, name in zip(maps, people, strict=True) if name != who]
        mean = {t: np.mean([intersection_over_union(one, ONE, t) for one in others]) for t in IOU_THRESHOLDS}
        best = max(mean, key=lambda t: mean[t])
        assert best_threshold(others, [ONE] * len(others)) == best
        by_hand.append(intersection_over_union(values, ONE, best))
    found = held_out_ious(np.array([iou_curve(one, ONE) for one in maps]), people)
    np.testing.assert_allclose(found, by_hand)
    assert min(found) > intersection_over_union(maps[0], ONE)  # at half the maximum hardly a voxel is left
    rows = pd.DataFrame([score_map(one, ONE) for one in maps])
    assert set_scores(rows, people)["iou"] == pytest.approx(np.mean(by_hand))
    assert np.isnan(held_out_ious(np.array([iou_curve(maps[0], ONE)]), ["a"])).all()
    assert math.isnan(best_threshold([-maps[0]], [ONE]))
    assert math.isnan(intersection_over_union(maps[0], ONE, math.nan))
    assert math.isnan(set_scores(rows.iloc[:1], ["a"])["iou"])


def test_saliency_metric_rewards_small_boxes_down_to_its_floor() -> None:
    assert saliency_metric((slice(0, 1), slice(0, 5), slice(0, 4)), 100, 0.5) == pytest.approx(math.log(0.2 / 0.5))
    assert saliency_metric((slice(0, 1), slice(0, 1), slice(0, 1)), 100, 1.0) == pytest.approx(math.log(0.05))
    assert math.isnan(saliency_metric(None, 100, 1.0))
    whole = (slice(0, 1), slice(0, 1), slice(0, 100))
    assert saliency_metric(whole, 100, 1.0) == 0
    assert math.isnan(saliency_metric(whole, 100, None))
    assert math.isnan(saliency_metric(whole, 100, 0.0))


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float64, (3, 4, 2), elements=st.floats(0, 8, width=16)))
def test_concentration_lies_between_even_and_one_voxel(values: NDArray[np.float64]) -> None:
    n = values.size
    if not values.any():
        assert math.isnan(gini(values))
        assert math.isnan(entropy(values))
        return
    assert -1e-12 <= gini(values) <= (n - 1) / n + 1e-12
    assert 0 <= entropy(values) <= math.log2(n) + 1e-12
    differences = np.abs(np.subtract.outer(values.ravel(), values.ravel())).sum()
    assert gini(values) == pytest.approx(differences / (2 * n * values.sum()), abs=1e-12)


# Scores of regions, and the dose-response: closed forms, chance, undefined cases, refusals.

REGIONS = 67
PLANTED = np.isin(np.arange(REGIONS), [3, 17, 18, 40, 66])


def test_even_values_are_chance_and_the_truth_is_perfect() -> None:
    chance, best = region_scores(np.ones(REGIONS), PLANTED), region_scores(PLANTED * 1.0, PLANTED)
    assert chance["auroc"] == 0.5
    assert chance["auprc"] == pytest.approx(5 / REGIONS)
    assert chance["hits"] == pytest.approx(50 / REGIONS)
    assert best == {"auroc": 1, "auprc": 1, "hits": 5}


def test_a_random_order_has_the_expected_hits_on_average() -> None:
    rng = np.random.default_rng(5)
    hits = [hits_in_first(rng.permutation(REGIONS) + 1.0, PLANTED, 10) for _ in range(800)]
    assert np.mean(hits) == pytest.approx(50 / REGIONS, abs=4 * np.std(hits) / np.sqrt(800))


def test_a_region_without_a_value_comes_last() -> None:
    assert region_scores(np.where(PLANTED, np.nan, 1.0), PLANTED)["auroc"] == 0


@pytest.mark.parametrize("values", [np.zeros(REGIONS), np.full(REGIONS, np.nan), np.full(REGIONS, np.inf)], ids=str)
def test_undefined_rankings_have_no_scores(values: np.ndarray) -> None:
    assert all(math.isnan(value) for value in region_scores(values, PLANTED).values())


@pytest.mark.parametrize(
    ("values", "planted"),
    [(np.ones(3), [False] * 3), (np.ones(3), [True] * 3), (np.ones(3), [True, False]), (np.ones((1, 3)), [True] * 3)],
)
def test_truths_that_cannot_be_scored_are_refused(values: np.ndarray, planted: list[bool]) -> None:
    with pytest.raises(BadInputError):
        region_scores(values, planted)


def test_dose_response_is_a_rank_correlation_with_an_interval() -> None:
    rng = np.random.default_rng(2)
    severity = np.linspace(0, 1, 20)
    evidence = severity + rng.normal(0, 0.3, 20)
    answer = dose_response(severity, evidence)
    assert answer.rho == pytest.approx(pd.Series(severity).corr(pd.Series(evidence), "spearman"))
    assert -1 <= answer.low < answer.rho < answer.high <= 1
    assert dose_response(severity, np.exp(evidence)) == answer == dose_response(severity, evidence)
    assert dose_response(severity, -evidence, draws=0).rho == pytest.approx(-answer.rho)
    silent = dose_response(severity, np.where(severity > 0.9, 0, evidence), draws=0)  # two maps of nothing
    assert silent.rho < answer.rho


@pytest.mark.parametrize(
    ("severity", "evidence"),
    [([0.0, 1.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
     ([1.0, 2.0, 3.0], [1.0, np.nan, 2.0])],
    ids=["two people", "one severity", "no map responds", "a map is missing"],
)  # fmt: skip
def test_without_an_answer_there_is_none(severity: list[float], evidence: list[float]) -> None:
    answer = dose_response(np.array(severity), np.array(evidence))
    assert all(math.isnan(one) for one in (answer.rho, answer.low, answer.high))
