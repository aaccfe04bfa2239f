"""Is a scan like those that a network learned from? Measures of one registered scan, and its place among controls.

A scan is unlike if a measure of it lies more than `FARTHEST` robust standard deviations (1.4826 x median absolute
deviation, and no less than the measure's smallest spread) from the median of the controls, on the bad side, and at
most `AS_FAR` of them lie as far: some controls are failed registrations themselves. Sizes of a head that adults have
are never unlike, since controls may have been scaled alike before. Each control is measured as a scan is, against the
others.
The rule was chosen before a scan was tried. After a first trial `covered` was added, and after a second, of other
images, `dark_ml`, `AS_FAR` (none before), the sizes of adults, and a larger smallest spread of `detail`, since
ordinary images of 1 mm are sharper than those of 2 mm; docs/benchmarks/unlike_images.md says what was tried when.
The place of a scan is p = (b + 1) / (m + 1), where b of m controls lie at least as far on the bad side.

No measure knows anatomy: a lesion of another place or size, a disease that the network has not seen, or a child's brain
with the size and contrast of an adult's may well be alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.ndimage

from heatlas.pipeline.registration.quality.measures import correlation
from heatlas.pipeline.registration.quality.outliers import MEASURES, ROBUST_SD, QualityMeasure

FARTHEST = 4.0
"""Robust standard deviations from the median of the controls beyond which a scan may be unlike them."""
AS_FAR = 0.02
"""Share of the controls that may lie as far as a scan that is unlike."""
FEWEST = 10
"""With fewer controls nothing is said."""
_OF_REGISTRATION = {measure.column: measure for measure in MEASURES}
LIKENESS = (
    QualityMeasure("dice", "overlap of its brain with that of the template", "low", 0.02),
    QualityMeasure("covered", "share of the template's brain that it fills", "low", 0.02),
    QualityMeasure("affine_residual_mm", "deformation onto the template, in mm", "high", 0.5),
    _OF_REGISTRATION["scale"],
    _OF_REGISTRATION["dark_ml"],
    QualityMeasure("template_correlation", "correlation with the template", "low", 0.025),
    QualityMeasure("white_minus_grey", "contrast of white and grey matter", "both", 0.02),
    QualityMeasure("grey_minus_fluid", "contrast of grey matter and fluid", "both", 0.05),
    QualityMeasure("bright_end", "brightness of the brightest voxels", "high", 0.1),
    QualityMeasure("detail", "fine detail, of blur or noise", "both", 0.05),
    QualityMeasure("region_distance", "intensities of the regions", "high", 0.3),
    QualityMeasure("feature_distance", "features of the networks", "high", 0.1),
    QualityMeasure("side", "asymmetry of left and right", "low", 0.0, low=0.05),
    QualityMeasure("one_sided_ml", "part in which left and right differ (ml)", "high", 0.0, high=9.0),
    QualityMeasure("missing_ml", "part of the brain that is 0 (ml)", "high", 0.0, high=40.0),
    QualityMeasure("enclosed_ml", "dark part enclosed by white matter (ml)", "high", 0.0, high=0.15),
    QualityMeasure("bright_rim", "bright share of the outer 4 mm", "high", 0.0, high=0.25),
    QualityMeasure("bright_air", "bright share of the air beside the head", "high", 0.0, high=0.05),
    QualityMeasure("same_brain", "agreement with another person's brain", "high", 0.0, high=0.6),
)
"""What is compared. `dice`, `affine_residual_mm`, `scale` and `dark_ml` are numbers of the registration, and
`feature_distance` is of `pipeline.explaining.features`. Its smallest spread is a third of that of `region_distance`,
since two thirds of the features of networks of the demo are silent in everyone; nothing else of it was set after a look
at data. The last seven have limits of their own, and `median` and `beyond` are of no control (`.limits`, `.sides`)."""
LIMITED = {measure.column: measure.low if measure.bad == "low" else measure.high for measure in LIKENESS[-7:]}
_WORDS = {measure.column: measure.words for measure in LIKENESS}


@dataclass(frozen=True)
class Anatomy:
    """What images in template space are measured with, all of one shape.

    `template`: brain of the template. `mask`: its brain. `labels`: regions, 0 for none.
    """

    template: np.ndarray
    mask: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Place:
    """A measure of a scan among those of controls.

    `distance`: robust standard deviations from their median, > 0 on the bad side. `beyond`: controls that lie at least
    as far on the bad side, of `controls`. `unlike`: whether the rule is broken.
    """

    measure: str
    value: float
    median: float
    distance: float
    beyond: int
    controls: int
    unlike: bool

    @property
    def p(self) -> float:
        return (self.beyond + 1) / (self.controls + 1)

    @property
    def words(self) -> str:
        return _WORDS[self.measure]


def intensity_measures(values: np.ndarray, brain: np.ndarray, anatomy: Anatomy) -> dict[str, float]:
    """Contrast of tissues and detail of one image in template space; NaN where there is no brain or only one value.

    Tissues are where the template is darkest (a tenth of its brain: fluid), middling (the third to fifth tenth: grey
    matter) and brightest (the last three tenths: white matter). Differences of their medians are in units of the range
    of the middle nine tenths of all voxels, so the scale of the image does not count.
    """
    inside = anatomy.mask & (brain > 0.5)
    covered = float(inside.sum() / max(int(anatomy.mask.sum()), 1))
    names = ("template_correlation", "white_minus_grey", "grey_minus_fluid", "bright_end", "detail")
    if not inside.any() or np.ptp(values[inside]) == 0:
        return {"covered": covered} | dict.fromkeys(names, np.nan)
    seen, expected = values[inside].astype(np.float64), anatomy.template[inside]
    low, middle, high, highest = np.percentile(seen, [5, 50, 95, 99.9])
    unit = (high - low) or np.ptp(seen)
    fluid, from_grey, to_grey, white = np.percentile(anatomy.template[anatomy.mask], [10, 20, 50, 70])
    tissues = (expected <= fluid), (expected > from_grey) & (expected <= to_grey), (expected > white)
    levels = [float(np.median(seen[one])) if one.any() else np.nan for one in tissues]
    away = np.where(inside, values - middle, 0).astype(np.float64)
    weight = scipy.ndimage.uniform_filter(inside.astype(np.float64), 3)
    fine = (away - scipy.ndimage.uniform_filter(away, 3) / np.maximum(weight, 1e-6))[inside]
    return {
        "covered": covered,
        "template_correlation": correlation(seen, expected),
        "white_minus_grey": (levels[2] - levels[1]) / unit,
        "grey_minus_fluid": (levels[1] - levels[0]) / unit,
        "bright_end": float(highest - middle) / unit,
        "detail": float(fine.std() / seen.std()),
    }


def region_means(values: np.ndarray, brain: np.ndarray, anatomy: Anatomy) -> np.ndarray:
    """Mean of each region in robust standard deviations of the image from its median; NaN for a region outside it."""
    inside = anatomy.mask & (brain > 0.5)
    numbers = np.unique(anatomy.labels[anatomy.labels > 0])
    if not inside.any():
        return np.full(len(numbers), np.nan)
    middle = float(np.median(values[inside]))
    spread = ROBUST_SD * float(np.median(np.abs(values[inside] - middle))) or float(values[inside].std()) or 1.0
    there = np.where(inside, anatomy.labels, 0)
    counts = np.bincount(there.ravel(), minlength=numbers.max() + 1)[numbers]
    sums = np.bincount(there.ravel(), ((values - middle) / spread).ravel(), numbers.max() + 1)[numbers]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True)
class Norm:
    """Middle and spread of people in each of many numbers: means of regions, asymmetries at points, or features."""

    middle: np.ndarray
    spread: np.ndarray


def norm_of_regions(controls: np.ndarray) -> Norm:
    """Median and robust standard deviation of `region_means` of controls (N, R); half the median spread at least."""
    middle = np.median(controls, axis=0)
    spread = ROBUST_SD * np.median(np.abs(controls - middle), axis=0)
    known = spread[np.isfinite(spread)]
    return Norm(middle, np.maximum(spread, 0.5 * float(np.median(known)) if known.size else 0.0))


def norm_of_features(features: np.ndarray, classes: Sequence[str]) -> Norm:
    """Mean and standard deviation over people of what a network sees of them (N, F); each class counts the same.

    No spread is below half the root mean square of all: a unit that is silent in these people has none.

    >>> norm = norm_of_features(np.array([[0.0, 7.0], [2.0, 7.0], [4.0, 7.0]]), ["CN", "CN", "AD"])
    >>> norm.middle.tolist(), (norm.spread**2).round(6).tolist()
    ([2.5, 7.0], [2.75, 0.34375])
    """
    counts = Counter(classes)
    weights = np.array([1 / (len(counts) * counts[name]) for name in classes])
    middle = weights @ features
    variance = weights @ (features - middle) ** 2
    return Norm(middle, np.sqrt(np.maximum(variance, variance.mean() / 4)))


def mean_distance(values: np.ndarray, norm: Norm) -> float:
    """Mean over regions, or features, of the distance of a scan (R,) from a norm; NaN if none can be compared.

    >>> norm = norm_of_regions(np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]))
    >>> round(mean_distance(np.array([1.0, 5.0]), norm) * ROBUST_SD, 6)
    1.5
    """
    usable = np.isfinite(values) & np.isfinite(norm.middle) & (norm.spread > 0)
    return float(np.mean(np.abs(values - norm.middle)[usable] / norm.spread[usable])) if usable.any() else float("nan")


def distances_of_controls(controls: np.ndarray) -> list[float]:
    """`mean_distance` of the regions of each control (N, R) from the others."""
    return [mean_distance(controls[row], norm_of_regions(np.delete(controls, row, 0))) for row in range(len(controls))]


def norm_of_sides(asymmetries: Sequence[np.ndarray]) -> Norm:
    """Mean and spread of asymmetries (`sides.asymmetry`) of controls; half the median spread at least."""
    stacked = np.stack(asymmetries).astype(np.float64)
    spread = stacked.std(axis=0)
    return Norm(stacked.mean(axis=0), np.maximum(spread, max(0.5 * float(np.median(spread)), 1e-9)))


def side_of(asymmetry: np.ndarray, norm: Norm) -> float:
    """Correlation of the asymmetry of a scan with the mean one of controls, as `sides.side_scores` among scans."""
    values, others = asymmetry / norm.spread, norm.middle / norm.spread
    length = float(np.linalg.norm(values) * np.linalg.norm(others))
    return float(values @ others) / length if length > 1e-9 else 0.0


def place_among(value: float, controls: Sequence[float], measure: QualityMeasure) -> Place | None:
    """Where a value lies among those of controls; None where either is not known.

    >>> size = QualityMeasure("scale", "", "both", 0.5)
    >>> found = place_among(9.0, [float(one) for one in range(1, 6)], size)
    >>> round(found.distance * ROBUST_SD, 6), found.beyond, found.unlike
    (6.0, 0, True)
    >>> place_among(3.0, [1.0, 2.0, 3.0, 4.0, 5.0], size).beyond
    5
    """
    if (limit := LIMITED.get(measure.column)) is not None and np.isfinite(value):
        far = (1 - value) / (1 - limit) if measure.bad == "low" else value / limit  # of a correlation, or an amount
        return Place(measure.column, float(value), float("nan"), FARTHEST * far, 0, 0, far > 1)
    known = np.asarray([one for one in controls if np.isfinite(one)], dtype=float)
    if not np.isfinite(value) or not len(known):
        return None
    median = float(np.median(known))
    scaled = np.log1p if measure.ratio else np.asarray
    away = scaled(np.append(known, value)) - scaled(median)
    spread = max(ROBUST_SD * float(np.median(np.abs(away[:-1]))), measure.smallest_spread)
    away = _bad_side(away, measure) / spread
    distance, beyond = float(away[-1]), int((away[:-1] >= away[-1] - 1e-12).sum())
    usual = measure.low <= value <= measure.high and np.isfinite(measure.low)
    unlike = distance > FARTHEST and beyond <= AS_FAR * len(known) and not usual
    return Place(measure.column, float(value), median, distance, beyond, len(known), bool(unlike))


def _bad_side(away: np.ndarray, measure: QualityMeasure) -> np.ndarray:
    sides: dict[str, np.ndarray] = {"low": -away, "high": away, "both": np.abs(away)}
    return sides[measure.bad]


def places_among(values: Mapping[str, float], controls: Mapping[str, Sequence[float]]) -> list[Place]:
    """Places of all measures that are known of the scan and of at least `FEWEST` controls, those farthest off first."""
    found = [
        place_among(values.get(measure.column, np.nan), controls.get(measure.column, ()), measure)
        for measure in LIKENESS
    ]
    known = [place for place in found if place is not None and (place.controls >= FEWEST or place.measure in LIMITED)]
    return sorted(known, key=lambda place: (not place.unlike, -place.distance))
