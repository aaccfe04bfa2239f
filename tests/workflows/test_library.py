"""The commands as functions: what they are given is checked before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import heatlas
from heatlas.pipeline.run.config.ranges import ARGUMENTS
from heatlas.pipeline.run.errors import UsageError
from heatlas.workflows.command_line import read_command
from heatlas.workflows.commands import Apply, Evaluate, Run
from heatlas.workflows.library import filled
from heatlas.workflows.preflight import settings_of


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
        (lambda: heatlas.evaluate("out", method="lrp"), "there is no option method. Did you mean methods?"),
        (
            lambda: heatlas.run("scans", "out", n_procs=0),
            "n_procs = 0: cannot be used .'0' is not a whole number from 1",
        ),
        (lambda: heatlas.run("scans", "out", side_by_side=True), "there is no option side_by_side"),
        (lambda: heatlas.run("scans", "out", stop_after="end"), "stop_after = 'end': must be one of cohort, "),
        (lambda: heatlas.apply("run", "scans", "out", new_people="no"), "new_people = 'no': must be True or False"),
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


@pytest.mark.parametrize(
    ("words", "record", "values"),
    [
        (["run", "in", "out", "--contrast", "cdr=0,>=0.5", "--n-procs", "3", "--resolution", "2", "--follow-links"],
         Run,
         {"input": "in", "out": Path("out"), "contrast": "cdr=0,>=0.5", "n_procs": 3, "resolution": 2.0,
          "follow_links": True, "backbone": None}),
        (["evaluate", "out", "--methods", "lrp", "--methods", "occlusion", "--draws", "9", "--n-procs", "1"], Evaluate,
         {"out": "out", "methods": ("lrp", "occlusion"), "draws": 9, "plant": False, "n_procs": "1"}),
        (["apply", "run", "new", "out", "--participant-label", "01", "--n-procs", "1"], Apply,
         {"run": "run", "input": "new", "out": "out", "participant_label": "01", "n_procs": 1}),
    ],
)  # fmt: skip
def test_library_and_command_line_fill_the_same_record(words, record, values):
    assert filled(record, values) == read_command(words)


def test_settings_of_the_library_are_those_of_a_file(tmp_path):
    file = tmp_path / "some.toml"
    file.write_text(
        "[training]\nensemble = 4\n[training.augmentation]\nnoise_probability = 0.2\n"
        '[attribution.lrp]\nbatch_norm = "fold"\n'
    )
    given = {
        "training": {"ensemble": 4, "augmentation": {"noise_probability": 0.2}},
        "attribution": {"settings": ["lrp:batch_norm=fold"]},
    }
    by_name, by_file = (settings_of(Run(input=Path(), out=Path(), config=config, seed=7)) for config in (given, file))
    assert by_name == by_file
    assert (by_name.seed, by_name.training.ensemble, by_name.training.augmentation.noise_probability) == (7, 4, 0.2)
