"""Grids in the evaluation: words, tables and figures.

The shares of each method, how they change with depth, which methods find the same grids easy, and AggAtt, which shows
mean maps of the best, the usual and the worst grids of every method, from the arrays of the bench.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from heatlas.pipeline.attribution.titles import method_title
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.reports.figures.gallery import (
    BLUE,
    GREY,
    INK,
    LONGEST_METHOD,
    ORANGE,
    VERMILION,
    Gallery,
    Picture,
    house_style,
    new_figure,
    new_panels,
    warm,
)
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table, worded_columns
from heatlas.reports.questions.question import ROWS, PartView, first_few
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, listing, number, shortened
from heatlas.reports.words.sentences import Words
from heatlas.studies.grids.directions import BY_CONSTRUCTION, KIND_OF
from heatlas.studies.grids.grid_scores import CONSTRUCTED
from heatlas.studies.grids.stage import ALL_METHODS, EDGES
from heatlas.studies.grids.studies import IN_STEM

WORDS = Words(__file__)


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
    text = WORDS.say("grids", methods=first_few(above) if above else "no method", refused="".join(refused))
    caption = "Mean shares over participants. Other stages, studies and intervals are in evaluation/grids.tsv."
    return text, (page_table(rows, columns, caption, ROWS),)


def _is_study(methods: pd.Series) -> pd.Series:
    """Methods of the studies of smoothing, of LRP's settings and of stems, which have many rows."""
    return methods.str.contains(rf"kernel=|gamma=|beta=0\.| {IN_STEM}", regex=True)


