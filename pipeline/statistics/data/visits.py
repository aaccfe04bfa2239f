"""When a scan was made in the course of its participant, and what became of the participant."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.cohort.cells.values import code_text
from pipeline.statistics.arrays import Floats

YEARS = "years_since_first_scan"
CONVERTED, TO_CONVERSION, FOLLOWED = "converted", "months_to_conversion", "months_followed"
OTHER_DEMENTIA = "other_dementia"
"""Columns of ``clinical.tsv``."""
NETWORKS = "networks"
"""Column of ``predictions_applied.tsv``."""


def years_since_first(frame: pd.DataFrame) -> pd.Series:
    """Years from the first scan of each participant in the table, by the clinical table or else by age.

    Parameters
    ----------
    frame : pandas.DataFrame
        With ``participant_id``, ``session_id``, ``age`` and, where the run has it, `YEARS`.

    Returns
    -------
    pandas.Series
        NaN where neither is known; one age at several visits is that of the person and tells nothing. A participant's
        scans are all dated by one of the two: two clocks in one person would make change out of their difference.
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
    """The earliest scan of each participant; undated ones after dated ones, then by the name of the session."""
    years = years_since_first(frame).fillna(np.inf).rename("_years")
    ordered = frame.assign(_years=years).sort_values(
        ["participant_id", "_years", "session_id", "scan_id"], na_position="first", kind="stable"
    )
    return ordered.drop_duplicates("participant_id").drop(columns="_years")


def course_of(frame: pd.DataFrame) -> pd.Series:
    """What a scan's participant was then: the diagnosis, MCI by what became of it; None where that is not known.

    Where no scan of the table has a diagnosis (a contrast of something else), the class of the contrast stands in for
    it: for all scans, since classes beside diagnoses would be groups of two kinds.
    """
    course = frame["progression"].astype(object)
    diagnosis = frame["diagnosis"].astype(object)
    course = course.where(course.notna() & (diagnosis.isna() | (diagnosis == "MCI")), diagnosis)
    if course.isna().all():
        course = frame["label"].astype(object)
    return course.where(course.notna(), None)


def networks_of(frame: pd.DataFrame, column: str = NETWORKS) -> pd.Series:
    """Which networks answered for a scan: folds as in ``predictions_applied.tsv``, 0 or 0;1;2; or the fold itself.

    Someone with labelled scans is given the network of their fold alone, everybody else the mean of all; so all scans
    of a person have one name, in whatever type a table was read.
    """
    if column not in frame.columns:
        return pd.Series("applied", frame.index)
    return frame[column].map(lambda value: code_text(value) if isinstance(value, float) else str(value)).astype(object)


def log_odds(frame: pd.DataFrame) -> Floats:
    """Log odds of the positive class; from the probability where a scan has no logits (there they may saturate)."""
    p = frame["probability"].to_numpy(float)
    smallest = np.finfo(np.float32).tiny
    odds: Floats = np.log(np.clip(p, smallest, 1.0)) - np.log(np.clip(1 - p, smallest, 1.0))
    if not {"logit_positive", "logit_negative"} <= set(frame.columns):
        return odds
    difference = (frame["logit_positive"] - frame["logit_negative"]).to_numpy(float)
    return np.where(np.isnan(difference), odds, difference)
