"""Exit codes and one readable line for what users get wrong."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest

from workflows.command_line import build_parser, main


def write_bids(folder, people: dict[str, str]) -> None:
    rows = ["participant_id\tage\tsex\tdiagnosis"]
    for name, diagnosis in people.items():
        anat = folder / name / "anat"
        anat.mkdir(parents=True)
        image = nib.Nifti1Image(np.arange(7 * 9 * 11, dtype=np.int16).reshape(7, 9, 11), np.diag([2, 2, 2, 1]))
        nib.save(image, anat / f"{name}_T1w.nii.gz")
        rows.append(f"{name}\t70\tF\t{diagnosis}")
    (folder / "participants.tsv").write_text("\n".join(rows) + "\n")
    (folder / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.10.0"}')


@pytest.fixture
def people():
    return {f"sub-{i:02d}": "CN" if i % 2 else "AD" for i in range(24)}


def test_check_of_a_good_dataset(tmp_path, people, capsys):
    write_bids(tmp_path, people)
    assert main(["check", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "24 scans found of 24 participants" in said
    assert "AD: 12 scans of 12 participants" in said


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("nothing there", 65, "no such folder"),
        ("empty folder", 65, ""),
        ("one class", 65, "CN"),
        ("too few people", 65, "fold"),
        ("unknown contrast", 65, "diagnosis"),
    ],
)
def test_unusable_input(tmp_path, people, capsys, change, code, words):
    folder = tmp_path / "data"
    options = []
    if change != "nothing there":
        folder.mkdir()
    if change == "one class":
        write_bids(folder, dict.fromkeys(people, "AD"))
    if change == "too few people":
        write_bids(folder, dict(list(people.items())[:6]))
    if change == "unknown contrast":
        write_bids(folder, people)
        options = ["--contrast", "tremor=no,yes"]
    assert main(["check", str(folder), *options]) == code
    said = capsys.readouterr().err
    assert said.startswith("heatlas: ")
    assert "Traceback" not in said
    assert words in said


def test_usage_errors(tmp_path, people, capsys):
    write_bids(tmp_path, people)
    assert main(["check", str(tmp_path), "--contrast", "diagnosis"]) == 2
    assert main(["check", str(tmp_path), "--preset", "bohle"]) == 2
    assert main(["report", str(tmp_path)]) == 2
    assert main(["explain", str(tmp_path), "--method", "grad-cam"]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["fly"])
    assert "Traceback" not in capsys.readouterr().err


def test_output_folder_of_something_else(tmp_path, people, capsys):
    write_bids(tmp_path / "in", people)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.docx").write_text("mine")
    assert main(["run", str(tmp_path / "in"), str(tmp_path / "out")]) == 2
    assert "not empty" in capsys.readouterr().err


def test_help_names_every_command():
    text = build_parser().format_help()
    for name in ("demo", "check", "run", "explain", "report"):
        assert name in text
