"""Networks that a map should tell from the true one: trained on swapped labels, partly randomised, untrained.

*Cascading randomisation* (Adebayo et al. 2018): the parameters of the last layers are drawn anew, then those of more
and more layers down to the input. A map that follows the parameters changes; one that is made by the image does not.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls.labels import with_swapped_labels
from heatlas.pipeline.models.ensembles import members_of
from heatlas.pipeline.models.families.probes.body import knows_labels
from heatlas.pipeline.models.families.probes.settings import ProbeConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Job
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.batch_statistics import take_constants
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.pipeline.training.stage import fold_job, registered_versions

REAL, UNTRAINED, NO_NETWORK = "real", "untrained", "none"
SHUFFLED, CASCADE = "shuffled", "cascade"
"""Begin the names of networks trained on swapped labels, and of networks with some layers drawn anew."""


def shuffled_name(number: int) -> str:
    """Name of the networks (one per fold) of one swap of labels, counted from 1."""
    return f"{SHUFFLED}-{number}"


def cascade_name(randomised: int) -> str:
    """Name of networks whose last layers are drawn anew."""
    return f"{CASCADE}-{randomised}"


def networks_of(cohort: JudgedCohort, name: str) -> EvaluationLayout:
    """The layout whose folds are the networks of a cohort: the true ones, or those of one swap of labels."""
    if name == REAL:
        return cohort.layout
    return dataclasses.replace(cohort.layout, networks=f"{cohort.name}_{name}")


def shuffled_jobs(cohort: JudgedCohort, numbers: Sequence[int], digests: DigestCache) -> list[Job]:
    """Trainings on swapped labels, with the recipe of the run; one per swap and fold that has a true network.

    Parameters
    ----------
    numbers : sequence of int
        Numbers of the swaps, from 1.

    Raises
    ------
    BadInputError
        If a training part has too few people of a class to exchange labels.
    """
    jobs, scans = [], cohort.labelled
    versions = registered_versions(cohort.layout, scans, cohort.config, digests)
    for number in numbers:
        name = shuffled_name(number)
        seed = derived_seed(cohort.config.seed, "evaluation", name)
        config = shuffled_config(cohort.config, seed)
        for fold in cohort.tested_folds:
            members = {*fold.train, *fold.validation, *fold.test}
            own = [scan for scan in scans if scan.participant_id in members]
            changed = with_swapped_labels(own, fold, config.cohort, seed)
            jobs.append(
                fold_job(
                    networks_of(cohort, name), fold, changed, configured_input(config), config, versions,
                    prefix=f"{cohort.name}_{name}_",
                )
            )  # fmt: skip
    return jobs


def shuffled_config(config: Config, seed: int) -> Config:
    """The recipe of a run, marked as a control run, with a seed of its own; one training per fold.

    A probe on networks that know the true labels is trained as a whole, from fresh weights.
    """
    cohort = dataclasses.replace(config.cohort, shuffle_labels=True)
    alone = without_other_runs(config)  # which would know the true labels
    training = dataclasses.replace(alone.training, repeats=1)
    model = alone.model
    if isinstance(model, ProbeConfig) and knows_labels(model):
        model = dataclasses.replace(model, train_backbone=True)
    return dataclasses.replace(alone, cohort=cohort, training=training, model=model, seed=seed)


def layers_with_parameters(model: nn.Module) -> list[str]:
    """Names of the modules with parameters of their own, from input to head; in an ensemble, of each member."""
    first = members_of(model)[0]
    return [name for name, module in first.named_modules() if next(module.parameters(recurse=False), None) is not None]


def randomised(loaded: LoadedModel, layers: int | None, seed: int, volumes: Tensor | None = None) -> LoadedModel:
    """A copy of a network with parameters drawn anew.

    Parameters
    ----------
    layers : int or None
        How many layers with parameters, counted from the head, are drawn anew. Buffers, such as the statistics of
        batch normalisation, stay. None: an untrained network, buffers included.
    seed : int
    volumes : Tensor, optional
        (B, 1, D, H, W), from which an untrained network takes the constants that training would start from. Without
        them the signals of a deep B-cos network vanish, and its map would be no null but nothing.
    """
    model = copy.deepcopy(loaded.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        members = members_of(model)
        fresh = [
            build_network(loaded.settings, loaded.input.shape, len(loaded.classes), loaded.input.channels)
            for _ in members
        ]
    names = layers_with_parameters(model)[::-1][:layers]
    for member, drawn in zip(members, fresh, strict=True):
        if layers is None:
            member.load_state_dict(drawn.state_dict())
            if volumes is not None:
                take_constants(member, volumes)
            continue
        own = dict(drawn.named_parameters())
        with torch.no_grad():
            for name, parameter in member.named_parameters():
                if name.rpartition(".")[0] in names:
                    parameter.copy_(own[name])
    return dataclasses.replace(loaded, model=model.eval())
