"""Where work runs: local processes by default, any cluster through Parsl.

Both are `concurrent.futures` executors; the stages know no more. Workers use one thread in every numerical library
(a fixed seed and one thread make ANTs repeatable, and N workers on N cores do not fight), and end when the process
that started them is gone.

Local workers are forked from a server process that has one thread and does no work of its own, so that the libraries
are imported once and not in every worker (`import_ahead`). Where the system has no such server they are spawned.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from pipeline.run.errors import UsageError

SINGLE_THREAD = {
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Environment of every worker, set before any library is imported there."""

START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def import_ahead(modules: Sequence[str]) -> None:
    """Start the server that workers are forked from, and let it import while the caller goes on.

    Without this call workers import what they need themselves.

    Parameters
    ----------
    modules : sequence of str
        Importing them must start no thread and touch no GPU: neither survives a fork.
    """
    if START_METHOD != "forkserver":
        return
    multiprocessing.set_forkserver_preload(list(modules))
    _start_server()


@contextmanager
def open_executor(n_procs: int, parsl_config: Path | None = None) -> Iterator[Executor]:
    """An executor for the length of a run.

    Parameters
    ----------
    n_procs : int
        Local worker processes.
    parsl_config : Path, optional
        Python file that defines ``config``, a `parsl.config.Config`. It is code and is run as such: pass only a
        file you trust.

    Raises
    ------
    UsageError
        If the file does not define ``config`` or Parsl is not installed.
    """
    if parsl_config is None:
        with _environment(SINGLE_THREAD):
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
                for process in processes:
                    process.terminate()
                raise
            pool.shutdown()
        return
    with _environment(SINGLE_THREAD), _parsl_executor(parsl_config) as executor:
        yield executor


def _start_server() -> None:
    """Start the server, or find it running, with the environment of a worker and deaf to Ctrl-C."""
    resource_tracker.ensure_running()  # would unblock Ctrl-C below
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _environment(SINGLE_THREAD):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _parsl_executor(path: Path) -> Iterator[Executor]:
    if importlib.util.find_spec("parsl") is None:
        raise UsageError("--executor needs Parsl: pip install 'heatlas[cluster]'.")
    from parsl.concurrent import ParslPoolExecutor

    spec = importlib.util.spec_from_file_location("heatlas_executor", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"--executor {path}: no such Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "config"):
        raise UsageError(f"--executor {path}: must define `config`, a parsl.config.Config.")
    with ParslPoolExecutor(config=module.config) as executor:
        yield executor


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and exit when the parent dies, even by SIGKILL.

    Without the second a worker would wait for work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

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
