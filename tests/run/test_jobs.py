"""Jobs are done once, never half, and never lost."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.run.errors import BadInputError, ResumableError
from pipeline.run.jobs import Job, clear_stale_scratch, run_jobs
from pipeline.run.layout import RunLayout
from pipeline.run.tables import read_table

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


@pytest.mark.parametrize("spoil", ["key", "missing output", "truncated output", "no receipt"])
def test_work_is_repeated_when_anything_is_off(layout, executor, spoil):
    run_jobs(layout, [job(layout, "one")], executor, "")
    output = layout.root / "a" / "u.txt"
    if spoil == "missing output":
        output.unlink()
    elif spoil == "truncated output":
        output.write_text("on")
    elif spoil == "no receipt":
        layout.receipt("stage", "u").unlink()
    run_jobs(layout, [job(layout, "one", key="other" if spoil == "key" else "k")], executor, "")
    assert CALLS == ["one", "one"]
    assert output.read_text() == "one"


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


def test_scratch_of_dead_processes_is_removed_and_of_living_kept(layout):
    dead = subprocess.Popen(["true"])
    dead.wait()
    host = platform.node()
    for name in (f"s_u.{host}.{dead.pid}", f"s_v.{host}.{os.getpid()}", "s_w.elsewhere.1"):
        (layout.scratch / name).mkdir(parents=True)
    clear_stale_scratch(layout)
    assert sorted(p.name for p in layout.scratch.iterdir()) == sorted([f"s_v.{host}.{os.getpid()}", "s_w.elsewhere.1"])
