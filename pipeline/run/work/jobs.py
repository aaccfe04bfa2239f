"""Work with receipts: each unit, and each step over the group, is done once, completely, and is not lost.

A *unit* is one scan registered, one fold trained, one scan explained. Its key is a digest of inputs, parameters
and code. Its outputs are written to a scratch folder and renamed into place, then a receipt is written. A unit
whose receipt has the right key is not repeated; a unit that fails becomes a row of ``failures.tsv`` with a
traceback in a file, and the others continue.

A *step* reads tables and maps of the run and writes tables, each atomically. It has a receipt, too; an interrupted step
has none and is repeated. By the receipts of registration an image that was changed since is refused.
"""

from __future__ import annotations

import errno
import glob
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError, HeatlasError, ResumableError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import plain, with_named_folders
from heatlas.pipeline.run.tables import write_json, write_text
from heatlas.pipeline.run.work.cluster import ClusterExecutor, WorkerLostError
from heatlas.pipeline.run.work.digests import (
    Code,
    DigestCache,
    file_digest,
    log_remade,
    read_receipt,
    same_content,
    stamp_of,
    unit_key,
)
from heatlas.pipeline.run.work.host import is_full, why_unwritten
from heatlas.pipeline.run.work.progress import Progress

FAILURES_TABLE = Table(
    "failures",
    {
        "stage": "Stage that failed",
        "unit": "Unit of work: a scan or a fold",
        "error": "Kind of error",
        "message": "What went wrong and what to do",
        "traceback": "File with the full traceback, relative to the run folder",
    },
    "unit of work that failed", "What went wrong, and what can be done?", stage="run",
    file="failures.tsv", filled=("stage", "unit"),
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One unit of work and the function that does it.

    `stage`, `unit`: name the receipt; `unit` is a file name. `key`: from `pipeline.run.work.digests.unit_key`.
    `outputs`: final path of each output by a short name. `function`: ``function(outputs, *arguments)``: writes each
    output to the scratch path of the same short name in `outputs` and may return a flat mapping of numbers and text,
    kept in the receipt. Must be importable (it runs in another process). `arguments`: picklable.
    """

    stage: str
    unit: str
    key: str
    outputs: Mapping[str, Path]
    function: Callable[..., Mapping[str, Any] | None]
    arguments: tuple[Any, ...] = ()
    followers: Callable[[RunLayout, Outcome], Sequence[Job]] | None = None
    """Units of later stages to do in the same worker after this one; picklable. Their outcomes are not kept: the later
    stage finds them done or repeats them."""
    on_gpu: bool = False
    """Whether it computes with networks, on a GPU where there is one."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``done``, ``unchanged`` (its receipt was valid) or ``failed``."""

    job: Job
    status: str
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def ok(self) -> bool:
        return self.status != "failed"


def is_done(layout: RunLayout, job: Job) -> Mapping[str, Any] | None:
    """Result in the job's receipt if the job needs no work, else None.

    An output that has changed since it was written is named in the log.
    """
    path = layout.receipt(job.stage, job.unit)
    receipt = read_receipt(path)
    if receipt is None or receipt.key != job.key:
        return None
    before, now = receipt.outputs, {}
    for output in job.outputs.values():
        name = output.relative_to(layout.root).as_posix()
        stamped = stamp_of(output, before.get(name))
        if not same_content(stamped, before.get(name)):
            log_remade(name, stamped)
            return None
        now[name] = stamped
    if now != before:  # moved or copied: avoids reading them again the next time
        with suppress(OSError):
            write_json(path, {**receipt.content, "outputs": now})
    return receipt.result


def receipt_key(layout: RunLayout, stage: str, unit: str) -> str | None:
    """Key of a finished unit, which identifies its outputs without reading them; None without a receipt."""
    receipt = read_receipt(layout.receipt(stage, unit))
    return None if receipt is None else receipt.key


def run_jobs(
    layout: RunLayout,
    jobs: Sequence[Job],
    executor: Executor,
    description: str,
    on_end: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Do all jobs that need doing; keep going when one fails.

    `jobs`: units of one stage. `description`: for the progress bar. `on_end`: called with every outcome in this
    process, not in a worker. Returns outcomes in the order of `jobs`. Raises ResumableError if the disk is full;
    finished units are kept. Raises concurrent.futures.BrokenExecutor if a local worker was lost. If it was one of a
    cluster, the other units are done first and the error names it.
    """
    outcomes: dict[int, Outcome] = {}
    pending: dict[Future[Outcome], int] = {}
    lost: list[tuple[Job, WorkerLostError]] = []

    def count_running() -> int:
        """Units that some worker, here or elsewhere, is working on: each has a scratch folder."""
        return sum(1 for _ in layout.scratch.glob("*"))

    with Progress(len(jobs), description, count_running, getattr(executor, "logs", None)) as bar:
        try:
            for index, job in enumerate(jobs):
                result = is_done(layout, job)
                if result is not None:
                    outcomes[index] = Outcome(job, "unchanged", result)
                    bar.update(unchanged=True)
                    if on_end is not None:
                        on_end(outcomes[index])
                else:
                    workers = executor.gpu if isinstance(executor, ClusterExecutor) and job.on_gpu else executor
                    pending[workers.submit(_execute_all, layout, job)] = index
            for future in as_completed(pending):
                try:
                    outcomes[pending[future]] = outcome = future.result()
                except WorkerLostError as error:
                    lost.append((jobs[pending[future]], error))
                    bar.update(failed=True)
                    continue
                bar.update(failed=not outcome.ok)
                if on_end is not None:
                    on_end(outcome)
        except BaseException:
            for future in pending:
                future.cancel()
            raise
    if lost:
        job, last = lost[0]
        others = f" (and of {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise WorkerLostError(f"{job.stage}: the worker of {job.unit}{others} was lost at every try ({last})")
    ordered = [outcomes[index] for index in range(len(jobs))]
    record_failures(layout, ordered)
    return ordered


def _execute_all(layout: RunLayout, job: Job) -> Outcome:
    outcome = execute(layout, job)
    if outcome.ok and job.followers is not None:
        for follower in job.followers(layout, outcome):
            execute(layout, follower)
    return outcome


def execute(layout: RunLayout, job: Job) -> Outcome:
    place = f"{job.stage}_{job.unit}.{platform.node()}"
    scratch = layout.scratch / f"{place}.{os.getpid()}"
    started = time.monotonic()
    try:
        for left in layout.scratch.glob(f"{glob.escape(place)}.*"):  # by a worker that was killed
            shutil.rmtree(left, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)
        paths = {name: scratch / path.name for name, path in job.outputs.items()}
        result = dict(job.function(paths, *job.arguments) or {})
        if is_full(layout.root):
            raise OSError(errno.ENOSPC, "no space left")
        receipt = layout.receipt(job.stage, job.unit)
        receipt.unlink(missing_ok=True)  # if killed between two renames, mixed outputs must not count as finished
        written = {}
        for name, final in job.outputs.items():
            final.parent.mkdir(parents=True, exist_ok=True)
            paths[name].replace(final)
            written[final.relative_to(layout.root).as_posix()] = stamp_of(final)
        seconds = round(time.monotonic() - started, 3)
        content = {"key": job.key, "outputs": written, "result": result, "seconds": seconds, "host": platform.node()}
        write_json(receipt, content)
        layout.traceback(job.stage, job.unit).unlink(missing_ok=True)
        return Outcome(job, "done", result)
    except Exception as error:
        read_only = isinstance(error, OSError) and error.errno == errno.EROFS
        why = "the disk has become read-only; make it writable" if read_only else None
        why = why or why_unwritten(error, layout.root, scratch)
        if why is not None:
            raise ResumableError(
                f"{layout.root}: stopped while working on {job.unit}: {why} and run the same command again; finished "
                "work is kept."
            ) from error
        return Outcome(job, "failed", {}, type(error).__name__, _message(error), traceback.format_exc())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _message(error: Exception) -> str:
    """What went wrong, and the remedy as far as it is known."""
    if isinstance(error, HeatlasError):
        return str(error)
    if type(error).__name__ == "OutOfMemoryError":  # of torch, which this room does not import
        return (
            "the memory of the GPU is full. Lower training.batch_size and raise training.accumulate by as much, let "
            "fewer workers share the GPU (--n-procs, cluster.workers_per_gpu), choose a coarser "
            'registration.resolution_mm, or set training.device = "cpu".'
        )
    return f"{type(error).__name__}: {error}"


def record_failures(layout: RunLayout, outcomes: Sequence[Outcome], stages: Collection[str] = ()) -> None:
    """Update ``failures.tsv`` for the stages of these outcomes, which are all of their stage, and for `stages`."""
    stages = {*stages, *(outcome.job.stage for outcome in outcomes)}
    rows = pd.DataFrame(columns=list(FAILURES_TABLE.meanings), dtype=str)
    if layout.failures.is_file():
        rows = FAILURES_TABLE.read(layout.failures)
        rows = rows[~rows["stage"].isin(stages)]
    new, folders = [], _folders_of(layout)
    for outcome in outcomes:
        if outcome.ok:
            continue
        log = layout.traceback(outcome.job.stage, outcome.job.unit)
        write_text(log, with_named_folders(plain(outcome.traceback), folders))
        message = with_named_folders(plain(" ".join(outcome.message.split())), folders)
        new.append(
            [outcome.job.stage, outcome.job.unit, outcome.error, message, log.relative_to(layout.root).as_posix()]
        )
    rows = pd.concat([rows, pd.DataFrame(new, columns=list(FAILURES_TABLE.meanings), dtype=str)], ignore_index=True)
    FAILURES_TABLE.write(layout.failures, rows.sort_values(["stage", "unit"]))


def _folders_of(layout: RunLayout) -> dict[Path, str]:
    """Folders of this machine in messages and tracebacks, and the names that replace them."""
    folders = {layout.root: "OUT", Path(__file__).parents[3]: "heatlas", Path(sys.prefix): "python"}
    with suppress(UsageError):
        folders[read_run_input(layout).input] = "INPUT"
    return folders | {Path(sys.base_prefix): "python"}


def clear_stale_scratch(layout: RunLayout) -> None:
    """Remove what killed runs left, on this computer or on nodes of a cluster.

    Only for the holder of the lock of the run, or of the people of the job: nobody else works there. A worker that
    outlives its run fails unseen.
    """
    for folder in [*layout.scratch.glob("*"), layout.kept_volumes]:
        shutil.rmtree(folder, ignore_errors=True)


def run_step(
    layout: RunLayout,
    name: str,
    inputs: Iterable[Path],
    parameters: Any,
    code: Iterable[Code],
    function: Callable[[], Iterable[Path]],
    digests: DigestCache,
) -> bool:
    """Do a step unless its receipt shows that nothing it depends on has changed.

    `name`: names the receipt. `inputs`: files the step reads; a missing file is part of the key, too. `parameters`:
    settings the step depends on (records, numbers, text). `code`: code that the step depends on, with all that it
    imports. `function`: does the work and returns the files it wrote. Returns True if the step was done, False if it
    was still valid.
    """
    root = layout.root  # may be moved; absolute paths are of files elsewhere
    names = {path: path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path) for path in inputs}
    key = unit_key({name: digests.digest(path) for path, name in names.items()}, parameters, *code)
    receipt = layout.receipt("steps", name)
    if _is_valid(layout, receipt, key, digests):
        return False
    started = time.monotonic()
    outputs = {path.relative_to(layout.root).as_posix(): file_digest(path) for path in function()}
    write_json(receipt, {"key": key, "outputs": outputs, "seconds": round(time.monotonic() - started, 3)})
    return True


def step_outputs(layout: RunLayout) -> list[Path]:
    """Files that the steps of a run have written, by their receipts, without those of the report."""
    paths: list[Path] = []
    for receipt in sorted(layout.receipt("steps", "any").parent.glob("*.json")):
        done = read_receipt(receipt)  # without a readable one the step is done again
        paths += [layout.root / name for name in done.outputs] if done else []
    return [path for path in paths if path.is_relative_to(layout.group)]


def _is_valid(layout: RunLayout, receipt: Path, key: str, digests: DigestCache) -> bool:
    done = read_receipt(receipt)
    if done is None or done.key != key:
        return False
    for name, digest in done.outputs.items():
        stamp = digests.stamp(layout.root / name)
        if stamp is None or stamp[0] != digest:
            log_remade(name, stamp)
            return False
    return True


def require_registered(files: ScanFiles) -> None:
    """Refuse an image or brain mask that is not the one in the receipt of its registration; without one, none is.

    A file whose size and times are those of the receipt is not read.
    """
    receipt = read_receipt(RunLayout(files.root).receipt("registration", files.name))
    if receipt is None:
        return
    for path in files.seen:
        written = receipt.outputs.get(path.relative_to(files.root).as_posix())
        stamp = stamp_of(path, written)
        if stamp is not None and written is not None and not same_content(stamp, written):
            raise BadInputError(
                f"{path}: not the file that registration wrote there (SHA-256 differs). Restore it, or repeat "
                "`heatlas run`, which registers the scan again."
            )
