"""Copies of controls with planted loss, and untouched copies: a cohort in which the truth is known.

Every control gives two scans, one with loss and one without, so that the classes differ in what was planted and in
nothing else. Both copies of some people have what no good map marks: a change as large in both, or a bright spot
outside the brain. Severities and distractors are dealt to people at random, independently of each other.

Loss follows the same model of atrophy as in the demo cohort (`pipeline.cohort.demo.people`), here on real brains: each
region has a rate of loss per unit of severity, a third of it (on the log scale) contraction, two thirds loss in place,
tissue replaced by fluid.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.spaces import UNREADABLE, Grid, read_brain, require_same_grid, template_grid, write_template_image
from heatlas.atlases.templates import load_template, span_of
from heatlas.pipeline.cohort.demo.anatomy import (
    SPACING_MM,
    Array,
    coarse_share,
    compose,
    exponential,
    random_velocity,
    resizing_velocities,
    sample,
)
from heatlas.pipeline.cohort.demo.people import CHANGES, PlantedChange
from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.cohorts import PLANTED, Distractor, Truth
from heatlas.pipeline.evaluation.scores.map_scores import marker, with_marker
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job, require_registered
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.training.objectives.known_networks import without_other_runs

JITTER_RMS_MM, JITTER_SMOOTHNESS_MM = 0.5, 16.0
"""Random deformation of every copy, so that no copy can be told by having been interpolated."""
SHARE_SMOOTHING_MM = 1.0
FLUID_GROUP = "Lateral ventricle"
FLUID_PERCENTILE = 10.0
"""Percentile of the intensities in the atlas's ventricles: where these are slits, most of the voxels hold tissue."""
BRAIN_PERCENTILE = 2.0
"""Percentile of the intensities of the brain that is fluid, where the atlas has no ventricles."""


@dataclass(frozen=True, eq=False)
class PlantingSite:
    """Where changes can be planted.

    `velocities`: (changes, 3, X, Y, Z), contraction at severity 1, on a 3 mm grid of template space. `shares`:
    (changes, *grid), share of each voxel that belongs to the region of each change. `rates`: (changes,), -log of the
    tissue that is left in place at severity 1. `fluid`: voxels of the ventricles, by which the intensity of fluid is
    measured. `origin`: (3,), template coordinates (mm) of the first point of the 3 mm grid.
    """

    grid: Grid
    velocities: Array
    shares: Array
    rates: NDArray[np.float64]
    fluid: NDArray[np.bool_]
    origin: NDArray[np.float64]


@functools.lru_cache(maxsize=1)
def planting_site(
    atlas_name: str, changes: tuple[PlantedChange, ...], resolution_mm: float, template: str = DEFAULT_TEMPLATE
) -> PlantingSite:
    """Prepare changes for scans of a resolution; kept for further scans of a process."""
    span = span_of(template)
    fine, grid = template_grid(1.0, span), template_grid(resolution_mm, span)
    atlas, coarse_atlas = load_atlas(atlas_name, fine), load_atlas(atlas_name, grid)
    regions = [_members(atlas, change.group) for change in changes]
    brain = coarse_share(load_template(1.0, template).brain_mask)
    coarse = np.stack([coarse_share(np.isin(atlas.labels, numbers)) for numbers in regions])
    sigma = [SHARE_SMOOTHING_MM / size for size in grid.voxel_sizes_mm]
    shares = [
        ndimage.gaussian_filter(np.isin(coarse_atlas.labels, numbers).astype(np.float32), sigma) for numbers in regions
    ]
    fluid = np.isin(coarse_atlas.labels, atlas.regions.groups.get(FLUID_GROUP, ()))
    return PlantingSite(
        grid,
        resizing_velocities(coarse, brain, [change.log_size for change in changes]),
        np.stack(shares),
        np.array([change.loss_rate for change in changes]),
        fluid,
        fine.affine[:3, 3].copy(),
    )


def _members(atlas: Atlas, group: str) -> Sequence[int]:
    if group not in atlas.regions.groups:
        raise BadInputError(f"the atlas {atlas.name} has no group {group!r} to plant a change in.")
    return atlas.regions.groups[group]


def planted_copy(
    volume: Array, brain: NDArray[np.bool_], site: PlantingSite, severities: Sequence[float], rng: np.random.Generator
) -> Array:
    """A copy of a scan with changes of given severities (0 for none), after a small random deformation."""
    x, y, z = site.velocities.shape[2:]
    jitter = exponential(random_velocity(rng, (x, y, z), SPACING_MM, JITTER_SMOOTHNESS_MM, JITTER_RMS_MM), SPACING_MM)
    disease = np.tensordot(np.asarray(severities, np.float32), site.velocities, axes=1)
    field = compose(exponential(-disease, SPACING_MM), jitter, SPACING_MM)
    affine = site.grid.affine
    centres = np.tensordot(affine[:3, :3], np.indices(site.grid.shape), axes=1) + affine[:3, 3].reshape(3, 1, 1, 1)
    reference = (centres - site.origin.reshape(3, 1, 1, 1)).astype(np.float32) / np.float32(SPACING_MM)
    moved = centres + np.stack([sample(component, reference) for component in field])
    inverse = np.linalg.inv(affine)
    points = (np.tensordot(inverse[:3, :3], moved, axes=1) + inverse[:3, 3].reshape(3, 1, 1, 1)).astype(np.float32)
    copied = sample(np.ascontiguousarray(volume, dtype=np.float32), points)
    lost = np.tensordot((site.rates * np.asarray(severities)).astype(np.float32), site.shares, axes=1)
    remaining = np.exp(-sample(lost, points))
    level = fluid_level(volume, brain, site.fluid)
    changed: Array = copied - (1 - remaining) * np.maximum(copied - level, 0)
    return with_range_of(volume, np.where(brain, changed, volume).astype(np.float32), brain)


def with_range_of(volume: Array, changed: Array, brain: NDArray[np.bool_]) -> Array:
    """A changed volume with the lowest and highest intensity of the brain as they were, at their voxels.

    Networks see intensities between these two. Interpolation smooths the brightest voxel of a scan, and by that alone
    all others would change by a tenth, in one copy more than in the other.
    """
    places = np.flatnonzero(brain)
    inside = volume.reshape(-1)[places]
    kept = np.clip(changed, inside.min(), inside.max()).reshape(-1)
    kept[places[[inside.argmin(), inside.argmax()]]] = inside.min(), inside.max()
    return np.asarray(np.where(brain, kept.reshape(volume.shape), changed))


def fluid_level(volume: Array, brain: NDArray[np.bool_], fluid: NDArray[np.bool_]) -> np.float32:
    """Intensity of fluid: a low percentile of the ventricles, or of the brain without any."""
    inside = volume[brain & fluid]
    return np.float32(
        np.percentile(inside, FLUID_PERCENTILE) if inside.size else np.percentile(volume[brain], BRAIN_PERCENTILE)
    )


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


def read_registered(source: ScanFiles, grid: Grid) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Intensities and brain mask of a registered scan, which lies on a grid."""
    require_registered(source)
    brain = read_brain(source.brain_mask, grid)
    try:
        image: Any = nib.nifti1.Nifti1Image.from_filename(source.image)
        volume = np.asarray(image.dataobj, dtype=np.float32)
    except UNREADABLE as error:
        raise BadInputError(f"{source.image}: cannot be read ({error}); run the registration again.") from error
    require_same_grid(Grid.of(image), grid, source.image.name)
    return volume, brain


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
