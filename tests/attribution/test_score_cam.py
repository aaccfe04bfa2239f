"""Score-CAM and Ablation-CAM: written out in loops, closed forms, bounded memory, guards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cam_toys import GRID, SHAPE, STAGE, VOXELS, network, view, volumes
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from heatlas.pipeline.attribution.cam.map_range import by_max, by_range, normalised
from heatlas.pipeline.attribution.cam.score_cam import AblationCam, ScoreCam, drop_of_score, increase_of_score
from heatlas.pipeline.attribution.methods import attribute
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