def claims(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Claims of the literature, those with an answer first."""
    answers = table["holds"]
    numbers = {name: int((answers == name).sum()) for name in ("yes", "no", "open")}
    text = WORDS.say("claims", asked=sum(numbers.values()), numbers=numbers)
    if constructed := int((answers == BY_CONSTRUCTION).sum()):
        text += f" Could not fail, as the map is made so: {constructed}."
    rows = table[answers.notna()].assign(order=answers.map({"no": 0, "yes": 1, "open": 2, BY_CONSTRUCTION: 3}))
    rows = rows.sort_values("order", kind="stable")
    columns = worded_columns(WORDS, "claims")
    caption = "Claims that do not hold here, then those that do, with 95 % intervals over participants."
    return text, (page_table(rows, columns, caption, ROWS),)


def depth_curves(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``grids.tsv`` that are drawn: all stages of the methods of the table on the page, with their titles."""
    known = table[(table["kind"] == table["setting"].map(KIND_OF)) & table["share"].notna()]
    known = known.assign(method=known["method"].str.replace(rf" {IN_STEM}\d+$", "", regex=True))  # one curve
    known = known[~_is_study(known["method"])].sort_values(["method", "depth"], kind="stable")
    return known.assign(title=[shortened(method_title(name), LONGEST_METHOD) for name in known["method"]])


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of ``grid_agreement.tsv`` as a matrix: inputs first, then the last stage of each method.

    `table`: rows of one setting and kind. Smoothed maps are shown, other studies are not. A method with the same share
    on all grids correlates with nothing and is left out.
    """
    known = table[table["spearman"].notna()].astype({"stage_a": int, "stage_b": int})
    ends = [list(zip(known[f"method_{one}"], known[f"stage_{one}"], strict=True)) for one in "ab"]
    found = dict(zip(zip(*ends, strict=True), known["spearman"].astype(float), strict=True))
    places = pd.DataFrame(list(dict.fromkeys(ends[0] + ends[1])), columns=["method", "stage"])
    places = places[~_is_study(places["method"]) | places["method"].str.contains("kernel=")]
    last = places.groupby("method")["stage"].transform("max")
    places = places[(places["stage"] == 0) | (places["stage"] == last)]
    shown = sorted(places.itertuples(index=False, name=None), key=lambda place: place[1] > 0)
    names = [
        f"{shortened(method_title(name), LONGEST_METHOD)}, {f'stage {stage}' if stage else 'input'}"
        for name, stage in shown
    ]
    values = [[1.0 if a == b else found.get((a, b), found.get((b, a), math.nan)) for b in shown] for a in shown]
    return pd.DataFrame(values, names, names, dtype=float)


def draw_grids(material: Material) -> tuple[Picture, ...]:
    """Curves over depth, and the matrix of rank correlations in GridPG; each where anything is known for it."""
    found, run = [], material.run
    curves = depth_curves(run.tables["grids"])
    if len(curves):
        methods, settings = curves["title"].nunique(), listing(list(curves["setting"].unique()))
        constructed = list(curves.loc[curves["note"] == CONSTRUCTED, "title"].unique())
        words = f"Curves of the share of {count(methods, 'method')} by depth, in {settings}."
        exact = f" 1 by construction in DiFull: {listing(constructed)}." * bool(constructed)
        caption = WORDS.say("depth_caption") + exact
        found.append(material.gallery.add(draw_depth_curves(curves), "grids_depth", words, caption))
    if run.has("grid_agreement"):
        table = run.tables["grid_agreement"]
        table = table[(table["setting"] == "GridPG") & (table["kind"] == KIND_OF["GridPG"])]
        matrix, grids = agreement(table), table["n_grids"].max()
        if len(matrix):
            words = f"Matrix of the rank correlations of the shares of {number(len(matrix))} maps over grids."
            caption = WORDS.say("agreement_caption", grids=int(grids), by_chance=_by_chance(grids))
            found.append(material.gallery.add(draw_agreement(matrix), "grids_agreement", words, caption))
    return tuple(found)


def _by_chance(grids: float) -> str:
    """How large rank correlations are by chance, in large samples; empty where a few grids allow any."""
    return f"Of unrelated methods about 95 % lie within ±{fixed(1.96 / math.sqrt(grids - 1))}. " if grids > 4 else ""


def invariance(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Whether maps depend on how a function is written."""
    rows = table.assign(title=table["method"].map(method_title))
    same = rows["invariant"].map(lambda value: {"true": "yes", "false": "no"}.get(str(value).lower(), "n/a"))
    rows = rows.assign(same=same)
    depends = rows.loc[same == "no", "title"].tolist()
    text = WORDS.say("invariance", methods=listing(depends) if depends else "none")
    columns = worded_columns(WORDS, "invariance")
    return text, (
        page_table(rows, columns, "Share of |attribution| on features that the network does not read.", ROWS),
    )


FORMS = ("svg", "png")
COLUMN, ROW = 1.25, 1.35
"""Inches of one picture."""
MIDDLE = 2
"""The bin of which one grid is shown as an example: 5 to 50 %."""


def draw_aggregated(layout: EvaluationLayout) -> None:
    """Draw one figure per setting from `studies.grids.stage`, where it was made; files ``aggregated_<setting>``.

    Each picture is a grid seen along its last axis, the explained cell at the lower left; positive values summed. All
    pictures of a method share one scale.
    """
    if not layout.aggregated_maps.is_file():
        return
    with np.load(layout.aggregated_maps, allow_pickle=False) as file:
        values = {name: file[name] for name in file.files}
    gallery = Gallery(layout.evaluation_figures, FORMS)
    for setting in dict.fromkeys(values["settings"].tolist()):
        arrays = {name: one[values["settings"] == setting] for name, one in values.items()}
        with house_style():
            figure = _aggregated_figure(arrays, setting)
            gallery.add(
                figure,
                f"aggregated_{setting}",
                f"Mean maps of {len(arrays['names'])} methods in {setting} grids",
                "Best grids at the left, worst at the right.",
            )


def _aggregated_figure(arrays: Mapping[str, NDArray], setting: str) -> Figure:  # type: ignore[type-arg]
    bins, rows = len(EDGES) - 1, len(arrays["names"])
    figure = Figure(figsize=(COLUMN * (bins + 1) + 0.6, ROW * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, bins + 1, squeeze=False)
    for row, name in enumerate(arrays["names"].tolist()):
        limit = float(arrays["limits"][row]) or 1.0
        pictures = [arrays["examples"][row, MIDDLE], *arrays["means"][row]]
        labels = ["example", *(f"{share:.2f}" for share in arrays["shares"][row])]
        for one, picture, label in zip(axes[row], pictures, labels, strict=True):
            one.imshow(picture.T, origin="lower", cmap=warm(), vmin=0, vmax=limit, interpolation="nearest")
            for side, line in zip(picture.shape, (one.axvline, one.axhline), strict=True):
                line(side / 2 - 0.5, color="white", linewidth=0.6)
            one.set(xticks=[], yticks=[])
            one.grid(False)
            one.set_xlabel(label, fontsize=7)
        axes[row, 0].set_ylabel(f"{name}\nstage {arrays['stages'][row]}, n = {arrays['counts'][row]}", fontsize=6)
    for column in range(bins):
        axes[0, column + 1].set_title(f"{EDGES[column]}-{EDGES[column + 1]} %", fontsize=8)
    figure.suptitle(f"{setting}: mean maps by rank of the grid; below each, its mean share", fontsize=9)
    return figure


LOOKS = {"GridPG": (BLUE, "o"), "DiFull": (VERMILION, "s"), "DiPart": (ORANGE, "^")}
CELL = 0.25


def draw_depth_curves(curves: pd.DataFrame) -> Figure:
    """Share by relative depth, with intervals: a panel per method, a curve per setting, dashed what is chance.

    `curves`: columns ``method``, ``title``, ``setting``, ``depth``, ``share``, ``ci_low``, ``ci_high`` and ``chance``;
    deeper rows of a method later.
    """
    panels = list(curves.groupby("method", sort=False))
    figure, axes = new_panels(len(panels))
    legend: dict[str, Any] = {}
    for ax, (_, of_method) in zip(axes, panels, strict=True):
        for chance in of_method["chance"].unique():
            ax.axhline(chance, color=GREY, lw=1, ls="--")
        for setting, curve in of_method.groupby("setting", sort=False):
            colour, marker = LOOKS[str(setting)]
            errors = np.vstack([curve["share"] - curve["ci_low"], curve["ci_high"] - curve["share"]]).clip(min=0)
            legend[str(setting)] = ax.errorbar(
                curve["depth"], curve["share"], np.nan_to_num(errors), color=colour, marker=marker, ms=4, lw=1.3,
                elinewidth=1, capsize=2,
            )  # fmt: skip
        ax.set_title(of_method["title"].iloc[0], fontsize=7.5)
        ax.set(xlim=(-0.06, 1.06), ylim=(-0.03, 1.06), xticks=[0, 0.5, 1])
    figure.supxlabel("relative depth", fontsize=9)
    figure.supylabel("share in the scan explained", fontsize=9)
    figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=len(legend))
    return figure


def draw_agreement(matrix: pd.DataFrame) -> Figure:
    """Rank correlations of shares, -1 to 1, each map by each other one.

    `matrix`: square, rows and columns named alike.
    """
    values, names = matrix.to_numpy(float), list(matrix.index)
    side = CELL * len(names) + 2.2
    figure = new_figure(side + 0.6, side)
    ax = figure.subplots()
    image = ax.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1)
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if abs(value) > 0.6 else INK
        ax.text(column, row, fixed(value, 1), ha="center", va="center", fontsize=6, color=colour)
    ax.set_xticks(range(len(names)), names, rotation=90, fontsize=6.5)
    ax.set_yticks(range(len(names)), names, fontsize=6.5)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    figure.colorbar(image, ax=ax, label="rank correlation of shares", shrink=0.5)
    return figure


VIEWS = (
    PartView("grids", grids, draw_grids, draw_aggregated),
    PartView("grid_directions", claims),
    PartView("invariance", invariance),
)
