"""Run folders: what lies where, and one program at a time."""

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
from pathlib import Path

import pytest

from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.config.settings import Config, PrivacyConfig
from heatlas.pipeline.run.errors import BadInputError, ResumableError, UsageError
from heatlas.pipeline.run.layout.folder import (
    RunInput,
    is_fingerprint_of,
    prepare_run_folder,
    read_run_config,
    read_run_input,
    recognise_run_folder,
    run_lock,
)
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import PathIn


@pytest.fixture
def source(tmp_path):
    (tmp_path / 'in "quoted"').mkdir()
    return RunInput(tmp_path / 'in "quoted"', "default")


def test_folder_is_made_recognised_and_continued(tmp_path, source):
    layout = prepare_run_folder(tmp_path / "out", source, Config())
    assert read_run_input(layout) == RunInput(source.input.resolve(), "default")
    prepare_run_folder(tmp_path / "out", source, Config(seed=7))
    assert read_config(layout.config).seed == 7


def test_folder_of_another_input_is_refused(tmp_path, source):
    prepare_run_folder(tmp_path / "out", source, Config())
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="another input"):
        prepare_run_folder(tmp_path / "out", RunInput(tmp_path / "other", "default"), Config())


def test_folder_with_other_files_is_refused_and_left_alone(tmp_path, source):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.docx").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        prepare_run_folder(tmp_path / "out", source, Config())
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.docx"]


def test_output_is_kept_out_of_the_input(tmp_path, source):
    for out in (source.input, source.input.parent, source.input / "out"):
        with pytest.raises(UsageError):
            prepare_run_folder(out, source, Config())
    prepare_run_folder(source.input / "derivatives" / "heatlas", source, Config())


def test_missing_input_is_bad_input(tmp_path):
    with pytest.raises(BadInputError, match="no such folder"):
        recognise_run_folder(tmp_path / "out", RunInput(tmp_path / "absent", "default"))
    assert not (tmp_path / "out").exists()


HIDDEN = Config(privacy=PrivacyConfig(shift_dates=True))
KEY, OTHER = "k" * 32, "o" * 32


def test_a_run_is_continued_with_its_own_key_and_does_not_hold_it(tmp_path, source):
    layout = prepare_run_folder(tmp_path / "out", source, HIDDEN, KEY)
    before = layout.config.read_text()
    prepare_run_folder(tmp_path / "out", source, HIDDEN, KEY)
    assert layout.config.read_text() == before
    assert KEY not in before
    other = prepare_run_folder(tmp_path / "other", source, HIDDEN, KEY)
    assert read_run_input(other).key != read_run_input(layout).key, "the same key cannot be told from the outside"


@pytest.mark.parametrize(
    ("begun", "continued", "words"),
    [
        ((HIDDEN, KEY), (HIDDEN, OTHER), "another key"),
        ((HIDDEN, KEY), (HIDDEN, KEY + "k"), "another key"),
        ((HIDDEN, KEY), (Config(), None), "other privacy settings"),
        ((Config(), None), (HIDDEN, KEY), "other privacy settings"),
        ((HIDDEN, None), (HIDDEN, KEY), "another key"),
    ],
)
def test_what_hides_otherwise_does_not_continue_a_run(tmp_path, source, begun, continued, words):
    layout = prepare_run_folder(tmp_path / "out", source, *begun)
    before = layout.config.read_bytes()
    with pytest.raises(UsageError, match=words):
        prepare_run_folder(tmp_path / "out", source, *continued)
    assert layout.config.read_bytes() == before


@pytest.mark.parametrize("mark", ["", "scrypt", "scrypt:", "md5:00:00", "scrypt:00:\u00e9"])
def test_a_damaged_fingerprint_fits_no_key(mark):
    assert not is_fingerprint_of(mark, KEY)


