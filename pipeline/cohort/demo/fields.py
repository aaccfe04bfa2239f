"""Deformations as displacement fields on a regular grid: random, divergence-prescribed, integrated, composed.

A field is an array ``(3, X, Y, Z)`` in mm on a grid of equal spacing whose axes run along the axes of space; ``u`` maps
the point ``x`` to ``x + u(x)``. A stationary velocity field ``v`` is integrated over unit time by scaling and squaring
(Arsigny et al. 2006, doi:10.1007/11866565_113), which gives a diffeomorphism whose inverse is the integral of ``-v``.

Registration libraries integrate fields only inside an optimiser or a network, hence this module. Interpolation is
compiled by numba because `scipy.ndimage.map_coordinates` took nine tenths of the time; results are equal to the last
bit of single precision.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

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
    smooth = np.stack([ndimage.gaussian_filter(one, smoothness_mm / spacing_mm, mode="wrap") for one in noise])
    smooth *= rms_mm / np.sqrt(np.square(smooth).mean(axis=(1, 2, 3), keepdims=True))
    velocity: Array = smooth
    return velocity


def smoothed(image: Array, spacing_mm: float, sigma_mm: float) -> Array:
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
    return np.stack([fft.irfftn(1j * one * potential, shape) for one in k]).astype(np.float32)
