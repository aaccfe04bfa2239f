"""What a region's page says first: whether the classes differ there in the leading map, and its place."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.analyses.findings import (
    Place,
    difference_of,
    evidence_differences,
    map_shares,
    place_of,
    summary_means,
)
from heatlas.reports.analyses.verdicts import CLEAR, classes_compared, g_in_words
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, listing, number, p_value, percent, signed


def lead_of(run: RunRecord, group: str) -> str:
    """Whether the classes differ here in the leading map: by evidence, or by share and density."""
    name = run.leading_map
    if run.task.kind.undefined:
        return f"No comparison of classes. {run.task.kind.undefined}"
    if run.leads_with_evidence:
        return _lead_of_evidence(run, group)
    if not run.has("group_comparisons"):
        return "Differences between the classes have not been tested yet."
    share = classes_compared(run, map=name, metric="share", group=group)
    density = classes_compared(run, map=name, metric="density", group=group)
    if density.empty or pd.isna(density["p_fwe"].iloc[0]):
        return f"{map_title(name)}: no difference between the classes could be tested here."
    row, text = density.iloc[0], f"{map_title(name)}: "
    if len(share) and pd.notna(share["p_fwe"].iloc[0]):
        text += f"the share of the map that lies here {_difference(run, share.iloc[0], 'larger')}. By density, which "
        text += "depends on the strength of the whole map, "
    return (
        f"{text}relevance here {_difference(run, row, 'denser')}; {count(int(row['n_first']), 'participant')} of "
        f"{run.positive} and {number(row['n_second'])} of {run.negative}.{_place(run, name, group)}"
    )


def _lead_of_evidence(run: RunRecord, group: str) -> str:
    """Whether the classes differ here in evidence, in logits, and the place of the region by this difference."""
    rows = evidence_differences(run, run.leading_map)
    title = map_title(run.leading_map)
    place = place_of(run, run.leading_map, group)
    row = rows.loc[[group]].iloc[0] if place is not None else pd.Series({"p_fwe": None})
    if place is None or pd.isna(row["p_fwe"]):
        return f"{title}: no difference of evidence between the classes could be tested here."
    means = [f"{signed(row[column])} logits in {label}" for column, label in
             zip(("mean_first", "mean_second"), run.labels, strict=True)]  # fmt: skip
    return (
        f"{title}: evidence here {_difference(run, row, 'larger')}: {difference_of(run, row)}; mean {listing(means)}, "
        f"{count(int(row['n_first']), 'participant')} of {run.positive} and {number(row['n_second'])} of "
        f"{run.negative}. By g it is number {number(place.number)} of {number(place.of)} regions{_bounds(run, place)}."
    )


def _bounds(run: RunRecord, place: Place) -> str:
    """Between which places a region lies, to follow its place."""
    return f" ({100 * run.config.statistics.confidence:g} % interval {place.span})" if place.span else ""


def _difference(run: RunRecord, row: pd.Series, more: str) -> str:
    """The difference of the classes in a row of tests, to follow its subject."""
    where = f"is {more} in {run.positive if row['difference'] > 0 else run.negative}"
    said = where if row["p_fwe"] < CLEAR else "is not significantly different between the classes"
    size = f"Hedges' g of {run.positive} against {run.negative} {g_in_words(row)}"
    return f"{said} ({size}, family-wise corrected {p_value(row['p_fwe'])})"


def _place(run: RunRecord, name: str, group: str) -> str:
    """The mean share of the map that lies in the region in the positive class, and its place among the regions."""
    means = map_shares(run, name, run.positive).dropna()
    if group not in means:
        return ""
    place = int((means > means[group]).sum()) + 1
    return (
        f" On average {percent(means[group])} of the map of {run.positive} lies here: number {number(place)} of "
        f"{number(len(means))} regions."
    )


def planted_here(run: RunRecord, group: str) -> str:
    """Whether disease was planted in a group, and its place by density in true positives, as recovery counts it."""
    if not run.planted:
        return ""
    said = f" This is {'one' if group in run.planted else 'none'} of the planted regions"
    name = run.leading_map
    if run.leads_with_evidence:
        ranked = place_of(run, name, group)
        if ranked is None:
            return f"{said}."
        return (
            f"{said}; by the difference of evidence between the classes ({map_title(name)}) it is number "
            f"{number(ranked.number)} of {number(ranked.of)}{_bounds(run, ranked)}."
        )
    density = summary_means(run, name, "density", "TP")
    if group not in density:
        return f"{said}."
    place = int((density > density[group]).sum()) + 1
    return (
        f"{said}; by density in true positives ({map_title(name)}) it is number {number(place)} of "
        f"{number(len(density))}."
    )
