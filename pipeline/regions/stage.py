"""The regions stage: tables over all scans, mean maps, and the same tables of scans outside the contrast (MCI).

The sums of a scan are written where its maps are made, by attribution, so no map is read for a table. Mean maps are
over both classes and over the four outcomes, or over all scans where a number is predicted. As in the founding study, a
mean is over scans, so that it is the map whose regions one would sum; the tables, which carry the inference, weigh
participants equally. Maps are added one by one in float64, never held together.

Outside the contrast, gain divides by what the same networks give controls: for each network the mean sum of the
negative class of its test fold (labelled, out of fold: it has seen none of them), formed as for the labelled scans,
then the mean over the networks that explain the scan. A fold without such scans is left out of that mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.atlases.spaces import Grid, write_template_image
from heatlas.pipeline.cohort.people.splits import networks_that_answered
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.regions import ranking
from heatlas.pipeline.regions import tables as region_tables
from heatlas.pipeline.regions.audit import RELEVANCE_AUDIT_TABLE
from heatlas.pipeline.regions.maps import PARTIAL_TABLE, add_part
from heatlas.pipeline.regions.packed_atlas import RELEVANCE_CHANNELS_TABLE
from heatlas.pipeline.run.config.settings import GainReference
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import lrp_map_name, sidecar
from heatlas.pipeline.run.plain_text import listed
from heatlas.pipeline.run.tables import read_table, write_json
from heatlas.pipeline.run.work.digests import canonical_json, text_digest, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, receipt_key, run_jobs, run_step

STAGE = "regions"
MAPS_STAGE = "group-maps"


def aggregate_relevance(
    work: Work, scans: Sequence[Scan], predictions: pd.DataFrame, map_names: Sequence[str], grid: Grid
) -> tuple[bool, list[Outcome]]:
    """Write the relevance tables, fingerprints, overlap between betas, and mean maps.

    `scans`: that have been explained and predicted (``predictions.tsv``). Returns whether tables were written (False if
    they were still valid), and one outcome per mean map.
    """
    if not scans or not map_names:
        raise BadInputError("regions: no scan with relevance and a prediction. Run training and attribution first.")
    layout, config, digests = work.layout, work.config, work.digests
    of_scans = region_tables.predictions_of([scan.scan_id for scan in scans], predictions)
    tables = [work.files(scan).region_table for scan in scans]
    audits = [work.files(scan).audit_table for scan in scans]
    channels = [work.files(scan).channel_table for scan in scans if config.cohort.further_suffixes]
    relevant = text_digest(of_scans[list(region_tables.PREDICTION_COLUMNS)].to_csv(index=False))
    gain_reference = config.regions.gain_reference
    least = ranking.least_voxels(config.registration.resolution_mm)
    lrp_names = [name for name in map(lrp_map_name, sorted(config.attribution.betas)) if name in map_names]
    done = run_step(
        layout,
        STAGE,
        [*tables, *audits, *channels],
        [relevant, list(map_names), lrp_names, gain_reference, least],
        [_write_tables],
        lambda: _write_tables(layout, tables, audits, channels, of_scans, map_names, lrp_names, gain_reference, least),
        digests,
    )
    jobs = _map_jobs(work, scans, of_scans, map_names, grid)
    outcomes = run_jobs(layout, jobs, work.executor, "mean maps")
    wanted = {path for job in jobs for path in job.outputs.values()}
    for path in layout.group_map("", "").parent.glob("group-*_relevance.*"):
        if path not in wanted:  # of a group that has no scans now, or a map that is not asked for any more
            path.unlink()
    digests.save()
    return done, outcomes


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
    shares = [_of_maps(RELEVANCE_AUDIT_TABLE.read(path), path, map_names) for path in audits]
    bilateral = region_tables.bilateral_rows(relevance, predictions, gain_reference)
    region_tables.RELEVANCE_TABLE.write(layout, relevance)
    RELEVANCE_AUDIT_TABLE.write(layout, pd.concat(shares, ignore_index=True))
    columns = [name for name in region_tables.RELEVANCE_BILATERAL_TABLE.meanings if name in bilateral]
    region_tables.RELEVANCE_BILATERAL_TABLE.write(layout, bilateral[columns])
    ranking.FINGERPRINTS_TABLE.write(layout, ranking.fingerprint_table(bilateral, map_names, least))
    ranking.BETA_OVERLAP_TABLE.write(layout, ranking.overlap_table(bilateral, lrp_names))
    written = list(STAGE_TABLES)
    if channels:
        by_scan = [RELEVANCE_CHANNELS_TABLE.read(path) for path in channels]
        RELEVANCE_CHANNELS_TABLE.write(layout, pd.concat(by_scan, ignore_index=True))
        written.append(RELEVANCE_CHANNELS_TABLE)
    else:
        RELEVANCE_CHANNELS_TABLE.remove(layout)
    return [path for table in written for path in table.files(layout)]


STAGE_TABLES = (
    region_tables.RELEVANCE_TABLE,
    RELEVANCE_AUDIT_TABLE,
    region_tables.RELEVANCE_BILATERAL_TABLE,
    ranking.FINGERPRINTS_TABLE,
    ranking.BETA_OVERLAP_TABLE,
)
"""Those of every run; ``relevance_channels.tsv`` is written where networks see several kinds of images."""


def scan_table(path: Path, map_names: Sequence[str]) -> pd.DataFrame:
    return _of_maps(
        region_tables.RELEVANCE_TABLE.read(
            path, list(region_tables.RELEVANCE_TABLE.without(*region_tables.SPREADS).meanings)
        ),
        path,
        map_names,
    )


def _of_maps(table: pd.DataFrame, path: Path, map_names: Sequence[str]) -> pd.DataFrame:
    missing = [name for name in map_names if name not in set(table["map"])]
    if missing:
        raise BadInputError(f"{path}: has no sums of {', '.join(missing)}. Remove it and run attribution again.")
    return table[table["map"].isin(list(map_names))]


def _map_jobs(
    work: Work, scans: Sequence[Scan], predictions: pd.DataFrame, map_names: Sequence[str], grid: Grid
) -> list[Job]:
    """One job per map; none where no maps are kept."""
    layout, config = work.layout, work.config
    kept = config.attribution.keep_maps
    if kept == "none":
        return []
    outcome_of = dict(zip(predictions["scan_id"], predictions["outcome"], strict=True))
    negative = config.cohort.negative if len(config.cohort.labels) == 2 else f"not {config.cohort.positive}"
    groups = groups_of(list(outcome_of.values()), negative, config.cohort.positive)
    versions = {scan.name: map_version(work, scan, map_names) for scan in scans}
    jobs = []
    for name in map_names:
        if kept == "all":
            parts = []
            for scan in scans:
                path = work.files(scan).relevance_map(name)
                source = path.relative_to(layout.root).as_posix()
                parts.append(MapSum(path, outcome_of[scan.scan_id], (source,), (scan.participant_id,)))
        else:
            parts = _partial_sums(work, scans)
        outputs: dict[str, Path] = {}
        for group in groups:
            path = layout.group_map(group, name)
            outputs |= {group: path, f"{group}_sidecar": sidecar(path)}
        space = [list(grid.shape), grid.affine.tolist()]
        parameters = [name, [[part.sources, part.outcome] for part in parts], groups, space]
        key = unit_key(versions, parameters, average_maps)
        jobs.append(Job(MAPS_STAGE, name, key, outputs, average_maps, (name, tuple(parts), groups, grid)))
    return jobs


def _partial_sums(work: Work, scans: Sequence[Scan]) -> list[MapSum]:
    """Parts that hold several scans each, as attribution has listed them."""
    layout = work.layout
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
        sources = tuple(work.files(scan).image.relative_to(layout.root).as_posix() for scan in members)
        people = tuple(scan.participant_id for scan in members)
        parts.append(MapSum(layout.partial_sum(str(part)), str(outcome), sources, people))
    return parts


def map_version(work: Work, scan: Scan, map_names: Sequence[str]) -> str:
    """What makes a scan's maps the same: the key of their attribution, else the bytes of their files.

    The key costs one small file per scan, where reading six maps of a thousand scans again takes minutes.
    """
    key = receipt_key(work.layout, "attribution", scan.name)
    if key is not None:
        return key
    files = work.files(scan)
    return text_digest(canonical_json([work.digests.digest(files.relevance_map(name)) for name in map_names]))


@dataclass(frozen=True)
class MapSum:
    """A file that holds the sum of the maps of its scans, be it one or several, all of one outcome.

    `sources`: for sidecars: one file of the run per scan. `participants`: one per scan.
    """

    path: Path
    outcome: str
    sources: tuple[str, ...]
    participants: tuple[str, ...]


def groups_of(outcomes: Sequence[str], negative: str, positive: str) -> dict[str, tuple[str, ...]]:
    """Groups that have at least one scan, and the outcomes each is made of.

    >>> groups_of(["TP", "TN", "TP"], "CN", "AD")
    {'AD': ('TP', 'FN'), 'CN': ('TN', 'FP'), 'TP': ('TP',), 'TN': ('TN',)}
    """
    parts = {positive: ("TP", "FN"), negative: ("TN", "FP")} | {
        name: (name,) for name in (*region_tables.OUTCOMES, region_tables.ALL)
    }
    return {name: part for name, part in parts.items() if set(part) & set(outcomes)}


def average_maps(
    outputs: Mapping[str, Path],
    map_name: str,
    parts: Sequence[MapSum],
    groups: Mapping[str, tuple[str, ...]],
    grid: Grid,
) -> Mapping[str, Any]:
    """Write the mean map of each group of `groups_of` and its sidecar (``GROUP_sidecar``); the function of a job."""
    sums: dict[str, NDArray[np.float64]] = {}
    for part in parts:
        if part.outcome not in sums:
            sums[part.outcome] = np.zeros(grid.shape, np.float64, order="F")
        add_part(sums[part.outcome], part.path, map_name, grid)
    counts = {}
    for group, outcomes in groups.items():
        members = [part for part in parts if part.outcome in outcomes]
        total = sum((sums[outcome] for outcome in outcomes if outcome in sums), start=np.zeros(grid.shape))
        sources = [source for part in members for source in part.sources]
        counts[f"scans_{group}"] = len(sources)
        write_template_image(outputs[group], total / len(sources), grid, "mean relevance map")
        facts = {
            "Description": f"Mean over scans of {map_name} relevance, group {group}",
            "Group": group,
            "NumberOfScans": len(sources),
            "NumberOfParticipants": len({person for part in members for person in part.participants}),
            "Sources": [f"bids::{source}" for source in sources],
        }
        write_json(outputs[f"{group}_sidecar"], facts)
    return counts


APPLIED_STAGE = "regions-applied"

_WITHOUT_SPREAD = region_tables.RELEVANCE_BILATERAL_TABLE.without("evidence_sd")
_REFERENCE = (
    "reference_sum of relevance_bilateral.tsv for each network that explains the scan, averaged over these networks: "
    "the denominator of gain"
)
RELEVANCE_APPLIED_BILATERAL_TABLE = replace(
    _WITHOUT_SPREAD,
    meanings={**_WITHOUT_SPREAD.meanings, "reference_sum": _REFERENCE},
    name="relevance_applied_bilateral",
    question="The same for scans outside the contrast, such as MCI.",
    file="group/relevance_applied_bilateral.tsv",
)
RELEVANCE_APPLIED_TABLE = replace(
    region_tables.RELEVANCE_TABLE,
    name="relevance_applied",
    question=RELEVANCE_APPLIED_BILATERAL_TABLE.question,
    file="group/relevance_applied.tsv",
)


def aggregate_applied(
    work: Work,
    scans: Sequence[Scan],
    predictions: tuple[Path, Path],
    map_names: Sequence[str],
    run: RunLayout | None = None,
) -> bool:
    """Write ``relevance_applied.tsv`` and ``relevance_applied_bilateral.tsv``; remove them where there is no such scan.

    `predictions`: ``predictions.tsv`` of the labelled scans, and ``predictions_applied.tsv``. `run`: whose networks are
    applied, with tables of labelled scans; by default that of `work`. Returns whether tables were written or removed;
    False if they were still valid.
    """
    layout = work.layout
    of_stage = (RELEVANCE_APPLIED_TABLE, RELEVANCE_APPLIED_BILATERAL_TABLE)
    if not scans:
        stale = [table.remove(layout) for table in of_stage]
        layout.receipt("steps", APPLIED_STAGE).unlink(missing_ok=True)
        return any(stale)
    tables = [work.files(scan).region_table for scan in scans]
    answered = networks_that_answered(predictions[1], [scan.scan_id for scan in scans])
    pairs = [(scan_id, fold) for scan_id, folds in answered.items() for fold in folds]
    networks = pd.DataFrame(pairs, columns=["scan_id", "fold"])
    parameters = [text_digest(networks.to_csv(index=False)), list(map_names)]

    def write() -> list[Path]:
        relevance = pd.concat([scan_table(path, map_names) for path in tables], ignore_index=True)
        bilateral = applied_bilateral(relevance, networks, network_references(run or layout, predictions[0]))
        for table, rows in zip(of_stage, (relevance, bilateral), strict=True):
            table.write(layout, rows)
        return [path for table in of_stage for path in table.files(layout)]

    inputs = [*tables, region_tables.RELEVANCE_BILATERAL_TABLE.path(run or layout), predictions[0]]
    return run_step(layout, APPLIED_STAGE, inputs, parameters, [applied_bilateral], write, work.digests)


def network_references(layout: RunLayout, predictions: Path) -> pd.DataFrame:
    """Mean sum of the negative class per fold, map and bilateral group, as ``relevance_bilateral.tsv`` divides by.

    Empty without such tables, as in an exported run: then there is no gain.
    """
    columns = ["scan_id", "map", "group", "reference_sum"]
    if not (region_tables.RELEVANCE_BILATERAL_TABLE.path(layout).is_file() and predictions.is_file()):
        return pd.DataFrame(columns=[*columns, "fold"])
    bilateral = region_tables.RELEVANCE_BILATERAL_TABLE.read(layout, columns)
    folds = read_table(predictions, ["scan_id", "fold"])[["scan_id", "fold"]]
    # The same in all rows of a fold.
    return bilateral[columns].merge(folds, on="scan_id").drop_duplicates(["fold", "map", "group"])


def applied_bilateral(relevance: pd.DataFrame, networks: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Regions pooled over hemispheres, with gain.

    `networks`: a row per scan and network (``fold``) that explains it. `references`: of `network_references`.
    """
    identity = ["participant_id", "session_id", "scan_id", "map"]
    table = region_tables.bilateral_sums(relevance, identity)
    pairs = networks.merge(references[["fold", "map", "group", "reference_sum"]], on="fold")
    means = pairs.groupby(["scan_id", "map", "group"], sort=False)["reference_sum"].mean().reset_index()
    table = table.merge(means, on=["scan_id", "map", "group"], how="left")
    sums = table["sum"].to_numpy(float)
    table["density"] = region_tables.density(sums, table["n_voxels"].to_numpy())
    table["gain"] = region_tables.gain(sums, table["reference_sum"].where(table["evidence"].isna()).to_numpy(float))
    return table[list(RELEVANCE_APPLIED_BILATERAL_TABLE.meanings)]
