from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from heatlas.pipeline.run.errors import ResumableError, UsageError
from heatlas.pipeline.run.work import executors
from heatlas.pipeline.run.work.executors import SINGLE_THREAD, open_executor


def test_workers_use_one_thread_and_the_parent_keeps_its_environment():
    before = dict(os.environ)
    with open_executor(1) as executor:
        assert executor.submit(os.getenv, "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS").result() == "1"
    assert dict(os.environ) == before
    assert set(SINGLE_THREAD) >= {"OMP_NUM_THREADS", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"}


def test_an_error_before_any_work_waits_for_nothing(monkeypatch):
    def refuse(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    monkeypatch.setattr(executors.time, "sleep", refuse)
    with pytest.raises(UsageError, match="no such method"), open_executor(1):
        raise UsageError("no such method")


PARENT = """
import os, sys, time
from heatlas.pipeline.run.work.executors import open_executor
if __name__ == "__main__":
    with open_executor(1) as executor:
        print(executor.submit(os.getpid).result(), flush=True)
        executor.submit(pow, 7, 10**8)  # one call of C, in which no other thread of the worker runs
        time.sleep(60)
"""


@pytest.mark.ci
def test_workers_end_when_the_parent_is_killed_whatever_they_compute(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGTERM)  # which Python does not handle, unlike `heatlas`
    parent.wait()
    for _ in range(100):
        if not _alive(worker):
            break
        time.sleep(0.1)
    assert not _alive(worker)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as handle:  # noqa: PTH123
            return handle.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def die() -> None:
    os._exit(1)


def test_a_lost_local_worker_ends_the_run_resumably():
    with (
        pytest.raises(ResumableError, match=r"killed.*fewer --n-procs"),
        open_executor(1) as executor,
    ):
        executor.submit(die).result()


def test_workers_find_imported_what_was_asked_for_ahead():
    """In a process of its own: a server that runs already imports nothing more."""
    code = (
        "import os, sys\n"
        "from heatlas.pipeline.run.work.executors import import_ahead, open_executor\n"
        "if __name__ == '__main__':\n"
        "    import_ahead(['colorsys'])\n"
        "    with open_executor(1) as executor:\n"
        "        print(executor.submit(eval, \"'colorsys' in __import__('sys').modules\").result())\n"
        "        print(executor.submit(os.getenv, 'ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS').result())\n"
        "    print('colorsys' in sys.modules, os.getenv('ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in SINGLE_THREAD}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.split() == ["True", "1", "False", "None"]


@pytest.mark.ci
def test_an_interrupt_while_the_server_imports_leaves_no_traceback():
    code = (
        "import os, signal, time\n"
        "from heatlas.pipeline.run.work.executors import import_ahead\n"
        "import_ahead(['pandas'])\n"
        "time.sleep(0.2)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "os.killpg(0, signal.SIGINT)\n"
        "time.sleep(1)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True)
    assert (run.returncode, run.stderr) == (0, "")


INTERRUPTED = """
import os, signal, time
from heatlas.pipeline.run.work.executors import open_executor
if __name__ == "__main__":
    try:
        with open_executor(1) as executor:
            futures = [executor.submit(time.sleep, 0.2) for _ in range(50)]
            futures[0].result()
            for future in futures:
                future.cancel()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)  # as `timeout` and schedulers do
            time.sleep(0.5)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        time.sleep(0.5)
"""


def test_an_interrupt_while_work_waits_leaves_no_traceback(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, start_new_session=True)
    assert (ended.returncode, ended.stderr) == (0, "")
