"""Gradients and what is made of them: products, guided backpropagation, and integrals along paths."""

from __future__ import annotations

import math

import pytest
import torch
from gradient_toys import LinearScore, network, volumes
from hypothesis import given, settings
from hypothesis import strategies as st
from lrp_toys import lrp_beta, staged, toy_network, toy_volumes
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.gradients import (
    Gradient,
    InputTimesGradient,
    score_and_gradient,
    score_gradient,
)
from heatlas.pipeline.attribution.gradient.guided_backprop import guided_backprop
from heatlas.pipeline.attribution.gradient.paths import (
    IntegratedGradients,
    completeness_delta,
    path_integral,
)
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.run.errors import UsageError


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
