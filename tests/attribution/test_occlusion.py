"""Occlusion, region swap and region Shapley."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gradient_toys import volumes
from hypothesis import given, settings
from hypothesis import strategies as st
from perturbation_toys import GRID, Score, linear, random_volumes, random_weight, small_network, unchanged
from reference_toys import branches, controls, four_regions
from torch import Tensor, nn

from heatlas.atlases.regions import neuromorphometrics
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining, start_values
from heatlas.pipeline.attribution.perturbation.masking import (
    Masking,
    Occlusion,
    RegionLabels,
    RegionOcclusion,
    boxes,
    painted,
)
from heatlas.pipeline.attribution.records import RunningMean
from heatlas.pipeline.attribution.reference import region_swap
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.reference.region_swap import REST, RegionEvidence, RegionShapley, RegionSwap
from heatlas.pipeline.regions.tables import scan_rows
from heatlas.pipeline.run.errors import BadInputError, UsageError


def brute_force(score, x: torch.Tensor, baseline: torch.Tensor, size, stride) -> torch.Tensor:
    """The definition, box by box: starts at 0, stride, ... until the last voxel is covered; cut at the border."""
    starts = []
    for length, width, step in zip(x.shape[-3:], size, stride, strict=True):
        axis = [0]
        while axis[-1] + width < length:
            axis.append(axis[-1] + step)
        starts.append(axis)
    total, count = torch.zeros(x.shape[-3:], dtype=x.dtype), torch.zeros(x.shape[-3:], dtype=x.dtype)
    for corner in itertools.product(*starts):
        inside = torch.zeros(x.shape[-3:], dtype=torch.bool)
        inside[tuple(slice(a, a + width) for a, width in zip(corner, size, strict=True))] = True
        drop = score(x[None]) - score(torch.where(inside, baseline, x)[None])
        total[inside] += drop.item() / int(inside.sum())
        count[inside] += 1
    assert (count > 0).all()
    return total / count


CASES = [
    ((3, 3, 3), (3, 3, 3)),
    ((3, 2, 4), (2, 1, 3)),
    ((7, 8, 10), (1, 1, 1)),
    ((1, 1, 1), (1, 1, 1)),
    ((4, 5, 6), (3, 5, 5)),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("size", "stride"), CASES)
@pytest.mark.parametrize("baseline", [0.0, -1.3])
def test_boxes_equal_the_definition_on_a_network(size, stride, baseline):
    net, x = small_network(), random_volumes()
    found = attribute(net, x, 1, Occlusion(size, stride, Masking(baseline))).values
    for volume in range(2):
        expected = brute_force(
            lambda v: net(v)[:, 1].detach(), x[volume], torch.tensor(baseline, dtype=torch.float64), size, stride
        )
        torch.testing.assert_close(found[volume, 0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("size", "stride"), CASES)
def test_a_linear_score_gives_the_mean_of_box_means(size, stride):
    weight, x = random_weight(), random_volumes()
    share = x * weight
    total, count = torch.zeros_like(share), torch.zeros_like(share)
    for box in boxes(GRID, size, stride):
        where = (slice(None), slice(None), *box)
        total[where] += share[where].mean(dim=(2, 3, 4), keepdim=True)
        count[where] += 1
    found = attribute(linear(weight), x, 1, Occlusion(size, stride)).values
    torch.testing.assert_close(found, total / count, rtol=1e-10, atol=1e-12)


def test_boxes_that_tile_hand_out_the_whole_score_of_a_linear_model():
    weight, x = random_weight(), random_volumes()
    found = attribute(linear(weight), x, 1, Occlusion((3, 3, 4), (3, 3, 4))).values
    torch.testing.assert_close(found.sum(dim=(1, 2, 3, 4)), (x * weight).sum(dim=(1, 2, 3, 4)))


def test_one_voxel_boxes_on_a_linear_model_are_input_times_gradient_from_the_baseline():
    weight, x = random_weight(), random_volumes()
    method = Occlusion(1, 1, Masking(0.3))
    torch.testing.assert_close(attribute(linear(weight), x, 1, method).values, weight * (x - 0.3))


@given(
    lengths=st.tuples(*[st.integers(1, 9)] * 3),
    size=st.tuples(*[st.integers(1, 9)] * 3),
    stride=st.tuples(*[st.integers(1, 9)] * 3),
)
@settings(max_examples=60, deadline=None)
def test_boxes_cover_every_voxel_and_none_is_empty_or_redundant(lengths, size, stride):
    size = tuple(map(min, size, lengths))
    stride = tuple(map(min, stride, size))
    covered = torch.zeros(lengths)
    cover = boxes(lengths, size, stride)
    for box in cover:
        assert covered[box].numel() > 0
        assert (covered[box] == 0).any()  # each box, in order, reaches voxels that those before it do not
        covered[box] += 1
    assert (covered > 0).all()


def test_the_planted_box_is_found_and_air_is_exactly_zero():
    x = random_volumes()
    net = Score(lambda v: torch.tanh(v[:, 0, 2:5, 3:5, 4:7].sum(dim=(1, 2, 3)))).eval()
    found = attribute(net, x, 1, Occlusion(1, 1)).values[:, 0]
    planted = torch.zeros(GRID, dtype=torch.bool)
    planted[2:5, 3:5, 4:7] = True
    assert (found[:, planted] > 0).all()
    assert not found[:, ~planted].any()
    net = small_network(torch.float32)
    found = attribute(net, x.float(), 1, Occlusion(1, 1)).values
    assert not found[x == 0].any()  # exactly: hiding air changes nothing, not even a rounding error
    assert found[x != 0].any()


def test_boxes_in_air_cost_nothing():
    x = torch.zeros(1, 1, *GRID, dtype=torch.float64)
    x[..., :2, :2, :2] = 0.5
    net = linear(random_weight())
    attribute(net, x, 1, Occlusion(2, 2))
    # the check before work, which is also the reported start value, the whole volume, the only box with tissue
    assert net.evaluated == 3


@pytest.mark.parametrize("inner", ["baseline", "zero"])
def test_an_inner_stage_hides_all_channels_of_a_feature(inner):
    net, x = small_network(), random_volumes()
    found = attribute(
        net, x, 1, Occlusion((2, 3, 2), (2, 2, 1), Masking(0.4, inner)), stage=3, at_input_grid=False
    ).values
    with torch.no_grad():
        features = net[:3](x)
        baseline = net[:3](torch.full_like(x[:1], 0.4))[0] if inner == "baseline" else torch.zeros(()).double()
        for volume in range(2):
            expected = brute_force(lambda a: net[3:](a)[:, 1], features[volume], baseline, (2, 3, 2), (2, 2, 1))
            torch.testing.assert_close(found[volume, 0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("stage", [0, 3])
def test_batches_do_not_matter_and_are_bounded(stage):
    net, x = small_network(), random_volumes(3)
    at_once = attribute(net, x, 2, Occlusion(3, 2, batch=64), stage=stage).values
    for batch in (1, 5):
        torch.testing.assert_close(
            attribute(net, x, 2, Occlusion(3, 2, batch=batch), stage=stage).values, at_once, rtol=0, atol=1e-12
        )
    singles = torch.cat([attribute(net, v[None], 2, Occlusion(3, 2), stage=stage).values for v in x])
    torch.testing.assert_close(singles, at_once, rtol=0, atol=1e-12)
    model = linear(random_weight())
    attribute(model, x, 1, Occlusion(3, 2, batch=5))
    assert model.largest_batch == 5


def region_labels() -> torch.Tensor:
    labels = torch.zeros(GRID, dtype=torch.int32)
    labels[1:3, :4], labels[3:6, 2:5, 5:], labels[6, 7, 9], labels[4, 1, 0] = 48, 7, 30, 47
    return labels


def test_region_drops_of_a_linear_model_are_sums_over_the_region():
    weight, x, labels = random_weight(), random_volumes(), region_labels()
    method = RegionOcclusion(RegionLabels("toy", labels))
    with explaining(linear(weight), x, 1) as view:
        table = method.drops(view)
    assert table.numbers == (7, 30, 47, 48)
    found = attribute(linear(weight), x, 1, method).values[:, 0]
    for number in table.numbers:
        inside = labels == number
        expected = (x[:, 0] * weight)[:, inside].sum(dim=1)
        torch.testing.assert_close(table.of(number), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[:, inside].sum(dim=1), expected, rtol=1e-10, atol=1e-12)
        assert (found[:, inside] == found[:, inside][:, :1]).all()  # one value per region
        assert table.voxels[table.numbers.index(number)] == inside.sum()
    assert not found[:, labels == 0].any()


def test_region_drops_of_a_network_equal_hiding_by_hand_whatever_the_batch():
    net, x, labels = small_network(), random_volumes(3), region_labels()
    tables = []
    for batch in (1, 2, 8):
        with explaining(net, x, 1, start="probability") as view:
            tables.append(RegionOcclusion(RegionLabels("toy", labels), Masking(0.2), batch).drops(view))
    with torch.no_grad():
        whole = net(x).softmax(1)[:, 1]
        for number in tables[0].numbers:
            without = net(torch.where(labels == number, 0.2, x)).softmax(1)[:, 1]
            for table in tables:
                torch.testing.assert_close(table.of(number), whole - without, rtol=0, atol=1e-12)


def test_labels_on_another_grid_or_stage_are_refused():
    net, x = small_network(), random_volumes()
    turned = RegionOcclusion(RegionLabels("atlas X", region_labels().permute(2, 1, 0)))
    with unchanged(net), pytest.raises(BadInputError, match=r"atlas X.*\(10, 8, 7\).*\(7, 8, 10\)"):
        attribute(net, x, 1, turned)
    with pytest.raises(UsageError, match="stage 0"):
        attribute(net, x, 1, RegionOcclusion(RegionLabels("atlas", region_labels())), stage=2)
    for labels in (torch.rand(GRID), torch.zeros(GRID, dtype=torch.int32), torch.ones(2, 2, dtype=torch.int32)):
        with pytest.raises(BadInputError, match="atlas X"):
            RegionLabels("atlas X", labels)


def test_painting_is_by_number_not_by_position():
    labels = torch.tensor([[[0, 9, 4], [4, 120, 5]]])
    values = torch.tensor([[1.0, 2.0, 3.0]])
    assert painted(labels, (4, 9, 121), values).tolist() == [[[[[0, 2, 1], [1, 0, 0]]]]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 2, "stride": 3}, "uncovered"),
        ({"size": 0}, "size = 0"),
        ({"size": (2, 2)}, "size"),
        ({"size": 2.5}, "size = 2.5"),
        ({"size": (2, 2, True)}, r"size = \(2, 2, True\)"),
        ({"size": 4, "stride": -1}, "stride"),
        ({"batch": 0}, "batch"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(UsageError, match=message):
        Occlusion(**settings)


def test_boxes_larger_than_the_grid_are_refused_instead_of_one_flat_map():
    with pytest.raises(UsageError, match=r"\(8, 8, 8\).*\(7, 8, 10\)"):
        attribute(small_network(), random_volumes(), 1, Occlusion(8, 8))


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_constant_volumes_give_finite_maps(value):
    x = torch.full((1, 1, *GRID), value, dtype=torch.float64)
    for method in (Occlusion(3, 2), RegionOcclusion(RegionLabels("toy", region_labels()))):
        found = attribute(small_network(), x, 1, method).values
        assert torch.isfinite(found).all()
        assert bool(found.any()) == (value != 0)


def test_the_model_is_unchanged_also_after_an_exception():
    net, x = small_network(), random_volumes()
    with unchanged(net):
        attribute(net, x, 1, Occlusion(3, 3))
        attribute(net, x, 1, RegionOcclusion(RegionLabels("toy", region_labels())))

    class Breaks(torch.nn.Module):
        def forward(self, a):
            if len(a) > 3:
                raise RuntimeError("too much")
            return a

    fragile = torch.nn.Sequential(Breaks(), *net).eval()
    with unchanged(fragile), pytest.raises(RuntimeError, match="too much"):
        attribute(fragile, x, 1, Occlusion(3, 3, batch=8))


def test_sidecar_says_baseline_and_atlas():
    labels = RegionLabels("neuromorphometrics", region_labels())
    parameters = attribute(linear(random_weight()), random_volumes(), 1, RegionOcclusion(labels)).parameters
    assert "neuromorphometrics" in parameters["regions"]
    assert "baseline=0.0" in parameters["masking"]
    assert repr(labels) != repr(RegionLabels("neuromorphometrics", region_labels() * 2))


# Region swap and region Shapley against brute force, and what fairness asks of them.

LABELS = four_regions().labels


def found(model: nn.Module, method: Any, x: Tensor) -> RegionEvidence:
    with explaining(model, x, 1, start="evidence") as view:
        return method.evidence(view)[0]


def coalition_values(model: nn.Module, x: Tensor, mean: Tensor) -> tuple[list[int], dict[frozenset[int], float]]:
    """Score of every set of regions that are as in the volume, the others as in the mean control; the slow way."""
    numbers = [REST, 2, 3, 5, 9]
    values = {}
    for size in range(len(numbers) + 1):
        for kept in itertools.combinations(numbers, size):
            mixed = mean.clone()
            for number in kept:
                own = (0 if number == REST else number) == LABELS
                mixed[0, 0][own] = x[0, 0][own]
            with torch.no_grad():
                values[frozenset(kept)] = float(start_values(model(mixed), 1, "evidence"))
    return numbers, values


def brute_shapley(numbers: list[int], values: dict[frozenset[int], float]) -> list[float]:
    n, answer = len(numbers), []
    for number in numbers:
        others = [one for one in numbers if one != number]
        total = 0.0
        for size in range(n):
            for kept in map(frozenset, itertools.combinations(others, size)):
                weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                total += weight * (values[kept | {number}] - values[kept])
        answer.append(total)
    return answer


@pytest.mark.ci
def test_many_orders_give_the_shapley_value_of_brute_force() -> None:
    model, x, reference = branches(), volumes(1), controls()
    numbers, values = coalition_values(model, x, reference.mean)
    exact = np.array(brute_shapley(numbers, values))
    answer = found(model, RegionShapley(reference, four_regions(), pairs=400, batch=64), x)
    assert answer.numbers == tuple(numbers)
    errors = answer.standard_error.numpy()
    assert float(errors.max()) < 0.05 * np.abs(exact).max()
    assert np.all(np.abs(answer.evidence.numpy() - exact) < 4 * errors + 1e-12)


def test_all_orders_of_a_game_give_its_value_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over every order, each with its reverse, is the Shapley value itself."""
    model, x, reference = branches(), volumes(1), controls()
    numbers, values = coalition_values(model, x, reference.mean)
    exact = brute_shapley(numbers, values)
    orders = torch.tensor([list(order) for order in itertools.permutations(range(5))])
    everything = torch.stack([orders, orders.flip(1)], dim=1)
    monkeypatch.setattr(region_swap, "shapley_orders", lambda *_: everything)
    answer = found(model, RegionShapley(reference, four_regions(), pairs=120, batch=64), x)
    torch.testing.assert_close(answer.evidence.tolist(), exact, rtol=1e-9, atol=1e-12)


