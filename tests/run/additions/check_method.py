"""What a user meets of a method: run beside a tree in which it was added."""

from __future__ import annotations

import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from outside_contrast import ATLAS, LABELLED, SPEC, SPLIT
from outside_contrast import CONFIG as RUN_CONFIG
from outside_contrast import make_run as make_explained_run
from run_factory import RunPlan
from run_factory import make_run as make_reported_run
from torch import nn

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.registry import find_method
from heatlas.pipeline.attribution.titles import map_title, method_title
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.evaluation.bench.judging import Extent, judged_rows
from heatlas.pipeline.evaluation.bench.part import methods_of, with_methods
from heatlas.pipeline.evaluation.bench.table import evaluation_table
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.explaining.stage import explain_scans
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.stage import aggregate_relevance
from heatlas.pipeline.run.config.settings import AttributionConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.layout.scan_files import map_names
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.reports.frame.material import Material
from heatlas.reports.page.parts import finished_sections
from heatlas.workflows.command_line import read_command
from heatlas.workflows.estimates import not_estimated
from heatlas.workflows.evaluate import request_of
from tests.evaluation.block_run import block_cohort, train_run
from tests.training.run_of_folds import Inline

FOLDER = Path(sys.argv[1])
NAME = "toyMapPower2"
ASKED = dataclasses.replace(
    RUN_CONFIG, attribution=AttributionConfig(("lrp", "toy-map"), ("toy-map:power=2",), betas=(0.0,))
)


def its_formula_is_computed() -> None:
    """Of a linear network the gradient is its weights."""
    network = StagedModel([nn.Sequential(nn.Flatten(), nn.Linear(60, 2))]).eval()
    method = find_method("toy-map").build({"power": 2}, RunContext(PackedAtlas.of(ATLAS), SPEC.box))
    found = attribute(network, torch.rand(1, 1, 3, 4, 5), 1, method).values
    torch.testing.assert_close(found.flatten(), network.stages[0][1].weight[1] ** 2)


def its_settings_and_titles_are_known() -> None:
    assert map_names(ASKED.attribution) == ["lrpB000", NAME]
    assert (map_title(NAME), method_title("toy-map power=2")) == ("TOY map power 2", "TOY map power=2")
    outside = dataclasses.replace(ASKED, attribution=AttributionConfig(("toy-map",), ("toy-map:power=5",)))
    with pytest.raises(UsageError, match="power = 5: must lie between 1 and 4"):
        explanations_of_run(outside)
    assert not_estimated(ASKED) == ["toy-map"]


def a_run_explains_and_sums_its_maps() -> None:
    run = make_explained_run(FOLDER / "explained")
    run.aggregate_labelled()
    layout, known = run.layout, DigestCache(run.layout.digests)
    predictions = read_table(layout.group / "predictions.tsv")
    with ThreadPoolExecutor(1) as executor:
        work = Work(layout, layout.root, ASKED, LABELLED, SPLIT, executor, known)
        outcomes = explain_scans(work, LABELLED, predictions, ATLAS)
        assert all(outcome.ok for outcome in outcomes)
        names = map_names(ASKED.attribution)
        aggregate_relevance(work, LABELLED, predictions, names, ATLAS.grid)
    sums = read_table(layout.group / "relevance.tsv").query("map == @NAME")["sum"]
    assert len(sums) > 100
    assert sums.max() > 0


def the_report_shows_its_maps() -> None:
    overrides = {"attribution": {"methods": ["lrp", "toy-map"], "settings": ["toy-map:power=2"], "betas": [0.0]}}
    layout = make_reported_run(FOLDER / "reported", RunPlan(people=6, overrides=overrides))
    material = Material.of(layout)
    parts = finished_sections(material, ["region-table", "volume", "agreement", "methods"])
    assert not material.faults.said
    assert all("TOY map power 2" in section.html for section in parts.sections)


def the_bench_judges_it() -> None:
    request = request_of(read_command(["evaluate", "out", "--methods", "toy-map"]))
    cohort = block_cohort(EvaluationLayout(FOLDER / "judged"))
    train_run(cohort)
    assert methods_of(request, cohort.config) == ("toy-map",)
    few = dataclasses.replace(cohort, scans=cohort.scans[:4] + cohort.scans[-4:])
    asked = explanations_of_run(with_methods(cohort.config, request.methods))
    judged, rows, outcomes = judged_rows(few, asked, Extent(), Inline(), DigestCache(cohort.layout.digests))
    assert all(one.ok for one in outcomes)
    (row,) = evaluation_table(judged, rows).query("network == 'real' and map == 'toyMap'").to_dict("records")
    assert row["method"] == "toy-map"
    assert 0 <= row["auroc_difference"] <= 1


its_formula_is_computed()
its_settings_and_titles_are_known()
a_run_explains_and_sums_its_maps()
the_report_shows_its_maps()
the_bench_judges_it()
