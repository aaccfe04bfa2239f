"""What dynamic linear networks share: the pair of intensities, logits, and explanation mode."""

import math

import pytest
import torch
from torch import Tensor, nn

from heatlas.pipeline.models.dynamic.encoding import InputEncoding, decoded
from heatlas.pipeline.models.dynamic.explanation_mode import DynamicLinear, explanation_mode
from heatlas.pipeline.models.dynamic.linear_map import differentiable_weights, dynamic_weights
from heatlas.pipeline.models.dynamic.logits import LogitLayer, bias_of_chance
from heatlas.pipeline.run.errors import BadInputError, UsageError


def volume() -> Tensor:
    torch.manual_seed(3)
    v = torch.rand(2, 1, 3, 4, 5, dtype=torch.float64)
    v[:, :, :, :, :2] = 0
    return v


def test_the_pair_decodes_to_the_intensity_and_adds_up_to_one_in_the_brain():
    v = volume()
    pairs = InputEncoding().eval()(v)
    torch.testing.assert_close(decoded(pairs), v, rtol=1e-15, atol=0)
    assert torch.equal(pairs.sum(1, keepdim=True), (v > 0).double())
    dark = InputEncoding("dark").eval()(v)
    assert torch.equal(dark, torch.cat([v, 1 - v], 1))
    torch.testing.assert_close(decoded(3 * dark), v, rtol=1e-15, atol=0)


def test_two_sequences_keep_their_places():
    v = volume().flatten(0, 1)[None]
    assert torch.equal(InputEncoding("dark")(v), torch.cat([v, 1 - v], 1))
    torch.testing.assert_close(decoded(InputEncoding()(v)), v, rtol=1e-15, atol=0)


@pytest.mark.parametrize("value", [-1e-6, 1 + 1e-6, math.nan, math.inf])
def test_intensities_outside_the_unit_interval_are_refused(value):
    v = volume()
    v[1, 0, 2, 3, 4] = value
    with pytest.raises(BadInputError, match="intensities from 0 to 1"):
        InputEncoding().eval()(v)


def test_augmented_intensities_are_clipped_while_training():
    v = volume() * 3 - 1
    assert torch.equal(InputEncoding().train()(v), InputEncoding().eval()(v.clamp(0, 1)))


def test_an_unknown_background_is_refused():
    with pytest.raises(UsageError, match=r"background = 'white'.* null, dark"):
        InputEncoding("white")  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_chance_is_the_probability_of_an_empty_input(classes):
    logits = LogitLayer(7.0, bias_of_chance(classes)).double()(torch.zeros(1, classes, dtype=torch.float64))
    torch.testing.assert_close(logits.sigmoid(), torch.full_like(logits, 1 / classes), rtol=1e-6, atol=0)


def test_one_class_needs_a_prior():
    assert bias_of_chance(1, prior=0.2) == pytest.approx(math.log(0.25))
    for prior in (None, 0.0, 1.0):
        with pytest.raises(UsageError, match="prior"):
            bias_of_chance(1, prior)
    with pytest.raises(UsageError, match="temperature = 0"):
        LogitLayer(0)


def test_temperature_and_bias_are_stored_and_not_trained():
    layer = LogitLayer(4.0, 1.0)
    assert set(layer.state_dict()) == {"temperature", "bias"}
    assert not list(layer.parameters())
    other = LogitLayer()
    other.load_state_dict(layer.state_dict())
    x = torch.tensor([[8.0]])
    assert torch.equal(other(x), torch.tensor([[3.0]]))


class Gate(DynamicLinear):
    """x times tanh(w x), which is dynamic linear."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.held(torch.tanh(self.weight * x))


def test_weights_are_the_held_factors_and_the_mode_is_restored():
    gate, x = Gate(), torch.tensor([0.3, -2.0], dtype=torch.float64, requires_grad=True)
    held = torch.tanh(0.7 * x)
    (true,) = torch.autograd.grad(gate(x).sum(), x)
    with torch.inference_mode():
        assert torch.equal(dynamic_weights(gate, gate, x), held)
    assert torch.equal(torch.autograd.grad(gate(x).sum(), x)[0], true)
    assert not torch.allclose(true, held)


def test_modes_nest_and_end_with_an_exception():
    gate = Gate()

    def fail() -> None:
        with explanation_mode(gate):
            assert gate.explaining
            with explanation_mode(gate, "off"):
                assert not gate.explaining
            assert gate.explaining
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gate.mode == "off"


def test_differentiable_weights_have_the_closed_form_gradient():
    """w(x) = tanh(w x): its derivative by the parameter is x (1 - tanh^2), which a detached factor would lose."""
    gate, x = Gate(), torch.tensor([0.3, -2.0], dtype=torch.float64)
    value, weights = differentiable_weights(gate, gate, x)
    torch.testing.assert_close(weights, torch.tanh(0.7 * x), rtol=1e-15, atol=0)
    torch.testing.assert_close(value, x * torch.tanh(0.7 * x), rtol=1e-15, atol=0)
    (slope,) = torch.autograd.grad(weights.sum(), gate.weight)
    torch.testing.assert_close(slope, (x * (1 - torch.tanh(0.7 * x) ** 2)).sum(), rtol=1e-14, atol=0)
    assert not gate._kept


def test_dropout_while_training_is_refused():
    model = nn.Sequential(Gate(), nn.Dropout(0.5))
    with pytest.raises(UsageError, match=r"layer 1 \(Dropout\) cannot be explained: .*training"):
        dynamic_weights(model, model, torch.ones(2))
    assert dynamic_weights(model.eval(), model, torch.ones(2, dtype=torch.float64)).shape == (2,)
