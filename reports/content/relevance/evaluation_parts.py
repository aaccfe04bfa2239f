"""What else the evaluation found: a sentence or two and a table of each further part; read from its tables.

A part that was not asked is one line with the command that asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.evaluation import parts as bench_parts
from heatlas.pipeline.evaluation.bench import part as bench
from heatlas.pipeline.evaluation.bench.part import Shown
from heatlas.pipeline.evaluation.bench.request import BenchRequest
from heatlas.pipeline.evaluation.bench.table import ALL
from heatlas.pipeline.evaluation.nulls.networks import REAL
from heatlas.pipeline.run.errors import UsageError
from heatlas.reports.analyses.map_verdicts import COHORTS, title_of
from heatlas.reports.content.relevance.evaluation_grids import claims, draw_grids, draw_shifts, grids, shifts
from heatlas.reports.content.relevance.evaluation_networks import (
    ROWS,
    consensus,
    invariance,
    named,
    representations,
    retraining,
)
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, mid_sentence, number, signed


@dataclass(frozen=True)
class EvaluationPart:
    """One part of the evaluation: what was asked and found, in a few sentences, its tables and its figures."""

    title: str
    text: str
    tables: tuple[PageTable, ...] = ()
    figures: tuple[Picture, ...] = ()


def shown_of_all() -> Mapping[Shown, bench.Part | None]:
    """What is shown, in the order of the page, and the part that makes it; of the bench itself None."""
    return {DISTRACTORS: None} | {shown: part for part in bench_parts.PARTS for shown in part.shown}


def applies(run: RunRecord) -> bool:
    """Whether the run was evaluated: any part is there, or a file of one that cannot be used."""
    names = ("verdicts", *(declared.table for declared in shown_of_all()))
    return any(run.has(name) or name in run.unreadable for name in names)


def build_parts(material: Material) -> Mapping[str, Any]:
    """All that is shown, less what the run would refuse."""
    run = material.run
    shown = {
        declared: part
        for declared, part in shown_of_all().items()
        if run.has(declared.table) or not _refused(part, run)
    }
    parts = [_part(run, declared, part) for declared, part in shown.items()]
    drawn = [
        _FIGURES[declared.table](material) if declared.table in _FIGURES and run.has(declared.table) else ()
        for declared in shown
    ]
    return {"parts": [replace(part, figures=figures) for part, figures in zip(parts, drawn, strict=True)]}


def _refused(part: bench.Part | None, run: RunRecord) -> bool:
    try:
        if part is not None:
            part.require(BenchRequest(), run.config)
    except UsageError:
        return True
    return False


def _part(run: RunRecord, shown: Shown, part: bench.Part | None = None) -> EvaluationPart:
    if not run.has(shown.table):
        asked = shown.command or (f"--parts {part.name}" if part else "")
        command = f"heatlas evaluate OUT {asked}".rstrip()
        return EvaluationPart(
            shown.title, run.why_absent(shown.table, otherwise=f"Not asked: {command} makes this part.")
        )
    return EvaluationPart(
        shown.title, *_VIEWS.get(shown.table, partial(_as_it_is, shown.table))(run, run.tables[shown.table])
    )


def _distractors(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Maps by distractors, a table for each cohort."""
    sentences, tables = [], []
    for cohort, of_cohort in table.groupby("cohort", sort=False):
        of_cohort = of_cohort.assign(title=of_cohort["map"].map(title_of))
        limits = dict(of_cohort.groupby("distractor", sort=False)["limit"].first())
        rows = pd.DataFrame({"title": of_cohort["title"].unique()})
        for name in limits:
            rows[name] = rows["title"].map(of_cohort[of_cohort["distractor"] == name].set_index("title")["ratio"])
        columns = [numeric(str(name), f"{name} (limit {limit:g})", fixed) for name, limit in limits.items()]
        where = COHORTS.get(str(cohort), str(cohort))
        caption = f"False attribution, {where}. A map marks what is above its limit."
        tables.append(page_table(rows, [Column("title", "Map"), *columns], caption, ROWS))
        marked = of_cohort[(of_cohort["marked"].astype(str).str.lower() == "true") & (of_cohort["network"] == REAL)]
        by = {name: marked.loc[marked["distractor"] == name, "title"].tolist() for name in limits}
        sentences.append("; ".join(f"{name}: {named(titles) if titles else 'no map'}" for name, titles in by.items()))
        sentences[-1] = f"Marked in the {where}: {sentences[-1]}."
    text = (
        "A distractor is in the image but does not tell the classes apart, so no good map marks it. Values are "
        "relative to what the map puts on planted regions, or for the rim to an even map. "
    )
    return f"{text}{' '.join(sentences)}", tuple(tables)


