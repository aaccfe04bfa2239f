"""Overview figures of all registered scans: one unit of work each, drawn in the workers, before anyone is asked."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from atlases.templates import Template, load_template
from pipeline.cohort.records import Scan
from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.tables import read_table
from pipeline.run.work.digests import unit_key
from pipeline.run.work.jobs import Job, Outcome, receipt_key, run_jobs
from reports.figures.registration_overview import write_overview
from reports.words.numbers import fixed, is_missing

STAGE = "overview"
CHARACTERS = 100  # of a line below the slices


def draw_overviews(layout: RunLayout, scans: Sequence[Scan], resolution_mm: float, executor: Executor) -> list[Outcome]:
    """Draw the overview of every registered scan that has none, or one of another registration.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Registered ones.
    resolution_mm : float
    executor : concurrent.futures.Executor

    Returns
    -------
    list of Outcome
        One per scan.
    """
    quality = read_table(layout.registration_quality, text_columns=["flags", "decision"])
    by_id = {str(row["scan_id"]): row for row in quality.to_dict("records")}
    jobs = [overview_job(layout, scan, by_id[scan.scan_id], resolution_mm) for scan in scans]
    return run_jobs(layout, jobs, executor, "overviews")


def overview_job(layout: RunLayout, scan: Scan, row: Mapping[Any, Any], resolution_mm: float) -> Job:
    """Unit of work of one scan, given its row of ``registration.tsv``."""
    files = layout.scan(scan.participant_id, scan.session_id, resolution_mm)
    lines = caption_lines(files.name, row)
    registered = receipt_key(layout, "registration", files.name) or ""
    key = unit_key({"registration": registered}, [lines, resolution_mm], draw_one)
    arguments = (files.t1w, resolution_mm, lines)
    return Job(STAGE, files.name, key, {"overview": files.overview}, draw_one, arguments)


def draw_one(outputs: dict[str, Path], t1w: Path, resolution_mm: float, lines: Sequence[str]) -> None:
    """Job: draw the overview of one scan."""
    write_overview(outputs["overview"], t1w, _template(resolution_mm), lines)


@functools.cache
def _template(resolution_mm: float) -> Template:
    return load_template(resolution_mm)


def caption_lines(name: str, row: Mapping[Any, Any]) -> list[str]:
    """What is written below the slices: the scan, its numbers, why it is in doubt.

    `name`: BIDS prefix of the scan. `row`: its row of ``registration.tsv``.
    """
    numbers = [f"correlation {fixed(row['correlation'], 3)}", f"Dice {fixed(row['dice'], 3)}"]
    if not is_missing(row["scale"]):
        numbers.append(f"scale {fixed(row['scale'], 2)}")
    if not is_missing(row["brain_mm3"]):
        numbers.append(f"brain {fixed(float(str(row['brain_mm3'])) / 1000, 0)} ml")
    lines = [f"{name}: {', '.join(numbers)}"]
    if not is_missing(row["flags"]):
        lines += textwrap.wrap(f"in doubt: {row['flags']}", CHARACTERS)
    return lines
