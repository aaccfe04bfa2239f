"""Model guidance: a network learns its task, and to have its map where a mask says it should be.

The losses say how far a map lies from its mask; they are those of Rao, Böhle, Parchami-Araghi & Schiele 2023 (*Studying
how to efficiently and effectively guide models with explanations*) for maps A (B, D, H, W) and masks M (B, D, H, W) of
0 and 1. All are means over voxels, so that their weight does not depend on the size of volumes: RRR* was a sum over
voxels there, which is ours times the voxels. A mask is made of regions of the template's atlas, of a file, or of
people's own anatomy, and not everybody needs to have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import scipy.ndimage
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import UNREADABLE, Grid, require_same_grid
from heatlas.atlases.templates import template_on
from heatlas.pipeline.cohort.people.splits import Fold, annotated_people, guided_people
from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import similar
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Objective
from heatlas.pipeline.training.volumes import LabelledVolumes
from heatlas.studies.objectives.maps_in_training import explained_batch, map_settings, settings_for_key

LEAST = 1e-7
"""Sum of positive attribution below which the share inside the mask is not defined."""
FLOOR = 1e-30
"""Least value whose logarithm PPCE takes; below it there is no gradient."""


def energy_share(maps: Tensor, masks: Tensor) -> Tensor:
    """Share of the positive attribution that lies inside the mask (energy pointing game), (B,).

    Where there is none, the sum inside the mask is taken itself, whose gradient still leads to some.

    Examples
    --------
    >>> maps, mask = torch.tensor([[[[3.0, 1.0, -2.0]]]]), torch.tensor([[[[1.0, 0.0, 1.0]]]])
    >>> energy_share(maps, mask).tolist()
    [0.75]
    """
    positive = maps.relu()
    inside, whole = (positive * masks).flatten(1).sum(1), positive.flatten(1).sum(1)
    return torch.where(whole < LEAST, inside, inside / whole.clamp(min=LEAST))


def energy_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """1 - `energy_share`, (B,): raises what is inside, lowers what is outside, wants no even map."""
    return 1 - energy_share(maps, masks)


def l1_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """Mean distance of the positive map, scaled to a maximum of 1, from the mask, (B,): wants it filled evenly."""
    return (masks - _scaled(maps.relu())).abs().flatten(1).mean(1)


def ppce_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """Per-pixel cross-entropy of the scaled positive map inside the mask, (B,): raises what is inside, no more."""
    logs = _scaled(maps.relu()).clamp(min=FLOOR).log()
    return -(masks * logs).flatten(1).sum(1) / masks.flatten(1).sum(1).clamp(min=1)


def rrr_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """Mean square of the scaled signed map outside the mask, (B,): lowers what is outside, no more."""
    return ((1 - masks) * _scaled(maps) ** 2).flatten(1).mean(1)


def _scaled(maps: Tensor) -> Tensor:
    """Maps divided by their largest magnitude, through which gradients pass; a map of zeros stays one."""
    largest = maps.abs().flatten(1).amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    return maps / largest.view(-1, *[1] * (maps.dim() - 1))


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "energy": energy_loss, "l1": l1_loss, "ppce": ppce_loss, "rrr": rrr_loss,
}  # fmt: skip
"""By the name in ``[objective] loss``."""


def dilated(masks: Tensor, voxels: int) -> Tensor:
    """Masks (B, D, H, W) grown by a cube of so many voxels on each side, clipped at the border.

    Examples
    --------
    >>> dilated(torch.tensor([[[[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]]]), 1).tolist()
    [[[[0.0, 1.0, 1.0, 1.0, 0.0, 0.0]]]]
    """
    if voxels == 0:
        return masks
    width = 2 * voxels + 1
    return functional.max_pool3d(masks[:, None], width, stride=1, padding=voxels)[:, 0]


def explanation_distance(of_student: Tensor, of_teacher: Tensor, within: Tensor | None = None) -> Tensor:
    """1 - cosine of two maps of the same shape (B, ...), (B,): 0 if they are proportional, 2 if opposite.

    0, without a gradient, where either is zero everywhere: no direction can be taught (a Grad-CAM of dead units).
    Source: Parchami-Araghi, Böhle, Rao & Schiele 2024, eq. 3.

    Parameters
    ----------
    of_student, of_teacher : Tensor
    within : Tensor or None
        1 where the maps are compared, of their shape or one that is broadcast to it; None for everywhere.

    Examples
    --------
    >>> explanation_distance(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])).tolist()
    [0.0, 0.0]
    """
    student, teacher = (maps if within is None else maps * within for maps in (of_student, of_teacher))
    student, teacher = student.flatten(1), teacher.flatten(1)
    known = (student.detach().norm(dim=1) > LEAST) & (teacher.norm(dim=1) > LEAST)
    safe = torch.where(known[:, None], student, torch.ones_like(student))
    return torch.where(known, 1 - functional.cosine_similarity(safe, teacher, dim=1, eps=LEAST), safe.new_zeros(()))


def attention_distance(of_student: Tensor, of_teacher: Tensor, within: Tensor | None = None) -> Tensor:
    """Squared distance of two maps that are divided by their lengths, (B,): twice `explanation_distance`.

    The loss of attention transfer (Zagoruyko & Komodakis 2017, eq. 2, squared as in their code: the distance itself has
    no gradient where maps agree).

    Examples
    --------
    >>> attention_distance(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]])).tolist()
    [2.0]
    """
    return 2 * explanation_distance(of_student, of_teacher, within)


@dataclass(frozen=True)
class Guidance:
    """How maps are guided.

    `loss`: one of `LOSSES`. `map`: as of `studies.objectives.maps_in_training.explained_batch`. `stage`: boundary at
    which the map is made; 0 the input, -1 the last stage with voxels. `weight`: of the mean guidance loss, relative to
    that of the task; 0 trains as without guidance, to the bit. `classes`: whose maps are guided.
    """

    loss: str = "energy"
    map: str = "input-x-gradient"
    stage: int = 0
    weight: float = 1.0
    classes: tuple[int, ...] = (0, 1)


def guided(task: Objective, guidance: Guidance) -> Objective:
    """The objective of a task, plus ``weight`` times the mean guidance loss over the annotated scans of a batch.

    The map of a scan is that of its own class (of a number, of the output). ``context.masks`` are the masks, (1 or N,
    D, H, W), and ``context.annotated``, (N,), says which scans of the part count; a batch without any has the task's
    loss alone. Validation has the task's loss and score, so that no network is selected for its maps alone.

    Source: Rao et al. 2023, eq. 1, whose sum over a batch is a mean here, so that `weight` does not depend on its size.
    """

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        if guidance.weight == 0 or not torch.is_grad_enabled():
            return task.loss(model, batch, context)
        counted = on_host(_annotated(batch, context, guidance))
        if not counted.any():
            return task.loss(model, batch, context)
        targets = batch.targets if batch.targets.dtype == torch.int64 else torch.zeros_like(batch.scans)
        shown, at = guidance.map, guidance.stage
        explained = explained_batch(model, batch.volumes, targets, shown, at, reference=context.reference)
        of_task, logged = task.loss(KnownOutput(explained.logits), batch, context)
        maps, masks = explained.maps, masks_of(batch, context)
        if not counted.all():  # to take all of them would be a copy
            places = counted.nonzero()[:, 0].to(maps.device)
            maps, masks = maps[places], masks[places]
        distances = LOSSES[guidance.loss](maps, masks)
        return of_task + guidance.weight * distances.mean(), logged

    facts = {**task.facts, "guidance": vars(guidance)}
    return replace(task, name=f"{task.name} guided by {guidance.loss}", loss=loss, facts=facts)


class KnownOutput(nn.Module):
    """A network whose output is known already, so that an objective need not compute it again."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, volumes: Tensor) -> Tensor:
        return self._output


