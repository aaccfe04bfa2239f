"""Labels that say nothing, networks with parameters drawn anew, and maps without a network."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.nulls import (
    DIFFERENCE,
    FAKE_CAM,
    IMAGE_MAPS,
    UNIFORM,
    image_maps,
    layers_with_parameters,
    randomised,
    swapped,
    with_swapped_labels,
)
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.layout.scan_files import map_label
from heatlas.pipeline.training.steps import take_constants
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.inherent import Inherent


def people(first: int, second: int) -> tuple[list[str], list[str]]:
    return [f"sub-c{i}" for i in range(first)], [f"sub-a{i}" for i in range(second)]


@pytest.mark.parametrize(("first", "second"), [(8, 8), (3, 9), (20, 5), (2, 2), (9, 10)])
def test_swapped_labels_say_nothing(first, second) -> None:
    controls, patients = people(first, second)
    chosen = swapped(controls, patients, seed=3)
    kept = [len(chosen & set(controls)), len(chosen & set(patients))]
    assert kept[0] == kept[1] >= 1
    shares = np.array([kept[0] / first, 1 - kept[1] / second])  # of AD among true controls, among true patients
    assert abs(shares[0] - shares[1]) <= 0.5 / first + 0.5 / second + 1e-12
    assert swapped(controls, patients, seed=3) == chosen != swapped(controls, patients, seed=4) or first + second < 8


def scans(labels: dict[str, tuple[str, ...]]) -> list[Scan]:
    return [
        Scan(who, f"ses-{n}", f"{who}-{n}", None, label=one) for who, own in labels.items() for n, one in enumerate(own)
    ]


def test_labels_change_places_within_each_part_and_never_in_the_test_part() -> None:
    labels = {f"sub-{part}{i}": ("AD" if i % 2 else "CN",) for part in "tvx" for i in range(4)}
    names = {part: tuple(name for name in labels if name[4] == part) for part in "tvx"}
    fold = Fold(0, names["t"], names["v"], names["x"])
    before = scans(labels)
    after = with_swapped_labels(before, fold, CohortConfig(), seed=1)
    for part in "tv":
        old, new = ([one.label for one in group if one.participant_id in names[part]] for group in (before, after))
        assert sorted(old) == sorted(new)
        assert old != new
    assert [one for one in before if one.participant_id in names["x"]] == [
        one for one in after if one.participant_id in names["x"]
    ]


def test_people_with_both_classes_exchange_their_own_labels() -> None:
    labels = {f"sub-{i}": ("untouched", "planted") for i in range(6)}
    fold = Fold(0, tuple(labels), (), ())
    after = with_swapped_labels(scans(labels), fold, CohortConfig(negative="untouched", positive="planted"), seed=1)
    firsts = [one.label for one in after if one.session_id == "ses-0"]
    assert sorted(firsts) == ["planted"] * 3 + ["untouched"] * 3


def three_classes(seed: int) -> tuple[list[str | None], list[str | None]]:
    labels = {f"sub-{i:02d}": (("CN", "MCI", "AD")[i % 3],) for i in range(18)}
    before = scans(labels)
    after = with_swapped_labels(before, Fold(0, tuple(labels), (), ()), CohortConfig(classes=("CN", "MCI", "AD")), seed)
    return [one.label for one in before], [one.label for one in after]


@pytest.mark.parametrize("seed", range(5))
def test_several_classes_change_places_until_new_and_true_ones_are_nearly_independent(seed: int) -> None:
    before, after = three_classes(seed)
    assert sorted(map(str, before)) == sorted(map(str, after))
    table = pd.crosstab(pd.Series(before), pd.Series(after))
    assert table.to_numpy().sum() == 18
    assert np.abs(table.to_numpy() - 2).max() <= 1  # two of each in each is independence


def test_seeds_give_other_labels() -> None:
    assert three_classes(1)[1] != three_classes(2)[1]


def test_numbers_change_places_between_people_and_keep_their_course() -> None:
    ages = {f"sub-{i:02d}": (f"{60 + 2.5 * i}", f"{61 + 2.5 * i}") for i in range(12)}
    before, names = scans(ages), tuple(ages)
    after = with_swapped_labels(before, Fold(0, names[:8], names[8:], ()), CohortConfig(target="age"), seed=1)
    old, new = (np.array([float(str(one.label)) for one in group]).reshape(12, 2) for group in (before, after))
    np.testing.assert_allclose(new[:, 1] - new[:, 0], 1.0)
    np.testing.assert_allclose(np.sort(new[:8].mean(1)), np.sort(old[:8].mean(1)))
    np.testing.assert_allclose(np.sort(new[8:].mean(1)), np.sort(old[8:].mean(1)))
    assert abs(np.corrcoef(old[:8].mean(1), new[:8].mean(1))[0, 1]) < 0.05


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    torch.manual_seed(0)
    model = FoundingCNN((12, 14, 12), channels=(2, 3), pools=(2, 2), hidden_units=4).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm3d):
            module.running_mean.fill_(0.3)
    spec = NetworkInput(2.0, None)
    return LoadedModel(model, _Shaped(spec), ("CN", "AD"), {})  # type: ignore[arg-type]


class _Shaped:
    """An input of a small grid."""

    def __init__(self, spec: NetworkInput) -> None:
        self.resolution_mm, self.box, self.shape, self.channels = spec.resolution_mm, None, (12, 14, 12), 1


def test_the_cascade_draws_the_last_layers_anew(loaded) -> None:
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    layers = layers_with_parameters(loaded.model)
    assert len(layers) == 6  # two convolutions, two normalisations, two linear layers
    for count in (1, 2, len(layers)):
        after = randomised(loaded, count, seed=5).model
        changed = {name for name, value in after.state_dict().items() if not torch.equal(value, before[name])}
        with_weights = {name for name in layers[-count:] if f"{name}.weight" in changed}
        assert {name.rpartition(".")[0] for name in changed} <= set(layers[-count:])
        assert layers[-1] in with_weights
        assert not any("running" in name for name in changed)
        assert not after.training
    assert all(torch.equal(value, before[name]) for name, value in loaded.model.state_dict().items())


def test_an_untrained_network_keeps_nothing(loaded) -> None:
    after = randomised(loaded, None, seed=5).model.state_dict()
    assert float(after["_stages.0.1.running_mean"].abs().max()) == 0
    again = randomised(loaded, None, seed=5).model.state_dict()
    assert all(torch.equal(after[name], again[name]) for name in after)
    assert not torch.equal(after["_stages.0.0.weight"], loaded.model.state_dict()["_stages.0.0.weight"])


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_an_untrained_bcos_network_is_calibrated_as_before_training(norm) -> None:
    """Uncalibrated, the logits of twelve layers at B = 2.5 are exactly 0 in float32, and so is every map."""
    settings = BcosSimpleConfig(channels=(4,) * 12, strides=(2, *[1] * 11), b=2.5, norm=norm)
    model = build_network(settings, (12, 14, 12), 2).eval()
    trained = LoadedModel(model, _Shaped(NetworkInput(2.0, None)), ("CN", "AD"), {})  # type: ignore[arg-type]
    volumes = torch.rand(3, 1, 12, 14, 12, generator=torch.Generator().manual_seed(1))
    before = randomised(trained, None, seed=5).model
    after = randomised(trained, None, 5, volumes).model
    again = randomised(trained, None, 5, volumes).model
    assert not after.training
    with torch.no_grad():
        assert float(before(volumes).abs().max()) < 1e-6
        answers = after(volumes)
    assert 0.05 < float(answers.square().mean().sqrt()) < 5
    assert torch.equal(answers, again(volumes))
    maps = attribute(after, volumes[:1], 1, Inherent(compare="nothing")).values
    assert float(maps.abs().max()) > 1e-6


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_inherent_map_of_a_trained_network_depends_on_every_layer_and_a_map_of_edges_on_none(seed) -> None:
    """Adebayo et al. 2018, on a network that has learned which corner is bright (S35)."""
    torch.manual_seed(seed)
    model = build_network(BcosSimpleConfig(channels=(6, 6, 6), strides=(2, 1, 1), norm="none"), (12, 14, 12), 2)
    volumes, targets = 0.5 * torch.rand(8, 1, 12, 14, 12), torch.arange(8) % 2
    volumes[targets == 1, :, 2:6, 3:7, 2:6] += 0.5
    take_constants(model, volumes)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(volumes), targets).backward()
        optimiser.step()
    assert (model.eval()(volumes).argmax(1) == targets).all()
    trained = LoadedModel(model, _Shaped(NetworkInput(2.0, None)), ("CN", "AD"), {})  # type: ignore[arg-type]
    networks = [model, *(randomised(trained, n, seed).model for n in range(1, len(layers_with_parameters(model)) + 1))]

    def inherent(network: torch.nn.Module) -> torch.Tensor:
        return attribute(network, volumes[1:2], 1, Inherent(compare="nothing")).values.flatten()

    def edges(_: torch.nn.Module) -> torch.Tensor:
        return torch.from_numpy(image_maps(volumes[1, 0].numpy(), None, 1, "sub-1")["edges"]).flatten()

    def passes(method) -> bool:
        maps = [method(network) for network in networks]
        changes = all(not torch.equal(before, after) for before, after in pairwise(maps))
        return changes and abs(float(torch.corrcoef(torch.stack([maps[0], maps[-1]]))[0, 1])) < 0.5

    assert passes(inherent)
    assert not passes(edges)


def test_maps_without_a_network() -> None:
    volume = np.zeros((4, 5, 6), np.float32)
    volume[2:] = 1
    maps = image_maps(volume, np.full_like(volume, 0.25), 1, "sub-1")
    assert list(maps) == list(IMAGE_MAPS)
    assert (maps[UNIFORM].min(), maps[UNIFORM].max(), maps[FAKE_CAM].sum()) == (1, 1, volume.size - 1)
    assert (maps[DIFFERENCE][0, 0, 0], maps[DIFFERENCE][3, 0, 0]) == (0.25, 0.75)
    assert np.argmax(maps["edges"][:, 2, 3]) in (1, 2)
    assert DIFFERENCE not in image_maps(volume, None, 1, "sub-1")
    assert not np.array_equal(maps["random"], image_maps(volume, None, 1, "sub-2")["random"])


def test_no_method_makes_a_map_with_the_name_of_an_image() -> None:
    """Else its verdict would be that of a map without a network."""
    assert not {map_label(name, {}) for name in METHODS} & set(IMAGE_MAPS)
