"""Who the analysed participants are, by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cohort.records import Scan
from pipeline.run.config import CohortConfig
from pipeline.statistics.inputs import StatisticsInputs

TOTAL = "all"

DEMOGRAPHICS_COLUMNS = {
    "label": "Class, or all. A participant with scans of both classes is in both",
    "variable": "scans (per participant), age (years), female (share), mmse, tiv_mm3 or hippocampus_mm3",
    "n_participants": "Participants of the class",
    "n_scans": "Scans of the class",
    "n_known": "Participants with a value",
    "mean": "Mean over participants, each participant's scans of the class averaged first",
    "sd": "Standard deviation between participants (n - 1)",
    "minimum": "Smallest value of a participant",
    "maximum": "Largest value of a participant",
}
_VARIABLES = ("scans", "age", "female", "mmse", "tiv_mm3", "hippocampus_mm3")


def demographics(scans: Sequence[Scan], cohort: CohortConfig) -> pd.DataFrame:
    """One row per class and variable.

    Parameters
    ----------
    scans : sequence of Scan
        Those analysed.
    cohort : CohortConfig
        Names the classes.

    Returns
    -------
    pandas.DataFrame
        Columns of `DEMOGRAPHICS_COLUMNS`; also for a class without scans.
    """
    frame = pd.DataFrame([_facts(scan) for scan in scans], columns=["participant_id", "label", *_VARIABLES])
    rows = []
    for label in (TOTAL, cohort.positive, cohort.negative):
        own = frame if label == TOTAL else frame[frame["label"] == label]
        people = own.groupby("participant_id")
        values = people[list(_VARIABLES[1:])].mean().assign(scans=people.size().astype(float))
        for variable in _VARIABLES:
            rows.append(_row(label, variable, len(own), values[variable]))
    return pd.DataFrame(rows, columns=list(DEMOGRAPHICS_COLUMNS))


def demographics_tables(inputs: StatisticsInputs) -> Mapping[str, tuple[pd.DataFrame, Mapping[str, str]]]:
    """Table ``demographics``."""
    return {"demographics": (demographics(inputs.scans, inputs.config.cohort), DEMOGRAPHICS_COLUMNS)}


def _facts(scan: Scan) -> dict[str, Any]:
    numbers = {name: getattr(scan, name) for name in ("age", "mmse", "tiv_mm3", "hippocampus_mm3")}
    female = None if scan.sex is None else float(scan.sex == "F")
    values = {name: np.nan if value is None else float(value) for name, value in {**numbers, "female": female}.items()}
    return {"participant_id": scan.participant_id, "label": scan.label, "scans": 1.0, **values}


def _row(label: str, variable: str, n_scans: int, values: pd.Series) -> dict[str, Any]:
    known = values.dropna()
    return {
        "label": label,
        "variable": variable,
        "n_participants": len(values),
        "n_scans": n_scans,
        "n_known": len(known),
        "mean": known.mean(),
        "sd": known.std(ddof=1),
        "minimum": known.min(),
        "maximum": known.max(),
    }