def masks_of(batch: Batch, context: Context) -> Tensor:
    """Masks (B, D, H, W) of a batch: those that came with its volumes, moved as they were, or of its scans."""
    if batch.masks is not None:
        return batch.masks
    assert context.masks is not None
    return context.masks[batch.scans] if len(context.masks) > 1 else context.masks.expand(len(batch.scans), -1, -1, -1)


def _annotated(batch: Batch, context: Context, guidance: Guidance) -> Tensor:
    if context.masks is None:
        return torch.zeros_like(batch.scans, dtype=torch.bool)
    everyone = torch.ones_like(batch.scans, dtype=torch.bool)
    known = everyone if context.annotated is None else context.annotated[batch.scans]
    if batch.targets.dtype != torch.int64:
        return known
    wanted = torch.as_tensor(guidance.classes, device=batch.targets.device)
    return known & torch.isin(batch.targets, wanted)


BRAIN = "brain"
"""In place of a group of the atlas: the whole brain of the template."""


def mask_of(
    wanted: ObjectiveConfig, atlas_name: str, spec: NetworkInput, template: str = DEFAULT_TEMPLATE
) -> NDArray[np.bool_]:
    """Where maps should be, on the grid that the network sees; before dilation."""
    if wanted.mask:
        found = _read_on(Path(wanted.mask), spec.template_grid, "objective.mask") > 0
        if wanted.boxes:
            found = _boxes(found)
    else:
        atlas = load_atlas(atlas_name, spec.template_grid)
        groups = atlas.regions.groups
        for name in wanted.regions:
            if name not in groups and name != BRAIN:
                near = ", ".join(similar(name, groups, 3)) or "none"
                raise UsageError(f"objective.regions: {name}: no such group of {atlas_name}; similar: {near}.")
        numbers = [number for name in wanted.regions if name != BRAIN for number in groups[name]]
        parts = [atlas.labels == number for number in numbers]
        if BRAIN in wanted.regions:
            parts.append(np.asarray(template_on(spec.template_grid, template).brain_mask, dtype=bool))
        found = np.any([_box(part) if wanted.boxes else part for part in parts], axis=0)
    seen = _seen(found, wanted, spec)
    if not seen.any():
        named = wanted.mask or ", ".join(wanted.regions)
        raise UsageError(f"objective: the mask ({named}) has no voxel that the network sees.")
    return seen


