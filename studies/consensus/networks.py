"""Sets of networks whose maps are compared: the run's own, other seeds, fewer epochs, other families.

A set has one network per fold of the run, so that each person is explained by networks that never saw them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import networks_of
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import network_settings
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import from_text
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Job
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.pipeline.training.stage import fold_job, registered_versions

OWN, SEED, EPOCHS, FAMILY = "own", "seed", "epochs", "family"
"""Kinds of sets: the run's own networks, and in what the others differ from them."""
QUICK_EPOCHS = (1, 4)


@dataclass(frozen=True)
class Networks:
    """One set of networks.

    `name`: ``run``, ``repeat-2``, ``epochs-4``, ``family-resnet10``. `kind`: `OWN`, `SEED`, `EPOCHS` or `FAMILY`.
    `layout`: whose folds they are. `config`: recipe. `repeat`: which training of the fold: further seeds are those that
    ``[training] repeats`` would take. `made`: whether the run has trained them.
    """

    name: str
    kind: str
    layout: EvaluationLayout
    config: Config
    repeat: int = 1
    made: bool = False

    def explaining(self, cohort: JudgedCohort) -> JudgedCohort:
        """The cohort as these networks explain it."""
        return dataclasses.replace(cohort, name=f"{cohort.name}_{self.name}", layout=self.layout, config=self.config)


def family_settings(text: str, config: Config) -> ModelConfig:
    """Settings of a family as typed: ``resnet10`` or ``resnet10:width=0.25:stem_stride=4``.

    Raises UsageError for an unknown family, setting or value, or a setting that is given twice. Raises BadInputError if
    the grid of the run is too small for it.
    """
    name, *texts = text.split(":")
    values: dict[str, object] = {"architecture": name.strip()}
    for one in texts:
        key, equals, value = one.partition("=")
        if not equals:
            raise UsageError(f"--families {text}: {one}: write NAME:SETTING=VALUE, as resnet10:width=0.25.")
        if key.strip() in values:
            raise UsageError(f"--families {text}: {key.strip()} is given twice.")
        values[key.strip()] = from_text(value.strip())
    settings = network_settings(config.model.shared | values, f"--families {text}")
    spec = configured_input(dataclasses.replace(config, model=settings))
    try:
        family_of(settings).require_fits(spec.shape, settings)
    except BadInputError as error:
        raise BadInputError(f"--families {text}: {error}") from error
    return settings


def require_different(families: Sequence[str], config: Config) -> None:
    """Refuse a family that is that of the run, or another one, in the same settings.

    Its networks have the same seeds, so they are the same networks, and would count twice.

    Raises UsageError, BadInputError for such a family, or as `family_settings`.
    """
    known = {config.model: "the networks of the run"}
    for text in dict.fromkeys(families):
        settings = family_settings(text, config)
        if settings in known:
            raise UsageError(f"--families {text}: the same network as {known[settings]}; leave it out.")
        known[settings] = f"--families {text}"


def powers_of_two(epochs: int) -> tuple[int, ...]:
    """1, 2, 4, ... below a number of epochs.

    Examples
    --------
    >>> powers_of_two(20)
    (1, 2, 4, 8, 16)
    """
    return tuple(2**power for power in range(max(epochs - 1, 0).bit_length()) if 2**power < epochs)


def sets_of_networks(cohort: JudgedCohort, seeds: int, families: Sequence[str], quick: bool) -> tuple[Networks, ...]:
    """The run's own networks first, then the others.

    `seeds`: further trainings of each fold; those that the run has are used, all of them. `families`: as of
    `family_settings`. `quick`: `QUICK_EPOCHS` instead of every power of two below the epochs of the run.
    """
    config, layout = cohort.config, cohort.layout
    found = [Networks("run", OWN, layout, config, made=True)]
    for repeat in range(2, max(seeds + 1, config.training.repeats) + 1):
        of_run = dataclasses.replace(layout, repeat=repeat)
        made = not layout.networks and all(of_run.fold(fold.index).weights.is_file() for fold in cohort.tested_folds)
        name = f"repeat-{repeat}"
        found.append(Networks(name, SEED, of_run if made else networks_of(cohort, name), config, repeat, made))
    longest = max(load_model(layout.fold(fold.index)).description["epochs"] for fold in cohort.tested_folds)
    for epochs in (one for one in powers_of_two(longest) if not quick or one in QUICK_EPOCHS):
        fewest = min(config.training.min_epochs, epochs)
        training = dataclasses.replace(config.training, max_epochs=epochs, min_epochs=fewest)
        name = f"epochs-{epochs}"
        shorter = dataclasses.replace(config, training=training)
        found.append(Networks(name, EPOCHS, networks_of(cohort, name), shorter))
    for text in dict.fromkeys(families):
        name = "family-" + re.sub(r"[^A-Za-z0-9.]+", "-", text)
        other = dataclasses.replace(without_other_runs(config), model=family_settings(text, config))
        found.append(Networks(name, FAMILY, networks_of(cohort, name), other))
    return tuple(found)


def training_jobs(cohort: JudgedCohort, networks: Networks, digests: DigestCache) -> list[Job]:
    """Trainings of a set, one per fold; none of those that the run has."""
    if networks.made:
        return []
    scans = cohort.labelled
    versions = registered_versions(cohort.layout, scans, networks.config, digests)
    spec = configured_input(networks.config)
    return [
        fold_job(
            networks.layout, fold, scans, spec, networks.config, versions, networks.repeat,
            prefix=f"{cohort.name}_{networks.name}_",
        )
        for fold in cohort.tested_folds
    ]  # fmt: skip
