"""What the bench does with a map that cannot be made of one network or one volume: the others go on."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heatlas.pipeline.evaluation.bench import scan_job
from heatlas.pipeline.evaluation.scores.faithfulness import Faithfulness
from heatlas.pipeline.run.errors import BadInputError, UsageError

VOLUME = torch.rand(1, 1, 4, 5, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[UsageError, BadInputError])
def refused(request, monkeypatch) -> type[Exception]:
    def refuse(*_: object) -> None:
        raise request.param("integrated-gradients: completeness error")

    monkeypatch.setattr(scan_job, "attribute_all", refuse)
    return request.param


def asked() -> Any:
    return SimpleNamespace(names=("one", "two"), target="AD", start="logit", build=lambda _: None, stage_in=lambda _: 0)


def loaded() -> Any:
    return SimpleNamespace(model=None, classes=["CN", "AD"], input=SimpleNamespace(box=None))


def test_a_map_that_is_refused_is_a_row_that_says_why(refused) -> None:
    rows = list(scan_job._answers("shuffled-1", asked(), loaded(), None, VOLUME, {"fold": 1}))
    assert [(row.name, row.values, row.facts["fold"]) for row in rows] == [("one", None, 1), ("two", None, 1)]
    assert all(row.facts["note"] == "integrated-gradients: completeness error" for row in rows)


def test_scores_that_need_another_map_are_not_known_where_it_is_refused(refused) -> None:
    network = SimpleNamespace(load=lambda _: loaded(), reference=lambda _: None)
    task: Any = SimpleNamespace(explanations=(asked(),), networks=(SimpleNamespace(network=network),), atlas=None)
    one = scan_job.OneMap("real", "two", VOLUME[0, 0], {})
    again = scan_job._made_again(one, task, torch.device("cpu"))
    found = Faithfulness(lambda v: v.flatten(1).mean(1), VOLUME[0, 0], torch.ones(4, 5, 6).long()).scores(
        VOLUME[0, 0], again
    )
    assert math.isnan(found["adcc"])
    assert math.isnan(found["max_sensitivity"])
    assert 0 < found["insertion"] < 1
