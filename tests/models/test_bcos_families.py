"""B-cos networks: rows of W(x) at every stage, settings that are refused, and networks that are converted."""

from __future__ import annotations

import pytest
import torch
from bias_guard import bias_terms, require_bias_free
from explicit_matrices import matrix_of, product
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
from heatlas.studies.bcos.layers import BcosConv3d
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
