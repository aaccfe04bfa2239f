"""Scans outside the contrast (MCI), explained by networks that have not seen their participants.

A unit of work is a scan, as for labelled scans, and writes the same files; where several networks explain it the maps
are means (`pipeline.explaining.ensemble`). Receipts are those of a stage of its own. A scan whose label came or went
since an earlier run has files of the other stage: its receipt there is removed, so that they cannot pass for finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from atlases.labels import Atlas
from pipeline.cohort.people.tasks import task_of
from pipeline.cohort.people.unseen import networks_that_answered
from pipeline.cohort.records import Scan
from pipeline.explaining.ensemble import EnsembleToExplain, explain_by_ensemble
from pipeline.explaining.explained_scan import ScanToExplain, map_outputs, table_outputs
from pipeline.explaining.stage import (
    APPLIED_STAGE,
    CONSERVATION_COLUMNS,
    PACKAGES,
    STAGE,
    conservation_rows,
    identified,
    remove_maps,
)
from pipeline.regions.territory import Territory
from pipeline.run.config.settings import Config
from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.tables import write_table
from pipeline.run.work.digests import DigestCache, unit_key
from pipeline.run.work.jobs import Job, Outcome, run_jobs


def explain_applied(
    layout: RunLayout,
    scans: Sequence[Scan],
    atlas: Atlas,
    config: Config,
    executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:
    """Write region tables, ledgers, the conservation table and the maps that are kept, of scans outside the contrast.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Registered, without a label, and in ``predictions_applied.tsv``: the networks that answered explain them.
    atlas : Atlas
        On the template grid.
    config : Config
        With ``keep_maps = "group"`` no map is kept: mean maps are of labelled scans.
    executor : concurrent.futures.Executor
    digests : DigestCache

    Returns
    -------
    list of Outcome
        One per scan.
    """
    territory = Territory.of(atlas)
    answered = networks_that_answered(layout.predictions_applied, [scan.scan_id for scan in scans]) if scans else {}
    jobs = [_job(layout, scan, answered[scan.scan_id], territory, config, digests) for scan in scans]
    digests.save()
    for job in jobs:
        layout.receipt(STAGE, job.unit).unlink(missing_ok=True)
    outcomes = run_jobs(layout, jobs, executor, "other heatmaps")
    if config.attribution.keep_maps != "all":
        remove_maps([job.arguments[0].files for job in jobs])
    if scans:
        write_table(layout.conservation_applied, conservation_rows(scans, outcomes, config), CONSERVATION_COLUMNS)
    else:
        for path in (layout.conservation_applied, layout.conservation_applied.with_suffix(".json")):
            path.unlink(missing_ok=True)
    return outcomes


def _job(
    layout: RunLayout, scan: Scan, folds: Sequence[int], territory: Territory, config: Config, digests: DigestCache
) -> Job:
    files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
    settings, explained = config.attribution, task_of(config.cohort).explained
    inputs = {"t1w": digests.digest(files.t1w), "brain_mask": digests.digest(files.brain_mask)}
    members = []
    for fold in folds:
        model = layout.fold(fold)
        weights = digests.digest(model.weights)
        inputs |= {f"weights-{fold}": weights, f"description-{fold}": digests.digest(model.description)}
        members.append(
            ScanToExplain(
                scan,
                files,
                fold,
                model,
                weights,
                explained,
                settings,
                config.training,
                territory,
            )
        )
    outputs = table_outputs(files)
    if settings.keep_maps == "all":
        outputs |= map_outputs(files, settings)
    parameters = identified(scan, list(folds), config, files, territory)
    key = unit_key(inputs, parameters, "pipeline.cohort.people.unseen", *PACKAGES)
    return Job(APPLIED_STAGE, files.name, key, outputs, explain_by_ensemble, (EnsembleToExplain(tuple(members)),))
