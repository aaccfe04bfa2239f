"""Likeness of the scans that networks are applied to: the place of each among the controls that the networks know.

The measures and the rule are those of `pipeline.registration.quality.likeness`. Networks of a run find their controls
there. An exported run brings sorted values of its controls, which name nobody and belong to no scan, and the middle and
spread of their regions, of their sides, and of what each network sees of people (`pipeline.explaining.features`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from heatlas.atlases.catalogue import find_atlas
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_template
from heatlas.pipeline.cohort.people.persons import same_person
from heatlas.pipeline.cohort.people.splits import networks_for
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.controls import ReferencePool, controls_of
from heatlas.pipeline.explaining.features import (
    FEATURES,
    Features,
    UnseenPeople,
    feature_distance,
    features_of,
    named_members,
    unseen_people,
    unseen_scans,
)
from heatlas.pipeline.explaining.networks import MeanControls
from heatlas.pipeline.explaining.tables import declared
from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.models.families.registry import code_of
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, from_network, read_network_volume
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.registration.ants_transform import read_affine
from heatlas.pipeline.registration.images.brain_extraction import nonzero_brain
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.quality.likeness import (
    AS_FAR,
    FARTHEST,
    FEWEST,
    LIKENESS,
    LIMITED,
    Anatomy,
    Norm,
    distances_of_controls,
    intensity_measures,
    mean_distance,
    norm_of_regions,
    norm_of_sides,
    places_among,
    region_means,
    side_of,
)
from heatlas.pipeline.registration.quality.limits import (
    agreement,
    bright_air,
    bright_rim,
    enclosed_ml,
    fine_pattern,
    missing_ml,
    on_voxels,
)
from heatlas.pipeline.registration.quality.sides import (
    SMALLEST_MEDIAN,
    one_sided_ml,
    side_scores,
    without_shading,
)
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import EXPORT_AGAIN, BundleLayout, open_bundle
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import require_filled, require_numbers
from heatlas.pipeline.run.work.jobs import run_step
from heatlas.pipeline.training.given import networks_of_run, split_of_networks

_LOG = logging.getLogger(__name__)
LIKENESS_TABLE = declared("likeness", FEWEST=FEWEST, FARTHEST=FARTHEST, AS_FAR=AS_FAR)
CONTROL_VALUES_TABLE = declared("likeness_of_controls")
CONTROL_NORMS_TABLE = declared("norms_of_likeness")
MOST = 100
"""Controls that a scan is compared with; more cost time and change little."""
DIGITS = 5
"""Significant digits of values that an export gives away."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Measured:
    """What is measured of one scan: single numbers, means of regions, and the asymmetry, None where it is not known.

    `features`: what networks that have not learned from the person see of it.
    """

    values: Mapping[str, float]
    regions: np.ndarray
    asymmetry: np.ndarray | None
    features: Features = field(default_factory=dict)
    template: str = DEFAULT_TEMPLATE


@dataclass(frozen=True)
class ControlLikeness:
    """Controls as scans are compared with them: their values by measure, and norms of regions and of sides.

    `features`: norms of what each network sees of people.
    """

    values: Mapping[str, Sequence[float]]
    regions: Norm | None
    sides: Norm | None
    features: Mapping[str, Norm] = field(default_factory=dict)

    def places(self, scan: Measured) -> list[Any]:
        values = dict(scan.values)
        if self.regions is not None and self.regions.middle.shape == scan.regions.shape:
            values["region_distance"] = mean_distance(scan.regions, self.regions)
        sides, ours, template = self.sides, scan.asymmetry, scan.template
        if sides is not None and ours is not None and sides.middle.shape == ours.shape:
            values["one_sided_ml"] = one_sided_ml((ours - sides.middle) / sides.spread, template)
            if np.median(self.values.get("side") or [0.0]) >= SMALLEST_MEDIAN:  # else they have none in common
                mean = Norm(without_shading(sides.middle, template), sides.spread)
                values["side"] = side_of(without_shading(ours, template), mean)
        values["feature_distance"] = feature_distance(scan.features, self.features)
        return places_among(values, self.values)


