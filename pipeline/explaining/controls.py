"""Controls that a scan is compared with: of the training part of the fold whose network explains it.

Never anyone of the validation or test part: the network has learned what is normal from these people, and someone who
is explained is never among them. Where a number is predicted there are no controls, and the reference is everyone that
the network was trained with. An exported run gives means of its controls, and spreads by region, in place of their
scans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from heatlas.pipeline.cohort.people.persons import same_person
from heatlas.pipeline.cohort.people.splits import Split, training_part
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.explaining.networks import Control, MeanControls, ReferenceScan
from heatlas.pipeline.explaining.tables import declared
from heatlas.pipeline.models.inputs import NetworkInput, read_channels, read_network_volume
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.bundle_layout import EXPORT_AGAIN, Bundle, open_bundle
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import require_filled, require_numbers
from heatlas.pipeline.run.work.digests import DigestCache, file_digest
from heatlas.pipeline.run.work.seeds import derived_seed


@dataclass(frozen=True)
class ReferencePool:
    """Scans that may be a reference, one per person.

    `by_fold`: scans of each fold's training part, in the order in which they are taken. `size`: scans of a reference.
    `match`: columns in which they are to be like the scan that is explained. `wanted`: whom a reference is made of, for
    messages. `layout`: where their images are; None for the run itself. `mean`: the only reference, where there are no
    scans of single controls (networks of an exported run).
    """

    by_fold: Mapping[int, tuple[Scan, ...]]
    size: int
    match: tuple[str, ...]
    wanted: str
    layout: RunLayout | None = None
    mean: MeanControls | None = None

    def references(
        self, fold: int, scan: Scan, own: RunLayout, resolution_mm: float, digests: DigestCache
    ) -> tuple[Control, ...]:
        """The reference of a scan of the run `own` with its files."""
        if self.mean is not None:
            return (self.mean,)
        found = []
        for control in self.of(fold, scan):
            files = (self.layout or own).scan(control.participant_id, control.session_id, resolution_mm)
            found.append(ReferenceScan(files, digests.joined(files.seen)))
        return tuple(found)

    def of(self, fold: int, scan: Scan) -> tuple[Scan, ...]:
        """The reference of a scan that the network of a fold explains, at most `size` scans, none of the same person.

        With `match`, those who differ from the scan in the fewest of sex and site come first, among them those nearest
        in age; what is unknown of either counts as a difference.
        """
        found = tuple(one for one in self.by_fold.get(fold, ()) if one.participant_id != scan.participant_id)
        if not found:
            raise BadInputError(
                f"fold {fold}: its training part has no registered scan of {self.wanted}, and evidence maps compare "
                "with such people. Use fewer folds, add participants, or take methods relative to controls out of "
                "attribution.methods."
            )
        if self.match:
            found = tuple(sorted(found, key=lambda one: _distance(one, scan, self.match)))  # stable: keeps the order
        return found[: self.size]


def _distance(one: Scan, scan: Scan, match: Sequence[str]) -> tuple[int, float]:
    """Differences in sex and site, then the difference in age; infinite where an age is unknown."""
    pairs = [(getattr(one, name), getattr(scan, name)) for name in match if name != "age"]
    unlike = sum(value is None or value != other for value, other in pairs)
    if "age" not in match:
        return unlike, 0.0
    return unlike, float("inf") if one.age is None or scan.age is None else abs(one.age - scan.age)


def controls_of(scans: Sequence[Scan], split: Split, config: Config) -> ReferencePool:
    """Who may be a reference for each network.

    Someone with scans of two classes, or with two names (`pipeline.cohort.people.persons`) of which one is a patient's,
    is no control. The first visit represents a person. The order of people is drawn by the seed of the run and is the
    same in all folds, so that folds share as many controls as they can; it does not depend on who else there is.
    """
    task, other, together, attribution = task_of(config.cohort), None, False, config.attribution
    if config.training.networks_of:  # of another cohort, whose controls these networks know
        if bundle := open_bundle(Path(config.training.networks_of)):
            nobody: dict[int, tuple[Scan, ...]] = {fold.index: () for fold in split.folds}
            return ReferencePool(nobody, 1, (), task.words.control, mean=mean_controls(bundle))
        other = RunLayout(Path(config.training.networks_of))
        there = _registered_in(other, config.registration.resolution_mm)
        trained = {person for fold in _learned_from(Split.read(other), there, config).folds for person in fold.train}
        scans = [one for one in there if one.participant_id in trained]
        together = not any(trained & set(fold.train) for fold in split.folds)  # else each fold is one network of it
    else:
        split = _learned_from(split, scans, config)
    labelled = [scan for scan in scans if scan.label is not None]
    firsts = []
    for person, names in same_person(scan.participant_id for scan in labelled).items():
        of_person = [scan for scan in labelled if scan.participant_id in names]
        if all(task.is_control(scan.label) for scan in of_person):
            order = derived_seed(config.seed, "reference", person)
            firsts.append((order, min(of_person, key=lambda scan: scan.place[1:])))
    firsts.sort(key=lambda pair: (pair[0], pair[1].participant_id))
    by_fold = {
        fold.index: tuple(scan for _, scan in firsts if together or scan.participant_id in set(fold.train))
        for fold in split.folds
    }
    return ReferencePool(by_fold, attribution.reference_size, attribution.reference_match, task.words.control, other)


def _learned_from(split: Split, scans: Sequence[Scan], config: Config) -> Split:
    """The split with the people whom networks learned from, where ``training.participants`` takes a share of them."""
    labelled = [scan for scan in scans if scan.label is not None]
    return Split(tuple(training_part(config, fold, labelled) for fold in split.folds))


def mean_controls(bundle: Bundle) -> MeanControls:
    path = bundle.layout.mean_controls
    if not path.is_file() or file_digest(path) != bundle.mean_digest:
        raise BadInputError(f"{path}: missing, or not the one that was exported (SHA-256 differs). {EXPORT_AGAIN}")
    return MeanControls(path, bundle.mean_digest, bundle.controls)


def note_on_mean(config: Config) -> str:
    """What is said of maps of networks of an exported run; empty for others."""
    bundle = open_bundle(Path(config.training.networks_of)) if config.training.networks_of else None
    if bundle is None:
        return ""
    return (
        f"maps relative to controls compare each scan with the mean image of {mean_controls(bundle).count} controls: "
        "an exported run holds no single scan"
    )


def _registered_in(layout: RunLayout, resolution_mm: float) -> list[Scan]:
    """Kept scans of a run that have an image in template space."""
    kept = [
        (one, layout.scan(one.participant_id, one.session_id, resolution_mm)) for one in ScanTable.read(layout).kept
    ]
    return [scan for scan, files in kept if all(path.is_file() for path in files.images)]


STEPS = 2**16
"""Steps between 0 and 1 that a mean image is rounded to: finer than its noise, and the file is half as large."""


def mean_volume(scans: Sequence[ScanFiles], spec: NetworkInput) -> NDArray[np.float32]:
    """Mean of what networks see of some scans, float32 in `STEPS`, shape of the network's input."""
    total = np.zeros(spec.shape)
    for scan in scans:
        total += read_network_volume(scan, spec)
    return (np.round(total / len(scans) * STEPS) / STEPS).astype(np.float32)


