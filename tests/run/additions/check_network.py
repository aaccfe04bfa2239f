"""What a user meets of a family of networks: run beside a tree in which it was added."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from printed_pages import settings_page

from heatlas.pipeline.attribution.gradient.gradients import InputTimesGradient
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.models.families.registry import FAMILIES, build_network
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.run.config.files import config_to_toml, load_config, read_config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, FoldFiles
from heatlas.reports.content.run.colophon import methods_markdown
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.estimates import described, measured_step
from tests.evaluation.block_run import CONFIG, block_cohort, train_run
from tests.reports.run_factory import RunPlan, make_run

FOLDER = Path(sys.argv[1])
FILE = FOLDER / "own.toml"
FILE.write_text('[model]\narchitecture = "toy-network"\nfilters = 3\nfield_of_view = "template"\n')
MODEL = load_config(file=FILE).model


def its_settings_are_read_checked_and_written() -> None:
    assert (type(MODEL).__name__, MODEL.own) == ("ToyConfig", {"filters": 3})
    (FOLDER / "config.toml").write_text(config_to_toml(load_config(file=FILE)))
    assert read_config(FOLDER / "config.toml").model == MODEL
    for name, value, words in (
        ("filters", 65, "model.filters must lie between 1 and 64"),
        ("filter", 3, "Did you mean model.filters\\? Known here are architecture, field_of_view, intensities, filters"),
        ("pools", [2], "model.pools is a setting of founding"),
    ):
        with pytest.raises(UsageError, match=words):
            load_config(overrides={"model": {"architecture": "toy-network", name: value}})
    with pytest.raises(UsageError, match="Did you mean toy-network"):
        load_config(overrides={"model": {"architecture": "toy-netwerk"}})


def its_settings_are_documented() -> None:
    page = settings_page()
    assert "### `toy-network`\n\nOne convolution." in page
    assert "| `filters` | whole number, between 1 and 64 | `4` | Of the convolution. |" in page
    lines = dict(described(FAMILIES["toy-network"], (2.0,)))
    assert lines["brain at 2 mm"].startswith("122 parameters")
    assert lines["settings"] == "filters = 4"


def it_is_built_stored_and_read() -> None:
    spec = NetworkInput(4.0, None)
    torch.manual_seed(1)
    model = build_network(MODEL, spec.shape, 2).eval()
    files = FoldFiles(FOLDER / "fold-0")
    save_model(files, model, spec, ("CN", "AD"), {})
    loaded, volume = load_model(files), torch.rand(1, 1, *spec.shape)
    assert (type(loaded.settings), loaded.settings.own) == (type(MODEL), MODEL.own)
    assert torch.equal(loaded.model(volume), model(volume))
    assert attribute(loaded.model, volume, 1, InputTimesGradient()).values.shape == volume.shape


def it_is_estimated_and_trained() -> None:
    config = dataclasses.replace(CONFIG, model=MODEL)
    assert measured_step(config).seconds > 0
    cohort = block_cohort(EvaluationLayout(FOLDER / "trained"), config)
    train_run(cohort)
    assert load_model(cohort.layout.fold(1)).input == configured_input(config)


def the_methods_section_describes_it() -> None:
    layout = make_run(FOLDER / "reported", RunPlan("training", overrides={"model": {"architecture": "toy-network"}}))
    assert "was one convolution" in " ".join(methods_markdown(read_run(layout)).split())


its_settings_are_read_checked_and_written()
its_settings_are_documented()
it_is_built_stored_and_read()
it_is_estimated_and_trained()
the_methods_section_describes_it()
