"""``--parts representations``: what the frozen backbone of a run's probes knows of people it has not learned from."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.people.splits import people_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.part import Part, Shown
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.models.families.registry import code_of
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.tables import REMEDY
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.studies.long_tail import by_class, long_tailed_parts
from heatlas.studies.probes.records import ProbeConfig, with_body
from heatlas.studies.representations.probes import ALL, PROBES
from heatlas.studies.representations.table import (
    BACKBONE,
    REPRESENTATIONS_TABLE,
    SITE,
    STAGE,
    BackboneToJudge,
    write_judged,
)

log = logging.getLogger("heatlas")
RATIO, TEST_SHARE = 5.0, 0.4
"""Most people of the most frequent class per one of the rarest, and share of the rarest that is tested."""
FEWEST = 4
"""Participants of a class; smaller classes are left out."""


def judge_backbone(
    cohort: JudgedCohort, scans: Sequence[Scan], executor: Executor, digests: DigestCache
) -> list[Outcome]:
    """Measure the features of the backbone under a cohort's networks, and write ``representations.tsv``.

    Scans outside the contrast are among `scans`: they belong to rarer classes.
    """
    config, layout = cohort.config, cohort.layout
    settings, known = require_frozen(config), set[str]()
    for fold in cohort.tested_folds:
        description = layout.fold(fold.index).description
        known |= {*people_of(read_json(description, REMEDY), str(description), "backbone")}
    left = diagnosed(scans, frozenset(known))
    class_of = {scan.participant_id: str(scan.diagnosis) for scan in left}
    sizes = list(map(len, by_class(class_of).values()))
    if len(sizes) < 2:
        raise BadInputError(
            f"representations: fewer than two classes have {FEWEST} people whom the backbone has not learned from."
        )
    parts = long_tailed_parts(class_of, min(RATIO, sizes[0] / sizes[-1]), TEST_SHARE, seed=config.seed)
    resolution = config.registration.resolution_mm
    files = tuple(layout.scan(scan.participant_id, scan.session_id, resolution) for scan in left)
    networks = tuple(layout.fold(fold.index) for fold in cohort.tested_folds)
    task = BackboneToJudge(tuple(left), files, networks, parts, configured_input(config), config)
    inputs = {f"network {place}": digests.digest(one.weights) for place, one in enumerate(networks)}
    for scan, one in zip(left, files, strict=True):
        inputs[scan.name] = f"{digests.joined(one.seen)} {scan.diagnosis} {scan.site}"
    digests.save()
    outputs = dict(zip(("table", "columns"), REPRESENTATIONS_TABLE.files(layout), strict=True))
    key = unit_key(inputs, [with_body(settings), config.seed], write_judged, *code_of(settings))
    job = Job(STAGE, BACKBONE, key, outputs, write_judged, (task,))
    outcomes = run_jobs(layout, [job], executor, "representations")
    if outcomes[0].ok:
        _log_shares(REPRESENTATIONS_TABLE.read(layout))
    return outcomes


def require_frozen(config: Config) -> ProbeConfig:
    """The settings of probes on a frozen backbone; networks that learned from labels are refused."""
    if not isinstance(config.model, ProbeConfig) or config.model.train_backbone:
        raise UsageError(
            "--parts representations judges what a network learned without labels, and those of this run learned from "
            "labels. Run a probe: heatlas run INPUT OUT --backbone FOLDER, with the folder of heatlas pretrain."
        )
    return config.model


def diagnosed(scans: Iterable[Scan], known: frozenset[str]) -> list[Scan]:
    """Scans with the first diagnosis of each person, of people who are not known, in classes of some size."""
    first: dict[str, str] = {}
    found = []
    for scan in scans:
        new = scan.diagnosis and scan.participant_id not in known
        if new and first.setdefault(scan.participant_id, str(scan.diagnosis)) == scan.diagnosis:
            found.append(scan)
    counts = Counter(first.values())
    small = sorted(name for name, count in counts.items() if count < FEWEST)
    if small:
        log.info("Representations: left out, with fewer than %d people: %s", FEWEST, ", ".join(small))
    return [scan for scan in found if counts[first[scan.participant_id]] >= FEWEST]


def _log_shares(rows: pd.DataFrame) -> None:
    shares = rows[(rows["features"] == BACKBONE) & (rows["classes"] == ALL) & rows["measure"].isin([*PROBES, SITE])]
    log.info("Backbone, and the same network untrained (share recognised, mean over classes):")
    for row in shares.to_dict("records"):
        change = f"{row['difference']:+.2f}"
        if np.isfinite(row["difference_low"]):
            change += f" [{row['difference_low']:+.2f}, {row['difference_high']:+.2f}]"
        log.info("  %s %.2f (%s)", row["measure"], row["estimate"], change)


PART = Part(
    "representations",
    "what a backbone learned without labels",
    tables=(REPRESENTATIONS_TABLE,),
    require=lambda _, config: require_frozen(config),
    run=lambda bench, cohort: judge_backbone(cohort, bench.scans, bench.executor, bench.digests),
    shown=(Shown("What does the backbone know?", "representations"),),
)