def test_swap_is_what_each_region_alone_takes_away() -> None:
    model, x, reference = branches(), volumes(1), controls()
    numbers, values = coalition_values(model, x, reference.mean)
    everyone = frozenset(numbers)
    expected = [values[everyone] - values[everyone - {number}] for number in numbers]
    answer = found(model, RegionSwap(reference, four_regions(), batch=3), x)
    assert answer.numbers == tuple(numbers)
    torch.testing.assert_close(answer.evidence.tolist(), expected, rtol=1e-9, atol=1e-12)
    assert answer.voxels.tolist()[1:] == [int((number == LABELS).sum()) for number in numbers[1:]]


@given(st.integers(0, 2**20), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_fairness(seed: int, pairs: int) -> None:
    """Efficiency, a region that the score ignores, one that equals the controls, and two that do the same."""
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 1, *LABELS.shape, dtype=torch.float64, generator=source)
    mean = torch.rand(1, 1, *LABELS.shape, dtype=torch.float64, generator=source)
    mean[0, 0][LABELS == 3] = x[0, 0][LABELS == 3]
    inside = [number == LABELS for number in (2, 5, 9)]

    def score(a: Tensor) -> Tensor:
        sums = [a[:, 0][:, own].mean(1) for own in inside[:2]]
        return torch.stack(sums, 1).amin(1) * 3 + sums[0] * sums[1]  # region 9 and the rest do not matter

    for own, value, control in zip(inside[:2], (0.8, 0.8), (0.1, 0.1), strict=True):
        x[0, 0][own], mean[0, 0][own] = value, control
    model = Score(score).eval()
    method = RegionShapley(Reference(mean, ("sub-1",)), four_regions(), pairs=pairs, seed=seed % 7)
    answer = found(model, method, x)
    of = dict(zip(answer.numbers, answer.evidence.tolist(), strict=True))
    assert 3 not in of  # equals the controls
    assert abs(of[9]) < 1e-12
    assert abs(of[REST]) < 1e-12
    total = float(score(x) - score(mean))
    assert math.isclose(sum(of.values()), total, abs_tol=1e-9)
    assert math.isclose(of[2], of[5], abs_tol=1e-9)  # antithetic pairs make twins equal in every draw


