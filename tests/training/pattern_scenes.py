"""Volumes with one of a few patterns at a random place on noise, networks that learn them, and how maps find them."""

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.dynamic import LogitLayer, bias_of_chance, dynamic_weights
from heatlas.pipeline.training.objectives.of_task import binary_cross_entropy
from heatlas.studies.coda.network import Bound, Layers, SumPool, stack
from heatlas.studies.dynamic import InputEncoding

CLASSES, SIDE, BOX = 4, 8, 4
RANK = 8


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


def trained_coda(temperature: float, seed: int, steps: int, rank: int = RANK, bound: Bound = "sq") -> nn.Sequential:
    """A CoDA network of three layers that has learned the patterns."""
    torch.manual_seed(seed)
    layers = Layers(units=(10, 14), ranks=(rank,) * 3, kernels=(3, 3, 1), strides=(1, 2, 1))
    draw = torch.Generator().manual_seed(100 + seed)
    head = LogitLayer(temperature, bias_of_chance(CLASSES))
    model = nn.Sequential(InputEncoding(), *stack(layers, 2, CLASSES, bound), SumPool(), head)
    optimiser = torch.optim.Adam(model[1:].parameters(), 5e-3)
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
