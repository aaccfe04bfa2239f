"""The attribution stage: each scan explained by the networks that have not seen its participant.

One unit of work per scan. The target is the positive class for every scan, patients and controls alike, so that all
maps answer one question: what speaks for the positive class here? Where a number is predicted, it is the number. A scan
outside the contrast (MCI) is explained by all networks that answered, and its maps are means; its receipts are those of
a stage of their own, so that they cannot pass for those of a labelled scan if its label comes or goes.

Which maps are kept (``keep_maps``) decides what is written, not what is computed: going from "all" to "none" makes
nothing stale. Maps of single scans that are no longer kept or asked for are removed, or they would be read beside
tables of later settings. "group" adds maps up as they are made; see `pipeline.explaining.partial`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from heatlas.atlases.labels import Atlas
from heatlas.pipeline.cohort.people.splits import networks_that_answered
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.explaining.explained_scan import (
    ACCOUNT,
    EVIDENCE_ACCOUNT,
    Explanation,
    map_outputs,
    table_outputs,
)
from heatlas.pipeline.explaining.partial import STAGE as PARTS_STAGE
from heatlas.pipeline.explaining.partial import explain_in_parts
from heatlas.pipeline.explaining.scan_jobs import JobMaker, explanations_of_run, require_all_defined
from heatlas.pipeline.explaining.tables import declared
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.tables import with_outcomes
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles, sidecar
from heatlas.pipeline.run.work.jobs import Job, Outcome, record_failures, run_jobs
from heatlas.pipeline.training.application import PREDICTIONS_APPLIED_TABLE

STAGE = "attribution"
APPLIED_STAGE = "attribution-applied"
"""Names the receipts of scans outside the contrast."""

CONSERVATION_TABLE, EVIDENCE_TABLE = declared("conservation"), declared("evidence")


def _of_others(table: Table) -> Table:
    """The same table of scans outside the contrast."""
    question, name = "The same for scans outside the contrast, such as MCI.", f"{table.name}_applied"
    return replace(table, name=name, question=question, file=f"group/{name}.tsv")


EVIDENCE_APPLIED_TABLE = _of_others(EVIDENCE_TABLE)
CONSERVATION_APPLIED_TABLE = replace(_of_others(CONSERVATION_TABLE), on_pages=False)


def explain_all(
    work: Work,
    scans: Sequence[Scan],
    predictions: pd.DataFrame,
    applied: Sequence[Scan],
    labelled: Sequence[Scan],
    atlas: Atlas,
) -> tuple[list[Outcome], list[Outcome]]:
    """`explain_scans` and `explain_applied` at once: the others, which all networks explain, take longest, so begin."""
    if work.config.attribution.keep_maps == "group":
        return explain_scans(work, scans, predictions, atlas, labelled), explain_applied(work, applied, labelled, atlas)
    explained, jobs = _labelled_jobs(work, scans, atlas, labelled)
    others = _applied_jobs(work, applied, labelled, atlas)
    outcomes = run_jobs(work.layout, [*others, *jobs], work.executor, "heatmaps")
    of_others, of_labelled = outcomes[: len(others)], outcomes[len(others) :]
    _finish(work, explained, jobs, of_labelled)
    _finish_applied(work, applied, others, of_others)
    return of_labelled, of_others


def explain_scans(
    work: Work, scans: Sequence[Scan], predictions: pd.DataFrame, atlas: Atlas, labelled: Sequence[Scan] | None = None
) -> list[Outcome]:
    """Write region tables, ledgers, the tables of accounts and the maps that are kept, of labelled scans.

    `scans`: registered scans. Those outside the contrast, and those in no test set (of a single split), have no network
    that may explain them and are left out. `predictions`: ``predictions.tsv``; partial sums are taken by outcome.
    `atlas`: on the template grid. `labelled`: registered, with a label; the scans that the networks were trained with
    are among them. By default `scans`.
    """
    explained, jobs = _labelled_jobs(work, scans, atlas, scans if labelled is None else labelled)
    if work.config.attribution.keep_maps == "group":
        outcomes = explain_in_parts(work.layout, jobs, _outcomes_of(explained, predictions), work.executor)
    else:
        outcomes = run_jobs(work.layout, jobs, work.executor, "heatmaps")
    _finish(work, explained, jobs, outcomes)
    return outcomes


def _labelled_jobs(
    work: Work, scans: Sequence[Scan], atlas: Atlas, labelled: Sequence[Scan]
) -> tuple[list[Scan], list[Job]]:
    """The scans that a network may explain, and a job for each."""
    layout, config = work.layout, work.config
    folds = {scan.scan_id: work.split.fold_of_test(scan.participant_id) for scan in scans if scan.label is not None}
    tested = {scan_id: (fold.index,) for scan_id, fold in folds.items() if fold is not None}
    explained = [scan for scan in scans if scan.scan_id in tested]
    controls = controls_of(labelled, work.split, config)
    maker = JobMaker(layout, STAGE, PackedAtlas.of(atlas), config, work.digests, controls)
    jobs = _jobs(maker, explained, tested)
    for job in jobs:  # files of a scan that had no label in an earlier run must not pass for finished
        layout.receipt(APPLIED_STAGE, job.unit).unlink(missing_ok=True)
    return explained, jobs


def _finish(work: Work, explained: Sequence[Scan], jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
    if work.config.attribution.keep_maps != "group":
        shutil.rmtree(work.layout.partial_sums, ignore_errors=True)
        record_failures(work.layout, [], [PARTS_STAGE])
    _remove_other_maps(jobs)
    _write_accounts((CONSERVATION_TABLE, EVIDENCE_TABLE), work.layout, explained, outcomes)


def explain_applied(work: Work, scans: Sequence[Scan], labelled: Sequence[Scan], atlas: Atlas) -> list[Outcome]:
    """Write the same of scans outside the contrast.

    `scans`: registered, without a label, and in ``predictions_applied.tsv``: the networks that answered explain them.
    `labelled`: the scans that the networks were trained with are among them. With ``keep_maps = "group"`` no map is
    kept: mean maps are of labelled scans.
    """
    jobs = _applied_jobs(work, scans, labelled, atlas)
    outcomes = run_jobs(work.layout, jobs, work.executor, "other heatmaps" if labelled else "heatmaps")
    _finish_applied(work, scans, jobs, outcomes)
    return outcomes


def _applied_jobs(work: Work, scans: Sequence[Scan], labelled: Sequence[Scan], atlas: Atlas) -> list[Job]:
    layout, config = work.layout, work.config
    names = [scan.scan_id for scan in scans]
    answered = networks_that_answered(PREDICTIONS_APPLIED_TABLE.path(layout), names) if names else {}
    controls = controls_of(labelled, work.split, config)
    maker = JobMaker(layout, APPLIED_STAGE, PackedAtlas.of(atlas), config, work.digests, controls)
    jobs = _jobs(maker, scans, answered)
    for job in jobs:
        layout.receipt(STAGE, job.unit).unlink(missing_ok=True)
    return jobs


def _finish_applied(work: Work, scans: Sequence[Scan], jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
    _remove_other_maps(jobs)
    accounts = (CONSERVATION_APPLIED_TABLE, EVIDENCE_APPLIED_TABLE)
    if scans:
        _write_accounts(accounts, work.layout, scans, outcomes)
    else:
        for table in accounts:
            table.remove(work.layout)


def _jobs(maker: JobMaker, scans: Sequence[Scan], folds: Mapping[str, tuple[int, ...]]) -> list[Job]:
    explanations = explanations_of_run(maker.config)
    jobs = []
    for scan in scans:
        files = maker.files(scan)
        outputs = table_outputs(files, explanations)
        if maker.config.attribution.keep_maps == "all":
            outputs |= map_outputs(explanations, files.relevance_map)
        jobs.append(maker.job(files.name, scan, folds[scan.scan_id], explanations, outputs))
    maker.digests.save()
    _require_defined(maker, jobs, explanations)
    return jobs


def _require_defined(maker: JobMaker, jobs: Sequence[Job], explanations: Sequence[Explanation]) -> None:
    """Ask the first network that is there, before any scan; the networks of all folds are alike."""
    conditional = [asked for asked in explanations if hasattr(asked.entry.record, "require")]
    there = [one for job in jobs for one in job.arguments[0].networks if one.files.weights.is_file()]
    if conditional and there:
        loaded = load_model(there[0].files)
        require_all_defined(loaded.model, loaded.input, maker.atlas, conditional)


def _outcomes_of(scans: Sequence[Scan], predictions: pd.DataFrame) -> list[str]:
    predictions = with_outcomes(predictions)
    outcomes = dict(zip(predictions["scan_id"], predictions["outcome"], strict=True))
    missing = [scan.scan_id for scan in scans if scan.scan_id not in outcomes]
    if missing:
        raise BadInputError(f"predictions.tsv: scan {missing[0]} has no row. Run training again.")
    return [outcomes[scan.scan_id] for scan in scans]


def _remove_other_maps(jobs: Iterable[Job]) -> None:
    """Remove the run's maps of single scans that are no longer kept or asked for.

    A map with a table of its own beside it was made by ``heatlas explain`` of an earlier version, and stays.
    """
    for job in jobs:
        files: ScanFiles = job.arguments[0].files
        for path in set(files.maps_of_the_run()) - set(job.outputs.values()):
            label = path.name.rpartition("_desc-")[2].split("_")[0]
            if not files.explanation_regions(label).is_file():
                path.unlink()
                sidecar(path).unlink(missing_ok=True)


def _write_accounts(
    tables: tuple[Table, Table], layout: RunLayout, scans: Sequence[Scan], outcomes: Sequence[Outcome]
) -> None:
    for table, account in zip(tables, (ACCOUNT, EVIDENCE_ACCOUNT), strict=True):
        rows: list[list[object]] = []
        end = f".{account[-1]}"
        for scan, outcome in zip(scans, outcomes, strict=True):
            for name in [key.removesuffix(end) for key in outcome.result if key.endswith(end)]:
                values = [outcome.result[f"{name}.{key}"] for key in account]
                rows.append([scan.participant_id, scan.session_id, scan.scan_id, name, *values])
        table.write(layout, rows)
