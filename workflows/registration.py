"""What follows the registration of the scans: figures, volumes, and what becomes of scans in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from pipeline.cohort.records import Scan, ScanTable
from pipeline.registration.decisions import require_decisions
from pipeline.registration.settled import settle_scans
from pipeline.registration.volume_tables import hippocampal_volumes, measure_volumes
from pipeline.run.config import Config
from pipeline.run.digests import DigestCache
from pipeline.run.jobs import Outcome
from pipeline.run.layout import RunLayout
from pipeline.run.tables import read_table
from reports.overviews import draw_overviews


def finish_registration(
    layout: RunLayout,
    scans: Sequence[Scan],
    registrations: Sequence[Outcome],
    config: Config,
    executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:
    """Draw the overviews, measure volumes, and bring ``scans.tsv`` up to date.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Those that were to be registered.
    registrations : sequence of Outcome
        How that went, by scan.
    config : Config
    executor : concurrent.futures.Executor
    digests : DigestCache

    Returns
    -------
    list of Outcome
        Of the figures and of the volumes.

    Raises
    ------
    ResumableError
        If the settings ask about scans in doubt and decisions are missing.
    """
    settings = config.registration
    registered = [scan for scan, outcome in zip(scans, registrations, strict=True) if outcome.ok]
    figures = draw_overviews(layout, registered, settings.resolution_mm, executor)
    warped = [scan for scan in registered if scan.entry != "template"]
    _, volumes = measure_volumes(layout, warped, config.regions.atlas, settings.resolution_mm, executor, digests)
    quality = read_table(layout.registration_quality, text_columns=["flags", "decision"])
    own = hippocampal_volumes(read_table(layout.volumes, text_columns=["group"]))
    table = settle_scans(ScanTable.read(layout.scans), quality, own, config.regions.atlas, settings)
    table.write(layout.scans)
    doubtful = quality[quality["flags"].notna()]
    names = ["_".join(str(part) for part in key if str(part) != "nan")
             for key in doubtful[["participant_id", "session_id"]].itertuples(index=False)]  # fmt: skip
    require_decisions(dict(zip(names, doubtful["decision"].fillna(""), strict=True)), layout.flagged)
    return [*figures, *volumes]
