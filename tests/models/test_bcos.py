"""B-cos layers and networks."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import pytest
import torch
from bias_guard import bias_terms, require_bias_free
from explicit_matrices import matrix_of, patches, product
from torch import Tensor, nn
from torch.nn import functional

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import (
    LogitLayer,
    calibrate,
    differentiable_weights,
    dynamic_weights,
    explanation_mode,
    forget,
)
from heatlas.pipeline.models.families.monai import EfficientNetConfig, ResNetConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training.steps import prepare_step
from heatlas.studies.bcos.conversion import converted
from heatlas.studies.bcos.layers import BcosConv3d, BcosLinear, bcos_scale, unit_rows
from heatlas.studies.bcos.networks import Positions, sines_of_places
from heatlas.studies.bcos.records import (
    BCOS_FAMILIES,
    BcosConfig,
    BcosConvNeXtConfig,
    BcosDenseNetConfig,
    BcosResNetConfig,
    BcosResNeXtConfig,
    BcosSimpleConfig,
    BcosVggConfig,
    BcosViTConfig,
)
from heatlas.studies.dynamic import InputEncoding

# B-cos layers: the definition from patches, bounds, angles, and rows of their matrices in explanation mode.

EXPONENTS = [1.0, 1.5, 2.0, 2.5]


def noise(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def conv(*arguments: int, **settings: float) -> BcosConv3d:
    torch.manual_seed(5)
    return BcosConv3d(*arguments, **settings).double()  # type: ignore[arg-type]


def by_definition(layer: BcosConv3d, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """``max over units of |x| |cos|^B sgn(cos)``, from each patch of each group; 0 of an empty patch."""
    found = []
    for part, weight in zip(x.chunk(layer.groups, 1), layer.weight.chunk(layer.groups), strict=True):
        p = patches(part, kernel, stride, padding).permute(0, 2, 3, 4, 1, 5).flatten(4)
        w = weight.flatten(1)
        norm = p.norm(dim=-1, keepdim=True)
        cosine = (p @ w.T) / (norm * w.norm(dim=1))
        answers = torch.nan_to_num(norm * cosine.abs() ** layer.b * cosine.sign())
        found.append(answers.unflatten(-1, (-1, layer.max_out)).amax(-1).permute(0, 4, 1, 2, 3))
    return torch.cat(found, 1)


@pytest.mark.parametrize("b", EXPONENTS)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (1, 1, 0), (1, 2, 0), (2, 2, 0), (3, 1, 3)]
)
@pytest.mark.parametrize(("groups", "max_out"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_the_definition_from_patches(b, kernel, stride, padding, groups, max_out):
    x = 1e4 * noise(2, 4, 3, 4, 5)  # beside which the smallest norm vanishes
    layer = conv(4, 6, kernel, stride, padding, groups=groups, max_out=max_out, b=b)
    torch.testing.assert_close(layer(x), by_definition(layer, x, kernel, stride, padding), rtol=1e-10, atol=1e-7)


def test_dilated_patches_have_their_own_norm():
    x, layer = noise(1, 2, 5, 6, 7), conv(2, 3, 3, 1, 2, dilation=2, groups=1)
    spread = torch.zeros(3, 2, 5, 5, 5, dtype=torch.float64)
    spread[:, :, ::2, ::2, ::2] = layer.weight.detach()
    there = (spread != 0).any(0, keepdim=True).double()
    norm = functional.conv3d(x.square(), there, padding=2).add(1e-6).sqrt()
    linear = functional.conv3d(x, unit_rows(spread), padding=2)
    torch.testing.assert_close(layer(x), linear * linear.abs() / norm, rtol=1e-12, atol=0)


@pytest.mark.parametrize("b", EXPONENTS)
def test_only_an_input_along_the_weights_reaches_the_norm(b):
    layer = conv(2, 3, 3, b=b)
    x = noise(50, 2, 3, 3, 3)
    assert bool((layer(x).flatten(1).abs() <= x.flatten(1).norm(dim=1, keepdim=True) * (1 + 1e-5)).all())
    along = 7.0 * layer.weight.detach()
    torch.testing.assert_close(torch.diagonal(layer(along).flatten(1)), along.flatten(1).norm(dim=1), rtol=1e-5, atol=0)


def test_a_larger_exponent_answers_less():
    x = noise(4, 2, 4, 4, 4)
    sizes = [conv(2, 3, 3, b=b)(x).abs() for b in (1.0, 1.5, 2.0, 3.0)]
    assert all(bool((after <= before * (1 + 1e-5)).all()) for before, after in pairwise(sizes))


def test_exponent_one_is_a_convolution_with_filters_of_norm_one():
    x, layer = noise(2, 3, 4, 4, 5), conv(3, 4, 3, 1, 1, b=1)
    unit = layer.weight / layer.weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1, 1)
    torch.testing.assert_close(layer(x), functional.conv3d(x, unit, padding=1), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("b", EXPONENTS)
def test_the_length_of_filters_does_not_matter_and_no_gradient_goes_along_them(b):
    x, layer = noise(2, 2, 4, 4, 4), conv(2, 3, 3, b=b)
    longer = copy.deepcopy(layer)
    longer.weight.data *= torch.tensor([0.1, 3.0, 100.0]).view(-1, 1, 1, 1, 1).double()
    torch.testing.assert_close(longer(x), layer(x), rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    weight = layer.weight.detach()
    along = (weight * gradient).flatten(1).sum(1) / (weight.norm() * gradient.norm())
    assert float(along.abs().max()) < 1e-12


def test_the_largest_unit_is_the_same_before_and_after_scaling():
    x = noise(2, 2, 4, 4, 4)
    for b in EXPONENTS:
        layer = conv(2, 3, 3, b=b, max_out=2)
        single = conv(2, 6, 3, b=b)
        single.weight.data = layer.weight.data
        assert torch.equal(layer(x), single(x).unflatten(1, (3, 2)).amax(2))


@pytest.mark.parametrize("b", EXPONENTS)
@pytest.mark.parametrize("max_out", [1, 2])
def test_rows_of_the_matrix_and_not_the_gradient(b, max_out):
    """W(x) is the scaled filters written out; the gradient without holding the scale is another matrix (B > 1)."""
    x, layer = noise(1, 2, 3, 3, 4), conv(2, 2, 3, 1, 1, b=b, max_out=max_out)
    linear = functional.conv3d(x, unit_rows(layer.weight), padding=1).unflatten(1, (2, max_out))
    winner = torch.zeros_like(linear).scatter(2, linear.argmax(2, keepdim=True), 1.0)
    scale = bcos_scale(linear.amax(2), layer.patch_norm(x), b) if b > 1 else torch.ones_like(linear.amax(2))

    def held(unit: Tensor) -> Tensor:
        answers = functional.conv3d(unit, unit_rows(layer.weight), padding=1).unflatten(1, (2, max_out))
        return (answers * winner).sum(2) * scale

    explicit = matrix_of(held, x).detach()
    with explanation_mode(layer):
        rows = torch.autograd.functional.jacobian(layer, x).view(explicit.shape)
    torch.testing.assert_close(rows, explicit, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(rows @ x.flatten(), layer(x).flatten(), rtol=1e-9, atol=1e-14)
    true = torch.autograd.functional.jacobian(layer, x).view(explicit.shape)
    assert torch.allclose(true, rows) == (b == 1)


def test_the_gradient_of_a_unit_has_a_part_along_the_input():
    """``grad f = B W - (B - 1) |cos|^B sgn(cos) x / |x|`` for one unit, derived by hand."""
    for b in (1.5, 2.0, 3.0):
        layer, x = BcosLinear(6, 1, b=b).double(), noise(1, 6).requires_grad_()
        (true,) = torch.autograd.grad(layer(x).sum(), x)
        with explanation_mode(layer):
            (row,) = torch.autograd.grad(layer(x).sum(), x)
        unit = unit_rows(layer.weight)
        cosine = (unit @ x.T).squeeze() / x.norm()
        expected = b * row - (b - 1) * cosine.abs() ** b * cosine.sign() * x / x.norm()
        torch.testing.assert_close(true, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.sample(2)
@pytest.mark.parametrize("b", [1.5, 2.0, 2.5])
@pytest.mark.parametrize("groups", [1, 2])
def test_first_and_second_derivatives(b, groups):
    layer, x = conv(2, 4, 2, b=b, groups=groups, max_out=2), noise(1, 2, 2, 3, 2).requires_grad_()
    call = lambda a, w: torch.func.functional_call(layer, {"weight": w}, (a,))  # noqa: E731
    assert torch.autograd.gradcheck(call, (x, layer.weight))
    assert torch.autograd.gradgradcheck(call, (x, layer.weight))


def test_an_empty_patch_and_an_empty_filter_have_finite_slopes():
    for b in EXPONENTS:
        layer = conv(2, 3, 3, b=b)
        layer.weight.data[1] = 0
        x = torch.zeros(1, 2, 4, 4, 4, dtype=torch.float64, requires_grad=True)
        answer = layer(x)
        answer.square().sum().backward()
        assert torch.equal(answer, torch.zeros_like(answer))
        assert bool(torch.isfinite(x.grad).all() & torch.isfinite(layer.weight.grad).all())


def test_linear_layers_are_convolutions_of_one_voxel():
    x = noise(3, 4)
    for b in EXPONENTS:
        voxel, layer = conv(4, 5, 1, b=b, max_out=2), BcosLinear(4, 5, b, 2).double()
        layer.weight.data = voxel.weight.data.flatten(1)
        torch.testing.assert_close(layer(x), voxel(x[..., None, None, None]).flatten(1), rtol=1e-12, atol=0)


def test_wrong_settings_are_refused():
    for b in (0.99, math.nan, math.inf):
        with pytest.raises(UsageError, match=r"b = .*1 or more"):
            BcosConv3d(2, 2, b=b)
    with pytest.raises(UsageError, match="max_out = 0"):
        BcosLinear(2, 2, max_out=0)
    with pytest.raises(UsageError, match="groups = 2: it must divide 3 and 4"):
        BcosConv3d(3, 4, groups=2)


def test_alignment_grows_with_the_exponent():
    """A unit for inputs at 60 degrees, against half as many elsewhere: of a larger B it depends less on where."""
    angles = torch.linspace(-math.pi, math.pi, 7201, dtype=torch.float64)
    gaps = []
    for b in (1, 2, 4, 8, 16, 64):
        best = []
        for elsewhere in (20.0, 100.0):
            cosines = [torch.cos(angles - math.radians(place)) for place in (60.0, elsewhere)]
            wanted, unwanted = (c.sign() * c.abs() ** b for c in cosines)
            loss = functional.softplus(-wanted) + 0.5 * functional.softplus(unwanted)
            best.append(float(torch.rad2deg(angles[loss.argmin()])))
        gaps.append(abs(best[0] - best[1]))
    assert all(after < before for before, after in pairwise(gaps))
    assert gaps[0] > 90
    assert gaps[-1] < 1


def test_a_stack_without_norms_is_homogeneous():
    """So input times gradient adds up to the answer although it is not W(x): completeness alone proves nothing."""
    torch.manual_seed(2)
    net = nn.Sequential(BcosConv3d(2, 4, 3), BcosConv3d(4, 3, 2)).double()
    x = (100 * noise(1, 2, 4, 4, 4)).requires_grad_()
    torch.testing.assert_close(net(3 * x), 3 * net(x), rtol=1e-4, atol=0)
    value = net(x)[0, 1, 0, 0, 0]
    (true,) = torch.autograd.grad(value, x, retain_graph=True)
    torch.testing.assert_close((true * x).sum(), value, rtol=1e-4, atol=0)
    with explanation_mode(net):
        (row,) = torch.autograd.grad(net(x)[0, 1, 0, 0, 0], x)
    torch.testing.assert_close((row * x).sum(), value, rtol=1e-9, atol=0)
    assert float(true.norm()) > 2 * float(row.norm())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("b", [1.5, 2.0])
def test_what_is_made_in_place_is_the_same_as_what_is_not(b, groups, layout):
    """Against autograd on the formula, on a grid that is large enough for sums channel by channel."""
    x = noise(1, 4, 26, 27, 28).to(memory_format=layout).requires_grad_()
    layer, probe = conv(4, 6, 3, 2, 1, b=b, groups=groups), noise(1, 6, 13, 14, 14, seed=8)
    (layer(x) * probe).sum().backward()
    of_x, of_weight = x.grad.clone(), layer.weight.grad.clone()
    x.grad = layer.weight.grad = None
    linear = functional.conv3d(x, unit_rows(layer.weight), None, 2, 1, groups=groups)
    ones = torch.zeros(groups, 4, 3, 3, 3, dtype=torch.float64)
    for group, channels in enumerate(torch.arange(4).chunk(groups)):
        ones[group, channels] = 1
    norm = (functional.conv3d(x.square(), ones, None, 2, 1) + 1e-6).sqrt().repeat_interleave(6 // groups, 1)
    (linear * (linear.abs() / norm) ** (b - 1) * probe).sum().backward()
    torch.testing.assert_close(of_x, x.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(of_weight, layer.weight.grad, rtol=1e-9, atol=1e-10)


def test_a_unit_with_exponent_two_is_the_limit_of_wide_radial_gates():
    """``sigma wᵀx (exp(-|x̂ - ŵ|² / 2 sigma) e^(1 / sigma) - 1)``: the relative error is cos / 2 sigma and less."""
    layer, x = BcosLinear(20, 1).double(), noise(200, 20)
    weight = unit_rows(layer.weight.detach())
    squared_distance = (functional.normalize(x, dim=1) - weight).square().sum(1)
    cosine, linear = 1 - squared_distance / 2, (x @ weight.T)[:, 0]
    answer = cosine.sign() * layer(x).detach()[:, 0]
    for width in (1.0, 10.0, 100.0, 1000.0):
        gate = torch.exp(-squared_distance / (2 * width)) * math.exp(1 / width) - 1
        error = width * linear * gate / answer - 1
        next_term = cosine.square() / (6 * width**2) * torch.exp(cosine.abs() / width)
        assert bool(((error - cosine / (2 * width)).abs() <= next_term + 1e-6).all())


# B-cos networks: rows of W(x) at every stage, settings that are refused, and networks that are converted.

TINY: dict[str, BcosConfig] = {
    "bcos-simple": BcosSimpleConfig(channels=(3, 4), strides=(2, 1), norm="none", max_out=2),
    "bcos-resnet18": BcosResNetConfig(width=1 / 32, stem_stride=1),
    "bcos-resnext50": BcosResNeXtConfig(width=1 / 16, groups=2, stem_stride=1),
    "bcos-densenet121": BcosDenseNetConfig(first_channels=2, growth=1),
    "bcos-convnext-tiny": BcosConvNeXtConfig(width=1 / 32, depths=(1, 1, 2, 1)),
    "bcos-vgg11": BcosVggConfig(width=1 / 64),
    "bcos-vit": BcosViTConfig("bcos-vit", patch=4, dim=12, depth=2, heads=2),
    "bcos-vit-c": BcosViTConfig(patch=4, dim=12, depth=3, heads=2),
}


def network(settings: BcosConfig, shape: tuple[int, int, int], outputs: int = 3) -> tuple[StagedModel, Tensor]:
    """A calibrated network in evaluation mode, whose norms have weights of their own, and volumes with a background."""
    torch.manual_seed(6)
    model = build_network(settings, shape, outputs)
    volumes = torch.rand(2, 1, *shape)
    volumes[..., :2] = 0
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data = torch.rand_like(parameter) + 0.5
    prepare_step(model)
    calibrate(model.train(), volumes)
    return model.eval(), volumes


def test_every_family_is_here():
    assert list(TINY) == [family.name for family in BCOS_FAMILIES]


def logit_bias(model: StagedModel) -> float:
    (layer,) = (module for module in model.modules() if isinstance(module, LogitLayer))
    return float(layer.bias)


def share_of_positions(model: StagedModel, pairs: Tensor, unit: int) -> Tensor | float:
    """What a vision transformer's answer owes to its positions, by the weights of the tokens that they are added to."""
    tokens = model.stages[1]
    if not isinstance(tokens[-1], Positions):
        return 0.0
    a, rest = tokens(pairs), torch.nn.Sequential(*model.stages[2:])
    rows = dynamic_weights(model, lambda x: rest(x)[:, unit], a)
    return (rows * sines_of_places(a.shape[1], tuple(a.shape[2:]), a)).flatten(1).sum(1)


