"""LRP and guided backpropagation behind the one verb: the same numbers as their own, at every stage."""

from __future__ import annotations

import pytest
import torch
from lrp_toys import staged, toy_network, toy_volumes

from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedBackprop, guided_backprop
from heatlas.pipeline.attribution.lrp.composites import composite, focus, founding
from heatlas.pipeline.attribution.lrp.methods import Lrp
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.run.errors import UsageError


@pytest.mark.parametrize("stage", [0, 1, 2, "stages.1.1"])
def test_lrp_is_the_engine_summed_over_channels(stage: int | str) -> None:
    model, volumes = staged(toy_network()), toy_volumes()
    (engine,) = lrp(model, volumes, 1, [founding(0.5)], stage=stage)
    answer = attribute(model, volumes, 1, Lrp(beta=0.5), stage=stage, at_input_grid=False)
    torch.testing.assert_close(answer.values, engine.values.sum(1, keepdim=True), rtol=0, atol=0)
    assert answer.parameters["beta"] == 0.5
    assert answer.parameters["stage"] == stage


def test_zb_has_the_bounds_of_the_brain_voxel_by_voxel() -> None:
    model, volumes = staged(toy_network()), toy_volumes()
    brain = (volumes != 0).double()
    for method, rules in (
        (Lrp("focus", epsilon=0.1), focus(0.1, 0.0, brain)),
        (Lrp("composite", gamma=0.5), composite(0.5, 0.25, 0.0, brain)),
    ):
        (engine,) = lrp(model, volumes, 1, [rules])
        answer = attribute(model, volumes, 1, method)
        torch.testing.assert_close(answer.values, engine.values, rtol=0, atol=0)
        assert float(answer.values[volumes == 0].abs().max()) == 0
        assert float(answer.values.abs().max()) > 0


@pytest.mark.parametrize("stage", [1, 2])
def test_guided_backpropagation_of_a_stage_is_that_of_the_rest_of_the_network(stage: int) -> None:
    model, volumes = staged(toy_network()), toy_volumes()
    rest = torch.nn.Sequential(*model.stages[stage:]).eval()
    with torch.no_grad():
        features = torch.nn.Sequential(*model.stages[:stage]).eval()(volumes)
    expected = guided_backprop(rest, features, 1).values.sum(1, keepdim=True)
    answer = attribute(model, volumes, 1, GuidedBackprop(), stage=stage, at_input_grid=False)
    torch.testing.assert_close(answer.values, expected, rtol=0, atol=0)
    torch.testing.assert_close(
        attribute(model, volumes, 1, GuidedBackprop()).values, guided_backprop(model, volumes, 1).values
    )


def test_settings_are_checked() -> None:
    with pytest.raises(UsageError, match="gamma"):
        Lrp("composite", gamma=-1.0)
    with pytest.raises(UsageError, match="'focus'"):
        Lrp("best")  # type: ignore[arg-type]
