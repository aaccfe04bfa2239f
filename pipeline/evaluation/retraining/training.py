"""Which trainings without regions there are: one per fold and set of regions."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.retraining.unit import Removal, retrain_fold
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.explaining.networks import ReferenceScan
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job
from heatlas.pipeline.training.objectives.known_networks import without_other_runs
from heatlas.pipeline.training.stage import FoldTask, fold_job, registered_versions

STAGE = "retraining"


class Retraining:
    """Makes the jobs of a cohort: one per fold and set of regions, whichever methods and draws ask for the set.

    Parameters
    ----------
    cohort : JudgedCohort
    digests : DigestCache
    """

    def __init__(self, cohort: JudgedCohort, digests: DigestCache) -> None:
        self._cohort, self._scans = cohort, cohort.labelled
        self._versions = registered_versions(cohort.layout, self._scans, cohort.config, digests)
        self._controls = controls_of(cohort.compared_with, cohort.split, cohort.config)
        self._spec = configured_input(cohort.config)

    def job(self, fold: Fold, groups: Sequence[str]) -> Job:
        cohort = self._cohort
        members = cohort.atlas.regions.groups
        numbers = tuple(sorted(number for name in groups for number in members[name]))
        token = hashlib.sha256(repr(numbers).encode()).hexdigest()[:10]
        layout = dataclasses.replace(cohort.layout, networks=f"{cohort.name}_without-{token}")
        base = fold_job(
            layout,
            fold,
            self._scans,
            self._spec,
            without_other_runs(cohort.config),
            self._versions,
            prefix=f"{layout.networks}_",
        )
        chosen = self._controls.by_fold[fold.index][: self._controls.size]
        resolution = cohort.config.registration.resolution_mm
        controls = tuple(
            ReferenceScan(cohort.layout.scan(one.participant_id, one.session_id, resolution), self._versions[one.name])
            for one in chosen
        )
        inputs = {"training": base.key} | {f"control {place}": one.digest for place, one in enumerate(controls)}
        key = unit_key(inputs, [numbers, cohort.atlas.version], retrain_fold)
        task: FoldTask = base.arguments[0]
        outputs = {name: base.outputs[name] for name in ("predictions", "predictions_columns")}
        removal = Removal(numbers, controls, cohort.atlas)
        return Job(STAGE, base.unit, key, outputs, retrain_fold, (task, key, removal), on_gpu=True)
