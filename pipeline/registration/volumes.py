r"""Volumes of atlas regions in a scan, from the volume change of its registration, and their stability on retest.

The registration maps template to scan; its Jacobian determinant J says how many mm³ of the scan one mm³ of the
template becomes. Over a region R of the atlas, with voxels of volume v,

.. math:: V = v \sum_{x \in R} J(x),

the volume in the scan of what the registration maps to R ("modulated" volume; Ashburner & Friston 2000,
doi:10.1006/nimg.2000.0582, tensor-based morphometry). It needs no segmentation, but is only as accurate as the
registration.

A warp only partly follows a shrunken hippocampus, so the label extends into the ventricle beside it. Voxels darker than
halfway between fluid and the region are excluded from the volume of its tissue, which brings it closer to manual ones
(docs/benchmarks/registration.md).

One scan is one unit of work; the tables of the group gather them. The anatomy of an adult hardly changes between two
scans on a day, so differences between those come from the measurement: scanner, brain extraction, registration.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import span_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.registration.ants_transform import read_values
from heatlas.pipeline.registration.quality.measures import correlation
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, receipt_key, run_jobs, run_step

STAGE = "volumes"
HIPPOCAMPUS, VENTRICLES = "Hippocampus", "Lateral ventricle"
"""Bilateral groups of the atlas."""

VOLUMES_TABLE = declared("volumes", __file__)
SCAN_VOLUMES_TABLE = VOLUMES_TABLE.without("participant_id", "session_id", "scan_id")
TEST_RETEST_TABLE = declared("test_retest", __file__)


def measure_volumes(work: Work, scans: Sequence[Scan]) -> tuple[bool, list[Outcome]]:
    """Write the volumes of every scan that was registered here and the tables of the group.

    An image that came in template space has no volume change. Returns whether the tables of the group were written,
    False if they were still valid, and one outcome per scan.
    """
    layout, atlas_name, resolution_mm = work.layout, work.config.regions.atlas, work.config.registration.resolution_mm
    atlas_digest = find_atlas(atlas_name).digest
    jobs = [volume_job(layout, scan, atlas_name, atlas_digest, resolution_mm) for scan in scans]
    outcomes = run_jobs(layout, jobs, work.executor, "volumes")
    done = [scan for scan, outcome in zip(scans, outcomes, strict=True) if outcome.ok]
    keys = [[scan.name, scan.scan_id, receipt_key(layout, STAGE, scan.name)] for scan in done]

    def gather() -> list[Path]:
        return gather_volumes(layout, done, resolution_mm)

    written = run_step(layout, "volumes", [], [keys, resolution_mm], [gather_volumes], gather, work.digests)
    return written, outcomes


def measure_one(
    outputs: dict[str, Path], log_jacobian: Path, t1w: Path, atlas_name: str, resolution_mm: float, template: str
) -> Mapping[str, Any]:
    """Job: volumes of one scan (volumes, and columns, its data dictionary), from images on the template grid."""
    atlas = _atlas(atlas_name, resolution_mm, template)
    change, intensities = (read_values(path) for path in (log_jacobian, t1w))
    labels = np.asarray(atlas.labels)
    voxel = atlas.grid.voxel_volume_mm3
    hippocampi, ventricles = (
        [region.number for region in atlas.regions.regions if region.group == group]
        for group in (HIPPOCAMPUS, VENTRICLES)
    )
    volumes = region_volumes(change, labels, atlas.regions.numbers, voxel)
    of_template = region_volumes(np.zeros_like(change), labels, atlas.regions.numbers, voxel)
    tissue = tissue_volumes(change, intensities, labels, hippocampi, ventricles, voxel)
    if np.ptp(change) < 1e-5:  # an affine map
        volumes = dict.fromkeys(volumes, float("nan"))
    rows = []
    for region in atlas.regions.regions:
        numbers = (volumes[region.number], tissue.get(region.number, float("nan")), of_template[region.number])
        rows.append((region.number, region.name, region.hemisphere, region.group, *numbers))
    SCAN_VOLUMES_TABLE.write(outputs["volumes"], rows)
    return {}


@functools.cache
def _atlas(name: str, resolution_mm: float, template: str) -> Atlas:
    return load_atlas(name, template_grid(resolution_mm, span_of(template)))


def volume_job(layout: RunLayout, scan: Scan, atlas_name: str, atlas_digest: str, resolution_mm: float) -> Job:
    files = layout.scan(scan.participant_id, scan.session_id, resolution_mm)
    registered = receipt_key(layout, "registration", files.name) or ""
    key = unit_key({"registration": registered, "atlas": atlas_digest}, [resolution_mm], measure_one)
    arguments = (files.log_jacobian, files.t1w, atlas_name, resolution_mm, files.template)
    outputs = {"volumes": files.volumes, "columns": files.volumes.with_suffix(".json")}
    return Job(STAGE, files.name, key, outputs, measure_one, arguments)


def gather_volumes(layout: RunLayout, scans: Sequence[Scan], resolution_mm: float) -> list[Path]:
    tables = []
    for scan in scans:
        path = layout.scan(scan.participant_id, scan.session_id, resolution_mm).volumes
        identity = {"participant_id": scan.participant_id, "session_id": scan.session_id, "scan_id": scan.scan_id}
        tables.append(SCAN_VOLUMES_TABLE.read(path).assign(**identity))
    whole = pd.concat(tables, ignore_index=True) if tables else VOLUMES_TABLE.frame()
    return [VOLUMES_TABLE.write(layout, whole), TEST_RETEST_TABLE.write(layout, retest_table(whole))]


def retest_table(volumes: pd.DataFrame) -> pd.DataFrame:
    """Stability between each two scans of a participant that follow each other; it includes true change over time."""
    rows = []
    measured = volumes.dropna(subset=["volume_mm3"])  # none after an affine registration
    for participant, scans in measured.groupby("participant_id", sort=True):
        sessions = sorted(scans["session_id"].dropna().unique())
        for first, second in itertools.pairwise(sessions):
            a, b = (scans[scans["session_id"] == session].set_index("region") for session in (first, second))
            alike = volume_stability(a["volume_mm3"].to_dict(), b["volume_mm3"].to_dict(), a["template_mm3"].to_dict())
            rows.append([participant, first, second, *alike])
    return TEST_RETEST_TABLE.frame(rows)


def hippocampal_volumes(volumes: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Volumes of the left and the right hippocampus without fluid, by ``scan_id``; empty for atlases without."""
    hippocampi = volumes[(volumes["group"] == HIPPOCAMPUS) & volumes["tissue_mm3"].notna()]
    by_scan = {}
    for scan_id, rows in hippocampi.groupby("scan_id"):
        sides = rows.groupby("hemisphere")["tissue_mm3"].sum()
        if {"left", "right"} <= set(sides.index):
            by_scan[str(scan_id)] = (float(sides["left"]), float(sides["right"]))
    return by_scan


