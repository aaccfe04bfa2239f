"""Labels drawn on a scan, carried to template space, and how far they overlap: a test of a registration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from heatlas.atlases.spaces import Grid
from heatlas.pipeline.registration.ants_transform import Transforms, Volume, resample
from heatlas.pipeline.registration.images.t1w import load_labels
from heatlas.pipeline.run.layout.scan_files import ScanFiles


def warp_labels(labels_path: Path, files: ScanFiles, grid: Grid) -> np.ndarray:
    """A label image in the space of a scan, on a grid in template space, int32; 0 outside the image."""
    labels, affine = load_labels(labels_path)
    transforms = Transforms(files.affine_transform, files.warp, files.inverse_warp)
    # Labels travel as float32, which holds whole numbers up to 2**24 exactly.
    warped = resample(Volume(labels, affine), transforms, grid.shape, grid.affine, "genericLabel")
    return np.asarray(np.rint(warped), dtype=np.int32)


def dice_per_label(first: np.ndarray, second: np.ndarray, labels: Iterable[int]) -> dict[int, float]:
    """Dice coefficient 2 |A and B| / (|A| + |B|) of each label (Dice 1945, doi:10.2307/1932409)."""
    parts = {label: (first == label, second == label) for label in labels}
    return {label: float(2 * (a & b).sum() / (a.sum() + b.sum())) for label, (a, b) in parts.items()}
