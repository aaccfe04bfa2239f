"""A network of the user's own, fed by an input contract: run, export and apply answer and explain a scan alike."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import safetensors.torch
import torch

import heatlas
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.inputs import configured_input, from_network, read_channels
from heatlas.pipeline.models.named_networks import CARRIED
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.config.settings import Config, TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.bundle_layout import BundleLayout
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.training.objectives.known_networks import people_before, weights_to_start_from
from heatlas.workflows.command_line import main
from tests.workflows.template_cohort import write_config, write_template_cohort

pytestmark = pytest.mark.ci

NETS = """
from torch import nn
class Net(nn.Module):
    def __init__(self, sign=1):
        super().__init__()
        self.sign, self.body = sign, nn.Sequential(nn.Conv3d(2, 3, 3), nn.ReLU(), nn.AvgPool3d(4), nn.Flatten())
        self.head = nn.Linear(3 * 4 * 5 * 4, 2)
    def forward(self, x):
        return self.head(self.body(x)) * self.sign
def other():
    return Net(-1)
"""
CONTRACT = """[model]
architecture = "foreign"
network = "nets.py:Net"
weights = "w.safetensors"
unseen = true
grid = [18, 22, 18]
spacing_mm = [8.0, 8.0, 8.0]
orientation = "LAS"
scaling = "zscore-brain"
channels = 2
"""
PEOPLE = [f"{number:02d}" for number in range(24) if number % 3 != 1]
"""Of two classes."""
OLD, NEW = "sub-00", "sub-27"
"""Someone of the run, and someone else."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A finished run, its export, and a scan of each person."""
    folder = tmp_path_factory.mktemp("own")
    write_template_cohort(folder / "input", participants=28)
    lab = folder / "lab"
    lab.mkdir()
    (lab / "nets.py").write_text(NETS)
    torch.manual_seed(1)
    safetensors.torch.save_file(own_network().state_dict(), lab / "w.safetensors")
    config = write_config(lab / "own.toml")
    before, after = config.read_text().split("[model]")
    text = before + CONTRACT + after[after.index("[training]") :]
    methods = 'betas = [0.0]\nkeep_maps = "all"\nmethods = ["lrp", "deeplift"]'
    config.write_text(text.replace("betas = [0.0]", methods).replace("fraction = 0.4", "fraction = 0.1"))
    command = ["run", str(folder / "input"), str(folder / "run"), "--config", str(config), "--n-procs", "1"]
    assert main([*command, "--stop-after", "attribution", "--participant-label", *PEOPLE]) == 0
    assert main(["export", str(folder / "run"), str(folder / "given")]) == 0
    for person in (OLD, NEW):
        shutil.copyfile(folder / "input" / person / "anat" / f"{person}_T1w.nii.gz", folder / f"{person}.nii.gz")
    return folder


def own_network() -> torch.nn.Module:
    space: dict[str, Any] = {}
    exec(NETS, space)
    return space["Net"]()


def apply(folder: Path, run: str, person: str, out: str, *options: str) -> RunLayout:
    command = ["apply", str(folder / run), str(folder / f"{person}.nii.gz"), str(folder / out), "--n-procs", "1"]
    assert main([*command, "--start-at", "template", "--stop-after", "attribution", *options]) == 0
    return RunLayout(folder / out)


@pytest.fixture(scope="module")
def applied(folder) -> tuple[RunLayout, RunLayout]:
    """The new scan by the run, and by its export while the run is away."""
    of_run = apply(folder, "run", NEW, "by_run")
    (folder / "run").rename(folder / "away")
    try:
        return of_run, apply(folder, "given", NEW, "by_export", "--code", f"{folder / 'lab' / 'nets.py'}:Net")
    finally:
        (folder / "away").rename(folder / "run")


def map_of(layout: RunLayout, person: str, method: str) -> np.ndarray:
    (path,) = (layout.root / person).glob(f"**/*{method}*_relevance.nii.gz")
    return np.asarray(nib.load(path).dataobj)


