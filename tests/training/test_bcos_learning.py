"""Inherent networks learn patterns in noise: exponents localise B-cos maps, temperatures align CoDA weights."""

from __future__ import annotations

from statistics import mean

import pytest
import torch
from torch import nn

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.dynamic import calibrate, dynamic_weights
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.settings import CohortConfig, TrainingConfig
from heatlas.pipeline.training.objectives.of_task import binary_cross_entropy, mean_absolute_weights, objective_of
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.coda.records import CodaSWbConfig
from tests.training.pattern_scenes import CLASSES, SIDE, alignment, scenes, trained_coda


def trained(b: float, seed: int, steps: int) -> nn.Sequential:
    """A network trained as `trained_coda` trains CoDA networks."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(100 + seed)
    config = BcosSimpleConfig(channels=(16, 16, 16), strides=(1, 2, 1), b=b, max_out=2, norm="none")
    model = build_network(config, (SIDE,) * 3, CLASSES)
    calibrate(model, scenes(32, draw)[0])
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        volumes, classes, _ = scenes(32, draw)
        optimiser.zero_grad()
        binary_cross_entropy(model(volumes), classes).mean().backward()
        optimiser.step()
    return nn.Sequential(*model.stages).eval()


@pytest.mark.slow
@pytest.mark.parametrize("b", [1.0, 1.5, 2.0, 2.5])
def test_patterns_are_learnt_for_every_exponent_and_maps_add_up(b):
    model = trained(b, 1, 300)
    volumes, classes, _ = scenes(128, torch.Generator().manual_seed(7))
    assert float((model(volumes).argmax(1) == classes).float().mean()) >= 0.95
    pairs, rest = model[0](volumes[:4]), model[1:]
    found = dynamic_weights(rest, lambda x: rest(x)[:, 2], pairs) * pairs
    bias = model[-1][-1].bias
    error = found.double().flatten(1).sum(1) - (rest(pairs)[:, 2] - bias).double().detach()
    assert float((error.abs() / found.double().abs().flatten(1).sum(1)).max()) < 1e-5


@pytest.mark.slow
def test_a_larger_exponent_localises_better():
    linear, aligned = ([alignment(trained(b, seed, 300)) for seed in range(2)] for b in (1.0, 2.5))
    assert min(one[0] for one in (*linear, *aligned)) > 0.9
    assert mean(one[2] for one in aligned) > mean(one[2] for one in linear) + 0.25  # a quarter is chance


@pytest.mark.slow
def test_a_higher_temperature_aligns_weights_and_localises():
    cold, warm = ([alignment(trained_coda(t, seed, 300)) for seed in range(3)] for t in (0.3, 3.0))
    assert min(one[0] for one in warm) > 0.9
    for measure in (1, 2):
        assert sum(one[measure] for one in warm) > sum(one[measure] for one in cold)
    assert min(one[2] for one in warm) > 0.4  # a quarter by chance


def test_training_with_the_penalty_gives_smaller_weights(tmp_path):
    random = torch.Generator().manual_seed(1)
    volumes, targets = torch.rand(8, 6, 7, 5, generator=random), torch.arange(8) % 2
    volumes[targets == 1, :3] *= 0.5
    data = LabelledVolumes(volumes[:, None].to(STORED), targets)
    sizes = []
    for penalty in (0.0, 30.0):
        config = TrainingConfig(
            learning_rate=1e-2, max_epochs=4, min_epochs=1, batch_size=4, flip_probability=0.0, max_shift_voxels=0,
            weight_penalty=penalty,
        )  # fmt: skip
        torch.manual_seed(3)
        settings = CodaSWbConfig(units=(4,), ranks=(3, 3), kernels=(3, 1), strides=(2, 1))
        model = build_network(settings, (6, 7, 5), 2)
        objective = objective_of(task_of(CohortConfig()), config, targets, "off-target")
        done = train(model, data, data, objective, config, 5, Resumption(tmp_path / f"{penalty}", "key"))
        assert len(done.history) == 4
        assert float(model.stages[-1][-1].temperature) != 1  # set from data before the first step
        sizes.append(float(mean_absolute_weights(model.eval(), volumes[:, None], targets).detach().mean()))
    assert sizes[1] < 0.9 * sizes[0]
