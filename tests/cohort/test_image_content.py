"""Voxels that no scan has: maps of labels, tissues and statistics, and two bodies in one image."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage

from heatlas.pipeline.cohort.images.content import content_problem, share_alike

SIDE = 48
X, Y, Z = np.indices((SIDE,) * 3) - (SIDE - 1) / 2
RADIUS = np.sqrt(X**2 + Y**2 + Z**2)
DRAW = np.random.default_rng(0)


def _brain(radius: np.ndarray = RADIUS) -> np.ndarray:
    tissue = np.select([radius < 6, radius < 14, radius < 20], [200.0, 1000.0, 650.0], 0.0)
    noisy = scipy.ndimage.gaussian_filter(tissue, 0.7) + DRAW.normal(0, 25, radius.shape)
    return np.where(radius < 20, np.maximum(noisy, 1), 0).astype(np.float32)


BRAIN = _brain()
BESIDE = np.concatenate([BRAIN, BRAIN])


@pytest.mark.parametrize(
    "scan",
    [
        BRAIN,
        np.where(BRAIN > 0, BRAIN, np.abs(DRAW.normal(0, 20, BRAIN.shape))),  # a head: noise around it
        np.rint(255 * BRAIN / BRAIN.max()).astype(np.uint8),
        np.rint(BRAIN).astype(np.int16).repeat(2, 0),  # slices that were doubled
        np.minimum(BRAIN, np.percentile(BRAIN[BRAIN > 0], 98)),
        BRAIN + (BRAIN == 0) * DRAW.normal(0, 10, BRAIN.shape),  # what interpolation leaves
        BRAIN + 10,  # a background that is not 0
        BRAIN + 900 * ((RADIUS > 21) & (X > 22) & (Y > 0)),  # a stray body
    ],
    ids=["brain", "head", "8 bits", "doubled slices", "saturated top", "undershoot", "background of 10", "stray body"],
)
def test_what_a_scan_may_hold_is_no_problem(scan: np.ndarray) -> None:
    assert content_problem(scan) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.where(RADIUS < 20, 1 + (X // 6) % 7 + 7 * ((Y // 6) % 7), 0), "as in a label map"),
        (scipy.ndimage.gaussian_filter((RADIUS < 16).astype(np.float32), 1) * (RADIUS < 20), "probability"),
        (np.where(BRAIN > 0, BRAIN - BRAIN[BRAIN > 0].mean(), 0), "negative"),
        (-BRAIN, "negative"),
        (np.where(BRAIN > 900, BRAIN - 2**11, BRAIN), "negative"),
        (BESIDE, "two separate bodies"),
    ],
    ids=["labels", "probability", "less its mean", "sign", "wrapped", "two brains"],
)
def test_what_no_scan_holds_is_said(values: np.ndarray, said: str) -> None:
    problem = content_problem(values)

    assert said in str(problem)


def test_neighbours_alike_are_counted_by_hand() -> None:
    values = np.zeros((2, 2, 2), dtype=int)
    values[0] = 3  # four neighbours alike in the first plane, none of four with the zeros of the second

    assert share_alike(values, values != 0) == pytest.approx(4 / 8)
