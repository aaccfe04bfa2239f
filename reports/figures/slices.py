"""Slices of brains as pixels: grey anatomy, a map over it, outlines of regions.

Planes follow the neurological convention: the left of the picture is the left of the person. Positions are
millimetres in template space (RAS+). Images of other grids and resolutions are sampled at the same points in mm, so
they lie where they belong.

nilearn draws the few large figures (`reports.figures.maps`); a report also holds hundreds of small
pictures, and this module draws one in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nibabel as nib
import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from heatlas.atlases.labels import Atlas
from heatlas.atlases.templates import configured_template
from heatlas.pipeline.regions.maps import load_whole
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import HeatlasError
from heatlas.reports.figures.gallery import LIGHTEST, NIGHT, cool, warm

Pixels = NDArray[np.uint8]
Plane = Literal["sagittal", "coronal", "axial"]
AXIS: Mapping[str, int] = {"sagittal": 0, "coronal": 1, "axial": 2}

Cut = tuple[Plane, float]  # a slice: its plane and its position in mm

HIPPOCAMPAL_CUTS: tuple[Cut, ...] = (("sagittal", -26.0), ("coronal", -20.0), ("axial", -16.0))
"""Through the left hippocampus; the slices of the founding study's figures."""
MAP_CUTS: tuple[Cut, ...] = (
    ("sagittal", -26.0), ("coronal", -20.0), ("axial", -28.0), ("axial", -16.0), ("axial", 8.0), ("axial", 34.0),
)  # fmt: skip
"""All slices that any figure of maps needs."""

PERSON_PERCENTILES = (90.0, 99.5)
"""Colour scale of pictures: the strongest tenth is drawn. Those of a group are set on the mean map of the positive
class, those of a person on the scan's own map, so that each shows where, not how much."""
SMOOTHED_MM = 8.0
"""Full width at half maximum of pictures for the eye: voxels of a gradient differ from one to the next, what regions
share does not."""

BRAIN_MM: tuple[tuple[float, float], ...] = ((-74.0, 74.0), (-109.0, 74.0), (-72.0, 86.0))
"""The brain of the template along x, y and z: what a panel shows."""
_NEGATIVE_SHARE = 0.01
_ROUNDED, _SOFTENED = 0.45, 1.0  # standard deviations that round an outline, in voxels, and soften its line, in pixels
GIANT = 0.1
"""Share of the brain's voxels above which a region is not outlined: the line would lie over everything else."""


@dataclass(frozen=True)
class BrainImage:
    """A volume in RAS orientation with an axis-aligned affine."""

    values: np.ndarray
    affine: np.ndarray

    @classmethod
    def read(cls, path: Path) -> BrainImage:
        image: Any = nib.as_closest_canonical(load_whole(path))  # type: ignore[no-untyped-call]
        return cls(np.asarray(image.dataobj, dtype=np.float32), np.asarray(image.affine))

    def index(self, axis: int, mm: float) -> int:
        """Nearest slice to a position, inside the volume."""
        position = (mm - self.affine[axis, 3]) / self.affine[axis, axis]
        return int(np.clip(round(position), 0, self.values.shape[axis] - 1))

    def slice(self, plane: Plane, mm: float) -> np.ndarray:
        """Slice with rows from inferior (or posterior) to superior (anterior), columns from left (or posterior)."""
        axis = AXIS[plane]
        place = [slice(None)] * axis + [self.index(axis, mm)]
        plane_values: np.ndarray = self.values[tuple(place)].T
        return plane_values


@dataclass(frozen=True)
class ColourScale:
    """From where a map is drawn (`low`, in absolute value) to where its colour saturates (`high`)."""

    low: float
    high: float
    signed: bool

    @property
    def empty(self) -> bool:
        return not 0 <= self.low < self.high

    def ramp(self, steps: int) -> NDArray[np.float64]:
        """Values that are drawn, from low to high; on a two-sided scale after those from -high to -low."""
        above = np.linspace(self.low, self.high, steps)
        return np.concatenate([-above[::-1], above]) if self.signed else above


@dataclass(frozen=True)
class MapView:
    """The little of a map that figures need; a whole group of maps would not fit into memory."""

    slices: Mapping[Cut, np.ndarray]
    affine: np.ndarray
    magnitudes: Mapping[float, float]
    negative_share: float

    def slice(self, plane: Plane, mm: float) -> np.ndarray:
        return self.slices[plane, mm]

    def scale(
        self, percentiles: tuple[float, float], others: Sequence[MapView] = (), classes: Sequence[MapView] = ()
    ) -> ColourScale:
        """Colour scale set on this map; two-sided if it or one of the `others` has negative values that matter.

        `classes`: maps of which the strongest tenth is drawn in any case. A map of controls is weaker than that of
        patients, and would else be an empty brain.
        """
        signed = any(view.negative_share > _NEGATIVE_SHARE for view in (self, *others))
        low = min(
            self.magnitudes[percentiles[0]], *(view.magnitudes[PERSON_PERCENTILES[0]] for view in (self, *classes))
        )
        return ColourScale(low, self.magnitudes[percentiles[1]], signed)


