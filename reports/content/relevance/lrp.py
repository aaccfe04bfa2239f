"""LRP alone: how far rankings depend on beta (figure 6 of the founding study), and whether its relevance adds up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.ranking import METRICS
from heatlas.pipeline.run.layout.map_names import beta_of
from heatlas.reports.content.relevance.volume import volume_estimate
from heatlas.reports.figures.gallery import INK, new_figure
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import MAPS, TRAINING
from heatlas.reports.frame.tables import Column, numeric, page_table
from heatlas.reports.questions.question import ANY_TASK, CLEAR, Caution, Check, Question, rows_where
from heatlas.reports.read.run_record import KEYS, RunRecord
from heatlas.reports.words.numbers import count, fixed, number, percent


def matrices(overlap: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Square tables of overlap in per cent by metric, beta by beta."""
    frame = overlap.assign(a=overlap["map_a"].map(beta_of), b=overlap["map_b"].map(beta_of))
    result = {}
    for metric, rows in frame.groupby("metric", sort=False):
        if rows["overlap"].notna().any():
            result[str(metric)] = rows.pivot_table(index="a", columns="b", values="overlap")
    return result


def build_beta(material: Material) -> Mapping[str, Any]:
    """One matrix per metric that is known."""
    overlap = material.run.tables["beta_overlap"]
    notes = sorted(set(overlap["note"].dropna())) if "note" in overlap else []
    known = matrices(overlap)
    picture = None
    if known:
        top, people = int(overlap["top"].iloc[0]), _people(material.run)
        picture = material.gallery.add(
            draw_overlap(known, top, people),
            "bohle2019-06_beta-overlap",
            f"Matrices of the overlap of the top {top} regions between values of beta, for {', '.join(known)}.",
            f"Overlap of the {number(top)} leading bilateral groups between values of β, in per cent, for each "
            f"metric. 100 means the same regions{_by_chance(material.run)}; low values mean that the leading regions "
            "depend on β. "
            f"n: participants of {material.run.positive}, for gain those with true positives."
            f"{_known_gains(material.run)}",
        )
    return {"figure": picture, "notes": notes, "lead": _hippocampus(material.run)}


def _hippocampus(run: RunRecord) -> str:
    """Whether the correlation of hippocampal relevance with volume depends on beta; empty where it is not known."""
    known = [(name, found) for name in run.lrp_names if (found := volume_estimate(run, name)) is not None]
    if len(known) < 2:
        return ""
    (least, low), (most, high) = (pick(known, key=lambda pair: pair[1].value) for pick in (min, max))
    turns = "The sign depends on β" if low.value < 0 < high.value else "The sign is the same for every β"
    unproven = "" if any(found.p_fdr < CLEAR for _, found in known) else " None is significant after correction (FDR)."
    return (
        f"{turns}: the correlation of hippocampal relevance with volume ranges from {fixed(low.value)} (β = "
        f"{beta_of(least):g}) to {fixed(high.value)} (β = {beta_of(most):g}).{unproven} Leading regions can agree "
        "even where this correlation does not."
    )


def _by_chance(run: RunRecord) -> str:
    """The overlap of random rankings, from the agreement of rankings; empty where that was not analysed."""
    rows = rows_where(run, "ranking_agreement", between="betas", metric="density", scans="all")
    known = rows["overlap_chance"].dropna() if len(rows) else rows
    return f", {percent(known.iloc[0], 0)} is what random rankings share" if len(known) else ""


def _people(run: RunRecord) -> dict[str, int]:
    """Participants behind the ranking by each metric."""
    hits = run.group_sizes.get("TP", (0, 0))[1]
    return {metric: hits if metric == "gain" else run.group_sizes[run.positive][1] for metric in METRICS}


def _known_gains(run: RunRecord) -> str:
    """In how many regions gain is known, by beta; it is not where the mean of controls is negative."""
    values = run.region_values
    hits = values[(values["outcome"] == "TP") & values["map"].isin(run.lrp_names)]
    filled, known = (hits[hits[column].notna()].groupby("map")["group"].nunique() for column in ("density", "gain"))
    if known.reindex(filled.index, fill_value=0).equals(filled):
        return ""
    said = [
        f"β = {beta_of(name):g}, {number(known.get(name, 0))} of {number(filled[name])}"
        for name in run.lrp_names
        if name in filled
    ]
    return f" Regions in which the gain of at least one participant is known: {'; '.join(said)}."


LOSSES = ("absorbed_by_bias", "lost_no_contribution", "stabiliser")
_COLUMNS = (
    Column("title", "Map"),
    numeric("scans", "Scans"),
    numeric("negative_start", "Start value below 0", hint="scans whose explained output is negative"),
    numeric("in_map", "In the map", percent, "median share of the start value"),
    *(
        numeric(name, title, percent, "median share of the start value, in absolute value")
        for name, title in zip(LOSSES, ("Absorbed by biases", "Lost, no contribution", "Stabiliser"), strict=True)
    ),
    numeric("residual", "Largest residual", number, "relative to the start value: rounding error"),
)


