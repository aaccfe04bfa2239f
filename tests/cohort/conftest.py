"""Fixtures of the cohort room."""

from __future__ import annotations

from pathlib import Path

import pytest
from input_trees import AdniTree, BidsTree


@pytest.fixture
def adni(tmp_path: Path) -> AdniTree:
    (tmp_path / "in put é").mkdir()
    return AdniTree(tmp_path / "in put é")


@pytest.fixture
def bids(tmp_path: Path) -> BidsTree:
    return BidsTree(tmp_path)
