"""RISE, LIME and what both hide: masks, supervoxels, weights, and scores of what is left."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from perturbation_toys import GRID, Score, linear, random_volumes, random_weight, small_network, unchanged
from sklearn.linear_model import Ridge
from sklearn.metrics import pairwise_distances
from torch import nn
from torch.nn import functional

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import Masking, mixed
from heatlas.pipeline.attribution.perturbation.random_masks import (
    Lime,
    Rise,
    interpolation,
    kernel_weights,
    random_masks,
    samples,
    supervoxels,
    weighted_ridge,
)
from heatlas.pipeline.run.errors import BadInputError, UsageError


def volumes(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(2, 1, 5, 6, 7, dtype=dtype, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("baseline", [0.0, -1.7])
def test_both_ends_are_exact_and_the_middle_is_the_mix(baseline, dtype):
    x, masking = volumes(dtype), Masking(baseline)
    hidden = masking.hidden(x).expand_as(x)
    assert torch.equal(masking.apply(x, torch.ones_like(x)), x)
    assert torch.equal(masking.apply(x, torch.zeros_like(x)), hidden)
    keep = torch.rand(x.shape, dtype=dtype)
    torch.testing.assert_close(masking.apply(x, keep), hidden + keep * (x - hidden))


def test_masking_commutes_with_affine_scaling():
    raw, keep = volumes(), torch.rand(2, 1, 5, 6, 7, dtype=torch.float64)
    mean, deviation = 0.4, 0.2
    scaled = (raw - mean) / deviation
    expected = (Masking(0.0).apply(raw, keep) - mean) / deviation
    torch.testing.assert_close(Masking(-mean / deviation).apply(scaled, keep), expected)
    assert (Masking(0.0).apply(scaled, keep) - expected).abs().max() > 0.5  # zero of a z-score is mean tissue, not air


def test_keep_broadcasts_over_channels_and_gradient_is_the_difference():
    x = torch.rand(2, 3, 4, 5, 6, dtype=torch.float64)
    hidden = torch.rand(3, 4, 5, 6, dtype=torch.float64)
    keep = torch.rand(2, 1, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(mixed(x, keep, hidden).sum(), keep)
    torch.testing.assert_close(gradient, (x - hidden).sum(dim=1, keepdim=True))


@pytest.mark.parametrize("keep", [torch.tensor(float("nan")), torch.tensor(1.1), torch.tensor(-0.1)])
def test_a_mask_outside_its_range_is_refused(keep):
    with pytest.raises(BadInputError, match=r"\[0, 1\]"):
        Masking().apply(volumes(), keep)


@pytest.mark.parametrize("baseline", [0.3, -1.7])
def test_hidden_features_are_those_of_the_baseline_volume_or_zero(baseline):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(630, 2)).double().eval()
    x = volumes()
    with explaining(net, x, 1, stage=2) as view, torch.no_grad():
        hidden = Masking(baseline).hidden(x).expand_as(x)
        torch.testing.assert_close(Masking(baseline).hidden_features(view), net[:2](hidden))
        zero = Masking(baseline, inner="zero").hidden_features(view)
        assert zero.shape == view.features.shape
        assert not zero.any()
    with explaining(net, x, 1) as view:
        assert torch.equal(Masking(baseline, inner="zero").hidden_features(view), hidden)  # at the input: the baseline


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


SMALL_ONES = {
    "rise": partial(Rise, 11, 3, 0.3),
    "rise, control variate": partial(Rise, 11, 3, 0.3, control_variate=True),
    "lime": partial(Lime, 8, samples=30),
}


@pytest.mark.parametrize(("name", "stage"), [(name, stage) for name in SMALL_ONES for stage in (0, 3)][:-1])
def test_batches_do_not_matter_and_are_bounded(name, stage):
    """LIME is of the input only."""
    net, x, method = small_network(), random_volumes(3), SMALL_ONES[name]

    def explain(volumes: torch.Tensor, batch: int) -> torch.Tensor:
        return attribute(net, volumes, 2, method(batch=batch), stage=stage).values

    at_once = explain(x, 64)
    for batch in (1, 4, 7):
        torch.testing.assert_close(explain(x, batch), at_once, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([explain(v[None], 4) for v in x]), at_once, rtol=0, atol=1e-12)
    model = linear(random_weight())
    attribute(model, x, 1, method(batch=7))
    assert model.largest_batch == 7


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
@pytest.mark.parametrize(("name", "value"), [(name, value) for value in (0.5, 0.0) for name in SMALL_ONES][:-1])
def test_constant_volumes_give_finite_maps_in_their_precision(name, value, dtype):
    """LIME refuses an empty brain."""
    x = torch.full((1, 1, *GRID), value, dtype=dtype)
    found = attribute(small_network(dtype), x, 1, SMALL_ONES[name]()).values
    assert torch.isfinite(found).all()
    assert found.dtype == dtype
    assert name != "lime" or found.any()


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


def fits(model, x, method, target=1):
    with explaining(model, x, target) as view:
        return method.fits(view)


@pytest.mark.parametrize("baseline", [0.0, -0.4])
def test_a_score_linear_in_supervoxels_is_recovered_exactly(baseline):
    """Any linear score is linear in the supervoxels: coefficient = sum of w (x - baseline) over the supervoxel."""
    weight, x, offset = random_weight(), random_volumes(), 0.7
    method = Lime(12, samples=200, ridge=1e-10, masking=Masking(baseline))
    for volume, fit in zip(x[:, 0], fits(linear(weight, offset), x, method), strict=True):
        effect = weight * (volume - baseline)
        expected = torch.stack([effect[fit.supervoxels == k].sum() for k in range(1, len(fit.coefficients) + 1)])
        torch.testing.assert_close(fit.coefficients, expected, rtol=1e-8, atol=1e-8)
        all_hidden = offset + (weight * volume).sum() - expected.sum()
        assert fit.intercept == pytest.approx(all_hidden.item(), abs=1e-8)
        assert fit.r_squared == pytest.approx(1, abs=1e-12)


def test_the_map_paints_coefficients_or_shares_them_out():
    weight, x = random_weight(), random_volumes()
    common = {"segments": 9, "samples": 100, "ridge": 1e-9}
    painted = attribute(linear(weight), x, 1, Lime(**common)).values[:, 0]
    shared = attribute(linear(weight), x, 1, Lime(**common, spread="per-voxel")).values[:, 0]
    for number, fit in enumerate(fits(linear(weight), x, Lime(**common))):
        for k, coefficient in enumerate(fit.coefficients, start=1):
            inside = fit.supervoxels == k
            assert torch.equal(painted[number, inside], coefficient.expand(int(inside.sum())))
            torch.testing.assert_close(shared[number, inside].sum(), coefficient)
    assert not painted[x[:, 0] == 0].any()
    torch.testing.assert_close(shared.sum(dim=(1, 2, 3)), (x[:, 0] * weight).sum(dim=(1, 2, 3)), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("ridge", [1e-6, 0.3, 20.0])
def test_weighted_ridge_equals_scikit_learn(ridge):
    rng = np.random.default_rng(0)
    features, weights = (rng.random((60, 7)) < 0.5).astype(float), rng.random(60)
    values = rng.normal(size=60) + features @ rng.normal(size=7)
    oracle = Ridge(alpha=ridge).fit(features, values, sample_weight=weights)
    b, a, r_squared = weighted_ridge(*map(torch.from_numpy, (features, values, weights)), ridge)
    np.testing.assert_allclose(b.numpy(), oracle.coef_, rtol=1e-9, atol=1e-12)
    assert a == pytest.approx(oracle.intercept_, rel=1e-9)
    assert r_squared == pytest.approx(oracle.score(features, values, sample_weight=weights), rel=1e-9)


def test_kernel_is_that_of_the_cosine_distance():
    shown = samples(40, 9, seed=3)
    distance = pairwise_distances(shown.numpy(), np.ones((1, 9)), metric="cosine")[:, 0]
    np.testing.assert_allclose(
        kernel_weights(shown, 0.25).numpy(), np.sqrt(np.exp(-(distance**2) / 0.25**2)), rtol=1e-9
    )
    nothing = kernel_weights(torch.zeros(1, 5, dtype=torch.float64), 0.25)
    assert nothing.item() == pytest.approx(math.exp(-8))


def test_samples_begin_with_the_volume_itself_and_depend_on_the_seed_only():
    assert samples(50, 8, 1)[0].all()
    assert torch.equal(samples(50, 8, 1), samples(50, 8, 1))
    assert not torch.equal(samples(50, 8, 1), samples(50, 8, 2))
    assert samples(4000, 10, 0)[1:].mean().item() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(40000))


def test_r_squared_says_how_linear_the_network_is():
    x = random_volumes(1)
    parity = Score(lambda v: torch.cos(40 * v.sum(dim=(1, 2, 3, 4)))).eval()
    (fit,) = fits(parity, x, Lime(10, samples=400))
    assert fit.r_squared < 0.2
    constant = Score(lambda v: torch.full((len(v),), 2.5, dtype=v.dtype)).eval()
    (fit,) = fits(constant, x, Lime(10, samples=50))
    assert math.isnan(fit.r_squared)
    assert not fit.coefficients.abs().max() > 1e-12


def test_the_planted_supervoxel_is_found():
    x = random_volumes(1)
    cut = fits(linear(random_weight()), x, Lime(12, samples=2))[0].supervoxels
    planted = cut == 5
    net = Score(lambda v: torch.tanh(v[:, 0, planted].mean(dim=1))).eval()
    found = attribute(net, x, 1, Lime(12, samples=200, ridge=1e-6)).values[0, 0]
    whole = torch.tanh(x[0, 0, planted].mean()).item()
    assert found[planted].unique().tolist() == pytest.approx([whole], rel=1e-6)
    assert found[~planted].abs().max() < 1e-6


@pytest.mark.parametrize("count", [1, 5, 40, 5000])
def test_supervoxels_divide_the_brain_and_nothing_else(count):
    x = random_volumes(1)[0, 0].numpy()
    x[-1, 0, 1:] = 0
    x[-1, 0, 9] = 0.4  # an island
    brain = x != 0
    cut = supervoxels(x, brain, count, 0.1)
    assert ((cut > 0) == brain).all()
    assert set(np.unique(cut[brain])) == set(range(1, cut.max() + 1))
    if count <= 40:
        assert 0.5 * count <= cut.max() <= 1.5 * count


def test_supervoxels_keep_to_an_edge_of_intensity_and_not_to_scale_or_offset():
    x = np.full((9, 10, 11), 0.2)
    x[:, 5:] = 0.8
    brain = np.ones_like(x, dtype=bool)
    cut = supervoxels(x, brain, 4, 0.05)
    assert all(len(np.unique(x[cut == k])) == 1 for k in np.unique(cut))
    assert np.array_equal(cut, supervoxels(x * 3 - 7, brain, 4, 0.05))


def test_supervoxels_do_not_depend_on_the_field_of_view():
    x = random_volumes(1)[0, 0].numpy()
    wide = np.pad(x, ((2, 3), (0, 5), (4, 1)))
    cut = supervoxels(wide, wide != 0, 10, 0.1)
    assert np.array_equal(cut[2:-3, :-5, 4:-1], supervoxels(x, x != 0, 10, 0.1))


@pytest.mark.parametrize("voxels", [1, 2, 3])
def test_the_smallest_brains_are_cut(voxels):
    x = torch.zeros(1, 1, 7, 8, 10, dtype=torch.float64)
    x[0, 0, 3, 4, 5 : 5 + voxels] = 0.5
    found = attribute(linear(random_weight()), x, 1, Lime(3, samples=30)).values
    assert torch.isfinite(found).all()
    assert bool((found[x != 0] != 0).all())


def test_an_empty_brain_is_refused_by_number_before_any_sample():
    net, x = linear(random_weight()), random_volumes(3)
    x[1] = 0
    with unchanged(net), pytest.raises(BadInputError, match=r"volume 1 .*air"):
        attribute(net, x, 1, Lime())
    assert net.evaluated == 3  # the check of the target only
    x = torch.full_like(x, -1.5)  # air of z-scored volumes
    with pytest.raises(BadInputError, match=r"volume 0 .*-1\.5"):
        attribute(net, x, 1, Lime(air=-1.5))


def test_an_inner_stage_is_refused():
    with pytest.raises(UsageError, match="stage 0"):
        attribute(small_network(), random_volumes(), 1, Lime(), stage=2)


def test_the_model_is_unchanged():
    net = small_network()
    with unchanged(net):
        attribute(net, random_volumes(), 1, Lime(5, samples=10))