def measure_scan(
    files: ScanFiles,
    spec: NetworkInput,
    anatomy: Anatomy,
    networks: Mapping[str, nn.Module] | None = None,
    device: torch.device = CPU,
) -> Measured:
    """Measure a registered scan as the network sees it; numbers of its registration that are missing are left out.

    `networks`: of `named_members`, on `device`, that have not learned from the person.
    """
    image = from_network(read_network_volume(files, spec), spec)
    brain = (image != 0).astype(np.float32)  # z-scores are negative too
    values = intensity_measures(image, brain, anatomy)
    quality = read_json(files.quality, "Run the registration again.") if files.quality.is_file() else {}
    values |= {one.column: float(quality[one.column]) for one in LIKENESS if quality.get(one.column) is not None}
    values["missing_ml"] = missing_ml(image, anatomy.mask, spec.resolution_mm)
    sides = np.load(files.asymmetry, allow_pickle=False) if files.asymmetry.is_file() else None
    return Measured(
        values,
        region_means(image, brain, anatomy),
        sides,
        features_of(networks or {}, files, spec, device),
        files.template,
    )


def likeness_of_controls(controls: Sequence[Measured], unseen: Sequence[UnseenPeople] = ()) -> ControlLikeness:
    """Values of controls, each measured against the others; nothing of fewer than `FEWEST`.

    `unseen`: what the networks of each fold see of its test part.
    """
    if len(controls) < FEWEST:
        return ControlLikeness({}, None, None)
    values = {one.column: [control.values.get(one.column, np.nan) for control in controls] for one in LIKENESS}
    means = np.stack([control.regions for control in controls])
    values["region_distance"] = distances_of_controls(means)
    asymmetries = [control.asymmetry for control in controls if control.asymmetry is not None]
    sides = norm_of_sides(asymmetries) if len(asymmetries) >= FEWEST else None
    values["side"] = side_scores(asymmetries).tolist() if sides is not None else []
    values["feature_distance"] = [
        distance for fold in unseen for distance, control in zip(fold.distances, fold.controls, strict=True) if control
    ]
    features = {name: norm for fold in unseen for name, norm in fold.norms.items()}
    return ControlLikeness(values, norm_of_regions(means), sides, features)


def anatomy_of(config: Config) -> Anatomy:
    template = configured_template(config.registration)
    return Anatomy(template.t1w, template.brain_mask, load_atlas(config.regions.atlas, template.grid).labels)


def _controls_in(pool: ReferencePool, config: Config) -> tuple[ScanFiles, ...]:
    """Files of the controls that any network learned from, one scan per person."""
    if pool.layout is None:
        return ()
    scans = list({one.participant_id: one for found in pool.by_fold.values() for one in found}.values())[:MOST]
    return tuple(
        pool.layout.scan(one.participant_id, one.session_id, config.registration.resolution_mm) for one in scans
    )


def measure_as_given(work: Work, scan: Scan, files: ScanFiles, anatomy: Anatomy) -> Mapping[str, float]:
    """Measures of a scan on its own voxels: dark spots, and the rim of a stripped brain or the air beside a head.

    Nothing of an image that came in template space, or that is there no more.
    """
    path = files.converted if files.converted.is_file() else work.input_root / scan.file
    if not files.affine_transform.is_file() or not path.is_file():
        return {}
    image, quality = load_t1w(path), read_json(files.quality, "Run the registration again.")
    mask, grid = anatomy.mask, configured_template(work.config.registration).grid
    to_voxels = np.linalg.inv(image.affine) @ read_affine(files.affine_transform)
    voxel_mm = np.array(image.grid.voxel_sizes_mm)
    if quality.get("brain_extraction") == "stripped":
        brain = nonzero_brain(image.data)
        beside = {"bright_rim": bright_rim(image.data, brain, voxel_mm)}
    else:
        brain = on_voxels(mask, grid.affine, to_voxels, image.data.shape)
        beside = {"bright_air": bright_air(image.data, to_voxels, mask, grid.affine)}
    return {"enclosed_ml": enclosed_ml(image.data, brain, voxel_mm, to_voxels), **beside}


