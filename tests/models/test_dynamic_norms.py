"""What dynamic linear networks share: pairs of intensities, logits, explanation mode, and norms."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from bias_guard import bias_of, bias_terms, require_bias_free
from explicit_matrices import matrix_of
from torch import Tensor, nn

from heatlas.pipeline.models.dynamic import (
    DynamicLinear,
    LogitLayer,
    Scaled,
    bias_of_chance,
    calibrate,
    differentiable_weights,
    dynamic_weights,
    explanation_mode,
    needs_calibration,
    root_mean_square,
)
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.training.steps import prepare_step
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.dynamic import DynamicNorm, InputEncoding


def volume() -> Tensor:
    torch.manual_seed(3)
    v = torch.rand(2, 1, 3, 4, 5, dtype=torch.float64)
    v[:, :, :, :, :2] = 0
    return v


def decoded(pairs: torch.Tensor) -> torch.Tensor:
    """Intensities (B, k, ...) that pairs (B, 2k, ...) point at: ``v = p+ / (p+ + q+)``; 0 where neither is positive."""
    first, second = pairs.clamp(min=0).chunk(2, dim=1)
    return torch.where(first + second > 0, first / (first + second).clamp(min=torch.finfo(pairs.dtype).tiny), 0)


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


def test_a_temperature_must_be_above_zero():
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


OWN = ["layer", "instance", "group", "position"]


def noise(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.4


def settled(norm: nn.Module, channels: int = 4) -> nn.Module:
    """A norm in double precision with weights of its own, after three batches."""
    norm = norm.double()
    for parameter in norm.parameters():
        parameter.data = noise(*parameter.shape, seed=8)
    for seed in range(3):
        norm.train()(noise(3, channels, 2, 3, 4, seed=seed))
    return norm.eval()


@pytest.mark.parametrize("training", [True, False])
def test_pytorch_gives_the_same(training):
    x = noise(2, 4, 3, 4, 5)
    torchs = dict(batch=nn.BatchNorm3d(4), layer=nn.GroupNorm(1, 4), instance=nn.GroupNorm(4, 4))
    torchs |= dict(group=nn.GroupNorm(2, 4))
    for kind, theirs in torchs.items():
        ours = settled(DynamicNorm(kind, 4, centred=True, bias=True)).train(training)
        theirs = settled(theirs).train(training)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-14)
    position = settled(DynamicNorm("position", 4, bias=True))(x)
    voxel = x[1, :, 2, 3, 4]
    weight = noise(4, seed=8)
    expected = (voxel - voxel.mean()) / (voxel.var(correction=0) + 1e-5).sqrt() * weight + weight
    torch.testing.assert_close(position[1, :, 2, 3, 4], expected, rtol=1e-12, atol=1e-14)


def test_the_norm_of_everything_is_that_of_one_channel():
    x, ours, theirs = noise(2, 4, 3, 4, 5), DynamicNorm("all", 4, centred=True), nn.BatchNorm1d(1, affine=False)
    flat = x.view(-1, 1)
    torch.testing.assert_close(ours.double()(x).view(-1, 1), theirs.double()(flat), rtol=1e-12, atol=1e-14)
    assert float(ours.running_var) == pytest.approx(float(theirs.running_var), rel=1e-12)
    torch.testing.assert_close(ours.eval()(x).view(-1, 1), theirs.eval()(flat), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["batch", "all"])
def test_running_norms_divide_without_subtracting(kind):
    x, norm = noise(2, 4, 3, 4, 5), settled(DynamicNorm(kind, 4))
    weight, variance = (v.detach().view(1, -1, 1, 1, 1) for v in (norm.weight, norm.running_var))
    torch.testing.assert_close(norm(x), x * weight / (variance + 1e-5).sqrt(), rtol=1e-14, atol=0)
    torch.testing.assert_close(norm(2 * x + x), 3 * norm(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("kind", [*OWN, "batch", "all"])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_maps_are_complete_where_theory_says_so_and_nowhere_else(kind, centred, bias):
    x, norm = noise(1, 4, 2, 3, 2), settled(DynamicNorm(kind, 4, centred, bias))
    net = nn.Sequential(BcosConv3d(4, 4, 1).double(), norm)
    with explanation_mode(net):
        rows = torch.autograd.functional.jacobian(net, x).view(x.numel(), x.numel())
    complete = torch.allclose(rows @ x.flatten(), net(x).flatten(), rtol=1e-9, atol=1e-12)
    assert complete == (not bias and not (kind in ("batch", "all") and centred))
    assert complete == (not bias_terms(net))
    constant = bias_of(net, lambda a: net(a).flatten(1).sum(1), x)
    assert (float(constant.abs()) < 1e-12) == complete


@pytest.mark.parametrize("kind", OWN)
def test_rows_are_the_matrix_written_out_and_a_detached_mean_would_not_do(kind):
    x, norm = noise(1, 4, 2, 2, 3), settled(DynamicNorm(kind, 4))
    grouped = x.unflatten(1, (2, 2)) if kind == "group" else x
    axes = {"layer": (1, 2, 3, 4), "instance": (2, 3, 4), "group": (2, 3, 4, 5), "position": (1,)}[kind]
    deviation = (grouped.var(axes, correction=0, keepdim=True) + 1e-5).sqrt()

    def held(unit: Tensor) -> Tensor:
        parts = unit.unflatten(1, (2, 2)) if kind == "group" else unit
        centred = (parts - parts.mean(axes, keepdim=True)) / deviation
        return (centred.flatten(1, 2) if kind == "group" else centred) * norm.weight.detach().view(1, 4, 1, 1, 1)

    with explanation_mode(norm):
        rows = torch.autograd.functional.jacobian(norm, x).view(x.numel(), x.numel())
    torch.testing.assert_close(rows, matrix_of(held, x), rtol=1e-12, atol=1e-14)
    of_channels = deviation.flatten(1, 2).repeat_interleave(2, 1) if kind == "group" else deviation
    without_mean = norm.weight.detach().view(1, 4, 1, 1, 1) / of_channels * x
    assert not torch.allclose(without_mean, norm(x), rtol=1e-2)
    true = torch.autograd.functional.jacobian(norm, x).view(x.numel(), x.numel())
    assert not torch.allclose(true @ x.flatten(), norm(x).flatten(), rtol=1e-2)


def test_an_empty_background_stays_empty_where_no_mean_moves_it():
    x = noise(1, 4, 3, 3, 3)
    x[..., :2] = 0
    for kind in ("position", "batch", "all"):
        assert torch.equal(settled(DynamicNorm(kind, 4))(x)[..., :2], torch.zeros(1, 4, 3, 3, 2, dtype=torch.float64))
    assert bool((settled(DynamicNorm("layer", 4))(x)[..., :2] != 0).any())
    assert torch.equal(settled(DynamicNorm("layer", 4, centred=False))(x)[..., :2], x[..., :2])


def test_batch_means_are_not_explained_while_training():
    norm = DynamicNorm("batch", 4, centred=True).double()
    with pytest.raises(UsageError, match=r"layer model \(DynamicNorm\) cannot be explained: .*mean of the batch"):
        dynamic_weights(norm, lambda a: norm(a).flatten(1).sum(1), noise(2, 4, 2, 2, 2))


def test_first_batches_weigh_the_same_and_a_second_pass_leaves_no_trace():
    norm, batches = DynamicNorm("batch", 4).double().train(), [noise(2, 4, 2, 3, 4, seed=s) for s in range(3)]
    for x in batches:
        prepare_step(norm)
        differentiable_weights(norm, lambda a: norm(a).flatten(1).sum(1), x)
    mean = torch.stack([x.var((0, 2, 3, 4)) for x in batches]).mean(0)
    torch.testing.assert_close(norm.running_var, mean, rtol=1e-12, atol=0)
    assert int(norm.num_batches_tracked) == 3


def test_wrong_norms_are_refused():
    with pytest.raises(UsageError, match=r"norm = 'spectral': allowed are batch, layer"):
        DynamicNorm("spectral", 4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="3 channels are not divided by 2 groups"):
        DynamicNorm("group", 3)


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position_embeddings = nn.Parameter(torch.zeros(1, 9, 4))


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (nn.Conv3d(1, 2, 3), "0.bias: bias of Conv3d"),
        (nn.LayerNorm(4), "0.bias: bias of LayerNorm"),
        (nn.BatchNorm3d(2, affine=False), "0.running_mean: BatchNorm3d subtracts a running mean"),
        (DynamicNorm("all", 2, centred=True), "0.running_mean: DynamicNorm subtracts a running mean"),
        (nn.MultiheadAttention(4, 2, bias=True), "0.in_proj_bias: bias of MultiheadAttention"),
        (Token(), "0.cls_token: a trained constant of Token"),
        (Positions(), "0.position_embeddings: a trained constant of Positions"),
    ],
)
def test_every_kind_of_constant_is_found(module, found):
    assert found in bias_terms(nn.Sequential(module))
    with pytest.raises(UsageError, match=r"constants that no voxel carries: .*0.*Remove them"):
        require_bias_free(nn.Sequential(module))


def test_slopes_and_bias_free_layers_pass():
    bias_free = nn.Sequential(
        BcosConv3d(2, 4), DynamicNorm("batch", 4), DynamicNorm("layer", 4), nn.PReLU(), nn.Conv3d(4, 2, 1, bias=False),
        nn.Dropout(), LogitLayer(2.0, 1.0),
    )  # fmt: skip
    require_bias_free(bias_free)
    assert bias_terms(bias_free) == ()


def stack(b: float) -> nn.Sequential:
    torch.manual_seed(4)
    sizes = [2, 6, 6, 6, 6, 6, 6, 6, 6]
    layers = [Scaled(BcosConv3d(i, o, 3, 1, 1, b=b, max_out=2)) for i, o in pairwise(sizes)]
    last = [Scaled(BcosConv3d(6, 2, 1, b=b, max_out=2)), nn.AdaptiveAvgPool3d(1), nn.Flatten()]
    return nn.Sequential(*layers, *last, LogitLayer(bias=-1.0, initial_size=0.5))


@pytest.mark.parametrize("b", [1.0, 1.5, 2.0, 2.5])
def test_gains_keep_every_signal_and_the_temperature_the_logits(b):
    x, net = torch.rand(2, 2, 5, 6, 4), stack(b)
    with torch.no_grad():
        before = root_mean_square(net(x) + 1)
    calibrate(net, x)
    a = x
    with torch.no_grad():
        for layer in net[:9]:
            after = layer(a)
            assert root_mean_square(after) == pytest.approx(root_mean_square(a), rel=1e-4)
            assert 0.5 < float(layer.gain) < 300
            a = after
        assert root_mean_square(net(x) + 1) == pytest.approx(0.5, rel=1e-4)
    assert before < {1.0: 1.0, 1.5: 1e-3, 2.0: 1e-9, 2.5: 1e-30}[b]
    other = stack(b)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x), net(x))


def test_what_is_not_open_is_not_calibrated():
    fixed = nn.Sequential(nn.Flatten(), LogitLayer(3.0))
    assert not needs_calibration(fixed)
    calibrate(fixed, torch.rand(2, 4))
    assert float(fixed[1].temperature) == 3
    assert needs_calibration(stack(2.0))
    with pytest.raises(UsageError, match="layer 0: its signals cannot be brought to a useful size"):
        calibrate(stack(2.0), torch.zeros(1, 2, 4, 4, 4))
    assert math.isclose(root_mean_square(torch.tensor([3.0, 4.0])), math.sqrt(12.5))