def test_run_and_export_answer_a_scan_as_the_network_fed_by_its_contract(folder, applied) -> None:
    spec = configured_input(read_config(folder / "run" / "config.toml"))
    network = own_network().eval()
    network.load_state_dict(safetensors.torch.load_file(folder / "lab" / "w.safetensors"))
    for layout in applied:
        seen = read_channels(layout.scan(NEW, None, 4.0), spec)
        assert seen.shape == (2, 18, 22, 18)
        brain = seen[0][seen[0] != 0]
        assert (abs(float(brain.mean())), float(brain.std())) == pytest.approx((0, 1), abs=1e-3)
        with torch.no_grad():
            logits = network(torch.from_numpy(seen)[None])[0]
        (row,) = read_table(layout.group / "predictions_applied.tsv").to_dict("records")
        assert row["n_networks"] == 1
        assert [row["logit_negative"], row["logit_positive"]] == pytest.approx(logits.tolist(), abs=1e-5)
    np.testing.assert_allclose(*(map_of(one, NEW, "lrp") for one in applied), rtol=1e-5, atol=1e-9)
    mean = nib.load(folder / "given" / "reference" / "mean_controls.nii.gz").get_fdata(dtype=np.float32)
    wanted = heatlas.explain(
        network, seen, "deeplift", reference=[np.repeat(mean[None], 2, axis=0)], target=1, start="evidence"
    )
    found, wanted = map_of(applied[1], NEW, "deeplift"), from_network(wanted.map.get_fdata(dtype=np.float32), spec)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def test_someone_of_the_run_has_the_same_map_there(folder) -> None:
    again = apply(folder, "run", OLD, "again", "--new-people")
    np.testing.assert_array_equal(map_of(again, OLD, "lrp"), map_of(RunLayout(folder / "run"), OLD, "lrp"))


def refused(folder: Path, capsys, run: Path, *options: str) -> str:
    out = folder / "refused"
    assert main(["apply", str(run), str(folder / f"{NEW}.nii.gz"), str(out), *options]) in (2, 65)
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n"), out.exists()) == ("", 1, False)
    return said.err


def test_an_export_names_no_place_and_runs_no_code_but_what_is_named(folder, tmp_path, capsys) -> None:
    given = BundleLayout(folder / "given")
    assert not any(str(folder).encode() in path.read_bytes() for path in given.root.rglob("*") if path.is_file())
    assert sorted(path.name for path in (given.root / "models").iterdir() if path.is_dir()) == ["fold-0"]
    said = refused(folder, capsys, given.root)
    assert "made by code of its own (nets.py:Net), which is not run unless you name it" in said
    other = f"{folder / 'lab' / 'nets.py'}:other"
    assert "to the mean image of the controls, and the network that was exported" in refused(
        folder, capsys, given.root, "--code", other
    )
    assert "which need no code" in refused(folder, capsys, CARRIED / "oasis1-age", "--code", other)
    copy = BundleLayout(shutil.copytree(given.root, tmp_path / "copy"))
    crafted = json.loads(copy.fold(0).description.read_text())
    command = {"args": ["touch", str(tmp_path / "made")]}
    crafted["architecture"] |= {"network": "subprocess:run", "arguments": json.dumps(command)}
    copy.fold(0).description.write_text(json.dumps(crafted))
    facts = json.loads(copy.metadata.read_text())
    facts["heatlas"]["files"] = {}
    copy.metadata.write_text(json.dumps(facts))
    assert "not run unless you name it" in refused(folder, capsys, copy.root)
    with pytest.raises(UsageError, match="not run unless"):
        heatlas.explain(folder / f"{NEW}.nii.gz", network=copy.root)
    started = dataclasses.replace(Config(), training=TrainingConfig(from_run=str(copy.root)))
    fold, task = Fold(0, (), (), ()), task_of(started.cohort)
    with pytest.raises(UsageError, match="not run unless"):
        weights_to_start_from(started, task, load_model(RunLayout(folder / "run").fold(0)).input, fold)
    assert people_before(started, fold)
    assert not (tmp_path / "made").exists()
