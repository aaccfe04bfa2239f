"""``--parts interactions`` on the first cohort: both sides of regions together, and what evidence is related to.

The sides are scored in `studies.interactions.sides`. Here is ``evidence_sources.tsv``: whether the evidence
of a region is related to its volume or to its intensity. Evidence is regressed over participants on the log of the
region's volume (from the Jacobian determinant of the registration) and on its mean intensity as the network sees it,
all standardised. Class and fold are held: patients have both more evidence and smaller regions, so that over both
classes together evidence would be related to volume whatever made it. The slopes are descriptive, not tests; their
intervals are over people, who are drawn with all their scans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.bench.judging import CohortMaps, Extent, Judge, density_of
from heatlas.pipeline.evaluation.bench.part import Bench, Part, Shown
from heatlas.pipeline.evaluation.cohorts import RUN, JudgedCohort
from heatlas.pipeline.evaluation.nulls import REAL
from heatlas.pipeline.models.families.registry import code_of
from heatlas.pipeline.regions.effect_size import NO_SPREAD
from heatlas.pipeline.registration.volumes import VOLUMES_TABLE
from heatlas.pipeline.run.work.digests import unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.interactions.sides import (
    INTERACTIONS_TABLE,
    ScanOfSides,
    interaction_table,
    require_pairs,
    score_sides,
)
from heatlas.studies.tables import declared

Floats = NDArray[np.float64]
DRAWS = 1000
"""Of people, for the intervals."""
FEWEST = 8
"""Scans beyond one for each class and fold, at least."""
SOURCES_TABLE = declared("evidence_sources")


def source_table(cohort: JudgedCohort, rows: CohortMaps, maps: list[str], volumes: pd.DataFrame | None) -> pd.DataFrame:
    """One row per map relative to controls and group; without ``group/volumes.tsv`` slopes of volume are not known."""
    of_scans = () if volumes is None else volumes.groupby("scan_id")
    by_scan = {key: of_scan.groupby("group")["volume_mm3"].sum() for key, of_scan in of_scans}
    made: list[list[object]] = []
    scans = [scan for scan in cohort.scans if scan.scan_id in rows.intensity]
    cell = pd.factorize(pd.Series([(cohort.fold_of(scan), scan.label) for scan in scans], dtype=object))[0]
    drawn = drawn_people([scan.participant_id for scan in scans], cohort.config.seed)
    intensity = np.array([rows.intensity[scan.scan_id] for scan in scans])
    for name in maps:
        evidence = np.array([density_of(rows, REAL, name, scan.scan_id) for scan in scans])
        for place, group in enumerate(rows.groups):
            sizes = (by_scan[s.scan_id].get(group, np.nan) if s.scan_id in by_scan else np.nan for s in scans)
            size = np.array([float(value) for value in sizes])
            with np.errstate(divide="ignore", invalid="ignore"):
                volume = None if volumes is None else np.log(size)
            complete = np.isfinite(intensity[:, place]) & np.isfinite(evidence[:, place])
            complete &= True if volume is None else np.isfinite(volume)
            given = evidence[complete, place], None if volume is None else volume[complete], intensity[complete, place]
            slopes = standardised_slopes(*given, cell[complete])
            bounds = slope_bounds(*given, cell[complete], drawn[:, complete])
            made.append([cohort.name, name, group, int(complete.sum()), int((~complete).sum()), *slopes, *bounds])
    return SOURCES_TABLE.frame(made)


def standardised_slopes(
    evidence: Floats, volume: Floats | None, intensity: Floats, cell: NDArray[np.intp]
) -> tuple[float, float, float]:
    """Slopes of both and r2 of the regression of evidence within cells; NaN with too few people or without spread.

    Where no volume is known (None), the slope of intensity is that without it.

    `cell`: class and fold of each scan: all three are measured from the mean of theirs, since classes differ in all
    three, and evidence of different folds comes from different networks.

    Examples
    --------
    >>> volume, intensity = np.arange(10.0), np.arange(10.0) ** 2 % 7
    >>> [round(one, 6) + 0.0 for one in standardised_slopes(2 * volume, volume, intensity, np.zeros(10, int))]
    [1.0, 0.0, 1.0]
    """
    nothing = (float("nan"),) * 3
    if len(evidence) - len(np.unique(cell)) < FEWEST:
        return nothing
    within = [None if values is None else _within(values, cell) for values in (evidence, volume, intensity)]
    y, x = within[0], [values for values in within[1:] if values is not None]
    if y is None or not x:
        return nothing
    design = np.stack(x, axis=1)
    slopes = np.linalg.lstsq(design, y, rcond=None)[0]
    by_order = iter(slopes.tolist())
    both = [float("nan") if values is None else next(by_order) for values in within[1:]]
    r2 = 1 - float(((y - design @ slopes) ** 2).sum() / (y**2).sum())
    return both[0], both[1], max(r2, 0.0)


def drawn_people(people: Sequence[str], seed: int, draws: int = DRAWS) -> Floats:
    """How often each scan is drawn, (draws, scans), where people are drawn with replacement."""
    owner, names = pd.factorize(np.asarray(people, dtype=object))
    if not len(names):
        return np.zeros((draws, 0))
    chosen = generator(seed, "evidence sources").multinomial(len(names), np.full(len(names), 1 / len(names)), draws)
    return chosen[:, owner].astype(np.float64)


def slope_bounds(
    evidence: Floats, volume: Floats | None, intensity: Floats, cell: NDArray[np.intp], drawn: Floats
) -> tuple[float, float, float, float]:
    """95 % intervals of both slopes of `standardised_slopes` over draws (draws, scans), low and high of each.

    NaN where a slope is not known. Draws in which evidence, volume or intensity has no spread are left out.
    """
    slopes = standardised_slopes(evidence, volume, intensity, cell)
    if np.isnan(slopes[2]):
        return (float("nan"),) * 4
    member = cell[:, None] == np.unique(cell)[None]
    sizes = np.maximum(drawn @ member, np.finfo(float).tiny)
    places = member.argmax(1)

    def within(values: Floats) -> Floats:
        centred = values - ((drawn * values) @ member / sizes)[:, places]
        return np.asarray(centred / np.sqrt((drawn * centred**2).sum(1, keepdims=True)))

    with np.errstate(divide="ignore", invalid="ignore"):
        y = within(evidence)
        terms: list[Floats | None] = [
            None if x is None or np.isnan(slope) else within(x)
            for slope, x in zip(slopes[:2], (volume, intensity), strict=True)
        ]
        alone = [None if x is None else (drawn * x * y).sum(1) for x in terms]
        shared = 0.0 if terms[0] is None or terms[1] is None else (drawn * terms[0] * terms[1]).sum(1)
        both = [
            np.nan if first is None else (first - shared * (0.0 if other is None else other)) / (1 - shared**2)
            for first, other in (alone, alone[::-1])
        ]
    bounds = [_bounds(np.asarray(drawn_slopes, dtype=np.float64)) for drawn_slopes in both]
    return (*bounds[0], *bounds[1])


def _bounds(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [0.025, 0.975]) if finite.size else (np.nan, np.nan)
    return float(low), float(high)


def _within(values: Floats, cell: NDArray[np.intp]) -> Floats | None:
    """Values from the mean of their cell, in standard deviations; None if they vary in no cell."""
    centred = values.astype(np.float64)
    for number in np.unique(cell):
        centred[cell == number] -= centred[cell == number].mean()
    spread = float(np.sqrt((centred**2).mean()))
    return centred / spread if spread > NO_SPREAD * np.abs(values).max(initial=0) else None


STAGE = "sides"


class SideJobs(Judge):
    """Makes the jobs of a cohort."""

    def jobs(self) -> list[Job]:
        """One unit per positive scan: its regions with two sides, each side and both taken away."""
        jobs, cohort, config = [], self.cohort, self.cohort.config
        for scan in self.cohort.positive:
            files, network = self._files(scan), self._network(scan, REAL)
            pairs = config.evaluation.pairs
            task = ScanOfSides(files, network, config.cohort.positive, config.training, cohort.atlas, pairs)
            inputs = {"seen": self.digests.joined(files.seen)}
            inputs |= {f"control {place}": control.digest for place, control in enumerate(network.controls)}
            facts = [scan.name, task.target, cohort.atlas.version, network.version, *pairs]
            path = cohort.layout.sides_of_scan(self.cohort.name, scan.name)
            outputs = {"sides": path, "columns": path.with_suffix(".json")}
            unit = f"{cohort.name}_{scan.name}"
            key = unit_key(inputs, facts, score_sides, *code_of(cohort.config.model))
            jobs.append(Job(STAGE, unit, key, outputs, score_sides, (task,), on_gpu=True))
        return jobs


def interactions(bench: Bench, cohort: JudgedCohort, rows: CohortMaps) -> list[Outcome]:
    explanations, layout = bench.explanations(cohort.config), bench.layout
    jobs = SideJobs(cohort, explanations, Extent(), bench.digests).jobs()
    outcomes = run_jobs(layout, jobs, bench.executor, "sides of regions")
    INTERACTIONS_TABLE.write(layout, interaction_table(cohort, outcomes))
    has_volumes = cohort.name == RUN and VOLUMES_TABLE.path(layout).is_file()
    volumes = VOLUMES_TABLE.read(layout) if has_volumes else None
    maps = [name for asked in explanations if asked.entry.needs_reference for name in asked.names]
    SOURCES_TABLE.write(layout, source_table(cohort, rows, maps, volumes))
    return outcomes


PART = Part(
    "interactions", "the two sides of each region alone and together", extent={"controls"}, after=interactions,
    require=lambda _, config: require_pairs(config), tables=(INTERACTIONS_TABLE, SOURCES_TABLE),
    shown=(
        Shown("Does the network need both sides of a region?", "interactions_of_sides", "--parts nulls interactions"),
        Shown(
            "Is evidence related to size or to brightness?", "evidence_sources",
            "--parts nulls interactions --methods expected-gradients",
        ),
    ),
)  # fmt: skip
