"""Gradients, what is made of them, and smoothing."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from gradient_toys import LinearScore, network, volumes
from hypothesis import given, settings
from hypothesis import strategies as st
from lrp_toys import lrp_beta, staged, toy_network, toy_volumes
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.attribution.gradient.gradients import (
    Gradient,
    InputTimesGradient,
    score_and_gradient,
    score_gradient,
)
from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop
from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients, completeness_delta, path_integral
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
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.run.errors import UsageError

# Gradients and what is made of them: products, guided backpropagation, and integrals along paths.


def test_linear_model_in_closed_form() -> None:
    model, x = LinearScore(), volumes()
    weight = model.weight[1].detach().expand_as(x)
    assert torch.equal(attribute(model, x, 1, Gradient()).values, weight.abs())
    assert torch.equal(attribute(model, x, 1, InputTimesGradient()).values, weight * x)


@pytest.mark.parametrize("start", ["logit", "probability"])
@pytest.mark.parametrize("stage", [0, 1, "stages.1.0"])
def test_gradient_equals_finite_differences(stage: int | str, start: str) -> None:
    """Central differences at 20 features. In air, where voxels are equal, max-pooling has ties and no derivative."""
    dense = torch.rand(2, 1, 9, 12, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    with explaining(network(), dense, 1, stage, start) as view, torch.no_grad():
        gradient = score_gradient(view.score, view.features)
        places = torch.linspace(3, view.features[0].numel() - 4, 20).long().tolist()
        for place in places:
            step = torch.zeros_like(view.features[:1]).flatten()
            step[place] = 1e-6
            step = step.view_as(view.features[:1])
            slope = (view.score(view.features + step) - view.score(view.features - step)) / 2e-6
            torch.testing.assert_close(gradient.flatten(1)[:, place], slope, rtol=1e-5, atol=1e-8)
        assert int((gradient.flatten(1)[:, places] != 0).sum()) > 5


def test_channels_are_summed_after_the_absolute_value() -> None:
    """Two channels with opposite slopes add in the gradient and cancel in the signed map."""
    mix = nn.Conv3d(1, 2, 1, bias=False)
    head = nn.Linear(2 * 24, 2, bias=False)
    model = nn.Sequential(mix, nn.Flatten(), head).double().eval()
    with torch.no_grad():
        mix.weight.fill_(1)
        head.weight[1] = torch.cat([torch.full((24,), 3.0), torch.full((24,), -2.0)])
    x = torch.full((1, 1, 2, 3, 4), 0.5, dtype=torch.float64)
    assert attribute(model, x, 1, Gradient(), 1).values.unique().tolist() == [5.0]
    assert attribute(model, x, 1, InputTimesGradient(), 1).values.unique().tolist() == [0.5]
    assert attribute(model, x, 1, Gradient()).values.unique().tolist() == [1.0]


@pytest.mark.parametrize("stage", [0, 1, 2, "stages.0.0"])
def test_input_times_gradient_is_complete_without_biases(stage: int | str) -> None:
    model, x = network(bias=False), volumes(3)
    answer = attribute(model, x, 2, InputTimesGradient(), stage, at_input_grid=False)
    assert float(answer.start_value.abs().min()) > 1e-4
    torch.testing.assert_close(answer.values.sum((1, 2, 3, 4)), answer.start_value, rtol=1e-10, atol=1e-14)


def test_input_times_gradient_of_air_is_zero() -> None:
    x = volumes()
    answer = attribute(network(), x, 1, InputTimesGradient()).values
    assert float(answer[x == 0].abs().max()) == 0
    assert float(answer[x != 0].abs().max()) > 0


def test_input_times_gradient_is_beta_relevance_of_a_linear_positive_network() -> None:
    """Without ReLU, biases and negative weights both are the same decomposition."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv3d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(2 * 60, 2, bias=False))
    model = model.double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.abs_()
    x = torch.rand(2, 1, 5, 6, 7, dtype=torch.float64)
    expected = lrp_beta(model, x, 1, [0.0])[0.0].values
    torch.testing.assert_close(attribute(model, x, 1, InputTimesGradient()).values, expected, rtol=1e-6, atol=1e-9)


