"""What every method owes, and where a network is split."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, fields
from typing import ClassVar

import pytest
import torch
from gradient_toys import LinearScore, network, volumes
from lrp_toys import staged, toy_network, toy_volumes
from model_snapshot import snapshot
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedBackprop, guided_backprop
from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients
from heatlas.pipeline.attribution.gradient.smoothing import (
    SmoothGrad,
    SmoothInputTimesGradient,
    SmoothIntegratedGradients,
)
from heatlas.pipeline.attribution.graph.layers import run_layer
from heatlas.pipeline.attribution.lrp.relevance import Lrp, lrp
from heatlas.pipeline.attribution.lrp.rules import composite, focus, founding
from heatlas.pipeline.attribution.method_settings import build_record, settable
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.network_view import NetworkView, explaining, open_parts, split_layers
from heatlas.pipeline.attribution.perturbation.masking import RegionLabels
from heatlas.pipeline.attribution.registry import METHODS as REGISTERED
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.run.errors import BadInputError, UsageError

# What every method owes: the verb, the sidecar, single volumes like batches, and a model untouched.

METHODS: list[Method] = [
    Gradient(),
    InputTimesGradient(),
    IntegratedGradients(steps=8, tolerance=1),
    SmoothGrad(samples=4),
    SmoothInputTimesGradient(kernel=3),
    SmoothIntegratedGradients(kernel=3, steps=8, tolerance=1),
]
STAGES: list[int | str] = [0, 1, "stages.1.0", 2]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
each_stage = pytest.mark.parametrize("stage", STAGES)


@dataclass(frozen=True)
class Doubled:
    """Twice the first channel; fails, or gives what is not finite, on demand."""

    name: ClassVar[str] = "doubled"
    fails: bool = False
    broken: float = 2.0

    def maps(self, view: NetworkView) -> Tensor:
        if self.fails:
            raise RuntimeError("out of memory")
        return view.features[:, :1] * self.broken


def test_record_says_what_was_asked() -> None:
    x = volumes()
    answer = attribute(network(), x, 2, Doubled(), start="probability")
    assert torch.equal(answer.values, 2 * x)
    assert torch.equal(answer.start_value, network()(x).softmax(1)[:, 2])
    assert (answer.method, answer.target, answer.ledger) == ("doubled", 2, None)
    assert answer.parameters == {"stage": 0, "start": "probability", "fails": False, "broken": 2.0}


@each_method
def test_sidecar_tells_every_setting(method: Method) -> None:
    parameters = attribute(network(), volumes(), 0, method, "stages.1.0").parameters
    assert set(parameters) == {"stage", "start", *(field.name for field in fields(method))}
    assert parameters["stage"] == "stages.1.0"
    for setting in ("steps", "kernel", "samples", "noise", "seed", "batch"):
        if hasattr(method, setting):
            assert parameters[setting] == getattr(method, setting)
    if hasattr(method, "masking"):
        assert parameters["masking"] == "Masking(baseline=0.0, inner='baseline')"
    json.dumps(dict(parameters))


@each_method
@each_stage
def test_batch_equals_singles_and_repeats(method: Method, stage: int | str) -> None:
    model, x = network(), volumes(3)
    together = attribute(model, x, 1, method, stage)
    alone = [attribute(model, x[i : i + 1], 1, method, stage) for i in range(3)]
    torch.testing.assert_close(together.values, torch.cat([one.values for one in alone]), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(together.start_value, torch.cat([one.start_value for one in alone]), rtol=1e-12, atol=0)
    assert torch.equal(attribute(model, x, 1, method, stage).values, together.values)
    assert together.values.shape == x.shape
    assert float(together.values.abs().max()) > 0
    assert not together.values.requires_grad
    assert not together.start_value.requires_grad


@each_method
def test_map_at_its_own_grid(method: Method) -> None:
    model, x = network(), volumes()
    assert attribute(model, x, 0, method, 1, at_input_grid=False).values.shape == (2, 1, 3, 5, 4)


@each_method
@each_stage
def test_constant_volume_gives_a_finite_map(method: Method, stage: int | str) -> None:
    for value in (0.0, 1.0):
        x = torch.full((1, 1, 9, 12, 10), value, dtype=torch.float64)
        assert bool(torch.isfinite(attribute(network(), x, 0, method, stage).values).all())


@each_method
@each_stage
@pytest.mark.parametrize("frozen", [True, False])
def test_model_and_volumes_stay_as_they_were(method: Method, stage: int | str, frozen: bool) -> None:
    model, x = network(), volumes()
    if frozen:
        model.requires_grad_(False)
    else:
        next(iter(model.parameters())).grad = torch.ones(4, 1, 3, 3, 3, dtype=torch.float64)
    before, copy = snapshot(model), x.clone()
    attribute(model, x, 1, method, stage)
    assert snapshot(model) == before
    assert torch.equal(x, copy)
    assert x.grad is None
    assert not x.requires_grad


def test_model_stays_as_it_was_after_an_exception() -> None:
    model, x = network(), volumes()
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="out of memory"):
        attribute(model, x, 1, Doubled(fails=True), 1)
    with pytest.raises(UsageError):
        attribute(model, x, 7, Gradient())
    with pytest.raises(UsageError, match="has a completeness error"):
        attribute(model, x, 1, IntegratedGradients(steps=1, tolerance=0))
    assert snapshot(model) == before


@each_method
def test_gradient_modes_of_the_caller_do_not_matter(method: Method) -> None:
    model, x = network(), volumes()
    expected = attribute(model, x, 1, method, 1).values
    with torch.no_grad():
        assert torch.equal(attribute(model, x, 1, method, 1).values, expected)
    with torch.inference_mode():
        assert torch.equal(attribute(model, x.clone(), 1, method, 1).values, expected)
    assert torch.equal(attribute(model, x.clone().requires_grad_(), 1, method, 1).values, expected)


@each_method
def test_single_precision_agrees_with_double(method: Method) -> None:
    expected = attribute(network(), volumes(), 1, method, 1).values
    single = attribute(network().float(), volumes().float(), 1, method, 1).values
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@each_method
def test_another_target_gives_another_map(method: Method) -> None:
    maps = [attribute(network(), volumes(), target, method).values for target in (0, 1)]
    assert float((maps[0] - maps[1]).abs().max()) > 1e-3 * float(maps[0].abs().max())


@each_method
def test_probability_moves_the_map_by_its_slope(method: Method) -> None:
    """One step of the chain rule, on a linear model with small scores: the softmax has slope p (1 - p)."""
    model, x = LinearScore(bias=0), volumes(1) * 1e-5
    with torch.no_grad():
        model.weight[0] = 0
    by_logit = attribute(model, x, 1, method).values
    by_probability = attribute(model, x, 1, method, start="probability").values
    torch.testing.assert_close(by_probability, by_logit / 4, rtol=1e-4, atol=0)


def test_features_without_voxels_are_no_map() -> None:
    with pytest.raises(UsageError, match="has no voxels"):
        attribute(network(), volumes(), 0, Gradient(), 3)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_map_that_is_not_finite_is_refused(broken: float) -> None:
    with pytest.raises(BadInputError, match="doubled: the map of volume 0"):
        attribute(network(), volumes(), 0, Doubled(broken=broken))


@pytest.mark.parametrize("name", sorted(REGISTERED))
def test_every_setting_that_can_be_typed_makes_the_method(name: str) -> None:
    """What only the run can give, such as regions and their labels, is no setting."""
    entry = REGISTERED[name]
    from_run = {"regions": RegionLabels("toy", torch.ones(2, 2, 2, dtype=torch.int64))}
    given = {field.name: from_run[field.name] for field in dataclasses.fields(entry.record) if field.name in from_run}
    for setting, field in settable(entry.record):
        assert not setting.startswith(("regions.", "reference."))
        build_record(entry.record, {setting: field.default}, given)


@pytest.mark.parametrize("stage", [0, 1, 2, "stages.1.1"])
def test_lrp_is_the_engine_summed_over_channels(stage: int | str) -> None:
    model, volumes = staged(toy_network()), toy_volumes()
    (engine,) = lrp(model, volumes, 1, [founding(0.5)], stage=stage)
    answer = attribute(model, volumes, 1, Lrp(beta=0.5), stage=stage, at_input_grid=False)
    torch.testing.assert_close(answer.values, engine.values.sum(1, keepdim=True), rtol=0, atol=0)
    assert answer.parameters["beta"] == 0.5
    assert answer.parameters["stage"] == stage


def test_zb_has_the_bounds_of_the_brain_voxel_by_voxel() -> None:
    model, volumes = staged(toy_network()), toy_volumes()
    brain = (volumes != 0).double()
    for method, rules in (
        (Lrp("focus", epsilon=0.1), focus(0.1, 0.0, brain)),
        (Lrp("composite", gamma=0.5), composite(0.5, 0.25, 0.0, brain)),
    ):
        (engine,) = lrp(model, volumes, 1, [rules])
        answer = attribute(model, volumes, 1, method)
        torch.testing.assert_close(answer.values, engine.values, rtol=0, atol=0)
        assert float(answer.values[volumes == 0].abs().max()) == 0
        assert float(answer.values.abs().max()) > 0


@pytest.mark.parametrize("stage", [1, 2])
def test_guided_backpropagation_of_a_stage_is_that_of_the_rest_of_the_network(stage: int) -> None:
    model, volumes = staged(toy_network()), toy_volumes()
    rest = torch.nn.Sequential(*model.stages[stage:]).eval()
    with torch.no_grad():
        features = torch.nn.Sequential(*model.stages[:stage]).eval()(volumes)
    expected = guided_backprop(rest, features, 1).values.sum(1, keepdim=True)
    answer = attribute(model, volumes, 1, GuidedBackprop(), stage=stage, at_input_grid=False)
    torch.testing.assert_close(answer.values, expected, rtol=0, atol=0)
    torch.testing.assert_close(
        attribute(model, volumes, 1, GuidedBackprop()).values, guided_backprop(model, volumes, 1).values
    )


def test_settings_are_checked() -> None:
    with pytest.raises(UsageError, match="gamma"):
        Lrp("composite", gamma=-1.0)
    with pytest.raises(UsageError, match="'focus'"):
        Lrp("best")  # type: ignore[arg-type]


# The boundary: what is before and after it is the model, and what cannot be split is refused by name.

NAMES = [name for name, _ in open_parts(network())]


def sequential() -> nn.Sequential:
    """A sequence whose one ReLU is used twice and that holds another sequence."""
    torch.manual_seed(2)
    relu = nn.ReLU()
    inner = nn.Sequential(nn.Conv3d(4, 2, 2), nn.Flatten())
    return nn.Sequential(nn.Conv3d(1, 4, 3), relu, nn.Conv3d(4, 4, 3), relu, inner, nn.LazyLinear(2)).double().eval()


@pytest.mark.parametrize("stage", [0, 1, 2, 3, *NAMES[:-1], "stages.0", "stages.1", "stages.2"])
@pytest.mark.parametrize("start", ["logit", "probability"])
def test_rest_of_pre_is_the_model_at_every_boundary(stage: int | str, start: str) -> None:
    model, x = network(), volumes()
    logits = model(x)
    expected = logits[:, 2] if start == "logit" else logits.softmax(1)[:, 2]
    with explaining(model, x, 2, stage, start) as view:
        assert torch.equal(view.pre(x), view.features)
        assert torch.equal(view.rest(view.features), logits)
        assert torch.equal(view.score(view.features), expected)
        assert torch.equal(view.score_of(x), expected)
        assert view.at_input == (stage == 0)
        assert not view.features.requires_grad


def test_boundary_lies_where_it_says() -> None:
    """By number: after so many stages; by name: right after the layer; a group of layers ends with its last."""
    model, x = network(), volumes()
    after_stage, after_relu = model.stages[0](x), model.stages[0][:3](x)
    for stage, expected in ((1, after_stage), ("stages.0", after_stage), ("stages.0.2", after_relu)):
        with explaining(model, x, 0, stage) as view:
            assert torch.equal(view.features, expected)


def test_a_layer_used_twice_counts_twice() -> None:
    model = sequential()
    x = torch.rand(2, 1, 9, 8, 7, dtype=torch.float64)
    model(x)
    for number in range(1, 6):
        with explaining(model, x, 1, number) as view:
            assert torch.equal(view.features, model[:number](x))
            assert torch.equal(view.rest(view.features), model(x))


@pytest.mark.parametrize("stage", [4, 5, -1, "stages.4", "stages", "", "stages.0.9", "conv1"])
def test_stage_that_does_not_exist_is_refused(stage: int | str) -> None:
    with pytest.raises(UsageError, match="stage"), explaining(network(), volumes(), 0, stage):
        pass


def test_output_is_no_stage() -> None:
    with pytest.raises(UsageError, match="output itself"), explaining(network(), volumes(), 0, "stages.3"):
        pass


def test_unknown_name_lists_the_layers() -> None:
    with pytest.raises(UsageError, match=r"stages\.1\.0, stages\.1\.1"):
        split_layers(network(), "layer4")


class Detour(StagedModel):
    """Computes something other than its stages in a row."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Skipping(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return self[1](x)


