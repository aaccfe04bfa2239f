"""Tables of scores against controls, of each participant's fingerprint, and of subtypes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.run.errors import BadInputError
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.region_features import FoldedScans
from pipeline.statistics.linear.covariates import refuse_class
from pipeline.statistics.normative.subtypes import (
    COMPARISON_COLUMNS,
    NUMBER_COLUMNS,
    SUBTYPE_COLUMNS,
    compare_subtypes,
    find_subtypes,
)
from pipeline.statistics.normative.w_scores import (
    CALIBRATION_COLUMNS,
    FINGERPRINT_COLUMNS,
    NORM_COLUMNS,
    W_SCORE_COLUMNS,
    calibration_table,
    fingerprint_table,
    norm_table,
    score,
    score_table,
)


def normative_tables(inputs: StatisticsInputs) -> Mapping[str, tuple[pd.DataFrame, Mapping[str, str]]]:
    """Score all scans against controls outside their fold, and look for subtypes among patients.

    Returns
    -------
    mapping
        ``w_scores``, ``w_norms``, ``w_calibration``, ``w_fingerprints``, ``subtypes``, ``subtype_numbers``,
        ``subtype_comparison``.

    Raises
    ------
    BadInputError
        If the covariates name a column that is not there or tells the class, or no control outside any fold has values.
    """
    config = inputs.config
    scans = FoldedScans.of(inputs)
    for name in ("relevance_covariates", "volume_covariates"):
        formula, setting = getattr(config.statistics.normative, name), f"statistics.normative.{name}"
        refuse_class(formula, config.cohort.contrast_column, list(map(str, scans.frame.columns)), setting)
    is_control = (scans.frame["label"] == config.cohort.negative).to_numpy(bool)
    if not any((scans.training(fold) & is_control).any() for fold in scans.folds):
        raise BadInputError(
            f"norms: no participant of {config.cohort.negative} outside a test fold has values of networks that never "
            'saw them. Set cohort.split = "folds", or check cohort.negative.'
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
        "w_scores": (inputs.as_named(scores), W_SCORE_COLUMNS),
        "w_norms": (pd.concat([norm_table(one) for one in scored], ignore_index=True), NORM_COLUMNS),
        "w_calibration": (pd.concat(calibration, ignore_index=True), CALIBRATION_COLUMNS),
        "w_fingerprints": (fingerprints, FINGERPRINT_COLUMNS),
        "subtypes": (pd.concat([one.table() for one in found], ignore_index=True), SUBTYPE_COLUMNS),
        "subtype_numbers": (pd.concat([one.numbers for one in found], ignore_index=True), NUMBER_COLUMNS),
        "subtype_comparison": (compare_subtypes(found, frame, fold_of, config), COMPARISON_COLUMNS),
    }
