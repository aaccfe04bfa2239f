"""Which map can be trusted: the verdicts of ``heatlas evaluate``, and what else the evaluation found.

The first section has each map beside its nulls, and the dose-response. The second has a sentence or two and a table of
each further part; a part that was not asked is one line with the command that asks it. All is read from tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.evaluation import parts as bench_parts
from heatlas.pipeline.evaluation.bench import part as bench
from heatlas.pipeline.evaluation.bench.part import BenchRequest, Shown
from heatlas.pipeline.evaluation.bench.scan_job import FAITHFUL, SEEN
from heatlas.pipeline.evaluation.bench.table import ALL, EVALUATION_TABLE
from heatlas.pipeline.evaluation.nulls import NO_NETWORK, REAL
from heatlas.pipeline.evaluation.scores.faithfulness import LOST
from heatlas.pipeline.evaluation.scores.map_scores import MAP_SCORES
from heatlas.pipeline.run.errors import UsageError
from heatlas.reports.figures.gallery import BLUE, GREY, LONGEST_METHOD, Picture, new_panels
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table, remark, worded_columns
from heatlas.reports.questions.question import ANY_TASK, ROWS, Caution, Check, PartView, Question, first_few, rows_where
from heatlas.reports.questions.trust import COHORTS, evaluation, lines_on, title_of
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord, has_passed
from heatlas.reports.words.numbers import count, fixed, interval, mid_sentence, number, sentence_case, shortened
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)

LEAD = (
    "Every map is judged by what it should and should not show. It should find what was planted, if anything was; it "
    "should look different where a network was trained on shuffled labels or not at all; and it should not mark what "
    "the network need not use. Images made without any network (an edge detector, |scan − mean control|) stand beside "
    "the maps: a map that does no better explains the image, not the network."
)
_BESIDE = (
    *worded_columns(WORDS, "beside"),
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
        of_cohort, judged = scores[scores["cohort"] == cohort], verdicts[verdicts["cohort"] == cohort]
        judged = judged.assign(order=judged["map"].map(_order(run.ordered_maps))).sort_values("order", kind="stable")
        lines = [(title_of(row["map"]), row["verdict"], remark(row["numbers"])) for row in judged.to_dict("records")]
        tables = (_dose_response(of_cohort), _faithfulness(of_cohort))
        blocks.append({
            "title": f"Judged on the {COHORTS.get(cohort, str(cohort))}", "lines": lines,
            "table": _beside(judged, of_cohort),
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
    caption = WORDS.say("beside", scans=scans, people=people)
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


def build_parts(views: Mapping[str, PartView], material: Material) -> Mapping[str, Any]:
    """All that is shown, less what the run would refuse."""
    run = material.run
    return {"parts": [
        _part(views, material, shown, part)
        for shown, part in shown_of_all().items() if run.has(shown.table) or not _refused(part, run)
    ]}  # fmt: skip


def _refused(part: bench.Part | None, run: RunRecord) -> bool:
    try:
        if part is not None:
            part.require(BenchRequest(), run.config)
    except UsageError:
        return True
    return False


def _part(views: Mapping[str, PartView], material: Material, shown: Shown, part: bench.Part | None) -> EvaluationPart:
    run = material.run
    if not run.has(shown.table):
        asked = shown.command or (f"--parts {part.name}" if part else "")
        command = f"heatlas evaluate OUT {asked}".rstrip()
        return EvaluationPart(
            shown.title, run.why_absent(shown.table, otherwise=f"Not asked: {command} makes this part.")
        )
    view = views.get(shown.table) or PartView(shown.table, partial(_as_it_is, shown.table))
    text, tables = view.show(run, run.tables[shown.table])
    return EvaluationPart(shown.title, text, tables, view.figures(material) if view.figures else ())


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
        sentences.append(
            "; ".join(f"{name}: {first_few(titles) if titles else 'no map'}" for name, titles in by.items())
        )
        sentences[-1] = f"Marked in the {where}: {sentences[-1]}."
    text = WORDS.say("distractors")
    return f"{text}{' '.join(sentences)}", tuple(tables)


def _interactions(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Regions whose sides hold most, or least, together and not alone."""
    table = table.assign(size=-table["interaction"].abs()).sort_values("size", kind="stable")
    either, both = table[table["ci_low"] > 0], table[table["ci_high"] < 0]
    phrases = [
        f"{what} {first_few([mid_sentence(region) for region in rows['group']])}"
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
    text = WORDS.say("interactions", of_pairs=of_pairs, summary=summary, people=people, regions=len(table))
    columns = worded_columns(WORDS, "interactions")
    caption = "Evidence lost, in logits, with the 95 % interval of the interaction; the largest interactions first."
    return text, (page_table(table, columns, caption, ROWS),)


def _sources(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Where the leading map puts evidence, and what it goes with there."""
    maps = list(dict.fromkeys(table["map"]))
    name = run.leading_map if run.leading_map in maps else maps[0]
    of_map = table[table["map"] == name]
    first = _first_groups(run, name, str(of_map["cohort"].iloc[0]))
    place = {group: number for number, group in enumerate(first)}
    rows = of_map.assign(place=of_map["group"].map(place).fillna(len(place)), size=-of_map["r2"].fillna(-1))
    rows = rows.sort_values(["place", "size"], kind="stable")
    columns = worded_columns(WORDS, "sources")
    text = WORDS.say("sources")
    both = rows.head(ROWS).dropna(subset=["volume_slope", "intensity_slope"])
    if len(both):
        more = int((both["intensity_slope"].abs() > both["volume_slope"].abs()).sum())
        text += f" It goes more with intensity than with volume in {number(more)} of the {number(len(both))} shown."
    order = "regions that differ most between the classes first" if first else "best explained regions first"
    return text, (page_table(rows, columns, f"{map_title(name)}; {order}.", ROWS),)


def _first_groups(run: RunRecord, name: str, cohort: str) -> list[str]:
    """The first regions of a map, best first; none where its scores are not known."""
    rows = rows_where(run, "evaluation", map=name, network=REAL, cohort=cohort)
    names = rows.loc[rows["severity"].astype(str) == ALL, "first_groups"].dropna().tolist() if len(rows) else []
    return str(names[0]).split("; ") if names else []


_LEFT_OUT = (
    f"n/a: more than {100 * LOST:g} % of the brain leaves the volume when the scan is moved, so that the maps cannot "
    "be compared. Scans of which this is true are left out."
)


def _shifts(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Correlation of every map with that of the moved scan, a column per shift; the steadiest first."""
    wide = table.pivot_table(index="map", columns="shift", values="correlation", sort=False, dropna=False)
    wide = wide[sorted(wide.columns)]
    rows = pd.DataFrame({"title": [title_of(str(name)) for name in wide.index]})
    columns = [Column("title", "Map")]
    for shift in wide.columns:
        rows[f"at_{shift}"] = wide[shift].to_numpy()
        columns.append(numeric(f"at_{shift}", count(int(shift), "voxel"), fixed))
    known = [f"at_{shift}" for shift in wide.columns if wide[shift].notna().any()]
    if known:
        rows = rows.sort_values(known[-1], ascending=False, kind="stable")
    text = WORDS.say("shifts")
    fewest, most = int(table["n_participants"].min()), int(table["n_participants"].max())
    people = ("" if fewest == most else "at most ") + count(most, "participant")
    caption = f"Mean correlation over {people}. Intervals and cosines are in evaluation/shift_curve.tsv. {_LEFT_OUT}"
    return text, (page_table(rows, columns, caption, ROWS),)


def _draw_shifts(material: Material) -> tuple[Picture, ...]:
    """Curves over shifts; nothing of one shift alone."""
    table = material.run.tables["shift_curve"]
    table = table[table["correlation"].notna()]
    if table["shift"].nunique() < 2:
        return ()
    curves = table.assign(title=[shortened(title_of(str(name)), LONGEST_METHOD) for name in table["map"]])
    picture = material.gallery.add(
        draw_shift_curves(curves.sort_values(["map", "shift"], kind="stable")),
        "shift_curve",
        f"Curves of the correlation of {count(table['map'].nunique(), 'map')} with those of moved scans, by shift.",
        WORDS.say("shifts_caption", lost=100 * LOST),
    )
    return (picture,)


def draw_shift_curves(curves: pd.DataFrame) -> Figure:
    """Likeness of the maps of moved scans by shift, with intervals, a panel per map; dashed, maps that stay in place.

    `curves`: columns ``map``, ``title``, ``shift``, ``correlation``, ``correlation_low``, ``correlation_high`` and
    ``in_place``, in rising order of shifts.
    """
    panels = list(curves.groupby("map", sort=False))
    figure, axes = new_panels(len(panels), sharex=True)
    for ax, (_, curve) in zip(axes, panels, strict=True):
        middle = curve["correlation"]
        errors = np.vstack([middle - curve["correlation_low"], curve["correlation_high"] - middle]).clip(min=0)
        ax.axhline(0, color=GREY, lw=0.6)
        ax.plot(curve["shift"], curve["in_place"], color=GREY, lw=1, ls="--")
        ax.errorbar(curve["shift"], middle, np.nan_to_num(errors), color=BLUE, marker="o", ms=4, lw=1.3, capsize=2)
        ax.set_title(curve["title"].iloc[0], fontsize=7.5)
        ax.set(ylim=(min(-0.06, float(curves["correlation"].min()) - 0.06), 1.06))
    figure.supxlabel("shift along the diagonal, voxels", fontsize=9)
    figure.supylabel("correlation of maps", fontsize=9)
    return figure


def _as_it_is(name: str, run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """The first rows of a table without a view of its own."""
    declared = TABLES[name]
    columns = [
        Column(key, key, hint=meaning.meaning) if meaning.is_text else numeric(key, key, hint=meaning.meaning)
        for key, meaning in declared.columns.items()
    ]
    return declared.question, (page_table(table, columns, f"One row per {declared.rows}.", ROWS),)


DISTRACTORS = Shown("Do maps mark what they should not?", "distractors")
VIEWS = (
    PartView("distractors", _distractors), PartView("interactions_of_sides", _interactions),
    PartView("evidence_sources", _sources), PartView("shift_curve", _shifts, _draw_shifts),
)  # fmt: skip
"""How tables of the bench are shown; plug-ins add views of those of their parts."""


def _leading_map_failed(run: RunRecord) -> Caution | None:
    """A leading map that did not pass the evaluation of this run: none of those that could lead did."""
    if has_passed(run.tables["verdicts"], run.leading_map) is not False:
        return None
    return Caution.read(WORDS, "leading-map-failed", run=run, verdicts="; ".join(lines_on(run, run.leading_map)))


EVALUATION = Question.read(
    WORDS,
    "evaluation",
    draw=build,
    tasks=ANY_TASK,
    answer=evaluation,
    cautions=(Check("leading-map", _leading_map_failed, ("verdicts",)),),
)
FURTHER = "evaluation-parts"


def further_results(views: Mapping[str, PartView]) -> Question:
    """The section of everything else that ``heatlas evaluate`` found."""
    return Question.read(WORDS, FURTHER, draw=partial(build_parts, views), applies=applies, tasks=ANY_TASK)
