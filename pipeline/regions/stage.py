"""The regions stage: from relevance maps to tables of relevance per region, and mean maps.

Three kinds of work, each with its receipts: the sums of one scan's maps (one unit per scan, a table beside its maps);
the tables over all scans (one step, from those tables alone); the mean maps of one method (one unit per map).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from atlases.labels import Atlas
from atlases.regions import RegionTable
from atlases.spaces import Grid
from pipeline.cohort.records import Scan
from pipeline.regions.fingerprints import FINGERPRINT_COLUMNS, fingerprint_table
from pipeline.regions.group_maps import MapOfScan, MapsToAverage, average_maps, groups_of, outputs_of
from pipeline.regions.maps import read_map
from pipeline.regions.overlap import OVERLAP_COLUMNS, overlap_table
from pipeline.regions.region_sums import PackedLabels, pack_labels, region_sums, unpack_labels
from pipeline.regions.tables import (
    BILATERAL_COLUMNS,
    PREDICTION_COLUMNS,
    RELEVANCE_COLUMNS,
    bilateral_rows,
    predictions_of,
    scan_rows,
)
from pipeline.run.config import Config
from pipeline.run.digests import DigestCache, canonical_json, text_digest, unit_key
from pipeline.run.errors import BadInputError
from pipeline.run.jobs import Job, Outcome, receipt_key, run_jobs
from pipeline.run.layout import RunLayout, ScanFiles, lrp_map_name, sidecar
from pipeline.run.steps import run_step
from pipeline.run.tables import read_table, write_table

STAGE = "regions"
MAPS_STAGE = "group-maps"
PACKAGES = ("pipeline.regions", "atlases.images", "atlases.spaces")
"""Code whose change makes region tables and mean maps stale."""


@dataclass(frozen=True)
class Territory:
    """An atlas as it travels with jobs: under 1 MB pickled.

    Parameters
    ----------
    labels : PackedLabels
    regions : RegionTable
    grid : Grid
    version : str
        Digest of the other three.
    """

    labels: PackedLabels
    regions: RegionTable
    grid: Grid
    version: str

    @classmethod
    def of(cls, atlas: Atlas) -> Territory:
        labels = pack_labels(atlas.labels, atlas.regions.numbers)
        facts = [labels.compressed.hex(), labels.numbers, atlas.regions, _grid_facts(atlas.grid)]
        return cls(labels, atlas.regions, atlas.grid, text_digest(canonical_json(facts)))


@dataclass(frozen=True)
class ScanToSum:
    """All that a worker needs to sum one scan's maps."""

    scan: Scan
    files: ScanFiles
    map_names: tuple[str, ...]
    territory: Territory


def aggregate_relevance(
    layout: RunLayout,
    scans: Sequence[Scan],
    predictions: pd.DataFrame,
    map_names: Sequence[str],
    atlas: Atlas,
    config: Config,
    executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:
    """Write the relevance tables, fingerprints, overlap between betas, and mean maps.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Scans with relevance maps and predictions.
    predictions : pandas.DataFrame
        ``predictions.tsv``.
    map_names : sequence of str
    atlas : Atlas
        On the grid of the maps.
    config : Config
    executor : concurrent.futures.Executor
    digests : DigestCache

    Returns
    -------
    list of Outcome
        One per scan, then one per map. A scan that failed is in no table and no mean map.

    Raises
    ------
    BadInputError
        If there is no scan, a scan has no prediction or two (both before any work), or no scan could be summed.
    """
    if not scans or not map_names:
        raise BadInputError(
            "regions: no scan with relevance maps and a prediction. Run training and attribution first."
        )
    own = predictions_of([scan.scan_id for scan in scans], predictions)
    territory = Territory.of(atlas)
    versions = {scan.name: _map_version(layout, scan, map_names, config, digests) for scan in scans}
    jobs = [_scan_job(layout, scan, tuple(map_names), territory, config, versions) for scan in scans]
    outcomes = run_jobs(layout, jobs, executor, "region sums")
    summed = [scan for scan, outcome in zip(scans, outcomes, strict=True) if outcome.ok]
    if not summed:
        raise BadInputError(f"regions: no scan could be summed. {outcomes[0].message}")
    own = predictions_of([scan.scan_id for scan in summed], own)
    tables = [job.outputs["table"] for job, outcome in zip(jobs, outcomes, strict=True) if outcome.ok]
    relevant = text_digest(own[list(PREDICTION_COLUMNS)].to_csv(index=False))
    lrp_names = [name for name in map(lrp_map_name, sorted(config.attribution.betas)) if name in map_names]
    run_step(
        layout,
        STAGE,
        tables,
        [relevant, list(map_names), lrp_names],
        PACKAGES,
        lambda: _write_tables(layout, tables, own, map_names, lrp_names),
        digests,
    )
    map_jobs = _map_jobs(layout, summed, own, map_names, territory.grid, config, versions)
    map_outcomes = run_jobs(layout, map_jobs, executor, "mean maps")
    _remove_stale_maps(layout, map_jobs)
    digests.save()
    return [*outcomes, *map_outcomes]


def sum_scan(outputs: Mapping[str, Path], task: ScanToSum) -> None:
    """Sum all maps of one scan over all regions; the function of a job."""
    scan, grid = task.scan, task.territory.grid
    index = unpack_labels(task.territory.labels)
    sums = {name: region_sums(read_map(task.files.relevance_map(name), grid), index) for name in task.map_names}
    identity = {"participant_id": scan.participant_id, "session_id": scan.session_id, "scan_id": scan.scan_id}
    write_table(outputs["table"], scan_rows(identity, sums, index, task.territory.regions), RELEVANCE_COLUMNS)


def _files(layout: RunLayout, scan: Scan, config: Config) -> ScanFiles:
    return layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)


