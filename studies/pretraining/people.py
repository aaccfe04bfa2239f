"""Who takes part in pre-training: all people, those whom no run is to test, or a cohort with a long tail of classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from heatlas.pipeline.cohort.people.persons import known_among
from heatlas.pipeline.cohort.records import SCANS_TABLE, Scan, ScanTable
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.long_tail import draw_long_tail
from heatlas.studies.probes.settings import ProbeConfig

log = logging.getLogger("heatlas")
FEWEST = 8
"""Participants."""


def parts_of(config: Config, scans: Sequence[Scan]) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    """The scans to learn from, and the participants of the validation part, drawn by the seed.

    Raises UsageError for a probe, batches without negatives, a queue as long as there are scans, or an average of
    queues. Raises BadInputError for fewer than `FEWEST` participants, or no split in the folder whose participants are
    left out.
    """
    settings, training = config.pretraining, config.training
    if isinstance(config.model, ProbeConfig):
        raise UsageError('heatlas pretrain makes backbones, and model.architecture = "probe" stands on one.')
    if settings.method == "masked" and not isinstance(config.model, ViTConfig):
        raise UsageError(
            f'pretraining.method = "masked" hides patches, and model.architecture = "{config.model.architecture}" has '
            'none. Set it to "vit", or choose simclr, moco, byol or dino.'
        )
    if training.head_learning_rate_factor != 1:
        raise UsageError("training.head_learning_rate_factor must be 1: what heatlas pretrain trains has no classes.")
    if settings.method == "moco" and training.weight_average:
        raise UsageError(
            'training.weight_average must be 0 where pretraining.method = "moco": a mean over steps of its queue holds '
            "no scan's key."
        )
    left = _with_long_tail(config, _without(settings.without, scans))
    tail_people(config, left)
    people = sorted({scan.participant_id for scan in left})
    if len(people) < FEWEST:
        named = f" but those of {settings.without}" if settings.without else ""
        raise BadInputError(f"pretraining: the input has {len(people)} participants{named}, and {FEWEST} are needed.")
    if training.batch_size < 2 and settings.method != "masked":
        raise UsageError("training.batch_size must be 2 or more: a scan is compared with the others of its batch.")
    count = validation_count(len(people), config.cohort.validation_fraction)
    drawn = generator(config.seed, "pretraining", "validation").permutation(len(people))[:count]
    validation = tuple(sorted(people[place] for place in drawn))
    kept = sum(scan.participant_id not in validation for scan in left)
    if settings.method == "moco" and settings.queue >= kept:
        raise UsageError(
            f"pretraining.queue = {settings.queue}: {kept} scans are learned from, and a queue as long would hold "
            f"every one of them. Set at most {kept - 1}, or 0 for half of them."
        )
    return left, validation


def _without(folder: str, scans: Sequence[Scan]) -> tuple[Scan, ...]:
    if not folder:
        return tuple(scans)
    path = SCANS_TABLE.path(RunLayout(Path(folder)))
    if not path.is_file():
        raise BadInputError(f"pretraining.without: {folder}: no run there ({path.name}).")
    theirs = [  # all who are kept: those outside the contrast are predicted, too
        scan.participant_id for scan in ScanTable.read(path).kept
    ]
    known = set(known_among([scan.participant_id for scan in scans], theirs))
    log.info("Pre-training leaves out %s of %s.", counted(len(known), "participant"), folder)
    return tuple(scan for scan in scans if scan.participant_id not in known)


def classes_of(scans: Sequence[Scan]) -> dict[str, str]:
    """Class of each participant who has one: that of the first scan with a label, or else a diagnosis."""
    found: dict[str, str] = {}
    for scan in scans:
        if name := scan.label or scan.diagnosis:
            found.setdefault(scan.participant_id, name)
    return found


def _with_long_tail(config: Config, scans: Sequence[Scan]) -> tuple[Scan, ...]:
    """The scans of the people whom ``pretraining.long_tail`` draws; all where it is empty."""
    settings = config.pretraining
    if not settings.long_tail:
        return tuple(scans)
    try:
        drawn = draw_long_tail(classes_of(scans), settings.long_tail_ratio, settings.long_tail, config.seed)
    except (BadInputError, UsageError) as error:
        raise type(error)(f"pretraining.long_tail: {error}") from error
    counts = [f"{len(people)} {name}" for name, people in drawn.items()]
    log.info("Pre-training learns from people of these classes: %s.", ", ".join(counts))
    people = {person for members in drawn.values() for person in members}
    return tuple(scan for scan in scans if scan.participant_id in people)


def tail_people(config: Config, scans: Sequence[Scan]) -> tuple[str, ...]:
    """Participants with the lowest temperature; none where it does not depend on the class.

    Raises BadInputError if nobody is of one of the classes, or everybody is of them.
    """
    wanted, class_of = config.pretraining.tail_classes, classes_of(scans)
    if not wanted:
        return ()
    missing = [name for name in wanted if name not in class_of.values()]
    found = tuple(sorted(person for person, name in class_of.items() if name in wanted))
    if missing or len(found) == len({scan.participant_id for scan in scans}):
        named = f"nobody is of {missing[0]}" if missing else "everybody is of these"
        there = ", ".join(sorted(set(class_of.values()))) or "none"
        raise BadInputError(f"pretraining.tail_classes: {named}. Classes of the participants are {there}.")
    return found


def validation_count(people: int, fraction: float) -> int:
    """Participants of the validation part: a share, at least two, so that there is something to compare."""
    return max(2, round(people * fraction))
