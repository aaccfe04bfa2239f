"""Images and maps of scans as columns of voxels: smoothed, on a grid coarse enough to lose nothing by it.

A volume smoothed to 8 mm holds next to nothing finer than 4 mm, so voxels of half the smoothing stand for it: the tests
cost the same memory and time for 1 mm as for 4 mm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import template_on
from heatlas.pipeline.models.inputs import NetworkInput, read_network_volume
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.template_name import DEFAULT_TEMPLATE
from heatlas.pipeline.statistics.arrays import Flags
from heatlas.pipeline.statistics.data.image_measures import INTENSITY, LOG_JACOBIAN, volume_change
from heatlas.pipeline.training.baselines.images import standardised

FWHM_PER_SD = float(np.sqrt(8 * np.log(2)))


@dataclass(frozen=True, eq=False)
class Voxels:
    """Which voxels are tested, and how values come to them.

    Parameters
    ----------
    fwhm_mm : float
        Width of the smoothing; 0 for none.
    step : int
        Every which voxel of the template grid is taken.
    grid : Grid
        Grid of the voxels that are taken.
    mask : array of bool
        On this grid: the brain of the template, as far as the network sees it.
    """

    spec: NetworkInput
    fwhm_mm: float
    step: int
    grid: Grid
    mask: Flags

    @classmethod
    def of(cls, spec: NetworkInput, fwhm_mm: float, template: str = DEFAULT_TEMPLATE) -> Voxels:
        fine, step = spec.template_grid, max(round(fwhm_mm / 2 / spec.resolution_mm), 1)
        seen = np.ones(spec.shape, bool)
        brain = template_on(spec.template_grid, template).brain_mask.astype(bool) & _whole(seen, spec).astype(bool)
        mask = np.ascontiguousarray(brain[::step, ::step, ::step])
        affine = fine.affine.copy()
        affine[:3, :3] *= step
        return cls(spec, fwhm_mm, step, Grid((mask.shape[0], mask.shape[1], mask.shape[2]), affine), mask)

    def sampled(self, volume: NDArray[np.float32]) -> NDArray[np.float32]:
        """Smoothed values of a volume on the template grid in the mask, shape (voxels,)."""
        sd = self.fwhm_mm / FWHM_PER_SD / self.spec.resolution_mm
        wide = gaussian_filter(volume.astype(np.float32), sd, mode="constant") if sd > 0 else volume
        return np.asarray(wide[:: self.step, :: self.step, :: self.step][self.mask], np.float32)


def voxels_of_scan(files: ScanFiles, source: str, voxels: Voxels) -> NDArray[np.float32] | None:
    """Intensity, log-Jacobian or a map of a scan, by its name; None for a log-Jacobian that there is not.

    BadInputError if a file cannot be read.
    """
    spec = voxels.spec
    if source == INTENSITY:
        return voxels.sampled(_whole(standardised(read_network_volume(files, spec)), spec))
    if source == LOG_JACOBIAN:
        change = volume_change(files, spec)
        return None if change is None else voxels.sampled(_whole(change, spec))
    return voxels.sampled(np.asarray(read_map(files.relevance_map(source), spec.template_grid), np.float32))


def _whole(values: NDArray[np.generic], spec: NetworkInput) -> NDArray[np.float32]:
    pasted = values if spec.box is None else spec.box.paste(values, spec.template_grid.shape)
    return np.asarray(pasted, np.float32)
