from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from perturbation_toys import GRID, Score, linear, random_volumes, random_weight, small_network, unchanged
from torch.nn import functional

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.attribution.perturbation.rise import Rise, interpolation, random_masks
from heatlas.pipeline.run.errors import UsageError

LIKE = torch.zeros((), dtype=torch.float64)


@pytest.mark.parametrize(("length", "cells"), [(7, 3), (10, 6), (6, 6), (4, 6), (13, 1)])
def test_stretching_is_torch_interpolation_cut_at_the_shift(length, cells):
    cell = math.ceil(length / cells)
    coarse = torch.rand(1, 1, cells, dtype=torch.float64)
    whole = functional.interpolate(coarse, size=(cells + 1) * cell, mode="linear", align_corners=False)[0, 0]
    for shift in range(cell):
        torch.testing.assert_close(interpolation(length, cells, shift) @ coarse[0, 0], whole[shift : shift + length])


def test_masks_are_those_of_the_paper_in_three_dimensions():
    """Grid of cells, trilinear, random shift below one cell; drawn here again from the masks' own randomness."""
    grid, cells = (7, 8, 10), 3
    for mask in random_masks(grid, 5, cells, 0.5, seed=2, like=LIKE):
        assert mask.shape == grid
        fits = []
        for x in range(3):
            for y in range(3):
                for z in range(4):
                    axes = [interpolation(n, cells, s).numpy() for n, s in zip(grid, (x, y, z), strict=True)]
                    kron = np.kron(np.kron(axes[0], axes[1]), axes[2])
                    coarse, *_ = np.linalg.lstsq(kron, mask.numpy().ravel(), rcond=None)
                    if np.abs(kron @ coarse - mask.numpy().ravel()).max() < 1e-9:
                        volume = torch.tensor(coarse).view(1, 1, 3, 3, 3).round()
                        large = functional.interpolate(volume, size=(12, 12, 16), mode="trilinear", align_corners=False)
                        cut = large[0, 0, x : x + 7, y : y + 8, z : z + 10]
                        fits.append((cut - mask).abs().max().item())
        assert min(fits) < 1e-9


def test_masks_depend_on_the_seed_only():
    first = list(random_masks(GRID, 4, 3, 0.3, 1, LIKE))
    again = list(random_masks(GRID, 9, 3, 0.3, 1, LIKE.float()))
    for one, other in zip(first, again, strict=False):
        torch.testing.assert_close(one, other.double(), rtol=0, atol=1e-6)
    other = list(random_masks(GRID, 4, 3, 0.3, 2, LIKE))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[0], first[1])


def second_moments(grid: tuple[int, int, int], cells: int, p: float, shifted: bool = True) -> torch.Tensor:
    """E[mask(u) mask(v)] over Bernoulli cells and uniform shifts, (voxels, voxels), exactly.

    A mask is a weighted sum of independent cells; its weights are products over the axes, whose shifts are independent.
    So ``E = p² + p (1 - p) prod over axes of mean over shifts of A A^T``.
    """
    axes = []
    for length in grid:
        count = math.ceil(length / cells) if shifted else 1
        axes.append(torch.stack([(a := interpolation(length, cells, s)) @ a.T for s in range(count)]).mean(dim=0))
    return p**2 + p * (1 - p) * torch.kron(torch.kron(axes[0], axes[1]), axes[2])


@pytest.mark.sample(1)
@pytest.mark.parametrize("control_variate", [False, True])
@pytest.mark.parametrize("baseline", [0.0, 0.3])
def test_a_linear_score_converges_to_its_expectation(control_variate, baseline):
    """Within four standard errors at every voxel; a map of unshifted masks would be six and more away."""
    grid, cells, p, masks, seed = (5, 6, 4), 2, 0.3, 1500, 3
    weight, x, offset = random_weight(grid=grid).abs(), random_volumes(1, grid=grid), 0.7
    contrast = ((x[0, 0] - baseline) * weight).flatten()
    floor = offset + baseline * weight.sum()
    method = Rise(masks, cells, p, "start", control_variate, seed, Masking(baseline), batch=200)
    found = attribute(linear(weight, offset), x, 1, method).values[0, 0].flatten()
    # the masks are independent, so the spread of their terms gives the standard error of the sum
    shown = torch.stack(list(random_masks(grid, masks, cells, p, seed, LIKE))).view(masks, -1)
    scores = floor + shown @ contrast
    if control_variate:
        scores = scores - scores.mean()
    standard_error = (scores[:, None] * shown / p).std(dim=0) / math.sqrt(masks)
    expected = floor + second_moments(grid, cells, p) @ contrast / p
    assert ((found - expected) / standard_error).abs().max() < 4
    if control_variate:
        unshifted = floor + second_moments(grid, cells, p, shifted=False) @ contrast / p
        assert ((found - unshifted) / standard_error).abs().max() > 6


@pytest.mark.ci
def test_the_control_variate_takes_off_most_of_the_noise():
    grid = (5, 6, 4)
    net = Score(lambda x: 3 + x[:, 0, 1:3, 1:3, 1:3].mean(dim=(1, 2, 3))).eval()
    spread = [
        torch.stack(
            [
                attribute(net, random_volumes(1, grid=grid), 1, Rise(200, 2, 0.1, "start", flag, seed, batch=50)).values
                for seed in range(8)
            ]
        ).std(dim=0)
        for flag in (False, True)
    ]
    assert spread[1].mean() < spread[0].mean() / 5


