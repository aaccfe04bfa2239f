"""Jobs are done once, never half, and never lost."""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from heatlas.pipeline.run.errors import BadInputError, ResumableError
from heatlas.pipeline.run.layout.run_layout import ParticipantLayout, RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work import host
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.run.work.jobs import (
    FAILURES_TABLE,
    Job,
    clear_stale_scratch,
    execute,
    is_done,
    receipt_key,
    run_jobs,
)

CALLS: list[str] = []


def copy_text(outputs: dict[str, Path], text: str) -> dict[str, str]:
    CALLS.append(text)
    if text == "bad":
        outputs["out"].write_text("half")
        raise BadInputError("scan.nii.gz: is broken.\nSend another.")
    if text == "full":
        raise OSError(errno.ENOSPC, "no space")
    outputs["out"].write_text(text)
    return {"length": len(text)}


@pytest.fixture
def layout(tmp_path):
    CALLS.clear()
    return RunLayout(tmp_path / "run")


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def job(layout: RunLayout, text: str, key: str = "k", unit: str = "u") -> Job:
    return Job("stage", unit, key, {"out": layout.root / "a" / f"{unit}.txt"}, copy_text, (text,))


def test_second_run_does_nothing_and_returns_the_same(layout, executor):
    first = run_jobs(layout, [job(layout, "one")], executor, "")
    second = run_jobs(layout, [job(layout, "one")], executor, "")
    assert CALLS == ["one"]
    assert [o.status for o in first + second] == ["done", "unchanged"]
    assert first[0].result == second[0].result == {"length": 3}


