"""``--parts interactions`` on the first cohort: both sides of regions together, and what evidence is related to."""

from __future__ import annotations

from heatlas.pipeline.evaluation.bench.judging import CohortMaps, Extent, Judge
from heatlas.pipeline.evaluation.bench.stage import Bench
from heatlas.pipeline.evaluation.cohorts import RUN, JudgedCohort
from heatlas.pipeline.evaluation.interactions.sides import (
    INTERACTIONS_TABLE,
    ScanOfSides,
    interaction_table,
    score_sides,
)
from heatlas.pipeline.evaluation.interactions.sources import SOURCES_TABLE, source_table
from heatlas.pipeline.evaluation.nulls import REAL
from heatlas.pipeline.registration.volumes.tables import VOLUMES_TABLE
from heatlas.pipeline.run.work.digests import unit_key
from heatlas.pipeline.run.work.jobs import Job, Outcome, run_jobs

STAGE = "sides"


class SideJobs(Judge):
    """Makes the jobs of a cohort."""

    def jobs(self) -> list[Job]:
        """One unit per positive scan: its regions with two sides, each side and both taken away."""
        jobs, pairs = [], self.cohort.config.evaluation.pairs
        for scan in self.cohort.positive:
            files, network = self._files(scan), self._network(scan, REAL)
            task = ScanOfSides(
                files, network, self.cohort.config.cohort.positive, self.cohort.config.training, self.cohort.atlas,
                pairs,
            )  # fmt: skip
            inputs = {"seen": self.digests.joined(files.seen)}
            inputs |= {f"control {place}": control.digest for place, control in enumerate(network.controls)}
            facts = [scan.name, task.target, self.cohort.atlas.version, network.weights_digest, *pairs]
            path = self.cohort.layout.sides_of_scan(self.cohort.name, scan.name)
            outputs = {"sides": path, "columns": path.with_suffix(".json")}
            unit, key = f"{self.cohort.name}_{scan.name}", unit_key(inputs, facts, score_sides)
            jobs.append(Job(STAGE, unit, key, outputs, score_sides, (task,), on_gpu=True))
        return jobs


def interactions(bench: Bench, cohort: JudgedCohort, rows: CohortMaps) -> list[Outcome]:
    """Write `INTERACTIONS_TABLE` and `SOURCES_TABLE`."""
    explanations, layout = bench.explanations(cohort.config), bench.layout
    jobs = SideJobs(cohort, explanations, Extent(), bench.digests).jobs()
    outcomes = run_jobs(layout, jobs, bench.executor, "sides of regions")
    INTERACTIONS_TABLE.write(layout, interaction_table(cohort, outcomes))
    known = cohort.name == RUN and VOLUMES_TABLE.path(layout).is_file()
    volumes = VOLUMES_TABLE.read(layout) if known else None
    maps = [name for asked in explanations if asked.entry.needs_reference for name in asked.names]
    SOURCES_TABLE.write(layout, source_table(cohort, rows, maps, volumes))
    return outcomes
