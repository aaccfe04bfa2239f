"""Networks that a run takes from elsewhere: once code, weights or run change, nothing of the network before is left."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import safetensors.torch
import torch
from outside_contrast import ATLAS, CONFIG, write_scans

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.stage import explain_scans
from heatlas.pipeline.models.families.foreign import ForeignConfig
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.settings import AttributionConfig, Config
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.training.given import take_networks
from heatlas.pipeline.training.stage import train_folds

NETS = """
from torch import nn
from scale import SCALE
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv3d(1, 2, 3, stride=3), nn.Linear(2, 2)
    def forward(self, x):
        return SCALE * self.head(self.conv(x).relu().mean((2, 3, 4)))
"""
PEOPLE = tuple(Scan(f"sub-{n}", None, f"I{n}", f"{n}.nii", label=("CN", "AD")[n % 2]) for n in range(6))
SPLIT = Split((Fold(0, ("sub-0", "sub-1"), ("sub-2", "sub-3"), ("sub-4", "sub-5")),))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    write_lab(folder, {"nets.py": NETS, "scale.py": "SCALE = 1\n"}, monkeypatch)
    torch.manual_seed(0)
    weights = {"conv.weight": torch.rand(2, 1, 3, 3, 3), "conv.bias": torch.zeros(2)}
    weights |= {"head.weight": torch.rand(2, 2), "head.bias": torch.zeros(2)}
    safetensors.torch.save_file(weights, folder / "w.safetensors")
    return folder


def write_lab(folder: Path, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is there from now on, as for a new process."""
    monkeypatch.delitem(sys.modules, "scale", raising=False)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for name, text in texts.items():
        (folder / name).write_text(text)


def config_of(lab: Path) -> Config:
    model = ForeignConfig(network=f"{lab / 'nets.py'}:Net", weights=str(lab / "w.safetensors"))
    return replace(CONFIG, model=model, attribution=AttributionConfig(methods=("input-x-gradient",)))


def made(layout: RunLayout, config: Config) -> list[str]:
    """What the stages of a run did: the network, and the maps of both people of the test part."""
    if not layout.root.exists():
        write_scans(layout, PEOPLE)
    ScanTable(PEOPLE).write(layout)
    SPLIT.write(layout)
    with ThreadPoolExecutor(1) as executor:
        work = Work(layout, layout.root, config, PEOPLE, SPLIT, executor, DigestCache(layout.digests))
        trained = train_folds(work, PEOPLE)
        explained = explain_scans(work, PEOPLE, read_table(layout.group / "predictions.tsv"), ATLAS)
    assert not [one.message for one in (*trained, *explained) if not one.ok]
    return [one.status for one in (*trained, *explained)]


def found_in(layout: RunLayout) -> dict[str, np.ndarray]:
    maps = {path.name: np.asarray(nib.load(path).dataobj) for path in layout.root.glob("sub-*/**/*_relevance.nii.gz")}
    tables = [layout.scan(name, None, 4.0).region_table for name in SPLIT.folds[0].test]
    sums = {path.name: read_table(path)["sum"].to_numpy() for path in tables}
    logits = read_table(layout.group / "predictions.tsv")[["logit_negative", "logit_positive"]].to_numpy()
    assert len(maps) == 2
    return {**maps, **sums, "logits": logits}


def require_all_times(factor: float, now: RunLayout, before: dict[str, np.ndarray]) -> None:
    found = found_in(now)
    assert set(found) == set(before)
    for name, values in before.items():
        assert np.abs(values).max() > 0
        np.testing.assert_allclose(found[name], factor * values, rtol=1e-4, atol=1e-5 * np.abs(values).max())


@pytest.mark.parametrize("what", ["nets.py", "scale.py", "w.safetensors"])
def test_nothing_is_left_of_a_network_whose_file_has_changed(lab, tmp_path, monkeypatch, caplog, what) -> None:
    """Code, a module that it imports, and weights that make the output three times as large, of the other sign."""
    layout, config = RunLayout(tmp_path / "run"), config_of(lab)
    assert made(layout, config) == ["done"] * 3
    assert made(layout, config) == ["unchanged"] * 3
    before, setting = found_in(layout), "model.weights" if what == "w.safetensors" else "model.network"
    if what == "w.safetensors":
        weights = safetensors.torch.load_file(lab / what)
        safetensors.torch.save_file(weights | {"head.weight": -3 * weights["head.weight"]}, lab / what)
        load_model(layout.fold(0))  # whose own weights are still those that it was made with
    else:
        text = {"nets.py": NETS.replace("SCALE *", "-3 * SCALE *"), "scale.py": "SCALE = -3\n"}[what]
        write_lab(lab, {what: text}, monkeypatch)
        with pytest.raises(BadInputError, match=r"nets.py:Net, has changed since. Repeat the command that made this"):
            load_model(layout.fold(0))
    caplog.clear()
    assert made(layout, config) == ["done"] * 3
    assert f"note: {setting} has changed, so the run predicts and explains again" in caplog.text
    require_all_times(-3, layout, before)
    caplog.clear()
    assert made(layout, config) == ["unchanged"] * 3
    assert "has changed, so the run" not in caplog.text


def test_a_run_that_networks_were_taken_from_and_has_changed_is_taken_from_again(
    lab, tmp_path, monkeypatch, caplog
) -> None:
    run, applied, config = RunLayout(tmp_path / "run"), RunLayout(tmp_path / "applied"), config_of(lab)
    theirs = replace(config, model=replace(config.model, weights=""))
    theirs = replace(theirs, training=replace(config.training, networks_of=str(run.root)))
    made(run, config)
    assert made(applied, theirs) == ["done"] * 3
    before = found_in(applied)
    require_all_times(1, run, before)
    copies = RunLayout(tmp_path / "copies")
    assert taken(copies, theirs) == ["done"]
    assert taken(copies, theirs) == ["unchanged"]
    weights = safetensors.torch.load_file(lab / "w.safetensors")
    safetensors.torch.save_file(weights | {"head.weight": -3 * weights["head.weight"]}, lab / "w.safetensors")
    made(run, config)
    caplog.clear()
    assert made(applied, theirs) == ["done"] * 3
    assert "note: training.networks_of has changed" in caplog.text
    require_all_times(-3, applied, before)
    caplog.clear()
    assert taken(copies, theirs) == ["done"]
    assert "note: training.networks_of has changed" in caplog.text
    other = lab / "other.py"
    other.write_text(NETS)
    named = replace(theirs, model=replace(theirs.model, network=f"{other}:Net"))
    assert taken(copies, named) == ["done"]
    first = read_json(copies.fold(0).description, "")
    other.write_text(NETS.replace("SCALE *", "2 * SCALE *"))
    assert taken(copies, named) == ["done"]
    second = read_json(copies.fold(0).description, "")
    assert first["weights"] == second["weights"]
    assert first["source"]["model.network"] != second["source"]["model.network"]


def taken(layout: RunLayout, config: Config) -> Sequence[str]:
    with ThreadPoolExecutor(1) as executor:
        work = Work(layout, layout.root, config, PEOPLE, SPLIT, executor, DigestCache(layout.digests))
        return [one.status for one in take_networks(work)]
