"""Mean maps without maps of single scans: scans explained in parts, whose maps are added up as they are made.

With ``keep_maps = "group"`` a unit of work is a part: up to `PART` test scans of one fold and one outcome, their maps
added in float64. A part is what a killed run repeats at most, and what is kept: one sum per map. While a scan is
explained, the next is read and the tables of the one before are written, by other threads.

A part does not fail for one scan. The tables of each scan (or what went wrong) go to a unit of work of that scan, so
that receipts, failures and accounts are as in any other run. A part with a failed scan is done again on the next call.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import traceback
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heatlas.atlases.spaces import Box
from heatlas.pipeline.explaining.explained_scan import (
    ExplainedScan,
    ScanToExplain,
    explained_scan,
    table_outputs,
    write_scan_tables,
)
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.regions.maps import PARTIAL_TABLE, write_sums
from heatlas.pipeline.run.documents import json_object
from heatlas.pipeline.run.errors import BadInputError, HeatlasError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import canonical_json, text_digest, unit_key
from heatlas.pipeline.run.work.host import kept_memory, on_host
from heatlas.pipeline.run.work.jobs import Job, Outcome, is_done, run_jobs

STAGE = "attribution-parts"
Found = ExplainedScan | Exception
Item = TypeVar("Item")
Made = TypeVar("Made")
PART = 16
"""Scans of a part: minutes of work on a processor at 1 mm, and the disk of about one scan's maps for 16."""


@dataclass(frozen=True)
class _Part:
    """One part as the process that hands out work sees it: its own job, and those of its scans."""

    job: Job
    outcome: str
    scan_jobs: tuple[Job, ...]


def explain_in_parts(
    layout: RunLayout, jobs: Sequence[Job], outcomes: Sequence[str], executor: Executor
) -> list[Outcome]:
    """Explain scans part by part; write partial sums and their table; one outcome per scan, in the order of `jobs`.

    A job has a `ScanToExplain` as its one argument and writes tables only; `outcomes` are those of the predictions.
    """
    parts = list(_parts(layout, jobs, outcomes))
    for part in parts:
        known = is_done(layout, part.job)
        if known is not None and known["failed"]:
            layout.receipt(STAGE, part.job.unit).unlink()
    done = run_jobs(layout, [part.job for part in parts], executor, "heatmaps")
    summed = set()
    for part, outcome in zip(parts, done, strict=True):
        if not outcome.ok:
            part.job.outputs["scans"].unlink(missing_ok=True)  # of an earlier state of these scans
        for job in part.scan_jobs:
            if outcome.ok and job.unit not in json.loads(outcome.result["failed_scans"]):
                summed.add(job.unit)
            else:  # tables from before that are in no sum must not pass for finished
                layout.receipt(job.stage, job.unit).unlink(missing_ok=True)
    by_unit = {job.unit: job for part in parts for job in part.scan_jobs}
    taken = run_jobs(layout, [by_unit[job.unit] for job in jobs], executor, "tables")
    _write_table(layout, parts, summed)
    wanted = {path for part in parts for path in part.job.outputs.values()}
    for path in {*layout.partial_sums.glob("fold-*_sums.npz"), *layout.partial_sums.glob("fold-*_scans.zip")} - wanted:
        path.unlink()  # of other folds, or other predictions
    return taken


@kept_memory()
def explain_part(outputs: Mapping[str, Path], scans: Sequence[ScanToExplain]) -> Mapping[str, Any]:
    """Explain the scans of a part, all of one fold, and add up their maps; the work of one job.

    `outputs`: ``sums``, and ``scans`` for the tables of each scan, or the reason why there are none.
    """
    sums: dict[str, Tensor] = {}
    box: Box | None = None
    failed = []
    tables = partial(_tables_of, scratch=outputs["scans"].parent)
    with zipfile.ZipFile(outputs["scans"], "w", zipfile.ZIP_DEFLATED) as archive, ThreadPoolExecutor(2) as beside:
        for (scan, found), written in _one_ahead(beside, tables, _explained(beside, scans)):
            try:
                facts = written.result()
            except Exception as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise  # stops the run: the next scan would fare no better
                failed.append(scan.files.name)
                archive.writestr(f"{scan.files.name}/failure.json", json.dumps(_described(error)))
                continue
            assert isinstance(found, ExplainedScan)
            for short, path in _scratch(scan, outputs["scans"].parent).items():
                archive.write(path, f"{scan.files.name}/{short}")
                path.unlink()
            archive.writestr(f"{scan.files.name}/facts.json", json.dumps(facts))
            box = found.loaded.input.box
            for name, values in found.maps.items():
                sums[name] = sums[name].add_(values) if name in sums else values.double()
    write_sums(outputs["sums"], {name: on_host(values).numpy() for name, values in sums.items()}, box)
    return {"scans": len(scans), "failed": len(failed), "failed_scans": json.dumps(failed)}


