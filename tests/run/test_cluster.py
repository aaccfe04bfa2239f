"""Parsl's workers behind the interface of `concurrent.futures`."""

from __future__ import annotations

import os
import re

import pytest

from pipeline.run.errors import BadInputError, ResumableError, UsageError
from pipeline.run.work.cluster import ClusterExecutor
from pipeline.run.work.executors import SINGLE_THREAD, open_executor

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
        return open_executor(1, path, tmp_path / "logs")

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


def test_workers_have_their_environment_and_a_lost_one_ends_the_run_resumably(cluster, tmp_path):
    def work():
        with cluster(PROCESSES) as pool:
            assert isinstance(pool, ClusterExecutor)
            for name, value in SINGLE_THREAD.items():
                assert pool.submit(os.getenv, name).result() == value
            # A worker that dies while it still hands in its last result leaves Parsl's queue locked for ever.
            pool.submit(exec, "import os, time; time.sleep(1); os.abort()").result()

    with pytest.raises(ResumableError, match="worker of the cluster was lost"):
        work()
    assert (tmp_path / "logs").is_dir(), "after a failure Parsl's files say why"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pool = 1\n", "must define `config`"),
        ("config = 1\n", "must define `config`"),
        ("import os\nos.environ['NO_SUCH_VARIABLE']\n", r"line 2: KeyError"),
        ("import no_such_package\n", "line 1: ModuleNotFoundError"),
        ("config = (\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "line 1: SystemExit"),
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
    with pytest.raises(UsageError, match="--executor"), open_executor(1, tmp_path / path):
        pass
