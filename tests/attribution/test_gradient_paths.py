"""Points on a path (`pipeline/attribution/gradient/paths.py`): several in one pass, and of several networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradient_toys import network, volumes
from reference_toys import controls

from heatlas.pipeline.attribution.gradient import paths
from heatlas.pipeline.attribution.gradient.gradients import score_and_gradient
from heatlas.pipeline.attribution.gradient.paths import ExpectedGradients, together
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import start_values
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.models.contract import StagedModel, ensemble_of
from heatlas.pipeline.run.config.files import load_config


def networks(count: int) -> list[StagedModel]:
    return [network(seed) for seed in range(count)]


def test_the_map_of_the_mean_network_is_the_mean_of_maps() -> None:
    """By the definition of expected gradients, in float64, for three controls and six places on the path."""
    members, reference, volume = networks(4), controls(3), volumes()[:1]

    def by_definition(score: Any) -> torch.Tensor:
        total = torch.zeros_like(volume)
        for control in reference.volumes:
            for place in range(6):
                gradient = score_and_gradient(score, torch.lerp(control[None], volume, (place + 0.5) / 6))[1]
                total += (volume - control) * gradient / 18
        return total

    def evidence_of(model: Any) -> Any:
        return lambda values: start_values(model(values), 1, "evidence")

    each = torch.stack([by_definition(evidence_of(member)) for member in members]).mean(0)
    of_mean = by_definition(lambda values: torch.stack([evidence_of(one)(values) for one in members]).mean(0))
    assert float(each.abs().max()) > 1e-4
    torch.testing.assert_close(of_mean, each, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_definition(evidence_of(ensemble_of(members))), each, rtol=1e-12, atol=1e-12)


def test_points_asked_together_take_fewer_passes_and_give_the_same_map(monkeypatch: pytest.MonkeyPatch) -> None:
    model, volume, passes = network(), volumes()[:1], list[int]()

    def counted(score: Any, places: torch.Tensor) -> Any:
        passes.append(len(places))
        return score_and_gradient(score, places)

    monkeypatch.setattr(paths, "score_and_gradient", counted)
    alone = attribute(model, volume, 1, ExpectedGradients(controls(12), tolerance=10.0), 0, "evidence")
    assert set(passes) == {1}
    passes.clear()
    asked = ExpectedGradients(controls(12), tolerance=10.0, batch=together((46, 54, 46)))
    answer = attribute(model, volume, 1, asked, 0, "evidence")
    assert passes[:2] == [8, 4]
    torch.testing.assert_close(answer.values, alone.values, rtol=1e-9, atol=1e-12)


def test_points_of_a_path_are_asked_together_in_every_run() -> None:
    explanations = explanations_of_run(load_config("patients"))
    assert [one.settings.get("batch") for one in explanations] == [None, None, together((46, 54, 46))]
