"""Analyses of the statistics stage on the page: which columns of which table, in what order, declared as data.

A section is a list of views. A view picks rows and columns of one table; headings, formats and hints of columns come
from the declaration of the table. The caption names the file that has what is left out. A chart of the intervals
stands beside a table that asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
from markupsafe import Markup

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.run.declared import Form, column_of
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import PageTable, columns_of, correction, page_table
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.vector.charts import IntervalRow, draw_intervals
from heatlas.reports.words.numbers import (
    LONGEST_TEXT,
    MISSING,
    count,
    fixed,
    is_missing,
    listing,
    number,
    sentence_case,
    shortened,
)
from heatlas.reports.words.wording import (
    OWN,
    biomarker_in_words,
    contrast_in_words,
    covariates_in_words,
    level_in_words,
    levels_in_words,
    variable_in_words,
    without_codes,
    worded,
)

DRAWN = 20  # rows of a chart
N, CI = ("n_participants", "n_scans"), ("ci_low", "ci_high")
G = ("hedges_g", "hedges_g_low", "hedges_g_high")
"""Columns that many views have."""


@dataclass(frozen=True)
class IntervalChart:
    """A chart of estimates with their intervals."""

    label: Sequence[str]  # columns that name a row
    estimate: str
    low: str
    high: str
    axis: str  # with its unit
    at: float | None = 0.0  # where there is no effect
    n: Sequence[str] = ("n_participants",)  # columns with the participants behind a row, group by group
    confidence: float = 0.0  # of its intervals, where the settings do not say it


def chart_of(
    rows: pd.DataFrame, spec: IntervalChart | None, caption: str, confidence: float
) -> tuple[Markup | None, str]:
    """Chart of the first `DRAWN` rows that have an estimate, and its caption; None where there is nothing to draw.

    Values that all rows share are in the caption, not in every name; `confidence` is that of the intervals.
    """
    if spec is None or not {spec.estimate, spec.low, spec.high} <= set(rows.columns):
        return None, ""
    known = rows[rows[spec.estimate].notna()].head(DRAWN)
    if known.empty:
        return None, ""
    drawn, (label, same) = [], _told_apart(known, spec)
    for row in known.to_dict("records"):
        parts = [_said(name, row[name]) for name in label if name in row and not is_missing(row[name])]
        sizes = [number(row[name]) for name in spec.n if not is_missing(row.get(name))]
        n = f"n = {' and '.join(sizes)}" if sizes else ""
        drawn.append(
            IntervalRow(" · ".join(parts), n, row[spec.estimate], row[spec.low], row[spec.high], row.get("group_page"))
        )
    alt = listing([f"{row.name} {fixed(row.estimate)}" for row in drawn[:6]])
    there = int(rows[spec.estimate].notna().sum())
    left = f" The first {number(DRAWN)} of {number(there)}." if there > DRAWN else ""
    lines = f" Lines are {100 * (spec.confidence or confidence):g} % intervals"
    upright = "." if spec.at is None else f"; the upright one marks {number(spec.at)}."
    return draw_intervals(drawn, spec.axis, f"{spec.axis}: {alt}.", spec.at), f"{caption}{same}{lines}{upright}{left}"


def _told_apart(rows: pd.DataFrame, spec: IntervalChart) -> tuple[list[str], str]:
    """Columns in which the rows differ, and a sentence with the values that they share."""
    there = [name for name in spec.label if name in rows]
    shared = [name for name in there if len(rows) > 1 and (rows[name] == rows[name].iloc[0]).all()]
    said = [_said(name, rows[name].iloc[0]) for name in shared]
    return [name for name in there if name not in shared], f" All rows: {', '.join(said)}." if said else ""


def _said(name: str, value: object) -> str:
    return shortened(worded(value) if column_of(name, "").form is Form.CODE else value)


SHOWN = 12  # rows of a table on the page, unless its view says otherwise


@dataclass(frozen=True)
class View:
    """One table of the statistics stage as the page shows it."""

    table: str  # name of `reports.read.run_files.TABLES`
    caption: str
    columns: Sequence[str]
    # Values of columns that rows must have to be shown; the others are in the file. ``{positive}`` and ``{negative}``
    # stand for the classes
    where: Mapping[str, Sequence[object]] = field(default_factory=dict)
    leading: bool = True  # show only rows of the leading maps
    order: Sequence[str] = ()  # columns to sort by, smallest first; ``-name`` by size in absolute value, largest first
    shown: int = SHOWN
    intervals: IntervalChart | None = None
    # Column of corrected p values that are counted in a sentence; where no test has one, only the notes are shown
    finding: str = ""
    verdicts: bool = False  # count the column ``verdict`` in a sentence
    text: str = ""  # stands before the table; ``{positive}``, ``{negative}`` and ``{start}`` are filled in
    optional: bool = False  # leave the view out where `where` picks no row

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> View:
        """A view as a TOML file has it: ``n/a`` is a missing value, and a chart ``at`` nan has no upright line."""
        facts = dict(words)
        where = facts.pop("where", {})
        facts["where"] = {name: [None if one == MISSING else one for one in where[name]] for name in where}
        if chart := facts.get("intervals"):
            at = chart.get("at", 0.0)
            ends = dict(zip(("low", "high"), CI, strict=True))
            facts["intervals"] = IntervalChart(**ends | chart | {"at": None if at != at else at})
        return cls(**facts)


@dataclass(frozen=True)
class ShownView:
    """A view ready for the page."""

    text: str
    sentence: str
    chart: Markup | None
    chart_caption: str
    table: PageTable | None
    notes: tuple[str, ...]
    file: str


def show_view(view: View, material: Material) -> ShownView | None:
    """A view of a run; None where its table is not there."""
    run = material.run
    if not run.has(view.table):
        return None
    names = {"positive": run.positive, "negative": run.negative, "start": run.config.attribution.start_value}
    view = replace(view, caption=view.caption.format(**names), text=view.text.format(**names))
    table = run.tables[view.table]
    chosen = _chosen(view, run)
    if view.optional and chosen.empty:
        return None
    named = _named(chosen, material)
    wanted = view.columns or list(chosen.columns)
    columns = columns_of(run, view.table, wanted)
    file = TABLES[view.table].path(run.layout).relative_to(run.layout.root).as_posix()
    whole = len(chosen) == len(table) and len(chosen) <= view.shown
    sentences = (view.caption, TABLES[view.table].tests, "" if whole else f"Every row and column is in {file}.")
    caption = " ".join(filter(None, sentences))
    chart, chart_caption = chart_of(named, view.intervals, view.caption, run.config.statistics.confidence)
    notes = tuple(
        dict.fromkeys(
            shortened(without_codes(note), LONGEST_TEXT) for note in table.get("note", pd.Series(dtype=object)).dropna()
        )
    )
    valued = _with_values(chosen, view)
    hidden = "participant_id" in chosen and not material.shows_people
    untested = bool(notes) and view.finding in chosen and not chosen[view.finding].notna().any()
    return ShownView(
        view.text, _sentence(view, chosen), chart, chart_caption,
        page_table(named, columns, caption, view.shown) if len(chosen) and not (untested or hidden) else None,
        (*_planted(view, chosen), *(notes if untested or not valued else ())), file,
    )  # fmt: skip


def _chosen(view: View, run: RunRecord) -> pd.DataFrame:
    rows = run.tables[view.table]
    for column, values in view.where.items():
        if column in rows.columns:
            known = rows[column].isin([_filled(value, run) for value in values if value is not None])
            rows = rows[known | rows[column].isna()] if None in values else rows[known]
    if view.leading and "map" in rows:
        rows = rows[rows["map"].isin(run.main_maps) | rows["map"].isna()]
    if view.leading and "source" in rows:  # a map or volumes
        others = set(run.map_names) - set(run.main_maps)
        rows = rows[~rows["source"].isin(others)]
    keys, sort = [], rows
    for place, name in enumerate(view.order):
        column = name.removeprefix("-")
        if column in rows:
            key = f"_order{place}"
            sort = sort.assign(**{key: -sort[column].abs() if name.startswith("-") else sort[column]})
            keys.append(key)
    return sort.sort_values(keys, kind="stable", na_position="last")[list(rows.columns)] if keys else rows


def _filled(value: object, run: RunRecord) -> object:
    return value.format(positive=run.positive, negative=run.negative) if isinstance(value, str) else value


def _named(rows: pd.DataFrame, material: Material) -> pd.DataFrame:
    """Maps by their title, regions and participants with the address of their page."""
    named = rows
    if "map" in named:
        named = named.assign(map=named["map"].map(map_title, na_action="ignore"))
    if "source" in named:
        names = {name: map_title(name) for name in material.run.map_names} | {"volume": f"volume ({OWN})"}
        named = named.assign(source=named["source"].map(lambda name: names.get(name, name)))
    named = rows_in_words(named, material.run)
    if "group" in named:
        named = named.assign(group_page=named["group"].map(material.links.region).astype(object))
    if "participant_id" in named:
        named = named.assign(person_page=named["participant_id"].map(material.links.participant).astype(object))
    return named


def rows_in_words(rows: pd.DataFrame, run: RunRecord) -> pd.DataFrame:
    """Codes of covariates, levels, contrasts and biomarkers in words, and the source of every volume."""
    worded_rows = rows
    if {"variable", "contrast"} <= set(worded_rows):
        pairs = zip(worded_rows["variable"], worded_rows["contrast"], strict=True)
        worded_rows = worded_rows.assign(
            contrast=[contrast_in_words(variable, contrast) for variable, contrast in pairs]
        )
    if {"variable", "level"} <= set(worded_rows):
        pairs = zip(worded_rows["variable"], worded_rows["level"], strict=True)
        worded_rows = worded_rows.assign(level=[level_in_words(variable, level) for variable, level in pairs])
    if {"variable", "levels"} <= set(worded_rows):
        pairs = zip(worded_rows["variable"], worded_rows["levels"], strict=True)
        worded_rows = worded_rows.assign(levels=[levels_in_words(variable, levels) for variable, levels in pairs])
    if "variable" in worded_rows:
        worded_rows = worded_rows.assign(variable=_each_once(worded_rows["variable"], variable_in_words))
    if "covariates" in worded_rows:
        worded_rows = worded_rows.assign(covariates=worded_rows["covariates"].map(covariates_in_words))
    if "note" in worded_rows:
        worded_rows = worded_rows.assign(note=_each_once(worded_rows["note"], without_codes))
    for column in {"biomarker", "predictor", "response"} & set(worded_rows):
        worded_rows = worded_rows.assign(**{column: _each_once(worded_rows[column], partial(biomarker_in_words, run))})
    return worded_rows


def _each_once(cells: pd.Series, in_words: Callable[[Any], str]) -> pd.Series:
    """Cells in words; thousands of rows hold few different values, and each is put in words once."""
    words = {cell: in_words(cell) for cell in cells.dropna().unique()}
    return cells.map(words.__getitem__, na_action="ignore")


def _with_values(rows: pd.DataFrame, view: View) -> bool:
    """Whether any row has a number to show; without one, the notes say why."""
    numbers = [name for name in view.columns if name in rows and pd.api.types.is_float_dtype(rows[name])]
    return bool(len(rows)) and (not numbers or bool(rows[numbers].notna().any(axis=None)))


def _sentence(view: View, rows: pd.DataFrame) -> str:
    """How many tests are significant after correction; for verdicts, which are not as planted."""
    if view.verdicts and "verdict" in rows:
        return _verdicts(rows)
    if not view.finding or view.finding not in rows:
        return ""
    tested = rows[rows[view.finding].notna()]
    if tested.empty:
        return f"{view.caption.rstrip('.')}: nothing could be tested."
    clear = int((tested[view.finding] < 0.05).sum())
    kind = correction(view.finding)
    return f"{number(clear)} of {count(len(tested), 'test')} shown here with a corrected p {kind} below 0.05."


def _verdicts(rows: pd.DataFrame) -> str:
    right = int((rows["verdict"] == "as planted").sum())
    others = [
        f"{verdict}: {listing([worded(name) for name in group['effect']])}"
        for verdict, group in rows[rows["verdict"] != "as planted"].groupby("verdict", sort=True)
    ]
    return ". ".join([f"{number(right)} of {count(len(rows), 'answer')} as planted", *map(sentence_case, others)]) + "."


def _planted(view: View, rows: pd.DataFrame) -> list[str]:
    """What was planted in the data, effects with the same cause in one line."""
    if not view.verdicts or not {"effect", "planted"} <= set(rows):
        return []
    causes = rows[rows["planted"].notna()].groupby("planted", sort=False)["effect"]
    return [f"{listing([worded(name) for name in names])}: {cause}." for cause, names in causes]
