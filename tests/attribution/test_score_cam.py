"""Score-CAM, Ablation-CAM and Opti-CAM: loops, closed forms, finite differences and torch's Adam."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cam_toys import GRID, SHAPE, STAGE, VOXELS, network, view, volumes
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from heatlas.pipeline.attribution.cam.channel_maps import by_max, by_range, normalised
from heatlas.pipeline.attribution.cam.masked_volumes import (
    AblationCam,
    OptiCam,
    ScoreCam,
    drop_of_score,
    increase_of_score,
    mixture,
    optimised_weights,
)
from heatlas.pipeline.attribution.methods import attribute, to_input_grid
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.run.errors import UsageError


def brought_up(feature: np.ndarray) -> np.ndarray:
    """One feature map of the toy at the input's grid, by numpy: centres as worked out on paper for its layers.

    Conv 3: centre 1, step 1. Pool 2: + 0.5, step 2. Conv (3, 2, 1), padding (1, 0, 0): + (0, 1, 0).
    """
    for axis, (size, first) in enumerate(zip(SHAPE, (1.5, 2.5, 1.5), strict=True)):
        centres = first + 2.0 * np.arange(feature.shape[axis])
        feature = np.apply_along_axis(lambda line, c=centres, n=size: np.interp(np.arange(n), c, line), axis, feature)
    return feature


def increases_in_loops(net: nn.Module, x: Tensor, target: int, baseline: float) -> Tensor:
    features = net[:STAGE](x).detach().numpy()
    rows = []
    for volume, maps in zip(x.numpy()[:, 0], features, strict=True):
        row = []
        for feature in map(brought_up, maps):
            low, high = feature.min(), feature.max()
            mask = (feature - low) / (high - low) if high > low else 0 * feature
            shown = torch.from_numpy(baseline + mask * (volume - baseline))
            pair = torch.stack([shown, torch.full_like(shown, baseline)])[:, None]
            y = net(pair)[:, target].detach()
            row.append(float(y[0] - y[1]))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("baseline", [0.0, -0.7])
@pytest.mark.parametrize("head", ["gap", "dense"])
def test_score_cam_in_loops(baseline: float, head: str) -> None:
    net, x, masking = network(head), volumes(), Masking(baseline)
    u, A = increases_in_loops(net, x, 1, baseline), net[:STAGE](x).detach()
    with explaining(net, x, 1, STAGE) as opened:
        torch.testing.assert_close(increase_of_score(opened, masking, 4), u, rtol=1e-9, atol=1e-13)
    for softmax, weights in ((True, torch.softmax(u, 1)), (False, u)):
        expected = sum(weights[:, k].view(3, 1, 1, 1) * A[:, k] for k in range(6)).clamp(min=0)
        method = ScoreCam(channel_softmax=softmax, masking=masking)
        ours = attribute(net, x, 1, method, STAGE, at_input_grid=False).values[:, 0]
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-13)
    assert float(u.std()) > 1e-3


def test_score_cam_on_a_linear_score_is_the_shown_evidence() -> None:
    """f(x) = <w, x> + c: u_k = <w, n(A^k) (x - b)>, whatever c."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(int(np.prod(SHAPE)), 2)).double().eval()
    x, b = volumes(), 0.3
    row = net[2].weight[1].detach().view(SHAPE)
    with explaining(net, x, 1, "0") as opened:
        u = increase_of_score(opened, Masking(b), 2)
    mask = (x - x.amin((2, 3, 4), True)) / (x.amax((2, 3, 4), True) - x.amin((2, 3, 4), True))
    torch.testing.assert_close(u, (row * mask * (x - b)).sum((2, 3, 4)), rtol=1e-11, atol=1e-12)


