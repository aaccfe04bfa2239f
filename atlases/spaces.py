"""What a voxel index means in millimetres: grids, boxes of them, labels moved between them, and images written on them.

Glossary
--------
voxel space
    Indices ``(i, j, k)`` of an array; the centre of the first voxel is ``(0, 0, 0)``.
affine
    4x4 matrix that takes voxel indices to world millimetres, ``xyz1 = affine @ ijk1``.
world
    Millimetres, RAS+: x grows to the participant's Right, y to Anterior, z to Superior. NIfTI's convention; ITK's
    own is LPS+ (x and y negated), which its NIfTI reader and writer translate.
orientation
    Which world axis each array axis runs along, as three letters: LAS is an array whose first axis runs to the left.
    It is a property of the affine, never a guess from the order of the array.
grid
    A shape and an affine: all that is needed to say where each voxel of an array lies.
space
    The anatomy that world coordinates refer to: the scanner for a raw scan, a template brain after registration.
    Two images in one space may lie on different grids; images on one grid may still be in different spaces.
template space
    ``MNI152NLin2009cAsym`` unless ``registration.template`` names another. ``IXI549Space`` is that of SPM12,
    ``MNI152NLin6Asym`` that of FSL; the three differ by several millimetres in places.

Examples
--------
The template at 1 mm, and the same space sampled every 2 mm:

>>> template_grid(1.0).shape
(193, 229, 193)
>>> coarse = template_grid(2.0)
>>> coarse.shape, coarse.orientation, coarse.voxel_volume_mm3
((97, 115, 97), 'RAS', 8.0)
>>> coarse.to_world([48, 66, 39]).tolist()
[0.0, 0.0, 0.0]
>>> coarse.to_voxel([-26.0, -22.0, -14.0]).tolist()
[35.0, 55.0, 32.0]
>>> template_grid(1.0) == template_grid(1.0), template_grid(1.0) == coarse
(True, False)
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

from heatlas.pipeline.run.errors import BadInputError

# NIfTI keeps affines in single precision, where 200 mm has a spacing of 1.5e-5; quaternions lose about ten times that.
# A hundredth of a millimetre is far above both and far below anything that moves a voxel.
TOLERANCE_MM = 0.01


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the voxels of an array lie: three sides, and the affine from voxel indices to world millimetres (RAS+).

    The affine is kept as a read-only copy in double precision.
    """

    shape: tuple[int, int, int]
    affine: NDArray[np.float64]

    def __post_init__(self) -> None:
        affine = np.array(self.affine, dtype=np.float64)
        affine.flags.writeable = False
        shape = tuple(int(side) for side in self.shape)
        if len(shape) != 3 or min(shape) < 1:
            raise BadInputError(f"a grid needs three positive sides, not {self.shape}. Give one 3D volume.")
        if affine.shape != (4, 4) or not np.isfinite(affine).all() or not np.array_equal(affine[3], [0, 0, 0, 1]):
            raise BadInputError(
                f"not an affine from voxels to millimetres: {affine.tolist()}. Repair the image header."
            )
        # Relative to the voxel volume: a determinant is small for small voxels, zero only for a degenerate axis.
        sides = np.linalg.norm(affine[:3, :3], axis=0)
        if abs(np.linalg.det(affine[:3, :3])) <= 1e-6 * sides.prod():
            raise BadInputError(
                f"the affine {affine.tolist()} flattens space. Repair the image header (sform or qform)."
            )
        object.__setattr__(self, "affine", affine)
        object.__setattr__(self, "shape", shape)

    @classmethod
    def of(cls, image: Any) -> Grid:
        """Grid of a nibabel image; a fourth axis of length one, as some converters leave behind, is not part of it."""
        shape = tuple(image.shape)
        if len(shape) > 3 and set(shape[3:]) == {1}:
            shape = shape[:3]
        return cls(shape, image.affine)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        return self.shape == other.shape and np.array_equal(self.affine, other.affine)

    def __hash__(self) -> int:
        # Adding zero turns -0.0 into 0.0: they compare equal, so they must hash equal.
        return hash((self.shape, (self.affine + 0.0).tobytes()))

    def __str__(self) -> str:
        rows = "; ".join(" ".join(f"{value:g}" for value in row) for row in self.affine[:3])
        return f"{'x'.join(map(str, self.shape))} {self.orientation}, affine [{rows}]"

    @property
    def voxel_sizes_mm(self) -> tuple[float, float, float]:
        x, y, z = np.linalg.norm(self.affine[:3, :3], axis=0)
        return float(x), float(y), float(z)

    @property
    def voxel_volume_mm3(self) -> float:
        first, second, third = self.affine[:3, :3].T
        return float(abs(np.cross(first, second) @ third))  # exact on an axis-aligned grid, unlike a determinant by LU

    @property
    def orientation(self) -> str:
        """Closest world direction of each array axis, e.g. ``"LAS"``."""
        return "".join(nib.aff2axcodes(self.affine))  # type: ignore[no-untyped-call]

    def to_world(self, voxels: ArrayLike) -> NDArray[np.float64]:
        """World millimetres of voxel indices, both of shape (..., 3)."""
        world: NDArray[np.float64] = np.asarray(voxels, dtype=np.float64) @ self.affine[:3, :3].T + self.affine[:3, 3]
        return world

    def to_voxel(self, world: ArrayLike) -> NDArray[np.float64]:
        """Voxel indices, not rounded, of world millimetres, both of shape (..., 3)."""
        inverse = np.linalg.inv(self.affine)
        voxels: NDArray[np.float64] = np.asarray(world, dtype=np.float64) @ inverse[:3, :3].T + inverse[:3, 3]
        return voxels

    def same_as(self, other: Grid, tolerance_mm: float = TOLERANCE_MM) -> bool:
        """Whether no voxel lies further than `tolerance_mm` from its namesake on the other grid.

        The distance between two affine maps is largest at a corner, so the eight corners decide for all voxels.

        >>> grid = template_grid(1.0)
        >>> moved = grid.affine.copy()
        >>> moved[0, 3] += 1e-4
        >>> grid.same_as(Grid(grid.shape, moved)), grid.same_as(template_grid(2.0))
        (True, False)
        """
        if self.shape != other.shape:
            return False
        corners = list(itertools.product(*((0, side - 1) for side in self.shape)))
        distances = np.linalg.norm(self.to_world(corners) - other.to_world(corners), axis=1)
        return bool(distances.max() <= tolerance_mm)