def test_score_comes_with_its_gradient() -> None:
    with explaining(network(), volumes(), 1) as view:
        score, gradient = score_and_gradient(view.score, view.features)
        assert torch.equal(score, view.score(view.features).detach())
        assert torch.equal(gradient, score_gradient(view.score, view.features))
        assert not score.requires_grad


class Rounded(nn.Module):
    def __init__(self, also_trained: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=also_trained)

    def forward(self, x: Tensor) -> Tensor:
        return x.detach().flatten(1)[:, :2] + self.bias


@pytest.mark.parametrize("also_trained", [True, False])
def test_score_without_gradient_is_refused(also_trained: bool) -> None:
    with pytest.raises(UsageError, match="has no gradient"):
        attribute(Rounded(also_trained).eval(), volumes(), 1, Gradient())


def gradient(net: nn.Module, volumes: torch.Tensor, target: int) -> torch.Tensor:
    leaf = volumes.clone().requires_grad_()
    return torch.autograd.grad(net(leaf)[:, target].sum(), leaf)[0]


def test_equals_absolute_gradient_without_relu() -> None:
    net = nn.Sequential(*[m for m in toy_network() if not isinstance(m, nn.ReLU)]).eval()
    volumes = toy_volumes(signed=True)
    torch.testing.assert_close(guided_backprop(net, volumes, 1).values, gradient(net, volumes, 1).abs())


def test_two_layers_by_hand() -> None:
    """One voxel, three hidden units: active with positive gradient, active with negative gradient, inactive."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[2.0], [5.0], [-7.0]]))
        net[1].bias.zero_()
        net[3].weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [-3.0, -1.0, 1.0]]))
        net[3].bias.zero_()
    voxel = torch.ones(1, 1, 1, 1, 1)
    assert float(gradient(net, voxel, 1)) == -11
    assert float(guided_backprop(net, voxel, 1).values) == 0
    with torch.no_grad():
        net[3].weight[1, 0] = 3
    assert float(gradient(net, voxel, 1)) == 1
    assert float(guided_backprop(net, voxel, 1).values) == 6


def test_clamps_at_every_relu() -> None:
    """Against tensor hooks on every ReLU's input: the same rule, written as PyTorch users write it."""
    net, volumes = toy_network(), toy_volumes()
    leaf = volumes.clone().requires_grad_()
    a = leaf
    for module in net:
        if isinstance(module, nn.ReLU):
            a = torch.relu(a)
            a.register_hook(lambda grad: grad.clamp(min=0))
        else:
            a = module(a)
    expected = torch.autograd.grad(a[:, 1].sum(), leaf)[0].abs()
    answer = guided_backprop(net, volumes, 1)
    torch.testing.assert_close(answer.values, expected, rtol=1e-12, atol=0)
    assert float((expected - gradient(net, volumes, 1).abs()).abs().max()) > 1e-3, "clamping must matter here"
    assert float(answer.values.min()) >= 0


