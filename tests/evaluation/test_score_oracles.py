"""Scores against captum and Quantus, where they are installed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from heatlas.pipeline.evaluation.scores.faithfulness import infidelity, max_sensitivity
from heatlas.pipeline.evaluation.scores.localisation import auroc, energy_share, entropy, gini, hits_in_first, pointing

pytestmark = pytest.mark.oracle

SHAPE = (4, 6, 5)
RNG = np.random.default_rng(6)
VALUES = RNG.random(SHAPE) ** 3
MASK = RNG.random(SHAPE) < 0.2


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ("RelevanceMassAccuracy", energy_share), ("AUC", auroc), ("PointingGame", pointing),
        ("RelevanceRankAccuracy", lambda a, truth: hits_in_first(a, truth, int(truth.sum())) / truth.sum()),
        ("AttributionLocalisation", energy_share),
    ],
)  # fmt: skip
def test_localisation_as_quantus(metric: str, score: Callable[..., float]) -> None:
    quantus = pytest.importorskip("quantus")
    asked = getattr(quantus, metric)(disable_warnings=True, normalise=False, abs=False)
    batch = {
        "a_batch": VALUES.reshape(1, 1, -1).copy(),
        "s_batch": MASK.reshape(1, 1, -1),
        "x_batch": np.zeros((1, 1, 120)),
    }
    if metric not in ("AttributionLocalisation", "PointingGame"):
        batch.pop("x_batch")
    (found,) = np.atleast_1d(asked.evaluate_batch(**batch))
    assert score(VALUES, MASK) == pytest.approx(float(found), abs=1e-6)


def test_concentration_as_quantus() -> None:
    quantus = pytest.importorskip("quantus")
    batch = VALUES.reshape(1, -1)
    (sparse,) = quantus.Sparseness(disable_warnings=True).evaluate_batch(None, batch.copy())
    (nats,) = quantus.Complexity(disable_warnings=True).evaluate_batch(None, batch.copy())
    assert gini(VALUES) == pytest.approx(float(sparse), abs=1e-6)
    assert entropy(VALUES) * np.log(2) == pytest.approx(float(nats), abs=1e-6)


def test_stability_as_captum() -> None:
    metrics = pytest.importorskip("captum.metrics")
    scan, weight = (torch.from_numpy(RNG.random((1, *SHAPE))) for _ in range(2))
    noises: list[Tensor] = []

    def explain(x: Tensor) -> Tensor:
        return weight[0] * x**2

    def watched(x: Tensor) -> Tensor:
        noises.append(x - scan[0])
        return explain(x)

    own = max_sensitivity(watched, scan[0], explain(scan[0]), torch.ones(SHAPE), samples=5, radius=0.2)
    drawn = iter(noises)
    found = metrics.sensitivity_max(
        lambda xs: (weight * xs[0] ** 2,) if isinstance(xs, tuple) else weight * xs**2,
        scan, perturb_func=lambda xs: torch.stack([x + next(drawn) for x in xs]), n_perturb_samples=5,
    )  # fmt: skip
    assert own == pytest.approx(float(found), rel=1e-12)

    masks = torch.from_numpy(RNG.random((8, *SHAPE)) < 0.5)

    def score(x: Tensor) -> Tensor:
        return (weight * x.sin()).flatten(1).sum(1)

    order = iter(masks)

    @metrics.infidelity_perturb_func_decorator(True)
    def perturb(xs: Tensor) -> Tensor:
        return torch.stack([torch.where(next(order), 0, x) for x in xs])

    values = weight * scan
    theirs = metrics.infidelity(score, perturb, scan, values, n_perturb_samples=8)
    sums = (values * masks).flatten(1).sum(1)
    drops = score(scan) - torch.cat([score(torch.where(mask, 0, scan)) for mask in masks])
    assert infidelity(sums, drops)[0] == pytest.approx(float(theirs), rel=1e-9)
