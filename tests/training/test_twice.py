"""Layers that are fast to differentiate twice: equal to torch's own, and to finite differences."""

from threading import Thread

import pytest
import torch
from torch import nn
from torch.nn import functional

from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedReLU
from heatlas.studies.objectives.twice import TwiceDifferentiable, gradients_of_features

SHAPE = (7, 9, 8)


def double_backward(model, volumes, fast):
    """Output, map gradient, and the gradients of a loss of both with respect to the weights."""
    features = volumes.clone().requires_grad_()
    model.zero_grad()
    if fast:
        with TwiceDifferentiable():
            output = model(features)
        with gradients_of_features():
            (gradient,) = torch.autograd.grad(output.pow(2).sum(), features, create_graph=True)
    else:
        output = model(features)
        (gradient,) = torch.autograd.grad(output.pow(2).sum(), features, create_graph=True)
    ((gradient * volumes).pow(2).mean() + output.sum()).backward()
    return output.detach(), gradient.detach(), [one.grad for one in model.parameters()]


def require_gradients_of_torch(model, volumes):
    ours, theirs = double_backward(model, volumes, True), double_backward(model, volumes, False)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


OF_ONE_CHANNEL = [{}, {"padding": 1}, {"padding": (2, 0, 1)}, {"padding": 3}, {"stride": 2}, {"kernel_size": (1, 2, 3)}]
OF_TWO = [
    {}, {"stride": 2}, {"padding": 1}, {"stride": (2, 1, 3), "padding": (0, 1, 2)}, {"dilation": 2},
    {"groups": 2, "padding": 2}, {"bias": False}, {"padding": "same"}, {"padding": 3},
]  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "settings", "layout"),
    [
        *((2, settings, torch.contiguous_format) for settings in OF_TWO),
        *((1, own, layout) for own in OF_ONE_CHANNEL for layout in (torch.contiguous_format, torch.channels_last_3d)),
    ],
)
def test_convolutions_have_the_gradients_of_torch(channels, settings, layout):
    torch.manual_seed(5)
    first = nn.Conv3d(channels, 4, **{"kernel_size": 3, **settings})
    model = nn.Sequential(first, nn.Tanh(), nn.Conv3d(4, 2, (2, 1, 2))).double().to(memory_format=layout)
    volumes = torch.randn(3, channels, *SHAPE, dtype=torch.float64)
    require_gradients_of_torch(model, volumes)


@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool3d(2), nn.MaxPool3d(3, 2, 1), nn.MaxPool3d((2, 1, 3)), nn.MaxPool3d(2, 1, 0, 2),
     nn.MaxPool3d(2, ceil_mode=True)],
)  # fmt: skip
def test_relus_and_pools_have_the_gradients_of_torch(pool):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv3d(1, 3, 2), nn.ReLU(), pool, nn.Conv3d(3, 2, 2), nn.Tanh()).double()
    volumes = torch.randn(3, 1, *SHAPE, dtype=torch.float64)
    require_gradients_of_torch(model, volumes)


class Sharing(nn.Module):
    """A ReLU that max-pooling shares with others; what it is of may be changed before that is pooled."""

    def __init__(self, pool, changed=False):
        super().__init__()
        self.first, self.pool, self.changed = nn.Conv3d(1, 3, 2), pool, changed

    def forward(self, volumes):
        features = self.first(volumes)
        active = functional.relu(features)
        if self.changed:
            features.mul_(2)
        return (self.pool(active).flatten(1) ** 2).sum(1) + (active.flatten(1).sin() + features.flatten(1)).sum(1)


@pytest.mark.parametrize("pool", [nn.MaxPool3d(2), nn.MaxPool3d(3, 2, 1)])
@pytest.mark.parametrize("changed", [False, True])
def test_a_relu_that_others_use_too_has_the_gradients_of_torch(changed, pool):
    torch.manual_seed(6)
    model, volumes = Sharing(pool, changed).double(), torch.randn(3, 1, *SHAPE, dtype=torch.float64)
    require_gradients_of_torch(model, volumes)


def test_pooling_hands_nothing_on_before_a_relu_that_torch_hands_nothing_on():
    """Made without gradients, or cut off afterwards: the gradient is that of what else the features are used for."""
    features = torch.rand(1, 2, 4, 4, 4, dtype=torch.float64, requires_grad=True)
    for of_nothing in (True, False):
        with TwiceDifferentiable():
            with torch.set_grad_enabled(not of_nothing):
                active = functional.relu(features)
            active.detach_()
            output = functional.max_pool3d(active, 2).sum() + 3 * features.sum()
        with gradients_of_features():
            (found,) = torch.autograd.grad(output, features)
        torch.testing.assert_close(found, torch.full_like(features, 3), rtol=0, atol=0)