def _map_version(layout: RunLayout, scan: Scan, map_names: Sequence[str], config: Config, digests: DigestCache) -> str:
    """What makes a scan's maps the same: the key of their attribution, else the bytes of their files.

    The key costs one small file per scan, where reading six maps of a thousand scans again takes minutes.
    """
    key = receipt_key(layout, "attribution", scan.name)
    if key is not None:
        return key
    files = _files(layout, scan, config)
    return text_digest(canonical_json([digests.digest(files.relevance_map(name)) for name in map_names]))


def _scan_job(
    layout: RunLayout,
    scan: Scan,
    map_names: tuple[str, ...],
    territory: Territory,
    config: Config,
    versions: Mapping[str, str],
) -> Job:
    files = _files(layout, scan, config)
    table = sidecar(files.relevance_map("regions")).with_suffix(".tsv")
    parameters = [[scan.participant_id, scan.session_id, scan.scan_id], map_names, territory.version]
    key = unit_key({"maps": versions[scan.name]}, parameters, *PACKAGES)
    task = ScanToSum(scan, files, map_names, territory)
    return Job(STAGE, scan.name, key, {"table": table, "columns": table.with_suffix(".json")}, sum_scan, (task,))


def _write_tables(
    layout: RunLayout,
    tables: Sequence[Path],
    predictions: pd.DataFrame,
    map_names: Sequence[str],
    lrp_names: Sequence[str],
) -> list[Path]:
    text = ("map", "name", "hemisphere", "group")
    relevance = pd.concat([read_table(path, list(RELEVANCE_COLUMNS), text) for path in tables], ignore_index=True)
    bilateral = bilateral_rows(relevance, predictions)
    written = [
        (layout.relevance, relevance, RELEVANCE_COLUMNS),
        (layout.relevance_bilateral, bilateral[list(BILATERAL_COLUMNS)], BILATERAL_COLUMNS),
        (layout.statistics("fingerprints"), fingerprint_table(bilateral, map_names), FINGERPRINT_COLUMNS),
        (layout.statistics("beta_overlap"), overlap_table(bilateral, lrp_names), OVERLAP_COLUMNS),
    ]
    for path, frame, columns in written:
        write_table(path, frame, columns)
    return [path.with_suffix(suffix) for path, _, _ in written for suffix in (".tsv", ".json")]


def _map_jobs(
    layout: RunLayout,
    scans: Sequence[Scan],
    predictions: pd.DataFrame,
    map_names: Sequence[str],
    grid: Grid,
    config: Config,
    versions: Mapping[str, str],
) -> list[Job]:
    outcomes = dict(zip(predictions["scan_id"], predictions["outcome"], strict=True))
    groups = groups_of(list(outcomes.values()), config.cohort.negative, config.cohort.positive)
    jobs = []
    for name in map_names:
        members = []
        for scan in scans:
            path = _files(layout, scan, config).relevance_map(name)
            source = path.relative_to(layout.root).as_posix()
            members.append(MapOfScan(path, source, scan.participant_id, outcomes[scan.scan_id]))
        outputs = outputs_of(groups, {group: layout.group_map(group, name) for group in groups})
        parameters = [name, [[m.source, m.outcome] for m in members], groups, _grid_facts(grid)]
        key = unit_key({scan.name: versions[scan.name] for scan in scans}, parameters, *PACKAGES)
        task = MapsToAverage(name, tuple(members), groups, grid)
        jobs.append(Job(MAPS_STAGE, name, key, outputs, average_maps, (task,)))
    return jobs


def _remove_stale_maps(layout: RunLayout, jobs: Sequence[Job]) -> None:
    """Remove mean maps that this state of the run does not have: of a group without scans, of a map not asked for."""
    wanted = {path for job in jobs for path in job.outputs.values()}
    for path in layout.group_map("", "").parent.glob("group-*_relevance.*"):
        if path not in wanted:
            path.unlink()


def _grid_facts(grid: Grid) -> list[object]:
    return [list(grid.shape), grid.affine.tolist()]