def take_scan(outputs: Mapping[str, Path], archive: Path, name: str) -> Mapping[str, Any]:
    """Put the tables of one scan of a part in their place; the work of one job.

    Raises what went wrong with this scan, as it was raised while the part was explained.
    """
    try:
        with zipfile.ZipFile(archive) as stored:
            if f"{name}/failure.json" in stored.namelist():
                failure = json_object(stored.read(f"{name}/failure.json"))
                kinds = {kind.__name__: kind for kind in HeatlasError.__subclasses__()}
                raised = kinds.get(failure["kind"], RuntimeError)(failure["message"])
                raise raised from RuntimeError(failure["traceback"])
            for short, path in outputs.items():
                path.write_bytes(stored.read(f"{name}/{short}"))
            return json_object(stored.read(f"{name}/facts.json"))
    except FileNotFoundError as error:
        raise BadInputError(f"{archive.name}: the scans of this part failed together; see {STAGE}.") from error
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise BadInputError(f"{archive}: not readable ({error}). Remove it and run the same command again.") from error


def _parts(layout: RunLayout, jobs: Sequence[Job], outcomes: Sequence[str]) -> Iterator[_Part]:
    members: dict[tuple[int, str], list[Job]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        members.setdefault((job.arguments[0].networks[0].fold, outcome), []).append(job)
    for (fold, outcome), together in sorted(members.items()):
        for number, first in enumerate(range(0, len(together), PART)):
            few = together[first : first + PART]
            unit = f"fold-{fold}_{outcome}_{number:03d}"
            outputs = {"sums": layout.partial_sum(unit), "scans": layout.partial_scans(unit)}
            key = unit_key({job.unit: job.key for job in few}, None, explain_part)
            scans = tuple(job.arguments[0] for job in few)
            scan_jobs = tuple(
                dataclasses.replace(
                    job,
                    key=text_digest(canonical_json([job.key, key])),
                    function=take_scan,
                    arguments=(outputs["scans"], job.unit),
                )
                for job in few
            )
            yield _Part(Job(STAGE, unit, key, outputs, explain_part, (scans,), on_gpu=True), outcome, scan_jobs)


def _one_ahead(
    beside: Executor, function: Callable[[Item], Made], items: Iterable[Item]
) -> Iterator[tuple[Item, Future[Made]]]:
    """Each item with what a function makes of it in another thread, while the next item is made and used."""
    begun: deque[tuple[Item, Future[Made]]] = deque()
    for item in items:
        begun.append((item, beside.submit(function, item)))
        if len(begun) > 1:
            yield begun.popleft()
    yield from begun


def _explained(beside: Executor, scans: Sequence[ScanToExplain]) -> Iterator[tuple[ScanToExplain, Found]]:
    """Scans with their maps, or with what went wrong; each is read while the one before is explained."""
    for scan, volume in _one_ahead(beside, _read, scans):
        try:
            found: Found = explained_scan(scan, volume.result())
        except Exception as error:
            found = error
        yield scan, found


def _read(scan: ScanToExplain) -> NDArray[np.float32]:
    return read_channels(scan.files, scan.networks[0].load(chosen_device(scan.training)).input)


def _tables_of(explained: tuple[ScanToExplain, Found], scratch: Path) -> dict[str, Any]:
    scan, found = explained
    if isinstance(found, Exception):
        raise found
    return write_scan_tables(_scratch(scan, scratch), found, scan)


def _scratch(scan: ScanToExplain, folder: Path) -> dict[str, Path]:
    """Where the tables of a scan lie until they are in the archive."""
    return {short: folder / path.name for short, path in table_outputs(scan.files, scan.explanations).items()}


def _described(error: Exception) -> dict[str, str]:
    message = str(error) if isinstance(error, HeatlasError) else f"{type(error).__name__}: {error}"
    return {"kind": type(error).__name__, "message": message, "traceback": traceback.format_exc()}


def _write_table(layout: RunLayout, parts: Sequence[_Part], summed: set[str]) -> None:
    rows = []
    for part in parts:
        for job in part.scan_jobs:
            if job.unit in summed:
                scan = next(task.scan for task in part.job.arguments[0] if task.files.name == job.unit)
                rows.append([part.job.unit, part.outcome, scan.participant_id, scan.session_id, scan.scan_id])
    PARTIAL_TABLE.write(layout, rows)
