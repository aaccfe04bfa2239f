"""Scores of a map against the network: linear scores in closed form, brute force, identities, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heatlas.pipeline.evaluation.bench.scan_job import BOXED, boxed
from heatlas.pipeline.evaluation.scores.faithfulness import (
    FAITHFULNESS_SCORES,
    LOST,
    Faithfulness,
    infidelity,
    lost_share,
    max_sensitivity,
    random_sets,
    shift_correlation,
    shift_likeness,
)
from heatlas.pipeline.evaluation.scores.masking import (
    Curve,
    adcc,
    average_drop,
    average_gain,
    average_increase,
    coherency,
    mask_of,
    part_numbers,
    removal_curve,
)
from heatlas.pipeline.run.errors import BadInputError

SHAPE = (3, 4, 5)
GENERATOR = torch.Generator().manual_seed(1)
SCAN = torch.rand(SHAPE, dtype=torch.float64, generator=GENERATOR) + 0.1
WEIGHT = torch.randn(SHAPE, dtype=torch.float64, generator=GENERATOR)
CONTROL = torch.rand(SHAPE, dtype=torch.float64, generator=GENERATOR)
REGIONS = torch.arange(60).view(SHAPE) // 9
"""Labels 0 to 6, of 9, 9, 9, 9, 9, 9 and 6 voxels."""
ALL = torch.ones(SHAPE, dtype=torch.bool)
VOXELS = part_numbers(ALL)


def faithfulness(score, volume, values, regions, replacement=0.0, explain=None, **settings) -> dict[str, float]:
    return Faithfulness(score, volume, regions, replacement, **settings).scores(values, explain)


def linear(volumes: Tensor) -> Tensor:
    return (volumes[:, 0] * WEIGHT).flatten(1).sum(1)


def probability(volumes: Tensor) -> Tensor:
    return torch.sigmoid(linear(volumes))


def written_out(
    values: Tensor, start: Tensor, end: Tensor, score: Callable[[Tensor], Tensor], parts: Tensor
) -> list[float]:
    """One part after the other, in plain loops."""
    means = {int(n): float(values[parts == n].mean()) for n in torch.unique(parts)}
    volume, scores = start.clone(), [float(score(start[None, None]))]
    for number in sorted(means, key=lambda n: -means[n]):
        volume[parts == number] = end[parts == number]
        scores.append(float(score(volume[None, None])))
    return scores


@pytest.mark.parametrize("end", [torch.zeros_like(SCAN), CONTROL], ids=["air", "controls"])
@pytest.mark.parametrize("parts", [VOXELS, part_numbers(ALL, REGIONS)], ids=["voxels", "regions"])
@pytest.mark.parametrize("batch", [1, 7])
def test_curves_equal_plain_loops(parts: Tensor, end: Tensor, batch: int) -> None:
    values = WEIGHT * SCAN
    curve = removal_curve(probability, SCAN, end, parts, values, 100, batch)
    assert curve.scores == pytest.approx(written_out(values, SCAN, end, probability, parts), abs=1e-12)
    sizes = torch.bincount(parts.flatten())
    assert len(curve.fractions) == len(sizes) + 1
    assert curve.fractions[[0, -1]].tolist() == [0, 1]
    by_hand = sum(
        (b - a) * (p + q) / 2
        for a, b, p, q in zip(curve.fractions, curve.fractions[1:], curve.scores, curve.scores[1:], strict=False)
    )
    assert curve.area == pytest.approx(by_hand)


@pytest.mark.parametrize("steps", [1, 4, 60])
def test_deletion_is_insertion_of_the_reverse_order_backwards(steps: int) -> None:
    values, air = torch.randn(SHAPE, generator=torch.Generator().manual_seed(8)), torch.zeros_like(SCAN)
    deletion = removal_curve(probability, SCAN, air, VOXELS, values, steps)
    insertion = removal_curve(probability, air, SCAN, VOXELS, -values, steps)
    assert deletion.scores == pytest.approx(insertion.scores[::-1], abs=1e-12)
    assert deletion.area == pytest.approx(insertion.area)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 60))
def test_only_the_order_of_the_map_counts(seed: int, steps: int) -> None:
    values = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    curves = [
        removal_curve(linear, SCAN, CONTROL, VOXELS, one, steps) for one in (values, values.exp(), 3 * values - 2)
    ]
    assert curves[0].scores.tolist() == curves[1].scores.tolist() == curves[2].scores.tolist()


def test_true_contributions_give_the_best_curves_of_a_linear_score() -> None:
    air, true = torch.zeros_like(SCAN), WEIGHT * SCAN
    best = (
        removal_curve(linear, SCAN, air, VOXELS, true, 60).area,
        removal_curve(linear, air, SCAN, VOXELS, true, 60).area,
    )
    for seed in range(20):
        other = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
        assert best[0] < removal_curve(linear, SCAN, air, VOXELS, other, 60).area
        assert best[1] > removal_curve(linear, air, SCAN, VOXELS, other, 60).area


def test_no_order_falls_faster_or_slower_than_that_of_the_contributions() -> None:
    """At every step: smallest contribution first, at least any other order, at least largest first."""
    air, true = torch.zeros_like(SCAN), WEIGHT * SCAN
    most, least = (removal_curve(linear, SCAN, air, VOXELS, one, 60).scores for one in (true, -true))
    for seed in range(20):
        order = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
        scores = removal_curve(linear, SCAN, air, VOXELS, order, 60).scores
        assert bool(((most <= scores + 1e-9) & (scores <= least + 1e-9)).all())


def test_an_even_map_removes_in_random_order() -> None:
    """For a linear score every random order falls along a straight line on average."""
    air, even = torch.zeros_like(SCAN), torch.ones(SHAPE)
    areas = [removal_curve(linear, SCAN, air, VOXELS, even, 60, batch=61, seed=seed).area for seed in range(200)]
    middle = float(linear(SCAN[None, None])) / 2
    assert np.mean(areas) == pytest.approx(middle, abs=4 * np.std(areas) / np.sqrt(200))
    assert np.std(areas) > 0


def test_aopc_written_out() -> None:
    curve = Curve(np.linspace(0, 1, 5), np.array([0.9, 0.7, 0.8, 0.2, 0.1]))
    assert curve.aopc(2) == pytest.approx((0 + 0.2 + 0.1) / 3)
    assert curve.aopc(10) == pytest.approx((0 + 0.2 + 0.1 + 0.7 + 0.8) / 5)


def test_voxels_outside_keep_their_value() -> None:
    inside = SCAN > 0.5
    seen: list[Tensor] = []

    def spy(volumes: Tensor) -> Tensor:
        seen.append(volumes)
        return linear(volumes)

    removal_curve(spy, SCAN, torch.zeros_like(SCAN), part_numbers(inside), WEIGHT, 5)
    volumes = torch.cat(seen)[:, 0]
    assert torch.equal(volumes[:, ~inside], SCAN[~inside].expand(6, -1))
    assert not volumes[-1][inside].any()


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_drop_and_gain_exclude_each_other(p: float, o: float) -> None:
    drop, gain = average_drop(p, o), average_gain(p, o)
    assert 0 <= drop <= 100
    assert 0 <= gain <= 100
    assert drop * gain == 0
    assert average_increase(p, o) == 100 * (o > p)


@pytest.mark.parametrize("certain", [1.0, 1 - 1e-9])
def test_a_certain_scan_gains_nothing_and_is_counted(certain: float) -> None:
    assert average_gain(certain, 1.0) <= 0.1
    found = faithfulness(lambda v: torch.full((len(v),), certain), SCAN, WEIGHT, REGIONS)
    assert found["ag_clamped"] == 1
    assert found["insertion"] == found["deletion"] == pytest.approx(certain)


def test_coherency_and_adcc() -> None:
    a = np.random.default_rng(0).normal(size=SHAPE)
    assert coherency(a, 3 * a + 1) == pytest.approx(1)
    assert coherency(a, -a) == pytest.approx(-1)
    assert math.isnan(coherency(a, np.ones(SHAPE)))
    other = np.random.default_rng(1).normal(size=SHAPE)
    assert coherency(a, other) == pytest.approx(np.corrcoef(a.ravel(), other.ravel())[0, 1])
    assert adcc(0.5, 0.4, 0.2) == pytest.approx(3 / (1 / 0.5 + 1 / 0.6 + 1 / 0.8))
    assert adcc(-0.1, 0.1, 0.1) == adcc(0.0, 0.1, 0.1) == 0
    assert math.isnan(adcc(math.nan, 0.1, 0.1))


def test_adcc_is_that_of_the_source_and_the_rescaled_one_is_beside_it() -> None:
    """Torres Figueroa 2024, eq. 1.12 to 1.14, again: r as it is, in float64 by numpy."""
    values = WEIGHT * SCAN

    def again(x: Tensor) -> Tensor:
        return x**2 - 0.3 * x

    found = faithfulness(probability, SCAN, values, REGIONS, explain=again)
    mask = mask_of(values.numpy().ravel())
    masked = SCAN * torch.as_tensor(mask).reshape(SHAPE)
    r = np.corrcoef(values.numpy().ravel(), again(masked).numpy().ravel())[0, 1]
    assert 0 < r < 1
    before, after = (float(probability(one[None, None])) for one in (SCAN, masked))
    drop = max(before - after, 0) / before
    rest = 1 / (1 - mask.mean()) + 1 / (1 - drop)
    assert found["adcc"] == pytest.approx(3 / (1 / r + rest), abs=1e-12)
    assert found["adcc_rescaled"] == pytest.approx(3 / (2 / (1 + r) + rest), abs=1e-12)


def test_a_map_of_ones_hides_nothing() -> None:
    found = faithfulness(probability, SCAN, torch.ones(SHAPE), REGIONS, explain=lambda x: torch.ones(SHAPE))
    assert found["ad"] == found["ag"] == found["ai"] == found["max_sensitivity"] == 0
    assert found["gini"] == pytest.approx(0, abs=1e-12)  # a sum, rounded otherwise on some machines
    assert found["entropy"] == pytest.approx(math.log2(60))
    assert math.isnan(found["adcc"])


def test_a_map_becomes_a_mask_by_its_range_as_cam_methods_do() -> None:
    """Mixtures of features are above 0 nearly everywhere: the constant part must not show what they hold least."""
    values = (WEIGHT * SCAN).abs()
    mask = (values - values.min()) / (values.max() - values.min())
    p, o = float(probability(SCAN[None, None])), float(probability((SCAN * mask)[None, None]))
    judged = Faithfulness(probability, SCAN, REGIONS)
    for one in (mask, values, 5 * values + 40):
        found = judged.masked(one)
        assert found["ad"] == pytest.approx(average_drop(p, o), rel=1e-9)
        assert found["ag"] == pytest.approx(average_gain(p, o), rel=1e-9)
    assert found["ad"] + found["ag"] > 1
    signed = judged.masked(WEIGHT)  # what speaks against the class is hidden, and nothing else
    shown = WEIGHT.clamp(min=0) / WEIGHT.max()
    assert signed["ag"] == pytest.approx(average_gain(p, float(probability((SCAN * shown)[None, None]))), rel=1e-9)


def test_masked_recognition_of_one_voxel_written_out() -> None:
    values = torch.zeros(SHAPE)
    values[1, 2, 3] = 7.0
    values[0, 0, 0] = -9.0
    found = faithfulness(probability, SCAN, values, REGIONS, CONTROL)
    masked = CONTROL.clone()
    masked[1, 2, 3] = SCAN[1, 2, 3]
    p, o = (float(probability(one[None, None])) for one in (SCAN, masked))
    assert found["ad"] == pytest.approx(100 * max(p - o, 0) / p)
    assert found["ag"] == pytest.approx(100 * max(o - p, 0) / (1 - p))
    assert (found["gini"], found["entropy"]) == (pytest.approx(59 / 60), 0)


def test_maps_that_move_with_the_scan_are_told_from_those_with_a_place_of_their_own() -> None:
    """Odd and unequal sides. A map that knows each voxel alone moves exactly; one of the grid's places does not.

    The brain has four voxels to spare on every side.
    """
    shape = (17, 20, 19)
    generator = torch.Generator().manual_seed(2)
    volume, places = (torch.rand(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    room = (slice(4, -4),) * 3
    inside = torch.zeros(shape, dtype=torch.bool)
    inside[room] = volume[room] > 0.2
    for shift in (1, 4):
        assert shift_correlation(lambda x: x**2, volume, volume**2, inside, shift) == pytest.approx(1)
        fixed = shift_correlation(lambda _: places, volume, places, inside, shift)
        assert abs(fixed) < 0.3
    by_hand, cosines = [], []
    for a, b in ((slice(2, None), slice(None, -2)), (slice(None, -2), slice(2, None))):
        kept = inside[b, b, b]
        x, y = places[b, b, b][kept].numpy(), places[a, a, a][kept].numpy()
        by_hand.append(np.corrcoef(x, y)[0, 1])
        cosines.append(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert shift_correlation(lambda _: places, volume, places, inside, 2) == pytest.approx(np.mean(by_hand))
    assert shift_likeness(lambda _: places, volume, places, inside, 2) == pytest.approx(
        (np.mean(by_hand), np.mean(cosines))
    )
    assert math.isnan(shift_correlation(lambda x: x * torch.nan, volume, volume, inside, 1))
    assert math.isnan(shift_likeness(lambda x: x * 0, volume, volume, inside, 1)[1])
    assert math.isnan(shift_correlation(lambda x: x, volume, volume, inside, 5))  # a part of the brain leaves
    assert math.isnan(shift_correlation(lambda x: x, volume, volume, inside, 17))


def test_the_share_of_a_brain_that_leaves_the_volume_is_that_of_the_worse_direction() -> None:
    brain = torch.zeros((10, 11, 12), dtype=torch.bool)
    brain[1:8, 2:8, 2:8] = True
    assert [lost_share(brain, shift) for shift in (0, 1)] == [0, 0]
    assert lost_share(brain, 2) == pytest.approx(1 / 7)  # back: one of seven planes
    assert lost_share(brain, 3) == pytest.approx(1 - 5 * 5 * 5 / (7 * 6 * 6))
    assert lost_share(brain, 10) == 1
    assert math.isnan(lost_share(torch.zeros_like(brain), 1))


def test_a_network_without_places_has_1_at_every_shift_that_loses_nothing_and_no_value_beyond() -> None:
    """Convolutions, ReLU, and an average over everything.

    What two layers compute of the brain depends on three voxels beyond it, and it has six to spare: up to a shift of 3
    the network computes all that it did.
    """
    torch.manual_seed(3)
    network = torch.nn.Sequential(
        torch.nn.Conv3d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(4, 2, 3, padding=1), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool3d(1), torch.nn.Flatten(),
    ).double()  # fmt: skip
    brain = torch.zeros((18, 17, 19), dtype=torch.bool)
    brain[6:12, 6:11, 6:13] = True
    volume = torch.rand(brain.shape, dtype=torch.float64) * brain

    def explain(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(network(x[None, None])[0, 1], x)
        return gradient * x.detach()

    values = explain(volume)
    assert values.abs().max() > 0
    for shift in range(4):
        assert lost_share(brain, shift) == 0
        assert shift_likeness(explain, volume, values, brain, shift) == pytest.approx((1, 1), abs=1e-9)
    assert lost_share(brain, 6) == 0
    assert shift_correlation(explain, volume, values, brain, 6) < 0.9  # the face cuts features beyond the brain
    for shift in (7, 9):
        assert lost_share(brain, shift) > LOST
        assert all(math.isnan(one) for one in shift_likeness(explain, volume, values, brain, shift))


def test_up_to_one_in_a_thousand_voxels_of_a_brain_may_leave() -> None:
    brain = torch.zeros((12, 12, 12), dtype=torch.bool)
    brain[1:11, 1:11, 1:11] = True
    volume = torch.rand(brain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    brain[0, 5, 5] = True  # 1 of 1001
    assert 0 < lost_share(brain, 1) < LOST
    assert shift_correlation(lambda x: x, volume, volume, brain, 1) == pytest.approx(1)
    brain[0, 5, 6] = True  # 2 of 1002
    assert lost_share(brain, 1) > LOST
    assert math.isnan(shift_correlation(lambda x: x, volume, volume, brain, 1))


def test_boxes_of_the_truth_and_all_but_them_written_out() -> None:
    """Of an even map the boxes alone; two parts of the truth have two boxes."""
    truth = np.zeros(SHAPE, bool)
    truth[0, 0, 0] = truth[0, 1, 1] = truth[2, 3, 4] = True
    box = torch.zeros(SHAPE)
    box[0, :2, :2] = box[2, 3, 4] = 1
    judge = Faithfulness(probability, SCAN, REGIONS, CONTROL)
    values = torch.rand(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) - 0.3
    for one, share in ((torch.ones(SHAPE), torch.ones(SHAPE)), (values, values.clamp(min=0) / values.max())):
        found = boxed(judge, one, truth)
        assert list(found) == list(BOXED)
        for place, shown in (("inside", box), ("outside", 1 - box)):
            seen = CONTROL + share * shown * (SCAN - CONTROL)
            p, o = (float(probability(a[None, None])) for a in (SCAN, seen))
            assert found[f"ad_{place}"] == pytest.approx(100 * max(p - o, 0) / p)
            assert found[f"ag_{place}"] == pytest.approx(100 * max(o - p, 0) / (1 - p))
            assert found[f"ai_{place}"] == 100 * (o > p)


@pytest.mark.parametrize("replacement", [0.0, CONTROL], ids=["air", "controls"])
def test_exact_contributions_of_a_linear_score_have_no_infidelity(replacement: float | Tensor) -> None:
    exact = WEIGHT * (SCAN - replacement)
    found = faithfulness(probability, SCAN, exact, REGIONS, replacement, logit=linear)
    assert found["infidelity"] == pytest.approx(0, abs=1e-20)
    assert found["infidelity_scaled"] == pytest.approx(0, abs=1e-12)
    halved = faithfulness(probability, SCAN, exact / 2, REGIONS, replacement, logit=linear)
    assert halved["infidelity"] > 0.01
    assert halved["infidelity_scaled"] == pytest.approx(0, abs=1e-12)
    turned = faithfulness(probability, SCAN, exact.flip(0), REGIONS, replacement, logit=linear)
    assert turned["infidelity_scaled"] > 0.1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_scaled_infidelity_is_that_of_the_best_factor(seed: int) -> None:
    sums, drops = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    factor = np.linalg.lstsq(sums.numpy()[:, None], drops.numpy(), rcond=None)[0][0]
    raw, share = infidelity(sums, drops)
    assert raw == pytest.approx(float(((sums - drops) ** 2).mean()))
    assert share == pytest.approx(float(((factor * sums - drops) ** 2).mean() / (drops**2).mean()))
    assert 0 <= share <= 1


def test_infidelity_where_nothing_moves() -> None:
    assert math.isnan(infidelity(torch.ones(3), torch.zeros(3))[1])
    assert infidelity(torch.zeros(3), torch.ones(3)) == (1, 1)


def test_sets_are_of_whole_parts_and_never_outside() -> None:
    inside = SCAN > 0.4
    parts = part_numbers(inside, REGIONS)
    sets = random_sets(linear, SCAN, torch.zeros_like(SCAN), parts, samples=40, batch=7)
    sums, drops = sets.sums(WEIGHT * SCAN), sets.drops
    assert sums == pytest.approx(drops.numpy())
    assert len(set(np.round(sums.tolist(), 9))) > 20


def test_max_sensitivity_written_out() -> None:
    inside = SCAN > 0.4

    def explain(x: Tensor) -> Tensor:
        assert torch.equal(x[~inside], SCAN[~inside])
        assert float((x - SCAN).abs().max()) <= 0.1
        return x**2

    found = max_sensitivity(explain, SCAN, explain(SCAN), inside, samples=6, radius=0.1)
    bound = float(torch.linalg.vector_norm((0.2 * SCAN + 0.01) * inside) / torch.linalg.vector_norm(SCAN**2))
    assert 0 < found < bound
    assert found == max_sensitivity(explain, SCAN, explain(SCAN), inside, samples=6, radius=0.1)
    assert found >= max_sensitivity(explain, SCAN, explain(SCAN), inside, samples=2, radius=0.1)
    assert max_sensitivity(lambda x: WEIGHT, SCAN, WEIGHT, inside) == 0
    assert math.isnan(max_sensitivity(lambda x: x * math.nan, SCAN, WEIGHT, inside))


@pytest.mark.parametrize("broken", [math.nan, math.inf, 0.0])
def test_undefined_maps_cost_nothing_and_are_counted(broken: float) -> None:
    values = torch.full(SHAPE, broken) if broken == 0 else torch.full(SHAPE, broken).where(REGIONS == 3, SCAN)

    def refuses(volumes: Tensor) -> Tensor:
        raise AssertionError("no pass of the network is needed")

    found = faithfulness(refuses, SCAN, values, REGIONS)
    assert tuple(found) == tuple(FAITHFULNESS_SCORES)
    assert found.pop("undefined") == 1
    assert all(math.isnan(value) for value in found.values())


def test_every_column_has_a_value_and_a_second_run_has_the_same() -> None:
    def explain(x: Tensor) -> Tensor:
        return WEIGHT * x.sin()

    runs = [faithfulness(probability, SCAN, explain(SCAN), REGIONS, CONTROL, explain=explain, seed=4) for _ in range(2)]
    assert runs[0] == runs[1]
    assert tuple(runs[0]) == tuple(FAITHFULNESS_SCORES)
    assert all(math.isfinite(value) for value in runs[0].values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": WEIGHT[:2]}, "map has the grid"),
        ({"regions": REGIONS.permute(2, 1, 0)}, "regions has the grid"),
        ({"replacement": SCAN}, "the scan itself"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        faithfulness(**({"score": probability, "volume": SCAN, "values": WEIGHT, "regions": REGIONS} | change))


def test_what_maps_of_a_scan_share_is_computed_once_and_changes_no_score() -> None:
    asked: list[int] = []

    def counted(volumes: Tensor) -> Tensor:
        asked.append(len(volumes))
        return probability(volumes)

    maps = [WEIGHT * SCAN, WEIGHT, torch.ones(SHAPE, dtype=torch.float64)]
    one = Faithfulness(counted, SCAN, REGIONS, CONTROL)
    together = [one.scores(values) for values in maps]
    shared = sum(asked)
    asked.clear()
    apart = [faithfulness(counted, SCAN, values, REGIONS, CONTROL) for values in maps]
    assert [repr(row) for row in together] == [repr(row) for row in apart]
    assert sum(asked) - shared == 2 * 33


def test_masked_recognition_alone_is_that_of_all_scores() -> None:
    values = torch.rand(SCAN.shape, generator=torch.Generator().manual_seed(3)) - 0.3
    judged = Faithfulness(probability, SCAN, REGIONS, CONTROL)
    whole, alone = judged.scores(values), judged.masked(values)
    assert alone == {name: whole[name] for name in ("ad", "ag", "ai", "ag_clamped")}
    assert np.isnan(list(judged.masked(torch.zeros_like(values)).values())).all()
