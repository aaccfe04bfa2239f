"""Maps of one scan by every network, true and null, and what each map is like: the unit of work of the bench.

Maps are not kept. What is kept of each is its sums over regions, and a row of scores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.atlases.spaces import read_brain
from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.attribution.network_view import exact_float32, start_values
from heatlas.pipeline.attribution.perturbation.masking import AIR
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.nulls import NO_NETWORK, REAL, image_maps, randomised
from heatlas.pipeline.evaluation.scores.faithfulness import (
    ADCC,
    FAITHFULNESS_SCORES,
    MASKED,
    Explain,
    Faithfulness,
    lost_share,
    shift_correlation,
    shift_likeness,
)
from heatlas.pipeline.evaluation.scores.map_scores import ScanMasks, attended_box, boxes_of, map_row, marker, score_map
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.networks import Network
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import device_labels, device_region_sums
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.config.statistics import EvaluationConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import write_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.run.work.unit import Unit, keyed, unkeyed

NOT_KEPT = ("undefined", "ag_clamped")
FAITHFUL = tuple(name for name in FAITHFULNESS_SCORES if name not in NOT_KEPT)
"""Scores of faithfulness that are kept. A map that is undefined has a row without any."""
SEEN = tuple(name for name in MASKED if name not in NOT_KEPT)
"""Scores of masked recognition, which is measured in every positive scan."""
BOXED = {
    f"{name}_{place}": f"As {name}, with only what lies {words} the boxes around the parts of the true regions shown"
    for place, words in (("inside", "inside"), ("outside", "outside"))
    for name in SEEN
}
"""Scores of a scan seen through its map and boxes, where the truth is known; of the even map: through boxes alone."""

SHIFTED = {
    "correlation": "Correlation over the voxels of the brain of a map with that of the moved scan, moved back; 1 where "
    "maps move with scans",
    "cosine": "The same as a cosine, as in the source",
    "in_place": "Correlation that the map would have if it stayed in its place: of the map with itself, moved back",
}
"""How like maps of moved scans are, by shift (``[evaluation] shifts``); columns ``correlation_4`` of the unit, beside
``lost_4``, the share of the brain that leaves the volume."""


@dataclass(frozen=True)
class NullNetwork:
    """A network that explains the scan.

    `name`: ``real``, ``shuffled-1``, ``cascade-2``, ``untrained``. `changed`: whether parameters are drawn anew, by
    `seed`, after reading; `layers`: how many layers from the head, None for all, buffers included.
    """

    name: str
    network: Network
    changed: bool = False
    layers: int | None = None
    seed: int = 0


def _versions(networks: Sequence[NullNetwork], _: DigestCache) -> dict[str, str]:
    versions = {}
    for null in networks:
        versions[null.name] = null.network.version
        versions |= {f"{null.name} {place}": control.digest for place, control in enumerate(null.network.controls)}
    return versions


class ScanToJudge(Unit):
    """All that a worker needs to judge the maps of one scan.

    `truth`: label numbers of the regions in which the scan differs from controls; empty where nobody knows, or nothing
    is. `marked`: whether the scan has the bright spot outside the brain (`pipeline.evaluation.scores.map_scores`).
    `seen`: whether the scan is recognised through its maps (two forward passes each). `faithful`: whether all of
    faithfulness is measured (many forward passes). `networks`: the true one first. `seed`: seed of random maps.
    """

    scan: Scan = keyed("name")
    files: ScanFiles = keyed(inputs={"seen": "seen"})
    explanations: tuple[Explanation, ...] = keyed(lambda explanations: [asked.version for asked in explanations])
    atlas: PackedAtlas = keyed("version")
    truth: tuple[int, ...]
    marked: bool
    seen: bool
    faithful: bool
    settings: EvaluationConfig = keyed(lambda e: [e.steps, e.samples, e.shift, e.shifts, e.replacement])
    networks: tuple[NullNetwork, ...] = keyed(
        lambda networks: [[null.name, null.changed, null.layers, null.seed] for null in networks], inputs=_versions
    )
    seed: int
    training: TrainingConfig = unkeyed("for the device")


@dataclass(frozen=True, eq=False)
class OneMap:
    """A map of a scan, or why there is none."""

    network: str
    name: str
    values: Tensor | None
    facts: Mapping[str, object]


@kept_memory()
def judge_scan(outputs: Mapping[str, Path], task: ScanToJudge) -> Mapping[str, Any]:
    """Write ``scores`` (TSV) and ``sums`` (NPZ) of all maps of a scan; the function of a `Job`."""
    device = chosen_device(task.training)
    first = task.networks[0].network.load(device)
    volume = torch.from_numpy(read_channels(task.files, first.input))[None].to(device)
    brain = read_brain(task.files.brain_mask, first.input.template_grid)
    box = first.input.box
    labels = task.atlas.labels_in(box)
    inside = brain if box is None else np.ascontiguousarray(box.crop(brain))
    cube = marker(inside.shape, (0, 0, 0)) if task.marked else None
    places = ScanMasks.of(inside, labels, task.truth, min(first.input.template_grid.voxel_sizes_mm), cube)
    layout = device_labels(task.atlas.labels, box, device)
    faithful = _faithfulness(task, volume, labels, device)
    known = {*FAITHFUL} - ({*MASKED, *ADCC} if len(first.classes) == 1 else set())  # a number has no probability
    rows, sums, names = [], [], []
    of_real: dict[str, NDArray[np.float32]] = {}
    for one in _maps(task, volume, device):
        values = None if one.values is None else one.values.cpu().numpy()
        of_true = one.values is not None and one.network in (REAL, NO_NETWORK)
        structure = one.network.startswith(("cascade", "untrained"))
        row = map_row(values, places, of_real.get(one.name) if one.network != REAL else None, structure)
        if one.network == REAL and values is not None and not row["undefined"]:
            of_real[one.name] = values
        if task.faithful and one.values is not None and of_true:
            with exact_float32(device):
                again = _made_again(one, task, device)
                scores = faithful.scores(one.values, again)
                if again is not None and values is not None and not row["undefined"]:
                    within = torch.from_numpy(places.brain).to(device)
                    row |= _moved(again, volume[0, 0], one.values, within, task.settings)
            row |= {name: scores[name] for name in FAITHFUL if name in known}
            if values is not None and places.truth is not None and not row["undefined"]:
                with exact_float32(device):
                    row |= located(values, places, first, volume, first.classes.index(task.explanations[0].target))
        elif task.seen and one.values is not None and of_true:
            with exact_float32(device):
                scores = faithful.masked(one.values)
            row |= {name: scores[name] for name in SEEN if name in known}
        if task.seen and one.values is not None and of_true and places.truth is not None and known.issuperset(SEEN):
            with exact_float32(device):
                row |= boxed(faithful, one.values, places.truth)
        rows.append({"network": one.network, "map": one.name, **one.facts, **row})
        if one.values is not None and bool(torch.isfinite(one.values).all()):  # 0 everywhere has sums of 0
            names.append(f"{one.network}|{one.name}")
            sums.append(device_region_sums(one.values[None], layout)[0].cpu().numpy())
    write_table(outputs["scores"], pd.DataFrame(rows))
    with outputs["sums"].open("wb") as handle:
        image = device_region_sums(volume[0], layout)[0].cpu().numpy()
        np.savez(
            handle,
            names=np.array(names), sums=np.stack(sums), n_voxels=layout.n_voxels, numbers=layout.numbers, image=image,
        )  # fmt: skip
    return {"maps": len(rows)}


def _maps(task: ScanToJudge, volume: Tensor, device: torch.device) -> Iterator[OneMap]:
    for one in task.networks:
        loaded = one.network.load(device)
        reference = one.network.reference(device)
        if one.changed:
            loaded = randomised(loaded, one.layers, one.seed, volume if reference is None else reference.volumes)
        with torch.no_grad(), exact_float32(device):
            logits = loaded.model(volume)[0].double()
        target = loaded.classes.index(task.explanations[0].target)
        facts: dict[str, object] = {"fold": one.network.fold, "logit": margin(logits, target)}
        if reference is not None and one.changed:  # its logits are those of the network as it was
            reference = replace(reference, logits=None)
        surroundings = RunContext(task.atlas, loaded.input.box, reference)
        for asked in task.explanations:
            yield from _answers(one.name, asked, loaded, surroundings, volume, facts)
    reference = task.networks[0].network.reference(device)
    mean = None if reference is None else reference.mean[0, 0].cpu().numpy()
    fold = task.networks[0].network.fold
    for name, values in image_maps(volume[0, 0].cpu().numpy(), mean, task.seed, task.scan.name).items():
        yield OneMap(NO_NETWORK, name, torch.from_numpy(values).to(device), {"fold": fold})


def _moved(
    again: Explain, volume: Tensor, values: Tensor, within: Tensor, settings: EvaluationConfig
) -> dict[str, float]:
    """Whether a map moves with its scan: ``shift_correlation``; `SHIFTED` and what is lost of every further shift."""
    found = {}
    if settings.shift:
        found["shift_correlation"] = shift_correlation(again, volume, values, within, settings.shift)
    for shift in settings.shifts:
        stays = shift_correlation(lambda _: values, volume, values, within, shift)
        likeness = (*shift_likeness(again, volume, values, within, shift), stays)
        found |= {f"{name}_{shift}": one for name, one in zip(SHIFTED, likeness, strict=True)}
        found[f"lost_{shift}"] = lost_share(within, shift)
    return found


def boxed(faithful: Faithfulness, values: Tensor, truth: NDArray[np.bool_]) -> dict[str, float]:
    inside = torch.zeros_like(values, dtype=torch.bool)
    for box in boxes_of(truth):
        inside[box] = True
    found = {"inside": faithful.masked(values, inside), "outside": faithful.masked(values, ~inside)}
    return {f"{name}_{place}": scores[name] for place, scores in found.items() for name in SEEN}


def margin(logits: Tensor, target: int) -> float:
    """Logit of the explained class less the largest other one, above 0 where it is recognised; a number itself.

    Examples
    --------
    >>> margin(torch.tensor([1.0, 4.0, 3.0]), 1), margin(torch.tensor([71.5]), 0)
    (1.0, 71.5)
    """
    others = torch.cat([logits[:target], logits[target + 1 :]])
    return float(logits[target] - others.max()) if len(others) else float(logits[target])


def _answers(
    network: str,
    asked: Explanation,
    loaded: LoadedModel,
    surroundings: RunContext,
    volume: Tensor,
    facts: Mapping[str, object],
) -> Iterator[OneMap]:
    """Maps of one method; a map that is not finite, or misses what it must add up to, is a row without values."""
    started = time.perf_counter()
    method, stage = asked.build(surroundings), asked.stage_in(loaded.model)
    target = loaded.classes.index(asked.target)
    try:
        answers: Sequence[Attribution] = attribute_all(loaded.model, volume, target, method, stage, asked.start)
    except (BadInputError, UsageError) as error:
        for name in asked.names:
            yield OneMap(network, name, None, {**facts, "note": str(error)})
        return
    seconds = (time.perf_counter() - started) / len(answers)
    for name, answer in zip(asked.names, answers, strict=True):
        cells: dict[str, object] = {**facts, "seconds": seconds, "map_sum": float(answer.values.double().sum())}
        if answer.reference_value is not None:
            wanted = float(answer.start_value[0].double() - answer.reference_value[0].double())
            cells |= {"evidence": wanted, "completeness_error": float(answer.values.double().sum()) - wanted}
        yield OneMap(network, name, answer.values[0, 0], cells)


def _faithfulness(task: ScanToJudge, volume: Tensor, labels: NDArray[np.int64], device: torch.device) -> Faithfulness:
    """Faithfulness to the true network, with the tissue of controls as replacement, or air."""
    network = task.networks[0].network
    loaded, reference = network.load(device), network.reference(device)
    target = loaded.classes.index(task.explanations[0].target)

    def probability(volumes: Tensor) -> Tensor:
        logits = loaded.model(volumes)
        return torch.softmax(logits, dim=1)[:, target] if logits.shape[1] > 1 else logits[:, 0]

    def evidence(volumes: Tensor) -> Tensor:
        return start_values(loaded.model(volumes), target, "evidence")

    settings = task.settings
    replacement = AIR if reference is None or settings.replacement == "air" else reference.mean[0, 0]
    regions, scan = torch.from_numpy(labels).to(device), volume[0, 0]
    return Faithfulness(probability, scan, regions, replacement, settings.steps, task.seed, evidence, settings.samples)


def _made_again(one: OneMap, task: ScanToJudge, device: torch.device) -> Explain | None:
    """How the true network's map of another volume is made; None for a map that no network makes."""
    asked = next((asked for asked in task.explanations if one.name in asked.names and one.network == REAL), None)
    if asked is None:
        return None
    network = task.networks[0].network
    loaded = network.load(device)
    target = loaded.classes.index(task.explanations[0].target)
    method = asked.build(RunContext(task.atlas, loaded.input.box, network.reference(device)))
    stage, place = asked.stage_in(loaded.model), asked.names.index(one.name)

    def explain(changed: Tensor) -> Tensor:
        try:
            answers = attribute_all(loaded.model, changed[None, None], target, method, stage, asked.start)
        except (BadInputError, UsageError):  # scores that need this map are not known
            return torch.full_like(changed, torch.nan)
        return answers[place].values[0, 0]

    return explain


def located(
    values: NDArray[np.float32], places: ScanMasks, loaded: LoadedModel, volume: Tensor, target: int
) -> dict[str, float]:
    """Scores against the true regions; for SM the network sees what lies in the box of the map, and air.

    `values`: (D, H, W). `volume`: the scan as the true network sees it, (1, C, D, H, W). `target`: number of the class
    explained.
    """
    seen, box = volume.clone(), attended_box(np.where(places.brain, values, 0))
    if box is not None:
        seen = torch.zeros_like(volume)
        seen[:, :, *box] = volume[:, :, *box]
    with torch.no_grad():
        whole, part = torch.softmax(loaded.model(torch.cat([volume, seen])), dim=1)
    assert places.truth is not None
    recognised = int(whole.argmax()) == target
    return score_map(values, places.truth, places.brain, recognised, float(part[target]))