def view_of(image: BrainImage, cuts: Sequence[Cut], brain: np.ndarray | None) -> MapView:
    """Slices and percentiles of a map.

    `brain`: voxels of the brain on the map's grid; percentiles are taken there. Without it, where the map is not 0.
    """
    values = image.values
    inside = brain if brain is not None and brain.shape == values.shape else values != 0
    magnitude = np.abs(values[inside]) if inside.any() else np.zeros(1)
    total = float(magnitude.sum(dtype=np.float64))
    negative = float(-values[values < 0].sum(dtype=np.float64))
    return MapView(
        {cut: image.slice(*cut) for cut in cuts},
        image.affine,
        dict(zip(PERSON_PERCENTILES, np.percentile(magnitude, PERSON_PERCENTILES).tolist(), strict=True)),
        negative / total if total > 0 else 0.0,
    )


def smoothed(image: BrainImage, fwhm_mm: float = SMOOTHED_MM, inside: NDArray[np.bool_] | None = None) -> BrainImage:
    """An image after a Gaussian filter, by nilearn; for pictures only, no number is made from it.

    `inside`: voxels of the brain on the image's grid, where the image then ends.
    """
    from nilearn.image import smooth_img  # late: it takes a second that only these pictures need

    nifti = nib.Nifti1Image(image.values, image.affine)  # type: ignore[no-untyped-call]
    values = smooth_img(nifti, fwhm_mm).get_fdata(dtype=np.float32)
    return BrainImage(values if inside is None else np.where(inside, values, 0), image.affine)


@dataclass(frozen=True)
class Backdrop:
    """The template brain under the maps; intensities at `ceiling` and above are drawn lightest."""

    image: BrainImage
    mask: np.ndarray
    ceiling: float

    @property
    def nifti(self) -> Any:
        """The brain of the template as nilearn takes it."""
        return nib.Nifti1Image(self.image.values * self.mask, self.image.affine)  # type: ignore[no-untyped-call]

    @classmethod
    def load(cls, registration: RegistrationConfig) -> Backdrop | None:
        """The template at the run's resolution; None if its package is not installed."""
        try:
            template = configured_template(registration)
        except HeatlasError:
            return None
        ceiling = float(np.percentile(template.t1w[template.brain_mask], 99.5))
        return cls(BrainImage(template.t1w, template.grid.affine), template.brain_mask, ceiling)


def coloured(values: np.ndarray, scale: ColourScale) -> np.ndarray:
    """Colours of a slice: (rows, columns, 4), transparent where the absolute value is not above ``scale.low``."""
    strength = np.clip((np.abs(values) - scale.low) / (scale.high - scale.low), 0, 1)
    colours = warm()(strength)
    if scale.signed:
        colours = np.where((values < 0)[..., None], cool()(strength), colours)
    visible = np.abs(values) > scale.low
    if not scale.signed:
        visible &= values > 0
    colours[..., 3] = visible
    return np.asarray(colours)


def slice_name(cut: Cut) -> str:
    """Coordinate of a slice.

    Examples
    --------
    >>> slice_name(("coronal", -20.0))
    'y = −20'
    """
    plane, mm = cut
    return f"{'xyz'[AXIS[plane]]} = {mm:g}".replace("-", "−")


@dataclass(frozen=True)
class PanelGrid:
    """Which points of a slice a panel shows."""

    cut: Cut
    # Position in mm of each column from left to right and of each row from top to bottom, shape (pixels,)
    across: NDArray[np.float64]
    up: NDArray[np.float64]

    @classmethod
    def of(cls, cut: Cut, pixels: int, margin_mm: float = 0.0) -> PanelGrid:
        """The brain of the template in a square of `pixels`, with a margin around its longest side."""
        across, up = np.delete(np.arange(3), AXIS[cut[0]])
        (left, right), (bottom, top) = BRAIN_MM[across], BRAIN_MM[up]
        step = (max(right - left, top - bottom) + 2 * margin_mm) / pixels
        places = (np.arange(pixels) + 0.5 - pixels / 2) * step
        return cls(cut, (left + right) / 2 + places, (bottom + top) / 2 - places)

    def sample(self, image: BrainImage | MapView, order: int = 1) -> NDArray[Any]:
        """Values at the points, 0 outside the volume; `order` 1 is linear, 0 nearest neighbour (labels)."""
        values, affine = image.slice(*self.cut), image.affine
        across, up = np.delete(np.arange(3), AXIS[self.cut[0]])
        columns = (self.across - affine[across, 3]) / affine[across, across]
        rows = (self.up - affine[up, 3]) / affine[up, up]
        points = np.meshgrid(rows, columns, indexing="ij")
        return np.asarray(scipy.ndimage.map_coordinates(values, points, order=order, mode="grid-constant"))


