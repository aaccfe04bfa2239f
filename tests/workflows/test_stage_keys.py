"""What receipts depend on: the code that makes a result, whichever room it is in, and no plumbing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from heatlas.pipeline.cohort.images.conversion import convert_one
from heatlas.pipeline.evaluation.planted import evaluate_effects, evaluate_planted
from heatlas.pipeline.explaining.explained_scan import explain_scan
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.regions.stage import average_maps
from heatlas.pipeline.registration.scan_jobs import register_one
from heatlas.pipeline.run.work.digests import COMPUTING, import_closure
from heatlas.pipeline.statistics.stage import analyse
from heatlas.pipeline.training.answers import control_of
from heatlas.pipeline.training.application import ask_network
from heatlas.pipeline.training.stage import train_fold

SEEDS = "heatlas.pipeline.run.work.seeds"
KEYS: dict[str, tuple[tuple[Callable[..., Any], ...], set[str]]] = {
    "conversion": ((convert_one,), {"heatlas.pipeline.cohort.images.dicom"}),
    "registration": (
        (register_one,),
        {"heatlas.pipeline.registration.ants_transform", "heatlas.atlases.templates", SEEDS},
    ),
    "training": (
        (train_fold,),
        {FoundingCNN.__module__, "heatlas.pipeline.training.volumes", SEEDS},
    ),
    "prediction": ((ask_network,), {FoundingCNN.__module__, read_network_volume.__module__}),
    "attribution": (
        (explain_scan,),
        {FoundingCNN.__module__, "heatlas.pipeline.regions.region_sums", "heatlas.atlases.spaces"},
    ),
    "mean maps": ((average_maps,), {"heatlas.pipeline.regions.maps"}),
    "statistics": (
        (analyse, evaluate_planted, evaluate_effects),
        {
            SEEDS,
            control_of.__module__,
            "heatlas.pipeline.cohort.people.splits",
            "heatlas.pipeline.registration.settled",
        },
    ),
}
"""Functions that do the work of a stage, and modules that were forgotten in lists kept by hand, or easily would be."""


@pytest.mark.parametrize("stage", KEYS)
def test_a_key_holds_what_computes_and_no_plumbing(stage: str) -> None:
    functions, needed = KEYS[stage]
    closure = import_closure({function.__module__ for function in functions})
    assert needed <= closure
    assert {name for name in closure if name.startswith("heatlas.pipeline.run")} <= COMPUTING


@pytest.mark.parametrize("stage", ["training", "attribution", "registration"])
def test_hours_of_work_do_not_depend_on_how_folders_are_walked(stage: str) -> None:
    closure = import_closure({function.__module__ for function in KEYS[stage][0]})
    assert not {
        name
        for name in closure
        if name.startswith(("heatlas.pipeline.cohort.adni", "heatlas.pipeline.cohort.candidates"))
    }
