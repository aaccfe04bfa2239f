"""Whether networks, values of β and methods agree on the ranking of regions."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.frame.pages import MAPS
from heatlas.reports.questions.question import Question, Verdict
from heatlas.reports.questions.rows import rows_where
from heatlas.reports.questions.views import View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, is_missing, number, p_value, percent

LARGELY, PARTLY = 0.7, 0.4  # smallest mean rank correlations with which rankings are said to agree largely, and in part
_BETWEEN = {"folds": "networks of different folds", "betas": "values of β", "methods": "LRP and guided backpropagation"}


def facts(run: RunRecord) -> pd.DataFrame | None:
    """Rankings by density that were compared, those of the leading map and those of several maps."""
    if not run.has("ranking_agreement"):
        return None
    rows = rows_where(run, "ranking_agreement", "kendall_w", metric="density", scans="all")
    if rows.empty:
        return rows
    rows = rows[rows["map"].isna() | (rows["map"] == run.leading_map)]
    return rows.assign(correlation=mean_rank_correlation(rows["kendall_w"], rows["n_rankings"]))


def mean_rank_correlation(w: pd.Series, n_rankings: pd.Series) -> pd.Series:
    """Mean Spearman correlation of all pairs of rankings, from Kendall's W (Kendall & Babington Smith 1939).

    W itself is 1 / m for m rankings drawn by chance, so that two rankings look more alike by it than five; this is 0.
    """
    return (n_rankings * w - 1) / (n_rankings - 1)


def _answer(rows: pd.DataFrame) -> Verdict | None:
    """Whether folds, values of beta and methods rank regions alike."""
    if rows.empty:
        return None
    least = rows.sort_values("correlation", kind="stable").iloc[0]
    lead = rows.sort_values("overlap", kind="stable").iloc[0]
    agree = (
        "largely agree" if least["correlation"] >= LARGELY else
        "agree in part" if least["correlation"] >= PARTLY else "hardly agree"
    )  # fmt: skip
    said, first = [_ranked(row) for _, row in rows.iterrows()], rows.iloc[0]
    return Verdict(
        f"Rankings of regions {agree}, least between {_between(least)} (mean rank correlation "
        f"{fixed(least['correlation'])}). Of the first {number(lead['top'])} regions, "
        f"{_between(lead)} share {percent(lead['overlap'], 0)} ({percent(lead['overlap_chance'], 0)} by chance).",
        f"Mean rank correlation (1: the same order, 0: chance) and Kendall's W of the rankings of "
        f"{count(int(first['n_regions']), 'region')} by density, permuted, n = {number(first['n_participants'])}: "
        f"{'; '.join(said)}. Rankings that agree can all be wrong.",
    )


def _ranked(row: pd.Series) -> str:
    return (
        f"{_between(row)} {fixed(row['correlation'])}, W\xa0=\xa0{fixed(row['kendall_w'])}, "
        f"{number(row['n_rankings'])} rankings, "
        f"{percent(row['overlap'], 0)} of the first {number(row['top'])} shared "
        f"({percent(row['overlap_chance'], 0)} by chance), uncorrected {p_value(row['p'])}"
    )


def _between(row: pd.Series) -> str:
    said = _BETWEEN.get(str(row["between"]), str(row["between"]))
    return said if is_missing(row["map"]) else f"{said} ({map_title(str(row['map']))})"


def order_of_networks(run: RunRecord) -> str:
    """Whether networks trained on different people order regions alike in the leading map; empty if they do."""
    rows = facts(run)
    if run.is_given or rows is None or rows.empty:  # one network has nothing to agree with
        return ""
    between_folds = rows.loc[(rows["between"] == "folds") & (rows["map"] == run.leading_map), "correlation"]
    if between_folds.empty or between_folds.iloc[0] >= LARGELY:
        return ""
    how = "only in part alike" if between_folds.iloc[0] >= PARTLY else "very differently"
    return f" Networks trained on different people order the regions {how}: do not read much into the order."


AGREEMENT = Question(
    "agreement", "Do networks, values of β and methods agree?", "Agreement", MAPS,
    "Agreement of rankings of regions. Kendall's W is 1 if all rankings are the same, and 1 divided by their number "
    "by chance. Networks of different folds share most of their training participants, so their agreement is an upper "
    "bound.",
    (
        View(
            "ranking_agreement", "Agreement of rankings of regions by density, over all scans.",
            ("between", "map", "n_rankings", "kendall_w", "overlap", "overlap_chance", "top", "n_regions",
             "n_participants", "note"), where={"metric": ["density"], "scans": ["all"]}, shown=30, leading=False,
        ),
    ),
    facts,
    _answer,
    methods=lambda rows: "Agreement of rankings of regions is Kendall's W [@kendall].",
)  # fmt: skip