def test_batch_equals_single_volumes_and_stages_equal_sequential() -> None:
    net, volumes = toy_network(), toy_volumes(3)
    batch = guided_backprop(net, volumes, 2).values
    singles = torch.cat([guided_backprop(net, volumes[i : i + 1], 2).values for i in range(3)])
    torch.testing.assert_close(batch, singles, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(guided_backprop(staged(net), volumes, 2).values, batch, rtol=0, atol=0)


@pytest.mark.parametrize("start", ["logit", "probability"])
def test_explains_the_same_value_as_lrp(start: str) -> None:
    net, volumes = toy_network(), toy_volumes()
    guided = guided_backprop(net, volumes, 1, start)
    relevance = lrp_beta(net, volumes, 1, [0.0], start)[0.0]
    torch.testing.assert_close(guided.start_value, relevance.start_value, rtol=1e-12, atol=0)
    assert guided.target == relevance.target == 1
    assert not guided.values.requires_grad
    assert not guided.start_value.requires_grad


def test_works_inside_no_grad() -> None:
    net, volumes = toy_network(), toy_volumes()
    with torch.no_grad():
        inside = guided_backprop(net, volumes, 1).values
    assert torch.equal(inside, guided_backprop(net, volumes, 1).values)


FAIR = IntegratedGradients(steps=400, batch=64)


@pytest.mark.parametrize("baseline", [0.0, -0.3])
@pytest.mark.parametrize("steps", [1, 7])
def test_integrated_gradients_of_a_linear_model_in_closed_form(steps: int, baseline: float) -> None:
    """Weight times distance from the baseline, whatever the number of steps."""
    model, x = LinearScore(), volumes()
    answer = attribute(model, x, 1, IntegratedGradients(Masking(baseline), steps)).values
    torch.testing.assert_close(answer, model.weight[1].detach() * (x - baseline), rtol=1e-12, atol=1e-14)


def cubic(a: Tensor) -> Tensor:
    return (a**3).flatten(1).sum(1)


@given(st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_error_of_the_midpoint_rule_on_a_cubic(steps: int) -> None:
    """Its known remainder: the integral of 3 x^3 t^2 comes out as x^3 (1 - 1 / (4 n^2))."""
    x = torch.tensor([[0.5, -2.0, 0.0], [1.0, 3.0, -0.1]], dtype=torch.float64)
    path = path_integral(cubic, x, torch.zeros_like(x), steps)
    torch.testing.assert_close(path.attributions, x**3 * (1 - 1 / (4 * steps**2)), rtol=1e-12, atol=0)


def test_variation_counts_ways_back() -> None:
    """A score that rises by 1/4 and falls again: its ends agree, its variation is 1/2."""
    path = path_integral(lambda a: (a * (1 - a)).sum(1), torch.tensor([[1.0]]), torch.tensor(0.0), steps=1000)
    assert float(path.attributions.abs().max()) < 1e-6
    assert float(path.variation) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.sample(6)
@pytest.mark.parametrize("stage", [0, 1, "stages.1.0", 2])
@pytest.mark.parametrize("start", ["logit", "probability"])
@pytest.mark.parametrize("baseline", [0.0, 0.4])
def test_sum_is_the_difference_to_the_baseline_volume_at_every_stage(
    stage: int | str, start: str, baseline: float
) -> None:
    model, x = network(), volumes(3)
    method = IntegratedGradients(Masking(baseline), steps=400, batch=64)
    answer = attribute(model, x, 1, method, stage, start, at_input_grid=False)
    with explaining(model, x, 1, 0, start) as view, torch.no_grad():
        difference = view.score(x) - view.score(torch.full_like(x, baseline))
    delta = completeness_delta(answer.values, answer.start_value, answer.start_value - difference)
    assert float((delta.abs() / difference.abs()).max()) < 0.01


def test_zero_features_are_another_baseline() -> None:
    model, x = network(), volumes()
    method = IntegratedGradients(Masking(inner="zero"), steps=400, batch=64)
    answer = attribute(model, x, 1, method, 1, at_input_grid=False)
    with explaining(model, x, 1, 1) as view:
        difference = answer.start_value - view.score(torch.zeros_like(view.features))
    torch.testing.assert_close(answer.values.sum((1, 2, 3, 4)), difference, rtol=0.01, atol=0)


def test_air_gets_nothing_at_an_inner_stage_unless_measured_from_zero_features() -> None:
    """Biases give air features of its own; measured from zero they would be explained as if they were tissue."""
    model, x = network(), volumes(1)
    x[:, :, :, :8] = 0
    from_air = attribute(model, x, 1, FAIR, 1, at_input_grid=False).values
    method = IntegratedGradients(Masking(inner="zero"), steps=400, batch=64)
    from_zero = attribute(model, x, 1, method, 1, at_input_grid=False).values
    assert float(from_air[..., :3, :].abs().max()) == 0
    assert float(from_air.abs().max()) > 0
    assert float(from_zero[..., :3, :].abs().max()) > 0.1 * float(from_zero.abs().max())


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_without_biases_it_is_input_times_gradient(steps: int) -> None:
    model, x = network(bias=False), volumes()
    for stage in (0, 1):
        expected = attribute(model, x, 1, InputTimesGradient(), stage).values
        answer = attribute(model, x, 1, IntegratedGradients(steps=steps), stage).values
        torch.testing.assert_close(answer, expected, rtol=1e-10, atol=1e-14)


def test_equals_the_integral_written_out() -> None:
    """All points in one batch, through a plain mean."""
    model, x = network(), volumes(1)
    alphas = ((torch.arange(20, dtype=torch.float64) + 0.5) / 20).view(-1, 1, 1, 1, 1)
    path = (alphas * x).requires_grad_()
    (gradients,) = torch.autograd.grad(model(path)[:, 1].sum(), path)
    answer = attribute(model, x, 1, IntegratedGradients(steps=20, tolerance=math.inf)).values
    torch.testing.assert_close(answer, x * gradients.mean(0, keepdim=True), rtol=1e-11, atol=1e-15)


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_internal_batch_does_not_matter(batch: int, count: int, steps: int) -> None:
    model, x = network(), volumes(count)
    with explaining(model, x, 1, 1) as view:
        one = path_integral(view.score, view.features, torch.zeros(()).double(), steps, 1)
        many = path_integral(view.score, view.features, torch.zeros(()).double(), steps, batch)
    torch.testing.assert_close(many.attributions, one.attributions, rtol=1e-11, atol=1e-15)
    torch.testing.assert_close(many.variation, one.variation, rtol=1e-11, atol=1e-15)


def test_never_more_volumes_at_once_than_asked() -> None:
    seen: list[int] = []

    def score(a: Tensor) -> Tensor:
        seen.append(len(a))
        return cubic(a)

    path_integral(score, torch.ones(3, 4), torch.zeros(()), steps=7, batch=5)
    assert seen == [5, 5, 5, 5, 1]


def test_a_map_that_misses_its_sum_is_refused() -> None:
    x = volumes(3)
    x[0] = 0
    with pytest.raises(UsageError, match=r"volume 1 of the batch has a completeness error .* raise steps \(now 1\)"):
        attribute(network(), x, 1, IntegratedGradients(steps=1, tolerance=1e-3))
    attribute(network(), x, 1, IntegratedGradients(steps=1, tolerance=math.inf))


def test_a_volume_of_air_has_an_empty_map() -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(1, 1, 9, 12, 10, dtype=dtype)
        answer = attribute(network().to(dtype), x, 1, IntegratedGradients(tolerance=0), 1).values
        assert float(answer.abs().max()) == 0


# Gaussian smoothing against a dense kernel, and SmoothGrad against its definition.


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
def test_internal_batch_does_not_matter_smoothing(batch: int) -> None:
    model, x = network(), volumes(3)
    one = attribute(model, x, 1, SmoothGrad(samples=3)).values
    many = attribute(model, x, 1, SmoothGrad(samples=3, batch=batch)).values
    torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("kernel", [0, -3, 4, 2.0, True])
def test_kernel_must_be_odd(kernel: float) -> None:
    for method in (SmoothInputTimesGradient, SmoothIntegratedGradients):
        with pytest.raises(UsageError, match=rf"{method.name}: kernel = "):
            method(kernel=kernel)  # type: ignore[arg-type]
