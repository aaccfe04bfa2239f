"""People of a finished run, held out one by one, and their images changed into what they are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.ndimage
import torch

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.explaining.features import unseen_people, unseen_scans
from heatlas.pipeline.explaining.likeness import Measured, anatomy_of, likeness_of_controls, measure_scan
from heatlas.pipeline.models.inputs import configured_input, from_network, read_network_volume
from heatlas.pipeline.registration.quality.likeness import (
    LIKENESS,
    Anatomy,
    intensity_measures,
    place_among,
    region_means,
)
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.training.given import networks_of_run

RUN = os.environ.get("HEATLAS_FINISHED_RUN", "")
"""A run of two classes, such as that of docs/patients.md; its folder is only read."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RUN, reason="HEATLAS_FINISHED_RUN names no folder of a finished run of people"),
]
TRIED = 5


class People(NamedTuple):
    """People of a run by name; `controls` those of the first class, `images` as networks see the first of these."""

    measured: dict[str, Measured]
    controls: list[str]
    images: dict[str, np.ndarray]
    anatomy: Anatomy

    def unlike(self, scan: Measured, name: str) -> list[str]:
        others = [self.measured[one] for one in self.controls if one != name]
        return [place.measure for place in likeness_of_controls(others).places(scan) if place.unlike]


@pytest.fixture(scope="module")
def people() -> People:
    run = RunLayout(Path(RUN))
    config = read_run_config(run)
    spec, anatomy = configured_input(config), anatomy_of(config)
    scans = {scan.participant_id: scan for scan in reversed(ScanTable.read(run).kept)}  # the first of each
    files = {name: run.scan(name, scan.session_id, spec.resolution_mm) for name, scan in scans.items()}
    files = {name: one for name, one in files.items() if one.image.is_file()}
    controls = [name for name in files if scans[name].label == config.cohort.negative]
    images = {name: from_network(read_network_volume(files[name], spec), spec) for name in controls[:TRIED]}
    return People({name: measure_scan(one, spec, anatomy) for name, one in files.items()}, controls, images, anatomy)


def test_at_least_95_percent_of_controls_are_like_the_others(people: People) -> None:
    alike = [not people.unlike(people.measured[name], name) for name in people.controls]

    assert np.mean(alike) >= 0.95


def test_at_least_95_percent_of_controls_and_of_patients_are_like_those_whom_the_networks_know() -> None:
    run = RunLayout(Path(RUN))
    config = read_run_config(run)
    scans = unseen_scans(run, task_of(config.cohort), config.registration.resolution_mm, config.seed)
    folds = unseen_people(networks_of_run(RUN), scans, RUN, torch.device("cpu"))
    rows = [row for fold in folds for row in zip(fold.controls, fold.distances, strict=True)]

    for group in (True, False):
        alike = []
        for number, (control, distance) in enumerate(rows):
            others = [value for other, (known, value) in enumerate(rows) if known and other != number]
            place = place_among(distance, others, next(one for one in LIKENESS if one.column == "feature_distance"))
            alike += [place is not None and not place.unlike] if control == group else []
        assert np.mean(alike) >= 0.95


def _noise(image: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).random(image.shape)


def _vessels(image: np.ndarray) -> np.ndarray:
    return np.where(np.random.default_rng(0).random(image.shape) < 0.01, 3, image)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "T2": lambda image: 1 - image,
    "noise": _noise,
    "blurred": lambda image: scipy.ndimage.gaussian_filter(image, 1.5),
    "contrast agent": _vessels,
    "front and back exchanged": lambda image: image[:, ::-1],
    "truncated": lambda image: np.where(np.arange(image.shape[2]) < 0.6 * image.shape[2], image, 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_image_that_is_not_what_it_seems_is_unlike(people: People, name: str) -> None:
    for person, image in people.images.items():
        changed = np.where(image > 0, CHANGES[name](image), 0)
        brain = (changed if name in ("truncated", "front and back exchanged") else image) > 0
        values = {**people.measured[person].values, **intensity_measures(changed, brain, people.anatomy)}

        scan = Measured(values, region_means(changed, brain, people.anatomy), None)

        assert people.unlike(scan, person), person


def test_a_mirrored_scan_is_unlike_by_its_sides(people: People) -> None:
    for person in people.images:
        scan = people.measured[person]
        assert scan.asymmetry is not None

        assert "side" in people.unlike(Measured(scan.values, scan.regions, -scan.asymmetry), person), person
