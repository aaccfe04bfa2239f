"""What networks see of a scan, and how far it lies from what they see of others: the measure `feature_distance`.

The features of a network are the input of its last layer. How they are compared was chosen before a scan was tried:

*With people whom the network has not learned from.* Those it was trained with lie closer together than others do, so a
fold is compared with its test part.

*With people of all classes, each class counting the same.* A network learns to move patients away from controls. By the
distance from controls alone everyone whom it calls a patient would be unlike, and the answer would be said twice. Kamoi
& Kobayashi (2020, arXiv:2003.00402, version 1) found a distance without classes as good in most cases.

*One feature at a time.* A test part of some 30 people holds no covariance of 128 features. The distance is the mean
over features of the standardised difference, as that of regions is (`mean_distance`).

*Fold by fold.* The features of two networks have nothing in common, so distances are averaged, not features. A control
is measured by the networks of the one fold that tests it, against the others of this fold. A new scan is measured by
all networks, and the mean of their distances has the expectation of one, but less spread: it is called unlike a little
more rarely than the controls say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatlas.pipeline.attribution.network_view import exact_float32
from heatlas.pipeline.cohort.people.persons import known_among, same_person
from heatlas.pipeline.cohort.people.splits import Split, known_to_network
from heatlas.pipeline.cohort.people.tasks import Task
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.models.contract import StagedModel, members_of
from heatlas.pipeline.models.inputs import NetworkInput, read_channels
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.registration.quality.likeness import Norm, mean_distance, norm_of_features
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.host import kept_memory, on_host
from heatlas.pipeline.run.work.seeds import derived_seed

Features = Mapping[str, NDArray[np.float64]]
"""By network: (F,) of one scan, or (people, F)."""
FEATURES = "features-"
"""How names of networks begin here: ``features-FOLD-NUMBER``, numbers from 1."""
MOST_FEATURES = 4096
FEWEST_UNSEEN, MOST_UNSEEN = 5, 40
"""People that a fold is compared with; with fewer it is left out, and more cost time and change little."""


@dataclass(frozen=True)
class UnseenPeople:
    """What the networks of one fold see of its test part.

    `classes`: of each person; all the same where a number is predicted. `controls`: who is one.
    """

    features: Features
    classes: Sequence[str]
    controls: Sequence[bool]

    @property
    def norms(self) -> dict[str, Norm]:
        return {name: norm_of_features(values, self.classes) for name, values in self.features.items()}

    @property
    def distances(self) -> list[float]:
        """`feature_distance` of each person from the others."""
        return [self._distance(row) for row in range(len(self.classes))]

    def _distance(self, row: int) -> float:
        others = [*self.classes[:row], *self.classes[row + 1 :]]
        norms = {name: norm_of_features(np.delete(values, row, 0), others) for name, values in self.features.items()}
        return feature_distance({name: values[row] for name, values in self.features.items()}, norms)


def feature_distance(features: Features, norms: Mapping[str, Norm]) -> float:
    """Mean of `mean_distance` over the networks that a scan and a norm are known of; NaN without one."""
    found = [
        mean_distance(features[name], norm)
        for name, norm in norms.items()
        if name in features and features[name].shape == norm.middle.shape
    ]
    known = [distance for distance in found if np.isfinite(distance)]
    return float(np.mean(known)) if known else float("nan")


def last_layer(network: nn.Module) -> nn.Linear | None:
    """The linear layer that makes the output of a network from its features.

    None where there is none; of one stage, as ridge regression, where nothing but the image is before it; and of more
    than `MOST_FEATURES`, which are places in the image rather than features.
    """
    stages = network.stages if isinstance(network, StagedModel) else ()
    layers = [one for one in stages[-1].modules() if isinstance(one, nn.Linear)] if len(stages) > 1 else []
    return layers[-1] if layers and layers[-1].in_features <= MOST_FEATURES else None


def named_members(loaded: LoadedModel) -> dict[str, nn.Module]:
    """The networks of a fold that have features, by name."""
    members = enumerate(members_of(loaded.model), 1)
    return {f"{FEATURES}{loaded.description['fold']}-{n}": one for n, one in members if last_layer(one) is not None}


@kept_memory()
@torch.inference_mode()
def features_of(
    networks: Mapping[str, nn.Module], files: ScanFiles, spec: NetworkInput, device: torch.device
) -> dict[str, NDArray[np.float64]]:
    """Features of a registered scan in networks on `device`."""
    if not networks:
        return {}
    volume = torch.from_numpy(read_channels(files, spec))[None].to(device)
    with exact_float32(device):
        found = {name: _before_last(network, volume) for name, network in networks.items()}
    return {name: values for name, values in found.items() if np.isfinite(values).all()}


def _before_last(network: nn.Module, volume: Tensor) -> NDArray[np.float64]:
    kept: list[Tensor] = []
    layer = last_layer(network)
    assert layer is not None
    hook = layer.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    try:
        network(volume)
    finally:
        hook.remove()
    return np.asarray(on_host(torch.cat(kept).flatten()).double().numpy())


@dataclass(frozen=True)
class UnseenScan:
    """The first registered scan of someone whom a fold tests.

    `group`: its class; empty where a number is predicted. `control`: whether all scans of the person are of controls.
    """

    scan: Scan
    files: ScanFiles
    group: str
    control: bool


def unseen_scans(run: RunLayout, task: Task, resolution_mm: float, seed: int) -> dict[int, list[UnseenScan]]:
    """One scan of each of at most `MOST_UNSEEN` people of each fold's test part.

    The order of people is drawn by a seed, as that of the controls whom scans are explained with.
    """
    labelled, split = ScanTable.read(run).labelled, Split.read(run)
    found: dict[int, list[UnseenScan]] = {fold.index: [] for fold in split.folds}
    people = same_person(scan.participant_id for scan in labelled)
    for _, names in sorted(people.items(), key=lambda one: derived_seed(seed, "reference", one[0])):
        scans = sorted((scan for scan in labelled if scan.participant_id in names), key=lambda scan: scan.place[1:])
        control = all(task.is_control(scan.label) for scan in scans)
        for scan in scans:
            fold = split.fold_of_test(scan.participant_id)
            files = run.scan(scan.participant_id, scan.session_id, resolution_mm)
            if fold is not None and all(path.is_file() for path in files.images):
                group = "" if task.is_number else str(scan.label)
                found[fold.index].append(UnseenScan(scan, files, group, control))
                break
    return {index: scans[:MOST_UNSEEN] for index, scans in found.items()}


def unseen_people(
    networks: Iterable[LoadedModel], unseen: Mapping[int, Sequence[UnseenScan]], where: str, device: torch.device
) -> list[UnseenPeople]:
    """What the networks of each fold see of people whom they, or their backbones, have not learned from.

    `networks`: of the run in the folder `where`, on `device`. `unseen`: of `unseen_scans`.
    """
    found = []
    for loaded in networks:
        people, members = unseen[int(loaded.description["fold"])], named_members(loaded)
        known = known_among([one.scan.participant_id for one in people], known_to_network(loaded.description, where))
        people = [one for one in people if one.scan.participant_id not in known]
        if len(people) < FEWEST_UNSEEN or not members:
            continue
        seen = [features_of(members, one.files, loaded.input, device) for one in people]
        known_of_all = [name for name in members if all(name in one for one in seen)]
        features = {name: np.stack([one[name] for one in seen]) for name in known_of_all}
        found.append(UnseenPeople(features, [one.group for one in people], [one.control for one in people]))
    return found