def set_back(path: Path, text: str) -> None:
    """Write a text of the same length and give the file its old time."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


SPOILED: dict[str, Callable[[Path, Path], object]] = {
    "missing output": lambda output, receipt: output.unlink(),
    "truncated output": lambda output, receipt: output.write_text("on"),
    "edited to the same size": lambda output, receipt: output.write_text("two"),
    "edited and its time set back": lambda output, receipt: set_back(output, "two"),
    "a folder in its place": lambda output, receipt: (output.unlink(), output.mkdir()),
}
DAMAGED = [
    "",
    "{}",
    "[]",
    '{"key": "k"}',
    '{"key": "k", "result": {}, "outputs": {"a/u.txt": 3}}',
    '{"key": "%s", "result": {}, "outputs": ["a/u.txt"]}',
    '{"key": "%s", "result": {}, "outputs": "a/u.txt"}',
    '{"key": "%s", "result": [1], "outputs": {}}',
    '{"key": "%s", "result": {}, "outputs": {"a/u.txt": null}}',
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_an_output_that_is_not_ours_is_made_again_and_named(layout, executor, spoil, caplog):
    logging.getLogger("heatlas").addHandler(caplog.handler)
    run_jobs(layout, [job(layout, "one")], executor, "")
    output = layout.root / "a" / "u.txt"
    SPOILED[spoil](output, layout.receipt("stage", "u"))
    said = "missing" if spoil == "missing output" or output.is_dir() else "not as it was written"
    if output.is_dir():
        output.rmdir()
    again = run_jobs(layout, [job(layout, "one")], executor, "")
    assert [outcome.status for outcome in again] == ["done"]
    assert output.read_text() == "one"
    assert f"a/u.txt is {said}; it is made again" in caplog.text
    logging.getLogger("heatlas").removeHandler(caplog.handler)


@pytest.mark.parametrize("receipt", [None, *DAMAGED])
def test_work_is_repeated_without_a_receipt_that_can_be_read(layout, executor, receipt):
    run_jobs(layout, [job(layout, "one")], executor, "")
    path = layout.receipt("stage", "u")
    key = json.loads(path.read_text())["key"]
    path.unlink() if receipt is None else path.write_text(receipt.replace("%s", key))
    run_jobs(layout, [job(layout, "one")], executor, "")
    assert CALLS == ["one", "one"]


def test_work_is_repeated_under_another_key(layout, executor):
    run_jobs(layout, [job(layout, "one")], executor, "")
    run_jobs(layout, [job(layout, "one", key="other")], executor, "")
    assert CALLS == ["one", "one"]


def test_a_copied_run_is_read_once_and_not_made_again(layout, executor, tmp_path, monkeypatch):
    run_jobs(layout, [job(layout, "one")], executor, "")
    copy = RunLayout(tmp_path / "copy")
    shutil.copytree(layout.root, copy.root, copy_function=shutil.copyfile)
    read = []
    monkeypatch.setattr(
        "heatlas.pipeline.run.work.digests.file_digest", lambda path: read.append(path) or file_digest(path)
    )
    for _ in range(3):
        assert is_done(copy, job(copy, "one")) == {"length": 3}
    assert read == [copy.root / "a" / "u.txt"]
    assert CALLS == ["one"]


def test_key_of_a_finished_unit_is_that_of_its_job(layout, executor):
    assert receipt_key(layout, "stage", "u") is None
    run_jobs(layout, [job(layout, "one", key="abc")], executor, "")
    assert receipt_key(layout, "stage", "u") == "abc"
    for damaged in ("", "[]", "{}", '{"key'):
        layout.receipt("stage", "u").write_text(damaged)
        assert receipt_key(layout, "stage", "u") is None


def test_one_failure_leaves_the_others_and_is_written_down(layout, executor):
    jobs = [job(layout, "one", unit="a"), job(layout, "bad", unit="b"), job(layout, "two", unit="c")]
    outcomes = run_jobs(layout, jobs, executor, "")
    assert [o.status for o in outcomes] == ["done", "failed", "done"]
    row = read_table(layout.failures).iloc[0]
    assert (row["stage"], row["unit"], row["error"]) == ("stage", "b", "BadInputError")
    assert row["message"] == "scan.nii.gz: is broken. Send another."
    assert "raise BadInputError" in (layout.root / row["traceback"]).read_text()
    assert not (layout.root / "a" / "b.txt").exists()
    assert not any(layout.scratch.iterdir())


def test_a_repaired_unit_leaves_failures(layout, executor):
    run_jobs(layout, [job(layout, "bad")], executor, "")
    run_jobs(layout, [job(layout, "good", key="new")], executor, "")
    assert len(read_table(layout.failures)) == 0
    assert not layout.traceback("stage", "u").exists()


def test_full_disk_stops_the_run_resumably(layout, executor):
    with pytest.raises(ResumableError, match="no space left"):
        run_jobs(layout, [job(layout, "full")], executor, "")


@pytest.mark.parametrize("unit", ["a", "bad"])
def test_a_full_disk_that_a_library_does_not_name_stops_the_run_and_keeps_nothing(layout, executor, monkeypatch, unit):
    with monkeypatch.context() as patched:
        patched.setattr(host, "FULL_BYTES", 2**80)
        with pytest.raises(ResumableError, match="no space left"):
            run_jobs(layout, [job(layout, unit)], executor, "")
    assert is_done(layout, job(layout, unit)) is None
    assert not any(layout.scratch.iterdir())
    assert not job(layout, unit).outputs["out"].exists()
    assert run_jobs(layout, [job(layout, "a")], executor, "")[0].status == "done"


def cut_short(outputs: dict[str, Path]) -> None:
    """Writes as ANTs does, without an error, and then reads what it wrote."""
    with suppress(OSError):
        outputs["out"].write_bytes(b"x" * 2**20)
    raise EOFError("Compressed file ended before the end-of-stream marker was reached")


def named_by_a_library(outputs: dict[str, Path]) -> None:
    raise RuntimeError("Error while serializing: I/O error: File too large (os error 27)")


@pytest.mark.parametrize("function", [cut_short, named_by_a_library])
def test_a_limit_on_the_size_of_files_stops_the_run_and_is_named(layout, function):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(ResumableError, match=r"working on u: a file may not be larger than 65,536 bytes here"):
            execute(layout, replace(job(layout, "one"), function=function, arguments=()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refuse(outputs: dict[str, Path]) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_disk_that_becomes_read_only_stops_the_run_resumably(layout, executor):
    with pytest.raises(ResumableError, match="become read-only"):
        run_jobs(layout, [Job("stage", "a", "key", {"out": layout.root / "a"}, refuse)], executor, "")


def write_two(outputs: dict[str, Path], text: str) -> None:
    for path in outputs.values():
        path.write_text(text)


def test_killed_between_two_renames_neither_version_passes_for_finished(layout, monkeypatch):
    outputs = {name: layout.root / "a" / f"{name}.txt" for name in ("first", "second")}
    old, new = (Job("stage", "u", text, outputs, write_two, (text,)) for text in ("old", "new"))
    assert execute(layout, old).ok
    rename = Path.replace

    def killed_at_second(self, target):
        if Path(target).name == "second.txt":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", killed_at_second)
    with pytest.raises(KeyboardInterrupt):
        execute(layout, new)
    monkeypatch.undo()
    assert [path.read_text() for path in outputs.values()] == ["new", "old"]
    assert is_done(layout, old) is None
    assert is_done(layout, new) is None


def test_pool_that_breaks_while_jobs_are_handed_in_stops_and_keeps_what_is_done(layout):
    class Broken(ThreadPoolExecutor):
        def submit(self, fn, /, *arguments, **options):
            if len(CALLS):
                raise BrokenProcessPool("a worker is gone")
            future = super().submit(fn, *arguments, **options)
            future.result()
            return future

    jobs = [job(layout, "one", unit="a"), job(layout, "two", unit="b")]
    with Broken(1) as pool, pytest.raises(BrokenProcessPool):
        run_jobs(layout, jobs, pool, "heatmaps")
    assert is_done(layout, jobs[0]) == {"length": 3}


def test_a_job_of_one_person_leaves_what_those_of_others_are_working_on(layout):
    first, second = (ParticipantLayout(layout.root, person) for person in ("sub-01", "sub-02"))
    for own in (first, second):
        (own.scratch / "registration_x.host.7").mkdir(parents=True)
    clear_stale_scratch(first)
    assert not list(first.scratch.iterdir())
    assert list(second.scratch.iterdir())
    clear_stale_scratch(layout)  # of the whole folder, when nobody else works there
    assert not list(layout.scratch.iterdir())


def test_a_job_of_one_person_shares_units_of_work_and_nothing_else(layout):
    own = ParticipantLayout(layout.root, "sub-01")
    assert own.receipt("registration", "sub-01") == layout.receipt("registration", "sub-01")
    assert own.scan("sub-01", None, 2.0) == layout.scan("sub-01", None, 2.0)
    for name in ("failures", "log", "digests", "provenance", "parsl_logs", "scratch", "tables"):
        assert getattr(own, name).is_relative_to(layout.root), name
        assert getattr(own, name) != getattr(layout, name), name
    assert own.receipt("steps", "volumes") != layout.receipt("steps", "volumes")
    assert FAILURES_TABLE.path(own) == own.failures


def test_scratch_that_killed_runs_left_on_any_host_is_removed(layout):
    clear_stale_scratch(layout)  # there may be none
    for name in (f"s_u.{platform.node()}.7", "s_w.elsewhere.1"):
        (layout.scratch / name / "a").mkdir(parents=True)
    clear_stale_scratch(layout)
    assert list(layout.scratch.iterdir()) == []


class OutOfMemoryError(RuntimeError):
    """As that of torch."""


def fill_the_gpu(outputs: dict[str, Path]) -> None:
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of 79 GiB.")


def test_a_full_gpu_is_one_line_with_the_remedy_and_the_traceback_is_kept(layout):
    job = Job("training", "fold-1", "key", {"out": layout.root / "out.txt"}, fill_the_gpu, ())
    outcome = execute(layout, job)
    assert outcome.error == "OutOfMemoryError"
    assert outcome.message.startswith("the memory of the GPU is full. Lower training.batch_size")
    assert "\n" not in outcome.message
    assert "Tried to allocate 2.00 GiB" in outcome.traceback
