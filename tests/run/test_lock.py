"""One program at a time in a run folder."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from heatlas.pipeline.run.errors import ResumableError, UsageError
from heatlas.pipeline.run.layout.folder import run_lock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / ".lock"


def holder(**changes) -> str:
    """A lock as this very process writes it, but for the changes."""
    mine = {"host": platform.node(), "pid": os.getpid(), "process": started(os.getpid()), "started": "2026-01-02"}
    return json.dumps(mine | changes)


def started(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as handle:  # noqa: PTH123
        return handle.read().rpartition(")")[2].split()[19]


def test_the_lock_says_who_holds_it_and_goes_however_the_work_ends(path):
    def work():
        with run_lock(path) as taken_over:
            held = json.loads(path.read_text())
            assert (held["host"], held["pid"], taken_over) == (platform.node(), os.getpid(), "")
            assert held["started"][:2] == "20"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not path.exists()


def test_a_second_program_is_refused_and_leaves_the_first_its_lock(path):
    code = (
        "import sys; from pathlib import Path; from heatlas.pipeline.run.layout.folder import run_lock\n"
        "with run_lock(Path(sys.argv[1])): pass"
    )
    with run_lock(path):
        before = path.read_text()
        second = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        assert f"ResumableError: {path.parent}: process {os.getpid()} works there since 20" in second.stderr
        assert path.read_text() == before
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == 0


@pytest.mark.parametrize("reused", [False, True])
def test_the_lock_of_a_process_that_is_gone_is_taken_over(path, reused):
    dead = subprocess.Popen(["true"])
    dead.wait()
    path.parent.mkdir()
    path.write_text(holder(process="1") if reused else holder(pid=dead.pid))
    with run_lock(path) as taken_over:
        assert "started 2026-01-02" in taken_over
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (holder(host="elsewhere"), "on elsewhere works there.*delete .*lock"),
        (holder(host="elsewhere", pid=1), "on elsewhere works there.*delete .*lock"),
        ("", "may be starting.*delete .*lock"),
        ("[]", "may be starting.*delete .*lock"),
        ('{"host": "x"}', "may be starting.*delete .*lock"),
        (holder(pid="many"), "may be starting.*delete .*lock"),
        ("\udcff", "may be starting.*delete .*lock"),
    ],
    ids=["another host", "its first process", "empty", "a list", "no process", "no number", "no text"],
)
def test_a_lock_that_cannot_be_judged_is_left_and_the_remedy_named(path, text, words):
    path.parent.mkdir()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ResumableError, match=words), run_lock(path):
        pass
    assert path.exists()


def test_holders_of_different_people_work_side_by_side_and_those_of_one_person_do_not(path):
    with run_lock(path, ["sub-01", "sub-02", "sub-01"]), run_lock(path, ["sub-03"]):
        for people in (["sub-02"], ["sub-00", "sub-01", "sub-04"]):
            with (
                pytest.raises(ResumableError, match=rf"process {os.getpid()} works on sub-0[12] there since 20"),
                run_lock(path, people),
            ):
                pass
        assert len(list(path.parent.iterdir())) == 3  # who is refused leaves nothing
        with run_lock(path, ["sub-00", "sub-04"]):
            pass
    assert not list(path.parent.iterdir())


def test_who_holds_the_folder_is_alone_there(path):
    with run_lock(path, ["sub-01"]):
        with pytest.raises(ResumableError, match="works on sub-01 there"), run_lock(path):
            pass
        assert not path.exists()
    with run_lock(path):
        with pytest.raises(ResumableError, match="works there"), run_lock(path, ["sub-01"]):
            pass
        assert list(path.parent.iterdir()) == [path]


def test_of_person_and_folder_that_begin_at_once_no_one_is_overlooked(path):
    """Many times: both may be refused, and never do both work."""
    working: set[int] = set()

    def work(number: int) -> bool:
        with suppress(ResumableError), run_lock(path, [f"sub-{number:02d}"] if number % 3 else ()):
            working.add(number)
            time.sleep(0.001)
            beside = list(working)
            working.remove(number)
            assert len(beside) == 1 or all(other % 3 for other in beside)
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        assert any(pool.map(work, range(200)))


@pytest.mark.parametrize("people", [(), ("sub-02",), ("sub-01",)])
def test_the_lock_of_a_person_whose_process_is_gone_keeps_nobody_out(path, people):
    path.parent.mkdir()
    left = path.with_name(".lock.sub-01")
    left.write_text(holder(process="1"))
    with run_lock(path, people) as taken_over:
        assert ("started 2026-01-02" in taken_over) == (people == ("sub-01",))
        assert left.exists() == bool(people)  # the folder's holder tidies up
    assert list(path.parent.iterdir()) == ([left] if people == ("sub-02",) else [])


def test_the_lock_of_a_folder_whose_process_is_gone_stays_for_who_continues_its_run(path):
    path.parent.mkdir()
    path.write_text(holder(process="1"))
    with run_lock(path, ["sub-01"]):
        pass
    with run_lock(path) as taken_over:
        assert "started 2026-01-02" in taken_over


@pytest.mark.parametrize("people", [(), ("sub-01",)])
def test_a_person_locked_on_another_computer_is_named_with_the_remedy(path, people):
    path.parent.mkdir()
    path.with_name(".lock.sub-01").write_text(holder(host="elsewhere"))
    words = r"on elsewhere works on sub-01 there since .*delete .*\.lock\.sub-01 and run"
    with pytest.raises(ResumableError, match=words), run_lock(path, people):
        pass


def test_of_many_that_find_a_dead_lock_one_takes_it(path):
    path.parent.mkdir()
    path.write_text(holder(process="1"))
    everyone_tried = threading.Barrier(8)

    def try_it(_):
        try:
            with run_lock(path):
                everyone_tried.wait(20)
                return True
        except ResumableError:
            everyone_tried.wait(20)
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_it, range(8))) == 1


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "run", tmp_path / ("n" * 300)):
        with pytest.raises(UsageError, match="cannot write there"), run_lock(folder / ".lock"):
            pass


@pytest.mark.parametrize("place", ["sub-01", "sub-01/ses-1", "group", "report", "figures/publication"])
def test_nothing_is_written_through_a_link_that_leads_out_of_the_folder(path, tmp_path, place):
    outside, link = tmp_path / "outside", path.parent / place
    outside.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(UsageError, match=rf"{link}: is a link to a folder outside .*Replace the link"), run_lock(path):
        pass
    assert list(outside.iterdir()) == []
    assert not path.exists()


def test_links_that_stay_in_the_folder_and_links_to_files_are_no_reason_to_refuse(path, tmp_path):
    (path.parent / "sub-01").mkdir(parents=True)
    (path.parent / "sub-02").symlink_to(path.parent / "sub-01")
    (tmp_path / "notes.txt").write_text("x")
    (path.parent / "notes.txt").symlink_to(tmp_path / "notes.txt")
    with run_lock(path) as taken_over:
        assert taken_over == ""
