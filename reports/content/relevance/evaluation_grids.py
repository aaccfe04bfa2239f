"""Grids: the shares of each method, how they change with depth, and which methods find the same grids easy."""

from __future__ import annotations

import math

import pandas as pd

from heatlas.pipeline.attribution.titles import method_title
from heatlas.pipeline.evaluation.grids.directions import BY_CONSTRUCTION, KIND_OF
from heatlas.pipeline.evaluation.grids.grid_scores import CONSTRUCTED
from heatlas.pipeline.evaluation.grids.studies import IN_STEM
from heatlas.pipeline.evaluation.grids.tables import ALL_METHODS
from heatlas.reports.content.relevance.evaluation_networks import ROWS, named
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.figures.grids import draw_agreement, draw_depth_curves
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, listing, number, shortened, signed

LONGEST = 40
"""Letters of a method's name in a figure."""


def grids(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Shares of each method at the input and at the last stage, beside chance; then what the literature claims."""
    of_all = table["method"] == ALL_METHODS
    known = table[~of_all & (table["kind"] == table["setting"].map(KIND_OF)) & ~_is_study(table["method"])]
    rows = pd.DataFrame({"method": known["method"].unique()})
    rows["title"] = rows["method"].map(method_title)
    columns = [Column("title", "Method")]
    for setting, of_setting in known[known["share"].notna()].groupby("setting", sort=False):
        chance = fixed(of_setting["chance"].iloc[0])
        last = of_setting[of_setting["stage"] > 0].sort_values("stage").groupby("method").last()
        at_input = of_setting[of_setting["stage"] == 0].set_index("method")
        for key, title, part in (("input", "at the input", at_input), ("last", "at the last stage", last)):
            rows[f"{setting}_{key}"] = rows["method"].map(part["share"])
            columns.append(numeric(f"{setting}_{key}", f"{setting}, {title} (chance {chance})", fixed))
    columns = [column for column in columns if rows[column.key].notna().any()]
    by = [column.key for column in columns[1:2]]
    rows = rows.sort_values(by, ascending=False, kind="stable") if by else rows
    pointing = known[(known["setting"] == "GridPG") & (known["stage"] == 0) & (known["ci_low"] > known["chance"])]
    above = [method_title(name) for name in pointing["method"]]
    refused = [
        f" {setting}: {str(note).rstrip('.')}."
        for setting, note in table.loc[of_all, ["setting", "note"]].dropna().drop_duplicates().itertuples(index=False)
    ]
    text = (
        "Several scans stand side by side as one volume; the share is the part of a map that lies in the scan it "
        "should explain (1 for a perfect map). In GridPG the network sees all scans, in DiFull each cell alone, in "
        "DiPart all, but its head one. Above chance in GridPG at the input with the whole 95 % interval: "
        f"{named(above) if above else 'no method'}.{''.join(refused)}"
    )
    caption = "Mean shares over participants. Other stages, studies and intervals are in evaluation/grids.tsv."
    return text, (page_table(rows, columns, caption, ROWS),)


def _is_study(methods: pd.Series) -> pd.Series:
    """Methods of the studies of smoothing, of LRP's settings and of stems, which have many rows."""
    return methods.str.contains(rf"kernel=|gamma=|beta=0\.| {IN_STEM}", regex=True)


def claims(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Claims of the literature, those with an answer first."""
    answers = table["holds"]
    numbers = {name: int((answers == name).sum()) for name in ("yes", "no", "open")}
    text = (
        f"Claims of the literature about grids that could be asked here: {sum(numbers.values())}. Hold: "
        f"{numbers['yes']}; do not hold: {numbers['no']}; open, as the interval is too wide: {numbers['open']}."
    )
    if constructed := int((answers == BY_CONSTRUCTION).sum()):
        text += f" Could not fail, as the map is made so: {constructed}."
    rows = table[answers.notna()].assign(order=answers.map({"no": 0, "yes": 1, "open": 2, BY_CONSTRUCTION: 3}))
    rows = rows.sort_values("order", kind="stable")
    columns = [
        Column("claim", "Claim"), Column("holds", "Holds"), numeric("difference", "Difference of shares", signed),
        numeric("ci_low", "From", signed), numeric("ci_high", "To", signed), numeric("n_participants", "Participants"),
    ]  # fmt: skip
    caption = "Claims that do not hold here, then those that do, with 95 % intervals over participants."
    return text, (page_table(rows, columns, caption, ROWS),)


def depth_curves(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``grids.tsv`` that are drawn: all stages of the methods of the table on the page, with their titles."""
    known = table[(table["kind"] == table["setting"].map(KIND_OF)) & table["share"].notna()]
    known = known.assign(method=known["method"].str.replace(rf" {IN_STEM}\d+$", "", regex=True))  # one curve
    known = known[~_is_study(known["method"])].sort_values(["method", "depth"], kind="stable")
    return known.assign(title=[shortened(method_title(name), LONGEST) for name in known["method"]])


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of ``grid_agreement.tsv`` as a matrix: inputs first, then the last stage of each method.

    `table`: rows of one setting and kind. Smoothed maps are shown, other studies are not. A method with the same share
    on all grids correlates with nothing and is left out.
    """
    own = table[table["spearman"].notna()].astype({"stage_a": int, "stage_b": int})
    ends = [list(zip(own[f"method_{one}"], own[f"stage_{one}"], strict=True)) for one in "ab"]
    found = dict(zip(zip(*ends, strict=True), own["spearman"].astype(float), strict=True))
    places = pd.DataFrame(list(dict.fromkeys(ends[0] + ends[1])), columns=["method", "stage"])
    places = places[~_is_study(places["method"]) | places["method"].str.contains("kernel=")]
    last = places.groupby("method")["stage"].transform("max")
    places = places[(places["stage"] == 0) | (places["stage"] == last)]
    shown = sorted(places.itertuples(index=False, name=None), key=lambda place: place[1] > 0)
    names = [f"{shortened(method_title(name), LONGEST)}, {f'stage {stage}' if stage else 'input'}"
             for name, stage in shown]  # fmt: skip
    values = [[1.0 if a == b else found.get((a, b), found.get((b, a), math.nan)) for b in shown] for a in shown]
    return pd.DataFrame(values, names, names, dtype=float)


def draw_grids(material: Material) -> tuple[Picture, ...]:
    """Curves over depth, and the matrix of rank correlations in GridPG; each where anything is known for it."""
    found, run = [], material.run
    curves = depth_curves(run.tables["grids"])
    if len(curves):
        methods, settings = curves["title"].nunique(), listing(list(curves["setting"].unique()))
        constructed = list(curves.loc[curves["note"] == CONSTRUCTED, "title"].unique())
        found.append(material.gallery.add(
            draw_depth_curves(curves), "grids_depth",
            f"Curves of the share of {count(methods, 'method')} by depth, in {settings}.",
            "Mean share of a map in the scan that it should explain, by the depth at which it is asked: 0 the input, "
            "1 the last stage. Bars: 95 % intervals over participants. Dashed: chance."
            + f" 1 by construction in DiFull: {listing(constructed)}." * bool(constructed),
        ))  # fmt: skip
    if run.has("grid_agreement"):
        table = run.tables["grid_agreement"]
        table = table[(table["setting"] == "GridPG") & (table["kind"] == KIND_OF["GridPG"])]
        matrix, grids = agreement(table), table["n_grids"].max()
        if len(matrix):
            found.append(material.gallery.add(
                draw_agreement(matrix), "grids_agreement",
                f"Matrix of the rank correlations of the shares of {number(len(matrix))} maps over grids.",
                f"Do methods find the same grids easy? Rank correlation of shares over {count(int(grids), 'grid')} "
                f"(GridPG), at the input and at the last stage. {_by_chance(grids)}Other stages and settings are in "
                "evaluation/grid_agreement.tsv.",
            ))  # fmt: skip
    return tuple(found)


def _by_chance(grids: float) -> str:
    """How large rank correlations are by chance, in large samples; empty where a few grids allow any."""
    return f"Of unrelated methods about 95 % lie within ±{fixed(1.96 / math.sqrt(grids - 1))}. " if grids > 4 else ""
