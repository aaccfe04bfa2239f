"""CoDA networks: completeness at every stage, bounds, pooling and temperature, embeddings, the penalty."""

import math
from dataclasses import replace

import pytest
import torch
from bias_guard import require_bias_free
from explicit_matrices import matrix_of, product
from torch import Tensor, nn

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import (
    LogitLayer,
    calibrate,
    dynamic_weights,
    explanation_mode,
    forget,
    needs_calibration,
)
from heatlas.pipeline.models.families.family import Shape
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.ranges import problems
from heatlas.pipeline.run.config.settings import CohortConfig, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.training.objectives.of_task import (
    classification,
    mean_absolute_weights,
    objective_of,
    with_weight_penalty,
    wrong_classes,
)
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.studies.coda.network import PUBLISHED, Layers, require_voxel_level, stack
from heatlas.studies.coda.records import CodaConfig, CodaSConfig, CodaSWbConfig
from heatlas.studies.inherent import Inherent

NARROW = {"units": (3, 4), "ranks": (2, 3, 2), "kernels": (3, 3, 1), "strides": (2, 1, 1)}
TINY: dict[str, CodaConfig] = dict(
    sq=CodaSConfig(**NARROW), l2=CodaSConfig(bound="l2", **NARROW), wb=CodaSWbConfig(**NARROW)
)


def network(settings: CodaConfig, shape: Shape = (5, 4, 6), outputs: int = 3) -> tuple[StagedModel, Tensor]:
    torch.manual_seed(6)
    model = build_network(settings, shape, outputs)
    volumes = torch.rand(2, 1, *shape)
    volumes[..., :1] = 0
    calibrate(model.train(), volumes)
    return model.eval(), volumes


def logits_of(model: StagedModel) -> LogitLayer:
    (layer,) = (module for module in model.modules() if isinstance(module, LogitLayer))
    return layer


@pytest.mark.parametrize("name", TINY)
def test_contributions_add_up_at_every_stage_in_both_precisions(name):
    model, volumes = network(TINY[name])
    require_bias_free(model)
    for precise, bound in ((False, 1e-5), (True, 1e-12)):
        a = volumes.double() if precise else volumes
        model = model.double() if precise else model
        for stage, after in enumerate(model.stages[:-1], 1):
            a = after(a).detach()
            rest = nn.Sequential(*model.stages[stage:])
            for unit in range(3):
                shares = dynamic_weights(model, lambda x, rest=rest, unit=unit: rest(x)[:, unit], a) * a
                error = shares.flatten(1).sum(1) - (rest(a)[:, unit].detach() - logits_of(model).bias)
                assert float((error.abs() / shares.flatten(1).abs().sum(1)).max()) < bound


