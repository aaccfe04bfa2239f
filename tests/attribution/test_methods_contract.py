"""What every method owes: the verb, the sidecar, single volumes like batches, and a model untouched."""

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
from torch import Tensor

from heatlas.pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedBackprop, guided_backprop
from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients
from heatlas.pipeline.attribution.gradient.smoothing import (
    SmoothGrad,
    SmoothInputTimesGradient,
    SmoothIntegratedGradients,
)
from heatlas.pipeline.attribution.lrp.relevance import Lrp, lrp
from heatlas.pipeline.attribution.lrp.rules import composite, focus, founding
from heatlas.pipeline.attribution.method_settings import build_record, settable
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.perturbation.masking import RegionLabels
from heatlas.pipeline.attribution.registry import METHODS as REGISTERED
from heatlas.pipeline.run.errors import BadInputError, UsageError

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
