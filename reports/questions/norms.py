"""Against the norm: whether norms fit controls that they were not made from, and whether patients have subtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.frame.pages import CLINICAL
from heatlas.reports.questions.question import CLEAR, Question, Verdict
from heatlas.reports.questions.rows import rows_where
from heatlas.reports.questions.views import View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, listing, number, percent, shortened
from heatlas.reports.words.wording import OWN

FIT = 0.1  # largest share of control scores beyond ±1.96 (expected: 0.05) with which norms are said to fit
CENTRE = 0.2  # largest mean z of controls (expected: 0) with which norms are said to fit: a small effect (Cohen)
FEW_CONTROLS = 50


@dataclass(frozen=True)
class Norms:
    """What is known of norms and subtypes."""

    calibration: Mapping[str, pd.DataFrame]  # controls by region, of the leading map and of volumes, by their titles
    kinds: pd.DataFrame  # numbers of subtypes that were tried, of the leading map
    compared: pd.DataFrame  # measures in which they were compared
    has_scores: bool
    has_kinds: bool
    positive: str
    negative: str


def facts(run: RunRecord) -> Norms:
    lead = run.leading_map
    sources = {lead: map_title(lead), "volume": f"volumes ({OWN})"}
    calibration = {
        title: rows_where(run, "w_calibration", fold="all", source=source, known="beyond")
        for source, title in sources.items()
    }
    return Norms(
        {title: rows for title, rows in calibration.items() if len(rows)},
        rows_where(run, "subtype_numbers", source=lead), rows_where(run, "subtype_comparison", source=lead),
        run.has("w_fingerprints"), run.has("subtype_numbers"), run.positive, run.negative,
    )  # fmt: skip


def _answer(norms: Norms) -> Verdict | None:
    """Whether norms fit controls that they were not made from, and whether patients fall into subtypes."""
    parts, worst, off, fewest = [], 0.0, 0.0, float("inf")
    for title, rows in norms.calibration.items():
        worst, fewest = max(worst, float(rows["beyond"].mean())), min(fewest, int(rows["n_controls"].max()))
        centre = float(rows["mean_z"].mean())
        off = max(off, abs(centre))
        far = rows.sort_values("mean_z", key=abs, kind="stable").iloc[-1]
        parts.append(
            f"{title}: {percent(rows['beyond'].mean(), 1)} of the scores of "
            f"{count(int(rows['n_controls'].max()), 'control')} lie beyond ±1.96, over "
            f"{count(len(rows), 'region')} (5 % if the norms fit); their mean z is {fixed(centre)} (0 if they fit), "
            f"the largest of a region {fixed(far['mean_z'])} ({shortened(far['group'])})"
        )
    if not parts:
        return None
    doubt = ", but few controls were tested" if fewest < FEW_CONTROLS else ""
    wrong = [what for what, is_wrong in (("in the tails", worst > FIT), ("at the centre", off > CENTRE)) if is_wrong]
    answer = f"The norms do not fit well {listing(wrong)}." if wrong else f"Controls scored as the norms expect{doubt}."
    return Verdict(
        answer,
        f"Each of {norms.negative} was scored against a norm made from others; this is not tested. {'; '.join(parts)}."
        f"{_kinds(norms)}",
    )


def _kinds(norms: Norms) -> str:
    """Number of subtypes of the leading map, in a sentence."""
    rows = norms.kinds
    chosen = rows[rows["chosen"].astype(str).str.lower() == "true"] if len(rows) else rows
    if chosen.empty:
        return ""
    row, most = chosen.iloc[0], number(rows["k"].max())
    n = f"n = {number(row['n_participants'])} of {norms.positive}, gap statistic, no test"
    if int(row["k"]) == 1:
        return f" No subtypes: one group fits better than 2 to {most} ({n})."
    compared = norms.compared
    clear = int((compared["p_fdr"] < CLEAR).sum()) if len(compared) else 0
    return (
        f" {number(row['k'])} subtypes ({n}); they differ in {number(clear)} of "
        f"{count(int(compared['p_fdr'].notna().sum()) if len(compared) else 0, 'measure')} after correction (FDR)."
    )


def _methods(norms: Norms) -> str:
    scores = f"W-scores [@wscore] are residuals from a norm of {norms.negative} among the fold's training participants."
    subtypes = (
        "Subtypes of fingerprints come from consensus clustering [@consensus], their number from the gap statistic "
        "[@gap]."
    )
    return " ".join([scores] * norms.has_scores + [subtypes] * norms.has_kinds)


NORMS = Question(
    "norms", "Against the norm: w-scores and subtypes", "Norms", CLINICAL,
    "A w-score is the distance of a person from the value expected for {negative} of the same age, sex and further "
    "covariates, in standard deviations; the norm of each fold comes from its own training participants of {negative}. "
    "Subtypes are clusters of fingerprints; they are reported only if they are stable and the gap statistic prefers "
    "them to a single group.",
    (
        View(
            "w_calibration", "Do the norms fit? Controls scored against the others, worst first.",
            ("source", "group", "n_controls", "mean_z", "sd_z", "beyond", "note"), where={"fold": ("all",)},
            order=("-mean_z",), shown=10,
        ),
        View(
            "subtype_numbers", "How many subtypes.",
            ("source", "k", "chosen", "gap", "gap_error", "ambiguous", "rand", "rand_low", "rand_high", "smallest",
             "n_participants", "note"), shown=30,
        ),
        View(
            "subtype_comparison", "How subtypes differ.",
            ("source", "compared", "measure", "value", "means", "f", "p", "p_fdr", "n_participants", "note"),
            order=("p_fdr",), shown=30, finding="p_fdr",
        ),
    ),
    facts,
    _answer,
    methods=_methods,
)  # fmt: skip
