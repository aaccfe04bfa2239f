"""Maps, tables and sidecars of a run on a stand-in for a GPU are those of the CPU; so is `heatlas.explain`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from outside_contrast import ATLAS, make_run
from test_evidence_stage import EVIDENCE, PREDICTIONS, SCANS, SPLIT

from heatlas.pipeline.explaining import explained_scan, partial
from heatlas.pipeline.explaining.any_network import explain
from heatlas.pipeline.explaining.stage import explain_scans
from heatlas.pipeline.run.work.digests import DigestCache
from tests.attribution.every_method import trained
from tests.other_device import CPU, ON_HOST, OTHER, other_device
from tests.training.run_of_folds import Inline

METHODS = ("lrp", "expected-gradients", "deeplift", "region-swap")


def explained(folder: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose scans were explained on a device."""
    run = make_run(folder)
    for fold in SPLIT.folds:
        path = run.layout.fold(fold.index).description
        described = json.loads(path.read_text())
        described["participants"] = {"train": fold.train, "validation": fold.validation, "test": fold.test}
        path.write_text(json.dumps(described))
    for module in (explained_scan, partial):
        monkeypatch.setattr(module, "chosen_device", lambda _: device)
    config = replace(EVIDENCE, attribution=replace(EVIDENCE.attribution, methods=METHODS))
    executor: Any = Inline()
    outcomes = explain_scans(
        run.layout, SCANS, SPLIT, PREDICTIONS, ATLAS, config, executor, DigestCache(run.layout.digests)
    )
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [("done", "")] * 4
    return run.layout.root


@pytest.mark.ci
def test_evidence_maps_and_tables_of_a_run(tmp_path, monkeypatch) -> None:
    here = explained(tmp_path / "here", CPU, monkeypatch)
    with other_device() as waits:
        there = explained(tmp_path / "there", OTHER, monkeypatch)
    assert set(waits.values) == {ON_HOST}
    compared = 0
    for path in sorted(here.rglob("*")):
        if path.is_dir() or "receipts" in path.parts or path.name.startswith("."):
            continue
        other = there / path.relative_to(here)
        if path.name.endswith(".nii.gz") and "relevance" in path.name:
            one, two = (np.asarray(nib.load(file).dataobj) for file in (path, other))
            np.testing.assert_allclose(two, one, atol=1e-4 * np.abs(one).max())
            compared += 1
        elif path.suffix == ".tsv":
            frames = [pd.read_csv(file, sep="\t") for file in (path, other)]
            pd.testing.assert_frame_equal(*frames, rtol=1e-3, atol=1e-5)
            compared += 1
    assert compared > 4 * len(METHODS)


@pytest.mark.parametrize("method", ["lrp", "gradient", "grad-cam"])
def test_any_network_explains_where_it_is(method: str) -> None:
    model, volume = trained("founding")
    here = explain(model, volume[0, 0].numpy(), method)
    with other_device() as waits:
        there = explain(model.to(OTHER), volume[0, 0].numpy(), method)
        trained.cache_clear()  # its network was moved
    assert set(waits.values) == {ON_HOST}
    one, two = (np.asarray(answer.map.dataobj) for answer in (here, there))
    np.testing.assert_allclose(two, one, atol=1e-5 * np.abs(one).max())
    assert there.value == pytest.approx(here.value, rel=1e-5)
