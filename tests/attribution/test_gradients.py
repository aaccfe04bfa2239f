"""Gradient and input times gradient: closed forms, finite differences, identities."""

from __future__ import annotations

import pytest
import torch
from gradient_toys import LinearScore, network, volumes
from lrp_toys import lrp_beta
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.gradients import (
    Gradient,
    InputTimesGradient,
    score_and_gradient,
    score_gradient,
)
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining
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
