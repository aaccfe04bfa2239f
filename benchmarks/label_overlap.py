"""Overlap of two label images, label by label."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def dice_per_label(first: np.ndarray, second: np.ndarray, labels: Iterable[int]) -> dict[int, float]:
    """Dice coefficient 2 |A and B| / (|A| + |B|) of each label (Dice 1945, doi:10.2307/1932409).

    Parameters
    ----------
    first, second : numpy.ndarray
        Whole numbers >= 0 on the same grid.
    labels : iterable of int
        Labels to compare; the result keeps their order.

    Returns
    -------
    dict of int to float
        NaN where a label occurs in neither image.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    >>> dice_per_label(np.array([1, 1, 2, 0]), np.array([1, 2, 2, 0]), [1, 2, 3])
    {1: 0.6666666666666666, 2: 0.6666666666666666, 3: nan}
    """
    if first.shape != second.shape:
        raise ValueError(f"label images of different shape: {first.shape} and {second.shape}")
    wanted = [int(label) for label in labels]
    size = max([0, *wanted, int(first.max(initial=0)), int(second.max(initial=0))]) + 1
    count_first = np.bincount(first.ravel(), minlength=size)
    count_second = np.bincount(second.ravel(), minlength=size)
    count_both = np.bincount(first[first == second].ravel(), minlength=size)
    result = {}
    for label in wanted:
        total = count_first[label] + count_second[label]
        result[label] = float(2 * count_both[label] / total) if total else float("nan")
    return result
