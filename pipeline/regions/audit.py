"""Where relevance lies that it should not: the rim of the brain mask, outside the brain, fluid, vessels.

A network can tell classes apart by the contour that brain extraction leaves (Tinauer et al. 2025), and by fluid where
what it is asked about is tissue. For each map the shares of |relevance| in such compartments are set against their
shares of voxels, so that 1 is what relevance spread evenly over the reference would give.

Compartments overlap; they are cut out of the scan's brain mask and of what the network saw of it, so a rim is that
of this scan and not of the template.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from skimage.filters import threshold_multiotsu
from torch import Tensor

from heatlas.atlases.regions import RegionTable
from heatlas.atlases.spaces import Box, Grid, read_brain
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import REST, PackedLabels, labels_in, ordered_total
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.work.host import on_host

Mask = NDArray[np.bool_]

RIM_MM = 3.0
FLUID, VESSEL = "CSF", "vessel"
"""Tissues of a region table."""
NO_REGION = "no_region"

RELEVANCE_AUDIT_TABLE = declared("relevance_audit", __file__, rim_mm=RIM_MM)


class Compartments(NamedTuple):
    """Parts of a scan, each with the name of its reference, and the references; all of one shape."""

    masks: Mapping[str, tuple[str, Mask]]
    references: Mapping[str, Mask]


def within_reach(mask: Mask, reach: float) -> Mask:
    """Voxels no further than `reach` (in voxels) from one of the mask, centre to centre.

    The squared distance transform, cut off at the reach, by one pass per axis (Felzenszwalb & Huttenlocher 2012): for
    a reach of few voxels some twenty times faster than `scipy.ndimage.distance_transform_edt`, the oracle of the tests.

    >>> within_reach(np.array([[[False, False, False, True]]]), 2.0).tolist()
    [[[False, True, True, True]]]
    """
    steps = int(reach)
    far = int(reach * reach) + 1
    if far + steps * steps > np.iinfo(np.uint8).max:
        raise ValueError(f"a reach of {reach:g} voxels is more than this transform is made for")
    squared = np.where(mask, np.uint8(0), np.uint8(far))
    for axis in range(mask.ndim):
        lines = np.moveaxis(squared, axis, 0)
        nearest = lines.copy()
        for step in range(1, min(steps, len(lines) - 1) + 1):
            np.minimum(nearest[step:], lines[:-step] + np.uint8(step * step), out=nearest[step:])
            np.minimum(nearest[:-step], lines[step:] + np.uint8(step * step), out=nearest[:-step])
        squared = np.moveaxis(nearest, 0, axis)
    reached: Mask = squared < far
    return reached


def darkest(volume: NDArray[np.float32], brain: Mask) -> Mask:
    """The darkest of three Otsu classes inside the brain; nothing where there are not three intensities."""
    try:
        low, _ = threshold_multiotsu(volume[brain], classes=3)  # type: ignore[no-untyped-call]
    except ValueError:
        return np.zeros_like(brain)
    dark: Mask = brain & (volume <= low)
    return dark


def compartments(volume: NDArray[np.float32], brain: Mask, tissue: Mapping[str, Mask], voxel_mm: float) -> Compartments:
    """Cut what the network sees (D, H, W) by the brain mask and by tissues of the atlas (CSF, vessel, `NO_REGION`)."""
    reach = RIM_MM / voxel_mm + 0.5  # the surface of the mask lies half a voxel from the centres on either side of it
    inside, beyond = brain & within_reach(~brain, reach), ~brain & within_reach(brain, reach)
    masks = {
        "rim": ("brain_and_rim", inside | beyond),
        "rim_inside": ("brain", inside),
        "outside": ("seen", ~brain),
        "fluid": ("brain", brain & tissue[FLUID]),
        "dark": ("brain", darkest(volume, brain)),
        "vessel": ("brain", brain & tissue[VESSEL]),
        NO_REGION: ("brain", brain & tissue[NO_REGION]),
    }
    return Compartments(masks, {"brain": brain, "brain_and_rim": brain | beyond, "seen": np.ones_like(brain)})


def audit_rows(maps: Mapping[str, Tensor], parts: Compartments) -> list[dict[str, object]]:
    """Shares of |relevance| of each map (D, H, W, by name, all on one device) in each compartment."""
    if not maps:
        return []
    rows = []
    device = next(iter(maps.values())).device
    masks, references = parts

    def positions(mask: Mask) -> Tensor:
        return torch.from_numpy(np.flatnonzero(mask)).to(device)

    whole = {name: positions(mask) for name, mask in references.items()}
    inside = {name: positions(mask) for name, (_, mask) in masks.items()}
    for map_name, values in maps.items():
        magnitude = values.abs().reshape(-1)
        totals = {name: _sum_at(magnitude, voxels) for name, voxels in whole.items()}
        for name, (reference, _) in masks.items():
            absolute = _sum_at(magnitude, inside[name])
            n_voxels, n_reference = len(inside[name]), len(whole[reference])
            share = _ratio(absolute, totals[reference]) if n_voxels else float("nan")
            voxel_share = _ratio(n_voxels, n_reference)
            row: dict[str, object] = {"map": map_name, "compartment": name, "reference": reference}
            row |= {"n_voxels": n_voxels, "reference_voxels": n_reference}
            row |= {"absolute_sum": absolute, "reference_sum": totals[reference]}
            row |= {"share": share, "voxel_share": voxel_share, "enrichment": _ratio(share, voxel_share)}
            rows.append(row)
    return rows


def write_audit_table(
    path: Path,
    scan: Scan,
    maps: Mapping[str, Tensor],
    volume: NDArray[np.float32],
    brain_mask: Path,
    atlas: PackedAtlas,
    grid: Grid,
    box: Box | None,
) -> None:
    """Write the table of one scan and its data dictionary.

    Maps (D, H, W, by name) and the volume that the network saw are on the grid of `box`, the part of the template grid
    `grid` that the network sees (None for all of it); the scan's brain mask is on `grid`.
    """
    brain = read_brain(brain_mask, grid)
    brain = brain if box is None else box.crop(brain)
    tissue = _tissue(atlas.labels, atlas.regions, box)
    rows = audit_rows(maps, compartments(volume, brain, tissue, float(min(grid.voxel_sizes_mm))))
    identity = {"participant_id": scan.participant_id, "session_id": scan.session_id, "scan_id": scan.scan_id}
    RELEVANCE_AUDIT_TABLE.write(path, [identity | row for row in rows])


@functools.lru_cache(maxsize=1)
def _tissue(labels: PackedLabels, regions: RegionTable, box: Box | None) -> Mapping[str, Mask]:
    """Masks of fluid, vessels and unlabelled voxels; cached, since all jobs of a worker share atlas and box."""
    inside = labels_in(labels, box)
    numbers = {kind: [region.number for region in regions.regions if region.tissue == kind] for kind in (FLUID, VESSEL)}
    return {kind: np.isin(inside, labelled) for kind, labelled in numbers.items()} | {NO_REGION: inside == REST}


def _sum_at(flat: Tensor, voxels: Tensor) -> float:
    """Sum over voxels in an order that is the same on every call."""
    return float(on_host(ordered_total(flat if len(voxels) == len(flat) else flat.index_select(0, voxels))))


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else float("nan")