def test_relus_and_pools_run_in_inference_too():
    with torch.inference_mode(), TwiceDifferentiable():
        found = functional.max_pool3d(functional.relu(torch.arange(-4.0, 4).view(1, 1, 2, 2, 2)), 2)
    assert found.tolist() == [[[[[3.0]]]]]


@pytest.mark.parametrize("pool", [nn.MaxPool3d(2), nn.MaxPool3d(3, 2, 1)])
def test_a_guided_gradient_is_cut_where_all_that_use_a_relu_are_added_up(pool, monkeypatch):
    torch.manual_seed(7)
    model, volumes = Sharing(pool).double(), torch.randn(3, 1, *SHAPE, dtype=torch.float64)
    features = volumes.clone().requires_grad_()
    with TwiceDifferentiable():
        output = model(features).sum()
    with gradients_of_features(guided=True):
        (found,) = torch.autograd.grad(output, features)
    monkeypatch.setattr(functional, "relu", GuidedReLU.apply)
    (expected,) = torch.autograd.grad(model(features).sum(), features)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_batch_normalisation_is_affine_in_a_map_and_its_loss_has_exact_gradients():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.Tanh(), nn.Conv3d(3, 1, 2)).double().train()
    volumes = torch.randn(4, 1, *SHAPE, dtype=torch.float64)

    def loss():
        features = volumes.clone().requires_grad_()
        with TwiceDifferentiable():
            output = model(features)
        with gradients_of_features():
            (gradient,) = torch.autograd.grad(output.pow(2).sum(), features, create_graph=True)
        return (gradient * volumes).pow(2).mean() + output.sum(), gradient

    # The map: statistics of the batch as constants.
    normal = model[1]
    seen = model[0](volumes)
    mean, variance = seen.mean((0, 2, 3, 4)), seen.var((0, 2, 3, 4), unbiased=False)
    held = nn.BatchNorm3d(3).double().eval()
    held.load_state_dict(normal.state_dict())
    held.running_mean, held.running_var = mean.detach(), variance.detach()
    features = volumes.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model[3](model[2](held(model[0](features)))).pow(2).sum(), features)
    value, found = loss()
    torch.testing.assert_close(found.detach(), expected, rtol=1e-10, atol=1e-12)

    # The weights: central differences of the same loss.
    model.zero_grad()
    value.backward()
    for weight in model.parameters():
        place = tuple(size // 2 for size in weight.shape)
        step, original = 1e-5, weight.data[place].item()
        values = []
        for shift in (step, -step):
            weight.data[place] = original + shift
            values.append(loss()[0].item())
        weight.data[place] = original
        assert weight.grad[place].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6, abs=1e-8)


def test_running_statistics_are_those_of_torch():
    torch.manual_seed(2)
    ours, theirs = nn.BatchNorm3d(2, momentum=0.3), nn.BatchNorm3d(2, momentum=0.3)
    volumes = torch.randn(3, 2, *SHAPE)
    with TwiceDifferentiable():
        found = ours(volumes)
    torch.testing.assert_close(found, theirs(volumes))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("train", [False, True])
def test_a_gradient_taken_by_another_thread_is_the_same(train):
    """On a GPU the backward functions run in threads of torch."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.Conv3d(3, 1, 2)).double().train(train)
    features = torch.randn(2, 1, *SHAPE, dtype=torch.float64, requires_grad=True)
    found = []
    with TwiceDifferentiable():
        output = model(features).pow(2).sum()

    def gradient():
        found.append(torch.autograd.grad(output, features, create_graph=True)[0])

    with gradients_of_features():
        gradient()
        thread = Thread(target=gradient)
        thread.start()
        thread.join()
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_in_half_precision_gradients_keep_the_types_of_the_weights():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.Tanh(), nn.Conv3d(3, 1, 2))
    volumes = torch.rand(2, 1, *SHAPE)

    def gradients(half):
        features = volumes.clone().requires_grad_()
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half), TwiceDifferentiable():
            output = model(features)
        with gradients_of_features():
            (gradient,) = torch.autograd.grad(output.float().pow(2).sum(), features, create_graph=True)
        ((gradient * volumes).pow(2).mean() + output.float().sum()).backward()
        return gradient.detach(), [one.grad for one in model.parameters()]

    (ours, of_weights), (exact, expected) = gradients(True), gradients(False)
    assert ours.dtype == torch.float32
    assert (ours - exact).norm() < 0.1 * exact.norm()
    for one, other in zip(of_weights, expected, strict=True):
        assert one.dtype == torch.float32
        if one.dim() == 5:  # the gradient of a bias before normalisation is rounding alone
            assert (one - other).norm() < 0.1 * other.norm()
