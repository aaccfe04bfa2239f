"""Jobs and steps: done once, never half, and how far they are."""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import resource
import shutil
import sys
import time
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
from heatlas.pipeline.run.work import host, progress
from heatlas.pipeline.run.work.digests import DigestCache, file_digest
from heatlas.pipeline.run.work.jobs import (
    FAILURES_TABLE,
    Job,
    clear_stale_scratch,
    execute,
    is_done,
    receipt_key,
    run_jobs,
    run_step,
)
from heatlas.pipeline.run.work.progress import Progress, open_log, progress_line

# Jobs are done once, never half, and never lost.

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


def test_step_is_done_once_per_state_of_its_inputs(tmp_path):
    layout = RunLayout(tmp_path)
    source, target = tmp_path / "in.tsv", tmp_path / "group" / "out.tsv"
    target.parent.mkdir()
    source.write_text("1")
    calls = []

    def double():
        calls.append(source.read_text())
        target.write_text(source.read_text() * 2)
        return [target]

    def step(parameters=1):
        digests = DigestCache(layout.digests)
        return run_step(layout, "double", [source], parameters, ["heatlas.pipeline.run.work.jobs"], double, digests)

    assert [step(), step()] == [True, False]
    source.write_text("22")
    assert [step(), step()] == [True, False]
    for spoil in (lambda: target.write_text("tampered"), lambda: steps_set_back(target, "3333"), target.unlink):
        spoil()
        assert [step(), step()] == [True, False]
        assert target.read_text() == "2222"
    for damaged in ("", "[]", "{}"):
        layout.receipt("steps", "double").write_text(damaged)
        assert [step(), step()] == [True, False]
    assert [step(parameters=2), step(parameters=2)] == [True, False]
    assert calls == ["1", *["22"] * 8]


def steps_set_back(path, text):
    """Write a text and give the file its old time."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_moved_run_folder_is_not_done_again_but_another_input_is(tmp_path):
    (tmp_path / "elsewhere.json").write_text("same")
    (tmp_path / "other.json").write_text("same")

    def step(root, outside):
        layout = RunLayout(root)

        def write():
            layout.group.mkdir(parents=True, exist_ok=True)
            (layout.group / "out.tsv").write_text("1")
            return [layout.group / "out.tsv"]

        inputs = [layout.root / "in.tsv", tmp_path / outside]
        return run_step(layout, "s", inputs, 1, ["heatlas.pipeline.run.work.jobs"], write, DigestCache(layout.digests))

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "in.tsv").write_text("1")
    assert step(tmp_path / "run", "elsewhere.json")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert not step(tmp_path / "moved", "elsewhere.json")
    assert step(tmp_path / "moved", "other.json")


# Long work says how far it is: a bar on a terminal, a line now and then elsewhere.


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.05)


def slow(outputs: dict[str, Path], text: str) -> None:
    time.sleep(0.12)
    if text == "bad":
        raise ValueError(text)


def jobs(layout: RunLayout) -> list[Job]:
    return [Job("stage", unit, unit, {}, slow, (unit,)) for unit in ("bad", "good", "other")]


def test_a_stage_writes_lines_to_standard_output_and_the_log(
    tmp_path: Path, often: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line while nothing has finished yet, later ones with failures and the time left; all in both places."""
    layout = RunLayout(tmp_path)
    with open_log(layout, layout.root / "input"), ThreadPoolExecutor(1) as executor:
        run_jobs(layout, jobs(layout), executor, "registration")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "registration: 0 of 3, 1 running, 2 queued after 0 s"
    assert "registration: 1 of 3, 1 running, 1 queued, 1 failed, 0 s left" in printed
    logged = [line.partition(" INFO ")[2] for line in layout.log.read_text(encoding="utf-8").splitlines()]
    assert logged == printed


def test_work_outside_a_run_prints_its_lines(
    monkeypatch: pytest.MonkeyPatch, often: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("heatlas"), "handlers", [])  # pytest adds its own
    with Progress(2, "Reading image headers") as bar:
        bar.update()
        time.sleep(0.12)
    assert "Reading image headers: 1 of 2, 0 s left" in capsys.readouterr().out


def test_lines_say_where_the_logs_of_workers_elsewhere_are(
    monkeypatch: pytest.MonkeyPatch, often: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("heatlas"), "handlers", [])
    with Progress(400, "registration", lambda: 12, Path("OUT/logs/parsl")):
        time.sleep(0.12)
    line = "registration: 0 of 400, 12 running, 388 queued after 0 s; logs in OUT/logs/parsl"
    assert line in capsys.readouterr().out.splitlines()


def test_short_work_is_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = RunLayout(tmp_path)
    with open_log(layout, layout.root / "input"), ThreadPoolExecutor(1) as executor:
        run_jobs(layout, jobs(layout), executor, "registration")
    assert capsys.readouterr() == ("", "")
    assert layout.log.read_text(encoding="utf-8") == ""


def test_a_terminal_keeps_its_bar_and_gets_no_lines(
    monkeypatch: pytest.MonkeyPatch, often: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress(2, "registration") as bar:
        bar.update(failed=True)
        time.sleep(0.12)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1/2" in shown.err
    assert "1 failed" in shown.err


def test_what_was_done_before_says_nothing_about_the_time_left() -> None:
    """30 of 40 were done by an earlier run; one of the other ten took 100 s."""
    assert progress_line("registration", 31, 40, 0, 30, 100.0) == "registration: 31 of 40, 15 min left"


def test_the_bar_says_what_is_running_while_nothing_finishes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_COUNTS", 0.05)
    with Progress(403, "registration", lambda: 12, Path("OUT/logs/parsl")) as bar:
        bar.update(failed=True)
        time.sleep(0.15)
    drawn = capsys.readouterr().err
    assert "12 running, 390 queued, 1 failed; logs in OUT/logs/parsl" in drawn


def test_the_bar_estimates_from_what_was_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress(10, "registration") as bar:
        for _ in range(6):
            bar.update(unchanged=True)
        time.sleep(0.2)
        bar.update()
        seconds = bar._bar.format_dict["elapsed"]
        shown = bar._bar.format_meter(**{**bar._bar.format_dict, "elapsed": 100.0})
    assert seconds > 0.2
    assert "<05:00, 100.00s/unit" in shown
