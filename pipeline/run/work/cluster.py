"""Work on a cluster with Parsl, through the interface of `concurrent.futures`.

Parsl gives meaning to parameter names (`inputs`, `outputs`, `stdout` ...), cannot cancel work, and has no hook that
runs in a worker before libraries are imported. So it only runs `call` with the pickled function and arguments: the
worker sets its environment, then unpickles them, which imports what they need.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pickle
import re
import shutil
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.providers import (
    GPU,
    PROVIDERS,
    ClusterConfig,
    completed,
    named_config,
    read_config,
    require_plain_path,
)

SMALLEST_WINDOW = 32
"""Units handed to Parsl at once, or twice the workers of all jobs if that is more; the others wait here."""
LARGE_BYTES = 2**16
"""Arguments above this size travel as files in the run folder, each written once."""
SECONDS_TO_END = 8.0
_LONGEST_REASON = 300
_ANSWER = re.compile(r"(?:stderr=|STDERR: )(.*?)(?=\n?Error \d+:|\Z)", re.DOTALL)
"""What a scheduler or a job wrote, in Parsl's account of jobs that failed."""


class WorkerLostError(BrokenExecutor):
    """The worker of this work was lost, as often as it was tried; others may go on."""


class ClusterExecutor(Executor):
    """A pool of Parsl's workers.

    `pool`: a `parsl.concurrent.ParslPoolExecutor`. `environment`: set in every worker before it imports what the work
    needs. `logs`: folder of the files of Parsl; large arguments are kept there meanwhile. `window`: work handed to
    Parsl at once; the rest waits in this process, neither pickled nor sent. `gpu`: the workers with GPUs, if they are
    others.
    """

    def __init__(
        self, pool: Executor, environment: Mapping[str, str], logs: Path, window: int = SMALLEST_WINDOW,
        gpu: ClusterExecutor | None = None,
    ) -> None:  # fmt: skip
        self._pool = pool
        self._environment = dict(environment)
        self._window = window
        self._waiting: deque[_Work] = deque()
        self._handed_over = 0
        self._refilling = False
        self._lock = threading.RLock()
        self._files = _ArgumentFiles(logs / "arguments")
        self.logs = logs
        self.gpu = gpu or self

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As in `concurrent.futures`; work that Parsl has cannot be cancelled.

        If a worker was lost the future raises `WorkerLostError`, if no worker can be had `BrokenExecutor`.
        """
        work = _Work(Future(), fn, args, kwargs)
        with self._lock:
            self._waiting.append(work)
        self._refill()
        return work.future

    def _refill(self) -> None:
        with self._lock:
            if self._refilling:  # by another thread, or by the caller of the caller where work ends at once
                return
            self._refilling = True
        while True:
            with self._lock:
                if not self._waiting or self._handed_over >= self._window:
                    self._refilling = False
                    return
                work = self._waiting.popleft()
                if not work.future.set_running_or_notify_cancel():
                    continue
                self._handed_over += 1
            try:
                packed = self._files.pack(work)
            except Exception as error:  # not picklable, or no space for its file
                with self._lock:
                    self._handed_over -= 1
                work.future.set_exception(error)
                continue
            try:
                theirs = self._pool.submit(call, self._environment, packed)
            except Exception as error:  # Parsl has ended
                theirs = Future()
                theirs.set_exception(error)
            theirs.add_done_callback(functools.partial(self._end, work, packed))

    def _end(self, work: _Work, packed: Packed, done: Future[Any]) -> None:
        self._files.forget(packed.paths)
        with self._lock:
            self._handed_over -= 1
        self._refill()
        _hand_over(done, work.future)


class _Work(NamedTuple):
    future: Future[Any]
    function: Callable[..., Any]
    positional: tuple[Any, ...]
    named: Mapping[str, Any]


@dataclass(frozen=True)
class Packed:
    """Pickled function and arguments, each as bytes or as the path of a file with them."""

    function: bytes
    positional: tuple[bytes | Path, ...]
    named: Mapping[str, bytes | Path]

    @property
    def paths(self) -> list[Path]:
        return [part for part in (*self.positional, *self.named.values()) if isinstance(part, Path)]

    def unpack(self) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        positional, named = map(_load, self.positional), self.named.items()
        return pickle.loads(self.function), list(positional), {name: _load(part) for name, part in named}


def _load(part: bytes | Path) -> Any:
    return pickle.loads(part.read_bytes() if isinstance(part, Path) else part)


class _ArgumentFiles:
    """Large arguments as files, each as long as work that needs it is under way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._users: Counter[Path] = Counter()
        self._lock = threading.Lock()

    def pack(self, work: _Work) -> Packed:
        written: list[Path] = []
        try:
            positional = tuple(self._part(value, written) for value in work.positional)
            named = {name: self._part(value, written) for name, value in work.named.items()}
            return Packed(pickle.dumps(work.function), positional, named)
        except BaseException:  # a half-written file must not be taken for the argument of other work
            self.forget(written)
            raise

    def _part(self, value: Any, written: list[Path]) -> bytes | Path:
        text = pickle.dumps(value)
        if len(text) < LARGE_BYTES:
            return text
        path = self._folder / hashlib.sha256(text).hexdigest()
        with self._lock:
            self._users[path] += 1
            written.append(path)
            if self._users[path] == 1:
                self._folder.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)
        return path

    def forget(self, paths: Iterable[Path]) -> None:
        with self._lock:
            for path in paths:
                self._users[path] -= 1
                if not self._users[path]:
                    path.unlink(missing_ok=True)