def require_same_grid(a: Grid, b: Grid, what: str) -> None:
    """Refuse two grids that differ; `what` was to be put together, e.g. ``"relevance map and atlas"``."""
    if not a.same_as(b):
        raise BadInputError(f"{what} lie on different grids: {a} against {b}. Resample one of them through its affine.")


@dataclass(frozen=True)
class Box:
    """A block of voxels, from its first one.

    >>> box = Box((1, 0, 2), (2, 3, 1))
    >>> whole = np.arange(4 * 3 * 5).reshape(4, 3, 5)
    >>> box.crop(whole).shape
    (2, 3, 1)
    >>> int(box.paste(box.crop(whole), whole.shape).sum() - box.crop(whole).sum())
    0
    """

    start: tuple[int, int, int]
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        if min(self.start) < 0 or min(self.shape) < 1:
            raise BadInputError(f"not a box of voxels: start {self.start}, shape {self.shape}.")

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        i, j, k = (slice(first, first + side) for first, side in zip(self.start, self.shape, strict=True))
        return i, j, k

    def crop(self, array: Any) -> Any:
        """View of the box in the last three axes of an array or tensor."""
        self._require_inside(tuple(array.shape[-3:]))
        return array[(..., *self.slices)]

    def paste(self, cropped: NDArray[Any], full_shape: tuple[int, ...]) -> NDArray[Any]:
        """Put a cropped array back, zeros outside; `full_shape` is that of the last three axes."""
        self._require_inside(tuple(full_shape[-3:]))
        if tuple(cropped.shape[-3:]) != self.shape:
            raise BadInputError(f"an array of shape {tuple(cropped.shape)} does not fit a box of shape {self.shape}.")
        whole = np.zeros((*cropped.shape[:-3], *full_shape[-3:]), dtype=cropped.dtype)
        whole[(..., *self.slices)] = cropped
        return whole

    def grid(self, full_grid: Grid) -> Grid:
        """Grid of the box: the same voxels keep their place in the world."""
        self._require_inside(full_grid.shape)
        affine = full_grid.affine.copy()
        affine[:3, 3] = full_grid.to_world(self.start)
        return Grid(self.shape, affine)

    def _require_inside(self, full_shape: tuple[int, ...]) -> None:
        if any(first + side > full for first, side, full in zip(self.start, self.shape, full_shape, strict=True)):
            raise BadInputError(f"the box {self.start} + {self.shape} reaches beyond an array of shape {full_shape}.")


