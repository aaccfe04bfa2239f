"""The command line of BIDS Apps: what it becomes, its levels, and filter files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from template_cohort import write_config, write_template_cohort

import heatlas
from heatlas.pipeline.cohort.reading import read_filter
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.folder import run_lock
from heatlas.pipeline.run.layout.run_layout import ParticipantLayout, RunLayout
from heatlas.workflows.bids_app import LEVELS, at_level, build_parser, main
from heatlas.workflows.commands import Run

ROOT = Path(__file__).parents[2]


def test_version_is_that_of_heatlas(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"heatlas {heatlas.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["in", "out"],
        ["in", "out", "run"],
        ["in", "out", "group", "--stop-after", "cohort"],
        ["in", "out", "group", "--stop-after=cohort"],
        ["in", "out", "group", "--stop-aft", "cohort"],
    ],
)
def test_a_command_line_that_is_none_of_an_app_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert ("the level of analysis says where to stop" in capsys.readouterr().err) == (len(words) > 3)


def test_people_of_a_repeated_option_are_all_asked_for() -> None:
    words = ["in", "out", "group", "--participant-label", "99", "98", "--participant-label", "01"]
    run = at_level(Run(input=Path("in"), out=Path("out")), build_parser().parse_args(words))
    assert run.participant_label == ("99", "98", "01")


def test_the_working_folder_does_not_lie_in_the_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        bids, real = Path(short) / "bids", Path(short) / "real"
        bids.mkdir()
        real.mkdir()
        (bids / "sub-01").symlink_to(real)
        for work, further in ((bids / "work", []), (real / "work", ["--follow-links"])):
            with pytest.raises(SystemExit) as end:
                main([str(bids), str(tmp_path / "out"), "participant", "-w", str(work), *further])
            assert end.value.code == 2
            assert "which is never written to. Choose another place." in capsys.readouterr().err
            assert not work.exists()


@pytest.mark.ci
def test_participant_registers_what_is_chosen_in_the_working_folder(tmp_path: Path) -> None:
    write_template_cohort(tmp_path / "bids", participants=4)
    first = tmp_path / "bids" / "sub-00" / "anat" / "sub-00_T1w.nii.gz"
    first.rename(first.with_name("sub-00_run-02_T1w.nii.gz"))
    config, filters = write_config(tmp_path / "some.toml"), tmp_path / "filter.json"
    filters.write_text(json.dumps({"t1w": {"datatype": "anat", "suffix": "T1w", "run": None}, "bold": {"task": "x"}}))
    out = tmp_path / "out"
    words = [str(tmp_path / "bids"), str(out), "participant", "--participant-label", "00", "01", "02"]
    words += ["--bids-filter-file", str(filters), "--config", str(config), "--n-procs", "1"]
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a process of its own, as workers keep the folder's name
        work = Path(short) / "work"
        command = [sys.executable, "-m", "heatlas.workflows.bids_app", *words, "-w", str(work)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert work.is_dir()
    job = ParticipantLayout(out, "sub-01")
    assert {scan.participant_id for scan in ScanTable.read(job)} == {"sub-01", "sub-02"}
    assert "dropped 1: not chosen by --bids-filter-file (" in done.stdout
    assert REGISTRATION_TABLE.read(job)["status"].tolist() == ["registered"] * 2
    assert not (out / "report.html").exists()


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dataset and settings."""
    folder = tmp_path_factory.mktemp("jobs")
    write_template_cohort(folder / "bids")
    write_config(folder / "some.toml")
    return folder


def app(cohort: Path, out: Path, level: str, *labels: str) -> list[str]:
    words = [str(cohort / "bids"), str(out), level, "--config", str(cohort / "some.toml"), "--n-procs", "1"]
    return [*words, *(["--participant-label", *labels] if labels else [])]


