"""Every file of a finished run that explain, compare and manifest read, broken in turn: one line names it."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from test_compare_runs import make_run

import heatlas.workflows.evaluate
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import Box, template_grid
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.sharing import Manifest
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.layout.folder import RunInput, prepare_run_folder
from heatlas.pipeline.run.layout.run_layout import ExplanationLayout, RunLayout
from heatlas.pipeline.run.tables import read_table, write_json
from heatlas.pipeline.run.work.digests import stamp_of
from heatlas.workflows.command_line import main

GRID = template_grid(4.0)
BOX = Box((5, 7, 3), (29, 31, 33))
SCANS = tuple(
    Scan(f"sub-{n}", None, f"I{n}", f"{n}.nii", diagnosis=label, label=label, age=70.0)
    for n, label in ((1, "AD"), (2, "CN"))
)
SPLIT = Split((Fold(0, ("sub-2",), (), ("sub-1",)), Fold(1, ("sub-1",), (), ("sub-2",))))

Breaker = Callable[[Path], object]


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3].rstrip(b"\n"))


def _into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BREAKERS: dict[str, Breaker] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "truncated": _truncate,
    "a folder": _into_folder,
}


def cell(column: str, value: str, row: int = 0) -> Breaker:
    """Puts a value into a cell of a table."""

    def broken(path: Path) -> None:
        lines = [line.split("\t") for line in path.read_text().splitlines()]
        lines[row + 1][lines[0].index(column)] = value
        path.write_text("".join("\t".join(line) + "\n" for line in lines))

    broken.__name__ = f"{column} = {value}"
    return broken


def entry(path_to: str, value: object) -> Breaker:
    """Puts a value into an entry of a JSON file; the whole of it for an empty path."""

    def broken(path: Path) -> None:
        content = json.loads(path.read_text())
        *above, last = path_to.split(".") if path_to else ["content"]
        inner = content if path_to else {}
        for name in above:
            inner = inner[name]
        inner[last] = value
        path.write_text(json.dumps(content if path_to else value))

    broken.__name__ = f"{path_to or 'content'} = {value}"
    return broken


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As much of a finished run of two people as explain reads."""
    root = tmp_path_factory.mktemp("finished")
    (root / "input").mkdir()
    config = load_config(overrides={"registration": {"resolution_mm": 4.0}, "training": {"device": "cpu"}})
    prepare_run_folder(root / "run", RunInput(root / "input", "default"), config)
    layout = ExplanationLayout(root / "run")
    ScanTable(SCANS).write(layout.root / "scans.tsv")
    SPLIT.write(layout.root / "splits.tsv")
    mask = np.zeros(GRID.shape, np.uint8)
    mask[8:30, 9:36, 6:31] = 1
    for number, scan in enumerate(SCANS):
        files = layout.scan(scan.participant_id, None, 4.0)
        files.t1w.parent.mkdir(parents=True)
        t1w = (np.random.default_rng(number).uniform(20, 90, GRID.shape) * mask).astype(np.float32)
        nib.save(nib.Nifti1Image(t1w, GRID.affine), files.t1w)
        nib.save(nib.Nifti1Image(mask, GRID.affine), files.brain_mask)
        torch.manual_seed(number)
        network = FoundingCNN(BOX.shape, channels=(3, 4), pools=(2, 3), hidden_units=5)
        fold = SPLIT.folds[number]
        people = {"participants": {"train": list(fold.train), "validation": [], "test": list(fold.test)}}
        save_model(layout.fold(number), network, NetworkInput(4.0, BOX), ("CN", "AD"), people)
    return root


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExplanationLayout:
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.setattr(heatlas.workflows.evaluate, "open_executor", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setattr(heatlas.workflows.evaluate, "load_atlas", _load_atlas)
    monkeypatch.setattr("heatlas.workflows.command_line.import_ahead", lambda _: None)
    return ExplanationLayout(tmp_path / "copy" / "run")


_load_atlas = functools.cache(load_atlas)


def explained(run: ExplanationLayout, *options: str) -> int:
    return main(["explain", str(run.root), "--method", "grad-cam", *options])


FILES: dict[str, Callable[[ExplanationLayout], Path]] = {
    "config.toml": lambda run: run.config,
    "scans.tsv": lambda run: run.root / "scans.tsv",
    "splits.tsv": lambda run: run.root / "splits.tsv",
    "model.json": lambda run: run.fold(0).description,
    "weights": lambda run: run.fold(0).weights,
    "T1w": lambda run: run.scan("sub-1", None, 4.0).t1w,
    "mask": lambda run: run.scan("sub-1", None, 4.0).brain_mask,
}
CONTENTS = [
    *(("scans.tsv", cell(column, value)) for column, value in (
        ("kept", "perhaps"), ("kept", "n/a"), ("participant_id", "n/a"), ("scan_id", "n/a"), ("age", "seventy"),
        ("age", "inf"), ("apoe4", "1.5"), ("apoe4", "two"), ("entry", "head"), ("mmse", "#REF!"), ("tiv_mm3", "true"),
        ("participant_id", "sub-2"), ("scan_id", "I2"),
    )),
    *(("splits.tsv", cell(column, value)) for column, value in (
        ("fold", "zero"), ("fold", "0.5"), ("fold", "n/a"), ("fold", "inf"), ("part", "tset"), ("part", "n/a"),
        ("participant_id", "n/a"), ("participant_id", "sub-1"), ("part", "test"),
    )),
    *(("model.json", entry(where, value)) for where, value in (
        ("", []), ("", {}), ("", "text"), ("", 3), ("format", 2), ("classes", "AD"), ("classes", ["AD"]),
        ("classes", [1, 2]), ("classes", ["AD", "AD"]), ("classes", ["young", "old"]), ("architecture", None),
        ("architecture", []), ("architecture.name", "other"), ("architecture.channels", [0, 4]),
        ("architecture.channels", ["a", "b"]), ("architecture.channels", [30, 40]), ("architecture.pools", [0, 0]),
        ("architecture.pools", [99, 99]), ("architecture.input_shape", [29, 31]),
        ("architecture.input_shape", [9, 9, 9]),
        ("architecture.hidden_units", -1), ("architecture.hidden_units", 10**15), ("architecture.dropout", 7),
        ("architecture.further", 1), ("input", []), ("input.resolution_mm", 0), ("input.resolution_mm", "2"),
        ("input.resolution_mm", 1e-9), ("input.box", [1]), ("input.box.start", [-1, 0, 0]),
        ("input.box.start", [90, 90, 90]), ("input.box.shape", [0, 0, 0]), ("input.normalisation", "weird"),
        ("weights", None), ("weights.sha256", "00"), ("participants.train", ["sub-1"]), ("participants", None),
        ("participants", 3), ("participants", ["sub-2"]), ("participants", {"train": ["sub-2"]}),
        ("participants.train", "sub-2"), ("participants.validation", [1]), ("backbone_participants", {"sub-9": 1}),
        ("backbone_participants", ["sub-1"]),
    )),
]  # fmt: skip
"""Files that are whole, with a cell or entry that no run writes."""


def _name(given: object) -> str:
    return given if isinstance(given, str) else getattr(given, "__name__", "")


@pytest.mark.sample(17)
@pytest.mark.parametrize(
    ("file", "breaker"),
    [*((file, BREAKERS[how]) for file in FILES for how in BREAKERS), *CONTENTS],
    ids=[*(f"{file} {how}" for file in FILES for how in BREAKERS), *(f"{f}: {_name(b)}" for f, b in CONTENTS)],
)
def test_explain_names_the_file_that_is_broken(run, capsys, file, breaker):
    path = FILES[file](run)
    breaker(path)
    code = explained(run, "--scan", "sub-1")
    said = capsys.readouterr()
    assert code in (2, 65), said
    assert "Traceback" not in said.err + said.out
    (line,) = said.err.splitlines()
    assert line.startswith("heatlas: ")
    assert path.name in line


def test_someone_of_the_contrast_in_no_fold_does_not_pass_for_unseen(run, capsys):
    Split((Fold(0, ("sub-2",), (), ("sub-7",)), Fold(1, ("sub-7",), (), ("sub-2",)))).write(run.root / "splits.tsv")
    assert explained(run, "--scan", "sub-1") == 2
    assert "splits.tsv has no row of sub-1, who is AD in scans.tsv" in capsys.readouterr().err


def test_scans_that_cannot_be_explained_are_told_where_all_were_asked_for(run, capsys):
    run.fold(1).description.unlink()
    assert explained(run) == 0
    said = capsys.readouterr().out
    assert "1 scan left out: models/fold-1/model.json is missing" in said
    assert "1 of 1 explanations are available" in said


KEPT: dict[str, Callable[[ExplanationLayout], Path]] = {
    "digests": lambda run: run.digests,
    "failures": lambda run: run.failures,
    "receipt": lambda run: run.receipt("explanations", "sub-1_gradCam"),
    "map": lambda run: run.scan("sub-1", None, 4.0).explanation_map("gradCam"),
    "regions of the scan": lambda run: run.scan("sub-1", None, 4.0).explanation_regions("gradCam"),
    "regions": lambda run: run.regions("gradCam"),
}
"""What an earlier explanation has left."""


@pytest.mark.sample(7)
@pytest.mark.parametrize("how", ["missing", "binary", "truncated", "[]", '{"key": 1}'])
@pytest.mark.parametrize("file", KEPT)
def test_what_explain_has_written_is_made_again_or_named(run, capsys, file, how):
    assert explained(run, "--scan", "sub-1") == 0
    path, whole = KEPT[file](run), read_table(run.regions("gradCam"))
    BREAKERS.get(how, lambda path: path.write_text(how))(path)
    capsys.readouterr()
    code = explained(run, "--scan", "sub-1")
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    if code == 0:
        assert read_table(run.regions("gradCam")).equals(whole)
    else:
        assert code in (2, 65)
        assert path.name in said.err


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("file", "breaker"),
    [
        *(
            (file, breaker)
            for file in ("config.toml", "predictions.tsv", "relevance_bilateral.tsv")
            for breaker in BREAKERS.values()
        ),
        *(("predictions.tsv", cell(column, value)) for column, value in (
            ("fold", "zero"), ("target", "2"), ("target", "AD"), ("target", "n/a"), ("probability", "high"),
            ("probability", "n/a"), ("outcome", "XX"), ("outcome", "n/a"), ("scan_id", "I1"), ("scan_id", "n/a"),
            ("participant_id", "n/a"),
        )),
        *(("relevance_bilateral.tsv", cell(column, value)) for column, value in (
            ("sum", "much"), ("density", "inf"), ("gain", "true"), ("group", "n/a"), ("map", "n/a"), ("scan_id", "n/a"),
            ("scan_id", "I99"), ("scan_id", "I1"),
        )),
    ],
    ids=_name,
)  # fmt: skip
def test_compare_names_the_run_and_the_file_that_is_broken(tmp_path, capsys, file, breaker):
    (tmp_path / "input").mkdir()
    runs = [make_run(tmp_path / name / "run", tmp_path / "input", wrong) for wrong, name in enumerate("ab")]
    broken = runs[1]
    path = {
        "config.toml": broken.config,
        "predictions.tsv": broken.group / "predictions.tsv",
        "relevance_bilateral.tsv": broken.group / "relevance_bilateral.tsv",
    }[file]
    breaker(path)
    code = main(["compare", *(str(run.root) for run in runs), "--to", str(tmp_path / "together")])
    said = capsys.readouterr()
    assert code in (2, 65), said
    (line,) = said.err.splitlines()
    assert line.startswith("heatlas: compare: run b/run: ")
    assert path.name in line
    assert not (tmp_path / "together").exists()