def test_a_folder_that_holds_nothing_but_a_lock_is_empty(tmp_path, source):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".heatlas.lock").touch()
    (tmp_path / "out" / ".heatlas.lock.sub-01").touch()
    (tmp_path / "out" / ".config.toml.0a.tmp").touch()  # which another job is about to rename
    prepare_run_folder(tmp_path / "out", source, Config())


def test_a_folder_that_another_job_fills_meanwhile_is_a_run_of_the_same_input(tmp_path, source, monkeypatch):
    out, listed = tmp_path / "out", Path.iterdir

    def filled_meanwhile(folder):
        monkeypatch.setattr(Path, "iterdir", listed)
        names = list(listed(folder))
        prepare_run_folder(out, source, Config())
        return iter([*names, *listed(folder)])

    out.mkdir()
    monkeypatch.setattr(Path, "iterdir", filled_meanwhile)
    assert recognise_run_folder(out, source).config.is_file()


CHANGED = {
    "seed": ("seed = 43", "seed = 44"),
    "regions.atlas": ('atlas = "neuromorphometrics-cat12"', 'atlas = "aal3"'),
    "registration.resolution_mm": ("resolution_mm = 1.0", "resolution_mm = 2.0"),
    "cohort.positive": ('positive = "AD"', 'positive = "MCI"'),
    "attribution.betas": ("betas = [", "betas = [0.1, "),
    "statistics.confidence": ("confidence = 0.95", "confidence = 0.9"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_changed_after_the_run_is_named(tmp_path, source, name):
    layout = prepare_run_folder(tmp_path / "out", source, Config())
    old, new = CHANGED[name]
    text = layout.config.read_text()
    assert text.count(old) == 1
    layout.config.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_run_config(layout)
    said = str(caught.value)
    assert said.startswith(f"{layout.config}: {name} = ")
    assert "but the run was made with " in said
    prepare_run_folder(tmp_path / "out", source, read_config(layout.config))  # a run with it takes it over
    assert read_run_config(layout) == read_config(layout.config) != Config()


def test_the_title_of_the_report_may_change_and_older_runs_have_no_record(tmp_path, source):
    layout = prepare_run_folder(tmp_path / "out", source, Config())
    layout.config.write_text(layout.config.read_text().replace("\ntitle = ", '\ntitle = "New" # '))
    assert read_run_config(layout).report.title == "New"
    layout.settings.unlink()
    layout.config.write_text(layout.config.read_text().replace("seed = 43", "seed = 44"))
    assert read_run_config(layout).seed == 44


@pytest.mark.parametrize("group", ["AD", "CN/SMC", "../up", "≥65", "a b"])
def test_mean_map_of_any_label_lies_in_its_folder(group):
    layout = RunLayout(Path("/run"))
    path = layout.group_map(group, "gb")
    assert path.parent == layout.group / "maps"
    assert path.name.isascii()


def test_names_of_groups_stay_apart_and_plain_ones_as_they_are():
    layout = RunLayout(Path("/run"))
    assert layout.group_map("AD", "gb").name == "group-AD_space-MNI152NLin2009cAsym_desc-gb_relevance.nii.gz"
    assert len({layout.group_map(group, "gb") for group in ("a/b", "a%2Fb", "a_b", "ab")}) == 4


def test_no_path_of_a_run_hides_another() -> None:
    own = [name for name, value in vars(RunLayout).items() if isinstance(value, (property, PathIn))]
    assert not [name for name in own for parent in RunLayout.__mro__[1:] if name in vars(parent)]


# One program at a time in a run folder.


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


def test_a_folder_that_stays_empty_goes_with_its_lock_and_one_that_was_there_stays(path):
    old, new = path.parent, RunLayout(path.parent / "new" / "run").lock
    old.mkdir()
    with run_lock(path), run_lock(new):
        pass
    assert not list(old.iterdir())
    with run_lock(new):
        (new.parent / "result").touch()
    assert list(new.parent.iterdir()) == [new.parent / "result"]


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