def test_rows_are_the_product_of_the_matrices_of_the_layers():
    settings = CodaSConfig(units=(2,), ranks=(2, 2), kernels=(3, 1), strides=(2, 1))
    model, volumes = network(settings, (4, 3, 5))
    model = model.double()
    first = model.stages[0](volumes[:1].double())
    bias = float(logits_of(model).bias)
    with explanation_mode(model, "record"), torch.no_grad():
        bounds = [first]
        for stage in model.stages[1:]:
            bounds.append(stage(bounds[-1]))

    def replayed(stage: nn.Module, unit: Tensor) -> Tensor:
        with explanation_mode(stage, "replay"), torch.no_grad():
            return stage(unit) - (bias if stage is model.stages[-1] else 0)

    stages = zip(model.stages[1:], bounds[:-1], strict=True)
    expected = product([matrix_of(lambda unit, s=stage: replayed(s, unit), a) for stage, a in stages])
    forget(model)
    rest = nn.Sequential(*model.stages[1:])
    rows = [dynamic_weights(model, lambda x, u=unit: rest(x)[:, u], first).flatten() for unit in range(3)]
    torch.testing.assert_close(torch.stack(rows), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", TINY)
def test_the_bound_of_the_network_does_not_depend_on_its_weights(name):
    """Each layer at most reproduces its patches: |a_l|^2 <= n m |a_(l-1)|^2, m patches covering a voxel."""
    model, volumes = network(TINY[name], (7, 6, 5))
    for size in (1.0, 100.0):
        for weight in model.parameters():
            weight.data *= size
        a = model.stages[0](volumes)
        for stage, units, kernel, stride in zip(model.stages[1:-1], (3, 4), (3, 3), (2, 1), strict=True):
            after = stage(a)
            reach = units * math.ceil(kernel / stride) ** 3
            assert bool((after.square().flatten(1).sum(1) <= reach * a.square().flatten(1).sum(1) * (1 + 1e-5)).all())
            a = after
        top = a.flatten(1).norm(dim=1) * math.sqrt(a[0, 0].numel()) / logits_of(model).temperature
        assert bool(((model(volumes) - logits_of(model).bias).abs() <= top[:, None] * (1 + 1e-5)).all())


def test_logits_are_a_sum_over_voxels_and_scale_with_the_temperature():
    model, volumes = network(replace(TINY["wb"], temperature=2.0))
    assert not needs_calibration(model)
    last, *_ = model.stages[-1]
    evidence = last(nn.Sequential(*model.stages[:-1])(volumes)).sum((2, 3, 4))
    layer = logits_of(model)
    assert float(layer.temperature) == 2.0 * 3 * 2 * 3  # voxels of the last layer
    torch.testing.assert_close(model(volumes), evidence / layer.temperature + math.log(1 / 2))
    before = model(volumes) - layer.bias
    layer.temperature *= 4
    torch.testing.assert_close(model(volumes) - layer.bias, before / 4)


def test_the_temperature_follows_from_data_unless_it_is_given():
    model, volumes = network(replace(TINY["sq"], initial_logits=0.25))
    sizes = (model(volumes) - logits_of(model).bias).square().mean().sqrt()
    torch.testing.assert_close(sizes, torch.tensor(0.25), rtol=1e-4, atol=0)


def test_one_output_has_no_logit_bias():
    model, _ = network(TINY["sq"], outputs=1)
    assert float(logits_of(model).bias) == 0


def test_the_default_networks_fit_the_brain_at_two_millimetres():
    for settings in (CodaSConfig(), CodaSWbConfig()):
        assert problems(settings) == []
        with torch.device("meta"):
            model = build_network(settings, (75, 93, 80), 2)
            assert model(torch.empty(1, 1, 75, 93, 80)).shape == (1, 2)


def test_a_network_of_the_source_runs_in_three_dimensions():
    torch.manual_seed(1)
    layers = PUBLISHED["S-WB"]
    narrow = Layers(tuple(units // 8 for units in layers.units), (2,) * 9, layers.kernels, layers.strides)
    answer = nn.Sequential(*stack(narrow, 2, 10, "wb"))(torch.rand(1, 2, 9, 8, 7))
    assert answer.shape == (1, 10, 3, 2, 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bound": "wb"}, "choose the architecture coda-s-wb"),
        ({"ranks": (2, 2)}, "one value more than model.units"),
        ({"kernels": (3, 2, 1)}, "each odd"),
        ({"strides": (3, 1, 1)}, "twice the stride less one"),
        ({"units": (3, 0)}, "model.units must name"),
        ({"temperature": -1.0}, "model.temperature"),
        ({"embedding": -1}, "model.embedding"),
    ],
)
def test_settings_that_make_no_network_are_named(changed, message):
    assert any(message in problem for problem in problems(replace(TINY["sq"], **changed), "model."))


def test_a_grid_that_is_too_small_is_refused():
    with pytest.raises(BadInputError, match=r"2x3x3 voxels is too small for coda-s-wb.*at least 3"):
        build_network(TINY["wb"], (2, 3, 3), 2)


def test_a_learnt_embedding_is_explained_but_not_called_a_map_of_voxels():
    model, volumes = network(replace(TINY["wb"], embedding=5))
    model, volumes = model.double(), volumes.double()
    with torch.no_grad():
        model.stages[0].train()(volumes)
    model.eval()
    features, rest = model.stages[0](volumes).detach(), nn.Sequential(*model.stages[1:])
    rows = dynamic_weights(model, lambda x: rest(x)[:, 1], features)
    expected = model(volumes)[:, 1].detach() - logits_of(model).bias
    torch.testing.assert_close((rows * features).flatten(1).sum(1), expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(UsageError, match="no map of voxels"):
        require_voxel_level(model)
    with pytest.raises(UsageError, match="no map of voxels"):
        attribute(model, volumes, 1, Inherent(compare="nothing"))
    at_embedding = attribute(model, volumes, 1, Inherent(compare="nothing"), stage=1)
    torch.testing.assert_close(at_embedding.values, (rows * features).sum(1, keepdim=True), rtol=1e-9, atol=1e-12)
    require_voxel_level(network(TINY["wb"])[0])


@pytest.mark.parametrize("name", TINY)
def test_the_penalty_is_the_mean_absolute_weight_and_a_step_lowers_it(name):
    model, volumes = network(TINY[name])
    model, volumes, classes = model.double(), volumes.double(), torch.tensor([2, 0])
    pairs, rest = model.stages[0](volumes), nn.Sequential(*model.stages[1:])
    rows = dynamic_weights(rest, lambda x: rest(x).gather(1, classes[:, None])[:, 0], pairs)
    found = mean_absolute_weights(model.train(), volumes, classes)
    torch.testing.assert_close(found, rows.abs().flatten(1).mean(1) * logits_of(model).temperature)
    weights = [*model.parameters()]
    slopes = torch.autograd.grad(found.mean(), weights, allow_unused=True)
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight -= 1e-3 * (0 if slope is None else slope)
    assert bool(mean_absolute_weights(model, volumes, classes).mean() < found.mean())


def test_the_penalty_is_added_for_the_true_and_one_wrong_class():
    model, volumes = network(TINY["sq"], outputs=2)
    targets = torch.tensor([0, 1])
    batch, context = Batch(volumes, targets, torch.arange(2)), Context()
    plain = classification(torch.ones(2))
    assert with_weight_penalty(plain, 0.0) is plain
    both = [mean_absolute_weights(model, volumes, classes).mean() for classes in (targets, 1 - targets)]
    total, logged = with_weight_penalty(plain, 0.5).loss(model, batch, context)
    expected, same = plain.loss(model, batch, context)
    torch.testing.assert_close(total, expected + 0.5 * (both[0] + both[1]) / 2)
    assert torch.equal(logged["loss"], same["loss"])
    with pytest.raises(UsageError, match="B-cos, CoDA"):
        mean_absolute_weights(StagedModel([nn.Flatten(), nn.Linear(120, 2)]), volumes, targets)


def test_a_number_has_no_classes_to_penalise():
    task = task_of(CohortConfig(target="age"))
    with pytest.raises(UsageError, match="weight_penalty is for classes, and age is a number"):
        objective_of(task, TrainingConfig(weight_penalty=0.1), torch.tensor([60.0, 80.0]))
    classes = objective_of(task_of(CohortConfig()), TrainingConfig(weight_penalty=0.1), torch.tensor([0, 1]))
    assert classes.facts["weight_penalty"] == 0.1


def test_wrong_classes_are_drawn_evenly_from_all_others():
    torch.manual_seed(0)
    drawn = wrong_classes(torch.full((3000,), 2), 4)
    assert sorted(drawn.unique().tolist()) == [0, 1, 3]
    assert bool((torch.bincount(drawn, minlength=4)[[0, 1, 3]] - 1000).abs().max() < 120)


def test_the_layout_of_weights_in_memory_does_not_matter():
    """Training stores weights channels last."""
    model, volumes = network(TINY["sq"])
    answer = model(volumes)
    model.to(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(model(volumes), answer, rtol=1e-5, atol=1e-6)
    model(volumes).sum().backward()