def _interactions(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Regions whose sides hold most, or least, together and not alone."""
    table = table.assign(size=-table["interaction"].abs()).sort_values("size", kind="stable")
    either, both = table[table["ci_low"] > 0], table[table["ci_high"] < 0]
    phrases = [
        f"{what} {named([mid_sentence(region) for region in rows['group']])}"
        for what, rows in (("either side suffices:", either), ("it needs both sides:", both))
        if len(rows)
    ]
    summary = (
        f"Where the interval excludes 0, {'; '.join(phrases)}"
        if phrases
        else "In no region does the interval exclude 0"
    )
    people = count(int(table["n_participants"].max()), "participant")
    pairs = table["group"].str.contains(" + ", regex=False).any()
    of_pairs = " Of a pair of regions the first stands under left, the second under right." * bool(pairs)
    text = (
        f"The left side, the right side and both take the tissue of controls.{of_pairs} {summary} (intervals over "
        f"{people}, not corrected for {count(len(table), 'region')})."
    )
    columns = [
        Column("group", "Region"), numeric("left", "Left", _milli), numeric("right", "Right", _milli),
        numeric("both", "Both", _milli),
        numeric("interaction", "Both − left − right", _milli, "above 0: either suffices; below 0: both are needed"),
        numeric("ci_low", "From", _milli), numeric("ci_high", "To", _milli),
    ]  # fmt: skip
    caption = "Evidence lost, in logits, with the 95 % interval of the interaction; the largest interactions first."
    return text, (page_table(table, columns, caption, ROWS),)


def _milli(value: object) -> str:
    """A difference of logits with three decimals."""
    return signed(value, 3)


def _sources(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Where the leading map puts evidence, and what it goes with there."""
    maps = list(dict.fromkeys(table["map"]))
    name = run.leading_map if run.leading_map in maps else maps[0]
    of_map = table[table["map"] == name]
    first = _first_groups(run, name, str(of_map["cohort"].iloc[0]))
    place = {group: number for number, group in enumerate(first)}
    rows = of_map.assign(place=of_map["group"].map(place).fillna(len(place)), size=-of_map["r2"].fillna(-1))
    rows = rows.sort_values(["place", "size"], kind="stable")
    columns = [
        Column("group", "Region"),
        numeric("volume_slope", "With volume", signed, "below 0: more evidence where the region is smaller"),
        numeric("volume_low", "from", signed),
        numeric("volume_high", "to", signed),
        numeric("intensity_slope", "With intensity", signed, "below 0: more evidence where the region is darker"),
        numeric("intensity_low", "from", signed),
        numeric("intensity_high", "to", signed),
        numeric("r2", "Share explained by both", fixed),
        numeric("n_scans", "Scans"),
    ]
    text = (
        "Evidence in each region is compared with the region's volume (from the registration) and its intensity, "
        "within class and fold: standard deviations of evidence per standard deviation, with 95 % intervals over "
        "participants. Descriptive, not tested."
    )
    both = rows.head(ROWS).dropna(subset=["volume_slope", "intensity_slope"])
    if len(both):
        more = int((both["intensity_slope"].abs() > both["volume_slope"].abs()).sum())
        text += f" It goes more with intensity than with volume in {number(more)} of the {number(len(both))} shown."
    order = "regions that differ most between the classes first" if first else "best explained regions first"
    return text, (page_table(rows, columns, f"{map_title(name)}; {order}.", ROWS),)


def _first_groups(run: RunRecord, name: str, cohort: str) -> list[str]:
    """The first regions of a map, best first; none where its scores are not known."""
    if not run.has("evaluation"):
        return []
    rows = run.tables["evaluation"]
    rows = rows[(rows["map"] == name) & (rows["network"] == REAL) & (rows["cohort"] == cohort)]
    names = rows.loc[rows["severity"].astype(str) == ALL, "first_groups"].dropna().tolist()
    return str(names[0]).split("; ") if names else []


def _as_it_is(name: str, run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """The first rows of a table without a view of its own."""
    declared = TABLES[name]
    columns = [
        Column(key, key, hint=meaning.meaning) if meaning.is_text else numeric(key, key, hint=meaning.meaning)
        for key, meaning in declared.columns.items()
    ]
    return declared.question, (page_table(table, columns, f"One row per {declared.rows}.", ROWS),)


DISTRACTORS = Shown("Do maps mark what they should not?", "distractors")
_VIEWS: Mapping[str, Callable[[RunRecord, pd.DataFrame], tuple[str, tuple[PageTable, ...]]]] = {
    "distractors": _distractors, "interactions_of_sides": _interactions, "evidence_sources": _sources, "grids": grids,
    "grid_directions": claims, "invariance": invariance, "retraining": retraining, "consensus": consensus,
    "representations": representations, "shift_curve": shifts,
}  # fmt: skip
"""Tables with a view of their own."""
_FIGURES: Mapping[str, Callable[[Material], tuple[Picture, ...]]] = {
    "grids": draw_grids, "shift_curve": draw_shifts,
}  # fmt: skip
"""Tables with figures."""