@dataclass(frozen=True)
class Placed(Box):
    """A grid of any voxel size and orientation over a whole one, in place of a block of its voxels.

    `to_whole`: 4x4, from its voxels to those of the whole grid, whose sides are `whole`. `crop` reads values there:
    between voxels linearly, labels and masks of the nearest voxel, 0 outside. `paste` brings a map back: each voxel of
    the whole grid has its share of the nearest placed voxel, and sums stay what they are.

    >>> fine, coarse = template_grid(2.0), template_grid(4.0)
    >>> mirrored = Placed.on(Grid(coarse.shape, coarse.affine @ np.diag([-1.0, 1, 1, 1])), fine)
    >>> mirrored.grid(fine).orientation, mirrored.crop(np.ones(fine.shape)).shape == coarse.shape
    ('LAS', True)
    """

    to_whole: tuple[tuple[float, ...], ...]
    whole: tuple[int, int, int]

    @classmethod
    def on(cls, grid: Grid, whole: Grid) -> Placed:
        matrix = np.round(np.linalg.inv(whole.affine) @ grid.affine, 6)  # what rounding left would blur every voxel
        return cls((0, 0, 0), grid.shape, tuple(map(tuple, matrix.tolist())), whole.shape)

    def crop(self, array: Any) -> Any:
        values, matrix = np.asarray(array), np.array(self.to_whole)
        exact = values.dtype.kind in "biu"
        how = {"order": 0 if exact else 1, "mode": "grid-constant", "output_shape": self.shape}
        moved = ndimage.affine_transform(values.astype(np.uint8) if values.dtype == bool else values, matrix, **how)
        return moved.astype(values.dtype)

    def paste(self, cropped: NDArray[Any], full_shape: tuple[int, ...]) -> NDArray[Any]:
        nearest = _nearest(np.linalg.inv(self.to_whole), self.whole, self.shape)
        known = nearest >= 0
        shares = np.bincount(nearest[known], minlength=int(np.prod(self.shape)))
        lone = np.flatnonzero(shares == 0)  # voxels so fine that no other is nearest to them
        into = _nearest(np.array(self.to_whole), self.shape, self.whole)[lone]
        flat = cropped.reshape(-1, shares.size)
        pasted = np.zeros((len(flat), nearest.size), cropped.dtype)
        pasted[:, known] = flat[:, nearest[known]] / shares[nearest[known]]
        for row, values in zip(pasted, flat, strict=True):
            np.add.at(row, into[into >= 0], values[lone[into >= 0]])
        return pasted.reshape(*cropped.shape[:-3], *full_shape[-3:])

    def grid(self, full_grid: Grid) -> Grid:
        return Grid(self.shape, full_grid.affine @ np.array(self.to_whole))


def _nearest(matrix: NDArray[np.floating], shape: tuple[int, ...], other: tuple[int, ...]) -> NDArray[np.intp]:
    """For each voxel of a grid, flat, the place of the nearest one of another; -1 outside of it."""
    voxels = np.indices(shape, dtype=np.float32).reshape(3, -1)
    there = np.rint(matrix[:3, :3].astype(np.float32) @ voxels + matrix[:3, 3:].astype(np.float32)).astype(np.intp)
    inside = ((there >= 0) & (there < np.array(other)[:, None])).all(axis=0)
    flat: NDArray[np.intp] = np.where(inside, np.ravel_multi_index(tuple(there), other, mode="clip"), -1)
    return flat


Point = tuple[float, float, float]
Span = tuple[Point, Point]
"""World centres of the first and the last voxel of a template's grid, which is RAS."""
DEFAULT_SPAN: Span = ((-96.0, -132.0, -78.0), (96.0, 96.0, 114.0))
"""Of the default template, 193 x 229 x 193 voxels of 1 mm."""


def template_grid(resolution_mm: float, span: Span = DEFAULT_SPAN) -> Grid:
    """Grid of template space at a resolution, RAS: the field of view of the template's files, its first voxel kept.

    `span` is of the template (`atlases.templates.span_of`).

    >>> template_grid(1.5).shape
    (129, 153, 129)
    """
    if not resolution_mm > 0:
        raise BadInputError(f"a resolution of {resolution_mm} mm is not possible; give a positive number.")
    x, y, z = (int((last - first) / resolution_mm + 1e-6) + 1 for first, last in zip(*span, strict=True))
    affine = np.diag([resolution_mm, resolution_mm, resolution_mm, 1.0])
    affine[:3, 3] = span[0]
    return Grid((x, y, z), affine)


