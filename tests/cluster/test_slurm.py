"""Whole runs on a real Slurm of one node, and what clusters do to them (``make test-cluster``; minutes).

Faults come during registration, one scan after the other, each found by its scratch folder ``stage_unit.host.pid``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heatlas.pipeline.cohort.demo.cohort import write_demo_cohort
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import Job, run_jobs
from heatlas.pipeline.run.work.providers import ClusterConfig

pytestmark = pytest.mark.cluster
HERE = Path(__file__).parent
CONFIG = (HERE.parent / "workflows" / "mini.toml").read_text()
CLUSTER = '[cluster]\nworkers = 1\njobs = 1\nmemory_gb = 2\ntime = "{time}"\npartition = "{partition}"\n'
NO_REPORT = ("--stop-after", "statistics")
INTERRUPTED = "heatlas: interrupted; run the same command again to continue.\n"
TERMINATED = "heatlas: terminated from outside; run the same command again to continue.\n"


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a Slurm with one node, which is stopped in the end unless it was there before."""
    if os.geteuid() != 0:
        pytest.skip("starting Slurm takes root")
    there = subprocess.run(["sinfo"], capture_output=True).returncode == 0 if shutil.which("sinfo") else False
    if not there:
        os.environ["SLURM_HOME"] = str(tmp_path_factory.mktemp("slurm"))
        subprocess.run([HERE / "slurm-up"], check=True)
    yield Path(os.environ.get("SLURM_HOME", "/tmp/one-node-slurm"))
    if not there:
        subprocess.run([HERE / "slurm-down"], check=True)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "cohort"
    write_demo_cohort(folder, seed=5, participants=10, resolution_mm=4.0)
    return folder


