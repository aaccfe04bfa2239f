"""The untouched region whose intensity goes most with that of planted ones, over people: what a map may confuse."""

from __future__ import annotations

from collections.abc import Sequence

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.labels import Atlas
from heatlas.pipeline.regions.audit import FLUID, VESSEL
from heatlas.pipeline.run.layout.scan_files import ScanFiles

FEWEST_VOXELS = 50


def correlated_group(
    files: Sequence[ScanFiles], atlas: Atlas, planted: Sequence[str], others: Sequence[str]
) -> str | None:
    """Name of the group, among those of tissue that are neither planted nor in `others`; None if there is none.

    Parameters
    ----------
    files : sequence of ScanFiles
        Scans before anything is planted; an image is relative to the mean of its brain.
    """
    fluid = {region.group for region in atlas.regions.regions if region.tissue in (FLUID, VESSEL)}
    names = list(atlas.regions.groups)
    places = [np.flatnonzero(np.isin(atlas.labels, numbers)) for numbers in atlas.regions.groups.values()]
    means = np.array([_means(one, places) for one in files])
    return strongest(means, names, planted, {*others, *fluid, *_small(names, places)})


def _small(names: Sequence[str], places: Sequence[NDArray[np.intp]]) -> set[str]:
    return {name for name, own in zip(names, places, strict=True) if len(own) < FEWEST_VOXELS}


def _means(files: ScanFiles, places: Sequence[NDArray[np.intp]]) -> list[float]:
    values = np.asarray(nib.nifti1.Nifti1Image.from_filename(files.t1w).dataobj, dtype=np.float32).ravel()
    whole = float(values[values > 0].mean())
    return [float(values[own].mean()) / whole if len(own) else float("nan") for own in places]


def strongest(
    means: NDArray[np.float64], names: Sequence[str], planted: Sequence[str], left_out: set[str]
) -> str | None:
    """The group whose column correlates most with the mean of the planted columns.

    Examples
    --------
    >>> means = np.array([[1.0, 1.1, 5.0], [2.0, 1.9, 1.0], [3.0, 3.2, 2.0]])
    >>> strongest(means, ["a", "b", "c"], ["a"], set())
    'b'
    """
    target = means[:, np.isin(names, planted)].mean(axis=1)
    best, found = -np.inf, None
    for name, column in zip(names, means.T, strict=True):
        if name in planted or name in left_out or not np.isfinite(column).all() or np.ptp(column) == 0:
            continue
        correlation = float(np.corrcoef(column, target)[0, 1])
        if correlation > best:
            best, found = correlation, name
    return found