@pytest.mark.ci
def test_standard_error_falls_with_pairs_and_is_unknown_for_one() -> None:
    model, x, reference = branches(), volumes(1), controls()
    few, many = (found(model, RegionShapley(reference, four_regions(), pairs=n, batch=64), x) for n in (20, 320))
    ratio = float(few.standard_error.norm() / many.standard_error.norm())
    assert 2.5 < ratio < 6  # 4 in the limit
    one = found(model, RegionShapley(reference, four_regions(), pairs=1), x)
    assert bool(one.standard_error.isnan().all())


@pytest.mark.parametrize("networks", [1, 3])
def test_errors_travel_with_the_maps_and_fall_with_independent_networks(networks: int) -> None:
    """Summed over a region they are its standard error; of a mean of n like networks 1 / sqrt(n) of it."""
    model, x, reference = branches(), volumes(1), controls()
    method = RegionShapley(reference, four_regions(), pairs=5, batch=64)
    mean = RunningMean()
    for _ in range(networks):
        mean.add(attribute(model, x, 1, method, start="evidence"))
    own, answer = found(model, method, x), mean.result()
    sums = [float(answer.errors[0, 0][own.labels == number].sum()) for number in own.numbers]
    np.testing.assert_allclose(sums, own.standard_error.numpy() / math.sqrt(networks), rtol=1e-6)
    np.testing.assert_allclose(float(answer.values.sum()), float(own.evidence.sum()), rtol=1e-6)


