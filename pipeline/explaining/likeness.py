"""Likeness of the scans that networks are applied to: the place of each among the controls that the networks know.

The measures and the rule are those of `pipeline.registration.quality.likeness`. Networks of a run find their controls
there. An exported run brings sorted values of its controls, which name nobody and belong to no scan, and the middle and
spread of their regions and of their sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.controls import ReferencePool, controls_of
from heatlas.pipeline.explaining.tables import declared
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, from_network, read_network_volume
from heatlas.pipeline.registration.quality.likeness import (
    FARTHEST,
    FEWEST,
    LIKENESS,
    Anatomy,
    Norm,
    distances_of_controls,
    intensity_measures,
    norm_of_regions,
    norm_of_sides,
    places_among,
    region_distance,
    region_means,
    side_of,
)
from heatlas.pipeline.registration.quality.sides import side_scores
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import EXPORT_AGAIN, BundleLayout, open_bundle
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.tables import require_filled, require_numbers
from heatlas.pipeline.run.work.jobs import run_step

LIKENESS_TABLE = declared("likeness", FEWEST=FEWEST, FARTHEST=FARTHEST)
CONTROL_VALUES_TABLE = declared("likeness_of_controls")
CONTROL_NORMS_TABLE = declared("norms_of_likeness")
MOST = 100
"""Controls that a scan is compared with; more cost time and change little."""
DIGITS = 5
"""Significant digits of values that an export gives away."""


@dataclass(frozen=True)
class Measured:
    """What is measured of one scan: single numbers, means of regions, and the asymmetry, None where it is not known."""

    values: Mapping[str, float]
    regions: np.ndarray
    asymmetry: np.ndarray | None


@dataclass(frozen=True)
class ControlLikeness:
    """Controls as scans are compared with them: their values by measure, and norms of regions and of sides."""

    values: Mapping[str, Sequence[float]]
    regions: Norm | None
    sides: Norm | None

    def places(self, scan: Measured) -> list[Any]:
        values = dict(scan.values)
        if self.regions is not None and self.regions.middle.shape == scan.regions.shape:
            values["region_distance"] = region_distance(scan.regions, self.regions)
        known = self.sides is not None and scan.asymmetry is not None
        if known and self.sides.middle.shape == scan.asymmetry.shape:  # type: ignore[union-attr]
            values["side"] = side_of(scan.asymmetry, self.sides)  # type: ignore[arg-type]
        return places_among(values, self.values)


def measure_scan(files: ScanFiles, spec: NetworkInput, anatomy: Anatomy) -> Measured:
    """Measure a registered scan as the network sees it; numbers of its registration that are missing are left out."""
    image = from_network(read_network_volume(files, spec), spec)
    brain = (image > 0).astype(np.float32)
    values = intensity_measures(image, brain, anatomy)
    quality = read_json(files.quality, "Run the registration again.") if files.quality.is_file() else {}
    values |= {one.column: float(quality[one.column]) for one in LIKENESS if quality.get(one.column) is not None}
    sides = np.load(files.asymmetry, allow_pickle=False) if files.asymmetry.is_file() else None
    return Measured(values, region_means(image, brain, anatomy), sides)


def likeness_of_controls(controls: Sequence[Measured]) -> ControlLikeness:
    """Values of controls, each measured against the others; nothing of fewer than `FEWEST`."""
    if len(controls) < FEWEST:
        return ControlLikeness({}, None, None)
    values = {one.column: [control.values.get(one.column, np.nan) for control in controls] for one in LIKENESS}
    means = np.stack([control.regions for control in controls])
    values["region_distance"] = distances_of_controls(means)
    asymmetries = [control.asymmetry for control in controls if control.asymmetry is not None]
    sides = norm_of_sides(asymmetries) if len(asymmetries) >= FEWEST else None
    values["side"] = side_scores(asymmetries).tolist() if sides is not None else []
    return ControlLikeness(values, norm_of_regions(means), sides)


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


def write_likeness(work: Work, scans: Sequence[Scan]) -> bool:
    """Write ``likeness.tsv``, of scans that networks of another run or export were applied to; True if it was made."""
    layout, config = work.layout, work.config
    pool = controls_of((), work.split, config)
    bundle = open_bundle(Path(config.training.networks_of))
    controls, files = _controls_in(pool, config), [work.files(scan) for scan in scans]
    seen = [path for one in (*controls, *files) for path in (*one.seen, one.quality, one.asymmetry)]
    kept = [bundle.layout.likeness, bundle.layout.likeness_norms] if bundle else []

    def write() -> Iterable[Path]:
        spec, anatomy = configured_input(config), anatomy_of(config)
        if bundle is not None:
            reference = read_reference(bundle.layout)
        else:
            reference = likeness_of_controls([measure_scan(one, spec, anatomy) for one in controls])
        rows = []
        for scan, one in zip(scans, files, strict=True):
            rows += [
                [scan.participant_id, scan.session_id, scan.scan_id, place.measure, place.value, place.median,
                 place.distance, place.beyond, place.controls, place.p, "unlike" if place.unlike else "alike"]
                for place in reference.places(measure_scan(one, spec, anatomy))
            ]  # fmt: skip
        if not rows:
            LIKENESS_TABLE.remove(layout)
            return []
        return [LIKENESS_TABLE.write(layout, rows)]

    settings = [config.registration, config.regions.atlas, [scan.scan_id for scan in scans]]
    return run_step(layout, "likeness", [*seen, *kept], settings, [measure_scan, places_among], write, work.digests)


def write_reference(run: RunLayout, controls: Sequence[Scan], config: Config, target: BundleLayout) -> None:
    """Write what an export gives away of its controls: sorted values by measure, and norms; nothing of a few."""
    spec, anatomy = configured_input(config), anatomy_of(config)
    files = [run.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in controls[:MOST]]
    found = likeness_of_controls([measure_scan(one, spec, anatomy) for one in files])
    if found.values:
        write_controls(found, target)


def write_controls(found: ControlLikeness, target: BundleLayout) -> None:
    """Write values and norms of controls as `read_reference` reads them, rounded to `DIGITS`."""
    rows = [
        (name, _rounded(value)) for name, values in found.values.items() for value in np.sort(values) if value == value
    ]
    CONTROL_VALUES_TABLE.write(target.likeness, rows)
    norms = [("regions", found.regions), ("sides", found.sides)]
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
    return ControlLikeness(by_measure, _norm(norms, "regions"), _norm(norms, "sides"))


def _norm(table: pd.DataFrame, kind: str) -> Norm | None:
    rows = table[table["kind"] == kind].sort_values("number")
    return Norm(rows["middle"].to_numpy(float), rows["spread"].to_numpy(float)) if len(rows) else None
