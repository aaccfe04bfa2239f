"""``--parts consensus``: the same maps by the run's own networks, other seeds, fewer epochs and other families.

A set has one network per fold of the run, so that each person is explained by networks that never saw them.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from heatlas.pipeline.evaluation.bench.judging import CohortMaps, is_paired, map_jobs, maps_of, participant_densities
from heatlas.pipeline.evaluation.bench.part import Bench, Part, Shown, few_methods
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import REAL, networks_of
from heatlas.pipeline.evaluation.scores.accuracy import scored
from heatlas.pipeline.evaluation.variants import Variant, trained
from heatlas.pipeline.explaining.explained_scan import Explanation
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
from heatlas.pipeline.run.work.jobs import Outcome, run_jobs
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.studies.consensus.agreement import (
    CONSENSUS_TABLE,
    CONSENSUS_TABLES,
    EPOCHS,
    FAMILY,
    NETWORKS_TABLE,
    OWN,
    REGIONS_TABLE,
    SEED,
    Evidence,
    better_line,
    network_rows,
    pair_rows,
    region_rows,
)

log = logging.getLogger("heatlas")
STAGE = "consensus-maps"
FURTHER_SEEDS = 2
"""Further trainings of each fold; one with ``--quick``."""
QUICK_EPOCHS = (1, 4)


@dataclass(frozen=True)
class Networks:
    """One set of networks, with whose folds and recipe they are.

    `name`: ``run``, ``repeat-2``, ``epochs-4``, ``family-resnet10``. `repeat`: which training of the fold: further
    seeds are those that ``[training] repeats`` would take. `made`: whether the run has trained them.
    """

    name: str
    kind: str
    layout: EvaluationLayout
    config: Config
    repeat: int = 1
    made: bool = False

    def explaining(self, cohort: JudgedCohort) -> JudgedCohort:
        return dataclasses.replace(cohort, name=f"{cohort.name}_{self.name}", layout=self.layout, config=self.config)

    @property
    def variant(self) -> Variant:
        return Variant(self.layout.networks, self.config, repeat=self.repeat)


def family_settings(text: str, config: Config) -> ModelConfig:
    """Settings of a family as typed: ``resnet10`` or ``resnet10:width=0.25:stem_stride=4``."""
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


def agree(
    cohort: JudgedCohort,
    explanations_of: Callable[[Config], tuple[Explanation, ...]],
    seeds: int,
    families: Sequence[str],
    quick: bool,
    executor: Executor,
    digests: DigestCache,
) -> list[Outcome]:
    """Train the networks that are missing, explain every scan by every set, and write the tables.

    `explanations_of`: what is asked of networks with a recipe; methods not defined for its family are left out.
    `seeds`, `families`, `quick`: as of `sets_of_networks`.
    """
    sets = sets_of_networks(cohort, seeds, families, quick)
    map_jobs(sets[0].explaining(cohort), explanations_of(cohort.config), digests, STAGE)  # refuses a lack of controls
    variants = [networks.variant for networks in sets if not networks.made]
    further = trained(cohort, variants, executor, digests, "training further networks")
    whole = []
    for networks in sets:
        if networks.made or len(further.jobs[networks.variant.name]) == len(cohort.tested_folds):
            whole.append(networks)
        else:
            failures = cohort.layout.failures
            log.warning("Consensus: %s is left out, since a training failed; see %s", networks.name, failures)
    asked = {networks.name: explanations_of(networks.config) for networks in whole}
    maps = [map_jobs(networks.explaining(cohort), asked[networks.name], digests, STAGE) for networks in whole]
    explained = run_jobs(cohort.layout, [job for of_set in maps for job in of_set], executor, "maps of all networks")
    evidence: dict[str, list[Evidence]] = {}
    rest: Sequence[Outcome] = explained
    for networks, of_set in zip(whole, maps, strict=True):
        outcomes, rest = rest[: len(of_set)], rest[len(of_set) :]
        left, rows = maps_of(networks.explaining(cohort), asked[networks.name], outcomes)
        for name in rows.methods:
            evidence.setdefault(name, []).append(_evidence(networks, left, rows, name))
    _write(cohort, evidence)
    return further.outcomes + explained


def _evidence(networks: Networks, cohort: JudgedCohort, rows: CohortMaps, name: str) -> Evidence:
    of_map = rows.scores[(rows.scores["network"] == REAL) & (rows.scores["map"] == name)].set_index("scan_id")
    margin = of_map.loc[[scan.scan_id for scan in cohort.scans], "logit"].to_numpy(float)
    once = scored(margin, cohort.people, np.ones((1, len(margin))))
    accuracy = {key: value.value for key, value in once.items()}
    table = participant_densities(cohort, rows, name)
    return Evidence(networks.name, networks.kind, table, is_paired(cohort), accuracy, int(of_map["undefined"].sum()))


def _write(cohort: JudgedCohort, evidence: dict[str, list[Evidence]]) -> None:
    planted, seed = cohort.truth.groups if cohort.truth else (), cohort.config.seed
    pairs, networks, regions = [], [], []
    log.info("Do better classifiers give better evidence?")
    for name, found in evidence.items():
        identity = {"cohort": cohort.name, "map": name}
        pairs += [identity | row for row in pair_rows(found, seed)]
        of_map = [identity | row for row in network_rows(found, planted)]
        networks += of_map
        regions += [identity | row for row in region_rows(found, planted)]
        log.info("%s", better_line(name, NETWORKS_TABLE.frame(of_map), seed))
    counts = {"n_participants": "Int64", "n_planted": "Int64"}
    CONSENSUS_TABLE.write(cohort.layout, CONSENSUS_TABLE.frame(pairs).astype({"n_participants": "Int64"}))
    NETWORKS_TABLE.write(cohort.layout, NETWORKS_TABLE.frame(networks).astype(counts))
    REGIONS_TABLE.write(cohort.layout, REGIONS_TABLE.frame(regions).astype({"is_planted": "boolean"}))


def _consensus(bench: Bench, cohort: JudgedCohort) -> list[Outcome]:
    request = bench.request
    seeds, methods = 1 if request.quick else FURTHER_SEEDS, partial(few_methods, request)
    return agree(cohort, methods, seeds, request.families, request.quick, bench.executor, bench.digests)


PART = Part(
    "consensus", "networks of other seeds, epochs and families", tables=CONSENSUS_TABLES, run=_consensus, trains=True,
    require=lambda request, config: require_different(request.families, config),
    shown=(Shown("Do other networks show the same regions?", "consensus"),),
    options={"families": "only the consensus asks other families"},
)  # fmt: skip
