"""Registration and what follows it: figures, volumes, and decisions on scans in doubt.

A module of its own, since workers import it: `stages` would bring all that a run needs.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

import pandas as pd

from heatlas.atlases.catalogue import find_atlas
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.registration.quality.doubt import FLAGGED_TABLE, MIRRORED, NOT_KNOWN, require_decisions
from heatlas.pipeline.registration.quality.outliers import flag_reasons
from heatlas.pipeline.registration.settled import settle_scans
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE, register_scans, table_row
from heatlas.pipeline.registration.volumes import (
    VOLUMES_TABLE,
    gather_volumes,
    hippocampal_volumes,
    measure_volumes,
    volume_job,
)
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.jobs import Job, Outcome, is_done
from heatlas.reports.frame.overviews import draw_overviews, overview_job


def register_and_finish(work: Work, scans: Sequence[Scan]) -> tuple[list[Outcome], list[Outcome]]:
    """Register scans, draw the overviews, measure volumes, and update ``scans.tsv``.

    The worker that has registered a scan then draws its figure and measures its volumes; the tables of the group are
    updated from time to time. What depends on the whole cohort comes at the end. The first list has one outcome per
    kept scan, the second those of figures, volumes and quality per region.
    """
    layout, atlas, resolution = work.layout, work.config.regions.atlas, work.config.registration.resolution_mm
    atlas_digest = find_atlas(atlas).digest

    def interim_volumes(registered: Sequence[Scan]) -> None:
        measured = [
            scan for scan in registered if scan.entry != "template"
            and is_done(layout, volume_job(layout, scan, atlas, atlas_digest, resolution)) is not None
        ]  # fmt: skip
        gather_volumes(layout, measured, resolution)

    followers = functools.partial(_followers, atlas, atlas_digest, resolution)
    registrations, regions = register_scans(work, scans, followers, interim_volumes)
    kept = [scan for scan in scans if scan.kept]
    registered = [scan for scan, outcome in zip(kept, registrations, strict=True) if outcome.ok]
    figures = draw_overviews(layout, registered, resolution, work.executor)
    warped = [scan for scan in registered if scan.entry != "template"]
    _, volumes = measure_volumes(work, warped)
    _settle(layout, work.config)
    return registrations, [*regions, *figures, *volumes]


def _followers(
    atlas: str, atlas_digest: str, resolution_mm: float, layout: RunLayout, scan: Scan, outcome: Outcome
) -> list[Job]:
    """Jobs that a worker does after registering a scan; a figure whose flags change later is drawn again."""
    row = table_row(scan, outcome)
    reasons = flag_reasons(pd.DataFrame([row]), [scan.age])[0]
    jobs = [overview_job(layout, scan, row | {"flags": "; ".join(reasons) or None}, resolution_mm)]
    if scan.entry != "template":
        jobs.append(volume_job(layout, scan, atlas, atlas_digest, resolution_mm))
    return jobs


def _settle(layout: RunLayout, config: Config) -> None:
    """Update ``scans.tsv``, and stop if a person has to decide."""
    settings = config.registration
    quality = REGISTRATION_TABLE.read(layout)
    measured = hippocampal_volumes(VOLUMES_TABLE.read(layout))
    table = settle_scans(ScanTable.read(layout), quality, measured, config.regions.atlas, settings)
    table.write(layout)
    for note in side_notes(quality):
        logging.getLogger("heatlas").warning("%s", note)
    doubtful = quality[quality["flags"].notna()]
    names = ["_".join(str(part) for part in key if str(part) != "nan")
             for key in doubtful[["participant_id", "session_id"]].itertuples(index=False)]  # fmt: skip
    require_decisions(dict(zip(names, doubtful["decision"].fillna(""), strict=True)), FLAGGED_TABLE.path(layout))


def side_notes(quality: pd.DataFrame) -> list[str]:
    """What ``registration.tsv`` says about left and right, for the command line: nothing if all is well."""
    mirrored = quality.loc[quality["sides"] == MIRRORED, "participant_id"].astype(str)
    if len(mirrored):
        shown = ", ".join(mirrored[:5]) + (", ..." if len(mirrored) > 5 else "")
        return [
            f"{len(mirrored)} of {quality['sides'].notna().sum()} scans look mirrored left to right: {shown}. Compare "
            "them with their source; group/registration.tsv has the score of every scan."
        ]
    unknown = quality.loc[quality["sides"].fillna("").str.startswith(NOT_KNOWN), "sides"]
    return [f"Whether scans are mirrored left to right is {unknown.iloc[0]}."] if len(unknown) else []
