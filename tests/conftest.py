"""Fixtures shared by all rooms."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import sys
from functools import cache
from pathlib import Path

import hypothesis
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of several test processes wait for each other in busy loops: minutes, for what one thread does in seconds.
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")

from heatlas.workflows.command_line import WORKER_MODULES

hypothesis.settings.register_profile("heatlas", deadline=None)  # a busy machine is no fault of the code
hypothesis.settings.load_profile("heatlas")
# ITK reads it once, when the first test of a process imports ANTs; with more threads its results vary.
os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"
# Whichever test first needs workers starts the one server of its process, which imports for all later tests.
multiprocessing.set_forkserver_preload(list(WORKER_MODULES))

LONGEST = """
    test_end_to_end test_evaluate test_report test_check test_evidence_report test_report_pages test_browser_report
    test_damaged_files test_broken_runs test_registration_stage test_apply test_export test_pretrain test_open_run
    test_portraits test_statistics_stage test_methods_of_run
"""
"""Files whose tests begin first when processes share the work, so that none is left with a long file at the end."""

ROOT = Path(__file__).parents[1]
REAL_DATA = Path(os.environ.get("HEATLAS_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


STUDIES = importlib.util.find_spec("heatlas.studies") is not None
"""Whether the program stands with its studies; without them it is the core (`make test-core`)."""


@cache
def imported_texts(path: Path) -> tuple[str, frozenset[Path]]:
    """A file's text, and the helpers of the tests and benchmarks that it imports."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^\s*(?:from|import) (?!heatlas)([\w.]+)", text, re.MULTILINE)
    names = [name.replace(".", "/") for name in names]
    places = {
        folder / f"{name}.py" for name in names for folder in (ROOT, ROOT / "tests", ROOT / "benchmarks", path.parent)
    }
    return text, frozenset(place for place in places if place.is_file())


def needs_studies(path: Path) -> bool:
    """Whether a file, or a helper that it imports directly or indirectly, imports a study."""
    waiting, seen = [path], set[Path]()
    while waiting:
        text, imported = imported_texts(waiting.pop())
        if "heatlas.studies" in text:
            return True
        waiting += imported - seen
        seen |= imported
    return False


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the test files of studies where there are none."""
    is_file = collection_path.suffix == ".py" and collection_path != Path(__file__)
    return True if not STUDIES and is_file and needs_studies(collection_path) else None


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real brains for tests (CC BY-NC, not part of the repository)."""
    if not (REAL_DATA / "oasis20").is_dir():
        pytest.skip(f"real test data not found at {REAL_DATA}; set HEATLAS_TEST_DATA")
    return REAL_DATA


def pytest_runtest_setup() -> None:
    """What a test draws without a generator of its own does not depend on the tests before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(560_011)  # no seed of a test, which would draw the same again


@pytest.hookimpl(tryfirst=True)  # before markers choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sampled: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            sampled.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for every in sampled.values():
        step = -(-len(every) // every[0].get_closest_marker("sample").args[0])  # type: ignore[union-attr]
        for place, item in enumerate(every):
            if place % step:
                item.add_marker("ci")
    places = {name: place for place, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
