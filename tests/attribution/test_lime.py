from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from perturbation_toys import Score, linear, random_volumes, random_weight, small_network, unchanged
from sklearn.linear_model import Ridge
from sklearn.metrics import pairwise_distances

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.lime import Lime, kernel_weights, samples, supervoxels, weighted_ridge
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.run.errors import BadInputError, UsageError


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


def test_batches_do_not_matter_and_are_bounded():
    net, x = small_network(), random_volumes(3)

    def explain(volumes: torch.Tensor, batch: int) -> torch.Tensor:
        return attribute(net, volumes, 2, Lime(8, samples=30, batch=batch)).values

    at_once = explain(x, 64)
    for batch in (1, 7):
        torch.testing.assert_close(explain(x, batch), at_once, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([explain(v[None], 7) for v in x]), at_once, rtol=0, atol=1e-12)
    model = linear(random_weight())
    attribute(model, x, 1, Lime(8, samples=30, batch=7))
    assert model.largest_batch == 7


def test_an_empty_brain_is_refused_by_number_before_any_sample():
    net, x = linear(random_weight()), random_volumes(3)
    x[1] = 0
    with unchanged(net), pytest.raises(BadInputError, match=r"volume 1 .*air"):
        attribute(net, x, 1, Lime())
    assert net.evaluated == 3  # the check of the target only
    x = torch.full_like(x, -1.5)  # air of z-scored volumes
    with pytest.raises(BadInputError, match=r"volume 0 .*-1\.5"):
        attribute(net, x, 1, Lime(air=-1.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_brains_give_finite_maps_in_their_precision(dtype):
    x = torch.full((1, 1, 7, 8, 10), 0.5, dtype=dtype)
    found = attribute(small_network(dtype), x, 1, Lime(6, samples=20)).values
    assert torch.isfinite(found).all()
    assert found.dtype == dtype
    assert found.any()


def test_an_inner_stage_is_refused():
    with pytest.raises(UsageError, match="stage 0"):
        attribute(small_network(), random_volumes(), 1, Lime(), stage=2)


@pytest.mark.parametrize(
    "setting",
    [
        {"segments": 0},
        {"segments": 2.5},
        {"seed": -1},
        {"samples": 1},
        {"ridge": 0.0},
        {"kernel_width": -1.0},
        {"compactness": float("nan")},
        {"spread": "even"},
        {"batch": 0},
    ],
)
def test_bad_settings_are_refused_by_name(setting):
    with pytest.raises(UsageError, match=f"lime.*{next(iter(setting))}"):
        Lime(**setting)


def test_the_model_is_unchanged():
    net = small_network()
    with unchanged(net):
        attribute(net, random_volumes(), 1, Lime(5, samples=10))
