"""Test-retest stability: differences between two scans of one person.

The anatomy of an adult hardly changes between two scans on a day, so differences come from the measurement: scanner,
brain extraction, registration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.registration.quality.measures import correlation


@dataclass(frozen=True)
class VolumeStability:
    """Agreement of the region volumes of two scans."""

    # Pearson correlation over regions of the log volume relative to the template's. Volumes themselves always
    # correlate, since large regions are large in everyone
    correlation: float
    mean_difference_percent: float  # mean over regions of the absolute difference, in percent of the mean of the two
    regions: int  # number of regions with a volume in both


def volume_stability(
    first: Mapping[int, float], second: Mapping[int, float], template: Mapping[int, float]
) -> VolumeStability:
    """Compare the Jacobian-weighted volumes (mm³ by region) of two scans; ValueError if they share no region.

    >>> template = {1: 100.0, 2: 200.0, 3: 400.0}
    >>> volume_stability({1: 90.0, 2: 220.0, 3: 400.0}, {1: 99.0, 2: 242.0, 3: 440.0}, template)
    VolumeStability(correlation=1.0, mean_difference_percent=9.523809523809524, regions=3)
    """
    shared = [n for n in first if n in second and min(first[n], second[n], template.get(n, 0.0)) > 0]
    if not shared:
        raise ValueError("no region has a volume in both scans")
    a, b, t = (np.array([volumes[n] for n in shared]) for volumes in (first, second, template))
    difference = 100 * np.abs(a - b) / ((a + b) / 2)
    alike = correlation(np.log(a / t), np.log(b / t))
    return VolumeStability(round(alike, 12), float(difference.mean()), len(shared))
