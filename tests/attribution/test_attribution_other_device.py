"""Attribution on a stand-in for a GPU, and the script for a lent one."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu
import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from outside_contrast import ATLAS, make_run
from test_evidence_stage import EVIDENCE, PREDICTIONS, SCANS, SPLIT
from torch.nn import functional

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining import explained_scan, partial
from heatlas.pipeline.explaining.any_network import explain
from heatlas.pipeline.explaining.stage import explain_scans
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES
from heatlas.pipeline.regions.audit import FLUID, NO_REGION, VESSEL, audit_rows, compartments
from heatlas.pipeline.regions.region_sums import device_region_sums, lay_out_labels, pack_labels
from heatlas.pipeline.run.work.digests import DigestCache
from tests.attribution.every_method import built, example_for, trained
from tests.other_device import CPU, ON_HOST, OTHER, MixedDevicesError, Waits, large_ones_slow, other_device
from tests.training.run_of_folds import Inline

# Methods, families and runs on a stand-in for a GPU: nothing mixes devices, and all is as on the CPU.
#
# Values come back to the CPU by `on_host` alone.

SIZES = {
    "gradient/paths.py:require_complete": "which volumes of a batch miss: only they are looked at",
    "cam/masked_volumes.py:optimised_weights": "volumes whose weights no longer move leave the search",
    "cam/masked_volumes.py:_remember": "the same",
    "perturbation/masking.py:region_drops": "numbers of the regions there are",
    "reference/region_swap.py:_of": "the same",
    "reference/region_swap.py:players": "the same",
    "reference/deeplift.py:backward": "where a multiplier is not 0, which is rare behind max-pooling",
}
"""Where a method must know how large a result is, and waits for it; why."""


def only_meant(waits: Waits) -> None:
    """Nothing waited for a value but `on_host`, and for a size but what is listed."""
    assert set(waits.values) <= {ON_HOST}
    assert {place.removeprefix("pipeline/attribution/") for place in waits.sizes} <= set(SIZES)


def agree(family: str, method: str) -> Waits:
    """Explain a volume on both devices; maps and start values are the same."""
    model, volume = trained(family)
    stage = METHODS[method].stage_of(model)
    here = attribute(model, volume, 1, built(method, family, volume, CPU), stage)
    with other_device() as waits:
        there = attribute(moved(model), volume.to(OTHER), 1, built(method, family, volume, OTHER), stage)
        assert there.values.device == OTHER
        explained = list(waits.values), list(waits.sizes)
        values, start = there.values.cpu(), there.start_value.cpu()
    size = float(here.values.abs().max())
    assert size > 0
    torch.testing.assert_close(values, here.values, rtol=1e-4, atol=2e-6 * size)
    torch.testing.assert_close(start, here.start_value, rtol=1e-5, atol=1e-6)
    return Waits(*explained)


def moved(model: StagedModel) -> StagedModel:
    return copy.deepcopy(model).to(OTHER)


@pytest.mark.sample(20)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_computes_where_its_volumes_are(method: str) -> None:
    family = example_for(method)
    assert family, f"{method}: no family of EXAMPLES is explained by it; add one"
    only_meant(agree(family, method))


@pytest.mark.sample(5)
@pytest.mark.parametrize("family", large_ones_slow(BUILT))
def test_every_family_computes_where_its_volumes_are(family: str) -> None:
    """By LRP where it has rules for the family, otherwise by the gradient."""
    allowed = [name for name in ("lrp", "gradient") if name not in FAMILIES[family].refused]
    only_meant(agree(family, allowed[0]))


def test_a_listed_wait_is_one_that_happens() -> None:
    for family, methods in {"founding": ("region-occlusion", "opti-cam", "region-swap", "deeplift")}.items():
        found = {place for method in methods for place in agree(family, method).sizes}
    assert {place.removeprefix("pipeline/attribution/") for place in found} == set(SIZES) - {
        "gradient/paths.py:require_complete"
    }


def test_region_sums_and_the_audit_of_maps() -> None:
    random = np.random.default_rng(5)
    labels = random.choice([0, 2, 5, 9], (6, 7, 5))
    packed = pack_labels(labels, [2, 5, 9])
    maps = torch.from_numpy(random.normal(size=(3, 6, 7, 5))).float()
    brain = labels > 0
    here = device_region_sums(maps, lay_out_labels(packed, None, CPU))
    tissue = {name: labels == number for name, number in ((FLUID, 2), (VESSEL, 5), (NO_REGION, 9))}
    parts = compartments(random.random((6, 7, 5)).astype(np.float32), brain, tissue, 1.0)
    rows = audit_rows({"one": maps[0]}, parts)
    with other_device() as waits:
        laid = lay_out_labels(packed, None, OTHER)
        there = device_region_sums(maps.to(OTHER), laid)
        again = audit_rows({"one": maps[0].to(OTHER)}, parts)
        found = there.cpu()
    torch.testing.assert_close(found, here, rtol=0, atol=0)
    assert again == rows
    assert set(waits.values) <= {ON_HOST, "tests"}
    expected = [float(maps[0].double()[torch.from_numpy(labels == number)].sum()) for number in (2, 5, 9)]
    np.testing.assert_allclose(found[0, 1:].numpy(), expected, atol=1e-5)


MISTAKES = {
    "a product": lambda x: x * torch.ones(3),
    "a matrix product": lambda x: x @ torch.ones(3, 2),
    "a convolution": lambda x: functional.conv1d(x[None], torch.ones(1, 2, 2)),
    "where": lambda x: torch.where(torch.ones(2, 3) > 0, x, 0.0),
    "cat": lambda x: torch.cat([x, torch.zeros(1, 3)]),
    "a loss": lambda x: functional.mse_loss(x, torch.zeros(2, 3)),
    "a mask": lambda x: x.masked_fill(torch.ones(2, 3) > 0, 0.0),
    "places in a tensor of the CPU": lambda x: torch.ones(9)[x.long()],
    "a sum kept on the CPU": lambda x: torch.tensor(0.0).add_(x.sum()),
    "numpy": lambda x: x.numpy(),
    "numpy of a sum": lambda x: np.asarray(x.sum()),
    "a generator of the CPU": lambda x: torch.rand(3, device=x.device, generator=torch.Generator()),
    "a choice by a value": lambda x: x * torch.ones(3) if bool((x > 0).any()) else x,
}
"""Of these the plain device ``meta`` of torch 2.13 misses five: products and convolutions, places, sums, generators."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    with other_device():
        x = torch.ones(2, 3).to(OTHER)
        with pytest.raises((MixedDevicesError, TypeError, RuntimeError), match=r"device|numpy|generator"):
            MISTAKES[mistake](x)
        assert float((x * torch.tensor(2.0)).sum()) == 12  # single numbers of the CPU are allowed, as on a GPU


