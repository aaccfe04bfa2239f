"""Tables of the scans outside the contrast (MCI): the columns of the labelled scans, gain included.

Gain divides by what the same networks give controls: for each network the mean sum of the negative class of its test
fold (labelled, out of fold: it has seen none of them), formed as for the labelled scans, then the mean over the
networks that explain the scan. A fold without such scans is left out of that mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from heatlas.pipeline.cohort.people.unseen import networks_that_answered
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.regions.metrics import density, gain
from heatlas.pipeline.regions.stage import scan_table
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, RELEVANCE_TABLE, bilateral_sums
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache, text_digest
from heatlas.pipeline.run.work.steps import run_step

STAGE = "regions-applied"

RELEVANCE_APPLIED_BILATERAL_TABLE = Table(
    "relevance_applied_bilateral",
    {
        **RELEVANCE_BILATERAL_TABLE.without("evidence_sd").meanings,
        "reference_sum": "reference_sum of relevance_bilateral.tsv for each network that explains the scan, averaged "
        "over these networks: the denominator of gain",
    },
    "scan, map and bilateral group", "The same for scans outside the contrast, such as MCI.", stage="regions",
    filled=("participant_id", "scan_id", "map", "group", "n_voxels"), finite=True, later=("evidence",),
)  # fmt: skip
RELEVANCE_APPLIED_TABLE = replace(
    RELEVANCE_TABLE, name="relevance_applied", question=RELEVANCE_APPLIED_BILATERAL_TABLE.question,
    file="group/relevance_applied.tsv",
)  # fmt: skip


def aggregate_applied(
    layout: RunLayout,
    scans: Sequence[Scan],
    predictions: tuple[Path, Path],
    map_names: Sequence[str],
    config: Config,
    digests: DigestCache,
    run: RunLayout | None = None,
) -> bool:
    """Write ``relevance_applied.tsv`` and ``relevance_applied_bilateral.tsv``; remove them where there is no such scan.

    `scans`: scans that have been explained and are in ``predictions_applied.tsv``. `predictions`: ``predictions.tsv``
    of the labelled scans, and ``predictions_applied.tsv``. `run`: run whose networks are applied, with tables of
    labelled scans; by default `layout`. Returns whether tables were written or removed; False if they were still valid.
    Raises BadInputError if a scan has no row in ``predictions_applied.tsv``, or its region table is missing or lacks a
    map.
    """
    of_stage = (RELEVANCE_APPLIED_TABLE, RELEVANCE_APPLIED_BILATERAL_TABLE)
    if not scans:
        stale = [table.remove(layout) for table in of_stage]
        layout.receipt("steps", STAGE).unlink(missing_ok=True)
        return any(stale)
    resolution = config.registration.resolution_mm
    tables = [layout.scan(scan.participant_id, scan.session_id, resolution).region_table for scan in scans]
    networks = _networks(predictions[1], scans)
    parameters = [text_digest(networks.to_csv(index=False)), list(map_names)]

    def write() -> list[Path]:
        relevance = pd.concat([scan_table(path, map_names) for path in tables], ignore_index=True)
        bilateral = applied_bilateral(relevance, networks, network_references(run or layout, predictions[0]))
        for table, rows in zip(of_stage, (relevance, bilateral), strict=True):
            table.write(layout, rows)
        return [path for table in of_stage for path in table.files(layout)]

    inputs = [*tables, RELEVANCE_BILATERAL_TABLE.path(run or layout), predictions[0]]
    return run_step(layout, STAGE, inputs, parameters, [applied_bilateral], write, digests)


def network_references(layout: RunLayout, predictions: Path) -> pd.DataFrame:
    """Mean sum of the negative class per fold, map and bilateral group, as ``relevance_bilateral.tsv`` divides by.

    Empty without such tables, as in an exported run: then there is no gain.
    """
    columns = ["scan_id", "map", "group", "reference_sum"]
    if not (RELEVANCE_BILATERAL_TABLE.path(layout).is_file() and predictions.is_file()):
        return pd.DataFrame(columns=[*columns, "fold"])
    bilateral = RELEVANCE_BILATERAL_TABLE.read(layout, columns)
    folds = read_table(predictions, ["scan_id", "fold"])[["scan_id", "fold"]]
    # The same in all rows of a fold.
    return bilateral[columns].merge(folds, on="scan_id").drop_duplicates(["fold", "map", "group"])


def applied_bilateral(relevance: pd.DataFrame, networks: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Regions pooled over hemispheres, with gain.

    `relevance`: `RELEVANCE_TABLE` of the scans outside the contrast. `networks`: ``scan_id`` and ``fold``: a row per
    scan and network that explains it. `references`: ``fold``, ``map``, ``group`` and ``reference_sum``.
    """
    identity = ["participant_id", "session_id", "scan_id", "map"]
    table = bilateral_sums(relevance, identity)
    pairs = networks.merge(references[["fold", "map", "group", "reference_sum"]], on="fold")
    means = pairs.groupby(["scan_id", "map", "group"], sort=False)["reference_sum"].mean().reset_index()
    table = table.merge(means, on=["scan_id", "map", "group"], how="left")
    sums = table["sum"].to_numpy(float)
    table["density"] = density(sums, table["n_voxels"].to_numpy())
    table["gain"] = gain(sums, table["reference_sum"].where(table["evidence"].isna()).to_numpy(float))
    return table[list(RELEVANCE_APPLIED_BILATERAL_TABLE.meanings)]


def _networks(applied: Path, scans: Sequence[Scan]) -> pd.DataFrame:
    """A row per scan and network."""
    answered = networks_that_answered(applied, [scan.scan_id for scan in scans])
    rows = [(scan_id, fold) for scan_id, folds in answered.items() for fold in folds]
    return pd.DataFrame(rows, columns=["scan_id", "fold"])
