"""Is a scan like the controls? Images that are not what they seem, made from one phantom brain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.ndimage

from heatlas.pipeline.registration.quality.likeness import (
    FEWEST,
    LIKENESS,
    Anatomy,
    distances_of_controls,
    intensity_measures,
    mean_distance,
    norm_of_regions,
    norm_of_sides,
    place_among,
    places_among,
    region_means,
    side_of,
)
from heatlas.pipeline.registration.quality.outliers import QualityMeasure
from heatlas.pipeline.registration.quality.sides import side_scores

SIDE = 32
N_CONTROLS, N_OTHERS = 30, 60


def _phantom() -> Anatomy:
    """A ball of white matter in grey matter, with fluid in the middle and at the rim, and eight octants as regions."""
    x, y, z = np.indices((SIDE,) * 3) - (SIDE - 1) / 2
    radius = np.sqrt(x**2 + (y / 0.9) ** 2 + z**2)
    template = np.select([radius < 3, radius < 9, radius < 13, radius < 14.5], [0.2, 1.0, 0.6, 0.15], 0.0)
    mask = radius < 14.5
    labels = np.where(mask, 1 + (x > 0) + 2 * (y > 0) + 4 * (z > 0), 0)
    smooth = scipy.ndimage.gaussian_filter(template, 0.7) * mask
    return Anatomy(smooth, mask, labels)


ANATOMY = _phantom()


def _brain(seed: int) -> np.ndarray:
    """A person: the phantom with its own shading, noise and a brighter left front, which all have in common."""
    draw = np.random.default_rng(seed)
    shading = 1 + 0.05 * scipy.ndimage.gaussian_filter(draw.normal(size=(SIDE,) * 3), 4) * 30
    brain = ANATOMY.template * shading + draw.normal(0, 0.02, (SIDE,) * 3)
    brain[:14, 18:] *= 1.15
    return np.where(ANATOMY.mask, 100 * brain, 0)


def _asymmetry(image: np.ndarray) -> np.ndarray:
    away = (image - image[::-1])[: SIDE // 2][ANATOMY.mask[: SIDE // 2]]
    away = away - away.mean()
    return away / (np.linalg.norm(away) or 1)


IMAGES = [_brain(seed) for seed in range(N_CONTROLS)]
MEANS = np.stack([region_means(image, ANATOMY.mask, ANATOMY) for image in IMAGES])
ASYMMETRIES = [_asymmetry(image) for image in IMAGES]


def _controls() -> dict[str, list[float]]:
    rows = [intensity_measures(image, ANATOMY.mask, ANATOMY) for image in IMAGES]
    found = {name: [row[name] for row in rows] for name in rows[0]}
    found["region_distance"] = distances_of_controls(MEANS)
    found["side"] = side_scores(ASYMMETRIES).tolist()
    return found


CONTROLS = _controls()


def _unlike(image: np.ndarray) -> set[str]:
    brain = image > 0
    values = intensity_measures(image, brain, ANATOMY)
    values["region_distance"] = mean_distance(region_means(image, brain, ANATOMY), norm_of_regions(MEANS))
    values["side"] = side_of(_asymmetry(image), norm_of_sides(ASYMMETRIES))
    return {place.measure for place in places_among(values, CONTROLS) if place.unlike}


def _noise(image: np.ndarray) -> np.ndarray:
    return np.where(ANATOMY.mask, np.random.default_rng(9).normal(100, 20, image.shape), 0)


def _contrast_agent(image: np.ndarray) -> np.ndarray:
    vessels = image.copy()
    vessels[8:24:4, 8:24, 15:17] = 6 * image.max()
    return vessels


def _truncated(image: np.ndarray) -> np.ndarray:
    return np.where(np.arange(SIDE) < 24, image, 0)


UNLIKE: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "mirrored": ("side", lambda image: image[::-1]),
    "T2": ("template_correlation", lambda image: np.where(ANATOMY.mask, 130 - image, 0)),
    "noise": ("white_minus_grey", _noise),
    "blurred": ("white_minus_grey", lambda image: np.where(ANATOMY.mask, scipy.ndimage.gaussian_filter(image, 2), 0)),
    "label map": ("region_distance", lambda image: ANATOMY.labels * 10.0),
    "upside down": ("region_distance", lambda image: np.where(ANATOMY.mask, image * np.linspace(0.2, 2, SIDE), 0)),
    "truncated": ("covered", _truncated),
    "contrast agent": ("bright_end", _contrast_agent),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_an_image_that_is_not_what_it_seems_is_unlike_by_the_measure_that_is_made_for_it(name: str) -> None:
    measure, changed = UNLIKE[name]

    assert measure in _unlike(changed(_brain(500)))


def test_at_least_95_percent_of_people_who_are_no_controls_are_alike() -> None:
    alike = [not _unlike(_brain(1000 + seed)) for seed in range(N_OTHERS)]

    assert np.mean(alike) >= 0.95


def test_the_scale_of_intensities_does_not_count() -> None:
    image = _brain(3)

    assert intensity_measures(7 * image, ANATOMY.mask, ANATOMY) == pytest.approx(
        intensity_measures(image, ANATOMY.mask, ANATOMY)
    )


def _measure(name: str) -> QualityMeasure:
    return next(measure for measure in LIKENESS if measure.column == name)


def test_a_scan_is_unlike_only_far_from_the_median_and_where_hardly_a_control_lies_as_far() -> None:
    contrast = _measure("white_minus_grey")
    near = [1.0 + 0.01 * step for step in range(-5, 6)]  # robust SD 1.4826 * 0.03 = 0.0445

    inside, beyond, far = (place_among(value, near, contrast) for value in (1.04, 1.10, 1.19))
    one_of_twelve = place_among(1.19, [*near, 0.8], contrast)
    two_of_112 = place_among(1.19, [*near * 10, 0.8, 0.8], contrast)

    assert inside is not None
    assert beyond is not None
    assert far is not None
    assert one_of_twelve is not None
    assert two_of_112 is not None
    places = (inside, beyond, far, one_of_twelve, two_of_112)
    assert [place.beyond for place in places] == [4, 0, 0, 1, 2]
    assert [place.unlike for place in places] == [False, False, True, False, True]
    assert far.p == pytest.approx(1 / 12)
    assert far.distance == pytest.approx(0.19 / (1.4826 * 0.03))


@pytest.mark.parametrize(("size", "unlike"), [(0.74, True), (0.76, False), (1.0, False), (1.19, False), (1.21, True)])
def test_no_size_that_adults_have_is_unlike_however_alike_the_controls_are(size: float, unlike: bool) -> None:
    place = place_among(size, [0.96] * 50, _measure("scale"))

    assert place is not None
    assert place.distance == pytest.approx(abs(size - 0.96) / 0.02)
    assert place.unlike is unlike


def test_dark_parts_are_compared_by_their_logarithm() -> None:
    controls = [0.0, 0.0, 1.0, 1.0, 3.0, 7.0, 7.0, 15.0, 15.0, 31.0, 31.0]  # log2 of 1 + ml: 0 0 1 1 2 3 3 4 4 5 5

    place = place_among(500.0, controls, _measure("dark_ml"))

    assert place is not None
    assert place.median == 7
    assert place.distance == pytest.approx((np.log(501) - np.log(8)) / (1.4826 * 2 * np.log(2)))
    assert place.beyond == 0


def test_the_good_side_of_a_measure_never_counts() -> None:
    place = place_among(1.0, [0.7] * 12, _measure("dice"))

    assert place is not None
    assert (place.unlike, place.beyond) == (False, 12)


def test_of_few_controls_or_of_none_nothing_is_said() -> None:
    assert places_among({"scale": 9.0}, {"scale": [1.0] * (FEWEST - 1)}) == []
    assert [place.unlike for place in places_among({"scale": 9.0}, {"scale": [1.0] * FEWEST})] == [True]
    assert places_among({"scale": float("nan")}, {"scale": [1.0] * FEWEST}) == []
    nothing = intensity_measures(np.zeros((SIDE,) * 3), np.zeros((SIDE,) * 3), ANATOMY)
    assert nothing.pop("covered") == 0
    assert all(np.isnan(list(nothing.values())))
