"""Ctrl-C and termination end in one line and the right exit code, whenever they come and however often."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STARTING = """
import os, signal
from heatlas.workflows import interrupts
class Main:
    def main(begin):
        os.kill(os.getpid(), signal.{name})
        print("not stopped")
import sys
sys.modules["heatlas.workflows.command_line"] = Main
sys.exit(interrupts.start())
"""
WORKING = """
import argparse, os, signal, sys, time
from heatlas.workflows import command_line, interrupts
class Home:
    def check_command(arguments):
        try:
            os.kill(os.getpid(), signal.{name})
            time.sleep(5)
        finally:
            time.sleep({pause})
            os.kill(os.getpid(), signal.{name})
            print("cleaned up")
sys.modules["heatlas.workflows.check"] = Home
sys.argv = ["heatlas", "check", "x"]
sys.exit(interrupts.start())
"""
ENDING = """
import os, signal, sys
from heatlas.workflows import interrupts
class Main:
    def main(begin):
        return 3
class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.{name}):
        kill(process, number)
sys.modules["heatlas.workflows.command_line"] = Main
sys.late = Late()  # goes when Python has taken its signal handlers away
sys.exit(interrupts.start())
"""
ENDS = {"SIGINT": (130, "interrupted"), "SIGTERM": (143, "terminated from outside")}


def run(code: str, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    def before() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)

    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=before)


@pytest.mark.sample(2)
@pytest.mark.parametrize("ignored", [False, True], ids=["", "by a background job"])
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(("code", "said"), [(STARTING, ""), (WORKING, "cleaned up\n")], ids=["starting", "working"])
def test_one_line_and_the_exit_code(code, said, name, ignored):
    ended = run(code.format(name=name, pause=0), ignored)
    number, words = ENDS[name]
    assert (ended.returncode, ended.stdout) == (number, said)
    assert ended.stderr == f"heatlas: {words}; run the same command again to continue.\n"


def test_who_asks_again_does_not_wait_for_the_cleaning_up():
    ended = run(WORKING.format(name="SIGINT", pause=2.1))
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "heatlas: interrupted; run the same command again to continue.\n"


@pytest.mark.parametrize("name", ENDS)
def test_a_signal_after_the_work_does_not_change_the_exit_code(name):
    ended = run(ENDING.format(name=name))
    assert (ended.returncode, ended.stderr) == (3, "")
