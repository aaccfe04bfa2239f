"""Shares of maps in grids of finished runs of patients, which `heatlas evaluate RUN --parts grids` has judged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd
from inherent_runs import Ask, Workplace

from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.studies.grids.directions import by_participant
from heatlas.studies.grids.stage import read_scores

PLACES = ["setting", "kind", "method", "stage"]
IN_THE_COPY = "in the copy, less an even map"
"""Of the share in cells of the class that the head cannot see."""


def units(work: Workplace, _: int) -> Iterator[tuple[str, Ask]]:
    yield "grids", partial(shares, work.run)


def units_of_nine(work: Workplace, _: int) -> Iterator[tuple[str, Ask]]:
    """The same of a run that was judged in grids of nine cells."""
    yield "nine cells", partial(shares, work.run, "nine cells, ")


def shares(run: Path, before: str = "") -> pd.DataFrame:
    """Of each person the mean share by place, as "SETTING KIND: METHOD at STAGE"."""
    scores, people = read(run)
    scores = scores.assign(copy=(scores["class_share"] - scores["share"]).fillna(0) - scores["chance"])
    columns = {}
    for (setting, kind, method, stage), own in scores.groupby(PLACES, sort=False):
        name = f"{before}{setting} {kind}: {method} at {stage:g}"
        columns[name] = by_participant(own, people, "share")
        if setting == "DiFull":
            columns[f"{name}, {IN_THE_COPY}"] = by_participant(own, people, "copy")
    return pd.DataFrame(columns).rename_axis("person").reset_index()


def read(run: Path) -> tuple[pd.DataFrame, dict[int, str]]:
    """Scores of the grids of a run, and the person of each scan."""
    scores = read_scores(sorted((EvaluationLayout(run.resolve()).evaluation / "grids").glob("*_scores.tsv")))
    people = {place: scan.participant_id for place, scan in enumerate(ScanTable.read(run / "scans.tsv").kept)}
    return scores[scores["grid"].notna()], people