@pytest.mark.parametrize(
    "breaker",
    [*BREAKERS.values(), cell("sha256", "00"), cell("scan_id", "n/a"), cell("scan_id", "B"), cell("sha256", "X" * 64)],
    ids=[*BREAKERS, "short digest", "no id", "an id twice", "no hexadecimal digits"],
)
def test_a_broken_manifest_is_named_by_check_import_and_export(tmp_path, capsys, breaker):
    (tmp_path / "input").mkdir()
    path = tmp_path / "cohort.tsv"
    Manifest({"A": "ab" * 32, "B": "cd" * 32}).write(path)
    breaker(path)
    for command in (
        ["check", str(tmp_path / "input"), "--manifest", str(path)],
        ["manifest", "import", str(path), str(tmp_path / "input")],
        ["manifest", "export", str(tmp_path / "input"), str(tmp_path / "new.tsv"), "--manifest", str(path)],
    ):
        assert main(command) == 65
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"heatlas: {path}: ")


DEEP = '{"a": ' * 50_000 + "1" + "}" * 50_000


@pytest.mark.sample(3)
@pytest.mark.parametrize("file", ["model.json", "lock", *KEPT])
def test_deeply_nested_json_is_refused_or_made_again(run, capsys, file):
    assert explained(run, "--scan", "sub-1") == 0
    places = {**FILES, **KEPT, "lock": lambda run: run.lock}
    places[file](run).write_text(DEEP)
    capsys.readouterr()
    code = explained(run, "--scan", "sub-1")
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    assert code in ((0, 65) if file not in ("model.json", "lock") else (65, 75))