def mean_logits(network: nn.Module, scans: Sequence[ScanFiles], spec: NetworkInput) -> list[float]:
    """Mean over some scans of each output of a network, rounded."""
    with torch.no_grad():
        rows = [network(torch.from_numpy(read_channels(scan, spec))[None])[0].double() for scan in scans]
    return [round(float(value), 5) for value in torch.stack(rows).mean(0)]


ANSWER = "answer_to_mean"
"""What an exported network of the user's own answers to the mean image, by which its code is known again."""


def answer_to(volume: NDArray[np.float32], network: nn.Module) -> list[float]:
    """What a network answers to a volume (C, D, H, W)."""
    with torch.no_grad():
        return [float(value) for value in network(torch.from_numpy(volume)[None])[0]]


def require_same_code(bundle: Bundle, networks: Sequence[LoadedModel], code: str) -> None:
    """Refuse code that takes the weights of an export and answers otherwise than what was exported."""
    for one in networks:
        wanted = one.description.get(ANSWER)
        found = answer_to(mean_controls(bundle).seen(one.input), one.model)
        if wanted is not None and not np.allclose(found, wanted, rtol=1e-3, atol=2e-3):  # half precision may cost 1e-3
            shown = [", ".join(f"{value:.4g}" for value in values) for values in (found, wanted)]
            raise UsageError(
                f"--code {code}: answers {shown[0]} to the mean image of the controls, and the network that was "
                f"exported {shown[1]}. Give the code that the run had."
            )


PEOPLE_TABLE, NORMS_TABLE = declared("people"), declared("norms")


def read_norms(bundle: Bundle) -> pd.DataFrame | None:
    """The norms of an export, those by age and sex n/a where an earlier version wrote none; None without regions."""
    path = bundle.layout.norms
    if bundle.norms_digest and (not path.is_file() or file_digest(path) != bundle.norms_digest):
        raise BadInputError(f"{path}: missing, or not the one that was exported (SHA-256 differs). {EXPORT_AGAIN}")
    if not path.is_file():
        return None
    table = NORMS_TABLE.read(path)
    if table.empty:
        raise BadInputError(f"{path}: has no row. {EXPORT_AGAIN}")
    table = table.reindex(columns=list(NORMS_TABLE.meanings))
    require_filled(path, table, NORMS_TABLE.required)
    require_numbers(path, table, ["n_controls", "n_women", "n_men"], whole=True)
    require_numbers(path, table, [name for name in NORMS_TABLE.meanings if name not in ("map", "group")])
    return table
