"""The command line of BIDS Apps: what it becomes, its levels, and filter files."""

from __future__ import annotations

import json
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


def test_participant_registers_what_is_chosen_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    write_template_cohort(tmp_path / "bids", participants=4)
    first = tmp_path / "bids" / "sub-00" / "anat" / "sub-00_T1w.nii.gz"
    first.rename(first.with_name("sub-00_run-02_T1w.nii.gz"))
    config, filters = write_config(tmp_path / "some.toml"), tmp_path / "filter.json"
    filters.write_text(json.dumps({"t1w": {"datatype": "anat", "suffix": "T1w", "run": None}, "bold": {"task": "x"}}))
    out, work = tmp_path / "out", tmp_path / "work" / "here"
    words = [str(tmp_path / "bids"), str(out), "participant", "--participant-label", "00", "01", "02"]
    words += ["--bids-filter-file", str(filters), "-w", str(work), "--config", str(config), "--n-procs", "1"]
    assert main(words) == 0
    table = {scan.participant_id: scan for scan in ScanTable.read(out / "scans.tsv")}
    assert {name for name, scan in table.items() if scan.kept} == {"sub-01", "sub-02"}
    assert table["sub-00"].reason == "not chosen by --bids-filter-file: run-2"
    assert table["sub-03"].reason == "participant not chosen by --participant-label"
    assert read_table(out / "group" / "registration.tsv")["status"].tolist() == ["registered"] * 2
    assert not (out / "report.html").exists()
    assert work.is_dir()


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
