"""Text of others is shown and not obeyed, and names no folder of this machine."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import PlainStream, plain
from heatlas.pipeline.run.work.jobs import Job, Outcome, record_failures
from heatlas.pipeline.run.work.progress import open_log
from heatlas.workflows.command_line import main

ROOT = Path(__file__).parents[2]
HOSTILE = {
    "\x1b[2J": r"\x1b[2J", "\x1b]0;title\x07": r"\x1b]0;title\x07", "\x9b31m": r"\x9b31m",
    "over\rwritten": r"over\rwritten",
    "\b\b": r"\x08\x08", "\u202eevil": r"\u202eevil", "\udcff": r"\udcff", "\x00": r"\x00",
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_obey_is_spelt(text):
    assert plain(f"site {text}") == f"site {HOSTILE[text]}"
    stream = io.StringIO()
    print(text, file=PlainStream(stream))
    assert stream.getvalue() == HOSTILE[text] + "\n"


def test_other_text_is_left():
    text = "β 0.5 – naïve\tМосква\n東京 😀"
    assert plain(text) == text


@pytest.mark.parametrize("words", [["check", "{}"], ["check", "in", "{}"], ["fly{}"], ["check", "x", "--preset", "{}"]])
def test_arguments_are_repeated_as_plain_text(words, capsys):
    try:
        code = main([word.format("\x1b[31m") for word in words])
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr()
    assert code in (2, 65)
    assert "\x1b" not in said.out + said.err
    assert r"\x1b[31m" in said.err


def test_logs_and_failures_are_plain_and_name_no_folder(tmp_path, capsys):
    layout, source = RunLayout(tmp_path / "out"), tmp_path / "in"
    with open_log(layout, source) as log:
        log.info("\x1b[31m %s and %s in %s", layout.report, source / "a.nii", Path.home() / "x")
    assert capsys.readouterr().out.startswith(rf"\x1b[31m {layout.report}"), "a terminal may know where it is"
    written = layout.log.read_text()
    assert r"\x1b[31m OUT/report.html and INPUT/a.nii in ~" in written
    job = Job("stage", "unit", "k", {}, print)
    trace = f'File "{logging.__file__}"\n\x1b[31m{layout.root}/x'
    record_failures(layout, [Outcome(job, "failed", {}, "E", f"{layout.root}/x: \x1b[31mbroken", trace)])
    assert r"OUT/x: \x1b[31mbroken" in layout.failures.read_text()
    kept = layout.traceback("stage", "unit").read_text()
    assert kept == 'File "python/lib' + logging.__file__.partition("/lib")[2] + '"\n\\x1b[31mOUT/x'


def test_what_an_encoding_lacks_is_escaped():
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    print("n\u202f=\u202f3 – 病院", file=PlainStream(stream))
    assert written.getvalue() == rb"n\u202f=\u202f3 \u2013 \u75c5\u9662" + b"\n"


def test_a_stream_that_fails_costs_nothing_but_its_text():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    out = PlainStream(Full())
    print("one", file=out)
    print("two", file=out, flush=True)


TALKS = """
import logging, sys
from heatlas.workflows import interrupts
class Home:
    def check_command(arguments):
        log = logging.getLogger("test")
        log.addHandler(logging.StreamHandler(sys.stdout))
        from tqdm import tqdm
        assert sys.stderr.isatty() is False
        for _ in tqdm(range(1000), disable=not sys.stderr.isatty()):
            print("talks – " * 100)
            log.warning("talks – " * 100)
        arguments.input.touch()
        return 3
sys.modules["heatlas.workflows.check"] = Home
sys.argv = ["heatlas", "check", *sys.argv[1:]]
sys.exit(interrupts.start())
"""
TERMINALS = {
    "full": ">/dev/full", "closed": ">&-", "all closed": ">&- 2>&- <&-", "closed by the reader": "| true",
    "of seven bits": "", "in a folder that is gone": "",
}  # fmt: skip


def started(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder.parent / "talks.py").write_text(TALKS, encoding="utf-8")
    words = f"{sys.executable} {folder.parent}/talks.py"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command.format(heatlas=words)}"], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.mark.parametrize("terminal", TERMINALS)
def test_work_goes_on_whatever_becomes_of_the_terminal(tmp_path, terminal):
    folder = tmp_path / "here"
    folder.mkdir()
    begin = f"rmdir {folder}; " if "gone" in terminal else ""
    environment = {"PYTHONIOENCODING": "ascii"} if "seven" in terminal else {}
    ended = started(folder, f"{begin}{{heatlas}} {tmp_path}/done {TERMINALS[terminal]}", **environment)
    assert (ended.returncode, ended.stderr) == (3, "")
    assert (tmp_path / "done").is_file()


def test_a_path_from_a_folder_that_is_gone_is_named(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    ended = started(folder, f"rmdir {folder}; {{heatlas}} done")
    assert ended.returncode == 2
    assert "'done': the current folder has been removed" in ended.stderr