def own_mask(wanted: ObjectiveConfig, files: ScanFiles, spec: NetworkInput) -> NDArray[np.bool_] | None:
    """Where the map of one scan should be, by the person's own labels, as `mask_of`; None without them."""
    if not files.own_labels.is_file():
        return None
    labels = _read_on(files.own_labels, spec.template_grid, "own labels")
    parts = [labels == number for number in np.unique(labels[labels > 0])]
    if not parts:
        return None
    seen = _seen(np.any([_box(part) if wanted.boxes else part for part in parts], axis=0), wanted, spec)
    return seen if seen.any() else None


def _seen(found: NDArray[np.bool_], wanted: ObjectiveConfig, spec: NetworkInput) -> NDArray[np.bool_]:
    """A mask, or what lies outside it, on the part that the network sees."""
    mask = ~found if wanted.outside else found
    return np.ascontiguousarray(mask if spec.box is None else spec.box.crop(mask))


def _boxes(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Bounding boxes of the connected parts of a mask; voxels that share a corner are connected."""
    filled = np.zeros_like(mask)
    for place in scipy.ndimage.find_objects(scipy.ndimage.label(mask, np.ones((3, 3, 3)))[0]):
        filled[place] = True
    return filled


def _box(part: NDArray[np.bool_]) -> NDArray[np.bool_]:
    filled = np.zeros_like(part)
    places = np.nonzero(part)
    if len(places[0]):
        filled[tuple(slice(axis.min(), axis.max() + 1) for axis in places)] = True
    return filled


def _read_on(path: Path, grid: Grid, what: str) -> NDArray[Any]:
    try:
        image = nib.nifti1.Nifti1Image.from_filename(path)
        values = np.asanyarray(image.dataobj)
    except UNREADABLE as error:
        raise BadInputError(f"{what}: {path}: cannot be read ({error}).") from error
    require_same_grid(Grid.of(image), grid, f"{what} ({path.name}) and the template")
    return values


def with_guidance(objective: Objective, config: Config, task: Task) -> Objective:
    wanted, maps = config.objective, map_settings(config)
    classes = wanted.classes or task.outputs
    numbers = tuple(task.outputs.index(name) for name in classes) if task.classes else ()
    return guided(objective, Guidance(wanted.loss, maps.map, maps.stage, maps.weight, numbers))


def masks_for(
    config: Config, task: Task, spec: NetworkInput, fold: Fold, scans: Sequence[Scan], device: torch.device,
    layout: RunLayout | None = None,
) -> Context:  # fmt: skip
    """Masks of the training part of a fold; `layout`: needed for masks of people's own anatomy only."""
    wanted = config.objective
    unknown = [name for name in wanted.classes if name not in task.outputs]
    if unknown:
        there = ", ".join(task.outputs)
        raise UsageError(f"objective.classes: {', '.join(unknown)}: no such class; there are {there}.")
    if wanted.own_anatomy:
        return own_masks(config, spec, fold, scans, device, layout)
    mask = mask_of(wanted, config.regions.atlas, spec, config.registration.template)
    people = annotated_people(fold.train, wanted.annotated, config.seed)
    return Context(
        masks=dilated(torch.from_numpy(mask).to(device)[None].float(), wanted.dilate_voxels),
        annotated=torch.tensor([scan.participant_id in people for scan in scans], device=device),
    )


def with_reference(context: Context, config: Config, task: Task, training: LabelledVolumes) -> Context:
    """The context with the mean control, where maps are relative to it."""
    if config.objective.map != "evidence":
        return context
    return replace(context, reference=mean_control(config, task, training))


def mean_control(config: Config, task: Task, training: LabelledVolumes) -> Tensor:
    """Mean of the scans of controls in a training part, (1, C, D, H, W); of everyone for a number."""
    places = torch.arange(len(training))
    if config.cohort.negative in task.outputs:
        places = places[on_host(training.targets) == task.outputs.index(config.cohort.negative)]
    # One scan at a time, in float64: a cohort need not fit into memory.
    total = torch.zeros(tuple(training.volumes.shape[1:]), dtype=torch.float64, device=training.targets.device)
    for place in places.tolist():
        total += training.volumes[place : place + 1][0]
    return (total / len(places)).float()[None]


def facts_of_guidance(config: Config, fold: Fold) -> tuple[object, Mapping[str, Path]]:
    wanted = config.objective
    of_atlas = not wanted.mask and not wanted.own_anatomy
    files = {"mask": Path(wanted.mask)} if wanted.mask else {}
    return [settings_for_key(config), find_atlas(config.regions.atlas).digest if of_atlas else None], files


def own_masks(
    config: Config, spec: NetworkInput, fold: Fold, scans: Sequence[Scan], device: torch.device,
    layout: RunLayout | None,
) -> Context:  # fmt: skip
    """Masks of the scans' own anatomy, (N, D, H, W) of uint8; who has no labels is not annotated."""
    if layout is None or not scans:  # checks before any work
        return Context(masks=torch.ones((1, *spec.shape), device=device))
    wanted = config.objective
    found = torch.zeros((len(scans), *spec.shape), dtype=torch.uint8, device=device)
    known = []
    for place, scan in enumerate(scans):
        mask = own_mask(wanted, layout.scan(scan.participant_id, scan.session_id, spec.resolution_mm), spec)
        known.append(mask is not None)
        if mask is not None:
            found[place] = dilated(torch.from_numpy(mask)[None].float(), wanted.dilate_voxels)[0].to(found)
    segmented = {scan.participant_id for scan, has_mask in zip(scans, known, strict=True) if has_mask}
    people = guided_people(config, fold, scans, segmented)
    annotated = [has_mask and scan.participant_id in people for scan, has_mask in zip(scans, known, strict=True)]
    return Context(masks=found, annotated=torch.tensor(annotated, device=device))