def volume_stability(
    first: Mapping[int, float], second: Mapping[int, float], template: Mapping[int, float]
) -> tuple[float, float, int]:
    """Compare the Jacobian-weighted volumes (mm³ by region) of two scans; ValueError if they share no region.

    Gives ``correlation``, ``mean_difference_percent`` and ``regions`` of `TEST_RETEST_TABLE`. The correlation is that
    of volumes relative to the template's: volumes themselves always correlate, since large regions are large in
    everyone.

    >>> template = {1: 100.0, 2: 200.0, 3: 400.0}
    >>> volume_stability({1: 90.0, 2: 220.0, 3: 400.0}, {1: 99.0, 2: 242.0, 3: 440.0}, template)
    (1.0, 9.523809523809524, 3)
    """
    shared = [n for n in first if n in second and min(first[n], second[n], template.get(n, 0.0)) > 0]
    if not shared:
        raise ValueError("no region has a volume in both scans")
    a, b, t = (np.array([volumes[n] for n in shared]) for volumes in (first, second, template))
    difference = 100 * np.abs(a - b) / ((a + b) / 2)
    alike = correlation(np.log(a / t), np.log(b / t))
    return round(alike, 12), float(difference.mean()), len(shared)


FLUID_PERCENTILE = 20.0
"""Percentile of the intensities in the atlas's ventricles; the brighter part is tissue if the warp is too small."""


def region_volumes(
    log_jacobian: np.ndarray, labels: np.ndarray, numbers: Iterable[int], voxel_mm3: float
) -> dict[int, float]:
    """Volume of each region in the scan.

    `log_jacobian`: (X, Y, Z), natural logarithm of the Jacobian determinant of the whole map template -> scan, affine
    part included (`pipeline.registration.scan.log_jacobian`). `labels`: whole numbers >= 0 on the same grid of template
    space. `numbers`: regions; the result keeps their order. `voxel_mm3`: volume of a voxel of that grid in mm³. Returns
    mm³ in the scan; NaN for a region without a voxel on this grid.

    A scan twice as long as the template along every axis holds eight times the volume:

    >>> labels = np.array([[[1, 1, 2]]])
    >>> region_volumes(np.full(labels.shape, 3 * np.log(2)), labels, [1, 2, 7], 1.0)
    {1: 16.0, 2: 8.0, 7: nan}
    """
    if log_jacobian.shape != labels.shape:
        raise ValueError(f"images of different shape: {log_jacobian.shape} and {labels.shape}")
    wanted = [int(number) for number in numbers]
    inside = labels > 0
    present = labels[inside]
    size = max([0, *wanted, int(present.max(initial=0))]) + 1
    sums = np.bincount(present, weights=np.exp(log_jacobian[inside].astype(np.float64)), minlength=size)
    counts = np.bincount(present, minlength=size)
    # Further digits depend on the order of summation.
    return {n: round(float(sums[n]) * voxel_mm3, 3) if counts[n] else float("nan") for n in wanted}


def tissue_volumes(
    log_jacobian: np.ndarray,
    t1w: np.ndarray,
    labels: np.ndarray,
    regions: Sequence[int],
    ventricles: Sequence[int],
    voxel_mm3: float,
) -> dict[int, float]:
    """Volume of each region in the scan, dark voxels left out.

    `log_jacobian`, `labels`, `voxel_mm3`: as `region_volumes`. `t1w`: (X, Y, Z), the scan on the same grid; 0 outside
    the brain. `regions`: parts of one structure; they share one threshold. `ventricles`: regions of fluid. Returns mm³;
    NaN for a region without a voxel, and for all if there is no fluid or it is not darker than the regions.

    Fluid has 10, tissue 50: the voxel with 20 is fluid, the one with 40 tissue.

    >>> labels, t1w = np.array([[[1, 1, 1, 1, 9, 9]]]), np.array([[[50.0, 50.0, 40.0, 20.0, 10.0, 10.0]]])
    >>> tissue_volumes(np.zeros(labels.shape), t1w, labels, [1], [9], 1.0)
    {1: 3.0}
    """
    tissue, fluid = t1w[np.isin(labels, regions)], t1w[np.isin(labels, ventricles) & (t1w > 0)]
    if not tissue.size or not fluid.size or np.percentile(fluid, FLUID_PERCENTILE) >= np.median(tissue):
        return dict.fromkeys(regions, float("nan"))
    threshold = (np.percentile(fluid, FLUID_PERCENTILE) + np.median(tissue)) / 2
    return region_volumes(log_jacobian, np.where(t1w > threshold, labels, 0), regions, voxel_mm3)
