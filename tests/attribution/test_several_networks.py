"""Several networks that explain one scan together: the mean of maps, and some of them in place of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gradient_toys import network, volumes
from reference_toys import controls

from heatlas.pipeline.attribution import several_networks
from heatlas.pipeline.attribution.gradient import paths
from heatlas.pipeline.attribution.gradient.gradients import score_and_gradient
from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedBackprop
from heatlas.pipeline.attribution.gradient.paths import ExpectedGradients
from heatlas.pipeline.attribution.lrp.relevance import Lrp
from heatlas.pipeline.attribution.methods import attribute, attribute_all
from heatlas.pipeline.attribution.network_view import start_values
from heatlas.pipeline.attribution.several_networks import mean_of_some, some_of, together
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


def test_other_maps_are_asked_of_some_networks_of_every_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks asked are counted, not time: 8 of 20, where a run asks the 4 of a fold."""
    members, asked = networks(20), list[object]()

    def noted(model: StagedModel, *rest: Any) -> Any:
        asked.append(model)
        return attribute_all(model, *rest)

    monkeypatch.setattr(several_networks, "attribute_all", noted)
    mean_of_some([(member, GuidedBackprop()) for member in members], volumes()[:1], 1, 0, "logit")
    assert [members.index(one) for one in asked] == [0, 2, 5, 7, 10, 12, 15, 17]
    assert {place // 4 for place in some_of(20)} == set(range(5))


def test_which_networks_explain_depends_on_their_number_alone() -> None:
    assert [len(some_of(count)) for count in (1, 2, 3, 4, 5, 10, 20, 40)] == [1, 2, 3, 4, 4, 6, 8, 10]
    members = networks(6)
    places = some_of(6)
    for volume in torch.split(volumes(), 1):
        (answer,) = mean_of_some([(member, Lrp()) for member in members], volume, 1, 0, "logit")
        expected = [attribute(members[place], volume, 1, Lrp()).values for place in places]
        torch.testing.assert_close(answer.values, torch.stack(expected).mean(0))
        assert answer.parameters["networks"] == f"{len(places)} of 6: {', '.join(str(one + 1) for one in places)}"


def test_only_networks_of_another_run_are_asked_in_part_and_only_if_not_all_are_wanted() -> None:
    config = load_config("patients")
    applied = replace(config, training=replace(config.training, networks_of="run"))
    every = replace(applied, attribution=replace(applied.attribution, networks="all"))
    plain, saved, whole = (explanations_of_run(one) for one in (config, applied, every))
    assert plain == whole
    assert [one.version for one in plain] == [one.version for one in whole]
    assert [one.over for one in saved] == ["some", "some", "all"]
    assert [one.version == other.version for one, other in zip(plain, saved, strict=True)] == [False, False, True]


def test_points_of_a_path_are_asked_together_in_every_run() -> None:
    explanations = explanations_of_run(load_config("patients"))
    assert [one.settings.get("batch") for one in explanations] == [None, None, together((46, 54, 46))]
