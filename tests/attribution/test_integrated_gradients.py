"""Integrated gradients: closed forms, completeness from a stated baseline at every stage, refusal of a bad sum."""

from __future__ import annotations

import math

import pytest
import torch
from gradient_toys import LinearScore, network, volumes
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heatlas.pipeline.attribution.gradient.gradients import InputTimesGradient
from heatlas.pipeline.attribution.gradient.integrated_gradients import (
    IntegratedGradients,
    completeness_delta,
    path_integral,
)
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.run.errors import UsageError

FAIR = IntegratedGradients(steps=400, batch=64)


@pytest.mark.parametrize("baseline", [0.0, -0.3])
@pytest.mark.parametrize("steps", [1, 7])
def test_linear_model_in_closed_form(steps: int, baseline: float) -> None:
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


@pytest.mark.parametrize(
    ("setting", "value"),
    [("steps", 0), ("steps", 2.5), ("steps", True), ("batch", 0), ("tolerance", -0.1), ("tolerance", math.nan)],
)
def test_wrong_settings(setting: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"integrated-gradients: {setting} = "):
        IntegratedGradients(**{setting: value})  # type: ignore[arg-type]
