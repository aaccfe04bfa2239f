"""Which regions tell the classes apart, person by person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.run.layout.map_names import map_title
from reports.page.material import Material
from reports.page.tables import Column, numeric, page_table
from reports.words.numbers import count, fixed, number, p_cell

TOP = 15


def build(material: Material) -> Mapping[str, Any]:
    """The clearest differences of the leading maps, and how many there are."""
    run = material.run
    effects = run.tables["region_effects"]
    frames, sentences = [], []
    for name in run.main_maps:
        rows = effects[(effects["map"] == name) & effects["t"].notna()]
        clear = int((rows["p_fwe"] < 0.05).sum())
        if len(rows):
            tested = count(len(rows), "region")
            sentences.append(f"{map_title(name)}: {number(clear)} of {tested} with a family-wise p below 0.05")
        frames.append(_clearest(rows.assign(title=map_title(name))))
    table = pd.concat(frames)
    first = effects.iloc[0]
    within = " within test folds" if effects["fold_held"].fillna(False).astype(bool).any() else ""
    lead = (
        f"{_SCALED.format(start=run.config.attribution.start_value, positive=run.positive)} Density of relevance in "
        f"{count(int(first['n_positive']), 'participant')} of {run.positive} against "
        f"{number(first['n_negative'])} of {run.negative}, each person's scans averaged first; Welch's t, participants "
        f"reassigned at random{within}. The corrected p is family-wise, over all maps and regions at once. "
        + (". ".join(sentences) + "." if sentences else "No difference could be tested.")
    )
    notes = sorted(set(effects["note"].dropna()))
    if not sentences and notes:
        lead += f" Reason: {'; '.join(notes)}."
    columns = _columns(run.positive, run.negative)
    return {"lead": lead, "table": page_table(table, columns, _CAPTION + difference_in_words(effects))}


def difference_in_words(effects: pd.DataFrame) -> str:
    """What the column of differences is, to end a caption: that of the means beside it only where no fold is held."""
    if not effects["fold_held"].fillna(False).astype(bool).any():
        return ""
    return " The difference, its interval and g are within test folds: not the difference of the two means."


def _clearest(rows: pd.DataFrame) -> pd.DataFrame:
    """Smallest corrected p first, the largest |t| among equals."""
    ordered = rows.assign(size=-rows["t"].abs()).sort_values(["p_fwe", "size"], kind="stable")
    return ordered.head(TOP)


_SCALED = (
    "Read this with care, and the share of the map above first: densities are not divided by the map's total, which is "
    "nearly the {start} of {positive}, so a difference in almost every region is the prediction seen again, not a "
    "finding about the region."
)
_CAPTION = f"The {TOP} clearest differences of each leading map; all are in group/statistics/region_effects.tsv."


def _columns(positive: str, negative: str) -> list[Column]:
    return [
        Column("title", "Map"),
        Column("group", "Region"),
        numeric("mean_positive", f"Mean density, {positive}"),
        numeric("mean_negative", f"Mean density, {negative}"),
        numeric("difference", "Difference"),
        numeric("ci_low", "from"),
        numeric("ci_high", "to"),
        numeric("hedges_g", "Hedges' g", fixed),
        numeric("t", "Welch's t", fixed),
        numeric("n_positive", f"{positive}, n"),
        numeric("n_negative", f"{negative}, n"),
        numeric("p_fwe", "Corrected p (family-wise)", p_cell, "family-wise, over all maps and regions"),
        numeric("p_fdr", "Corrected p (FDR)", p_cell, "Benjamini and Hochberg"),
    ]