class Command:
    """``heatlas run`` in a process group of its own, as a shell starts it."""

    def __init__(self, cohort: Path, out: Path, *options: str, time: str = "00:30:00", partition: str = "cpu") -> None:
        self.layout = RunLayout(out)
        self.settings = out.parent / f"{out.name}.toml"
        self.settings.write_text(CONFIG + CLUSTER.format(time=time, partition=partition))
        words = ["run", str(cohort), str(out), "--config", str(self.settings), *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "heatlas.workflows.adni", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def wait_for_scans(self, number: int) -> None:
        """Wait until so many scans are registered."""
        receipts = self.layout.receipt("registration", "any").parent
        wait(lambda: len(list(receipts.glob("*.json"))) >= number or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    def end(self, code: int) -> str:
        """Wait for the end; returns standard error."""
        printed, said = self.process.communicate(timeout=900)
        assert self.process.returncode == code, printed + said
        return said


def wait(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def jobs() -> list[str]:
    answer = subprocess.run(["squeue", "-h", "-o", "%A %t"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in answer.splitlines() if not line.endswith("CG")]


def working(layout: RunLayout) -> int:
    """Process of a worker that registers a scan now."""
    found: list[str] = []

    def some() -> bool:
        found[:] = [path.name for path in layout.scratch.glob("registration_*")]
        return bool(found)

    wait(some)
    return int(found[0].rpartition(".")[2])


def tables(layout: RunLayout) -> dict[str, bytes]:
    return {path.relative_to(layout.root).as_posix(): path.read_bytes() for path in layout.root.rglob("*.tsv")}


@pytest.fixture(scope="module")
def local(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Tables of a run without a cluster."""
    command = Command(cohort, tmp_path_factory.mktemp("local") / "out", "--n-procs", "2")
    command.end(0)
    assert len(tables(command.layout)) > 50
    return tables(command.layout)


def require_complete(command: Command, local: dict[str, bytes]) -> None:
    found = tables(command.layout)
    assert len(found) > 50
    assert [name for name in found if found[name] != local.get(name)] == []
    assert not command.layout.parsl_logs.exists()
    assert list(command.layout.scratch.iterdir()) == []
    wait(lambda: jobs() == [], 30)


def test_a_run_survives_lost_workers_jobs_and_daemons(cohort, local, tmp_path, slurm):
    command = Command(cohort, tmp_path / "out", "--executor", "slurm")
    command.wait_for_scans(1)
    os.kill(working(command.layout), signal.SIGKILL)
    command.wait_for_scans(3)
    subprocess.run(["scancel", *jobs()], check=True)
    command.wait_for_scans(5)
    os.kill(int((slurm / "run" / "slurmd.pid").read_text()), signal.SIGKILL)
    time.sleep(2)
    subprocess.run(["slurmd"], check=True)
    assert command.end(0) == ""
    require_complete(command, local)
    assert {*tables(command.layout)} == {*local}


@pytest.mark.parametrize(
    ("number", "code", "line"), [(signal.SIGINT, 130, INTERRUPTED), (signal.SIGTERM, 143, TERMINATED)]
)
def test_an_interrupt_cancels_jobs_within_ten_seconds(cohort, local, tmp_path, number, code, line):
    command = Command(cohort, tmp_path / "out", "--executor", "slurm")
    command.wait_for_scans(1)
    before = time.monotonic()
    os.killpg(command.process.pid, number)
    assert command.end(code) == line
    wait(lambda: jobs() == [], 10)
    assert time.monotonic() - before < 10
    again = Command(cohort, tmp_path / "out", "--executor", "slurm", *NO_REPORT)
    assert again.end(0) == ""
    require_complete(again, local)


def test_a_killed_driver_leaves_no_job_for_ever_and_loses_nothing(cohort, local, tmp_path):
    command = Command(cohort, tmp_path / "out", "--executor", "slurm")
    command.wait_for_scans(1)
    command.process.kill()
    command.process.wait()
    wait(lambda: jobs() == [], 180)
    again = Command(cohort, tmp_path / "out", "--executor", "slurm", *NO_REPORT)
    assert again.end(0) == ""
    require_complete(again, local)


def pause(outputs: dict[str, Path], seconds: float) -> None:
    time.sleep(seconds)


def test_work_that_the_time_limit_cuts_off_is_done_by_the_next_job(tmp_path, monkeypatch):
    """One worker and 40 s of work for each unit, of which a job of a minute does one or two."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    settings = ClusterConfig(workers=1, jobs=1, memory_gb=1, time="00:01:00", worker_init=f"export PYTHONPATH={HERE}")
    layout = RunLayout(tmp_path / "out")
    work = [Job("stage", f"unit{n}", "key", {}, pause, (40,)) for n in range(4)]
    with open_executor(1, "slurm", layout.parsl_logs, settings) as executor:
        outcomes = run_jobs(layout, work, executor, "pauses")
    assert [outcome.status for outcome in outcomes] == ["done"] * 4
    wait(lambda: jobs() == [], 30)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"partition": "nowhere"}, "invalid partition"), ({"init": "exit 3"}, "no job can work")],
)
def test_a_cluster_that_gives_no_workers_ends_in_one_line(cohort, tmp_path, options, words):
    init = options.pop("init", None)
    out = tmp_path / "out"
    if init:
        command = Command(cohort, out, "--executor", str(own_file(tmp_path, init)))
    else:
        command = Command(cohort, out, "--executor", "slurm", **options)
    said = command.end(75)
    assert words in said
    assert said.count("\n") == 1
    assert str(command.layout.parsl_logs) in said
    assert jobs() == []


def own_file(folder: Path, init: str) -> Path:
    """A Parsl configuration of one's own."""
    path = folder / "mine.py"
    path.write_text(
        "from parsl.config import Config\n"
        "from parsl.executors import HighThroughputExecutor\n"
        "from parsl.providers import SlurmProvider\n"
        "options = dict(exclusive=False, cores_per_node=1, init_blocks=3, max_blocks=3)\n"
        f"provider = SlurmProvider(worker_init={init!r}, **options)\n"
        "config = Config(executors=[HighThroughputExecutor(provider=provider, address='127.0.0.1')])\n"
    )
    return path
