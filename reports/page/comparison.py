"""The page of ``heatlas compare``: runs of one cohort beside one another; computes nothing."""

from __future__ import annotations

import pandas as pd

from heatlas.reports.frame.pages import Frame, NavigationEntry, render
from heatlas.reports.frame.tables import Column, footnote, numeric, page_table, remark
from heatlas.reports.vector.charts import IntervalRow, draw_intervals
from heatlas.reports.words.numbers import fixed

PAGE = "comparison.html"
CLOSEST = 40  # pairs of maps on the page; the file has all


def _seconds(value: object) -> str:
    return fixed(value, 1)


RUNS = (
    Column("run", "Run"), Column("architecture", "Networks"), numeric("n_participants", "Participants"),
    numeric("balanced_accuracy", "Balanced accuracy", fixed), numeric("ci_low", "from", fixed),
    numeric("ci_high", "to", fixed), numeric("parameters", "Parameters"),
    numeric("training_seconds", "Training per fold, s", _seconds),
    numeric("explaining_seconds", "All maps of a scan, s", _seconds), Column("note", "Note", remark),
)  # fmt: skip
MAPS = (
    Column("run", "Run"), Column("architecture", "Networks"), Column("map", "Map"),
    numeric("hits_found", "Hits, patients"), numeric("n_planted_found", "of"), numeric("hits", "Hits, classes"),
    numeric("n_planted", "of"),
    numeric("auroc_mean", "AUROC, patients", fixed), numeric("auroc", "AUROC, classes", fixed),
    numeric("enrichment", "Enrichment", fixed), numeric("pointing", "Pointing", fixed),
    Column("passed", "Passed every test"), numeric("seconds", "s per map", _seconds), Column("note", "Note", footnote),
)  # fmt: skip
REGIONS = (
    Column("run_a", "Run"), Column("map_a", "Map"), Column("run_b", "Other run"), Column("map_b", "Its map"),
    numeric("spearman", "Rank correlation", fixed), numeric("n_regions", "Regions"),
    numeric("n_participants", "Patients"), Column("note", "Note", remark),
)  # fmt: skip
PAIRS = (
    Column("run_a", "Run"), Column("run_b", "Other run"), numeric("both_right", "Both right"),
    numeric("only_a_right", "Only the first right"), numeric("only_b_right", "Only the second right"),
    numeric("both_wrong", "Both wrong"), numeric("difference", "Difference", fixed), numeric("ci_low", "from", fixed),
    numeric("ci_high", "to", fixed), numeric("p_holm", "p (Holm)"), Column("note", "Note", remark),
)  # fmt: skip


def comparison_page(runs: pd.DataFrame, maps: pd.DataFrame, regions: pd.DataFrame, pairs: pd.DataFrame) -> str:
    """The page as HTML, from the tables of a comparison.

    Parameters
    ----------
    runs, maps, regions : DataFrame
        Of `pipeline.statistics.comparison.families`.
    pairs : DataFrame
        ``mcnemar.tsv``.
    """
    known = runs[runs["balanced_accuracy"].notna()]
    rows = [
        IntervalRow(
            f"{one['run']} ({one['architecture']})", f"n = {one['n_participants']}",
            float(one["balanced_accuracy"]), float(one["ci_low"]), float(one["ci_high"]),
        )
        for _, one in known.iterrows()
    ]  # fmt: skip
    picture = draw_intervals(rows, "Balanced accuracy", "Balanced accuracy of each run", 0.5) if rows else None
    ordered = regions.sort_values("spearman", ascending=False, na_position="last", kind="stable")
    maps = maps.assign(passed=maps["passed"].map({True: "yes", False: "no"})).dropna(axis=1, how="all")
    caption = "Maps of different runs, the most alike first (map_agreement.tsv)."
    titles = {"accuracy": "Accuracy and cost", "maps": "What the maps find", "regions": "Agreement on regions"}
    entries = [NavigationEntry(title, f"#{name}") for name, title in titles.items()]
    return render(
        "comparison.html.j2", Frame("Runs compared", entries, of_a_run=False), titles=titles, names=list(runs["run"]),
        picture=picture,
        n_scans=int(runs["n_scans"].iloc[0]),
        runs=page_table(runs, RUNS, "Accuracy on the scans of all runs, and cost (family_comparison.tsv)."),
        pairs=page_table(pairs, PAIRS, "Runs against one another, by participant (mcnemar.tsv)."),
        maps=page_table(maps, MAPS, "Scores of every map (map_comparison.tsv)."),
        regions=page_table(ordered, REGIONS, caption, CLOSEST),
    )  # fmt: skip