def test_one_pair_of_orders_and_methods_without_draws_have_no_errors() -> None:
    model, x, reference = branches(), volumes(1), controls()
    for method in (RegionShapley(reference, four_regions(), pairs=1), RegionSwap(reference, four_regions())):
        assert attribute(model, x, 1, method, start="evidence").errors is None


def test_errors_stand_in_the_table_of_the_scan() -> None:
    sums = {"regionShapley": np.array([0.0, 2.0, 4.0]), "gb": np.array([1.0, 1.0, 1.0])}
    regions = neuromorphometrics()
    numbers = (0, *regions.numbers[:2])
    rows = scan_rows(
        {"participant_id": "sub-1", "session_id": None, "scan_id": "I1"}, sums,
        SimpleNamespace(numbers=numbers, n_voxels=np.array([9, 2, 2])), regions, ["regionShapley"],
        {"regionShapley": np.array([0.0, 0.5, 0.25])},
    )  # fmt: skip
    assert rows.loc[rows["map"] == "regionShapley", "standard_error"].tolist() == [0.0, 0.5, 0.25]
    assert rows.loc[rows["map"] == "gb", "standard_error"].isna().all()


def test_a_volume_that_equals_its_reference_has_no_evidence_anywhere() -> None:
    model, x = branches(), volumes(1)
    for method in (
        RegionSwap(Reference(x, ("a",)), four_regions()),
        RegionShapley(Reference(x, ("a",)), four_regions()),
    ):
        with explaining(model, x, 1, start="evidence") as view:
            assert method.evidence(view)[0].numbers == ()
            assert float(method.maps(view).abs().max()) == 0
