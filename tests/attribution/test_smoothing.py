"""Gaussian smoothing against a dense kernel, and SmoothGrad against its definition."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from gradient_toys import LinearScore, network, volumes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients
from heatlas.pipeline.attribution.gradient.smoothing import (
    Averaged,
    SmoothGrad,
    SmoothInputTimesGradient,
    SmoothIntegratedGradients,
    gaussian_smooth,
    gaussian_weights,
    mean_over_noise,
    noise_pattern,
)
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.run.errors import UsageError


def random_maps(count: int = 2, sides: tuple[int, int, int] = (7, 11, 9)) -> Tensor:
    return torch.randn(count, 1, *sides, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("kernel", [1, 3, 5, 9, 15, 31])
def test_equals_the_dense_gaussian(kernel: int) -> None:
    """Three dimensions at once, exp(-r^2 / 2 sigma^2), sigma = K / 4, zero beyond the border; K above the grid too."""
    maps = random_maps()
    line = torch.arange(kernel, dtype=torch.float64) - kernel // 2
    squares = line[:, None, None] ** 2 + line[:, None] ** 2 + line**2
    dense = torch.exp(-squares / (2 * (kernel / 4) ** 2))
    expected = functional.conv3d(maps, (dense / dense.sum())[None, None], padding=kernel // 2)
    torch.testing.assert_close(gaussian_smooth(maps, kernel), expected, rtol=1e-12, atol=1e-14)


def test_equals_scipy() -> None:
    maps = random_maps()
    expected = ndimage.gaussian_filter(
        maps.numpy(), sigma=(0, 0, 1.25, 1.25, 1.25), radius=(0, 0, 2, 2, 2), mode="constant"
    )
    torch.testing.assert_close(gaussian_smooth(maps, 5), torch.from_numpy(expected), rtol=1e-12, atol=1e-14)


@given(st.integers(0, 6), st.floats(-3, 3), st.floats(-3, 3))
@settings(max_examples=15, deadline=None)
def test_linear(half: int, a: float, b: float) -> None:
    maps = random_maps()
    together = gaussian_smooth(a * maps[:1] + b * maps[1:], 2 * half + 1)
    apart = a * gaussian_smooth(maps[:1], 2 * half + 1) + b * gaussian_smooth(maps[1:], 2 * half + 1)
    torch.testing.assert_close(together, apart, rtol=1e-11, atol=1e-13)


def test_size_one_changes_nothing_and_the_argument_is_kept() -> None:
    maps = random_maps()
    copy = maps.clone()
    assert torch.equal(gaussian_smooth(maps, 1), maps)
    gaussian_smooth(maps, 5)
    assert torch.equal(maps, copy)


@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_mass_is_kept_away_from_the_border_and_lost_at_it(kernel: int) -> None:
    maps = torch.zeros(1, 1, 13, 15, 17, dtype=torch.float64)
    inner = slice(kernel // 2, -(kernel // 2))
    maps[..., inner, inner, inner] = torch.randn(maps[..., inner, inner, inner].shape, dtype=torch.float64) + 0.3
    assert float(gaussian_smooth(maps, kernel).sum()) == pytest.approx(float(maps.sum()), rel=1e-11)
    corner = torch.zeros_like(maps)
    corner[..., 0, 0, 0] = 1
    kept = sum(gaussian_weights(kernel)[kernel // 2 :]) ** 3
    assert float(gaussian_smooth(corner, kernel).sum()) == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize("kernel", [3, 9, 129])
def test_width(kernel: int) -> None:
    weights = torch.tensor(gaussian_weights(kernel), dtype=torch.float64)
    assert float(weights.sum()) == pytest.approx(1, rel=1e-14)
    assert torch.equal(weights, weights.flip(0))
    ratio = float(weights[kernel // 2] / weights[kernel // 2 + 1])
    assert ratio == pytest.approx(float(torch.exp(torch.tensor(8 / kernel**2, dtype=torch.float64))), rel=1e-12)


@pytest.mark.parametrize("stage", [0, 1])
def test_smooth_methods_smooth_the_signed_map_at_its_own_grid(stage: int) -> None:
    model, x = network(), volumes()
    pairs = (
        (SmoothInputTimesGradient(3), InputTimesGradient()),
        (SmoothIntegratedGradients(steps=10, tolerance=1, kernel=3), IntegratedGradients(steps=10, tolerance=1)),
    )
    for smooth, sharp in pairs:
        answer = attribute(model, x, 1, smooth, stage, at_input_grid=False).values
        signed = attribute(model, x, 1, sharp, stage, at_input_grid=False).values
        assert torch.equal(answer, gaussian_smooth(signed, 3))
        assert float(answer.min()) < 0 < float(answer.max())
        assert not torch.allclose(answer.clamp(min=0), gaussian_smooth(signed.clamp(min=0), 3))


def test_smoothgrad_of_a_linear_model_is_its_gradient() -> None:
    model, x = LinearScore(), volumes()
    answer = attribute(model, x, 1, SmoothGrad()).values
    torch.testing.assert_close(answer, attribute(model, x, 1, Gradient()).values, rtol=1e-12, atol=0)


@pytest.mark.parametrize("stage", [0, 1])
def test_smoothgrad_without_noise_is_the_gradient(stage: int) -> None:
    """No noise asked for; and none where a volume has no range."""
    model = network()
    for method, x in (
        (SmoothGrad(noise=0), volumes()),
        (SmoothGrad(), torch.full((1, 1, 9, 12, 10), 0.5, dtype=torch.float64)),
    ):
        expected = attribute(model, x, 1, Gradient(), 0).values
        torch.testing.assert_close(attribute(model, x, 1, method, 0).values, expected, rtol=1e-12, atol=1e-15)
    expected = attribute(model, volumes(), 1, Gradient(), stage).values
    answer = attribute(model, volumes(), 1, SmoothGrad(noise=0), stage).values
    torch.testing.assert_close(answer, expected, rtol=1e-12, atol=1e-15)


def test_smoothgrad_of_a_square() -> None:
    """Gradient 2 (x + noise): the mean shows the noise, whose deviation is a share of the range of each volume."""
    x = torch.stack([torch.linspace(0, 1, 20_000), torch.linspace(0, 10, 20_000)]).double().view(2, 1, 1, 1, -1)
    gradient = mean_over_noise(lambda copies, _: 2 * copies, x, samples=4, noise=0.1)
    noise = gradient / 2 - x
    deviations = noise.flatten(1).std(1)
    assert float(deviations[0]) == pytest.approx(0.1 / 2, rel=0.03)
    torch.testing.assert_close(noise[1], 10 * noise[0], rtol=1e-6, atol=1e-9)


def test_smoothgrad_written_out_is_signed_until_the_end() -> None:
    model, x = network(), volumes(2)
    spread = (x.flatten(1).max(1).values - x.flatten(1).min(1).values).view(-1, 1, 1, 1, 1) * 0.2
    gradients = []
    for sample in range(5):
        leaf = (x + spread * noise_pattern(x, 7, sample)).requires_grad_()
        gradients.append(torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)[0])
    answer = attribute(model, x, 1, SmoothGrad(samples=5, noise=0.2, seed=7)).values
    torch.testing.assert_close(answer, torch.stack(gradients).mean(0).abs(), rtol=1e-10, atol=1e-14)
    assert not torch.allclose(answer, torch.stack(gradients).abs().mean(0))


HIDDEN = Masking(baseline=0.3)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(
    ("of", "alone", "alphas"),
    [
        ("input-x-gradient", InputTimesGradient(), [1.0]),
        (
            "integrated-gradients",
            IntegratedGradients(HIDDEN, steps=4, tolerance=math.inf),
            [0.125, 0.375, 0.625, 0.875],
        ),
    ],
)
def test_smoothgrad_of_another_map_is_the_mean_of_the_signed_maps_of_noisy_copies(
    of: Averaged, alone: Method, alphas: list[float], stage: int, batch: int
) -> None:
    model, x = network(), volumes()
    before, after = nn.Sequential(*model.stages[:stage]), nn.Sequential(*model.stages[stage:])
    features = before(x).detach()
    start = torch.zeros(()) if of == "input-x-gradient" else before(torch.full_like(x[:1], 0.3)).detach()[0]
    maps = torch.zeros(3, *features.shape, dtype=torch.float64)
    for sample, one in itertools.product(range(3), range(len(x))):
        spread = 0.2 * (features[one].max() - features[one].min())
        copy = features[one] + spread * noise_pattern(features, 7, sample)
        for alpha in alphas:
            leaf = (start + alpha * (copy - start))[None].requires_grad_()
            (slope,) = torch.autograd.grad(after(leaf)[0, 1], leaf)
            maps[sample, one] += (copy - start) * slope[0] / len(alphas)
    method = SmoothGrad(samples=3, noise=0.2, seed=7, of=of, steps=4, masking=HIDDEN, batch=batch)
    answer = attribute(model, x, 1, method, stage, at_input_grid=False).values
    torch.testing.assert_close(answer, maps.mean(0).sum(1, keepdim=True), rtol=1e-9, atol=1e-13)
    assert float(answer.min()) < 0 < float(answer.max())
    plain = attribute(model, x, 1, alone, stage, at_input_grid=False).values
    assert not torch.allclose(answer, plain, rtol=0.1)
    quiet = attribute(model, x, 1, dataclasses.replace(method, noise=0), stage, at_input_grid=False).values
    torch.testing.assert_close(quiet, plain, rtol=1e-9, atol=1e-13)


def test_noise_is_the_seed_and_nothing_else() -> None:
    x = volumes(3)
    pattern = noise_pattern(x, 0, 1)
    torch.manual_seed(99)
    assert torch.equal(noise_pattern(x[:1], 0, 1), pattern)
    assert torch.equal(noise_pattern(x.float(), 0, 1).double(), pattern)
    assert not torch.equal(noise_pattern(x, 0, 2), pattern)
    assert not torch.equal(noise_pattern(x, 1, 1), pattern)
    maps = [attribute(network(), x, 1, SmoothGrad(samples=2, seed=seed)).values for seed in (0, 0, 1)]
    assert torch.equal(maps[0], maps[1])
    assert not torch.allclose(maps[0], maps[2])


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_internal_batch_does_not_matter(batch: int) -> None:
    model, x = network(), volumes(3)
    one = attribute(model, x, 1, SmoothGrad(samples=3)).values
    many = attribute(model, x, 1, SmoothGrad(samples=3, batch=batch)).values
    torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("kernel", [0, -3, 4, 2.0, True])
def test_kernel_must_be_odd(kernel: float) -> None:
    for method in (SmoothInputTimesGradient, SmoothIntegratedGradients):
        with pytest.raises(UsageError, match=rf"{method.name}: kernel = "):
            method(kernel=kernel)  # type: ignore[arg-type]