def same_brains(
    scans: Sequence[Scan], files: Sequence[ScanFiles], controls: Sequence[ScanFiles], mean: MeanControls | None,
    spec: NetworkInput, anatomy: Anatomy,
) -> np.ndarray:  # fmt: skip
    """How far each scan agrees with that of another person; a line of the log names those who agree too far.

    `mean`: of the controls, as an export has it; else it is that of `controls`.
    """
    if len(scans) < 2 or (mean is None and not controls):
        return np.full(len(scans), np.nan)

    def pattern(one: ScanFiles) -> np.ndarray:
        image = from_network(read_network_volume(one, spec), spec)
        return fine_pattern(image, anatomy.mask, spec.resolution_mm)

    if mean is not None:
        common = fine_pattern(from_network(mean.seen(spec)[0], spec), anatomy.mask, spec.resolution_mm)
    else:
        common = np.mean([pattern(one) for one in controls], axis=0)
        common = common / (float(np.linalg.norm(common)) or 1.0)
    people = {
        name: first for first, names in same_person(one.participant_id for one in scans).items() for name in names
    }
    found, whose = agreement(
        np.stack([pattern(one) for one in files]), common, [people[one.participant_id] for one in scans]
    )
    for scan, alike, other in zip(scans, found, whose, strict=True):
        if alike > LIMITED["same_brain"]:
            _LOG.warning(
                f"{scan.name} and {scans[other].name} agree as two scans of one person do (correlation {alike:.2f}); "
                "is one person there twice?"
            )
    return found


def with_values(scan: Measured, values: Mapping[str, float]) -> Measured:
    return replace(scan, values={**scan.values, **values})


def write_likeness(work: Work, scans: Sequence[Scan]) -> bool:
    """Write ``likeness.tsv``, of scans that networks of another run or export were applied to; True if it was made."""
    layout, config, folder = work.layout, work.config, Path(work.config.training.networks_of)
    pool, task, run = controls_of((), work.split, config), task_of(config.cohort), RunLayout(folder)
    bundle = open_bundle(folder)
    controls, files = _controls_in(pool, config), [work.files(scan) for scan in scans]
    unseen = {} if bundle else unseen_scans(run, task, config.registration.resolution_mm, config.seed)
    seen = [path for one in (*controls, *files) for path in (*one.seen, one.quality, one.asymmetry)]
    seen += [path for fold in unseen.values() for one in fold for path in one.files.seen]
    used = [layout.fold(fold.index) for fold in work.split.folds]
    seen += [path for one in used for path in (one.weights, one.description)]
    kept = [bundle.layout.likeness, bundle.layout.likeness_norms] if bundle else []

    def write() -> Iterable[Path]:
        spec, anatomy, device = configured_input(config), anatomy_of(config), chosen_device(config.training)
        networks = networks_of_run(str(folder), config.model, device)
        if bundle is not None:
            reference = read_reference(bundle.layout)
        else:
            measured = [measure_scan(one, spec, anatomy) for one in controls]
            reference = likeness_of_controls(measured, unseen_people(networks, unseen, str(folder), device))
        members = {int(one.description["fold"]): named_members(one) for one in networks if reference.features}
        values = [dict(measure_as_given(work, scan, one, anatomy)) for scan, one in zip(scans, files, strict=True)]
        for value, alike in zip(values, same_brains(scans, files, controls, pool.mean, spec, anatomy), strict=True):
            value["same_brain"] = alike
        # Of people with labels the split has the folds of this cohort, which are not those of the networks.
        split = work.split if work.without_labels else split_of_networks(str(folder), config.model)
        of_person, rows = networks_for([scan.participant_id for scan in scans], split), list[list[Any]]()
        for scan, one, given in zip(scans, files, values, strict=True):
            asked = {
                key: value for index in of_person[scan.participant_id] for key, value in members.get(index, {}).items()
            }
            rows += [
                [scan.participant_id, scan.session_id, scan.scan_id, place.measure, place.value, place.median,
                 place.distance, place.beyond, place.controls, place.p, "unlike" if place.unlike else "alike"]
                for place in reference.places(with_values(measure_scan(one, spec, anatomy, asked, device), given))
            ]  # fmt: skip
        if not rows:
            LIKENESS_TABLE.remove(layout)
            return []
        return [LIKENESS_TABLE.write(layout, rows)]

    settings = [config.registration, find_atlas(config.regions.atlas).digest, [scan.scan_id for scan in scans]]
    return run_step(
        layout, "likeness", [*seen, *kept], settings,
        [measure_scan, measure_as_given, places_among, *code_of(config.model)], write,
        work.digests,
    )  # fmt: skip