def build_conservation(material: Material) -> Mapping[str, Any]:
    """One row per LRP map."""
    table = shares(material.run.tables["conservation"])
    return {"table": page_table(table, _COLUMNS, "Where the relevance went, per LRP map.")}


def draw_overlap(matrices: Mapping[str, pd.DataFrame], top: int, people: Mapping[str, int]) -> Figure:
    """Per metric, the share of the first `top` regions that two values of beta have in common, in per cent.

    `matrices`: metric to a square table, beta by beta, values 0 to 100. `people`: participants that each metric is
    ranked over.
    """
    figure = new_figure(max(2.9 * len(matrices), 3.4), 3.3)
    axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    for ax, (metric, matrix) in zip(axes, matrices.items(), strict=True):
        values = matrix.to_numpy(float)
        image = ax.imshow(values, cmap="cividis", vmin=0, vmax=100)
        for i in range(len(matrix)):
            for j in range(len(matrix)):
                value = float(values[i, j])
                colour = INK if value > 55 else "white"
                ax.text(j, i, "n/a" if value != value else f"{value:.0f}", ha="center", va="center", color=colour)
        names = [f"{beta:g}" for beta in matrix.index]
        ax.set_xticks(range(len(names)), names)
        ax.set_yticks(range(len(names)), names)
        ax.set_title(f"{metric.capitalize()}, n = {people[metric]}")
        ax.set_xlabel("β")
        ax.grid(False)
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("β")
    figure.colorbar(image, ax=list(axes), label=f"overlap of the top {top}, %", shrink=0.75)
    return figure


def shares(conservation: pd.DataFrame) -> pd.DataFrame:
    """Medians over scans of the shares of the start value, for each map."""
    start = conservation["start_value"]
    relative = conservation[["map_sum", *LOSSES, "residual"]].div(start, axis=0).where(start != 0)
    relative = relative.assign(map=conservation["map"], negative=start < 0)
    rows = []
    for name, frame in relative.groupby("map", sort=False):
        rows.append({
            "map": name, "title": map_title(str(name)), "scans": len(frame),
            "negative_start": int(frame["negative"].sum()), "in_map": frame["map_sum"].median(),
            **{loss: frame[loss].abs().median() for loss in LOSSES}, "residual": frame["residual"].abs().max(),
        })  # fmt: skip
    return pd.DataFrame(rows)


LARGE_LOSS, SERIOUS_LOSS = 0.2, 0.5


def _losses(run: RunRecord) -> Caution | None:
    table = shares(run.tables["conservation"])
    table = table.assign(lost=table[list(LOSSES)].sum(axis=1))
    worst = table.sort_values("lost").iloc[-1]
    if not worst["lost"] > LARGE_LOSS:
        return None
    return Caution(
        "serious" if worst["lost"] > SERIOUS_LOSS else "note",
        "Part of the relevance never reaches the image.",
        f"In {map_title(worst['map'])} maps, biases and units without contribution absorb {percent(worst['lost'], 0)} "
        "of the start value (median over scans). Maps show only the rest.",
        "conservation",
    )


def _negative_start(run: RunRecord) -> Caution | None:
    """Scans whose explained output is negative; these can be true positives, since softmax compares two logits."""
    rows = run.tables["conservation"].drop_duplicates(KEYS)
    rows = rows.merge(run.tables["predictions"][[*KEYS, "outcome"]], on=KEYS)
    negative = rows[rows["start_value"] < 0]
    if negative.empty:
        return None
    hits = int((negative["outcome"] == "TP").sum())
    text = (
        f"In {count(len(negative), 'scan')} of {number(len(rows))}, {number(hits)} of them true positives, the "
        f"explained output of {run.positive} is below 0. The signs of their maps are reversed. Means over such scans, "
        "and gain, mix signs."
    )
    if run.config.attribution.start_value != "probability":
        text += ' With start_value = "probability" in [attribution], no sign is reversed.'
    return Caution("note", "Some maps have reversed signs.", text, "conservation")


BETA = Question(
    "beta", "Does the answer depend on β?", "Choice of β", MAPS, draw=build_beta, requires=("beta_overlap",),
    absent="The overlap between values of β is not known yet.",
)  # fmt: skip
CONSERVATION = Question(
    "conservation", "Does the relevance add up?", "Conservation", TRAINING, draw=build_conservation,
    requires=("conservation",), absent="No scan has been explained yet.", tasks=ANY_TASK,
    cautions=(
        Check("negative-start", _negative_start, ("conservation", "predictions")),
        Check("losses", _losses, ("conservation",)),
    ),
)  # fmt: skip
