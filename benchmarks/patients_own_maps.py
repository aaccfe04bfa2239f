"""What is asked of the own maps of one test person, for `patients_networks.py tests`.

Whether the voxels that they name matter to the network, whether they follow its weights, what constants add to its
answer, and what is drawn from where no brain is. Shares and probabilities are in per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from inherent_studies import misplaced, of_each_class, owed_and_margin, parts_of
from torch import Tensor

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.evaluation.nulls import layers_with_parameters, randomised
from heatlas.pipeline.evaluation.scores.localisation import rank_correlation
from heatlas.pipeline.evaluation.scores.masking import part_numbers, part_order
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.studies.grids.studies import fitted
from heatlas.studies.inherent import Inherent

Measure = Callable[[LoadedModel, Tensor, int], dict[str, float]]
"""Of the network that has not seen a person, his or her scan (1, 1, D, H, W), and the true class."""
RIVALS = ("gradient", "input-x-gradient", "integrated-gradients", "grad-cam")
REMOVED, STEPS = 0.25, 10
"""Share of the brain that is taken away at last, as in the source, and in how many steps."""
SEED = 0


def own_map(loaded: LoadedModel, volume: Tensor, target: int) -> Tensor:
    """Contributions (D, H, W) to the logit of a class, of the scan alone."""
    return attribute(loaded.model, volume, target, Inherent(compare="nothing")).values[0, 0]


def removal(loaded: LoadedModel, volume: Tensor, target: int) -> dict[str, float]:
    """Mean probability of the class while voxels of the brain go, in the order of several maps."""
    own = own_map(loaded, volume, target)
    orders = {"most first: own": own, "least first: own": -own, "random order": torch.zeros_like(own)}
    for name in RIVALS:
        method = fitted(METHODS[name].record(), volume.shape[-3:])
        stage = METHODS[name].stage_of(loaded.model)
        values = attribute(loaded.model, volume, target, method, stage).speaking_for[0, 0]
        orders |= {f"most first: {name}": values, f"least first: {name}": -values}
    score = lambda volumes: loaded.model(volumes).softmax(1)[:, target]  # noqa: E731
    with torch.no_grad():
        before = 100 * float(score(volume))
    return {"before": before} | {name: while_removed(score, volume, values) for name, values in orders.items()}


def while_removed(score: Callable[[Tensor], Tensor], volume: Tensor, values: Tensor) -> float:
    """Mean score in per cent, from the whole scan until `REMOVED` of its brain is air; the largest values go first."""
    parts = part_numbers(volume[0, 0] != 0)
    place, voxels = part_order(values, parts, SEED)
    when = torch.where(parts >= 0, place[parts.clamp(min=0)], len(voxels))
    limits = torch.linspace(0, REMOVED * len(voxels), STEPS + 1).round()
    with torch.no_grad():
        return 100 * float(torch.stack([score(volume * (when >= limit))[0] for limit in limits]).mean())


def cascade(loaded: LoadedModel, volume: Tensor, target: int) -> dict[str, float]:
    """Rank correlation in the brain, without its sign, with earlier maps as layers are drawn anew, the head first."""
    brain = (volume[0, 0] != 0).numpy()
    maps = [own_map(loaded, volume, target).numpy()[brain]]
    for count in range(1, len(layers_with_parameters(loaded.model)) + 1):
        maps.append(own_map(randomised(loaded, count, SEED), volume, target).numpy()[brain])
    like = [abs(rank_correlation(one, maps[0])) for one in maps[1:]]
    step = [abs(rank_correlation(one, before)) for before, one in pairwise(maps)]
    return {
        "like the trained map: head drawn anew": like[0], "like the trained map: all layers": like[-1],
        "like the trained map: most of all steps": float(np.nanmax(like)),
        "like the step before: most of all steps": float(np.nanmax(step)),
    }  # fmt: skip


def constants(loaded: LoadedModel, volume: Tensor, _: int) -> dict[str, float]:
    """Whether constants make more than half of the margin between the classes, and whether they lessen it."""
    owed, margin = owed_and_margin(loaded, volume)
    return {
        "constants: more than half": 100.0 * (owed / margin > 0.5),
        "constants: for the second": 100.0 * (owed * margin < 0),
        "constants: size": abs(owed), "margin: size": abs(margin),
    }  # fmt: skip


def drawn(loaded: LoadedModel, volume: Tensor, target: int) -> dict[str, float]:
    """Shares of the contributions to the class that are no anatomy, as they are and less the mean of the classes."""
    both, places = of_each_class(loaded, volume), parts_of(loaded, volume)
    found = {"even map: outside": 100 * float((~places.brain).mean())}
    for name, values in (("class", both[target]), ("less the mean", both[target] - both.mean(0))):
        shares = misplaced(values.numpy(), places)
        found |= {f"{name}: {place}": 100 * share for place, share in shares.items() if np.isfinite(share)}
    return found