DEEP = ("bcos-resnet18", "bcos-resnext50", "bcos-densenet121", "bcos-vgg11", "bcos-convnext-tiny")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in DEEP)) for n in TINY])
def test_contributions_add_up_at_every_stage(name):
    settings = TINY[name]
    side = {f.name: f for f in BCOS_FAMILIES}[name].smallest_side(settings)
    model, volumes = network(settings, (side, side + 2, side + 1))
    model, a = model.double(), volumes.double()
    require_bias_free(model)
    for stage, after in enumerate(model.stages[:-1], 1):
        a = after(a).detach()
        rest = torch.nn.Sequential(*model.stages[stage:])
        for unit in range(3):
            rows = dynamic_weights(model, lambda x, rest=rest, unit=unit: rest(x)[:, unit], a)
            expected = rest(a)[:, unit] - logit_bias(model)
            if stage == 1:
                share = share_of_positions(model, a, unit)
                expected = expected - share
            torch.testing.assert_close((rows * a).flatten(1).sum(1), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", ["none", "batch", "layer", "instance", "group", "position", "all"])
@pytest.mark.parametrize("b", [1.0, 1.5, 2.0, 2.5])
def test_the_simple_network_is_complete_in_float32_for_every_norm(norm, b):
    model, volumes = network(BcosSimpleConfig(channels=(4, 6), strides=(2, 1), norm=norm, b=b, max_out=2), (9, 7, 8))
    pairs = model.stages[0](volumes)
    rest = torch.nn.Sequential(*model.stages[1:])
    rows = dynamic_weights(model, lambda x: rest(x)[:, 1], pairs)
    contributions = rows * pairs
    error = contributions.flatten(1).double().sum(1) - (rest(pairs)[:, 1].double() - logit_bias(model))
    assert float((error.detach() / contributions.double().abs().flatten(1).sum(1)).abs().max()) < 1e-5
    assert torch.equal(contributions[..., :2], torch.zeros_like(contributions[..., :2]))


def test_rows_are_the_product_of_the_matrices_of_the_layers():
    """The factors of a pass are kept; with them each stage is a matrix, written out from unit vectors."""
    settings = BcosSimpleConfig(channels=(2, 3), strides=(1, 2), norm="position", max_out=1)
    model, volumes = network(settings, (4, 3, 4))
    model, first = model.double(), model.double().stages[0](volumes[:1].double())
    rest = torch.nn.Sequential(*model.stages[1:])
    with explanation_mode(model, "record"), torch.no_grad():
        bounds = [first]
        for stage in model.stages[1:]:
            bounds.append(stage(bounds[-1]))

    def replayed(stage: torch.nn.Module, unit: Tensor) -> Tensor:
        with explanation_mode(stage, "replay"), torch.no_grad():
            return stage(unit) - (logit_bias(model) if stage is model.stages[-1] else 0)

    stages = zip(model.stages[1:], bounds[:-1], strict=True)
    expected = product([matrix_of(lambda unit, s=stage: replayed(s, unit), a) for stage, a in stages])
    forget(model)
    rows = [dynamic_weights(model, lambda x, u=unit: rest(x)[:, u], first).flatten() for unit in range(3)]
    torch.testing.assert_close(torch.stack(rows), expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(expected @ first.flatten(), model(volumes[:1].double())[0] - logit_bias(model))


def test_the_background_says_nothing_unless_it_is_dark():
    settings = {"null": BcosSimpleConfig(), "dark": BcosSimpleConfig(background="dark")}
    for background, one in settings.items():
        model, volumes = network(one, (17, 17, 18))
        assert isinstance(model.stages[0], InputEncoding)
        rest = torch.nn.Sequential(*model.stages[1:])
        pairs = model.stages[0](volumes)
        share = (dynamic_weights(model, lambda x, rest=rest: rest(x)[:, 1], pairs) * pairs)[..., :2].abs().sum()
        assert (float(share) == 0) == (background == "null")


def test_classify_then_pool_is_another_network_than_pool_then_classify():
    for b in (1.0, 2.0):
        settings = BcosSimpleConfig(channels=(3,), strides=(1,), b=b, max_out=1, head="average")
        model, volumes = network(settings, (4, 5, 3))
        classifier, pool, *_, logits = model.stages[-1]
        features = torch.nn.Sequential(*model.stages[:-1])(volumes)
        other = logits(classifier(pool(features)).flatten(1))
        assert torch.allclose(other, model(volumes), rtol=1e-4, atol=1e-6) == (b == 1)


def test_a_head_of_places_is_one_unit_over_all_features():
    """Its answers by the definition from the flattened features; slid over a larger grid, the mean of its answers."""
    settings = BcosSimpleConfig(channels=(3, 4), strides=(2, 3), b=1.5, stem_kernel=5, head="places", norm="none")
    model, volumes = network(settings, (7, 12, 9))
    classifier, *_, logits = model.stages[-1]
    body = torch.nn.Sequential(*model.stages[:-1])
    assert classifier.kernel_size == (2, 2, 2)
    unit = torch.nn.functional.normalize(classifier.weight.flatten(1), dim=1)

    def answers(features: Tensor) -> Tensor:
        flat = features.flatten(1)
        linear = flat @ unit.T
        return linear * (linear.abs() / (flat.square().sum(1, keepdim=True) + 1e-6).sqrt()) ** 0.5

    features = body(volumes)
    torch.testing.assert_close(model(volumes), logits(answers(features)), rtol=1e-5, atol=1e-6)
    wide = torch.cat([features, features], dim=3)
    slid = torch.stack([answers(wide[:, :, :, at : at + 2]) for at in range(3)]).mean(0)
    torch.testing.assert_close(model.stages[-1](wide), logits(slid), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_weights_can_be_differentiated_by_the_parameters(norm):
    """Rows of W(x) with their graph: the same rows, and slopes along a random direction of all parameters."""
    model, volumes = network(BcosSimpleConfig(b=2, channels=(2, 3), strides=(2, 1), norm=norm, max_out=2), (5, 4, 6), 2)
    model = model.double()
    pairs, rest = model.stages[0](volumes.double()), torch.nn.Sequential(*model.stages[1:])
    probe = torch.randn(pairs.shape, dtype=torch.float64)
    parameters = list(model.parameters())
    directions = [torch.randn_like(weight) for weight in parameters]

    def value(a: Tensor) -> Tensor:
        return rest(a)[:, 1]

    def probed(step: float) -> float:
        with torch.no_grad():
            for weight, direction in zip(parameters, directions, strict=True):
                weight += step * direction
            found = dynamic_weights(model, value, pairs)
            for weight, direction in zip(parameters, directions, strict=True):
                weight -= step * direction
        return float((found * probe).sum())

    _, rows = differentiable_weights(model, value, pairs)
    torch.testing.assert_close(rows.detach(), dynamic_weights(model, value, pairs), rtol=1e-12, atol=1e-14)
    slopes = torch.autograd.grad((rows * probe).sum(), parameters, allow_unused=True)
    along = sum(float((s * d).sum()) for s, d in zip(slopes, directions, strict=True) if s is not None)
    assert along == pytest.approx((probed(1e-6) - probed(-1e-6)) / 2e-6, rel=1e-5)


SHAPE = (6, 7, 5)


def conventional(*extra: nn.Module) -> StagedModel:
    torch.manual_seed(5)
    first = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2))
    second = nn.Sequential(nn.Conv3d(4, 6, 3, 2, 1, groups=2), *extra)
    return StagedModel([first, second, nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 3))]).eval()


