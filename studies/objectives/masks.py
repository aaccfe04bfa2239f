"""Masks of guidance: regions of the template's atlas, a file, or people's own anatomy; and who is annotated."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import scipy.ndimage
import torch
from numpy.typing import NDArray

from heatlas.atlases.images import UNREADABLE
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import Grid, require_same_grid
from heatlas.atlases.templates import template_on
from heatlas.pipeline.cohort.people.splits import Fold, guided_people
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.run.config.objectives import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.template_name import DEFAULT_TEMPLATE
from heatlas.pipeline.training.objectives.records import Context
from heatlas.studies.objectives.guidance_losses import dilated

BRAIN = "brain"
"""In place of a group of the atlas: the whole brain of the template."""


def mask_of(
    wanted: ObjectiveConfig, atlas_name: str, spec: NetworkInput, template: str = DEFAULT_TEMPLATE
) -> NDArray[np.bool_]:
    """Where maps should be, on the grid that the network sees; before dilation.

    Raises UsageError for an unknown region, or a mask without a voxel that the network sees. Raises BadInputError for a
    file that cannot be read or lies on another grid.
    """
    if wanted.mask:
        found = _read_on(Path(wanted.mask), spec.template_grid, "objective.mask") > 0
        if wanted.boxes:
            found = _boxes(found)
    else:
        atlas = load_atlas(atlas_name, spec.template_grid)
        groups = atlas.regions.groups
        for name in wanted.regions:
            if name not in groups and name != BRAIN:
                near = difflib.get_close_matches(name, groups, n=3, cutoff=0.4)
                raise UsageError(
                    f"objective.regions: {name}: no such group of {atlas_name}; similar: {', '.join(near) or 'none'}."
                )
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
    """Where the map of one scan should be, by the person's own labels, as `mask_of`; None without them.

    Raises BadInputError for a file that cannot be read or lies on another grid.
    """
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
    """Bounding box of a region; nothing of an empty one."""
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
    segmented = {scan.participant_id for scan, own in zip(scans, known, strict=True) if own}
    people = guided_people(config, fold, scans, segmented)
    annotated = [own and scan.participant_id in people for scan, own in zip(scans, known, strict=True)]
    return Context(masks=found, annotated=torch.tensor(annotated, device=device))
