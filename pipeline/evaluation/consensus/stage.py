"""Consensus: whether networks of other seeds, epochs and families show the same regions, and better ones more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np

from heatlas.pipeline.evaluation.bench.judging import CohortMaps, is_paired, map_jobs, maps_of, participant_densities
from heatlas.pipeline.evaluation.bench.trainings import trained
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.consensus.networks import Networks, sets_of_networks, training_jobs
from heatlas.pipeline.evaluation.consensus.tables import (
    CONSENSUS_TABLE,
    NETWORKS_TABLE,
    REGIONS_TABLE,
    Evidence,
    better_line,
    network_rows,
    pair_rows,
    region_rows,
)
from heatlas.pipeline.evaluation.nulls import REAL
from heatlas.pipeline.evaluation.scores.accuracy import scored
from heatlas.pipeline.explaining.explanation import Explanation
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome, run_jobs

log = logging.getLogger("heatlas")
STAGE = "consensus-maps"


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

    Parameters
    ----------
    cohort : JudgedCohort
    explanations_of : callable
        What is asked of networks with a recipe; methods not defined for its family are left out.
    seeds, families, quick
        As of `pipeline.evaluation.consensus.networks.sets_of_networks`.

    Raises
    ------
    UsageError, BadInputError
        Before any training: for an unknown family or setting, or a fold without controls.
    """
    found = sets_of_networks(cohort, seeds, families, quick)
    map_jobs(found[0].explaining(cohort), explanations_of(cohort.config), digests, STAGE)  # refuses a lack of controls
    jobs = [training_jobs(cohort, one, digests) for one in found]
    digests.save()
    outcomes = trained(cohort.layout, [job for own in jobs for job in own], executor, "training further networks")
    failed = {one.job.unit for one in outcomes if not one.ok}
    whole = [one for one, own in zip(found, jobs, strict=True) if not any(job.unit in failed for job in own)]
    for one in found:
        if one not in whole:
            log.warning("Consensus: %s is left out, since a training failed; see %s", one.name, cohort.layout.failures)
    asked = {one.name: explanations_of(one.config) for one in whole}
    maps = [map_jobs(one.explaining(cohort), asked[one.name], digests, STAGE) for one in whole]
    explained = run_jobs(cohort.layout, [job for own in maps for job in own], executor, "maps of all networks")
    evidence: dict[str, list[Evidence]] = {}
    rest: Sequence[Outcome] = explained
    for one, own in zip(whole, maps, strict=True):
        now, rest = rest[: len(own)], rest[len(own) :]
        left, rows = maps_of(one.explaining(cohort), asked[one.name], now)
        for name in rows.methods:
            evidence.setdefault(name, []).append(_evidence(one, left, rows, name))
    _write(cohort, evidence)
    return outcomes + explained


def _evidence(networks: Networks, cohort: JudgedCohort, rows: CohortMaps, name: str) -> Evidence:
    """One map by one set of networks."""
    own = rows.scores[(rows.scores["network"] == REAL) & (rows.scores["map"] == name)].set_index("scan_id")
    margin = own.loc[[scan.scan_id for scan in cohort.scans], "logit"].to_numpy(float)
    once = scored(margin, cohort.people, np.ones((1, len(margin))))
    accuracy = {key: value.value for key, value in once.items()}
    table = participant_densities(cohort, rows, name)
    return Evidence(networks.name, networks.kind, table, is_paired(cohort), accuracy, int(own["undefined"].sum()))


def _write(cohort: JudgedCohort, evidence: dict[str, list[Evidence]]) -> None:
    """Write the tables, and print whether better classifiers give better evidence."""
    planted, seed = cohort.truth.groups if cohort.truth else (), cohort.config.seed
    pairs, networks, regions = [], [], []
    log.info("Do better classifiers give better evidence?")
    for name, found in evidence.items():
        identity = {"cohort": cohort.name, "map": name}
        pairs += [identity | row for row in pair_rows(found, seed)]
        own = [identity | row for row in network_rows(found, planted)]
        networks += own
        regions += [identity | row for row in region_rows(found, planted)]
        log.info("%s", better_line(name, NETWORKS_TABLE.frame(own), seed))
    counts = {"n_participants": "Int64", "n_planted": "Int64"}
    CONSENSUS_TABLE.write(cohort.layout, CONSENSUS_TABLE.frame(pairs).astype({"n_participants": "Int64"}))
    NETWORKS_TABLE.write(cohort.layout, NETWORKS_TABLE.frame(networks).astype(counts))
    REGIONS_TABLE.write(cohort.layout, REGIONS_TABLE.frame(regions).astype({"is_planted": "boolean"}))
