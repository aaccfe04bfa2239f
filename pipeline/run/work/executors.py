"""Executors: local processes by default, any cluster through Parsl.

Both are `concurrent.futures` executors. Workers use one thread in every numerical library (a fixed seed and one thread
make ANTs repeatable, and N workers on N cores do not compete), and end with the process that started them.

Local workers are forked from a server process that has one thread and does no work, so that libraries are imported once
and not in every worker (`import_ahead`). On systems without such a server they are spawned.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from heatlas.pipeline.run.errors import ResumableError
from heatlas.pipeline.run.work.cluster import WorkerLostError, open_cluster
from heatlas.pipeline.run.work.providers import ClusterConfig

SINGLE_THREAD = {
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Environment of every worker, set before any library is imported there."""

ARITHMETIC = (
    "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NPY_DISABLE_CPU_FEATURES",
    "ATEN_CPU_CAPABILITY",
)  # fmt: skip
"""Variables that choose how libraries add up numbers, and so the last digits of results: workers elsewhere take
those of this process."""

START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def import_ahead(modules: Sequence[str]) -> None:
    """Start the server that workers are forked from, which imports modules while the caller continues.

    Without this call, workers import what they need.

    `modules`: importing them must start no thread and touch no GPU: neither survives a fork.
    """
    if START_METHOD != "forkserver":
        return
    multiprocessing.set_forkserver_preload(list(modules))
    _start_server()


@contextmanager
def open_executor(
    n_procs: int, cluster: str | None = None, parsl_logs: Path = Path("runinfo"), settings: ClusterConfig | None = None
) -> Iterator[Executor]:
    """An executor for the length of a run.

    `n_procs`: local worker processes. `cluster`: ``slurm`` or another name, or a Python file that is run as code
    (`pipeline.run.work.cluster.open_cluster`). `parsl_logs`: folder for files of Parsl. `settings`: of the jobs, for a
    name. Raises UsageError if the file cannot be used (`pipeline.run.work.cluster.open_cluster`). Raises ResumableError
    if a local worker was lost, or a worker of a cluster again and again.
    """
    with _environment(SINGLE_THREAD):
        try:
            if cluster is None:
                with _local_pool(n_procs) as executor:
                    yield executor
            else:
                environment = SINGLE_THREAD | {name: os.environ[name] for name in ARITHMETIC if name in os.environ}
                with open_cluster(cluster, settings or ClusterConfig(), environment, parsl_logs) as executor:
                    yield executor
        except WorkerLostError as error:
            raise ResumableError(
                f"{error}. Usual reasons are too little memory for a worker or too short a time of its job; logs in "
                f"{parsl_logs}. Run the same command again; finished work is kept."
            ) from error
        except BrokenExecutor as error:
            if cluster is not None:
                raise ResumableError(
                    f"--executor {cluster}: no job can work ({error}); logs in {parsl_logs}. Correct it and run the "
                    "same command again; finished work is kept."
                ) from error
            raise ResumableError(
                "a worker process was killed, usually for lack of memory. Run the same command again with fewer "
                "--n-procs; finished work is kept."
            ) from error


@contextmanager
def _local_pool(n_procs: int) -> Iterator[Executor]:
    if START_METHOD == "forkserver":
        _start_server()
    pool = ProcessPoolExecutor(
        n_procs, mp_context=multiprocessing.get_context(START_METHOD), initializer=_prepare_worker
    )
    try:
        yield pool
    except BaseException:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        if processes:  # else the pool has no thread yet
            _wait_until_cancelled(pool)
        for process in processes:
            process.kill()
        raise
    pool.shutdown()


def _wait_until_cancelled(pool: ProcessPoolExecutor, seconds: float = 2.0) -> None:
    """Wait until the pool's thread has dropped cancelled work.

    Python before 3.12 reports the end of workers to all pending work, and fails with a traceback if some was cancelled.
    """
    end = time.monotonic() + seconds
    while getattr(pool, "_cancel_pending_futures", False) and time.monotonic() < end:
        time.sleep(0.005)


def _start_server() -> None:
    """Start the server unless it runs, with the environment of a worker, ignoring Ctrl-C and termination."""
    resource_tracker.ensure_running()  # would unblock them below
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with _environment(SINGLE_THREAD):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_worker() -> None:
    """Ignore Ctrl-C and termination, which the parent handles, and exit when the parent dies, even by SIGKILL."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a group at once
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":  # SIGIO, which ends this process, when the parent's end of the pipe is closed: while a
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())  # library computes, the thread below may not run
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