def begin(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "heatlas.workflows.bids_app", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def begun(cohort: Path) -> Path:
    """Two people, registered by two processes at the same time."""
    out = cohort / "begun"
    jobs = [begin(app(cohort, out, "participant", label)) for label in ("00", "01")]
    assert [(job.communicate()[1], job.returncode) for job in jobs] == [("", 0)] * 2
    return out


def copied(begun: Path, name: str) -> Path:
    """A copy that lies where the run names its input from."""
    return Path(shutil.copytree(begun, begun.with_name(name)))


def results(out: Path) -> dict[str, bytes]:
    """All files but those that hold the command and times."""
    files = {path.relative_to(out): path for path in out.rglob("*") if path.is_file()}
    timed = {"logs", "report-provenance.html"}
    return {str(name): path.read_bytes() for name, path in files.items() if name.parts[0] not in timed}


@pytest.mark.ci
def test_jobs_side_by_side_have_tables_of_their_own(begun: Path) -> None:
    for person in ("sub-00", "sub-01"):
        job = ParticipantLayout(begun, person)
        assert [scan.participant_id for scan in ScanTable.read(job)] == [person]
        assert REGISTRATION_TABLE.read(job)["participant_id"].tolist() == [person]
    assert not (begun / "scans.tsv").exists()
    assert not (begun / "group").exists()
    assert not list(begun.glob(".heatlas.lock*"))


@pytest.mark.parametrize(
    "until", [pytest.param("registration", marks=pytest.mark.ci), pytest.param("report", marks=pytest.mark.slow)]
)
def test_the_group_of_people_from_jobs_side_by_side_is_that_of_one_job(
    until: str, begun: Path, cohort: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LEVELS, "group", until)
    side, single = copied(begun, f"side-{until}"), cohort / f"single-{until}"
    images = [file for person in ("sub-00", "sub-01") for file in (side / person).rglob("*_T1w.nii.gz")]
    made = [file.stat().st_mtime_ns for file in images]
    assert main(app(cohort, side, "group")) == 0
    assert [file.stat().st_mtime_ns for file in images] == made  # nobody is registered twice
    assert main(app(cohort, single, "participant")) == 0
    assert main(app(cohort, single, "group")) == 0
    found, expected = results(side), results(single)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    assert len(images) == 2


@pytest.mark.ci
def test_others_go_on_while_a_person_is_worked_on_who_is_not_given_to_two(
    begun: Path, cohort: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(begun, "second")
    unfinished = ParticipantLayout(out, "sub-03").scratch / "registration_sub-03.host.7"
    with run_lock(RunLayout(out).lock, ["sub-03"]):
        unfinished.mkdir(parents=True)
        assert main(app(cohort, out, "participant", "02")) == 0
        assert unfinished.is_dir()
        capsys.readouterr()
        for words in (app(cohort, out, "participant", "03", "04"), app(cohort, out, "group")):
            assert main(words) == 75
            assert f"process {os.getpid()} works on sub-03 there since" in capsys.readouterr().err
    assert not list(out.glob("sub-04"))


@pytest.mark.ci
def test_a_killed_job_is_continued(begun: Path, cohort: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = copied(begun, "killed")
    job = begin(app(cohort, out, "participant", "05"))
    while not list(out.glob(".heatlas.lock.sub-05")) and job.poll() is None:
        time.sleep(0.005)
    job.kill()
    job.communicate()
    left = ParticipantLayout(out, "sub-05").scratch / "left"
    left.mkdir(parents=True)
    assert main(app(cohort, out, "participant", "05")) == 0
    assert f"Continuing a run that was killed (process {job.pid}, " in capsys.readouterr().out
    assert not left.exists()
    assert not list(out.glob(".heatlas.lock*"))
    assert REGISTRATION_TABLE.read(ParticipantLayout(out, "sub-05"))["status"].tolist() == ["registered"]


def test_a_working_folder_whose_path_is_too_long_for_sockets_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["in", "out", "group", "-w", str(tmp_path / ("n" * 70))])
    assert end.value.code == 2
    assert "has more than 70 bytes. Give a shorter one." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"session": "ses-m00", "run": 1}, {"ses": ("m00",), "run": ("1",)}),
        ({"acquisition": ["mprage", None], "rec": "*"}, {"acq": ("mprage", None), "rec": ("*",)}),
        ({"suffix": "T1w"}, {}),
    ],
)
def test_entities_have_long_or_short_names(tmp_path: Path, given: object, wanted: object) -> None:
    (tmp_path / "filter.json").write_text(json.dumps({"t1w": given}))
    assert read_filter(tmp_path / "filter.json") == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"t1w": {"suffix": "T2w"}}, "other images are not read"),
        ({"t1w": {"sesion": "m00"}}, "is no entity"),
        ({"t1w": {"run": {}}}, "must be a text"),
        ({"t1w": []}, "not an object"),
    ],
)
def test_a_filter_that_cannot_be_one_is_refused(tmp_path: Path, given: object, words: str) -> None:
    (tmp_path / "filter.json").write_text(json.dumps(given))
    with pytest.raises(BadInputError, match=words):
        read_filter(tmp_path / "filter.json")