def read_brain(path: Path, grid: Grid) -> NDArray[np.bool_]:
    """A brain mask that registration has written on a grid of template space; voxels above 0.5 are brain."""
    try:
        image = nib.nifti1.Nifti1Image.from_filename(path)
        values = np.asanyarray(image.dataobj)
    except UNREADABLE as error:
        raise BadInputError(f"{path}: cannot be read ({error}); run the registration again.") from error
    require_same_grid(Grid.of(image), grid, path.name)
    brain: NDArray[np.bool_] = np.ascontiguousarray(values > 0.5)
    if not brain.any():
        raise BadInputError(f"{path}: the brain mask is empty; check the registration of this scan.")
    return brain


def resample_labels(labels: NDArray[np.integer], source: Grid, target: Grid) -> NDArray[np.int32]:
    """Carry a label image to another grid of any orientation, in the same world space, by nearest neighbour.

    Each target voxel takes the label of the source voxel that holds its centre, so no number arises that was not there,
    and volumes are kept up to sampling error. Structures thinner than the target's voxels may fall between. A label
    that lies wholly outside the target's field of view is refused.
    """
    if labels.shape != source.shape:
        raise BadInputError(f"labels of shape {labels.shape} cannot lie on the grid {source}.")
    to_source = np.linalg.inv(source.affine) @ target.affine
    moved: NDArray[np.int32] = ndimage.affine_transform(
        labels.astype(np.int32, copy=False),
        to_source[:3, :3],
        to_source[:3, 3],
        output_shape=target.shape,
        order=0,
        mode="grid-constant",  # "constant" would drop half a voxel at the border
        cval=0,
    )
    missing = set(np.unique(labels).tolist()) - set(np.unique(moved).tolist()) - {0}
    outside = sorted(missing - _seen(labels, source, target, missing))
    if outside:
        raise BadInputError(
            f"labels {', '.join(map(str, outside))} lie outside the field of view of {target}; labels are on {source}. "
            "Check that both are in one space."
        )
    return moved


def _seen(labels: NDArray[np.integer], source: Grid, target: Grid, numbers: set[int]) -> set[int]:
    """Which of `numbers` have a voxel centre inside the target's outer voxel faces."""
    seen = set()
    for number in numbers:
        voxels = target.to_voxel(source.to_world(np.argwhere(labels == number)))
        if ((voxels >= -0.5) & (voxels <= np.array(target.shape) - 0.5)).all(axis=1).any():
            seen.add(number)
    return seen


MNI = nib.nifti1.xform_codes["mni"]
DESCRIPTION_LENGTH = 79
_OF_IMAGES = (ImageFileError, HeaderDataError, WrapStructError)
UNREADABLE = (OSError, EOFError, ValueError, MemoryError, OverflowError, zlib.error, *_OF_IMAGES)
"""What nibabel raises on a file that is missing, empty, cut short, damaged, or not an image."""


def write_template_image(path: Path, values: np.ndarray, grid: Grid, title: str = "") -> None:
    """Write an image on a grid of template space as ``.nii.gz``: booleans as uint8, all else as float32.

    The gzip stream has the lowest compression level (several times faster than the default, about a tenth larger) and
    neither time nor name, so that equal values give equal bytes. The affine is stored as sform and qform with code 4
    (MNI152). `title`: for the description field of the header, which has 79 characters of ASCII.
    """
    if values.shape != tuple(grid.shape):
        raise ValueError(f"{path.name}: image has shape {values.shape}, the template grid {tuple(grid.shape)}.")
    stored = values.astype(np.uint8) if values.dtype == bool else values.astype(np.float32, copy=False)
    image: Any = nib.Nifti1Image(stored, grid.affine)  # type: ignore[no-untyped-call]
    image.set_sform(grid.affine, MNI)
    image.set_qform(grid.affine, MNI)
    image.header.set_xyzt_units("mm")
    image.header["descrip"] = title[:DESCRIPTION_LENGTH].encode("ascii", "replace")
    with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as handle:
        image.to_stream(handle)