@pytest.mark.parametrize("kind", ["staged", "sequential"])
def test_a_model_with_a_forward_of_its_own_is_not_opened(kind: str) -> None:
    """Its children in a row are not the model, so only the input is a boundary."""
    model: nn.Module = (
        Detour(network().stages) if kind == "staged" else Skipping(nn.Identity(), nn.Sequential(*network().stages))
    )
    model, x = model.double().eval(), volumes()
    with explaining(model, x, 1) as view:
        assert torch.equal(view.rest(x), model(x))
    with pytest.raises(UsageError, match="does not exist"), explaining(model, x, 1, 1):
        pass


class InPlace(nn.Module):
    """In place without an attribute that says so."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


def _in_training(model: StagedModel) -> nn.Module:
    model.stages[1][0].train()
    return model


def _replaced(place: int, layer: nn.Module) -> nn.Module:
    layers = [*network().stages[0], *network().stages[1], *network().stages[2], network().stages[3]]
    layers[place] = layer
    return nn.Sequential(*layers).double().eval()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_in_training(network()), r"_stages\.1\.0 \(Conv3d\) is in training mode"),
        (_replaced(2, nn.ReLU(inplace=True)), r"layer 2 \(ReLU\) works in place"),
        (_replaced(2, InPlace()), r"layer 2 \(InPlace\) changes its input in place"),
        (_replaced(1, nn.BatchNorm3d(4, track_running_stats=False)), r"layer 1 \(BatchNorm3d\).*running statistics"),
    ],
)
def test_model_that_would_change_is_refused_by_layer(model: nn.Module, words: str) -> None:
    with pytest.raises(UsageError, match=words), explaining(model, volumes(), 0):
        pass


@pytest.mark.parametrize("target", [-1, 3, 99])
def test_target_out_of_range(target: int) -> None:
    with pytest.raises(UsageError, match="outputs 0 to 2"), explaining(network(), volumes(), target):
        pass


def test_unknown_start() -> None:
    with pytest.raises(UsageError, match="'softmax'"), explaining(network(), volumes(), 0, 0, "softmax"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_volumes_that_are_not_finite(broken: float) -> None:
    x = volumes(3)
    x[1, 0, 4, 5, 6] = broken
    with pytest.raises(BadInputError, match="volume 1 "), explaining(network(), x, 0):
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_precision_other_than_the_models(dtype: torch.dtype) -> None:
    with pytest.raises(BadInputError, match=str(dtype)), explaining(network(), volumes().to(dtype), 0):
        pass


@pytest.mark.parametrize("shape", [(1, 9, 12, 10), (9, 12, 10), (0, 1, 9, 12, 10)])
def test_volumes_without_all_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInputError, match="must be"), explaining(network(), torch.zeros(shape).double(), 0):
        pass


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1, 3, "same"])
@pytest.mark.parametrize("mode", ["zeros", "replicate"])
def test_gradients_to_the_input_of_a_convolution_are_those_of_pytorch(
    batch, groups, dilation, stride, padding, mode
) -> None:
    """On a CPU, where nothing is skipped, 8 channels of all volumes go place by place, more by weights turned round."""
    if padding == "same" and stride == 2:
        return  # PyTorch refuses it
    torch.manual_seed(0)
    layer = nn.Conv3d(4, 6, (3, 2, 1), stride, padding, dilation, groups, padding_mode=mode).double()
    x = torch.randn(batch, 4, 7, 8, 9, dtype=torch.float64, requires_grad=True)
    y, expected = run_layer(layer, x), layer(x)
    weights = torch.randn_like(y)
    assert torch.equal(y, expected)
    ours, theirs = (torch.autograd.grad((one * weights).sum(), x)[0] for one in (y, expected))
    torch.testing.assert_close(ours, theirs)
