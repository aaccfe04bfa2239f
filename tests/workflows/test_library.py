"""The commands as functions: what they are given is checked before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import heatlas
from heatlas.pipeline.run.config.typed_values import ARGUMENTS
from heatlas.pipeline.run.errors import UsageError


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: heatlas.run("scans", None), "out = None: must be a path, as text or Path"),
        (lambda: heatlas.run(3, "out"), "input = 3: must be a path"),
        (lambda: heatlas.run("scans", "out", preset=None), "preset = None: must be the name of a preset"),
        (lambda: heatlas.run("scans", "out", seed="x"), "seed = 'x': must be a whole number"),
        (lambda: heatlas.run("scans", "out", settings=["a"]), r"settings = \['a'\]: must be settings by name"),
        (lambda: heatlas.run("scans", "out", settings={"a": 1}), "a must be a section"),
        (
            lambda: heatlas.run("scans", "out", settings={"training": {"ensemble": 2}}, config="a.toml"),
            "settings and config: both say what differs",
        ),
        (lambda: heatlas.apply("run", None, "out"), "new = None: must be a path"),
        (lambda: heatlas.evaluate(""), "out = '': must be a path"),
        (lambda: heatlas.export("run", [1]), r"folder = \[1\]: must be a path"),
    ],
)
def test_arguments_that_are_none_are_refused_before_anything_is_written(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        call()
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("value", [None, 3, 1.5, True, "", b"a", [], [None], {"a": 1}, {1: 2}, object(), float("nan")])
def test_every_argument_judges_every_value_without_an_error_of_its_own(value):
    for name, (holds, must) in ARGUMENTS.items():
        assert holds(value) in (True, False), name
        assert must