class Counting(nn.Module):
    """Remembers how many volumes each call brings."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, a: Tensor) -> Tensor:
        self.seen.append(len(a))
        return a


@pytest.mark.parametrize("kind", [ScoreCam, AblationCam])
def test_batch_bounds_what_is_evaluated_at_once_and_changes_nothing(kind: Any) -> None:
    counting = Counting()
    net = nn.Sequential(*network()[:STAGE], counting, *network()[STAGE:]).eval()
    found = []
    for batch in (1, 4, 5, 100):
        with explaining(net, volumes(), 1, STAGE) as opened:
            counting.seen.clear()
            found.append(kind(batch=batch).maps(opened))
        whole = 3 if kind is AblationCam else 0  # the plain score of the three volumes
        assert max(counting.seen) <= max(batch, whole)
        assert sum(counting.seen) == 3 * 6 + 3
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-15)


def test_a_constant_channel_shows_nothing_even_when_rounding_ripples_it() -> None:
    net, x = network(), volumes()
    with torch.no_grad():
        net[3].weight[2].zero_()
        net[3].bias[2] = 0.7
    with explaining(net, x, 1, STAGE) as opened:
        assert opened.features[:, 2].unique().numel() == 1
        u = increase_of_score(opened, Masking(), 4)
        opened.features[:, 2] += 1e-16 * (torch.arange(VOXELS) % 40).view(GRID)
        assert opened.features[:, 2].unique().numel() > 1
        rippled = increase_of_score(opened, Masking(), 4)
    assert float(u[:, 2].abs().max()) == 0
    torch.testing.assert_close(rippled, u, rtol=0, atol=0)


@pytest.mark.parametrize("target", [0, 1, 2])
def test_ablation_cam_of_a_linear_head(target: int) -> None:
    """``W_ck mean(A^k) / |y|``; with a negative logit what speaks for the class stays positive."""
    net, x = network(), volumes()
    with torch.no_grad():
        net[-1].bias[2] = -5
    y, A = net(x).detach()[:, target], net[:STAGE](x).detach()
    assert target != 2 or float(y.max()) < 0
    expected = net[-1].weight[target].detach() * A.mean((2, 3, 4)) / y.abs()[:, None]
    with explaining(net, x, target, STAGE) as opened:
        torch.testing.assert_close(drop_of_score(opened, 4), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("head", ["mlp", "attention", "dense"])
def test_ablation_cam_in_loops(head: str) -> None:
    net, x = network(head), volumes()
    A = net[:STAGE](x).detach()
    y = net[STAGE:](A)[:, 1].detach()
    expected = torch.zeros(3, *GRID, dtype=torch.float64)
    for k in range(6):
        without = A.clone()
        without[:, k] = 0
        weight = (y - net[STAGE:](without)[:, 1].detach()) / y.abs()
        expected += weight.view(3, 1, 1, 1) * A[:, k]
    ours = attribute(net, x, 1, AblationCam(), STAGE, at_input_grid=False).values[:, 0]
    torch.testing.assert_close(ours, expected.clamp(min=0), rtol=1e-10, atol=1e-13)


def test_a_score_of_zero_leaves_finite_maps_of_the_same_shape() -> None:
    net, x = network(), volumes(1)
    with torch.no_grad():
        ours = attribute(net, x, 1, AblationCam(), STAGE).values
        net[-1].bias[1] -= net(x)[0, 1]
        net[-1].bias[1] -= net(x)[0, 1]
    assert abs(float(net(x)[0, 1].detach())) < 1e-15
    zeroed = attribute(net, x, 1, AblationCam(), STAGE).values
    assert bool(torch.isfinite(zeroed).all())
    torch.testing.assert_close(zeroed / zeroed.max(), ours / ours.max(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", [ScoreCam, AblationCam])
@pytest.mark.parametrize("batch", [0, -3, 1.5, True])
def test_wrong_batch_is_named(kind: Any, batch: object) -> None:
    with pytest.raises(UsageError, match=f"{kind.name}: batch = "):
        kind(batch=batch)


def test_features_are_not_written_to() -> None:
    with view() as opened:
        kept = opened.features.clone()
        AblationCam().maps(opened)
        ScoreCam().maps(opened)
        assert torch.equal(opened.features, kept)


values = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=9)


@given(values, st.floats(0.1, 10), st.floats(-50, 50))
def test_range_lies_in_the_unit_interval_and_ignores_scale_and_offset(
    line: list[float], scale: float, shift: float
) -> None:
    a = torch.tensor(line, dtype=torch.float64).view(1, 1, 1, 1, -1)
    found = by_range(a)
    assert float(found.min()) == 0
    assert float(found.max()) in (0, pytest.approx(1, abs=1e-15))
    if float(a.max() - a.min()) > 1e-3:
        assert float(found.max()) > 0.99
        torch.testing.assert_close(by_range(scale * a + shift), found, rtol=0, atol=1e-9)


def test_range_and_max_agree_on_maps_with_a_zero_and_ties_share_the_gradient() -> None:
    a = torch.tensor([0.0, 0.0, 1.0, 4.0, 4.0], dtype=torch.float64).view(1, 1, 1, 1, 5).requires_grad_()
    torch.testing.assert_close(by_range(a), by_max(a), rtol=0, atol=0)
    (g,) = torch.autograd.grad(by_range(a)[..., 2].sum(), a)  # (a2 - low) / (high - low)
    torch.testing.assert_close(
        g.flatten(), torch.tensor([-3 / 32, -3 / 32, 1 / 4, -1 / 32, -1 / 32], dtype=torch.float64)
    )


def test_empty_maps_have_no_nan_in_value_or_gradient() -> None:
    for how in ("range", "max", "sigmoid"):
        a = torch.zeros(1, 1, 2, 3, 4, requires_grad=True)
        mask = normalised(a, how)
        (g,) = torch.autograd.grad(mask.sum(), a)
        assert bool(torch.isfinite(mask).all())
        assert bool(torch.isfinite(g).all())
        assert float(mask.detach().max()) == (0.5 if how == "sigmoid" else 0)


SETTINGS = [(n, o) for n in ("range", "max", "sigmoid") for o in ("mask", "diff")]
ROWS = torch.arange(3)


def test_constant_weights_give_the_mean_feature_map() -> None:
    with view() as opened:
        for constant in (0.0, 0.5, -40.0):
            u = torch.full((3, 6), constant, dtype=torch.float64)
            torch.testing.assert_close(mixture(u, opened.features), opened.features.mean(1, keepdim=True))


def test_maps_are_convex_mixtures_of_the_features() -> None:
    """Features that are unit vectors over voxels return the weights themselves."""
    torch.manual_seed(0)
    unit = torch.eye(6, dtype=torch.float64).view(1, 6, 1, 2, 3)
    weights = mixture(torch.randn(1, 6, dtype=torch.float64) * 5, unit)
    assert float(weights.min()) >= 0
    assert float(weights.sum()) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(("normalisation", "objective"), SETTINGS)
def test_height_is_the_score_of_the_masked_volume(normalisation: str, objective: str) -> None:
    """Written out for one volume at a time through the whole network."""
    torch.manual_seed(1)
    net, x, b = network("mlp"), volumes(), 0.2
    u = torch.randn(3, 6, dtype=torch.float64)
    method = OptiCam(normalisation=normalisation, objective=objective, masking=Masking(b))
    with explaining(net, x, 1, STAGE) as opened:
        ours = method.ascent_objective(opened)(u, ROWS)
        for i in range(3):
            A = net[:STAGE](x[i : i + 1]).detach()
            S = sum(torch.softmax(u[i], 0)[k] * A[:, k : k + 1] for k in range(6))
            S = to_input_grid(S, opened)
            mask = {"range": (S - S.min()) / (S.max() - S.min()), "max": S / S.max(), "sigmoid": 1 / (1 + (-S).exp())}
            masked = net(b + mask[normalisation] * (x[i : i + 1] - b))[0, 1]
            expected = masked if objective == "mask" else -(net(x[i : i + 1])[0, 1] - masked).abs()
            torch.testing.assert_close(ours[i], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("normalisation", "objective"), SETTINGS)
def test_gradient_equals_finite_differences(normalisation: str, objective: str) -> None:
    torch.manual_seed(2)
    u = torch.randn(3, 6, dtype=torch.float64)
    with view("dense") as opened:
        height = OptiCam(normalisation=normalisation, objective=objective).ascent_objective(opened)
        leaf = u.clone().requires_grad_()
        (g,) = torch.autograd.grad(height(leaf, ROWS).sum(), leaf)
        numeric = torch.zeros_like(u)
        for k in range(6):
            step = torch.zeros(6, dtype=torch.float64)
            step[k] = 1e-6
            with torch.no_grad():
                numeric[:, k] = (height(u + step, ROWS) - height(u - step, ROWS)) / 2e-6
    assert float(g.abs().max()) > 1e-5
    torch.testing.assert_close(g, numeric, rtol=1e-5, atol=1e-7 * float(g.abs().max()) + 1e-10)


def test_height_ignores_an_offset_of_u_and_the_scale_of_features() -> None:
    torch.manual_seed(3)
    u = torch.randn(3, 6, dtype=torch.float64)
    with view("dense") as opened:
        plain = OptiCam().ascent_objective(opened)(u, ROWS)
        torch.testing.assert_close(OptiCam().ascent_objective(opened)(u + 7, ROWS), plain, rtol=1e-12, atol=1e-14)
        larger = replace(opened, features=4 * opened.features)
        torch.testing.assert_close(OptiCam().ascent_objective(larger)(u, ROWS), plain, rtol=1e-12, atol=1e-14)
        method = OptiCam(iterations=6)
        torch.testing.assert_close(method.weights(larger), method.weights(opened), rtol=1e-9, atol=1e-12)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("normalisation", "objective"), SETTINGS)
@pytest.mark.parametrize("head", ["gap", "dense"])
def test_best_is_never_below_the_start_nor_below_the_last(normalisation: str, objective: str, head: str) -> None:
    best = OptiCam(normalisation=normalisation, objective=objective, learning_rate=0.5, iterations=15)
    with view(head) as opened:
        height = best.ascent_objective(opened)
        with torch.no_grad():
            start = height(torch.zeros(3, 6, dtype=torch.float64), ROWS)
            last = height(replace(best, keep="last").weights(opened), ROWS)
            reached = height(best.weights(opened), ROWS)
    slack = 1e-12 * reached.abs()
    assert bool((reached >= start - slack).all())
    assert bool((reached >= last - slack).all())
    assert float((reached - start).max()) > 0


def two_channels() -> nn.Sequential:
    """Channel 0 sees bright voxels of the volume, channel 1 its dark ones; a dense head reads the front half."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Conv3d(1, 2, 1), nn.ReLU(), nn.MaxPool3d(3), nn.Flatten(), nn.Linear(2 * 3 * 4 * 5, 2))
    net = net.double().eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1, 1))
        net[0].bias.copy_(torch.tensor([0.0, 0.9]))
    return net


