"""The reference brain of the demo, and the deformations that make people of it.

Everything starts from the 2009c brain and the Neuromorphometrics labels at 1 mm. A scan's anatomy is the reference
brain after three deformations: first the disease, then the sex difference (both change the size of regions, in
reference space, where the regions are known), then the person (a smooth random warp and an individual scale).
Deformations live on a grid of 3 mm over the same field of view; points are in "reference millimetres", i.e. 1 mm voxel
coordinates of the template.

A deformation is an array ``(3, X, Y, Z)`` in mm on a grid of equal spacing whose axes run along the axes of space;
``u`` maps the point ``x`` to ``x + u(x)``. A stationary velocity field ``v`` is integrated over unit time by scaling
and squaring (Arsigny et al. 2006, doi:10.1007/11866565_113), which gives a diffeomorphism whose inverse is the integral
of ``-v``. Registration libraries integrate fields only inside an optimiser or a network. Interpolation is compiled by
numba because `scipy.ndimage.map_coordinates` took nine tenths of the time; results are equal to the last bit of single
precision.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.demo.people import CHANGES, DIMORPHIC_GROUP, DIMORPHIC_LOG_RATIO

SPACING_MM = 3
"""Spacing of the deformation grid; a whole number of reference voxels."""

ATLAS = "neuromorphometrics-cat12"
ANTIALIASING_MM = 0.8
DEFORMATION_SMOOTHNESS_MM = 2.5
WARP_SMOOTHNESS_MM = 16.0
WARP_RMS_MM = 2.0
"""Per component; with the smoothness it gives hippocampal volumes a coefficient of variation of about 8 %."""


@dataclass(frozen=True, eq=False)
class ReferenceAnatomy:
    """The brain from which every synthetic person is made."""

    origin: NDArray[np.float64]  # (3,): template coordinates (mm) of reference point (0, 0, 0); axes run R, A, S
    t1w: Array  # (193, 229, 193): intensity with white matter near 1, smoothed against aliasing, background 0
    fluid: float  # intensity of cerebrospinal fluid
    brain: NDArray[np.bool_]  # (193, 229, 193): brain mask
    box_start: NDArray[np.int64]  # (3,): first voxel of the box that holds all planted regions
    # (groups, ...): share of each voxel of the box that belongs to each group: those of `CHANGES` in that order, then
    # the one that differs between the sexes; smoothed as the image is
    regions: Array
    velocities: Array  # (groups, 3, X, Y, Z): disease at severity 1 on the 3 mm grid, per group of `CHANGES`
    # (3, X, Y, Z): half the difference between men and women: what is added in men and taken off in women
    sex_velocity: Array

    def disease_velocity(self, severities: tuple[float, ...]) -> Array:
        velocity: Array = np.tensordot(np.asarray(severities, np.float32), self.velocities, axes=1)
        return velocity

    def region_shares(self, points: Array) -> tuple[NDArray[np.bool_], Array]:
        """Which points (3, ...), in mm, lie in the box of planted regions, and the share of each group there."""
        local = points - self.box_start.astype(np.float32).reshape(3, *[1] * (points.ndim - 1))
        last = np.asarray(self.regions.shape[1:]).reshape(local.shape[:1] + (1,) * (local.ndim - 1)) - 1
        inside: NDArray[np.bool_] = np.all((local >= 0) & (local <= last), axis=0)
        selected = local[:, inside]
        return inside, np.stack([sample(region, selected) for region in self.regions])


def reference_digests() -> dict[str, str]:
    """Digests of the template and atlas of the cohort."""
    template = load_template(1.0)
    return {"template": template.source_digest, "atlas": load_atlas(ATLAS, template.grid).source_digest}


@functools.cache
def reference_anatomy() -> ReferenceAnatomy:
    """Read template and atlas and prepare the disease; the same for every person, made once per process."""
    template = load_template(1.0)
    atlas = load_atlas(ATLAS, template.grid)
    numbers = [atlas.regions.groups[name] for name in (*(change.group for change in CHANGES), DIMORPHIC_GROUP)]
    labelled = np.isin(atlas.labels, [number for group in numbers for number in group])
    (part,) = ndimage.find_objects(labelled.astype(np.uint8))
    start = np.array([max(side.start - 4, 0) for side in part])
    box = tuple(slice(a, min(side.stop + 4, n)) for a, side, n in zip(start, part, labelled.shape, strict=True))
    inside = atlas.labels[box]
    white_matter = float(np.percentile(template.t1w[template.brain_mask], 90))
    t1w = _antialias(template.t1w / np.float32(white_matter))
    ventricles = np.isin(atlas.labels, atlas.regions.groups["Lateral ventricle"])
    coarse = np.stack([coarse_share(np.isin(atlas.labels, group)) for group in numbers])
    brain = coarse_share(template.brain_mask)
    dimorphism = [0.0] * len(CHANGES) + [DIMORPHIC_LOG_RATIO / 2]
    return ReferenceAnatomy(
        origin=template.grid.affine[:3, 3].copy(),
        t1w=t1w,
        fluid=float(np.median(t1w[ventricles])),
        brain=template.brain_mask,
        box_start=start,
        regions=np.stack([_antialias(np.isin(inside, group)) for group in numbers]),
        velocities=resizing_velocities(coarse[:-1], brain, [change.log_size for change in CHANGES]),
        sex_velocity=resizing_velocities(coarse, brain, dimorphism).sum(axis=0),
    )


def resizing_velocities(regions: Array, brain: Array, log_sizes: Sequence[float]) -> Array:
    """Velocity field of each group such that, together, they change each region's size as planned.

    A group's field has constant divergence in its region, smoothed, and the opposite total spread over the rest of the
    brain, so that the brain as a whole keeps its size. Smoothing lets divergence leak between neighbours: the
    amplitudes solve the linear system that makes the mean divergence of every region its planned log size (0 keeps its
    size), and one step of Newton's method corrects for the deformation not being infinitesimal. `regions`, (groups, X,
    Y, Z), and `brain` hold the share of each 3 mm voxel.
    """
    rest = np.clip(brain - regions.sum(axis=0), 0, None)
    divergences = []
    for region in regions:
        source = smooth_on_torus(region, SPACING_MM, DEFORMATION_SMOOTHNESS_MM)
        divergences.append(source - rest * (source.sum() / rest.sum()))
    leak = np.array([[np.average(source, weights=region) for source in divergences] for region in regions])
    fields = np.stack([velocity_with_divergence(source, SPACING_MM) for source in divergences])
    planned = np.asarray(log_sizes, np.float64)
    amplitudes = np.linalg.solve(leak, planned)
    together = exponential(np.tensordot(amplitudes.astype(np.float32), fields, axes=1), SPACING_MM)
    growth = jacobian_determinant(together, SPACING_MM)
    reached = np.log([np.average(growth, weights=region) for region in regions])
    amplitudes += np.linalg.solve(leak, planned - reached)
    return amplitudes.astype(np.float32)[:, None, None, None, None] * fields


@dataclass(frozen=True, eq=False)
class PersonShape:
    """Individual anatomy of a person, the same at every visit."""

    # (3, X, Y, Z): from the person's brain, brought to reference size, to the healthy reference, the sex difference
    # included: mm, on the 3 mm grid
    inverse_warp: Array
    scale: NDArray[np.float64]  # (3,): size relative to the reference along right-left, front-back, up-down


def draw_shape(rng: np.random.Generator, sex: str, reference: ReferenceAnatomy) -> PersonShape:
    """Draw a person's shape; the draws do not depend on sex.

    The template brain is larger than most; people have 0.93 of its length on average (0.80 of its volume), men a
    little more than women, with a standard deviation of 3 %.
    """
    size = (0.945 if sex == "M" else 0.915) * (1 + 0.03 * np.clip(rng.standard_normal(), -2, 2))
    scale = size * (1 + 0.015 * np.clip(rng.standard_normal(3), -2, 2))
    x, y, z = reference.sex_velocity.shape[1:]
    velocity = random_velocity(rng, (x, y, z), SPACING_MM, WARP_SMOOTHNESS_MM, WARP_RMS_MM)
    of_sex = exponential(-reference.sex_velocity if sex == "M" else reference.sex_velocity, SPACING_MM)
    return PersonShape(compose(of_sex, exponential(-velocity, SPACING_MM), SPACING_MM), scale)


def pull_back(reference: ReferenceAnatomy, person: PersonShape, severities: tuple[float, ...]) -> Array:
    """Displacement (mm, 3 mm grid) from a person's brain at a visit to the reference point that fills it."""
    disease = exponential(-reference.disease_velocity(severities), SPACING_MM)
    return compose(disease, person.inverse_warp, SPACING_MM)


