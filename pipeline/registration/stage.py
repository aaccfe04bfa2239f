"""The registration stage: one job per kept scan, and the table of quality numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.templates import configured_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.registration.images.brain_extraction import require_synthstrip
from heatlas.pipeline.registration.quality.doubt import add_doubt
from heatlas.pipeline.registration.quality.outliers import MIN_COHORT, OUTLYING
from heatlas.pipeline.registration.quality.region_quality import (
    REGION_QUALITY_TABLE,
    gather_region_quality,
    measure_regions,
    region_quality_job,
)
from heatlas.pipeline.registration.quality.sides import DIVIDED_SHARE, MIRRORED_SCORE, Sides, sides_of
from heatlas.pipeline.registration.scan_jobs import registration_job
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.jobs import Job, Outcome, is_done, run_jobs
from heatlas.pipeline.run.work.progress import RateLimited

REGISTRATION_TABLE = declared(
    "registration",
    __file__,
    min_cohort=MIN_COHORT,
    outlying=OUTLYING,
    mirrored_score=MIRRORED_SCORE,
    divided_share=DIVIDED_SHARE,
)

Followers = Callable[[RunLayout, Scan, Outcome], Sequence[Job]]
"""Units of later stages that can follow the registration of a scan."""


def register_scans(
    work: Work,
    scans: Sequence[Scan],
    followers: Followers | None = None,
    on_tables: Callable[[Sequence[Scan]], None] | None = None,
) -> tuple[list[Outcome], list[Outcome]]:
    """Register every kept scan to template space and write the tables of quality numbers.

    The tables are updated with finished scans while others are still being registered.

    `followers`: units that the worker does right after each registration; picklable. `on_tables`: called with the scans
    registered so far whenever the tables are updated before the end. Gives the outcomes of the kept scans, and those of
    the quality per region of the registered ones.
    """
    layout, config, atlas = work.layout, work.config.registration, work.config.regions.atlas
    kept = [scan for scan in scans if scan.kept]
    if config.brain_extraction == "synthstrip":
        require_synthstrip(Path(config.synthstrip_model))
    finished: dict[str, Outcome] = {}
    template_digest = configured_template(config).source_digest if kept else ""
    measure = (atlas, find_atlas(atlas).digest, config.resolution_mm)
    jobs = [
        dataclasses.replace(
            registration_job(work, scan, template_digest),
            followers=functools.partial(_after, scan, measure, followers),
        )
        for scan in kept
    ]
    work.digests.save()

    def interim() -> None:
        ended = [scan for scan in kept if scan.name in finished]
        good = [scan for scan in ended if finished[scan.name].ok]
        measured = [scan for scan in good if is_done(layout, region_quality_job(layout, scan, *measure)) is not None]
        gather_region_quality(layout, measured, config.resolution_mm)
        _write_quality(work, ended, [finished[scan.name] for scan in ended], decided=False)
        if on_tables is not None:
            on_tables(good)

    paced = RateLimited(interim)

    def finish(outcome: Outcome) -> None:
        finished[outcome.job.unit] = outcome
        paced()

    outcomes = run_jobs(layout, jobs, work.executor, "registration", finish)
    registered = [scan for scan, outcome in zip(kept, outcomes, strict=True) if outcome.ok]
    regions = measure_regions(work, registered)
    sides = None
    if all(outcome.ok for outcome in regions):  # nearly always
        sides = sides_of([work.files(scan).asymmetry for scan in registered])
    _write_quality(work, kept, outcomes, sides=sides)
    return outcomes, regions


def _after(
    scan: Scan, measure: tuple[str, str, float], followers: Followers | None, layout: RunLayout, outcome: Outcome
) -> list[Job]:
    quality = region_quality_job(layout, scan, *measure)
    return [quality, *(followers(layout, scan, outcome) if followers is not None else ())]


def _write_quality(
    work: Work, scans: Sequence[Scan], outcomes: Sequence[Outcome], decided: bool = True, sides: Sides | None = None
) -> None:
    """Write ``registration.tsv``; ``region_quality.tsv`` must exist."""
    rows = [table_row(scan, outcome) for scan, outcome in zip(scans, outcomes, strict=True)]
    frame, regions = REGISTRATION_TABLE.frame(rows), REGION_QUALITY_TABLE.read(work.layout)
    quality = add_doubt(frame, regions, scans, work.layout, work.config.registration, decided, sides)
    REGISTRATION_TABLE.write(work.layout, quality)


def table_row(scan: Scan, outcome: Outcome) -> dict[str, Any]:
    """Row of a scan in ``registration.tsv`` without the columns on doubt, which depend on the other scans."""
    row: dict[str, Any] = dict.fromkeys(REGISTRATION_TABLE.meanings)
    row.update(
        participant_id=scan.participant_id,
        session_id=scan.session_id,
        scan_id=scan.scan_id,
        status="registered" if outcome.ok else "failed",
        entry=scan.entry,
        **outcome.result,
    )
    return row
