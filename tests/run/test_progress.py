"""Long work says how far it is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work import progress
from heatlas.pipeline.run.work.jobs import Job, run_jobs
from heatlas.pipeline.run.work.progress import Progress, open_log, progress_line


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