@pytest.mark.sample(1)
@pytest.mark.parametrize(("normalisation", "objective"), SETTINGS)
def test_optimum_of_two_channels_equals_brute_force(normalisation: str, objective: str) -> None:
    """All mixtures of two channels, tried at 401 points of the simplex (in the logistic scale Adam can reach)."""
    net, x = two_channels(), volumes(2)
    method = OptiCam(normalisation=normalisation, objective=objective, iterations=150)
    with explaining(net, x, 1, 3) as opened:
        height = method.ascent_objective(opened)
        share = torch.linspace(-9, 9, 401, dtype=torch.float64)
        grid = torch.stack([share / 2, -share / 2], 1)
        for i in range(2):
            one = torch.full((401,), i)
            with torch.no_grad():
                tried = height(grid, one)
                reached = height(method.weights(opened)[i : i + 1], torch.tensor([i]))
            assert float(tried.max() - tried.min()) > 1e-4
            assert float(reached) >= float(tried.max()) - 5e-3 * float(tried.max() - tried.min())


def test_planted_evidence_is_the_channel_that_is_kept() -> None:
    """Two channels see two halves of the volume; the score reads one half."""
    net = nn.Sequential(nn.Identity(), Halves(), nn.Flatten(), nn.Linear(2 * 9 * 13 * 15, 2)).double().eval()
    with torch.no_grad():
        net[3].weight.zero_()
        net[3].weight.view(2, 2, *SHAPE)[0, 0] = 1
        net[3].weight.view(2, 2, *SHAPE)[1, 1] = 1
    for target in (0, 1):
        with explaining(net, volumes(2).clamp(min=0.1), target, "0") as opened:
            halves = replace(opened, features=opened.volumes * Halves.masks())
            share = torch.softmax(OptiCam(batch=2).weights(halves), 1)
        assert float(share[:, target].min()) > 0.9


