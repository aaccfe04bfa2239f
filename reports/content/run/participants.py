"""The list of participants, each with a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from heatlas.reports.figures.style import OUTCOME_NAMES
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, numeric, page_table, remark
from heatlas.reports.read.people import People
from heatlas.reports.words.numbers import count, fixed, is_missing


def build(material: Material) -> Mapping[str, Any]:
    """One row per participant with a kept scan."""
    if not material.shows_people:
        return {"table": None, "left_out": True}
    run = material.run
    visits = People(run).visits
    rows = []
    for participant, scans in visits.groupby("participant_id", sort=True):
        outcomes = [OUTCOME_NAMES[str(name)] for name in dict.fromkeys(scans["outcome"].dropna())]
        folds = dict.fromkeys(str(fold).removesuffix(".0") for fold in scans["fold"] if not is_missing(fold))
        rows.append({
            "participant_id": participant, "page": material.links.participant(participant), "scans": len(scans),
            "diagnosis": ", ".join(dict.fromkeys(scans["diagnosis"].dropna().astype(str))),
            "age": scans["age"].iloc[0], "sex": scans["sex"].iloc[0], "site": scans["site"].iloc[0],
            "fold": ", ".join(folds) or None, "probability": pd.to_numeric(scans["probability"]).mean(),
            "outcome": ", ".join(outcomes) or None,
            "predicted": fixed(pd.to_numeric(scans["predicted"]).mean(), 1) if run.task.is_number else None,
        })  # fmt: skip
    title, hint = f"Probability of {run.positive}", "mean over scans"
    probability = [] if run.task.is_number else [numeric("probability", title, lambda x: fixed(x, 3), hint)]
    columns = (
        Column("participant_id", "Participant", link="page"),
        Column("diagnosis", "Diagnosis"),
        Column("outcome", "Outcome", remark),
        Column("predicted", f"Predicted {run.task.column}", remark),
        *probability,
        Column("fold", "Fold", remark),
        numeric("scans", "Scans"),
        numeric("age", "Age, years", lambda x: fixed(x, 0), "at the first kept scan"),
        Column("sex", "Sex"),
        Column("site", "Site"),
    )
    caption = f"{count(len(rows), 'participant')} with kept scans; each name leads to a page."
    return {"table": page_table(pd.DataFrame(rows), columns, caption) if rows else None, "left_out": False}
