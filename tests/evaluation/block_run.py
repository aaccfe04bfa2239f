"""A run folder of synthetic scans at 4 mm whose brain is eight blocks; patients are brighter in one of them."""

from __future__ import annotations

import itertools

import nibabel as nib
import numpy as np

from heatlas.atlases.labels import Atlas
from heatlas.atlases.regions import Region, RegionTable
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.cohorts import RUN, JudgedCohort, Truth
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig, TrainingConfig
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import run_jobs
from heatlas.pipeline.training.stage import fold_job, registered_versions
from tests.training.run_of_folds import Inline

GRID = template_grid(4.0)
BLOCKS = tuple(f"block {number}" for number in range(8))
INFORMATIVE = BLOCKS[3]
CONFIG = Config(
    seed=5,
    registration=RegistrationConfig(resolution_mm=4.0),
    model=FoundingConfig(field_of_view="template", channels=(4, 8), pools=(3, 4), hidden_units=8, dropout=0.0),
    training=TrainingConfig(
        learning_rate=5e-3, max_epochs=4, min_epochs=4, patience=4, flip_probability=0.0, max_shift_voxels=0
    ),
)


def atlas() -> Atlas:
    labels = np.zeros(GRID.shape, np.int32)
    corners = itertools.product((8, 24), (10, 30), (4, 22))
    for number, (x, y, z) in enumerate(corners, start=1):
        labels[x : x + 16, y : y + 20, z : z + 18] = number
    regions = tuple(Region(n, name, "both", "n/a", "GM", name) for n, name in enumerate(BLOCKS, start=1))
    return Atlas("blocks", "Eight blocks", GRID, labels, RegionTable(regions), "own work", "digest")


def scans(count: int = 24) -> tuple[Scan, ...]:
    return tuple(Scan(f"sub-{n:02}", None, f"I{n:02}", None, label="AD" if n % 2 else "CN") for n in range(count))


def split(count: int = 24) -> Split:
    names = [scan.participant_id for scan in scans(count)]
    halves = names[: count // 2], names[count // 2 :]
    return Split(
        tuple(
            Fold(index, tuple(halves[1 - index][:-4]), tuple(halves[1 - index][-4:]), tuple(halves[index]))
            for index in range(2)
        )
    )


def block_cohort(layout: EvaluationLayout, config: Config = CONFIG) -> JudgedCohort:
    """Write the scans. The range of intensities, by which networks scale them, is the same in every scan."""
    labels = atlas().labels
    for number, scan in enumerate(scans()):
        volume = np.random.default_rng(number).normal(60, 10, GRID.shape)
        volume[labels == 4] += 25 * (scan.label == "AD")
        volume = np.clip(volume, 20, 120)
        volume[8, 10, 4], volume[9, 10, 4] = 0, 140
        files = layout.scan(scan.participant_id, scan.session_id, 4.0)
        files.t1w.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image((volume * (labels > 0)).astype(np.float32), GRID.affine), files.t1w)
        nib.save(nib.Nifti1Image((labels > 0).astype(np.uint8), GRID.affine), files.brain_mask)
    return JudgedCohort(
        RUN, layout, scans(), split(), config, PackedAtlas.of(atlas()), Truth((INFORMATIVE,)), scans(), scans()
    )


def train_run(cohort: JudgedCohort) -> None:
    """Train the networks of the run."""
    digests = DigestCache(cohort.layout.digests)
    versions = registered_versions(cohort.layout, cohort.scans, cohort.config, digests)
    spec = configured_input(cohort.config)
    jobs = [fold_job(cohort.layout, fold, cohort.scans, spec, cohort.config, versions) for fold in cohort.split.folds]
    assert all(one.ok for one in run_jobs(cohort.layout, jobs, Inline(), "training"))
