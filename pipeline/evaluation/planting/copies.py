"""Copies of controls with planted loss, and untouched copies: a cohort in which the truth is known.

Every control gives two scans, one with loss and one without, so that the classes differ in what was planted and in
nothing else. Both copies of some people have what no good map marks: a change as large in both, or a bright spot
outside the brain. Severities and distractors are dealt to people at random, independently of each other. How loss is
planted is in `pipeline.explaining.planted_loss`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatlas.atlases.labels import Atlas
from heatlas.atlases.spaces import write_template_image
from heatlas.pipeline.cohort.demo.people import CHANGES, PlantedChange
from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.cohorts import PLANTED, Distractor, Truth
from heatlas.pipeline.evaluation.scores.map_scores import marker, with_marker
from heatlas.pipeline.explaining.planted_loss import planted_copy, planting_site, read_registered
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.training.objectives.known_networks import without_other_runs

STAGE = "planting"
UNTOUCHED, WITH_LOSS = "untouched", "planted"
SEVERITIES = (1.0, 2.0, 3.0)
"""In units of the demo's disease: 1 is the mean difference of patients and controls in published volumetry. A network
that has two dozen scans to learn from needs a strong effect (`pipeline.cohort.demo.people`)."""
BOTH_CLASSES = PlantedChange("Putamen", "putamen", -0.27, tissue=True)
"""The unused change: as large as in the hippocampus, in both copies of every third person."""
EVERY = 3
FEWEST = 6
"""Controls: two for each part of a fold, at least."""


@dataclass(frozen=True)
class PlantedControl:
    """What is planted in one control.

    `severity`: of the loss in the planted copy. `unused`: of the change in both copies; 0 for none. `marked`: whether
    both copies have a marker.
    """

    scan: Scan
    severity: float
    unused: float
    marked: bool

    def copy(self, label: str) -> Scan:
        return dataclasses.replace(
            self.scan, session_id=f"ses-{label}", scan_id=f"{self.scan.participant_id}_{label}", label=label, image=None
        )

    @property
    def copies(self) -> tuple[Scan, Scan]:
        return self.copy(UNTOUCHED), self.copy(WITH_LOSS)


def planted_changes(atlas: Atlas) -> tuple[PlantedChange, ...]:
    """The demo's losses of grey matter in groups that an atlas has, at least one."""
    found = tuple(change for change in CHANGES if change.tissue and change.group in atlas.regions.groups)
    if not found:
        wanted = ", ".join(change.group for change in CHANGES if change.tissue)
        raise BadInputError(f"the atlas {atlas.name} has none of the groups in which loss is planted: {wanted}.")
    return found


def unused_changes(atlas: Atlas) -> tuple[PlantedChange, ...]:
    """The change that both classes have; none if the atlas lacks the group."""
    return (BOTH_CLASSES,) if BOTH_CLASSES.group in atlas.regions.groups else ()


def people_to_plant(scans: Sequence[Scan], negative: str | None, seed: int) -> tuple[PlantedControl, ...]:
    """Deal severities, the unused change and markers to controls, one scan each.

    `scans`: kept and registered. Controls are those labelled `negative`; where no scan is labelled, or labels are
    numbers (None), everyone is.
    """
    labelled = any(scan.label is not None for scan in scans)
    firsts: dict[str, Scan] = {}
    person = name_of_person(scan.participant_id for scan in scans)  # two names would be in two parts of a fold
    for scan in sorted(scans, key=lambda one: one.place):
        if negative is None or not labelled or scan.label == negative:
            firsts.setdefault(person[scan.participant_id], scan)
    if len(firsts) < FEWEST:
        raise BadInputError(
            f"loss is planted in controls ({negative or 'everyone'}), and this run has {len(firsts)} registered ones; "
            f"at least {FEWEST} are needed. Add controls, or leave --plant out."
        )
    people = list(firsts.values())
    dealt = [generator(seed, "plant", name).permutation(len(people)) for name in ("severity", "unused", "marker")]
    return tuple(
        PlantedControl(
            scan,
            SEVERITIES[int(level) % len(SEVERITIES)],
            SEVERITIES[int(level) % len(SEVERITIES)] if int(unused) % EVERY == 0 else 0.0,
            int(marked) % 2 == 0,
        )
        for scan, level, unused, marked in zip(people, *dealt, strict=True)
    )