def test_waits_are_noted_with_the_line_that_asked() -> None:
    with other_device() as waits:
        x = torch.ones(2, 3).to(OTHER)
        assert bool((x > 0).all())
        x[x > 0].tolist()
        torch.zeros(2, 3).copy_(x)
    assert waits.values == ["tests"] * 3
    assert waits.sizes == ["tests"]


EVIDENCE_METHODS = ("lrp", "expected-gradients", "deeplift", "region-swap")


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
    config = replace(EVIDENCE, attribution=replace(EVIDENCE.attribution, methods=EVIDENCE_METHODS))
    executor: Any = Inline()
    work = Work(run.layout, run.layout.root, config, SCANS, SPLIT, executor, DigestCache(run.layout.digests))
    outcomes = explain_scans(work, SCANS, PREDICTIONS, ATLAS)
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
    assert compared > 4 * len(EVIDENCE_METHODS)


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


# The script for a lent GPU (`benchmarks/gpu.py`), as far as it runs without one.

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("family", "method"), [("founding", "lrp"), ("bcos-simple", "inherent")])
def test_maps_of_another_device_are_compared_with_those_of_the_cpu(family, method):
    with other_device():
        row = gpu.apart(family, method, OTHER)
    assert row["difference"] < gpu.TOLERANCE


@pytest.mark.parametrize(("difference", "code"), [(gpu.TOLERANCE, 0), (1.1 * gpu.TOLERANCE, 1), (float("nan"), 1)])
def test_maps_too_far_apart_end_with_1_and_are_named(monkeypatch, tmp_path, capsys, difference, code):
    row = {"family": "founding", "method": "lrp", "difference": difference}
    monkeypatch.setattr(gpu, "PARTS", {"maps": lambda *_: [row]})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--output", str(tmp_path / "gpu.md")])
    assert gpu.main() == code
    assert ("founding, lrp" in capsys.readouterr().err) == bool(code)
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "Not yet run on a GPU: there are no CUDA figures" in text


def test_a_page_from_a_gpu_does_not_say_that_there_was_none():
    text = gpu.page({"maps": [{"map": "lrp", "seconds": 0.5}]}, "a card")
    assert "Not yet run" not in text
    assert "a card" in text
    assert "| lrp | 0.5 |" in text


def test_without_a_gpu_it_says_how_to_try_it(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(tmp_path / "gpu.md")])
    with pytest.raises(SystemExit, match=r"No usable GPU here\. Try the script with --device cpu --small\."):
        gpu.main()


def test_pages_say_that_no_gpu_was_used_until_there_are_figures():
    page = (DOCS / "benchmarks" / "gpu.md").read_text(encoding="utf-8")
    assert ("Not yet run on a GPU" in page) != ("Made by `python benchmarks/gpu.py" in page)
    for name in ("limits.md", "installation.md", "resources.md"):
        assert "benchmarks/gpu.md" in (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_script_runs_here_at_a_reduced_size(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--small", "--output", str(tmp_path / "gpu.md")])
    assert gpu.main() == 0
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert text.count("\n## ") == len(gpu.PARTS)
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    differences = [cells[2] for cells in found if cells[1] in gpu.METHODS]
    assert set(map(float, differences)) == {0.0}  # a CPU and itself
    by_name = {cells[0]: cells for cells in found}
    for name, seconds in (("Heatlas", -1), ("one resident batch", -1), ("LRP, five β", 1), ("deeplift", 1)):
        assert float(by_name[name][seconds]) > 0
    assert float(by_name["Heatlas"][3]) > 1e7  # bytes that were estimated