@pytest.mark.parametrize("target", ["/dev/zero", "sparse"])
def test_endless_weights_are_not_read(run, capsys, tmp_path, target):
    weights = run.fold(0).weights
    weights.unlink()
    if target == "sparse":
        with weights.open("wb") as file:
            file.truncate(2**40)
    else:
        weights.symlink_to(target)
    assert explained(run, "--scan", "sub-1") == 65
    (line,) = capsys.readouterr().err.splitlines()
    assert "model.safetensors: not the weights of this network" in line


@pytest.fixture
def registered(run: ExplanationLayout) -> ExplanationLayout:
    """The run with the receipts that registration writes."""
    for scan in SCANS:
        files = run.scan(scan.participant_id, None, 4.0)
        outputs = {path.relative_to(run.root).as_posix(): stamp_of(path) for path in (files.t1w, files.brain_mask)}
        content = {"key": "k", "outputs": outputs, "result": {}}
        write_json(RunLayout(run.root).receipt("registration", files.name), content)
    return run


@pytest.mark.parametrize("kind", ["t1w", "brain_mask"])
def test_the_image_of_another_person_is_refused(registered, capsys, kind):
    path = getattr(registered.scan("sub-1", None, 4.0), kind)
    before = path.read_bytes()
    assert explained(registered, "--scan", "sub-1") == 0
    os.utime(path)  # only the time is another
    assert explained(registered, "--scan", "sub-1") == 0
    capsys.readouterr()
    nib.save(nib.Nifti1Image(np.ones(GRID.shape, np.uint8), GRID.affine), path)
    code = explained(registered, "--scan", "sub-1")
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 65, line
    assert f"{path.name}: not the file that registration wrote there (SHA-256 differs). Restore it, or" in line
    assert explained(registered) == 1  # the other scan is explained
    path.write_bytes(before)
    assert explained(registered, "--scan", "sub-1") == 0
