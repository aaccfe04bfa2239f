"""Tables of scores against controls, of each participant's fingerprint, and of subtypes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.region_features import FoldedScans
from heatlas.pipeline.statistics.linear.covariates import refuse_class
from heatlas.pipeline.statistics.normative.subtypes import (
    SUBTYPE_COMPARISON_TABLE,
    SUBTYPE_NUMBERS_TABLE,
    SUBTYPES_TABLE,
    compare_subtypes,
    find_subtypes,
)
from heatlas.pipeline.statistics.normative.w_scores import (
    W_CALIBRATION_TABLE,
    W_FINGERPRINTS_TABLE,
    W_NORMS_TABLE,
    W_SCORES_TABLE,
    calibration_table,
    fingerprint_table,
    norm_table,
    score,
    score_table,
)

NORMATIVE_TABLES = (
    W_SCORES_TABLE, W_NORMS_TABLE, W_CALIBRATION_TABLE, W_FINGERPRINTS_TABLE, SUBTYPES_TABLE, SUBTYPE_NUMBERS_TABLE,
    SUBTYPE_COMPARISON_TABLE,
)  # fmt: skip


def normative_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Score all scans against controls outside their fold, and look for subtypes among patients.

    BadInputError if the covariates name a missing column or one that contains the class, or if no fold has controls
    with values outside it.
    """
    config = inputs.config
    scans = FoldedScans.of(inputs)
    for name in ("relevance_covariates", "volume_covariates"):
        formula, setting = getattr(config.statistics.normative, name), f"statistics.normative.{name}"
        refuse_class(formula, config.cohort.contrast_column, list(map(str, scans.frame.columns)), setting)
    is_control = (scans.frame["label"] == config.cohort.negative).to_numpy(bool)
    if not any((scans.training(fold) & is_control).any() for fold in scans.folds):
        raise BadInputError(
            f"norms: no participant of {config.cohort.negative} outside a test fold has out-of-fold values. "
            'Set cohort.split = "folds", or check cohort.negative.'
        )
    scored = [score(features, scans, config) for features in scans.sources]
    scores = pd.concat([score_table(one, scans) for one in scored], ignore_index=True)
    fingerprints = fingerprint_table(scores)
    patients = fingerprints[fingerprints["label"] == config.cohort.positive]
    positive = (scans.frame["label"] == config.cohort.positive).to_numpy(bool)
    frame = scans.frame[positive]
    fold_of = dict(zip(frame["participant_id"], np.array(scans.fold, dtype=object)[positive], strict=True))
    found = [find_subtypes(patients, one.features.source, fold_of, config) for one in scored]
    calibration = [calibration_table(one, scans, config.cohort.negative) for one in scored]
    return {
        "w_scores": inputs.as_named(scores),
        "w_norms": pd.concat([norm_table(one) for one in scored], ignore_index=True),
        "w_calibration": pd.concat(calibration, ignore_index=True),
        "w_fingerprints": fingerprints,
        "subtypes": pd.concat([one.table() for one in found], ignore_index=True),
        "subtype_numbers": pd.concat([one.numbers for one in found], ignore_index=True),
        "subtype_comparison": compare_subtypes(found, frame, fold_of, config),
    }
