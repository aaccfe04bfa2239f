"""Distance in what networks see: by brute force, in a planted change that only they see, and as often as chance."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining import features, likeness
from heatlas.pipeline.explaining.features import (
    UnseenPeople,
    feature_distance,
    features_of,
    last_layer,
    named_members,
    unseen_people,
    unseen_scans,
)
from heatlas.pipeline.explaining.likeness import (
    LIKENESS_TABLE,
    Measured,
    likeness_of_controls,
    read_reference,
    write_likeness,
    write_reference,
)
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.registration.quality import likeness as quality
from heatlas.pipeline.registration.quality.likeness import LIKENESS as MEASURES
from heatlas.pipeline.registration.quality.likeness import Anatomy, intensity_measures, place_among, region_means
from heatlas.pipeline.run.layout.bundle_layout import BundleLayout
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.training.given import networks_of_run, split_of_networks
from tests.attribution.every_method import SMALL, trained
from tests.training.run_of_folds import CONFIG, Inline, labelled_scans, save_untrained, write_registered

CPU = torch.device("cpu")
MEASURE = next(one for one in MEASURES if one.column == "feature_distance")


@pytest.mark.parametrize("family", SMALL)
def test_features_are_what_the_last_layer_makes_the_output_from(family: str) -> None:
    network, volume = trained(family)
    layer = last_layer(network)

    if layer is None:
        assert family == "linear" or family.startswith(("bcos", "coda"))
        return
    with torch.no_grad():
        seen = torch.tensor(features._before_last(network, volume))
        logits = layer.weight.double() @ seen + layer.bias.double()
        torch.testing.assert_close(logits, network(volume)[0].double(), rtol=1e-4, atol=1e-5)  # float32 against float64


def _brute_force(scan: np.ndarray, people: np.ndarray, classes: list[str]) -> float:
    """Mean over features of |x - middle| / spread, by loops."""
    groups = sorted(set(classes))
    middles, variances = [], []
    for j in range(people.shape[1]):
        of_class = [[people[i, j] for i in range(len(people)) if classes[i] == group] for group in groups]
        middle = sum(sum(values) / len(values) for values in of_class) / len(groups)
        squares = [sum((value - middle) ** 2 for value in values) / len(values) for values in of_class]
        middles.append(middle)
        variances.append(sum(squares) / len(groups))
    lowest = 0.5 * (sum(variances) / len(variances)) ** 0.5
    spreads = [max(variance**0.5, lowest) for variance in variances]
    return float(np.mean([abs(scan[j] - middles[j]) / spreads[j] for j in range(len(scan))]))


def test_the_distance_is_that_of_brute_force_averaged_over_networks() -> None:
    draw, classes = np.random.default_rng(1), ["CN"] * 5 + ["AD"] * 2
    seen = {name: np.maximum(draw.normal(size=(7, width)), 0) for name, width in (("a", 4), ("b", 9))}
    seen["b"][:, 3] = 0  # a silent unit
    scan = {name: draw.normal(size=values.shape[1]) for name, values in seen.items()}
    people = UnseenPeople(seen, classes, [name == "CN" for name in classes])

    wanted = np.mean([_brute_force(scan[name], seen[name], classes) for name in seen])
    assert feature_distance(scan, people.norms) == pytest.approx(wanted, rel=1e-12)
    assert feature_distance({"b": scan["b"]}, people.norms) == pytest.approx(
        _brute_force(scan["b"], seen["b"], classes)
    )
    assert np.isnan(feature_distance({}, people.norms))
    others = [np.delete(np.arange(7), row) for row in range(7)]
    wanted_of_people = [
        np.mean([_brute_force(values[row], values[rest], [classes[i] for i in rest]) for values in seen.values()])
        for row, rest in enumerate(others)
    ]
    assert people.distances == pytest.approx(wanted_of_people, rel=1e-12)


PEOPLE = tuple(f"sub-{number}" for number in range(1, 9))
HALVES = Split((Fold(0, PEOPLE[4:], (), PEOPLE[:4]), Fold(1, PEOPLE[:4], (), PEOPLE[4:])))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """Two folds with four people each whom their network has not learned from; so few are enough here."""
    for module, name in ((features, "FEWEST_UNSEEN"), (likeness, "FEWEST"), (quality, "FEWEST")):
        monkeypatch.setattr(module, name, 4)
    run = RunLayout(tmp_path / "run")
    write_registered(run)
    ScanTable(tuple(labelled_scans())).write(run)
    HALVES.write(run)
    torch.manual_seed(3)
    for fold in HALVES.folds:
        save_untrained(run.root, CONFIG, fold)
        description = run.fold(fold.index).description
        write_json(description, {**json.loads(description.read_text()), "fold": fold.index})
    return run


def test_only_people_whom_a_network_has_not_learned_from_are_compared_with(run: RunLayout) -> None:
    networks, where = networks_of_run(str(run.root)), str(run.root)
    unseen = unseen_scans(run, task_of(CONFIG.cohort), 4.0, seed=5)
    found = unseen_people(networks, unseen, where, CPU)

    people = [sorted((one.scan.scan_id, one.group, one.control) for one in scans) for scans in unseen.values()]
    assert people == [
        [("I1", "CN", True), ("I2", "AD", False), ("I3", "CN", True), ("I4", "AD", False)],
        [("I5", "CN", True), ("I6", "AD", False), ("I7", "CN", True), ("I8", "AD", False)],
    ]
    for index, (loaded, one) in enumerate(zip(networks, found, strict=True)):
        (name,) = one.features
        assert name == f"features-{index}-1"
        wanted = np.stack([_hidden_units(loaded, scan.files) for scan in unseen[index]])
        np.testing.assert_allclose(one.features[name], wanted, rtol=1e-5, atol=1e-6)  # float32 in another order
    networks[0].description["participants"]["train"].append("sub-1")
    assert [one.controls for one in unseen_people(networks, unseen, where, CPU)] == [found[1].controls]


def test_a_new_scan_is_measured_by_all_networks_of_a_run_and_of_its_export_alike(run: RunLayout) -> None:
    config = replace(CONFIG, training=replace(CONFIG.training, networks_of=str(run.root), device="cpu"))
    new, target = RunLayout(run.root.parent / "new"), BundleLayout(run.root.parent / "export")
    stranger = Scan("sub-9", "ses-M00", "I9", None)
    shutil.copytree(run.scan("sub-3", "ses-M00", 4.0).folder, new.scan("sub-9", "ses-M00", 4.0).folder)
    for path in new.root.rglob("*sub-3*"):
        path.rename(path.with_name(path.name.replace("sub-3", "sub-9")))
    split = split_of_networks(str(run.root))
    work = Work(new, new.root, config, (stranger,), split, Inline(), DigestCache(new.digests))
    networks = networks_of_run(str(run.root))

    assert write_likeness(work, [stranger])
    table = LIKENESS_TABLE.read(new).set_index("measure")
    controls = [one for one in labelled_scans() if one.label == "CN"]
    target.likeness.parent.mkdir(parents=True)
    write_reference(run, controls, networks, CONFIG, target)

    scans = unseen_scans(run, task_of(CONFIG.cohort), 4.0, CONFIG.seed)
    files, distances = new.scan("sub-9", "ses-M00", 4.0), []
    for loaded, fold in zip(networks, scans.values(), strict=True):
        people = np.stack([_hidden_units(loaded, one.files) for one in fold])
        distances.append(_brute_force(_hidden_units(loaded, files), people, [one.group for one in fold]))
    assert table.loc["feature_distance", "value"] == pytest.approx(np.mean(distances), rel=1e-4)
    assert table.loc["feature_distance", "controls"] == 4
    members = {name: one for loaded in networks for name, one in named_members(loaded).items()}
    measured = Measured({}, np.zeros(1), None, features_of(members, files, networks[0].input, CPU))
    (place,) = read_reference(target).places(measured)
    of_run = table.loc["feature_distance", ["value", "median"]].astype(float).tolist()
    assert [place.value, place.median] == pytest.approx(of_run, rel=1e-3)  # five digits of middles far from 0
    assert place.distance == pytest.approx(table.loc["feature_distance", "distance"], abs=0.01)  # their difference
    assert not write_likeness(work, [stranger])  # nothing has changed


def _hidden_units(loaded: LoadedModel, files: ScanFiles) -> np.ndarray:
    """The features of the founding network, layer by layer."""
    volume = torch.from_numpy(read_channels(files, loaded.input))[None]
    with torch.no_grad():
        for stage in loaded.model.stages[:3]:
            volume = stage(volume)
        layer = loaded.model.stages[3][2]
        units = torch.relu(layer.weight.double() @ volume.flatten().double() + layer.bias.double())
        return np.asarray(units.numpy())


SIDE, N_PEOPLE = 16, 15
CHECKS = (-1.0) ** np.indices((SIDE,) * 3).sum(axis=0)
PLANTED = 0.3
"""Standard deviations of the noise of a voxel: nothing for the measures of the image, much for the sum over all."""


def _anatomy() -> Anatomy:
    x, y, z = np.indices((SIDE,) * 3) - (SIDE - 1) / 2
    radius = np.sqrt(x**2 + y**2 + z**2)
    template = np.select([radius < 3, radius < 5, radius < 7], [0.2, 1.0, 0.6], 0.0)
    return Anatomy(template, radius < 7, np.where(radius < 7, 1 + (x > 0) + 2 * (y > 0) + 4 * (z > 0), 0))


ANATOMY = _anatomy()


class _Eye(nn.Module):
    """Sums over the image: of it, of its left half, and with the signs of a chessboard, of either sign."""

    def __init__(self) -> None:
        super().__init__()
        half = np.where(np.arange(SIDE) < SIDE // 2, 1.0, 0.0)[:, None, None] * np.ones((SIDE,) * 3)
        self.weights = torch.tensor(np.stack([CHECKS, half, -CHECKS, np.ones((SIDE,) * 3)]))

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.einsum("bcxyz,kxyz->bk", volumes, self.weights))


def _network() -> StagedModel:
    return StagedModel([_Eye(), nn.Linear(4, 2).double()])


def _image(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.05, (SIDE,) * 3)
    return np.where(ANATOMY.mask, 1 + ANATOMY.template + noise, 0)


def _measured(image: np.ndarray, network: StagedModel, fold: int) -> Measured:
    with torch.inference_mode():
        seen = features._before_last(network, torch.tensor(image)[None, None])
    values = intensity_measures(image, ANATOMY.mask, ANATOMY)
    return Measured(values, region_means(image, ANATOMY.mask, ANATOMY), None, {f"features-{fold}-1": seen})


def test_a_change_that_only_the_networks_see_is_unlike_and_its_twin_is_not() -> None:
    network = _network()
    controls = [_measured(_image(seed), network, 0) for seed in range(N_PEOPLE)]
    seen = {"features-0-1": np.stack([one.features["features-0-1"] for one in controls])}
    reference = likeness_of_controls(controls, [UnseenPeople(seen, ["CN"] * N_PEOPLE, [True] * N_PEOPLE)])

    for seed in range(100, 110):
        twin = _image(seed)
        changed = np.where(ANATOMY.mask, twin + PLANTED * 0.05 * CHECKS, 0)
        unlike = [
            [place.measure for place in reference.places(_measured(one, network, 0)) if place.unlike]
            for one in (twin, changed)
        ]
        assert unlike == [[], ["feature_distance"]]


FOLDS, OF_CLASS, UNITS, COHORTS = 3, 6, 12, 300


def _seen(people: np.ndarray, fold: int, cohort: int) -> np.ndarray:
    """A layer of a network of a fold: ReLU of random sums of what people are."""
    draw = np.random.default_rng([fold, cohort])
    return np.maximum(people @ draw.normal(size=(people.shape[1], UNITS)) + draw.normal(size=UNITS), 0)


def test_new_people_lie_beyond_all_controls_as_rarely_as_chance_has_it() -> None:
    """Of either class: 1 of m + 1 with one fold, and no more often with all."""
    beyond = {"one": 0, "all": 0, "patients": 0}
    for cohort in range(COHORTS):
        draw = np.random.default_rng([7, cohort])
        shift = np.array([2.0, 0, 0, 0])
        classes = ["CN"] * OF_CLASS + ["AD"] * OF_CLASS
        folds = []
        for fold in range(FOLDS):
            people = draw.normal(size=(2 * OF_CLASS, 4)) + shift * (np.array(classes) == "AD")[:, None]
            seen = {f"features-{fold}-1": _seen(people, fold, cohort)}
            folds.append(UnseenPeople(seen, classes, [name == "CN" for name in classes]))
        reference = likeness_of_controls([Measured({}, np.zeros(1), None)] * (FOLDS * OF_CLASS), folds)
        new = draw.normal(size=(2, 4)) + shift * np.array([[0], [1]])
        one, every = (
            [{f"features-{k}-1": _seen(row[None], k, cohort)[0] for k in range(n)} for row in new] for n in (1, FOLDS)
        )
        values = {"one": one[0], "all": every[0], "patients": one[1]}
        for name, seen in values.items():
            distance = feature_distance(seen, reference.features)
            place = place_among(distance, reference.values["feature_distance"], MEASURE)
            assert place is not None
            beyond[name] += place.beyond == 0
    chance = COHORTS / (FOLDS * OF_CLASS + 1)  # 15.8
    assert abs(beyond["one"] - chance) < 3 * chance**0.5
    assert beyond["all"] < chance + 3 * chance**0.5
    assert beyond["patients"] < chance + 3 * chance**0.5
