"""Where work runs: local processes by default, any cluster through Parsl.

Both are `concurrent.futures` executors; the stages know no more. Workers use one thread in every numerical library
(a fixed seed and one thread make ANTs repeatable, and N workers on N cores do not fight), and end when the process
that started them is gone.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
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
            pool = ProcessPoolExecutor(
                n_procs, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare_worker
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
