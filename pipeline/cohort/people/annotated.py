"""Who trains, and whose maps are guided: shares of the training participants."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from heatlas.pipeline.cohort.people.splits import Fold, few_people
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.seeds import derived_seed


def annotated_people(people: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """A share of some people, drawn by a seed; the same person has the same rank in every fold.

    Raises UsageError if it is nobody.

    Examples
    --------
    >>> len(annotated_people([f"sub-{n}" for n in range(20)], 0.1, seed=1))
    2
    """
    count = round(share * len(people))
    if count == 0:
        raise UsageError(
            f"objective.annotated = {share:g}: of {len(people)} training participants that is nobody; set at least "
            f"{1 / len(people):.2g}."
        )
    return frozenset(sorted(people, key=lambda name: derived_seed(seed, "annotated", name))[:count])


def training_part(config: Config, fold: Fold, scans: Sequence[Scan]) -> Fold:
    """The fold with the people who train: all, or the share that ``training.participants`` says."""
    if config.training.participants == 1:
        return fold
    classes = task_of(config.cohort).classes
    labels = {scan.participant_id: scan.label if classes else None for scan in scans}
    return few_people(fold, labels, config.training.participants, config.seed)


def guided_people(config: Config, fold: Fold, scans: Sequence[Scan], segmented: Collection[str]) -> frozenset[str]:
    """The annotated people of a training part who have labels of their own.

    `fold`: with the people who train, of all or a share. `scans`: with a label. `segmented`: who has labels of their
    own with all regions. Raises UsageError if no map would be guided.
    """
    wanted = config.objective
    known = [name for name in fold.train if name in segmented]
    if not known:
        raise UsageError(
            f"objective.region_labels: nobody in the training part of fold {fold.index} has labels of their own with "
            f'{", ".join(wanted.regions)}. Segment more people, or set "atlas".'
        )
    people = annotated_people(known, wanted.annotated, config.seed)
    if wanted.classes and not any(scan.participant_id in people and scan.label in wanted.classes for scan in scans):
        raise UsageError(
            f"objective.classes: nobody of {', '.join(wanted.classes)} in the training part of fold {fold.index} is "
            "annotated and has labels of their own. Segment more people, or name other classes."
        )
    return people