class Halves(nn.Module):
    """Channel 0 keeps the left half, channel 1 the right half."""

    @staticmethod
    def masks() -> Tensor:
        left = torch.zeros(SHAPE, dtype=torch.float64)
        left[:4] = 1
        return torch.stack([left, 1 - left])[None]

    def forward(self, a: Tensor) -> Tensor:
        return a.expand(-1, 2, -1, -1, -1) * self.masks()


def test_steps_are_those_of_adam() -> None:
    """A bowl of its own for each row, optimised_weights here and by torch.optim."""
    torch.manual_seed(6)
    goal, scale = torch.randn(3, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64) + 0.1

    def height(u: Tensor, rows: Tensor) -> Tensor:
        return -(scale[rows] * (u - goal[rows]) ** 2).sum(1)

    u = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([u], lr=0.1, maximize=True)
    for _ in range(40):
        adam.zero_grad()
        height(u, ROWS).sum().backward()
        adam.step()
    ours = optimised_weights(height, ROWS, 4, torch.float64, OptiCam(iterations=40, keep="last"))
    torch.testing.assert_close(ours, u.detach(), rtol=1e-9, atol=1e-12)


def test_each_row_stops_for_itself_when_its_height_no_longer_moves() -> None:
    """Row 0 is flat: two evaluations. Row 1 is a slope. Row 2 is flat once past 0.35: five."""
    evaluated: list[list[int]] = []

    def height(u: Tensor, rows: Tensor) -> Tensor:
        evaluated.append(rows.tolist())
        shapes = [lambda a: 0 * a, lambda a: a, lambda a: a.clamp(max=0.35)]
        return torch.stack([shapes[row](a) for row, a in zip(rows.tolist(), u[:, 0], strict=True)])

    u = optimised_weights(height, ROWS, 1, torch.float64, OptiCam(iterations=10, keep="last"))
    seen = [sum(row in step for step in evaluated) for row in range(3)]
    assert seen[0] == 2
    assert seen[1] == 10
    assert 4 < seen[2] < 8
    assert float(u[1, 0]) == pytest.approx(1.0, abs=1e-6)
    assert float(u[0, 0]) == 0
    assert float(u[2, 0]) > 0.35


