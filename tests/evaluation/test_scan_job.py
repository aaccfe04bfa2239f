"""What the bench does with a map that cannot be made of one network or one volume: the others go on."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heatlas.pipeline.evaluation.bench import scan_job
from heatlas.pipeline.evaluation.scores.faithfulness import Faithfulness
from heatlas.pipeline.run.config.statistics import EvaluationConfig
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


def test_every_shift_has_columns_and_a_map_that_stays_is_worth_what_it_has_in_place() -> None:
    """The brain has two voxels to spare on every side; 3 push a part of it out, so nothing is compared."""
    settings = EvaluationConfig(shift=1, shifts=(0, 2, 3))
    scan = torch.rand((8, 9, 10), generator=torch.Generator().manual_seed(6))
    within = torch.zeros(scan.shape, dtype=torch.bool)
    within[2:-2, 2:-2, 2:-2] = True
    moving = scan_job._moved(lambda x: x**2, scan, scan**2, within, settings)
    names = (*scan_job.SHIFTED, "lost")
    assert set(moving) == {"shift_correlation", *(f"{name}_{shift}" for name in names for shift in (0, 2, 3))}
    assert [moving[f"lost_{shift}"] for shift in (0, 2)] == [0, 0]
    assert moving["lost_3"] == pytest.approx(1 - 3 * 4 * 5 / (4 * 5 * 6))
    assert all(math.isnan(moving[f"{name}_3"]) for name in scan_job.SHIFTED)
    assert math.isnan(scan_job._moved(lambda x: x, scan, scan, within, EvaluationConfig(shift=3))["shift_correlation"])
    for name in ("shift_correlation", "correlation_0", "correlation_2", "cosine_2", "in_place_0"):
        assert moving[name] == pytest.approx(1), name
    assert moving["in_place_2"] < 0.9
    values = scan**2
    stays = scan_job._moved(lambda _: values, scan, values, within, settings)
    assert stays["correlation_2"] == stays["in_place_2"] == moving["in_place_2"]
    assert scan_job._moved(lambda x: x, scan, values, within, EvaluationConfig()) == {}
