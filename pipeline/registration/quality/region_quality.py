"""Tables of local registration quality: one unit of work per registered scan, gathered for the group."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd

from heatlas.atlases.brain_box import Box, brain_box
from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.regions import RegionTable
from heatlas.atlases.templates import Template, load_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.registration.ants_transform import read_affine, read_displacement
from heatlas.pipeline.registration.quality.local_outliers import region_distances
from heatlas.pipeline.registration.quality.local_quality import (
    RegionVoxels,
    inverse_error,
    local_correlation,
    region_means,
    region_percentiles,
    region_voxels,
)
from heatlas.pipeline.registration.quality.side_images import write_asymmetry
from heatlas.pipeline.run.declared import Table, described
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, receipt_key, run_jobs, run_step

STAGE = "region-quality"
MARGIN_MM = 4.0
"""Added around a region for the correlation. Rank correlation with the Dice of manual labels, within regions over ten
OASIS brains at 2 mm: 0.29 without margin, 0.39, 0.40, 0.39 and 0.39 with 2, 4, 6 and 8 mm."""

REGION_QUALITY_TABLE = Table(
    "region_quality",
    {
        **described("participant_id", "session_id", "scan_id", "region", "name", "hemisphere", "group"),
        "voxels": "Voxels of the region on the grid of this run",
        "correlation": "Pearson correlation of the registered brain with the template brain in the region and "
        f"{MARGIN_MM:g} mm around it; n/a for a region without a voxel",
        "inverse_error_mean_mm": "Mean distance over the region between a point and its image under warp and inverse "
        "warp; n/a for images registered by other software",
        "inverse_error_max_mm": "Largest such distance in the region",
        "min_jacobian": "Smallest Jacobian determinant of the nonlinear warp in the region",
        "jacobian_p01": "1st percentile of that determinant over the region",
        "jacobian_p99": "99th percentile of that determinant over the region",
        "distance": "Deviation of the correlation from the cohort: robust standard deviations of its Fisher transform "
        "from the region's median, minus the scan's median over regions; < 0 is worse; n/a in small cohorts",
    },
    "scan and region", "Does each scan lie on the template in each region?", stage="registration", on_pages=False,
)  # fmt: skip
SCAN_QUALITY_TABLE = REGION_QUALITY_TABLE.without("participant_id", "session_id", "scan_id", "distance")


def region_quality_job(layout: RunLayout, scan: Scan, atlas_name: str, atlas_digest: str, resolution_mm: float) -> Job:
    """Unit of work of one registered scan."""
    files = layout.scan(scan.participant_id, scan.session_id, resolution_mm)
    given = {"t1w": files.image if scan.entry == "template" else files.t1w}
    if scan.entry != "template":
        given |= {"log_jacobian": files.log_jacobian, "affine": files.affine_transform, "warp": files.warp,
                  "inverse_warp": files.inverse_warp}  # fmt: skip
    outputs = {
        "regions": files.region_quality, "columns": files.region_quality.with_suffix(".json"),
        "asymmetry": files.asymmetry,
    }  # fmt: skip
    parts = {"registration": receipt_key(layout, "registration", files.name) or "", "atlas": atlas_digest}
    return Job(STAGE, files.name, unit_key(parts, [resolution_mm], measure_one), outputs, measure_one,
               (given, atlas_name, resolution_mm, files.template))  # fmt: skip


def measure_regions(work: Work, scans: Sequence[Scan]) -> list[Outcome]:
    """Write the local quality of every registered scan and the table of the group."""
    layout, atlas_name, resolution_mm = work.layout, work.config.regions.atlas, work.config.registration.resolution_mm
    digest = find_atlas(atlas_name).digest
    jobs = [region_quality_job(layout, scan, atlas_name, digest, resolution_mm) for scan in scans]
    outcomes = run_jobs(layout, jobs, work.executor, "region quality")
    done = [scan for scan, outcome in zip(scans, outcomes, strict=True) if outcome.ok]
    names = [[scan.name, scan.scan_id, receipt_key(layout, STAGE, scan.name)] for scan in done]

    def gather() -> list[Path]:
        return [gather_region_quality(layout, done, resolution_mm)]

    run_step(layout, STAGE, [], [names, resolution_mm], [gather_region_quality], gather, work.digests)
    return outcomes


def gather_region_quality(layout: RunLayout, scans: Sequence[Scan], resolution_mm: float) -> Path:
    """Write ``group/region_quality.tsv`` from the tables of these scans."""
    tables = []
    for scan in scans:
        path = layout.scan(scan.participant_id, scan.session_id, resolution_mm).region_quality
        identity = {"participant_id": scan.participant_id, "session_id": scan.session_id, "scan_id": scan.scan_id}
        tables.append(SCAN_QUALITY_TABLE.read(path).assign(**identity))
    whole = pd.concat(tables, ignore_index=True) if tables else REGION_QUALITY_TABLE.frame()
    return REGION_QUALITY_TABLE.write(layout, whole.assign(distance=_distances(whole)))


def _distances(table: pd.DataFrame) -> pd.Series:
    """`region_distances` of the rows of a table of many scans, each with the same regions."""
    if table.empty:
        return pd.Series(dtype=float)
    regions = table["region"].nunique()
    found = region_distances(table["correlation"].astype(float).to_numpy().reshape(-1, regions))
    return pd.Series(found.ravel().round(3), table.index)


def measure_one(
    outputs: dict[str, Path], given: dict[str, Path], atlas_name: str, resolution_mm: float, template: str
) -> None:
    """Job: local quality of one scan (regions, and columns, its data dictionary), and its asymmetry.

    Only ``t1w`` is given for an image that came in template space.
    """
    places = _places(atlas_name, resolution_mm, template)
    brain = places.box.crop(_read(given["t1w"]))
    numbers: dict[str, dict[int, float]] = {
        "voxels": places.inside.by_number(places.inside.counts),
        "correlation": local_correlation(brain, places.template, places.around),
    }
    if "warp" in given:
        displacement, inverse = read_displacement(given["warp"]), read_displacement(given["inverse_warp"])
        error = inverse_error(displacement, inverse, places.affine, places.inside)
        scale = abs(float(np.linalg.det(read_affine(given["affine"])[:3, :3])))
        determinant = np.exp(places.box.crop(_read(given["log_jacobian"])).ravel()[places.inside.voxels]) / scale
        numbers |= {
            "inverse_error_mean_mm": region_means(error, places.inside),
            "inverse_error_max_mm": region_percentiles(error, places.inside, 100),
            "min_jacobian": region_percentiles(determinant, places.inside, 0),
            "jacobian_p01": region_percentiles(determinant, places.inside, 1),
            "jacobian_p99": region_percentiles(determinant, places.inside, 99),
        }
    rows = []
    for region in places.regions.regions:
        row: dict[str, Any] = dict.fromkeys(SCAN_QUALITY_TABLE.meanings)
        row.update(region=region.number, name=region.name, hemisphere=region.hemisphere, group=region.group)
        # Further digits depend on the order of summation.
        row.update({name: round(found[region.number], 4) for name, found in numbers.items() if region.number in found})
        rows.append(row | {"voxels": int(row["voxels"] or 0)})
    write_asymmetry(outputs["asymmetry"], given["t1w"], resolution_mm, given.get("inverse_warp"), template)
    SCAN_QUALITY_TABLE.write(outputs["regions"], rows)


class _Places:
    """Template and regions in the box of the brain, read once per worker."""

    def __init__(self, template: Template, labels: np.ndarray, regions: RegionTable) -> None:
        self.box: Box = brain_box(template)
        self.regions = regions
        self.template: np.ndarray = self.box.crop(template.t1w)
        self.affine = self.box.grid(template.grid).affine
        cropped = np.ascontiguousarray(self.box.crop(labels))
        margin = max(round(MARGIN_MM / float(template.grid.voxel_sizes_mm[0])), 1)
        self.inside: RegionVoxels = region_voxels(cropped, regions.numbers)
        self.around: RegionVoxels = region_voxels(cropped, regions.numbers, margin)


@functools.lru_cache(maxsize=1)
def _places(atlas_name: str, resolution_mm: float, template: str) -> _Places:
    brain = load_template(resolution_mm, template)
    atlas = load_atlas(atlas_name, brain.grid)
    return _Places(brain, np.asarray(atlas.labels), atlas.regions)


def _read(path: Path) -> np.ndarray:
    image: Any = nib.load(path)
    return np.asarray(image.dataobj, dtype=np.float32)
