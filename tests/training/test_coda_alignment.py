"""A higher temperature makes CoDA networks align their weights with what they see, on patterns in noise."""

import pytest
import torch

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.families.coda.records import CodaSWbConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.settings import CohortConfig, TrainingConfig
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.objectives.weight_penalty import mean_absolute_weights
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes
from tests.training.pattern_scenes import alignment, trained_coda


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
