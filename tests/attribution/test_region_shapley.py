"""Region swap and region Shapley against brute force, and what fairness asks of them."""

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
from perturbation_toys import Score
from reference_toys import branches, controls, four_regions
from torch import Tensor, nn

from heatlas.atlases.regions import neuromorphometrics
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining, start_values
from heatlas.pipeline.attribution.records import RunningMean
from heatlas.pipeline.attribution.reference import region_swap
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.reference.region_swap import REST, RegionEvidence, RegionShapley, RegionSwap
from heatlas.pipeline.regions.tables import scan_rows

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
