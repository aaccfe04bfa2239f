"""Which map can be trusted: the verdicts of ``heatlas evaluate``, each map beside its nulls, and the dose-response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from heatlas.pipeline.evaluation.bench.scan_job import FAITHFUL, SEEN
from heatlas.pipeline.evaluation.bench.table import ALL, EVALUATION_TABLE
from heatlas.pipeline.evaluation.nulls.networks import NO_NETWORK, REAL
from heatlas.pipeline.evaluation.scores.map_scores import MAP_SCORES
from heatlas.reports.analyses.map_verdicts import COHORTS, evaluation, title_of
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table, remark
from heatlas.reports.words.numbers import fixed, interval, number, sentence_case

LEAD = (
    "Every map is judged by what it should and should not show. It should find what was planted, if anything was; it "
    "should look different where a network was trained on shuffled labels or not at all; and it should not mark what "
    "the network need not use. Images made without any network (an edge detector, |scan − mean control|) stand beside "
    "the maps: a map that does no better explains the image, not the network."
)
_BESIDE = (
    Column("title", "Map"),
    Column("passed", "Passed", remark),
    numeric("hits", "Planted in the first 10"),
    numeric("auroc", "AUROC", fixed),
    numeric("shuffled_hits", "In the first 10, shuffled labels", lambda x: fixed(x, 1), "mean over swaps of labels"),
    numeric("shuffled_auroc", "AUROC, shuffled labels", fixed, "mean over swaps of labels"),
    numeric("shuffled_spearman", "Correlation with its map, shuffled labels", fixed, "rank correlation over voxels"),
    numeric("untrained_spearman", "Correlation with its map, untrained", fixed, "rank correlation over voxels"),
    numeric("unused_ratio", "Unused change ÷ used one", fixed),
    numeric("rim", "Rim ÷ even", fixed),
    numeric("balanced_accuracy", "Balanced accuracy", fixed, "of the networks over these scans"),
    numeric("completeness_error", "Completeness error", fixed, EVALUATION_TABLE.meanings["completeness_error"]),
    numeric("seconds", "Seconds per scan", fixed),
)
"""Columns of the table of maps; those without any value are left out."""


def build(material: Material) -> Mapping[str, Any]:
    """For each cohort that was judged: the verdict lines, the table with nulls, faithfulness and the dose-response."""
    run = material.run
    verdicts, scores = run.tables["verdicts"], run.tables["evaluation"]
    blocks = []
    for cohort in dict.fromkeys(verdicts["cohort"]):
        own, judged = scores[scores["cohort"] == cohort], verdicts[verdicts["cohort"] == cohort]
        judged = judged.assign(order=judged["map"].map(_order(run.ordered_maps))).sort_values("order", kind="stable")
        lines = [(title_of(row["map"]), row["verdict"], remark(row["numbers"])) for row in judged.to_dict("records")]
        tables = (_dose_response(own), _faithfulness(own))
        blocks.append({
            "title": f"Judged on the {COHORTS.get(cohort, str(cohort))}", "lines": lines, "table": _beside(judged, own),
            "folded": [table for table in tables if table is not None],
        })  # fmt: skip
    return {"lead": LEAD, "verdict": evaluation(run), "blocks": blocks}


def _order(names: Sequence[str]) -> Mapping[str, int]:
    """Maps of the run first, the leading one at the top; the others follow as they are in the file."""
    return {name: place for place, name in enumerate(names)}


def _known(rows: pd.DataFrame, columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column.key in rows and rows[column.key].notna().any()]


def _beside(verdicts: pd.DataFrame, scores: pd.DataFrame) -> PageTable:
    """One row per map: its scores, and the same by networks that know nothing of the labels."""
    whole = scores[scores["severity"].astype(str) == ALL]
    real = whole[whole["network"].isin([REAL, NO_NETWORK])].set_index("map")
    words = {"true": "yes", "false": "no"}
    passed = verdicts["passed"].map(lambda value: words.get(str(value).lower()))
    rows = verdicts.assign(title=verdicts["map"].map(title_of), passed=passed)
    for column in ("balanced_accuracy", "completeness_error", "seconds"):
        rows[column] = rows["map"].map(real[column])
    scans, people = (int(real[name].max()) for name in ("n_scans", "n_participants"))
    caption = (
        f"Maps beside their nulls, {number(scans)} scans of {number(people)} participants; regions ranked by Hedges' g "
        "between the classes. Images without a network have no null. Every score is in evaluation/evaluation.tsv."
    )
    return page_table(rows, _known(rows, _BESIDE), caption)


def _dose_response(scores: pd.DataFrame) -> PageTable | None:
    """Area at each severity of the planted loss; None where only one severity was planted, or none."""
    real = scores[scores["network"].isin([REAL, NO_NETWORK])]
    at = real[real["severity"].astype(str) != ALL]
    if at["auroc_difference"].isna().all():
        return None
    severities = sorted(at["severity"].astype(str).unique(), key=float)
    rows = pd.DataFrame({"map": list(dict.fromkeys(at["map"]))})
    rows["title"] = rows["map"].map(title_of)
    whole = real[real["severity"].astype(str) == ALL].set_index("map")
    rows["dose_response"] = rows["map"].map(whole["dose_response"])
    for severity in severities:
        rows[severity] = rows["map"].map(
            at[at["severity"].astype(str) == severity].set_index("map")["auroc_difference"]
        )
    columns = [
        Column("title", "Map"),
        numeric("dose_response", "Dose-response", fixed, EVALUATION_TABLE.meanings["dose_response"]),
        *(numeric(severity, f"AUROC at severity {severity}", fixed) for severity in severities),
    ]
    return page_table(rows, columns, "Dose-response: does the map say more where more was planted?")


def _faithfulness(scores: pd.DataFrame) -> PageTable | None:
    """What happens to the network's answer when the regions of a map are removed; None where it was not measured."""
    rows = scores[(scores["severity"].astype(str) == ALL) & (scores["network"] == REAL)]
    titles = {name: sentence_case(name.replace("_", " ")) for name in (*FAITHFUL, *MAP_SCORES)}
    meanings = EVALUATION_TABLE.meanings
    columns = _known(rows, [numeric(name, title, number, meanings[name]) for name, title in titles.items()])
    if not columns:
        return None
    rows = rows.assign(title=rows["map"].map(title_of))
    for name in (name for name in SEEN if f"{name}_low" in rows):
        ends = zip(rows[f"{name}_low"], rows[f"{name}_high"], strict=True)
        rows[f"{name}_interval"] = [interval(low, high, 0) for low, high in ends]
        place = next((n for n, column in enumerate(columns) if column.key == name), None)
        if place is not None:
            columns.insert(
                place + 1, Column(f"{name}_interval", "95 % of people", hint=EVALUATION_TABLE.meanings[f"{name}_low"])
            )
    return page_table(
        rows,
        [Column("title", "Map"), *columns],
        "Faithfulness to the network, which needs no truth, and overlap with planted regions where these are known.",
    )
