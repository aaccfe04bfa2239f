"""A higher temperature makes CoDA networks align their weights with what they see, on patterns in noise."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.cohort.people.tasks import task_of
from pipeline.models.dynamic.encoding import InputEncoding
from pipeline.models.dynamic.linear_map import dynamic_weights
from pipeline.models.dynamic.logits import LogitLayer, bias_of_chance
from pipeline.models.families.coda.network import Layers, SumPool, stack
from pipeline.models.families.registry import build_network
from pipeline.run.config.networks import CodaSWbConfig
from pipeline.run.config.settings import CohortConfig, TrainingConfig
from pipeline.training.objectives.of_task import objective_of
from pipeline.training.objectives.off_target import binary_cross_entropy
from pipeline.training.objectives.weight_penalty import mean_absolute_weights
from pipeline.training.trainer import Resumption, train
from pipeline.training.volumes import STORED, LabelledVolumes

CLASSES, SIDE, BOX = 4, 8, 4
LAYERS = Layers(units=(10, 14), ranks=(8, 8, 8), kernels=(3, 3, 1), strides=(1, 2, 1))


def patterns() -> Tensor:
    return (torch.rand(CLASSES, BOX, BOX, BOX, generator=torch.Generator().manual_seed(9)) > 0.5).float()


def scenes(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Volumes with one pattern each at a random place on smooth noise; their classes; where the patterns are."""
    noise = nn.functional.avg_pool3d(torch.rand(count, 1, SIDE, SIDE, SIDE, generator=draw), 3, 1, 1, False, False)
    volumes = (noise + 0.1 * torch.rand(noise.shape, generator=draw)).clamp(0.01, 0.99)
    classes, where = torch.randint(CLASSES, (count,), generator=draw), torch.zeros(volumes.shape, dtype=torch.bool)
    for scene, (a, b, c) in enumerate(torch.randint(SIDE - BOX + 1, (count, 3), generator=draw).tolist()):
        where[scene, 0, a : a + BOX, b : b + BOX, c : c + BOX] = True
        volumes[scene][where[scene]] = 0.1 + 0.8 * patterns()[classes[scene]].flatten()
    return volumes, classes, where


def trained(temperature: float, seed: int, steps: int) -> nn.Sequential:
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(100 + seed)
    head = LogitLayer(temperature, bias_of_chance(CLASSES))
    model = nn.Sequential(InputEncoding(), *stack(LAYERS, 2, CLASSES, "sq"), SumPool(), head)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(steps):
        volumes, classes, _ = scenes(32, draw)
        optimiser.zero_grad()
        binary_cross_entropy(model(volumes), classes).mean().backward()
        optimiser.step()
    return model.eval()


def alignment(model: nn.Sequential) -> tuple[float, float, float]:
    """Accuracy, mean cosine of W(x) and x inside the pattern, share of positive contributions in the right quarter."""
    draw = torch.Generator().manual_seed(5)
    volumes, classes, where = scenes(64, draw)
    rest = model[1:]
    own = lambda x, of: rest(x).gather(1, of[:, None])[:, 0]  # noqa: E731
    pairs = model[0](volumes)
    inside = where.expand_as(pairs)
    rows = dynamic_weights(rest, lambda x: own(x, classes), pairs)
    cosine = nn.functional.cosine_similarity((rows * inside).flatten(1), (pairs * inside).flatten(1)).mean()
    shares = []
    firsts = [next(scene for scene, one in enumerate(classes.tolist()) if one == kind) for kind in range(CLASSES)]
    tiles = [volumes[scene] for scene in firsts]
    grid = torch.cat([torch.cat(tiles[:2], 1), torch.cat(tiles[2:], 1)], 2)[None]
    for kind in range(CLASSES):
        pairs = model[0](grid)
        found = (dynamic_weights(rest, lambda x, kind=kind: rest(x)[:, kind], pairs) * pairs).sum(1)[0].clamp(min=0)
        place = [slice(SIDE * part, SIDE * (part + 1)) for part in (kind % 2, kind // 2)]
        shares.append(found[place[0], place[1]].sum() / found.sum())
    accuracy = (model(volumes).argmax(1) == classes).float().mean()
    return float(accuracy), float(cosine), float(torch.stack(shares).mean())


@pytest.mark.slow
def test_a_higher_temperature_aligns_weights_and_localises():
    cold, warm = ([alignment(trained(t, seed, 300)) for seed in range(3)] for t in (0.3, 3.0))
    assert min(one[0] for one in warm) > 0.9
    for measure in (1, 2):
        assert sum(one[measure] for one in warm) > sum(one[measure] for one in cold)
    assert min(one[2] for one in warm) > 0.4  # a quarter by chance


def test_training_with_the_penalty_gives_smaller_weights(tmp_path):
    random = torch.Generator().manual_seed(1)
    volumes, targets = torch.rand(8, 6, 7, 5, generator=random), torch.arange(8) % 2
    volumes[targets == 1, :3] *= 0.5
    data = LabelledVolumes(volumes.to(STORED), targets)
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