def test_best_counts_the_point_after_the_last_step_and_forgets_overshooting() -> None:
    def slope(u: Tensor, rows: Tensor) -> Tensor:
        return u[:, 0]

    def peak(u: Tensor, rows: Tensor) -> Tensor:
        return -(u[:, 0] - 0.04).abs()

    row = torch.arange(1)
    assert float(optimised_weights(slope, row, 1, torch.float64, OptiCam(iterations=3))) == pytest.approx(0.3, abs=1e-6)
    best = optimised_weights(peak, row, 1, torch.float64, OptiCam(iterations=1))
    assert float(best) == 0  # 0.1 is farther from 0.04 than 0 is
    last = optimised_weights(peak, row, 1, torch.float64, OptiCam(iterations=1, keep="last"))
    assert float(last) == pytest.approx(0.1, abs=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("normalisation", "objective"), SETTINGS)
def test_volumes_climb_alone(normalisation: str, objective: str) -> None:
    net, x = network("dense"), volumes()
    found = []
    for batch in (1, 2, 3):
        method = OptiCam(normalisation=normalisation, objective=objective, iterations=20, batch=batch)
        found.append(attribute(net, x, 1, method, STAGE).values)
    alone = torch.cat([attribute(net, x[i : i + 1], 1, method, STAGE).values for i in range(3)])
    for other in (*found[1:], alone):
        torch.testing.assert_close(other, found[0], rtol=1e-7, atol=1e-11)


def test_another_baseline_is_another_map_whatever_shares_a_batch() -> None:
    net, x = network("dense"), volumes()
    own = Masking(0.4)
    for method in (OptiCam(iterations=5, batch=3, masking=own), ScoreCam(masking=own)):
        together = attribute(net, x, 1, method, STAGE).values
        alone = torch.cat([attribute(net, x[i : i + 1], 1, method, STAGE).values for i in range(3)])
        torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
        air = attribute(net, x, 1, replace(method, masking=Masking()), STAGE).values
        assert float((air - together).abs().max()) > 1e-6


def test_an_empty_volume_among_others_disturbs_nobody() -> None:
    net, x = network("dense"), volumes()
    x[1] = 0
    net[3].bias.data.zero_()
    net[0].bias.data.fill_(-0.1)
    method = OptiCam(iterations=10, batch=3)
    found = attribute(net, x, 1, method, STAGE).values
    assert float(found[1].abs().max()) == 0
    assert bool(torch.isfinite(found).all())
    alone = attribute(net, x[2:], 1, method, STAGE).values
    torch.testing.assert_close(found[2:], alone, rtol=1e-7, atol=1e-11)
    assert float(alone.max()) > 0


def test_map_stays_at_the_layer_and_unnormalised() -> None:
    with view("dense") as opened:
        method = OptiCam(iterations=5)
        found = method.maps(opened)
        torch.testing.assert_close(found, mixture(method.weights(opened), opened.features), rtol=1e-12, atol=0)
    assert found.shape == (3, 1, *GRID)
    assert float(found.max()) != 1
    assert float(normalised(found, "range").max()) == pytest.approx(1)
