"""Work on a cluster with Parsl, through the interface of `concurrent.futures`.

Parsl gives meaning to parameter names (`inputs`, `outputs`, `stdout` ...), cannot cancel work, and has no hook that
runs in a worker before libraries are imported. So it only runs `call` with the pickled function and arguments: the
worker sets its environment, then unpickles them, which imports what they need.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.run.errors import UsageError
from pipeline.run.regular_files import irregular_kind

_PARSL_DEFAULT = "runinfo"


class ClusterExecutor(Executor):
    """A pool of Parsl's workers.

    Parameters
    ----------
    pool : concurrent.futures.Executor
        A `parsl.concurrent.ParslPoolExecutor`.
    environment : mapping of str to str
        Set in every worker before it imports what the work needs.
    """

    def __init__(self, pool: Executor, environment: Mapping[str, str]) -> None:
        self._pool = pool
        self._environment = dict(environment)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As in `concurrent.futures`; `Future.cancel` returns False, since Parsl cannot cancel.

        Errors of Parsl itself, such as a lost worker, become `BrokenExecutor`.
        """
        ours: Future[Any] = Future()
        ours.set_running_or_notify_cancel()
        theirs = self._pool.submit(call, self._environment, pickle.dumps((fn, args, kwargs)))
        theirs.add_done_callback(lambda done: _hand_over(done, ours))
        return ours


def call(environment: Mapping[str, str], packed: bytes) -> tuple[Any, BaseException | None]:
    """Do the work in the worker; returns the result or the exception."""
    os.environ.update(environment)
    try:
        function, positional, named = pickle.loads(packed)
        return function(*positional, **named), None
    except Exception as error:
        error.add_note(traceback.format_exc())
        return None, error


def _hand_over(done: Future[Any], ours: Future[Any]) -> None:
    lost = done.exception()
    if lost is not None:
        reason = " ".join(str(lost).split()) or type(lost).__name__
        broken = BrokenExecutor(f"a worker of the cluster was lost ({reason})")
        broken.__cause__ = lost
        ours.set_exception(broken)
        return
    result, error = done.result()
    if error is not None:
        ours.set_exception(error)
    else:
        ours.set_result(result)


@contextmanager
def open_cluster(path: Path, environment: Mapping[str, str], logs: Path) -> Iterator[Executor]:
    """Parsl's workers, for the length of a run; `path` is a Python file that defines ``config`` and is run as code.

    `logs` is removed after success, since Parsl's files contain paths. UsageError if Parsl is not installed, or the
    file cannot be read, fails, or does not define ``config``.
    """
    if importlib.util.find_spec("parsl") is None:
        raise UsageError("--executor needs Parsl: pip install 'heatlas[cluster]'.")
    config = _read_config(path)
    kept = config.run_dir != _PARSL_DEFAULT
    if not kept:
        config.run_dir = str(logs)
    from parsl.concurrent import ParslPoolExecutor

    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before}"  # contains the programs of Parsl
    try:
        pool = _start(ParslPoolExecutor, config, path)
        try:
            yield ClusterExecutor(pool, environment)
        finally:
            pool.shutdown(wait=False)  # after an error, do not wait for the rest
    finally:
        os.environ["PATH"] = before
    if not kept:
        shutil.rmtree(logs, ignore_errors=True)


def _read_config(path: Path) -> Any:
    _require_file(path)
    from parsl.config import Config

    spec = importlib.util.spec_from_file_location("heatlas_executor", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--executor {path}: give a Python file; its name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is left beside the file
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"--executor {path}: cannot be run ({_where(error, path)}{reason}).") from error
    finally:
        sys.dont_write_bytecode = before
    config = getattr(module, "config", None)
    if not isinstance(config, Config):
        raise UsageError(f"--executor {path}: must define `config`, a parsl.config.Config.")
    return config


def _require_file(path: Path) -> None:
    try:
        kind = irregular_kind(path)
    except OSError as error:
        raise UsageError(f"--executor {path}: cannot be read ({error.strerror}).") from error
    if kind is not None:
        raise UsageError(f"--executor {path}: {kind}, not a file. Give a Python file; its name ends in .py.")


def _where(error: BaseException, path: Path) -> str:
    """The last line of the file in the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""


def _start(executor: Callable[..., Executor], config: Any, path: Path) -> Executor:
    try:
        return executor(config=config)
    except Exception as error:
        with suppress(Exception):
            import parsl

            parsl.clear()
        raise UsageError(
            f"--executor {path}: Parsl cannot start with this configuration ({type(error).__name__}: {error})."
        ) from error
