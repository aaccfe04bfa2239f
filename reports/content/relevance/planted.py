"""On a cohort with planted atrophy: whether the heatmaps find it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.run.layout.map_names import map_title
from reports.page.material import Material
from reports.page.tables import Column, numeric, page_table, remark
from reports.read.run_record import RunRecord
from reports.words.numbers import count, fixed, listing, number, p_cell, percent

_COLUMNS = (
    Column("title", "Map"),
    Column("metric", "Ranked by"),
    numeric("hits", "Planted regions found"),
    numeric("n_planted", "of planted"),
    numeric("top", "List length"),
    numeric(
        "expected_hits", "In a random ranking", fixed, "planted regions that a random ranking puts there, on average"
    ),
    numeric("p_value", "Uncorrected p", p_cell, "that a random ranking puts as many there, or more"),
    Column("found", "Found", remark),
    numeric("relevance_share", "Relevance in planted regions", lambda x: percent(x, 1)),
    numeric("volume_share", "Their share of volume", lambda x: percent(x, 1)),
    numeric("enrichment", "Enrichment", fixed, "relevance share over volume share"),
)


def recovery_sentence(run: RunRecord) -> str:
    """What the leading LRP map finds, by density and by gain."""
    table = run.tables["planted_recovery"]
    name = run.main_maps[0]
    rows = table[(table["map"] == name) & table["metric"].isin(["density", "gain"])]
    parts = [_hits(row) for _, row in rows.iterrows()]
    if not parts:
        return "Not known for the leading map."
    first = rows.iloc[0]
    return (
        f"{map_title(name)}, {count(int(first['n_participants']), 'true-positive participant')}: {'; '.join(parts)}. "
        f"The planted regions hold {percent(first['volume_share'])} of the volume and "
        f"{percent(first['relevance_share'])} of the positive relevance."
    )


def _hits(row: pd.Series) -> str:
    verb = "is" if row["hits"] == 1 else "are"
    return (
        f"by {row['metric']}, {number(row['hits'])} of {number(row['n_planted'])} planted regions {verb} among the "
        f"first {number(row['top'])} of {number(row['n_groups'])} (a random ranking puts {fixed(row['expected_hits'])} "
        "there)"
    )


def shuffled_count(run: RunRecord) -> str:
    """What planted regions found have to be compared with besides: a run with shuffled labels, and how to get one."""
    if run.config.cohort.shuffle_labels:
        return "The labels of this run were shuffled: any run with the true labels has to find more than this one."
    return (
        "A network trained on shuffled labels can rank planted regions as high: to know how many it finds, repeat the "
        "run with shuffle_labels = true in [cohort]."
    )


def build(material: Material) -> Mapping[str, Any]:
    """The leading maps, and every map."""
    table = material.run.tables["planted_recovery"]
    table = table.assign(title=table["map"].map(map_title))
    people = sorted({int(n) for n in table["n_participants"].dropna()})
    caption = (
        f"Recovery of the planted regions in true positives, n = {listing([number(n) for n in people])} participants."
    )
    leading = table[table["map"].isin(material.run.main_maps)]
    return {
        "lead": f"{recovery_sentence(material.run)} {shuffled_count(material.run)}",
        "table": page_table(leading, _COLUMNS, caption),
        "all": page_table(table, _COLUMNS, caption),
    }
