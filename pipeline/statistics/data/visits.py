"""Time of each scan, and clinical course of its participant."""

from __future__ import annotations

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.statistics.arrays import Floats

YEARS = "years_since_first_scan"
CONVERTED, TO_CONVERSION, FOLLOWED = "converted", "months_to_conversion", "months_followed"
OTHER_DEMENTIA = "other_dementia"
"""Columns of ``clinical.tsv``."""
NETWORKS = "networks"
"""Column of ``predictions_applied.tsv``."""


def years_since_first(frame: pd.DataFrame) -> pd.Series:
    """Years since each participant's first scan in the table, from the clinical table or else from age.

    `frame`: with ``participant_id``, ``session_id``, ``age`` and, if the run has it, `YEARS`.

    The result is NaN if neither is known; an age that is the same at several visits is that of the person and dates
    none of them. All scans of a participant are dated from the same source, since a difference between sources is not
    change.
    """
    age = frame["age"].astype(float)
    known = frame[YEARS].astype(float) if YEARS in frame.columns else pd.Series(np.nan, frame.index)
    person = frame["participant_id"]
    whole = known.notna().groupby(person).transform("all")
    one_visit = frame["session_id"].groupby(person).transform("nunique") < 2
    of_visits = one_visit | (age.groupby(person).transform("nunique") > 1)
    clock = known.where(whole, age.where(of_visits))
    return clock - clock.groupby(person).transform("min")


def first_visits(frame: pd.DataFrame) -> pd.DataFrame:
    """The earliest scan of each participant; undated scans come after dated ones, then by session name."""
    years = years_since_first(frame).fillna(np.inf).rename("_years")
    ordered = frame.assign(_years=years).sort_values(
        ["participant_id", "_years", "session_id", "scan_id"], na_position="first", kind="stable"
    )
    return ordered.drop_duplicates("participant_id").drop(columns="_years")


def course_of(frame: pd.DataFrame) -> pd.Series:
    """Diagnosis at the scan, with MCI divided by outcome (pMCI, sMCI); None if unknown.

    If no scan of the table has a diagnosis (a contrast of something else), the class of the contrast is used for all
    scans.
    """
    course = frame["progression"].astype(object)
    diagnosis = frame["diagnosis"].astype(object)
    course = course.where(course.notna() & (diagnosis.isna() | (diagnosis == "MCI")), diagnosis)
    if course.isna().all():
        course = frame["label"].astype(object)
    return course.where(course.notna(), None)


def networks_of(frame: pd.DataFrame, column: str = NETWORKS) -> pd.Series:
    """Networks that predicted each scan: folds as in ``predictions_applied.tsv`` (0 or 0;1;2), or the test fold.

    Participants with labelled scans get the network of their fold, all others the mean of all networks; so all scans of
    a participant have the same value, whatever type a table was read in.
    """
    if column not in frame.columns:
        return pd.Series("applied", frame.index)
    return frame[column].map(lambda value: code_text(value) if isinstance(value, float) else str(value)).astype(object)


def log_odds(frame: pd.DataFrame) -> Floats:
    """Log odds of the positive class; from the probability, which may saturate, if a scan has no logits."""
    p = frame["probability"].to_numpy(float)
    smallest = np.finfo(np.float32).tiny
    odds: Floats = np.log(np.clip(p, smallest, 1.0)) - np.log(np.clip(1 - p, smallest, 1.0))
    if not {"logit_positive", "logit_negative"} <= set(frame.columns):
        return odds
    difference = (frame["logit_positive"] - frame["logit_negative"]).to_numpy(float)
    return np.where(np.isnan(difference), odds, difference)
