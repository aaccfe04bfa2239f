"""The command line of BIDS Apps: what it becomes, its levels, and filter files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from template_cohort import write_config, write_template_cohort

import heatlas
from heatlas.pipeline.cohort.bids.filters import read_filter
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.bids_app import main

ROOT = Path(__file__).parents[2]


def test_version_is_that_of_heatlas(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"heatlas {heatlas.__version__}\n"


@pytest.mark.parametrize(
    "words", [["in", "out"], ["in", "out", "run"], ["in", "out", "group", "--stop-after", "cohort"]]
)
def test_a_command_line_that_is_none_of_an_app_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2


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
    table = {scan.participant_id: scan for scan in ScanTable.read(out / "scans.tsv")}
    assert {name for name, scan in table.items() if scan.kept} == {"sub-01", "sub-02"}
    assert table["sub-00"].reason == "not chosen by --bids-filter-file: run-2"
    assert table["sub-03"].reason == "participant not chosen by --participant-label"
    assert read_table(out / "group" / "registration.tsv")["status"].tolist() == ["registered"] * 2
    assert not (out / "report.html").exists()


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