def test_filters_stay_and_nothing_but_the_encoding_is_added():
    plain = conventional()
    made = converted(plain, BcosSimpleConfig(b=1, norm="batch"), SHAPE).eval()
    assert bias_terms(plain)
    assert bias_terms(made) == ()
    first, second, last = (module for module in made.modules() if isinstance(module, BcosConv3d))
    weight = plain.stages[0][0].weight.data
    assert torch.equal(first.weight, torch.cat([weight, -weight], 1) / 2)
    assert torch.equal(second.weight, plain.stages[1][0].weight)
    assert torch.equal(last.weight.flatten(1), plain.stages[-1][-1].weight)
    assert isinstance(made.stages[1][3], nn.AvgPool3d)


def test_with_exponent_one_it_computes_the_linear_layers_with_filters_of_norm_one():
    plain, v = conventional(), torch.rand(2, 1, *SHAPE)
    made = converted(plain, BcosSimpleConfig(b=1, norm="none", background="dark"), SHAPE).eval()

    def unit(weight: torch.Tensor) -> torch.Tensor:
        return weight / weight.flatten(1).norm(dim=1).view(-1, *[1] * (weight.dim() - 1))

    w = plain.stages[0][0].weight
    a = functional.conv3d(torch.cat([v, 1 - v], 1), unit(torch.cat([w, -w], 1)), padding=1)
    a = functional.conv3d(functional.avg_pool3d(a, 2), unit(plain.stages[1][0].weight), None, 2, 1, groups=2)
    expected = a.mean((2, 3, 4)) @ unit(plain.stages[-1][-1].weight).T
    logits = made.stages[-1][-1]
    torch.testing.assert_close(made(v), expected / logits.temperature + logits.bias, rtol=1e-5, atol=1e-6)


