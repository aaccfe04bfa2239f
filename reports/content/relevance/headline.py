"""The two pictures of the index: the leading map on the template, and the regions ranked by the size of the effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.analyses.findings import evidence_differences, firsts_in_words, leaders, place_columns
from heatlas.reports.analyses.verdicts import CLEAR, by_ranks, classes_compared
from heatlas.reports.content.relevance.maps import difference_pictures
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.vector.charts import IntervalRow, draw_intervals
from heatlas.reports.words.numbers import count, fixed, is_missing, listing, mid_sentence, number

OUTLINED, RANKED = 5, 12
NAMED = 7
"""Regions named in a sentence."""


def effects(run: RunRecord) -> tuple[pd.DataFrame, str]:
    """Regions of the leading map by Hedges' g between the classes, largest first, and the measure that is compared.

    The measure is evidence, or the share of the map, which does not follow the prediction.
    """
    name = run.leading_map
    if run.leads_with_evidence:
        return evidence_differences(run, name), "evidence"
    rows = classes_compared(run, map=name, metric="share")
    if rows.empty:
        return pd.DataFrame(), "share of the map"
    rows = rows[rows["hedges_g"].notna()].set_index("group")
    return rows.sort_values("hedges_g", ascending=False, kind="stable"), "share of the map"


def regions_that_differ(run: RunRecord) -> str:
    """How many regions of the leading map differ between the classes, and the first of them by name, in a sentence."""
    passed, tested = _differing(run)
    if not tested:
        return ""
    more = [f"{number(len(passed) - NAMED)} more"] if len(passed) > NAMED else []
    names = f": {listing([mid_sentence(one) for one in passed[:NAMED]] + more)}" if passed else ""
    most = " When most regions differ, read the order, not the count." if len(passed) > tested / 2 else ""
    return f"{_number_that_differ(len(passed), tested)} the classes{names}.{most}"


def count_not_planted(run: RunRecord) -> str:
    """How many of the regions that differ have no planted disease, in a sentence; empty if all have."""
    passed, _ = _differing(run)
    others = sum(group not in run.planted for group in passed)
    return f"Not planted: {number(others)} of the {number(len(passed))} that differ. " if others else ""


def _number_that_differ(regions: int, tested: int) -> str:
    return f"{number(regions)} of {count(tested, 'region')} {'differs' if regions == 1 else 'differ'} between"


def _differing(run: RunRecord) -> tuple[list[str], int]:
    """Regions of the leading map that differ between the classes, and how many were tested."""
    rows = effects(run)[0] if run.has("group_comparisons") else pd.DataFrame()
    return ([] if rows.empty else [str(group) for group in rows.index[rows["p_fwe"] < CLEAR]]), len(rows)


def build_brain(material: Material) -> Mapping[str, Any]:
    """The difference of the classes on the template, the leading regions outlined, and on the surface."""
    run = material.run
    groups: tuple[str, ...] = ()
    figures: list[Picture] = []
    missing = what = ""
    if run.has("group_comparisons") and not run.task.is_number:
        rows, measure = effects(run)
        groups = () if rows.empty else leaders(run, rows["hedges_g"], run.leading_map, measure, OUTLINED).regions
    if run.keeps_mean_maps:
        figures, what = difference_pictures(material, groups)
        missing = material.missing_maps(run.map_groups[:2], [run.leading_map])
    else:
        missing = 'This run keeps no mean maps ([attribution] keep_maps = "none").'
    text = f"The leading map is {mid_sentence(map_title(run.leading_map))}."
    if what:
        text += f" Shown in template space: {what}."
    return {"text": text, "figures": figures, "missing": missing}


def build_ranking(material: Material) -> Mapping[str, Any]:
    """Hedges' g of the leading regions with its interval, and what to expect without a difference."""
    run = material.run
    rows, measure = effects(run)
    if rows.empty:
        return {"chart": None, "answer": "No region could be compared between the classes."}
    found = leaders(run, rows["hedges_g"], run.leading_map, measure, RANKED)
    drawn = [
        IntervalRow(
            str(group), "" if is_missing(row["p_fwe"]) or row["p_fwe"] >= CLEAR else "corrected p < 0.05",
            row["hedges_g"], row["hedges_g_low"], row["hedges_g_high"], material.links.region(str(group)),
            row["g_by_chance"],
        )
        for group, row in rows.loc[list(found.regions)].iterrows()
    ]  # fmt: skip
    clear, first = int((rows["p_fwe"] < CLEAR).sum()), rows.iloc[0]
    classes = f"{run.positive} and {run.negative}"
    title = f"Hedges' g of the {measure}, {run.positive} against {run.negative}"
    caption = (
        f"{title}: the {count(len(drawn), 'region')} with the largest values of {number(len(rows))}, by "
        f"{mid_sentence(map_title(run.leading_map))}. Lines are {100 * run.config.statistics.confidence:g} % "
        f"intervals; n = {number(first['n_first'])} and {number(first['n_second'])}. The upright line marks no "
        f"difference. {firsts_in_words(run, rows)}".rstrip()
        + found.sentence
    )
    null = "If the classes did not differ, g would be near 0 in every region."
    if rows["g_by_chance"].notna().any():
        null = (
            "The grey bar shows how large g becomes by chance alone: with the classes of the participants shuffled, "
            f"{100 * run.config.statistics.confidence:g} % of the shuffles stay within it, even in the region and map "
            "with the strongest result. A region whose point lies beyond it differs clearly."
        )
    return {
        "chart": draw_intervals(drawn, title, f"{title}: {listing([row.name for row in drawn[:5]])}.", 0.0),
        "caption": caption,
        "null": null,
        "table": _table(rows, material, f"{title}, all regions."),
        "answer": f"{_number_that_differ(clear, len(rows))} {classes} after correction."
        f"{by_ranks(run, rows.reset_index())}{not_planted(run, rows)}",
    }


def not_planted(run: RunRecord, rows: pd.DataFrame) -> str:
    """On synthetic people: which of the regions that pass are not planted; empty where the truth is not known."""
    passed = [str(group) for group in rows.index[rows["p_fwe"] < CLEAR]]
    others = [mid_sentence(group) for group in passed if group not in run.planted]
    if not run.planted or not passed:
        return ""
    if not others:
        return " All of them were planted."
    return (
        f" {number(len(passed) - len(others))} of these were planted; {listing(others)} "
        f"{'was' if len(others) == 1 else 'were'} not: the network's answer may depend on more than the disease."
    )


def _table(rows: pd.DataFrame, material: Material, caption: str) -> PageTable:
    """All regions with what the chart shows of the first."""
    linked = rows.rename_axis("group").reset_index()
    linked = linked.assign(page=linked["group"].map(material.links.region).astype(object))
    columns = (
        Column("group", "Region", link="page"), numeric("hedges_g", "Hedges' g", fixed),
        numeric("hedges_g_low", "from", fixed), numeric("hedges_g_high", "to", fixed),
        numeric("g_by_chance", "By chance", fixed, "what the clearest of all regions and maps reaches by chance"),
        numeric("p_fwe", "Corrected p", lambda x: number(x, 2), "family-wise"), *place_columns(rows),
    )  # fmt: skip
    return page_table(linked, columns, caption)
