"""Nulls: what a score must tell from an explanation of the true network.

*Maps without any network* come from the image or from chance. *Networks that know nothing* are untrained, trained on
swapped labels, or partly randomised: in cascading randomisation (Adebayo et al. 2018) the parameters of the last layers
are drawn anew, then those of more and more layers down to the input. A map that follows the parameters changes; one
that is made by the image does not.

*Swapped labels* say nothing: half of the participants of each class change places with the other class. Several
classes, or numbers, change places among all participants of a part, by that of many random orders after which new and
true labels are least associated.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor, nn

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, Task, task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.variants import Variant
from heatlas.pipeline.models.contract import members_of
from heatlas.pipeline.models.families.registry import build_network, on_backbone
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.run.config.settings import CohortConfig, Config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.pipeline.training.steps import take_constants

Volume = NDArray[np.float32]

UNIFORM, RANDOM, FAKE_CAM, EDGES, DIFFERENCE = "uniform", "random", "fakeCamImage", "edges", "scanDifference"
IMAGE_MAPS: Mapping[str, str] = {
    UNIFORM: "1 everywhere",
    RANDOM: "Gaussian noise, drawn for each scan",
    FAKE_CAM: "1 everywhere, 0 in one corner (Poppi et al. 2021)",
    EDGES: "magnitude of the gradient of the image (Gaussian, 1 voxel)",
    DIFFERENCE: "|scan - mean of the training controls of its fold|, as the network sees them",
}
"""By name of the map, which is that of no method (`fake-cam` makes ``fakeCam``): what it is."""


def image_maps(volume: Volume, mean_control: Volume | None, seed: int, scan: str) -> dict[str, Volume]:
    """All of `IMAGE_MAPS` of one scan.

    `volume`: (D, H, W), what a network sees of the scan. `mean_control`: None where a fold has no training control:
    there is no difference map then. `scan`: names the stream of random numbers.
    """
    uniform = np.ones_like(volume)
    fake = uniform.copy()
    fake[0, 0, 0] = 0
    maps = {
        UNIFORM: uniform,
        RANDOM: generator(seed, "random-map", scan).standard_normal(volume.shape, dtype=np.float32),
        FAKE_CAM: fake,
        EDGES: ndimage.gaussian_gradient_magnitude(volume, 1.0).astype(np.float32),
    }
    return maps if mean_control is None else maps | {DIFFERENCE: np.abs(volume - mean_control)}


FEWEST = 2
"""People of a class in a training part: one person alone can only keep the label or change it, and labels that are all
changed say as much as true ones."""

ORDERS = 200
"""Random orders from which the least associated one is taken."""


def swapped(first: Sequence[str], second: Sequence[str], seed: int) -> frozenset[str]:
    """Participants of two classes that exchange their labels.

    As many of either class, so that classes keep their sizes. The number is the one that leaves no association of new
    and true labels, as far as whole people allow: n1 n2 / (n1 + n2). A plain permutation of few people often keeps
    some of it, and a network that learns it has learned something true.

    Examples
    --------
    >>> chosen = swapped(["a", "b", "c", "d"], ["e", "f", "g", "h"], seed=1)
    >>> len(chosen & set("abcd")), len(chosen & set("efgh"))
    (2, 2)
    """
    count = max(round(len(first) * len(second) / max(len(first) + len(second), 1)), min(len(first), len(second), 1))
    chosen: set[str] = set()
    for number, people in enumerate((sorted(first), sorted(second))):
        order = generator(seed, "swapped-labels", number).permutation(len(people))
        chosen |= {people[place] for place in order[:count]}
    return frozenset(chosen)


def with_swapped_labels(scans: Sequence[Scan], fold: Fold, config: CohortConfig, seed: int) -> tuple[Scan, ...]:
    """Scans of a fold with labels exchanged within its training part and within its validation part.

    Scans of the test part keep their labels, so that what the network says of them can be judged. Of people with scans
    of both classes, half exchange their own two labels. All names of a person change together. Where there are several
    classes, or numbers, see `least_associated`. Refuses a training part with fewer than `FEWEST` people of a class.
    """
    if task_of(config).kind.name != TWO_CLASSES:
        return _with_labels_of_others(scans, fold, task_of(config), seed)
    person = name_of_person(scan.participant_id for scan in scans)
    other = {config.negative: config.positive, config.positive: config.negative}
    changed: set[str] = set()
    for name, members in (("train", fold.train), ("validation", fold.validation)):
        part = [scan for scan in scans if scan.participant_id in members]
        positive = {person[scan.participant_id] for scan in part if scan.label == config.positive}
        negative = {person[scan.participant_id] for scan in part if scan.label == config.negative}
        if name == "train":
            _require_enough(fold, {config.negative: negative, config.positive: positive})
        part_seed = derived_seed(seed, name, fold.index)
        both = sorted(positive & negative)
        order = generator(part_seed, "both").permutation(len(both))
        changed |= {both[place] for place in order[: (len(both) + 1) // 2]}
        changed |= swapped(sorted(negative - positive), sorted(positive - negative), part_seed)
    return tuple(
        dataclasses.replace(scan, label=other[str(scan.label)]) if person[scan.participant_id] in changed else scan
        for scan in scans
    )


def least_associated(values: NDArray[np.float64], is_number: bool, seed: int) -> NDArray[np.intp]:
    """Order of people whose values say least of their own: person ``i`` takes the value of person ``order[i]``.

    The one of `ORDERS` random orders with the smallest correlation of numbers; for classes, with the smallest sum of
    squared differences between the table of new and true classes and that of independence.

    Examples
    --------
    >>> order = least_associated(np.repeat([0.0, 1.0, 2.0], 3), False, seed=1)
    >>> np.repeat([0, 1, 2], 3)[order].reshape(3, 3).tolist()  # each class gets one of each
    [[1, 0, 2], [2, 1, 0], [1, 2, 0]]
    """
    random = generator(seed, "least-associated")
    columns = values[:, None] if is_number else (values[:, None] == np.unique(values)).astype(float)
    centred = columns - columns.mean(axis=0)
    orders = [random.permutation(len(values)) for _ in range(ORDERS)]
    return min(orders, key=lambda order: float(((centred.T @ centred[order]) ** 2).sum()))


def _with_labels_of_others(scans: Sequence[Scan], fold: Fold, task: Task, seed: int) -> tuple[Scan, ...]:
    """Each person takes the highest class, or the mean number, of another; numbers keep their course."""
    person = name_of_person(scan.participant_id for scan in scans)
    targets: dict[str, list[float]] = {}
    for scan in scans:
        targets.setdefault(person[scan.participant_id], []).append(task.value(scan.label, scan.name))
    value = {name: float(task.kind.of_person(all_)) for name, all_ in targets.items()}
    new: dict[str, float] = {}
    for part, members in (("train", fold.train), ("validation", fold.validation)):
        people = sorted({person[scan.participant_id] for scan in scans if scan.participant_id in members})
        if not people:
            continue
        values = np.array([value[name] for name in people])
        if part == "train":
            _require_enough(fold, {label: [n for n in people if value[n] == k] for k, label in enumerate(task.classes)})
        order = least_associated(values, task.is_number, derived_seed(seed, part, fold.index))
        new |= {name: float(values[donor]) for name, donor in zip(people, order, strict=True)}
    relabelled = []
    for scan in scans:
        name = person[scan.participant_id]
        if name in new and task.is_number:
            course = task.value(scan.label, scan.name) - value[name]
            scan = dataclasses.replace(scan, label=repr(new[name] + course))
        elif name in new:
            scan = dataclasses.replace(scan, label=task.outputs[int(new[name])])
        relabelled.append(scan)
    return tuple(relabelled)


def _require_enough(fold: Fold, people: Mapping[str, Collection[str]]) -> None:
    for label, members in people.items():
        if len(members) < FEWEST:
            raise BadInputError(
                f"fold {fold.index}: its training part has {len(members)} of {label}, and shuffled labels need at "
                f"least {FEWEST} people of each class there: with one, every label would be changed, and labels that "
                "are all changed are not random. Use fewer folds, add participants, or leave this test out (--parts "
                "faithfulness)."
            )


REAL, UNTRAINED, NO_NETWORK = "real", "untrained", "none"
SHUFFLED, CASCADE = "shuffled", "cascade"
"""Begin the names of networks trained on swapped labels, and of networks with some layers drawn anew."""


def shuffled_name(number: int) -> str:
    return f"{SHUFFLED}-{number}"


def cascade_name(randomised: int) -> str:
    return f"{CASCADE}-{randomised}"


def networks_of(cohort: JudgedCohort, name: str) -> EvaluationLayout:
    """The layout whose folds are the networks of a cohort: the true ones, or those of one swap of labels."""
    if name == REAL:
        return cohort.layout
    return dataclasses.replace(cohort.layout, networks=f"{cohort.name}_{name}")


def shuffled_variants(cohort: JudgedCohort, numbers: Sequence[int]) -> list[Variant]:
    """Networks on swapped labels, with the recipe of the run: one variant per swap, numbered from 1.

    A fold whose training part has too few people of a class raises BadInputError when its scans are asked for.
    """

    def scans(seed: int, fold: Fold) -> Sequence[Scan]:
        members = {*fold.train, *fold.validation, *fold.test}
        of_fold = [scan for scan in cohort.labelled if scan.participant_id in members]
        return with_swapped_labels(of_fold, fold, cohort.config.cohort, seed)

    variants = []
    for name in map(shuffled_name, numbers):
        seed = derived_seed(cohort.config.seed, "evaluation", name)
        variants.append(Variant(f"{cohort.name}_{name}", shuffled_config(cohort.config, seed), partial(scans, seed)))
    return variants


def shuffled_config(config: Config, seed: int) -> Config:
    """The recipe of a run, marked as a control run, with a seed of its own; one training per fold.

    A network on a backbone that knows the true labels is trained as a whole, from fresh weights.
    """
    cohort = dataclasses.replace(config.cohort, shuffle_labels=True)
    alone = without_other_runs(config)  # which would know the true labels
    training = dataclasses.replace(alone.training, repeats=1)
    model = on_backbone(alone.model).for_shuffled(alone.model)
    return dataclasses.replace(alone, cohort=cohort, training=training, model=model, seed=seed)


def layers_with_parameters(model: nn.Module) -> list[str]:
    """Names of the modules with parameters of their own, from input to head; in an ensemble, of each member."""
    first = members_of(model)[0]
    return [name for name, module in first.named_modules() if next(module.parameters(recurse=False), None) is not None]


def randomised(loaded: LoadedModel, layers: int | None, seed: int, volumes: Tensor | None = None) -> LoadedModel:
    """A copy of a network with parameters drawn anew.

    `layers`: how many layers with parameters, counted from the head, are drawn anew. Buffers, such as the statistics of
    batch normalisation, stay. None: an untrained network, buffers included. `volumes`: (B, 1, D, H, W), from which an
    untrained network takes the constants that training would start from: without them the signals of a deep B-cos
    network vanish, and its map would be no null but nothing.
    """
    model = copy.deepcopy(loaded.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        members = members_of(model)
        given = loaded.settings, loaded.input.shape, len(loaded.classes), loaded.input.channels
        fresh = [build_network(*given) for _ in members]
    names = layers_with_parameters(model)[::-1][:layers]
    for member, drawn in zip(members, fresh, strict=True):
        if layers is None:
            member.load_state_dict(drawn.state_dict())
            if volumes is not None:
                take_constants(member, volumes)
            continue
        parameters = dict(drawn.named_parameters())
        with torch.no_grad():
            for name, parameter in member.named_parameters():
                if name.rpartition(".")[0] in names:
                    parameter.copy_(parameters[name])
    return dataclasses.replace(loaded, model=model.eval())