def test_halves_of_the_first_filters_see_what_the_whole_saw_but_for_a_constant():
    w, v = conventional().stages[0][0].weight, torch.rand(1, 1, *SHAPE)
    halves = functional.conv3d(torch.cat([v, 1 - v], 1), torch.cat([w, -w], 1) / 2)
    whole = functional.conv3d(v, w)
    constant = whole - halves
    torch.testing.assert_close(constant, constant.mean((2, 3, 4), keepdim=True).expand_as(constant), rtol=0, atol=1e-5)


def test_a_trained_resnet_starts_its_bcos_network():
    plain = build_network(ResNetConfig("resnet18", width=1 / 32), (33, 34, 33), 2)
    settings = BcosResNetConfig(width=1 / 32)
    made, fresh = converted(plain, settings, (33, 34, 33)), build_network(settings, (33, 34, 33), 2)
    assert made.architecture == fresh.architecture
    fresh.load_state_dict(made.state_dict())
    v = torch.rand(1, 1, 33, 34, 33)
    assert torch.equal(fresh.eval()(v), made.eval()(v))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (nn.SiLU(), r"layer stages.1.1 \(SiLU\) has no B-cos counterpart; known are Conv3d, BatchNorm3d"),
        (nn.PReLU(), r"layer stages.1.1 \(PReLU\)"),
        (nn.Conv3d(6, 6, 3, padding="same"), r"padding 'same'"),
    ],
)
def test_what_has_no_counterpart_is_named(extra, message):
    with pytest.raises(UsageError, match=message):
        converted(conventional(extra), BcosSimpleConfig(), SHAPE)


def test_other_heads_and_first_layers_are_refused():
    plain = conventional()
    headless = StagedModel([plain.stages[0], nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten())])
    with pytest.raises(UsageError, match="last stage has 0 linear layers"):
        converted(headless, BcosSimpleConfig(), SHAPE)
    with pytest.raises(UsageError, match="takes 4 channels; it must take 1"):
        converted(StagedModel([plain.stages[1], plain.stages[2]]), BcosSimpleConfig(), SHAPE)
    with torch.device("meta"):
        swish = build_network(EfficientNetConfig(), (64, 64, 64), 2)
    with pytest.raises(UsageError, match="has no B-cos counterpart"):
        converted(swish, BcosSimpleConfig(), SHAPE)
