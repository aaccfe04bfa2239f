"""The tables that the report reads, as the stages declare them.

A table of another version of Heatlas may lack a column. It is then treated as one that cannot be read: the sections
that need it say so, with the remedy, and the rest of the report is made.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from heatlas.pipeline.cohort.people.balance import SPLIT_BALANCE_TABLE
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE
from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES, TWO_CLASSES, KindName
from heatlas.pipeline.cohort.records import CLINICAL_TABLE, SCANS_TABLE
from heatlas.pipeline.cohort.sharing.manifest import MANIFEST_COMPARISON_TABLE
from heatlas.pipeline.evaluation.parts import BENCH_TABLES
from heatlas.pipeline.evaluation.planted import PLANTED_RECOVERY_TABLE
from heatlas.pipeline.evaluation.planted_effects import PLANTED_EFFECTS_TABLE
from heatlas.pipeline.explaining.own_regions import OWN_REGIONS_TABLE
from heatlas.pipeline.explaining.stage import (
    CONSERVATION_APPLIED_TABLE,
    CONSERVATION_TABLE,
    EVIDENCE_APPLIED_TABLE,
    EVIDENCE_TABLE,
)
from heatlas.pipeline.regions.applied import RELEVANCE_APPLIED_BILATERAL_TABLE, RELEVANCE_APPLIED_TABLE
from heatlas.pipeline.regions.audit import RELEVANCE_AUDIT_TABLE
from heatlas.pipeline.regions.channels import RELEVANCE_CHANNELS_TABLE
from heatlas.pipeline.regions.fingerprints import FINGERPRINTS_TABLE
from heatlas.pipeline.regions.overlap import BETA_OVERLAP_TABLE
from heatlas.pipeline.regions.partial_sums import PARTIAL_TABLE
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, RELEVANCE_TABLE
from heatlas.pipeline.registration.quality.decisions import FLAGGED_TABLE
from heatlas.pipeline.registration.quality.region_quality import REGION_QUALITY_TABLE
from heatlas.pipeline.registration.stage import REGISTRATION_TABLE
from heatlas.pipeline.registration.volumes.tables import TEST_RETEST_TABLE, VOLUMES_TABLE
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE
from heatlas.pipeline.statistics.data.values import IMAGE_REGIONS_TABLE
from heatlas.pipeline.statistics.images.voxelwise import VOXELWISE_TABLES
from heatlas.pipeline.statistics.stage import STATISTICS_TABLES
from heatlas.pipeline.training.application import PREDICTIONS_APPLIED_TABLE
from heatlas.pipeline.training.baselines.stage import PREDICTIONS_BASELINES_TABLE
from heatlas.pipeline.training.prediction import PREDICTIONS_CLASSES_TABLE, PREDICTIONS_NUMBER_TABLE, PREDICTIONS_TABLE
from heatlas.pipeline.training.pretraining.stage import PRETRAINING_TABLE
from heatlas.pipeline.training.stage import HISTORIES_NUMBER_TABLE, HISTORIES_TABLE, PREDICTIONS_REPEATS_TABLE

DECLARED = (
    SCANS_TABLE, MANIFEST_COMPARISON_TABLE, SPLITS_TABLE, SPLIT_BALANCE_TABLE, FAILURES_TABLE, FLAGGED_TABLE,
    REGISTRATION_TABLE, REGION_QUALITY_TABLE, CLINICAL_TABLE, VOLUMES_TABLE, TEST_RETEST_TABLE, HISTORIES_TABLE,
    HISTORIES_NUMBER_TABLE, PREDICTIONS_TABLE, PREDICTIONS_CLASSES_TABLE, PREDICTIONS_NUMBER_TABLE,
    PREDICTIONS_REPEATS_TABLE, PREDICTIONS_BASELINES_TABLE, RELEVANCE_BILATERAL_TABLE, PREDICTIONS_APPLIED_TABLE,
    RELEVANCE_APPLIED_BILATERAL_TABLE, CONSERVATION_TABLE, CONSERVATION_APPLIED_TABLE, EVIDENCE_TABLE,
    EVIDENCE_APPLIED_TABLE, PARTIAL_TABLE, RELEVANCE_TABLE, RELEVANCE_APPLIED_TABLE, RELEVANCE_AUDIT_TABLE,
    FINGERPRINTS_TABLE, BETA_OVERLAP_TABLE, OWN_REGIONS_TABLE, RELEVANCE_CHANNELS_TABLE, PLANTED_RECOVERY_TABLE,
    PLANTED_EFFECTS_TABLE,
    IMAGE_REGIONS_TABLE, *STATISTICS_TABLES, *VOXELWISE_TABLES, *BENCH_TABLES, PRETRAINING_TABLE,
)  # fmt: skip
"""All tables of a run and of what is made from it."""
ALL_TABLES: Mapping[str, Table] = {table.name: table for table in DECLARED}
TABLES: Mapping[str, Table] = {table.name: table for table in DECLARED if table.on_pages}
"""Those the report is made from, by the name its sections use."""

PREDICTIONS_OF: Mapping[KindName, str] = {
    TWO_CLASSES: "predictions", SEVERAL_CLASSES: "predictions_classes", NUMBER: "predictions_number",
}  # fmt: skip
"""Name of ``predictions.tsv`` by task: only sections that are made for a task find its predictions."""
HISTORIES_OF: Mapping[KindName, str] = {
    TWO_CLASSES: "histories", SEVERAL_CLASSES: "histories", NUMBER: "histories_number",
}  # fmt: skip
"""Name of ``history.tsv`` by task."""


def tables_of(kind: KindName) -> dict[str, Table]:
    """Those of `TABLES` that a run with this kind of task can have; the same file has other columns for another."""
    others = {*PREDICTIONS_OF.values(), *HISTORIES_OF.values()} - {PREDICTIONS_OF[kind], HISTORIES_OF[kind]}
    return {name: table for name, table in TABLES.items() if name not in others}


def of_another_version(name: str, file: str, table: pd.DataFrame) -> str:
    """Return what a table lacks and what to do about it, in a sentence; empty where it lacks nothing.

    Examples
    --------
    >>> of_another_version("splits", "splits.tsv", pd.DataFrame({"participant_id": ["sub-1"], "fold": [0]}))
    'splits.tsv has no column part: another version of Heatlas wrote it. Repeat the command that made this run; it redoes what the new version does otherwise, then the report.'
    """  # noqa: E501
    missing = [column for column in ALL_TABLES[name].required if column not in table]
    if not missing:
        return ""
    return (
        f"{file} has no column {', '.join(missing)}: another version of Heatlas wrote it. Repeat the command that made "
        "this run; it redoes what the new version does otherwise, then the report."
    )
