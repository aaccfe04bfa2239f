"""Parsl's workers behind the interface of `concurrent.futures`."""

from __future__ import annotations

import dataclasses
import operator
import os
import pickle
import re
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, ResumableError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work import providers
from heatlas.pipeline.run.work.cluster import LARGE_BYTES, ClusterExecutor, call
from heatlas.pipeline.run.work.executors import SINGLE_THREAD, open_executor
from heatlas.pipeline.run.work.jobs import Job, is_done, run_jobs
from heatlas.pipeline.run.work.providers import ClusterConfig, named_config

pytestmark = pytest.mark.ci

pytest.importorskip("parsl")

THREADS = """
from parsl.config import Config
from parsl.executors import ThreadPoolExecutor
config = Config(executors=[ThreadPoolExecutor(max_threads=2)])
"""
PROCESSES = """
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider
here = HighThroughputExecutor(
    address="127.0.0.1", max_workers_per_node=2, cores_per_worker=0.5, heartbeat_period=1,
    provider=LocalProvider(init_blocks=1, max_blocks=1),
)
config = Config(executors=[here], strategy="none")
"""


@pytest.fixture
def cluster(tmp_path):
    """Open an executor from the text of a file, with Parsl's own files in ``logs``."""

    def open_from(text: str | bytes):
        path = tmp_path / "cluster.py"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return open_executor(1, str(path), tmp_path / "logs")

    return open_from


def reserved(inputs, outputs, stdout, stderr, walltime, parsl_resource_specification, cache=None):
    return [inputs, outputs, stdout, stderr, walltime, parsl_resource_specification, cache]


def unlucky(inputs):
    raise BadInputError(f"{inputs}: broken.")


def test_any_function_works_whatever_parsl_reads_into_its_parameters(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with cluster(THREADS) as executor:
        assert executor.submit(reserved, 1, 2, 3, stderr=4, walltime=5, parsl_resource_specification=6).result() == [
            1, 2, 3, 4, 5, 6, None,
        ]  # fmt: skip
        assert list(executor.map(reserved, *[range(2)] * 6)) == [[i] * 6 + [None] for i in range(2)]
        with pytest.raises(BadInputError, match=r"scan: broken\."):
            executor.submit(unlucky, "scan").result()
        assert not executor.submit(abs, -1).cancel()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.py"]


def deadly(outputs: dict[str, Path], folder: Path, deaths: int) -> None:
    """Kill the worker as often as asked."""
    died = folder / str(deaths)
    tries = len(died.read_text()) if died.exists() else 0
    died.write_text("x" * (tries + 1))
    if tries < deaths:
        time.sleep(
            1
        )  # A worker that dies while it still hands in its last result leaves Parsl's queue locked for ever.
        os.abort()


@pytest.mark.slow
def test_lost_work_is_tried_again_and_then_ends_the_run_resumably_with_its_name(cluster, tmp_path, monkeypatch):
    """Nothing comes from the shell that starts the run: neither programs nor code."""
    monkeypatch.setattr(providers, "RETRIES", 1)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # only for the function above
    monkeypatch.chdir(tmp_path)
    layout = RunLayout(tmp_path / "out")
    jobs = [Job("stage", f"unit{n}", "key", {}, deadly, (tmp_path, n)) for n in (9, 1)]

    def work():
        with cluster(PROCESSES) as pool:
            assert isinstance(pool, ClusterExecutor)
            for name, value in SINGLE_THREAD.items():
                assert pool.submit(os.getenv, name).result() == value
            run_jobs(layout, jobs, pool, "")

    with pytest.raises(ResumableError, match=r"^stage: the worker of unit9 was lost at every try .* logs in \S*logs\."):
        work()
    assert is_done(layout, jobs[0]) is None
    assert is_done(layout, jobs[1]) is not None, "the second try succeeded"
    assert [len((tmp_path / n).read_text()) for n in "91"] == [2, 2]
    assert (tmp_path / "logs").is_dir(), "after a failure Parsl's files say why"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "9", "cluster.py", "logs", "out"]


class Slow(Executor):
    """Does nothing by itself, as a queue of a cluster that is busy."""

    def __init__(self) -> None:
        self.taken: list[tuple[Future[Any], Any]] = []

    def submit(self, fn, /, environment, packed):
        self.taken.append((Future(), packed))
        return self.taken[-1][0]