def grey_panel(
    plan: PanelGrid, anatomy: BrainImage, ceiling: float, lightest: tuple[int, int, int] = LIGHTEST
) -> Pixels:
    """Anatomy in shades of grey, (rows, columns, RGB); `ceiling` and above are `lightest`."""
    shade = np.clip(plan.sample(anatomy) / (ceiling or 1.0), 0, 1)[..., None]
    return np.asarray(np.array(NIGHT) + shade * np.subtract(lightest, NIGHT), dtype=np.uint8)


def with_map(
    picture: Pixels, plan: PanelGrid, image: BrainImage | MapView, scale: ColourScale, order: int = 1
) -> Pixels:
    """The panel with a map above its threshold in colour, interpolated (`PanelGrid.sample`) before that is applied."""
    if scale.empty:
        return picture
    colours = coloured(plan.sample(image, order), scale)
    return np.where(colours[..., 3:] > 0, (255 * colours[..., :3]).astype(np.uint8), picture)


def outlined_bodies(plan: PanelGrid, labels: BrainImage, chosen: Mapping[int, int]) -> NDArray[np.int16]:
    """Which body each pixel of a panel belongs to, 0 for none.

    `chosen` maps labels of the atlas to the number of their body; labels with the same number are outlined as one.
    """
    found = plan.sample(labels, order=0)
    numbers = np.zeros(int(max(found.max(initial=0), *chosen, 0)) + 1, dtype=np.int16)
    for label, number in chosen.items():
        numbers[label] = number
    edged = numbers[found]
    # Without the stairs of the voxels, of which a panel shows several pixels each.
    across = np.delete(np.arange(3), AXIS[plan.cut[0]])[0]
    sigma = _ROUNDED * abs(float(labels.affine[across, across])) / float(plan.across[1] - plan.across[0])
    bodies = np.zeros_like(edged)
    for number in set(np.unique(edged)) - {0}:
        bodies[scipy.ndimage.gaussian_filter((edged == number).astype(np.float32), sigma) > 0.5] = number
    return np.asarray(bodies)


def with_contours(picture: Pixels, bodies: NDArray[Any], colour: tuple[int, int, int]) -> Pixels:
    """The panel with the outermost pixels of each body in one colour: as sharp as a check of a registration needs."""
    edge = np.zeros(bodies.shape, dtype=bool)
    for axis in (0, 1):
        for step in (-1, 1):
            edge |= (bodies > 0) & (np.roll(bodies, step, axis) != bodies)
    return np.where(edge[..., None], np.asarray(colour, dtype=np.uint8), picture)


def with_outlines(picture: Pixels, bodies: NDArray[Any], colour: tuple[int, int, int] = (255, 255, 255)) -> Pixels:
    """The panel with a line around each body, its steps from pixel to pixel softened."""
    line = np.zeros(bodies.shape, dtype=np.float32)
    for number in set(np.unique(bodies)) - {0}:
        inside = scipy.ndimage.gaussian_filter((bodies == number).astype(np.float32), _SOFTENED)
        line = np.maximum(line, np.clip(2 - 4 * np.abs(2 * inside - 1), 0, 1))
    return np.asarray(picture + line[..., None] * (np.asarray(colour) - picture.astype(np.float32)), dtype=np.uint8)


def without_giants(atlas: Atlas, groups: Sequence[str]) -> list[str]:
    """The groups of an atlas that are small enough to be outlined."""
    sizes = np.bincount(atlas.labels.ravel())
    most = GIANT * sizes[1:].sum()
    labels = {group: [label for label in atlas.regions.groups.get(group, ()) if label < len(sizes)] for group in groups}
    return [group for group in groups if sizes[labels[group]].sum() <= most]


def middle_of(bodies: NDArray[np.int16]) -> dict[int, tuple[int, int]]:
    """For each body in a panel, the pixel (row, column) deepest inside its largest part."""
    places = {}
    for number in sorted(set(np.unique(bodies)) - {0}):
        parts, _ = scipy.ndimage.label(bodies == number)
        largest = parts == np.argmax(np.bincount(parts.ravel())[1:]) + 1
        depth = scipy.ndimage.distance_transform_edt(largest)
        row, column = np.unravel_index(int(np.argmax(depth)), depth.shape)
        places[int(number)] = (int(row), int(column))
    return places
