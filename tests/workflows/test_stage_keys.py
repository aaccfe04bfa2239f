"""What the receipt of the statistics stage depends on: all code that its tables are made by."""

from __future__ import annotations

import ast
from pathlib import Path

import pipeline
from workflows.stages import INFERENCE_PACKAGES

PLUMBING = "pipeline.run"
"""Configuration (in the key by its values), layout, tables, errors; seeds are named."""


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


def test_every_module_that_statistics_import_is_in_the_key() -> None:
    root = Path(pipeline.__file__).parent
    files = [path for part in ("statistics", "evaluation") for path in (root / part).rglob("*.py")]
    used = {name for path in files for name in imported(path) if name.startswith("pipeline.")}
    covered = {name for name in used if any(name == one or name.startswith(f"{one}.") for one in INFERENCE_PACKAGES)}
    left = {name for name in used - covered if not name.startswith(PLUMBING)}
    assert left == set()
    assert "pipeline.run.work.seeds" in covered
    assert "pipeline.training.control" in covered
