"""Clusters of voxels that differ: their peaks, by nilearn, and the regions they lie in."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import nibabel as nib
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.ndimage import label

from heatlas.atlases.spaces import Grid
from heatlas.pipeline.statistics.arrays import Floats

NAMED = 3
"""Regions named of a cluster."""
SMALLEST_SHARE = 0.05
NOWHERE = "no region"


def cluster_table(
    t: Floats, significant: NDArray[np.bool_], grid: Grid, labels: NDArray[np.integer], groups: Mapping[int, str]
) -> pd.DataFrame:
    """One row per cluster (voxels that share a face, of one sign) and further peak of it, at least 8 mm apart.

    Gives ``cluster`` (1, 1a ...), ``x_mm``, ``y_mm``, ``z_mm``, ``t`` at the peak, ``volume_mm3`` of the cluster (NaN
    for further peaks), ``group`` at the peak and ``regions`` of the cluster with their shares. Those that are higher in
    the positive class come first, then by the size of t.

    Parameters
    ----------
    t : array, shape (X, Y, Z)
    significant : array of bool, shape (X, Y, Z)
    labels : array of int, shape (X, Y, Z)
        Of the atlas, on the same grid.
    groups : mapping of int to str
        Bilateral group of each label.
    """
    columns = ["cluster", "x_mm", "y_mm", "z_mm", "t", "volume_mm3", "group", "regions"]
    kept = np.where(significant, t, 0.0)
    if not kept.any():
        return pd.DataFrame(columns=columns)
    from nilearn.reporting import get_clusters_table  # late: it takes a second

    image = nib.Nifti1Image(kept, grid.affine)  # type: ignore[no-untyped-call]
    least = float(np.abs(kept[kept != 0]).min())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No clusters found")  # of one sign
        found = get_clusters_table(image, stat_threshold=least * (1 - 1e-6), two_sided=True)
    bodies = [label(sign * kept > 0)[0] for sign in (1, -1)]
    back, rows, order = np.linalg.inv(grid.affine), [], 0
    for row in found.to_dict("records"):
        place = tuple(np.round(back[:3, :3] @ [row["X"], row["Y"], row["Z"]] + back[:3, 3]).astype(int))
        body = next(one == one[place] for one in bodies if one[place])
        size = pd.to_numeric(row["Cluster Size (mm3)"], errors="coerce")
        at = groups.get(int(labels[place]), NOWHERE)
        whole = _regions(labels[body], groups) if np.isfinite(size) else None
        order += bool(np.isfinite(size))  # nilearn leaves numbers out between the signs
        name = f"{order}{str(row['Cluster ID']).lstrip('0123456789')}"
        rows.append([name, row["X"], row["Y"], row["Z"], row["Peak Stat"], size, at, whole])
    return pd.DataFrame(rows, columns=columns)


def _regions(labels: NDArray[np.integer], groups: Mapping[int, str]) -> str:
    """The largest regions of a cluster with their shares of it.

    Examples
    --------
    >>> _regions(np.array([1, 1, 1, 2]), {1: "Hippocampus", 2: "Amygdala"})
    'Hippocampus 75 %, Amygdala 25 %'
    """
    names = pd.Series([groups.get(int(one), NOWHERE) for one in labels.ravel()])
    shares = names.value_counts(normalize=True).head(NAMED)
    return ", ".join(
        f"{name} {share:.0%}".replace("%", " %") for name, share in shares.items() if share >= SMALLEST_SHARE
    )
