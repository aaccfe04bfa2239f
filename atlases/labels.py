"""Label atlases on the grid of an analysis.

>>> from heatlas.atlases.spaces import template_grid
>>> atlas = load_atlas("neuromorphometrics-cat12", template_grid(2.0))
>>> len(atlas.regions.regions), atlas.regions.by_number(48).name, atlas.empty
(134, 'Left hippocampus', ())
>>> x = atlas.grid.to_world(np.argwhere(atlas.labels == 48))[:, 0]
>>> bool(x.max() < 0)
True
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.spatialimages import SpatialImage
from numpy.typing import NDArray

from heatlas.atlases.catalogue import AtlasSource, find_atlas
from heatlas.atlases.regions import Region, RegionTable
from heatlas.atlases.spaces import UNREADABLE, Grid, resample_labels
from heatlas.atlases.templates import template_on
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import MISSING

# Half of a midline structure may reach a little over x = 0 (Mori's left pons by 0.1 mm); a swapped side lies further.
MIDLINE_TOLERANCE_MM = 1.0


@dataclass(frozen=True)
class Atlas:
    """Labels on a grid and what they mean.

    `labels`: 0 = unlabelled; read-only. `regions`: also those without a voxel on this grid, which are `empty`: thinner
    than its voxels, or wholly outside the brain mask; their density is ``n/a``. `credit`: licence and acknowledgement,
    to be printed with any result. `source_digest`: changes when the label image or its table changes. `note`: what to
    know about the atlas's placement in template space; may be empty.
    """

    name: str
    title: str
    grid: Grid
    labels: NDArray[np.int32]
    regions: RegionTable
    credit: str
    source_digest: str
    empty: tuple[int, ...] = ()
    note: str = ""


def load_atlas(name: str, grid: Grid) -> Atlas:
    """Load an atlas (`atlases.catalogue.find_atlas`) and bring its labels to a grid in template space.

    Labels move by nearest neighbour through both affines. Atlases of the catalogue are masked by the template brain, as
    the images are; labels given by path are taken as they are.
    """
    source = find_atlas(name)
    return _carried_on(source.name, grid) if source.carried else _placed(source, grid)


@functools.lru_cache(maxsize=2)  # a report asks for the same one in several places; files of the user may change
def _carried_on(name: str, grid: Grid) -> Atlas:
    return _placed(find_atlas(name), grid)


def _placed(source: AtlasSource, grid: Grid) -> Atlas:
    labels, native = read_labels(source.image)
    regions = _match(source, labels)
    _require_sides(source.image, labels, native, regions)
    on_grid = resample_labels(labels, native, grid)
    if source.carried:
        on_grid = np.where(template_on(grid).brain_mask, on_grid, 0).astype(np.int32)
    on_grid.flags.writeable = False
    present = set(np.unique(on_grid).tolist())
    empty = tuple(number for number in regions.numbers if number not in present)
    return Atlas(source.name, source.title, grid, on_grid, regions, source.credit, source.digest, empty, source.note)


def read_labels(path: Path) -> tuple[NDArray[np.int32], Grid]:
    """Read a label image: one 3D volume of whole numbers from 0 that says where it lies; any other is refused."""
    try:
        image = nib.load(path)
        if not isinstance(image, SpatialImage):
            raise BadInputError("holds no volume. Give a NIfTI label image.")
        grid = Grid.of(image)
        values = np.asarray(image.dataobj).reshape(grid.shape)
    except UNREADABLE as error:
        raise BadInputError(f"{path}: not a readable image ({error}).") from error
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from error
    if isinstance(image, nib.Nifti1Image) and image.header["sform_code"] == 0 and image.header["qform_code"] == 0:
        raise BadInputError(f"{path}: has neither sform nor qform, so left and right are unknown. Repair its header.")
    if not np.isfinite(values).all() or (values != np.round(values)).any() or values.min() < 0:
        raise BadInputError(f"{path}: holds values other than whole numbers from 0; not a label image.")
    return values.astype(np.int32), grid


def mean_x_mm(labels: NDArray[np.integer], grid: Grid) -> dict[int, float]:
    """Mean world x of each label, by number: positive on the participant's right."""
    voxels = np.nonzero(labels)
    numbers = labels[voxels]
    counts = np.bincount(numbers)
    mean = np.full(counts.shape, grid.affine[0, 3])
    for axis, index in enumerate(voxels):
        mean += grid.affine[0, axis] * np.bincount(numbers, weights=index) / np.maximum(counts, 1)
    return {int(number): float(mean[number]) for number in np.flatnonzero(counts)}


def _match(source: AtlasSource, labels: NDArray[np.int32]) -> RegionTable:
    """Region table of the labels that the image holds, and of those its table promises."""
    table = source.read_table()
    present = {int(number) for number in np.unique(labels) if number != 0}
    if not present:
        raise BadInputError(f"{source.image}: holds no label.")
    unnamed = sorted(present - set(table.numbers))
    if not source.carried:
        if unnamed:
            listed = ", ".join(map(str, unnamed[:10])) + (" ..." if len(unnamed) > 10 else "")
            raise BadInputError(f"{source.image}: labels {listed} are not in the table beside it. Name them there.")
        return table
    named = table.only(present & set(table.numbers))
    extra = (Region(n, f"Label {n}", "both", MISSING, MISSING, f"Label {n}") for n in unnamed)
    return RegionTable((*named.regions, *extra))


def _require_sides(path: Path, labels: NDArray[np.int32], grid: Grid, regions: RegionTable) -> None:
    """Refuse an atlas whose image and table disagree about left and right."""
    sign = {"right": 1.0, "left": -1.0, "both": 0.0}
    means = mean_x_mm(labels, grid)
    wrong = [
        region
        for region in regions.regions
        if sign[region.hemisphere] * means.get(region.number, 0.0) < -MIDLINE_TOLERANCE_MM
    ]
    if wrong:
        first = wrong[0]
        raise BadInputError(
            f"{path}: {len(wrong)} labels lie on the other side than named, e.g. {first.number} ({first.name}) at "
            f"x = {means[first.number]:.1f} mm, where right is positive. Repair the affine or the table (column hemi)."
        )
