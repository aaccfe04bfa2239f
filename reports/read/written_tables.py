"""The columns that this version of Heatlas writes: what the report may ask of a table that it finds in a run.

A table of another version may lack some. It is then treated as one that cannot be read: the sections that need it say
so, with the remedy, and the rest of the report is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pandas as pd

from pipeline.cohort.people.splits import SPLIT_COLUMNS
from pipeline.cohort.people.tasks import task_of
from pipeline.cohort.records import LATER_COLUMNS, SCAN_COLUMNS
from pipeline.evaluation.planted import RECOVERY_COLUMNS
from pipeline.evaluation.planted_effects import EFFECTS_COLUMNS
from pipeline.explaining.stage import CONSERVATION_COLUMNS
from pipeline.regions.applied import APPLIED_BILATERAL_COLUMNS
from pipeline.regions.fingerprints import FINGERPRINT_COLUMNS
from pipeline.regions.overlap import OVERLAP_COLUMNS
from pipeline.regions.tables import BILATERAL_COLUMNS
from pipeline.registration.stage import REGISTRATION_COLUMNS
from pipeline.registration.volumes.tables import VOLUME_COLUMNS
from pipeline.run.config.settings import CohortConfig
from pipeline.run.work.jobs import FAILURE_COLUMNS
from pipeline.statistics.associations.associations import ASSOCIATIONS_COLUMNS
from pipeline.statistics.associations.main_effects import MAIN_EFFECTS_COLUMNS
from pipeline.statistics.associations.volume_association import ASSOCIATION_COLUMNS, POINT_COLUMNS
from pipeline.statistics.comparison.rankings import AGREEMENT_COLUMNS
from pipeline.statistics.groups.comparisons import COMPARISONS_COLUMNS
from pipeline.statistics.groups.fairness import FAIRNESS_COLUMNS
from pipeline.statistics.groups.interactions import INTERACTIONS_COLUMNS
from pipeline.statistics.groups.region_effects import EFFECT_COLUMNS
from pipeline.statistics.groups.region_summary import SUMMARY_COLUMNS
from pipeline.statistics.groups.subgroups import SUBGROUPS_COLUMNS
from pipeline.statistics.harmonisation.tables import EFFECT_COLUMNS as SITE_EFFECT_COLUMNS
from pipeline.statistics.harmonisation.tables import MODEL_COLUMNS
from pipeline.statistics.normative.subtypes import COMPARISON_COLUMNS, NUMBER_COLUMNS, SUBTYPE_COLUMNS
from pipeline.statistics.normative.w_scores import CALIBRATION_COLUMNS as W_CALIBRATION_COLUMNS
from pipeline.statistics.normative.w_scores import FINGERPRINT_COLUMNS as W_FINGERPRINT_COLUMNS
from pipeline.statistics.performance.calibration import CALIBRATION_COLUMNS, PRECISION_RECALL_COLUMNS
from pipeline.statistics.performance.classification import PERFORMANCE_COLUMNS, ROC_COLUMNS
from pipeline.statistics.performance.demographics import DEMOGRAPHICS_COLUMNS, TESTS_COLUMNS
from pipeline.statistics.performance.number import NUMBER_PERFORMANCE_COLUMNS
from pipeline.statistics.performance.repeats import REPEATS_COLUMNS
from pipeline.statistics.performance.several_classes import CLASSES_COLUMNS, CONFUSION_COLUMNS
from pipeline.statistics.progression.cox import COX_COLUMNS
from pipeline.statistics.progression.prediction import PROGRESSION_COLUMNS
from pipeline.statistics.progression.trajectories import TRAJECTORY_COLUMNS
from pipeline.statistics.shortcuts.compartments import SHORTCUT_COLUMNS
from pipeline.statistics.shortcuts.site_prediction import SITE_COLUMNS
from pipeline.statistics.stage import NOTES_COLUMNS
from pipeline.training.application import APPLIED_COLUMNS
from pipeline.training.prediction import PREDICTION_COLUMNS, prediction_columns
from pipeline.training.stage import HISTORY_COLUMNS, NUMBER_HISTORY_COLUMNS

COLUMNS: Mapping[str, Collection[str]] = {
    "scans": [name for name in SCAN_COLUMNS if name not in LATER_COLUMNS],
    "splits": SPLIT_COLUMNS,
    "failures": FAILURE_COLUMNS,
    "registration": REGISTRATION_COLUMNS,
    "volumes": VOLUME_COLUMNS,
    "predictions": PREDICTION_COLUMNS,
    "predictions_classes": [name for name in PREDICTION_COLUMNS if not name.startswith("logit_")],
    "predictions_number": prediction_columns(task_of(CohortConfig(target="age"))),
    "performance_classes": CLASSES_COLUMNS,
    "confusion": CONFUSION_COLUMNS,
    "performance_number": NUMBER_PERFORMANCE_COLUMNS,
    "performance_repeats": REPEATS_COLUMNS,
    "histories_number": NUMBER_HISTORY_COLUMNS,
    "predictions_applied": APPLIED_COLUMNS,
    "histories": HISTORY_COLUMNS,
    "conservation": CONSERVATION_COLUMNS,
    "relevance": BILATERAL_COLUMNS,
    "relevance_applied": APPLIED_BILATERAL_COLUMNS,
    "fingerprints": FINGERPRINT_COLUMNS,
    "beta_overlap": OVERLAP_COLUMNS,
    "performance": PERFORMANCE_COLUMNS,
    "roc": ROC_COLUMNS,
    "precision_recall": PRECISION_RECALL_COLUMNS,
    "calibration": CALIBRATION_COLUMNS,
    "demographics": DEMOGRAPHICS_COLUMNS,
    "demographic_tests": TESTS_COLUMNS,
    "volume_association": ASSOCIATION_COLUMNS,
    "volume_points": POINT_COLUMNS,
    "region_summary": SUMMARY_COLUMNS,
    "region_effects": EFFECT_COLUMNS,
    "notes": NOTES_COLUMNS,
    "associations": ASSOCIATIONS_COLUMNS,
    "group_comparisons": COMPARISONS_COLUMNS,
    "subgroups": SUBGROUPS_COLUMNS,
    "fairness": FAIRNESS_COLUMNS,
    "interactions": INTERACTIONS_COLUMNS,
    "cox": COX_COLUMNS,
    "progression": PROGRESSION_COLUMNS,
    "trajectories": TRAJECTORY_COLUMNS,
    "shortcuts": SHORTCUT_COLUMNS,
    "site_prediction": SITE_COLUMNS,
    "ranking_agreement": AGREEMENT_COLUMNS,
    "site_effects": SITE_EFFECT_COLUMNS,
    "harmonisation_models": MODEL_COLUMNS,
    "main_effects": MAIN_EFFECTS_COLUMNS,
    "w_calibration": W_CALIBRATION_COLUMNS,
    "w_fingerprints": W_FINGERPRINT_COLUMNS,
    "subtypes": SUBTYPE_COLUMNS,
    "subtype_numbers": NUMBER_COLUMNS,
    "subtype_comparison": COMPARISON_COLUMNS,
    "planted_recovery": RECOVERY_COLUMNS,
    "planted_effects": EFFECTS_COLUMNS,
}
"""By the name that the report uses. ``clinical.tsv`` is not here: its columns are those that the input has."""


def of_another_version(name: str, file: str, table: pd.DataFrame) -> str:
    """Return what a table lacks and what to do about it, in a sentence; empty where it lacks nothing.

    Examples
    --------
    >>> of_another_version("splits", "splits.tsv", pd.DataFrame({"participant_id": ["sub-1"], "fold": [0]}))
    'splits.tsv has no column part: another version of Heatlas wrote it. Repeat the command that made this run; it redoes what the new version does otherwise, then the report.'
    """  # noqa: E501
    missing = [column for column in COLUMNS.get(name, ()) if column not in table]
    if not missing:
        return ""
    return (
        f"{file} has no column {', '.join(missing)}: another version of Heatlas wrote it. Repeat the command that made "
        "this run; it redoes what the new version does otherwise, then the report."
    )
