"""Scores of one map of one scan: where it lies, and how much it is like the map of the true network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import structural_similarity

from heatlas.pipeline.evaluation.scores.hits import auprc, auroc, is_undefined
from heatlas.pipeline.evaluation.scores.overlap import energy_share, ratio_of
from heatlas.pipeline.evaluation.scores.rank_correlation import rank_correlation
from heatlas.pipeline.regions.audit import RIM_MM, within_reach

Flags = NDArray[np.bool_]
Values = NDArray[np.float32]

MAP_ROW = {
    "undefined": "true where the map holds NaN or infinity, or is 0 in the whole brain",
    "no_positive": "1 where no value in the brain is positive, so that shares of positive values are n/a, else 0",
    "auroc_voxels": "Probability that a voxel of the true regions has a larger value than another voxel of the brain",
    "auprc_voxels": "Average precision of the voxels of the true regions among those of the brain",
    "energy": "Share of the positive values in the brain that lies in the true regions",
    "energy_small": "As energy, for the half of the true regions (sides apart) with the fewest voxels in this brain; "
    "the middle one of an odd number is in neither half. By chance: the row of the map uniform",
    "energy_large": "As energy_small, for those with the most voxels",
    "rim": "Share of |values| at the rim of the brain over the rim's share of voxels; 1 is even",
    "outside": "Share of |values| outside the brain",
    "marker": "Mean |value| in the bright spot outside the brain over that in the true regions, where a scan has one",
    "spearman_real": "Rank correlation over the voxels of the brain with the map of the true network, without "
    "its sign: a map and its negative show the same places",
    "ssim_real": "Structural similarity (7 voxels) with the map of the true network, both scaled to their largest "
    "|value|",
}
"""Columns that `map_row` fills."""


@dataclass(frozen=True, eq=False)
class ScanMasks:
    """Parts of what a network sees of a scan, all of its shape (D, H, W).

    Parameters
    ----------
    brain : array of bool
        The scan's own mask.
    truth : array of bool or None
        The true regions, inside the brain; None where none of them, or nothing else, lies in this brain.
    rim : array of bool
        Within 3 mm of the surface of the brain, on both sides.
    marker : array of bool
        A bright spot outside the brain that the scan has, or nothing.
    halves : tuple of two arrays of bool, or None
        The smaller and the larger half of the true regions; None without truth, or of one region.
    """

    brain: Flags
    truth: Flags | None
    rim: Flags
    marker: Flags
    halves: tuple[Flags, Flags] | None = None

    @classmethod
    def of(
        cls, mask: Flags, labels: NDArray[np.int64], truth: Sequence[int], voxel_mm: float, marker: Flags | None = None
    ) -> ScanMasks:
        """Cut by the scan's mask, in which a marker is, and by the labels of true regions."""
        marker = np.zeros_like(mask) if marker is None else marker
        brain, reach = mask & ~marker, RIM_MM / voxel_mm + 0.5
        rim = (brain & within_reach(~brain, reach)) | (~brain & within_reach(brain, reach))
        found = np.isin(labels, list(truth)) & brain
        ranked = found.any() and (brain & ~found).any()  # else there is nothing to find, or nothing else
        return cls(brain, found if ranked else None, rim, marker, _halves(labels, found) if ranked else None)


def _halves(labels: NDArray[np.int64], truth: Flags) -> tuple[Flags, Flags] | None:
    """The smaller and the larger half of the labels in `truth`; of equal ones those with the lower numbers first."""
    numbers, counts = np.unique(labels[truth], return_counts=True)
    numbers = numbers[np.argsort(counts, kind="stable")]
    half = len(numbers) // 2
    if not half:
        return None
    small, large = (np.isin(labels, some) & truth for some in (numbers[:half], numbers[-half:]))
    return small, large


def map_row(values: Values | None, places: ScanMasks, of_real: Values | None, structure: bool) -> dict[str, object]:
    """All of `MAP_ROW` of one map; NaN where a score is not defined.

    Parameters
    ----------
    values : array, shape (D, H, W), or None
        None for a map that could not be made.
    places : ScanMasks
    of_real : array of the same shape, or None
        Map of the true network by the same method.
    structure : bool
        Whether the structural similarity, which takes seconds, is wanted.
    """
    row: dict[str, object] = dict.fromkeys(MAP_ROW, float("nan"))
    row["undefined"] = values is None or is_undefined(values[places.brain])
    if values is None or row["undefined"]:
        return row
    inside = values[places.brain]
    row["no_positive"] = float(not (inside > 0).any())
    if places.truth is not None:
        truth = places.truth[places.brain]
        row |= {"auroc_voxels": auroc(inside, truth), "auprc_voxels": auprc(inside, truth)}
        row["energy"] = energy_share(inside, truth)
    for name, half in zip(("energy_small", "energy_large"), places.halves or (), strict=False):
        row[name] = energy_share(inside, half[places.brain])
    magnitude = np.abs(values)
    around = places.brain | places.rim
    share = float(magnitude[places.rim].sum(dtype=np.float64) / magnitude[around].sum(dtype=np.float64))
    row["rim"] = share / (places.rim.sum() / around.sum()) if places.rim.any() else float("nan")
    row["outside"] = float(magnitude[~places.brain].sum(dtype=np.float64) / magnitude.sum(dtype=np.float64))
    if places.truth is not None and places.marker.any():
        in_truth = float(magnitude[places.truth].mean(dtype=np.float64))
        row["marker"] = ratio_of(float(magnitude[places.marker].mean(dtype=np.float64)), in_truth)
    if of_real is not None:
        row["spearman_real"] = abs(rank_correlation(inside, of_real[places.brain]))
        row["ssim_real"] = similarity(values, of_real) if structure else float("nan")
    return row


def similarity(a: Values, b: Values) -> float:
    """Structural similarity of two maps, each scaled to its largest |value|."""
    scaled = [one / np.abs(one).max() for one in (a, b)]
    if min(a.shape) < 7:
        return float("nan")
    return float(structural_similarity(*scaled, data_range=2.0))  # type: ignore[no-untyped-call]
