"""The script that says whether two trees give the same: a difference is named, one that is meant with its reason."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("same_results", Path(__file__).parents[2] / ".ci" / "same_results.py")
assert _SPEC is not None
same_results = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(same_results)  # type: ignore[union-attr]


def write_record(root: Path) -> None:
    for folder in ("run/group", "run/logs/receipts/training", "applied"):
        (root / folder).mkdir(parents=True)
    (root / "said.json").write_text(json.dumps({"help/heatlas": "usage: heatlas"}))
    (root / "origin.txt").write_text("")
    (root / "run/group/tests.tsv").write_text("region\tp\tseconds\nHippocampus\t0.1\t3\n")
    page = "<style>p {}</style><p>No effect.</p><p>Run of 2026-11-28</p>"
    (root / "run/report.html").write_text(page)
    (root / "run/logs/receipts/training/fold-0.json").write_text(json.dumps({"key": "k", "seconds": 1.0}))


@pytest.mark.parametrize(
    ("file", "was", "now", "named"),
    [
        ("run/group/tests.tsv", "0.1\t3", "0.1\t4", None),
        ("run/group/tests.tsv", "0.1", "0.2", "p: 1 of 1 rows, first line 2: '0.1', now '0.2'"),
        ("run/group/tests.tsv", "region", "area", "-region"),
        ("run/report.html", "2026-11-28", "2026-12-01", None),
        ("run/report.html", "No effect", "An effect", "+An effect."),
        ("run/logs/receipts/training/fold-0.json", '"k"', '"l"', "1 of 1 keys differ"),
        ("said.json", "usage", "use", "+use: heatlas"),
    ],
)
def test_what_differs_is_named_unless_it_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, was: str, now: str, named: str | None
) -> None:
    old, new, expected = tmp_path / "old", tmp_path / "new", tmp_path / "expected.toml"
    write_record(old)
    shutil.copytree(old, new)
    text = (new / file).read_text()
    assert was in text
    (new / file).write_text(text.replace(was, now))
    expected.touch()
    assert same_results.compare(old, new, expected, most=9) == (named is not None)
    assert (named or "0 differences") in capsys.readouterr().out
    expected.write_text('[[expected]]\nplace = "*"\nwhat = "[a-z]"\nwhy = "a repair"\n')
    assert same_results.compare(old, new, expected, most=9) == 0
    expected.write_text('[[expected]]\nplace = "*"\nwhat = "no such"\nwhy = "a repair"\n')
    assert same_results.compare(old, new, expected, most=9) == (named is not None)
