"""The planted cohort: copies of controls, with and without loss, and networks trained to tell them apart."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.labels import Atlas
from heatlas.pipeline.evaluation.bench.part import Bench
from heatlas.pipeline.evaluation.cohorts import PLANTED, JudgedCohort
from heatlas.pipeline.evaluation.planting.copies import (
    FEWEST,
    PlantedControl,
    paired_folds,
    people_to_plant,
    planted_changes,
    planted_config,
    planting_jobs,
    require_masks_of_copies,
    truth_of,
    unused_changes,
)
from heatlas.pipeline.evaluation.variants import Variant, trained
from heatlas.pipeline.regions.audit import FLUID, VESSEL
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.jobs import Outcome, run_jobs

log = logging.getLogger("heatlas")


def planted_cohort(bench: Bench, only: int = 0) -> tuple[JudgedCohort, list[Outcome]]:
    """Copy the controls of the run, train on the copies, and keep those that a network has not seen.

    `only`: folds that are trained, the first ones; 0 for all.
    """
    layout, config, atlas, digests = bench.layout, bench.config, bench.atlas, bench.digests
    require_masks_of_copies(config)
    recipe = planted_config(config, config.seed)
    controls = None if config.cohort.target else config.cohort.negative
    people = people_to_plant(bench.scans, controls, config.seed)
    copies = dataclasses.replace(layout, images=PLANTED, networks=PLANTED)
    jobs = planting_jobs(layout, copies, people, atlas, recipe, digests)
    outcomes = run_jobs(layout, jobs, bench.executor, "planting")
    made = _copied(layout, people, outcomes)
    split = paired_folds(made, recipe.cohort.folds, recipe.cohort.validation_fraction, recipe.seed, only)
    labelled = tuple(scan for person in made for scan in person.copies)
    judged = tuple(scan for scan in labelled if split.fold_of_test(scan.participant_id) is not None)
    untouched = tuple(scan for scan in labelled if scan.label == recipe.cohort.negative)
    cohort = JudgedCohort(PLANTED, copies, judged, split, recipe, PackedAtlas.of(atlas), None, untouched, labelled)
    networks = trained(cohort, [Variant(PLANTED, recipe)], bench.executor, digests, "training on planted copies")
    if not networks.jobs[PLANTED]:
        raise BadInputError(f"training on planted copies: every network failed; see {layout.failures}.")
    tested = tuple(scan for scan in judged if cohort.fold_of(scan) in networks.jobs[PLANTED])
    resolution = config.registration.resolution_mm
    files = [layout.scan(one.scan.participant_id, one.scan.session_id, resolution) for one in made]
    planted, unused = ([change.group for change in of(atlas)] for of in (planted_changes, unused_changes))
    truth = truth_of(made, atlas, correlated_group(files, atlas, planted, unused))
    return dataclasses.replace(cohort, scans=tested, truth=truth), outcomes + networks.outcomes


def _copied(
    layout: EvaluationLayout, people: Sequence[PlantedControl], outcomes: Sequence[Outcome]
) -> tuple[PlantedControl, ...]:
    made = tuple(person for person, one in zip(people, outcomes, strict=True) if one.ok)
    if len(made) < FEWEST:
        raise BadInputError(
            f"planting: only {len(made)} of {len(people)} controls could be copied, and {FEWEST} are needed. See "
            f"{layout.failures}."
        )
    failed = len(people) - len(made)
    if failed:
        log.warning("%d of %d controls could not be copied; see %s", failed, len(people), layout.failures)
    return made


FEWEST_VOXELS = 50


def correlated_group(
    files: Sequence[ScanFiles], atlas: Atlas, planted: Sequence[str], others: Sequence[str]
) -> str | None:
    """Name of the group, among those of tissue that are neither planted nor in `others`; None if there is none.

    `files`: scans before anything is planted; an image is relative to the mean of its brain.
    """
    fluid = {region.group for region in atlas.regions.regions if region.tissue in (FLUID, VESSEL)}
    names = list(atlas.regions.groups)
    places = [np.flatnonzero(np.isin(atlas.labels, numbers)) for numbers in atlas.regions.groups.values()]
    means = np.array([_means(one, places) for one in files])
    small = {name for name, voxels in zip(names, places, strict=True) if len(voxels) < FEWEST_VOXELS}
    return strongest(means, names, planted, {*others, *fluid, *small})


def _means(files: ScanFiles, places: Sequence[NDArray[np.intp]]) -> list[float]:
    values = np.asarray(nib.nifti1.Nifti1Image.from_filename(files.image).dataobj, dtype=np.float32).ravel()
    whole = float(values[values > 0].mean())
    return [float(values[voxels].mean()) / whole if len(voxels) else float("nan") for voxels in places]


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