def paired_folds(
    people: Sequence[PlantedControl], folds: int, validation_fraction: float, seed: int, only: int = 0
) -> Split:
    """Folds of whole people; each person has a scan of either class, so that every part has both.

    At most as many folds as leave two people to train and one to validate; with `only`, the first ones of them.
    """
    names = sorted(person.scan.participant_id for person in people)
    order = [names[place] for place in generator(seed, "plant", "folds").permutation(len(names))]
    made = []
    for index, test in enumerate(np.array_split(order, min(folds, len(order) // 2))):
        rest = [name for name in order if name not in set(test)]
        count = min(max(round(validation_fraction * len(rest)), 1), len(rest) - 2)
        parts = [tuple(sorted(map(str, part))) for part in (rest[count:], rest[:count], test)]
        made.append(Fold(index, *parts))
    return Split(tuple(made[: only or None]))


def planted_config(config: Config, seed: int) -> Config:
    cohort = dataclasses.replace(
        config.cohort, contrast_column=PLANTED, negative=UNTOUCHED, positive=WITH_LOSS, classes=(), target="",
        shuffle_labels=False,
    )  # fmt: skip
    # Networks of other runs tell other classes, in other folds.
    return dataclasses.replace(without_other_runs(config), cohort=cohort, seed=seed)


def require_masks_of_copies(config: Config) -> None:
    """Refuse guidance by people's own labels, which copies of their scans do not have."""
    if config.objective.own_anatomy:
        raise UsageError(
            'objective.region_labels = "own": copies of scans have no labels of their own, so the networks of this run '
            "cannot be trained on them. Leave --plant and --parts marker out."
        )


def planting_jobs(
    layout: EvaluationLayout, copies: EvaluationLayout, people: Sequence[PlantedControl], atlas: Atlas, config: Config,
    digests: DigestCache,
) -> list[Job]:  # fmt: skip
    """One unit per control, which writes both copies and their masks into `copies`."""
    changes = planted_changes(atlas) + unused_changes(atlas)
    start = (0, 0, 0) if (box := configured_input(config).box) is None else box.start
    jobs = []
    for person in people:
        resolution = config.registration.resolution_mm
        source = layout.scan(person.scan.participant_id, person.scan.session_id, resolution)
        outputs: dict[str, Path] = {}
        for one in person.copies:
            files = copies.scan(one.participant_id, one.session_id, resolution)
            outputs |= {f"{one.label}_t1w": files.image, f"{one.label}_mask": files.brain_mask}
        inputs = {"seen": digests.joined(source.seen)}
        facts = [person.severity, person.unused, person.marked, changes, atlas.source_digest, config.seed, start]
        arguments = (person, source, config.regions.atlas, changes, start, config.seed)
        key = unit_key(inputs, facts, plant_person)
        jobs.append(Job(STAGE, person.scan.participant_id, key, outputs, plant_person, arguments))
    return jobs


def plant_person(
    outputs: Mapping[str, Path],
    person: PlantedControl,
    source: ScanFiles,
    atlas_name: str,
    changes: tuple[PlantedChange, ...],
    start: tuple[int, int, int],
    seed: int,
) -> Mapping[str, Any]:
    """Write both copies of one control; the function of a `Job`."""
    site = planting_site(atlas_name, changes, source.resolution_mm, source.template)
    volume, brain = read_registered(source, site.grid)
    cube = marker(site.grid.shape, start)
    for label in (UNTOUCHED, WITH_LOSS):
        lost = person.severity if label == WITH_LOSS else 0.0
        severities = [person.unused if change == BOTH_CLASSES else lost for change in changes]
        rng = generator(seed, "plant", person.scan.participant_id, label)
        copied, mask = planted_copy(volume, brain, site, severities, rng), brain
        if person.marked:
            copied, mask = with_marker(copied, brain, cube)
        title = f"Heatlas evaluation: {label} copy of a control"
        write_template_image(outputs[f"{label}_t1w"], copied, site.grid, title)
        write_template_image(outputs[f"{label}_mask"], mask, site.grid, title)
    return {"severity": person.severity, "unused": person.unused, "marked": person.marked}


def truth_of(people: Sequence[PlantedControl], atlas: Atlas, correlated: str | None) -> Truth:
    """What was planted, and what was not though it looks like it.

    `correlated`: the untouched group that goes with the planted ones (`correlated_group`).
    """
    severity = {person.copy(WITH_LOSS).scan_id: person.severity for person in people}
    severity |= {person.copy(UNTOUCHED).scan_id: 0.0 for person in people}
    everyone = frozenset(person.copy(WITH_LOSS).name for person in people)
    distractors = []
    for change in unused_changes(atlas):
        having = frozenset(person.copy(WITH_LOSS).name for person in people if person.unused)
        title = f"{change.group}: same loss in both classes"
        distractors.append(Distractor(title, "both classes", change.group, having))
    if correlated is not None:
        distractors.append(
            Distractor(f"{correlated}: untouched, goes with planted regions", "correlated", correlated, everyone)
        )
    marked = frozenset(person.copy(WITH_LOSS).name for person in people if person.marked)
    distractors.append(Distractor("bright spot outside the brain", "marker", "", marked))
    return Truth(tuple(change.group for change in planted_changes(atlas)), severity, tuple(distractors))
