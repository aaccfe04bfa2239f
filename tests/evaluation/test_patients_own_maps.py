"""Tests of own maps: removal, layers drawn anew, constants and air, of networks whose answers are known."""

from __future__ import annotations

import pandas as pd
import patients_network_studies
import patients_networks
import patients_own_maps
import pytest
import torch
from inherent_runs import Recipe
from torch import nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import LoadedModel
from tests.attribution.inherent_toys import SHAPE, bcos, coda, scans


class _Shaped(NetworkInput):
    shape = SHAPE  # type: ignore[assignment]


def loaded(model: nn.Module) -> LoadedModel:
    return LoadedModel(model, _Shaped(4.0, None), ("CN", "AD"), {})  # type: ignore[arg-type]


def test_the_largest_go_first_and_up_to_a_quarter_of_the_brain():
    volume = torch.zeros(1, 1, 4, 4, 10)
    volume[0, 0, :, :, :5] = torch.arange(1.0, 81).reshape(4, 4, 5)  # 80 of 160 voxels are brain
    share = lambda volumes: (volumes > 0).sum((1, 2, 3, 4)) / 80  # noqa: E731
    assert patients_own_maps.while_removed(share, volume, volume[0, 0]) == pytest.approx(100 * (1 - 0.25 / 2))
    last = lambda volumes: (volumes == 80).sum((1, 2, 3, 4)).float()  # noqa: E731
    assert patients_own_maps.while_removed(last, volume, volume[0, 0]) == pytest.approx(100 / 11)  # gone after a step
    assert patients_own_maps.while_removed(last, volume, -volume[0, 0]) == pytest.approx(100)


def test_of_a_linear_network_the_own_map_is_the_best_order():
    found = patients_own_maps.removal(loaded(coda(outputs=2)), scans(1), 1)
    assert found["most first: own"] < min(found["before"], found["random order"], found["most first: gradient"])
    assert found["least first: own"] > max(found["before"], found["random order"])


def test_layers_drawn_anew_change_the_map_and_the_same_layers_do_not(monkeypatch):
    network, scan = loaded(coda(outputs=2)), scans(1)
    found = patients_own_maps.cascade(network, scan, 1)
    assert 0 <= found["like the trained map: all layers"] < 0.9
    monkeypatch.setattr(patients_own_maps, "randomised", lambda same, *_: same)
    assert list(patients_own_maps.cascade(network, scan, 1).values()) == pytest.approx([1, 1, 1, 1])


def test_constants_are_nothing_without_biases_and_the_whole_margin_where_they_are_huge():
    scan = scans(1)
    found = patients_own_maps.constants(loaded(bcos(outputs=2)), scan, 0)
    assert found["constants: more than half"] == 0
    assert found["constants: size"] == pytest.approx(0, abs=1e-9)  # what is left is rounding, and its sign anything
    model, biased = bcos(outputs=2), nn.Linear(2, 2).double()
    with torch.no_grad():
        biased.weight.copy_(torch.eye(2))
        margin = float(model(scan) @ torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
        for factor, half, second in ((3, 100, 0), (-0.5, 0, 100), (0.5, 0, 0)):
            biased.bias.copy_(torch.tensor([0, factor * margin]))
            found = patients_own_maps.constants(loaded(StagedModel([*model.stages, biased]).eval()), scan, 0)
            assert found["constants: size"] == pytest.approx(abs(factor * margin))
            assert (found["constants: more than half"], found["constants: for the second"]) == (half, second)


def test_air_contributes_where_it_is_seen():
    scan = scans(1)
    outside = 100 * float((scan == 0).double().mean())
    found = patients_own_maps.drawn(loaded(bcos(outputs=2)), scan, 1)
    assert found["even map: outside"] == pytest.approx(outside)
    assert found["class: positive outside"] == found["less the mean: positive outside"] == 0
    found = patients_own_maps.drawn(loaded(bcos(outputs=2, background="dark")), scan, 1)
    assert 0 < found["class: positive outside"] < 100


def test_a_difference_from_a_number_is_of_those_who_have_it():
    frame = pd.DataFrame({"recipe": "a", "seed": [1] * 5 + [2] * 5, "person": list("vwxyz") * 2}).assign(
        measure="m", value=[60.0, 70, 80, 90, 100, 60, 60, 60, 60, 60]
    )
    line = patients_networks.difference(frame, ("B17", "a", "m", "", "50"))
    assert line is not None
    assert line.startswith("| B17 | a, m less 50 | 5 | +30.00, +10.00 | +20.00 (")
    assert "less chance | 5 | +55.00, +35.00 | +45.00" in str(
        patients_networks.difference(frame, ("A", "a", "m", "", ""))
    )
    assert patients_networks.difference(frame[frame["person"] != "z"], ("B17", "a", "m", "", "50")) is None


def test_every_difference_is_of_recipes_and_measures_that_are_made():
    made = {one.name for one in patients_network_studies.tested_recipes(None, 43)}
    study = patients_network_studies.STUDIES["tests"]
    assert set(study.measures) <= made
    network, dark = loaded(coda(outputs=2)), loaded(bcos(outputs=2, background="dark"))
    known = {
        name: {key for one in own for key in one(dark if name.startswith("B-cos") else network, scans(1), 1)}
        for name, own in study.measures.items()
    }
    for claim, *sides in study.pairs(pd.DataFrame()):
        for recipe, measure in (sides[:2], sides[2:]):
            if recipe:
                assert recipe in made, claim
                assert measure == "correct" or "share: " in measure or measure in known[recipe], claim
            else:
                float(measure or 0)


def test_own_maps_of_a_larger_b_are_compared_with_maps_that_are_made():
    made: dict[str, Recipe] = {one.name: one for one in patients_network_studies.further_recipes(None, 43)}
    assert [made[name].settings["model"]["b"] for name in ("B-cos, B 2", "B-cos, B 2.5")] == [2, 2.5]
    for claim, *sides in patients_network_studies.STUDIES["own-further"].pairs(pd.DataFrame()):
        for recipe, measure in (sides[:2], sides[2:]):
            if recipe and measure != "correct":
                method = measure.split(": ")[1].split()[0]  # grids smooth the maps of a method themselves
                assert method.removeprefix("smooth-") in made[recipe].methods, claim


def test_recipes_differ_from_the_usual_network_by_what_their_name_says():
    recipes: dict[str, Recipe] = {one.name: one for one in patients_network_studies.tested_recipes(None, 43)}
    model = {name: one.settings["model"] for name, one in recipes.items()}
    assert model["CoDA-S, T 10"]["initial_logits"] == 0.05
    assert [model[f"B-cos, B {b:g}"]["b"] for b in (1, 1.5, 2, 2.5)] == [1, 1.5, 2, 2.5]
    assert model["B-cos, dark"] | {"background": "null"} == model["B-cos, B 1.5"] | {"background": "null"}
    assert recipes["B-cos, dark, off-targets"].settings["training"]["loss"] == "off-target"
