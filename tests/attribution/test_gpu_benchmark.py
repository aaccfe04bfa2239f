"""The script for a lent GPU (`benchmarks/gpu.py`), as far as it runs without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpu
import pytest

from tests.other_device import OTHER, other_device

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("family", "method"), [("founding", "lrp"), ("bcos-simple", "inherent")])
def test_maps_of_another_device_are_compared_with_those_of_the_cpu(family, method):
    with other_device():
        row = gpu.apart(family, method, OTHER)
    assert row["difference"] < gpu.TOLERANCE


@pytest.mark.parametrize(("difference", "code"), [(gpu.TOLERANCE, 0), (1.1 * gpu.TOLERANCE, 1), (float("nan"), 1)])
def test_maps_too_far_apart_end_with_1_and_are_named(monkeypatch, tmp_path, capsys, difference, code):
    row = {"family": "founding", "method": "lrp", "difference": difference}
    monkeypatch.setattr(gpu, "PARTS", {"agreement": lambda *_: [row], "chain": lambda *_: []})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--output", str(tmp_path / "gpu.md")])
    assert gpu.main() == code
    assert ("founding, lrp" in capsys.readouterr().err) == bool(code)
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "Not yet run on a GPU: there are no CUDA figures" in text
    assert "Not run: out of time." in text
    assert json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"]["chain"] == []


def test_a_page_from_a_gpu_does_not_say_that_there_was_none():
    found = {"device": "cuda", "command": "", "date": "", "machine": "a card", "torch": "", "parts": {}}
    assert "Not yet run" not in gpu.page(found)
    assert "a card" in gpu.page(found)
    assert list(gpu.TITLES) == list(gpu.PARTS)


def test_without_a_gpu_it_says_how_to_try_it(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(tmp_path / "gpu.md")])
    with pytest.raises(SystemExit, match=r"No usable GPU here\. Try the script with --device cpu --small\."):
        gpu.main()


def test_pages_say_that_no_gpu_was_used_until_there_are_figures():
    page = (DOCS / "benchmarks" / "gpu.md").read_text(encoding="utf-8")
    figures = DOCS / "benchmarks" / "gpu.json"
    assert ("Not yet run on a GPU" in page) == (not figures.is_file())
    for name in ("limits.md", "installation.md", "resources.md"):
        assert "benchmarks/gpu.md" in (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_script_runs_here_at_a_reduced_size(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--small", "--output", str(tmp_path / "gpu.md")])
    assert gpu.main() == 0
    parts = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"]
    assert all(row["difference"] == 0 for row in parts["agreement"])  # a CPU and itself
    assert [row["map"] for row in parts["maps"]] == ["forward and backward", "LRP, five β", "deeplift"]
    assert min(row["seconds"] for row in [*parts["training"], *parts["maps"]]) > 0
    assert parts["memory"][0]["estimated_bytes"] > 1e7