def test_work_waits_here_until_there_is_room_and_can_be_cancelled(tmp_path):
    pool = Slow()
    executor = ClusterExecutor(pool, {}, tmp_path, window=2)
    futures = [executor.submit(pow, 2, n) for n in range(5)]
    assert len(pool.taken) == 2
    assert not futures[0].cancel()
    assert futures[3].cancel()
    for place in range(4):
        theirs, packed = pool.taken[place]
        theirs.set_result(call({}, packed))
        assert len(pool.taken) == min(place + 3, 4)
    assert [futures[n].result() for n in (0, 1, 2, 4)] == [1, 2, 4, 16]


def test_many_that_end_at_once_are_all_done(tmp_path):
    """Handing in the next one where one ends must not go deeper with each."""

    class Quick(Executor):
        def submit(self, fn, /, *arguments):
            done = Future()
            done.set_result(fn(*arguments))
            return done

    assert list(ClusterExecutor(Quick(), {}, tmp_path, window=1).map(abs, range(-3000, 0))) == [*range(3000, 0, -1)]


def test_large_arguments_travel_as_one_file_that_goes_with_the_last_work(tmp_path):
    pool, large = Slow(), bytes(LARGE_BYTES)
    executor = ClusterExecutor(pool, {}, tmp_path)
    futures = [executor.submit(operator.concat, large, text) for text in (b"a", b"b")]
    assert all(len(pickle.dumps(packed)) < 2000 for _, packed in pool.taken)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1
    for theirs, packed in pool.taken:
        assert files[0].is_file()
        theirs.set_result(call({}, packed))
    assert [future.result() for future in futures] == [large + b"a", large + b"b"]
    assert not files[0].exists()


def test_work_with_networks_goes_to_the_workers_with_gpus(tmp_path):
    gpu, cpu = Slow(), Slow()
    executor = ClusterExecutor(cpu, {}, tmp_path, gpu=ClusterExecutor(gpu, {}, tmp_path))
    layout = RunLayout(tmp_path)

    class Enough(Exception):
        pass

    for on_gpu, there, elsewhere in ((True, gpu, cpu), (False, cpu, gpu)):
        before = len(there.taken), len(elsewhere.taken)
        with ThreadPoolExecutor(1) as here:
            done = here.submit(run_jobs, layout, [Job("s", "u", "key", {}, print, on_gpu=on_gpu)], executor, "")
            while len(there.taken) == before[0]:
                time.sleep(0.01)
            there.taken[-1][0].set_exception(Enough())
            with pytest.raises(BrokenExecutor, match="Enough"):
                done.result()
        assert len(elsewhere.taken) == before[1]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "slurm",
            (
                "--partition=long",
                "--account=lab",
                "--export=NONE",
                "--qos=x",
                "module load cuda",
                'mktemp -d "/s/$J/heatlas.XXXXXX"',
            ),
        ),
        ("pbs", ("--qos=x", "module load cuda")),
        ("lsf", ("-P lab", "-q long", "-env none", "-n 3", "--qos=x", "module load cuda")),
        ("local", ("module load cuda",)),
    ],
)
def test_a_short_section_of_settings_becomes_a_configuration(name, lines):
    settings = ClusterConfig(
        partition="long", account="lab", workers=3, gpus=2, workers_per_gpu=2, jobs=7, time="01:00:00",
        worker_init="module load cuda", scratch="/s/$J", options=("--qos=x",),
    )  # fmt: skip
    cpu, gpu = named_config(name, settings).executors
    assert (cpu.label, gpu.label) == ("cpu", "gpu")
    assert (cpu.max_workers_per_node, gpu.max_workers_per_node) == (3, 4)
    assert gpu.available_accelerators == ["0", "0", "1", "1"]
    provider = cpu.provider
    assert (provider.max_blocks, gpu.provider.max_blocks) == ((1, 1) if name == "local" else (7, 1))
    text = f"{getattr(provider, 'scheduler_options', '')}\n{provider.worker_init}"
    assert [line for line in lines if line not in text] == []


def test_a_cluster_without_its_image_is_refused():
    with pytest.raises(UsageError, match=r"--executor kubernetes: .*cluster\.image"):
        named_config("kubernetes", ClusterConfig())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time", "4 hours"), ("time", "00:00:59"), ("jobs", 0), ("gpus", -1), ("volumes", ("claim",)),
        ("partition", "cpu\n#SBATCH --wrap=reboot"), ("account", "lab; reboot"), ("gpu_partition", "`reboot`"),
        ("address", "login 1"), ("image", "a b"), ("options", ("--qos=x\nreboot",)), ("options", ("qos=x",)),
        ("scratch", "/s\nreboot"), ("scratch", '/s"; reboot; "'), ("scratch", "/s/$(reboot)"), ("scratch", "$(reboot)"),
        ("scratch", "/s/`reboot`"), ("scratch", "local"),
    ],
)  # fmt: skip
def test_settings_that_no_scheduler_takes_are_refused(name, value):
    with pytest.raises(UsageError, match=f"cluster.{name}"):
        Config(cluster=dataclasses.replace(ClusterConfig(), **{name: value}))