def _antialias(image: NDArray[Any]) -> Array:
    """Smooth an image so that it can be sampled at about 2 mm without aliasing; keeps the total."""
    smooth: Array = ndimage.gaussian_filter(image.astype(np.float32), ANTIALIASING_MM)
    return smooth


def coarse_share(mask: NDArray[np.bool_]) -> Array:
    """Share of each 3 mm cell that a 1 mm mask fills, on the grid whose voxel n sits on reference voxel 3n."""
    half = SPACING_MM // 2
    cells = [-(-(n + half) // SPACING_MM) for n in mask.shape]
    padded = np.zeros([n * SPACING_MM for n in cells], np.float32)
    padded[tuple(slice(half, n + half) for n in mask.shape)] = mask
    blocks = padded.reshape([size for n in cells for size in (n, SPACING_MM)])
    share: Array = blocks.mean(axis=(1, 3, 5))
    return share


Array = NDArray[np.float32]

FIRST_STEP_VOXELS = 0.25
"""Largest displacement of the first step of scaling and squaring."""


def sample(image: NDArray[np.generic], points: Array) -> Array:
    """Trilinear interpolation at voxel coordinates, (3, ...); edge values outside."""
    places = np.ascontiguousarray(points.reshape(3, -1))
    values: Array = _trilinear(np.ascontiguousarray(image), places).reshape(points.shape[1:])
    return values


@numba.njit(cache=True, nogil=True)
def _trilinear(image: Any, points: Any) -> Any:
    """`sample` of points of shape (3, n); weights and sums are rounded as in scipy."""
    values = np.empty(points.shape[1], np.float32)
    last = (image.shape[0] - 1, image.shape[1] - 1, image.shape[2] - 1)
    for n in range(points.shape[1]):
        x = min(max(np.float64(points[0, n]), 0.0), np.float64(last[0]))
        y = min(max(np.float64(points[1, n]), 0.0), np.float64(last[1]))
        z = min(max(np.float64(points[2, n]), 0.0), np.float64(last[2]))
        i, j, k = int(x), int(y), int(z)
        total = 0.0
        for a in range(2):
            u = 1.0 - (1.0 - (x - i)) if a else 1.0 - (x - i)
            for b in range(2):
                v = 1.0 - (1.0 - (y - j)) if b else 1.0 - (y - j)
                for c in range(2):
                    w = 1.0 - (1.0 - (z - k)) if c else 1.0 - (z - k)
                    value = np.float64(image[min(i + a, last[0]), min(j + b, last[1]), min(k + c, last[2])])
                    total += value * u * v * w
        values[n] = total
    return values


def compose(outer: Array, inner: Array, spacing_mm: float) -> Array:
    """Displacement of ``x -> outer(inner(x))``."""
    points = voxel_indices(inner.shape[1:]) + inner / np.float32(spacing_mm)
    return inner + np.stack([sample(component, points) for component in outer])


def voxel_indices(shape: tuple[int, ...]) -> Array:
    return np.indices(shape, dtype=np.float32)


def exponential(velocity: Array, spacing_mm: float) -> Array:
    """Displacement after flowing along a stationary velocity field, (3, X, Y, Z) in mm per unit time, for unit time."""
    largest = float(np.sqrt(np.square(velocity).sum(axis=0)).max()) / spacing_mm
    squarings = 0 if largest == 0 else max(0, int(np.ceil(np.log2(largest / FIRST_STEP_VOXELS))))
    displacement = (velocity / 2.0**squarings).astype(np.float32)
    for _ in range(squarings):
        displacement = compose(displacement, displacement, spacing_mm)
    return displacement


def jacobian_determinant(displacement: Array, spacing_mm: float) -> Array:
    """Determinant of the derivative of ``x -> x + u(x)``: local volume after, per volume before."""
    derivative = np.stack([np.stack(np.gradient(component, spacing_mm)) for component in displacement])
    derivative += np.eye(3, dtype=np.float32)[:, :, None, None, None]
    determinant: Array = np.linalg.det(np.moveaxis(derivative, (0, 1), (-2, -1))).astype(np.float32)
    return determinant


def random_velocity(
    rng: np.random.Generator, shape: tuple[int, int, int], spacing_mm: float, smoothness_mm: float, rms_mm: float
) -> Array:
    """Smooth random velocity field: white noise, smoothed by a Gaussian and scaled to `rms_mm` per component."""
    noise = rng.standard_normal((3, *shape), dtype=np.float32)
    smooth = np.stack([ndimage.gaussian_filter(part, smoothness_mm / spacing_mm, mode="wrap") for part in noise])
    smooth *= rms_mm / np.sqrt(np.square(smooth).mean(axis=(1, 2, 3), keepdims=True))
    velocity: Array = smooth
    return velocity


def smooth_on_torus(image: Array, spacing_mm: float, sigma_mm: float) -> Array:
    """Gaussian smoothing on the torus, as `velocity_with_divergence` assumes."""
    result: Array = ndimage.gaussian_filter(image, sigma_mm / spacing_mm, mode="wrap")
    return result


def velocity_with_divergence(divergence: Array, spacing_mm: float) -> Array:
    """Curl-free velocity field (3, X, Y, Z) of a divergence per unit time, by Fourier solution of Poisson's equation.

    ``v = grad(phi)`` with ``laplace(phi) = divergence``; the mean divergence is subtracted, since it must be 0 on a
    torus.
    """
    shape = divergence.shape
    frequencies = [2 * np.pi * fft.fftfreq(n, spacing_mm) for n in shape[:2]]
    frequencies.append(2 * np.pi * fft.rfftfreq(shape[2], spacing_mm))
    for axis, n in enumerate(shape):
        if n % 2 == 0:  # the derivative of the Nyquist wave has no real representation
            frequencies[axis][n // 2] = 0
    k = np.meshgrid(*frequencies, indexing="ij")
    square = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
    potential = -fft.rfftn(divergence.astype(np.float64)) / np.where(square == 0, np.inf, square)
    return np.stack([fft.irfftn(1j * wave * potential, shape) for wave in k]).astype(np.float32)