def call(environment: Mapping[str, str], packed: Packed) -> bytes:
    """Do the work in the worker; returns the pickled pair of its result and its exception, one of them None."""
    os.environ.update(environment)
    try:
        function, positional, named = packed.unpack()
        return pickle.dumps((function(*positional, **named), None))
    except Exception as error:
        error.add_note(traceback.format_exc())
        return _pickled_error(error)


def _pickled_error(error: Exception) -> bytes:
    """An exception that cannot be unpickled becomes a `RuntimeError` with its text."""
    try:
        text = pickle.dumps((None, error))
        pickle.loads(text)
    except Exception:
        return pickle.dumps((None, RuntimeError("".join(traceback.format_exception(error)))))
    return text


def _hand_over(done: Future[Any], ours: Future[Any]) -> None:
    lost = done.exception()
    if lost is not None:
        of_worker = type(lost).__name__ in ("WorkerLost", "ManagerLost")
        broken = (WorkerLostError if of_worker else BrokenExecutor)(_reason(lost))
        broken.__cause__ = lost
        ours.set_exception(broken)
        return
    try:  # here and not in Parsl, whose thread for results ends if one cannot be unpickled
        result, error = pickle.loads(done.result())
    except Exception as failed:
        result, error = None, failed
    if error is not None:
        ours.set_exception(error)
    else:
        ours.set_result(result)


def _reason(lost: BaseException) -> str:
    """One line: what the scheduler or the first job answered, else what Parsl says."""
    text = str(getattr(lost, "reason", "")) or str(lost) or type(lost).__name__
    answer = next((words for words in re.findall(_ANSWER, text) if words.strip()), text)
    lines = [" ".join(line.split()) for line in answer.splitlines() if line.strip()]
    if "Traceback" in lines[0]:
        return lines[-1][:_LONGEST_REASON]
    return (lines[0] if answer != text else " ".join(lines))[:_LONGEST_REASON]


@contextmanager
def open_cluster(
    which: str, settings: ClusterConfig, environment: Mapping[str, str], logs: Path
) -> Iterator[ClusterExecutor]:
    """Parsl's workers, for the length of a run.

    `which`: one of `pipeline.run.work.providers.PROVIDERS`, or the path of a Python file that defines ``config`` and is
    run as code. `settings`: for a provider. `environment`: of every worker. `logs`: removed after success, since
    Parsl's files contain paths. Raises UsageError if Parsl is not installed or cannot start, the file is of no use, or
    the path of `logs` has a space.
    """
    if importlib.util.find_spec("parsl") is None:
        raise UsageError("--executor needs Parsl: pip install 'heatlas[cluster]'.")
    config = completed(named_config(which, settings) if which in PROVIDERS else read_config(Path(which)), logs)
    require_plain_path(config)
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before}"  # contains the programs of Parsl
    try:
        pool = _start(config, which)
        try:
            yield _executor(pool, config, environment, logs)
        finally:
            _end_jobs(pool, config)  # after an error, do not wait for the rest
    finally:
        os.environ["PATH"] = before
    if config.run_dir == str(logs):
        shutil.rmtree(logs, ignore_errors=True)


def _executor(pool: Any, config: Any, environment: Mapping[str, str], logs: Path) -> ClusterExecutor:
    """Executors labelled ``gpu`` compute with networks, the others do the rest; either may be all there are."""
    from parsl.concurrent import ParslPoolExecutor

    def part(executors: list[Any], gpu: ClusterExecutor | None = None) -> ClusterExecutor:
        labels = [executor.label for executor in executors]
        workers = sum(map(_workers, executors))
        some = ParslPoolExecutor(dfk=pool._dfk, executors=labels)
        return ClusterExecutor(some, environment, logs, max(SMALLEST_WINDOW, 2 * workers), gpu)

    others = [executor for executor in config.executors if executor.label != GPU]
    if not others or len(others) == len(config.executors):
        return part(list(config.executors))
    return part(others, part([executor for executor in config.executors if executor.label == GPU]))


def _workers(executor: Any) -> int:
    """Workers of all jobs of an executor, as far as Parsl knows."""
    provider = getattr(executor, "provider", None)
    blocks = getattr(provider, "max_blocks", 1) * getattr(provider, "nodes_per_block", 1)
    return int(blocks * getattr(executor, "workers_per_node", 1))


def _start(config: Any, which: str) -> Any:
    from parsl.concurrent import ParslPoolExecutor

    try:
        return ParslPoolExecutor(config=config)
    except Exception as error:
        with suppress(Exception):
            import parsl

            parsl.clear()
        raise UsageError(
            f"--executor {which}: Parsl cannot start with this configuration ({type(error).__name__}: {error})."
        ) from error


def _end_jobs(pool: Executor, config: Any) -> None:
    """Cancel all jobs and end Parsl. What Parsl leaves, as it does after failed jobs, is cancelled here."""

    def end() -> None:
        with suppress(Exception):
            pool.shutdown(wait=False)

    ender = threading.Thread(target=end, daemon=True)  # Parsl may wait for an answer that does not come
    ender.start()
    ender.join(SECONDS_TO_END)
    for executor in config.executors:
        provider: Any = getattr(executor, "provider", None)
        jobs = getattr(provider, "resources", {})
        left = [job for job, facts in list(jobs.items()) if not facts["status"].terminal]
        if left:
            with suppress(Exception):
                provider.cancel(left)
