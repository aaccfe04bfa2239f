"""``interactions_of_sides.tsv``: what the left and the right side of a region hold together and not alone.

A side *alone* is worth the evidence that is lost when it takes the mean tissue of the controls. Both sides together are
worth what is lost when both do. If that is more than the sum of the two, either side suffices (redundancy); if it is
less, the network needs both, and without one the other is worth little (synergy). The same is asked of pairs of
regions that `[evaluation] pairs` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.atlases.catalogue import find_atlas
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import masked_scores
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.explaining.networks import Network
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.settings import Config, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import did_you_mean, nearest
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.run.work.jobs import Outcome
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.tables import declared

DRAWS = 2000
BATCH = 6
SIDES_TABLE, INTERACTIONS_TABLE = declared("sides_of_scan"), declared("interactions_of_sides")


@dataclass(frozen=True)
class ScanOfSides:
    """All that a worker needs: one scan, its network with the controls of its fold, and the explained class."""

    files: ScanFiles
    network: Network
    target: str
    training: TrainingConfig
    atlas: PackedAtlas
    pairs: tuple[str, ...] = ()


def sided_groups(atlas: PackedAtlas) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Label numbers of the left and of the right side, by group; groups without two sides are left out."""
    sides: dict[str, dict[str, list[int]]] = {}
    for region in atlas.regions.regions:
        sides.setdefault(region.group, {"left": [], "right": [], "both": []})[region.hemisphere].append(region.number)
    return {
        name: (tuple(side["left"]), tuple(side["right"]))
        for name, side in sides.items()
        if side["left"] and side["right"]
    }


def paired_groups(
    groups: Mapping[str, tuple[int, ...]], pairs: Sequence[str]
) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Label numbers of the first and of the second group of each pair, by ``A + B``, of those of every bilateral group.

    Examples
    --------
    >>> paired_groups({"Hippocampus": (47, 48), "Amygdala": (31, 32)}, ["Hippocampus+Amygdala"])
    {'Hippocampus + Amygdala': ((47, 48), (31, 32))}
    """
    found = {}
    for pair in pairs:
        names = [one.strip() for one in pair.split("+")]
        if len(names) != 2 or names[0] == names[1]:
            raise UsageError(f"evaluation.pairs: {pair!r} is not two groups; write them as 'Hippocampus + Amygdala'.")
        for name in names:
            if name not in groups:
                raise UsageError(
                    f"evaluation.pairs: {pair!r}: the atlas has no group {name}.{did_you_mean(nearest(name, groups))}"
                )
        found[" + ".join(names)] = groups[names[0]], groups[names[1]]
    return found


def require_pairs(config: Config) -> None:
    if config.evaluation.pairs:
        paired_groups(find_atlas(config.regions.atlas).read_table().groups, config.evaluation.pairs)


@kept_memory()
def score_sides(outputs: Mapping[str, Path], task: ScanOfSides) -> None:
    """Write the table of one scan; the function of a `Job`."""
    device = chosen_device(task.training)
    loaded, reference = task.network.load(device), task.network.reference(device)
    if reference is None:
        raise BadInputError(f"{task.network.files.description}: no control to take the tissue from.")
    volume = torch.from_numpy(read_network_volume(task.files, loaded.input))[None, None].to(device)
    labels = torch.from_numpy(task.atlas.labels_in(loaded.input.box)).to(device)
    groups = sided_groups(task.atlas) | paired_groups(task.atlas.regions.groups, task.pairs)
    target = loaded.classes.index(task.target)
    with explaining(loaded.model, volume, target, 0, "evidence") as view, torch.no_grad():
        whole = float(view.score(view.features)[0])
        hidden = reference.mean.expand_as(view.features)
        found = [scores for _, scores in masked_scores(view, 0, _keeps(labels, groups), hidden, BATCH)]
    scores = torch.cat(found).double().cpu().numpy() if found else np.zeros(0)  # an atlas without sides has none
    lost = whole - scores.reshape(len(groups), 3)
    frame = pd.DataFrame(lost, columns=["left", "right", "both"]).assign(group=list(groups))
    SIDES_TABLE.write(outputs["sides"], frame)


def _keeps(labels: Tensor, groups: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> Iterator[Tensor]:
    """Masks without the left side, without the right one and without both, group by group; of pairs alike."""
    for left, right in groups.values():
        for numbers in (left, right, left + right):
            yield ~torch.isin(labels, torch.tensor(numbers, device=labels.device))


def interaction(
    left: NDArray[np.float64], right: NDArray[np.float64], both: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``both - left - right``: 0 of a score that adds up, above 0 where either suffices, below 0 where both are needed.

    Examples
    --------
    >>> one = np.array([1.0])
    >>> interaction(one, one, 2 * one).tolist(), interaction(0 * one, 0 * one, one).tolist()
    ([0.0], [1.0])
    """
    return both - left - right


def interaction_table(cohort: JudgedCohort, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    frames = [SIDES_TABLE.read(one.job.outputs["sides"]) for one in outcomes if one.ok]
    if not frames:
        return INTERACTIONS_TABLE.frame()
    random = generator(cohort.config.seed, "interactions")
    drawn = random.integers(len(frames), size=(DRAWS, len(frames)))
    values = np.stack([frame[["left", "right", "both"]].to_numpy(float) for frame in frames])
    together = interaction(values[..., 0], values[..., 1], values[..., 2])
    low, high = np.quantile(together[drawn].mean(axis=1), [0.025, 0.975], axis=0)
    if len(frames) < 3:
        low = high = np.full(together.shape[1], np.nan)
    left, right, both = values.mean(axis=0).T
    cells = {"cohort": cohort.name, "group": frames[0]["group"], "n_participants": len(frames)}
    cells |= {"left": left, "right": right, "both": both, "interaction": together.mean(axis=0)}
    return pd.DataFrame(cells | {"ci_low": low, "ci_high": high})[list(INTERACTIONS_TABLE.meanings)]
