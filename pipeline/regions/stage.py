"""The regions stage: tables over all scans, fingerprints, overlap between betas, and mean maps.

The sums of a scan are written where its maps are made, by attribution, so no map is read for a table. Two kinds of
work, each with its own receipt: the tables over all scans (one step, from the scans' tables alone); the mean maps of
one method (one unit per map, where maps are kept).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

import pandas as pd

from heatlas.atlases.spaces import Grid
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.regions.audit import RELEVANCE_AUDIT_TABLE
from heatlas.pipeline.regions.channels import RELEVANCE_CHANNELS_TABLE
from heatlas.pipeline.regions.group_maps import MapsToAverage, MapSum, average_maps, groups_of, outputs_of
from heatlas.pipeline.regions.partial_sums import PARTIAL_TABLE
from heatlas.pipeline.regions.ranking import (
    BETA_OVERLAP_TABLE,
    FINGERPRINTS_TABLE,
    fingerprint_table,
    least_voxels,
    overlap_table,
)
from heatlas.pipeline.regions.tables import (
    PREDICTION_COLUMNS,
    RELEVANCE_BILATERAL_TABLE,
    RELEVANCE_TABLE,
    SPREADS,
    bilateral_rows,
    predictions_of,
)
from heatlas.pipeline.run.config.settings import Config, GainReference
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.map_names import lrp_map_name
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import listed
from heatlas.pipeline.run.work.digests import DigestCache, canonical_json, text_digest, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, receipt_key, run_jobs
from heatlas.pipeline.run.work.steps import run_step

STAGE = "regions"
MAPS_STAGE = "group-maps"


def aggregate_relevance(
    layout: RunLayout,
    scans: Sequence[Scan],
    predictions: pd.DataFrame,
    map_names: Sequence[str],
    grid: Grid,
    config: Config,
    executor: Executor,
    digests: DigestCache,
) -> tuple[bool, list[Outcome]]:
    """Write the relevance tables, fingerprints, overlap between betas, and mean maps.

    `scans`: scans that have been explained and predicted. `predictions`: ``predictions.tsv``. `grid`: grid of the maps.
    Returns whether tables were written; False if they were still valid. one per map whose means are kept. Raises
    BadInputError if there is no scan, a scan has no prediction or two, or its region table is missing or lacks a map.
    """
    if not scans or not map_names:
        raise BadInputError("regions: no scan with relevance and a prediction. Run training and attribution first.")
    own = predictions_of([scan.scan_id for scan in scans], predictions)
    tables = [_files(layout, scan, config).region_table for scan in scans]
    audits = [_files(layout, scan, config).audit_table for scan in scans]
    channels = [_files(layout, scan, config).channel_table for scan in scans if config.cohort.further_suffixes]
    relevant = text_digest(own[list(PREDICTION_COLUMNS)].to_csv(index=False))
    gain_reference = config.regions.gain_reference
    least = least_voxels(config.registration.resolution_mm)
    lrp_names = [name for name in map(lrp_map_name, sorted(config.attribution.betas)) if name in map_names]
    done = run_step(
        layout,
        STAGE,
        [*tables, *audits, *channels],
        [relevant, list(map_names), lrp_names, gain_reference, least],
        [_write_tables],
        lambda: _write_tables(layout, tables, audits, channels, own, map_names, lrp_names, gain_reference, least),
        digests,
    )
    jobs = _map_jobs(layout, scans, own, map_names, grid, config, digests)
    outcomes = run_jobs(layout, jobs, executor, "mean maps")
    _remove_stale_maps(layout, jobs)
    digests.save()
    return done, outcomes


def _files(layout: RunLayout, scan: Scan, config: Config) -> ScanFiles:
    return layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)


def _write_tables(
    layout: RunLayout,
    tables: Sequence[Path],
    audits: Sequence[Path],
    channels: Sequence[Path],
    predictions: pd.DataFrame,
    map_names: Sequence[str],
    lrp_names: Sequence[str],
    gain_reference: GainReference,
    least: int,
) -> list[Path]:
    relevance = pd.concat([scan_table(path, map_names) for path in tables], ignore_index=True)
    audit = pd.concat([_scan_audit(path, map_names) for path in audits], ignore_index=True)
    bilateral = bilateral_rows(relevance, predictions, gain_reference)
    RELEVANCE_TABLE.write(layout, relevance)
    RELEVANCE_AUDIT_TABLE.write(layout, audit)
    columns = [name for name in RELEVANCE_BILATERAL_TABLE.meanings if name in bilateral]
    RELEVANCE_BILATERAL_TABLE.write(layout, bilateral[columns])
    FINGERPRINTS_TABLE.write(layout, fingerprint_table(bilateral, map_names, least))
    BETA_OVERLAP_TABLE.write(layout, overlap_table(bilateral, lrp_names))
    written = list(STAGE_TABLES)
    if channels:
        found = [RELEVANCE_CHANNELS_TABLE.read(path) for path in channels]
        RELEVANCE_CHANNELS_TABLE.write(layout, pd.concat(found, ignore_index=True))
        written.append(RELEVANCE_CHANNELS_TABLE)
    else:
        RELEVANCE_CHANNELS_TABLE.remove(layout)
    return [path for table in written for path in table.files(layout)]


STAGE_TABLES = (
    RELEVANCE_TABLE, RELEVANCE_AUDIT_TABLE, RELEVANCE_BILATERAL_TABLE, FINGERPRINTS_TABLE, BETA_OVERLAP_TABLE,
)  # fmt: skip
"""Those of every run; ``relevance_channels.tsv`` is written where networks see several kinds of images."""


def scan_table(path: Path, map_names: Sequence[str]) -> pd.DataFrame:
    """Region sums of one scan, of the maps asked for."""
    return _of_maps(RELEVANCE_TABLE.read(path, list(RELEVANCE_TABLE.without(*SPREADS).meanings)), path, map_names)


def _scan_audit(path: Path, map_names: Sequence[str]) -> pd.DataFrame:
    """Shares in compartments of one scan, of the maps asked for."""
    return _of_maps(RELEVANCE_AUDIT_TABLE.read(path), path, map_names)


def _of_maps(table: pd.DataFrame, path: Path, map_names: Sequence[str]) -> pd.DataFrame:
    missing = [name for name in map_names if name not in set(table["map"])]
    if missing:
        raise BadInputError(f"{path}: has no sums of {', '.join(missing)}. Remove it and run attribution again.")
    return table[table["map"].isin(list(map_names))]


def _map_jobs(
    layout: RunLayout,
    scans: Sequence[Scan],
    predictions: pd.DataFrame,
    map_names: Sequence[str],
    grid: Grid,
    config: Config,
    digests: DigestCache,
) -> list[Job]:
    """One job per map; none where no maps are kept."""
    kept = config.attribution.keep_maps
    if kept == "none":
        return []
    outcome_of = dict(zip(predictions["scan_id"], predictions["outcome"], strict=True))
    negative = config.cohort.negative if len(config.cohort.labels) == 2 else f"not {config.cohort.positive}"
    groups = groups_of(list(outcome_of.values()), negative, config.cohort.positive)
    versions = {scan.name: map_version(layout, scan, map_names, config, digests) for scan in scans}
    jobs = []
    for name in map_names:
        if kept == "all":
            parts = [_own_part(layout, scan, outcome_of[scan.scan_id], name, config) for scan in scans]
        else:
            parts = _partial_sums(layout, scans, config)
        outputs = outputs_of(groups, {group: layout.group_map(group, name) for group in groups})
        parameters = [name, [[part.sources, part.outcome] for part in parts], groups, _grid_facts(grid)]
        key = unit_key(versions, parameters, average_maps)
        task = MapsToAverage(name, tuple(parts), groups, grid)
        jobs.append(Job(MAPS_STAGE, name, key, outputs, average_maps, (task,)))
    return jobs


def _own_part(layout: RunLayout, scan: Scan, outcome: str, map_name: str, config: Config) -> MapSum:
    path = _files(layout, scan, config).relevance_map(map_name)
    return MapSum(path, outcome, (path.relative_to(layout.root).as_posix(),), (scan.participant_id,))


def _partial_sums(layout: RunLayout, scans: Sequence[Scan], config: Config) -> list[MapSum]:
    """Parts that hold several scans each, as attribution has listed them."""
    table = PARTIAL_TABLE.read(layout)
    other = sorted(set(table["scan_id"]) ^ {scan.scan_id for scan in scans})
    if other:
        raise BadInputError(
            f"{PARTIAL_TABLE.path(layout)}: the sums of maps and the tables of scans are not of the same scans "
            f"({listed(other, 3)}), as one could not be written. Run the same command again."
        )
    by_id = {scan.scan_id: scan for scan in scans}
    parts = []
    for (part, outcome), rows in table.groupby(["part", "outcome"], sort=True):
        members = [by_id[scan_id] for scan_id in rows["scan_id"]]
        sources = tuple(_files(layout, scan, config).image.relative_to(layout.root).as_posix() for scan in members)
        people = tuple(scan.participant_id for scan in members)
        parts.append(MapSum(layout.partial_sum(str(part)), str(outcome), sources, people))
    return parts


def map_version(layout: RunLayout, scan: Scan, map_names: Sequence[str], config: Config, digests: DigestCache) -> str:
    """What makes a scan's maps the same: the key of their attribution, else the bytes of their files.

    The key costs one small file per scan, where reading six maps of a thousand scans again takes minutes.
    """
    key = receipt_key(layout, "attribution", scan.name)
    if key is not None:
        return key
    files = _files(layout, scan, config)
    return text_digest(canonical_json([digests.digest(files.relevance_map(name)) for name in map_names]))


def _remove_stale_maps(layout: RunLayout, jobs: Sequence[Job]) -> None:
    """Remove mean maps that this state of the run does not have: of a group without scans, of a map not asked for."""
    wanted = {path for job in jobs for path in job.outputs.values()}
    for path in layout.group_map("", "").parent.glob("group-*_relevance.*"):
        if path not in wanted:
            path.unlink()


def _grid_facts(grid: Grid) -> list[object]:
    return [list(grid.shape), grid.affine.tolist()]