def write_reference(
    run: RunLayout, controls: Sequence[Scan], networks: Iterable[LoadedModel], config: Config, target: BundleLayout
) -> None:
    """Write what an export gives away of its controls: sorted values by measure, and norms; nothing of a few."""
    spec, anatomy, task = configured_input(config), anatomy_of(config), task_of(config.cohort)
    files = [run.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in controls[:MOST]]
    unseen = unseen_scans(run, task, spec.resolution_mm, config.seed)
    found = likeness_of_controls(
        [measure_scan(one, spec, anatomy) for one in files],
        unseen_people(networks, unseen, str(run.root), CPU),
    )
    if found.values:
        write_controls(found, target)


def write_controls(found: ControlLikeness, target: BundleLayout) -> None:
    """Write values and norms of controls as `read_reference` reads them, rounded to `DIGITS`."""
    rows = [
        (name, _rounded(value)) for name, values in found.values.items() for value in np.sort(values) if value == value
    ]
    CONTROL_VALUES_TABLE.write(target.likeness, rows)
    norms = [("regions", found.regions), ("sides", found.sides), *found.features.items()]
    CONTROL_NORMS_TABLE.write(
        target.likeness_norms,
        [
            (kind, place, _rounded(middle), _rounded(spread))
            for kind, norm in norms
            if norm is not None
            for place, (middle, spread) in enumerate(zip(norm.middle, norm.spread, strict=True))
        ],
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def read_reference(layout: BundleLayout) -> ControlLikeness:
    """What an export says of its controls; nothing where an earlier version exported it."""
    if not layout.likeness.is_file() and not layout.likeness_norms.is_file():
        return ControlLikeness({}, None, None)
    for path in (layout.likeness, layout.likeness_norms):
        if not path.is_file():
            raise BadInputError(f"{path}: missing. {EXPORT_AGAIN}")
    values, norms = CONTROL_VALUES_TABLE.read(layout.likeness), CONTROL_NORMS_TABLE.read(layout.likeness_norms)
    require_filled(layout.likeness, values, ["measure", "value"])
    require_numbers(layout.likeness, values, ["value"])
    require_numbers(layout.likeness_norms, norms, ["number", "spread"])
    by_measure = {str(name): rows["value"].astype(float).tolist() for name, rows in values.groupby("measure")}
    by_kind = {
        str(kind): Norm(rows["middle"].to_numpy(float), rows["spread"].to_numpy(float))
        for kind, rows in norms.sort_values("number", kind="stable").groupby("kind")
    }
    features = {kind: norm for kind, norm in by_kind.items() if kind.startswith(FEATURES)}
    return ControlLikeness(by_measure, by_kind.get("regions"), by_kind.get("sides"), features)