def test_a_constant_score_is_that_score_exactly_with_the_control_variate():
    net = Score(lambda x: torch.full((len(x),), 2.5, dtype=x.dtype)).eval()
    plain = attribute(net, random_volumes(), 1, Rise(20, 2, 0.5, "start")).values
    assert plain.std() > 0.1  # the density of the masks, nothing else
    centred = attribute(net, random_volumes(), 1, Rise(20, 2, 0.5, "start", control_variate=True)).values
    torch.testing.assert_close(centred, torch.full_like(centred, 2.5))


def test_map_is_the_weighted_sum_of_masks():
    net, x, method = small_network(), random_volumes(), Rise(13, 3, 0.4, seed=4, masking=Masking(0.2))
    masks = torch.stack(list(random_masks(GRID, 13, 3, 0.4, 4, LIKE)))[:, None]
    found = attribute(net, x, 2, method).values
    with torch.no_grad():
        for volume in range(2):
            scores = net(0.2 + masks * (x[volume] - 0.2)).softmax(1)[:, 2]
            expected = (scores[:, None, None, None] * masks[:, 0]).sum(0) / (13 * 0.4)
            torch.testing.assert_close(found[volume, 0], expected, rtol=1e-12, atol=1e-12)


def test_the_score_is_the_probability_unless_the_start_value_is_asked_for():
    net, x = small_network(), random_volumes()
    default = attribute(net, x, 1, Rise(8, 2, 0.5)).values
    assert torch.equal(default, attribute(net, x, 1, Rise(8, 2, 0.5, "start"), start="probability").values)
    logit = attribute(net, x, 1, Rise(8, 2, 0.5, "start")).values
    assert not torch.allclose(default, logit)


def test_the_planted_voxels_are_found():
    planted = torch.zeros(GRID, dtype=torch.bool)
    planted[2:5, 4:6, 6:9] = True
    net = Score(lambda x: 4 * x[:, 0, planted].mean(dim=1) - 1).eval()
    found = attribute(net, random_volumes(), 1, Rise(300, 4, 0.3, control_variate=True)).values[:, 0]
    for volume in found:
        assert planted.flatten()[volume.flatten().argmax()]
        assert volume[planted].mean() > volume[~planted].mean() + 2 * volume[~planted].std()


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("control_variate", [False, True])
def test_batches_do_not_matter_and_are_bounded(stage, control_variate):
    net, x = small_network(), random_volumes(3)

    def explain(volumes: torch.Tensor, batch: int) -> torch.Tensor:
        method = Rise(11, 3, 0.3, control_variate=control_variate, batch=batch)
        return attribute(net, volumes, 2, method, stage=stage).values

    at_once = explain(x, 64)
    for batch in (1, 4):
        torch.testing.assert_close(explain(x, batch), at_once, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([explain(v[None], 4) for v in x]), at_once, rtol=0, atol=1e-12)
    model = linear(random_weight())
    attribute(model, x, 1, Rise(11, 3, batch=4))
    assert model.largest_batch == 4


def test_an_inner_stage_is_masked_at_its_own_resolution():
    net, x = small_network(), random_volumes(1)
    found = attribute(net, x, 1, Rise(7, 2, 0.5, masking=Masking(inner="zero")), stage=3, at_input_grid=False).values
    with torch.no_grad():
        features = net[:3](x)
        masks = torch.stack(list(random_masks(tuple(features.shape[-3:]), 7, 2, 0.5, 0, LIKE)))[:, None]
        scores = net[3:](features * masks).softmax(1)[:, 1]
        expected = (scores[:, None, None, None, None] * masks).sum(0) / 3.5
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_constant_volumes_give_finite_maps_in_their_precision(value, dtype):
    x = torch.full((1, 1, *GRID), value, dtype=dtype)
    for flag in (False, True):
        found = attribute(small_network(dtype), x, 1, Rise(5, control_variate=flag)).values
        assert torch.isfinite(found).all()
        assert found.dtype == dtype


@pytest.mark.parametrize(
    "setting",
    [
        {"masks": 0},
        {"masks": 2.5},
        {"seed": -1},
        {"cells": 0},
        {"p": 0.0},
        {"p": 1.0},
        {"score": "logit"},
        {"batch": 0},
    ],
)
def test_bad_settings_are_refused_by_name(setting):
    with pytest.raises(UsageError, match=f"rise.*{next(iter(setting))}"):
        Rise(**setting)


def test_the_model_and_the_global_generator_are_unchanged_also_after_an_exception():
    net, x = small_network(), random_volumes()
    with unchanged(net):
        attribute(net, x, 1, Rise(6))
    calls = []

    def breaks(a: torch.Tensor) -> torch.Tensor:
        calls.append(len(a))
        if len(calls) > 3:
            raise RuntimeError("power cut")
        return a.sum(dim=(1, 2, 3, 4))

    fragile = Score(breaks).eval()
    with unchanged(fragile), pytest.raises(RuntimeError, match="power cut"):
        attribute(fragile, x, 1, Rise(9, batch=2))
