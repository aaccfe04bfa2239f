"""The attribution stage: each scan explained by the network that has not seen its participant.

One unit of work per scan: the sums of its maps over regions, its ledger, and its maps with their sidecars where maps
are kept. The target is the positive class for every scan, patients and controls alike, so that all maps answer one
question: what speaks for the positive class here?

Which maps are kept (``keep_maps``) decides what is written, not what is computed: going from "all" to "none" makes
nothing stale. Maps of single scans that are no longer kept are removed, lest they be read beside tables of a later
setting. "group" adds maps up as they are made; see `pipeline.explaining.partial`.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

import pandas as pd

from atlases.labels import Atlas
from pipeline.cohort.people.splits import Split
from pipeline.cohort.records import Scan
from pipeline.explaining.explained_scan import (
    ACCOUNT,
    ScanToExplain,
    explain_scan,
    map_outputs,
    table_outputs,
)
from pipeline.explaining.partial import explain_in_parts
from pipeline.regions.territory import PACKAGES as REGION_PACKAGES
from pipeline.regions.territory import Territory
from pipeline.run.config.settings import Config
from pipeline.run.declared import Table
from pipeline.run.errors import BadInputError
from pipeline.run.layout.map_names import lrp_map_name
from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.layout.scan_files import ScanFiles, sidecar
from pipeline.run.tables import write_table
from pipeline.run.work.digests import DigestCache, unit_key
from pipeline.run.work.jobs import Job, Outcome, run_jobs

STAGE = "attribution"
APPLIED_STAGE = "attribution-applied"
"""Names the receipts of scans outside the contrast; see `pipeline.explaining.applied`."""
PACKAGES = (
    "pipeline.attribution", "pipeline.explaining", "pipeline.models", "atlases.brain_box", "atlases.images",
    "atlases.spaces", "pipeline.regions.audit",
    *REGION_PACKAGES,
)  # fmt: skip
"""Code whose change makes maps stale; of the atlases what cuts out the network's box and writes the map."""

CONSERVATION_COLUMNS = {
    "participant_id": "BIDS participant, with the prefix sub-",
    "session_id": "BIDS session, with the prefix ses-; n/a where the input has no sessions",
    "scan_id": "Identifier of the image in its source",
    "map": "LRP map, named as in the file names",
    "start_value": "Value of the target that relevance started from (logit or probability)",
    "map_sum": "Sum of the map over all voxels",
    "absorbed_by_bias": "Relevance absorbed by biases, all layers",
    "lost_no_contribution": "Relevance lost in units without a contribution to pass it to, all layers",
    "stabiliser": "Relevance absorbed by stabilisers, all layers",
    "residual": "start_value less map_sum and all losses: rounding",
}
CONSERVATION_TABLE = Table(
    "conservation", CONSERVATION_COLUMNS, "scan and LRP map", "Does the relevance of a map add up to the start value?",
    stage="attribution", place="conservation", filled=("participant_id", "scan_id", "map"), finite=True,
)  # fmt: skip


def explain_scans(
    layout: RunLayout,
    scans: Sequence[Scan],
    split: Split,
    predictions: pd.DataFrame,
    atlas: Atlas,
    config: Config,
    executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:
    """Write region tables, ledgers, the conservation table and the maps that are kept.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Registered scans. Those outside the contrast, and those in no test set (of a single split), have no network
        that may explain them and are left out.
    split : Split
    predictions : pandas.DataFrame
        ``predictions.tsv``; partial sums are taken by outcome.
    atlas : Atlas
        On the template grid.
    config : Config
    executor : concurrent.futures.Executor
    digests : DigestCache

    Returns
    -------
    list of Outcome
        One per scan explained.

    Raises
    ------
    BadInputError
        If maps are to be added up by outcome and a scan has no prediction.
    """
    territory, kept = Territory.of(atlas), config.attribution.keep_maps
    jobs, explained = [], []
    for scan in scans:
        fold = split.fold_of_test(scan.participant_id)
        if scan.label is not None and fold is not None:
            jobs.append(_job(layout, scan, fold.index, territory, config, digests))
            explained.append(scan)
    digests.save()
    for job in jobs:  # files of a scan that had no label in an earlier run must not pass for finished
        layout.receipt(APPLIED_STAGE, job.unit).unlink(missing_ok=True)
    if kept == "group":
        outcomes = explain_in_parts(layout, jobs, _outcomes_of(explained, predictions), executor)
    else:
        outcomes = run_jobs(layout, jobs, executor, "heatmaps")
        shutil.rmtree(layout.partial_sums, ignore_errors=True)
    if kept != "all":
        remove_maps([job.arguments[0].files for job in jobs])
    write_table(layout.conservation, conservation_rows(explained, outcomes, config), CONSERVATION_COLUMNS)
    return outcomes


def _job(layout: RunLayout, scan: Scan, fold: int, territory: Territory, config: Config, digests: DigestCache) -> Job:
    files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
    model, settings = layout.fold(fold), config.attribution
    inputs = {
        "t1w": digests.digest(files.t1w),
        "brain_mask": digests.digest(files.brain_mask),
        "weights": digests.digest(model.weights),
        "description": digests.digest(model.description),
    }
    outputs = table_outputs(files)
    if settings.keep_maps == "all":
        outputs |= map_outputs(files, settings)
    task = ScanToExplain(
        scan, files, fold, model, inputs["weights"], config.cohort.positive, settings, config.training, territory
    )
    parameters = identified(scan, fold, config, files, territory)
    return Job(STAGE, files.name, unit_key(inputs, parameters, *PACKAGES), outputs, explain_scan, (task,))


def identified(
    scan: Scan, fold: int | list[int], config: Config, files: ScanFiles, territory: Territory
) -> list[object]:
    """What the maps of a scan depend on beside its image and its networks."""
    identity = [scan.participant_id, scan.session_id, scan.scan_id]
    what = dataclasses.replace(config.attribution, keep_maps="all")  # what is kept changes outputs, not values
    return [identity, what, fold, config.cohort.positive, files.resolution_mm, territory.version]


def _outcomes_of(scans: Sequence[Scan], predictions: pd.DataFrame) -> list[str]:
    outcomes = dict(zip(predictions["scan_id"], predictions["outcome"], strict=True))
    lonely = [scan.scan_id for scan in scans if scan.scan_id not in outcomes]
    if lonely:
        raise BadInputError(f"predictions.tsv: scan {lonely[0]} has no row. Run training again.")
    return [outcomes[scan.scan_id] for scan in scans]


def remove_maps(scans: Iterable[ScanFiles]) -> None:
    """Remove the run's maps of single scans; those of ``heatlas explain`` stay."""
    for files in scans:
        for path in files.maps_of_the_run():
            path.unlink()
            sidecar(path).unlink(missing_ok=True)


def conservation_rows(scans: Sequence[Scan], outcomes: Sequence[Outcome], config: Config) -> pd.DataFrame:
    """One row per scan explained and LRP map."""
    rows = []
    for scan, outcome in zip(scans, outcomes, strict=True):
        if outcome.ok:
            for name in map(lrp_map_name, config.attribution.betas):
                account = [outcome.result[f"{name}.{key}"] for key in ACCOUNT]
                rows.append([scan.participant_id, scan.session_id, scan.scan_id, name, *account])
    return pd.DataFrame(rows, columns=list(CONSERVATION_COLUMNS))
