"""What check says, writes and leaves alone; manifests and privacy from the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from pipeline.cohort.records import ScanTable
from pipeline.run.tables import read_table
from workflows.command_line import main


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Twelve people of each class, each with a second run; one image is broken, one age is above 89."""
    root = tmp_path / "my data ö"
    rows = ["participant_id\tage\tsex\tdiagnosis\tsite"]
    for i in range(24):
        name = f"sub-{i:02d}"
        anat = root / name / "anat"
        anat.mkdir(parents=True)
        image = nib.Nifti1Image(np.full((7, 9, 11), i, np.int16), np.diag([2, 2, 2, 1]))
        for run in (1, 2):
            nib.save(image, anat / f"{name}_run-{run}_T1w.nii.gz")
        rows.append(f"{name}\t{93 if i == 5 else 70}\tF\t{'CN' if i % 2 else 'AD'}\t{i % 3}")
    (root / "participants.tsv").write_text("\n".join(rows) + "\n")
    (root / "sub-03" / "anat" / "sub-03_run-1_T1w.nii.gz").write_bytes(b"broken")
    return root


def state(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_check_prints_and_writes_what_would_be_used_dropped_and_missing(dataset, tmp_path, capsys):
    before = state(dataset)
    assert main(["check", str(dataset), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "48 scans found of 24 participants; 24 kept of 24 participants" in said
    assert "dropped 23: another scan of this session is preferred" in said
    assert "dropped 1: not a readable NIfTI file (sub-03_run-1_T1w)" in said
    assert "missing hippocampal volume: 24 of 24 scans" in said
    assert "note: ages above 89 of 2 scans are written as 89" in said
    table = ScanTable.read(tmp_path / "out" / "scans.tsv")
    assert (len(table), len(table.kept)) == (48, 24)
    assert max(scan.age or 0 for scan in table) == 89.0
    assert (tmp_path / "out" / "check.txt").read_text().splitlines() == said.splitlines()[:-1]
    summary = json.loads((tmp_path / "out" / "check.json").read_text())
    assert summary["usable"] is True
    assert summary["scans"] == {"found": 48, "kept": 24, "labelled": 24}
    assert summary["labels"] == {"CN": 12, "AD": 12}
    assert summary["dropped"]["not a readable NIfTI file"] == 1
    assert summary["missing"]["field_strength"] == 24
    assert (summary["synthetic"], "SYNTHETIC" in said) == (False, False)
    assert state(dataset) == before
    assert main(["check", str(dataset), "--out", str(tmp_path / "out")]) == 0  # may be written again


def test_nothing_usable_is_65_and_still_described_and_written(dataset, tmp_path, capsys):
    options = ["--contrast", "diagnosis=CN,FTD", "--out", str(tmp_path / "out")]
    assert main(["check", str(dataset), *options]) == 65
    said = capsys.readouterr()
    assert "48 scans found" in said.out
    assert said.err.startswith("heatlas: cohort.positive = 'FTD': column 'diagnosis' has no such value")
    assert json.loads((tmp_path / "out" / "check.json").read_text())["usable"] is False
    assert len(ScanTable.read(tmp_path / "out" / "scans.tsv").kept) == 24


def test_folders_that_must_not_be_written_to(dataset, tmp_path, capsys):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    for out in (dataset, dataset / "check", dataset.parent, tmp_path / "thesis"):
        assert main(["check", str(dataset), "--out", str(out)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_participant_is_named(dataset, capsys):
    assert main(["check", str(dataset), "--participant-label", "sub-00", "nobody"]) == 65
    assert "--participant-label nobody: no such participant among the 24" in capsys.readouterr().err


def test_a_manifest_there_and_back(dataset, tmp_path, capsys):
    manifest = tmp_path / "cohort.tsv"
    assert main(["manifest", "export", str(dataset), str(manifest)]) == 0
    said = capsys.readouterr().out
    assert "24 scans of 24 participants" in said
    assert "digest of the cohort: " in said
    assert {"AD", "CN", "70", str(tmp_path)}.isdisjoint(manifest.read_text().split())
    out = tmp_path / "out"
    assert main(["manifest", "import", str(manifest), str(dataset), "--out", str(out)]) == 1  # second runs are extra
    assert read_table(out / "manifest_comparison.tsv")["status"].value_counts().to_dict() == {"same": 24, "extra": 23}
    image = dataset / "sub-00" / "anat" / "sub-00_run-1_T1w.nii.gz"
    nib.save(nib.Nifti1Image(np.full((7, 9, 11), 77, np.int16), np.diag([2, 2, 2, 1])), image)
    assert main(["check", str(dataset), "--manifest", str(manifest)]) == 1
    assert "manifest: 1 different (sub-00_run-1_T1w)" in capsys.readouterr().out
    assert main(["manifest", "export", str(dataset), str(dataset / "m.tsv")]) == 2
    assert main(["check", str(dataset), "--manifest", str(tmp_path / "absent.tsv")]) == 65


def test_anonymised_output_holds_no_names_and_the_key_stays_out(dataset, tmp_path, capsys):
    key, out = tmp_path / "key", tmp_path / "out"
    options = ["--anonymise", str(key), "--pseudonymise", "sites,ids", "--out", str(out)]
    assert main(["check", str(dataset), *options]) == 0
    written = "".join(path.read_text() for path in out.iterdir())
    assert key.read_text().strip() not in written
    assert "sub-03" not in written + capsys.readouterr().out
    table = ScanTable.read(out / "scans.tsv")
    assert len({scan.participant_id for scan in table}) == 24
    assert len({scan.site for scan in table}) == 3
    assert main(["check", str(dataset), "--pseudonymise", "ids"]) == 2
    assert main(["check", str(dataset), "--anonymise", str(dataset / "key")]) == 2
    assert main(["check", str(dataset), "--anonymise", str(key), "--pseudonymise", "names"]) == 2
    assert "Traceback" not in capsys.readouterr().err