def test_settings_that_schedulers_take_are_kept():
    Config(
        cluster=ClusterConfig(
            partition="cpu,long",
            account="lab_1.x",
            time="00:01:00",
            address="10.0.0.1",
            image="ghcr.io/lab/heatlas:1",
            scratch="/local disk/$SLURM_JOB_ID/${USER}",
            options=("--qos=long", '-R "select[type==any]"'),
        )
    )


@pytest.mark.parametrize("name", ["with space", "a;b", "`a`", "$a", "50%", "a'b"])
def test_a_folder_that_jobs_cannot_use_is_refused_before_any_work(tmp_path, name):
    logs = tmp_path / name / "logs"
    with pytest.raises(UsageError, match="Choose an output folder"), open_executor(1, "local", logs):
        pass
    assert not logs.parent.exists()


class Peculiar(Exception):
    """Cannot be unpickled, since its constructor takes another argument."""

    def __init__(self, scan: str, number: int) -> None:
        super().__init__(scan)


class Unwritable:
    def __reduce__(self):
        return int, ("not a number",)


def fail_peculiarly() -> None:
    raise Peculiar("sub-1 is broken", 1)


def test_results_that_cannot_be_unpickled_end_their_work_and_no_other(tmp_path):
    """Parsl's thread for results ends if one cannot be unpickled: the run would wait for ever."""
    pool = Slow()
    executor = ClusterExecutor(pool, {}, tmp_path)
    work = [
        executor.submit(fail_peculiarly),
        executor.submit(Unwritable),
        executor.submit(Slow().submit),
        executor.submit(abs, -1),
    ]
    for theirs, packed in pool.taken:
        sent = call({}, packed)
        assert isinstance(sent, bytes)
        theirs.set_result(sent)
    assert "sub-1 is broken" in str(work[0].exception())
    assert isinstance(work[1].exception(), ValueError)
    assert isinstance(work[2].exception(), TypeError)
    assert work[3].result() == 1


def test_an_argument_that_cannot_be_written_fails_as_itself_and_leaves_nothing(tmp_path, monkeypatch):
    pool, large = Slow(), bytes(LARGE_BYTES)
    executor = ClusterExecutor(pool, {}, tmp_path)
    write = Path.write_bytes

    def full(path, text):
        write(path, text[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        executor.submit(len, large).result()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    monkeypatch.setattr(Path, "write_bytes", write)
    again = executor.submit(len, large)
    theirs, packed = pool.taken[0]
    theirs.set_result(call({}, packed))
    assert again.result() == LARGE_BYTES
    with pytest.raises(Exception, match=r"[Pp]ickle"):
        executor.submit(len, lambda: 1).result()
    assert len(pool.taken) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pool = 1\n", "must define `config`"),
        ("config = 1\n", "must define `config`"),
        ("import os\nos.environ['NO_SUCH_VARIABLE']\n", r"line 2: KeyError"),
        ("import no_such_package\n", "line 1: ModuleNotFoundError"),
        ("config = (\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "line 1: SystemExit"),
        ("raise GeneratorExit\n", "line 1: GeneratorExit"),
        ("raise BaseException('no')\n", "line 1: BaseException: no"),
        ("class Own(BaseException):\n    pass\nraise Own\n", "line 3: Own"),
        (b"config = '\xff'\n", "SyntaxError"),
        (b"\x00\n", "SyntaxError|ValueError"),
        ("from parsl.config import Config\nconfig = Config(executors=[], run_dir='/dev/null/x')\n", "cannot start"),
    ],
)
def test_a_file_of_no_use_is_refused_in_one_line(cluster, text, words):
    with pytest.raises(UsageError, match=words) as refused, cluster(text):
        pass
    assert re.match(r"--executor \S*cluster\.py: ", str(refused.value))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", ["absent.py", ".", "n" * 300 + ".py", "folder.py", "pipe.py"])
def test_a_path_that_is_no_file_is_refused(path, tmp_path):
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(UsageError, match="--executor"), open_executor(1, str(tmp_path / path)):
        pass
