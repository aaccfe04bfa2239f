"""Who is in the run: from every image found to every scan explained, and the list of participants.

The flow chart is drawn as in CONSORT and STARD: down what went on, to the side what did not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from heatlas.pipeline.cohort.people.inclusion import InclusionStep, scans_reached, steps
from heatlas.pipeline.run.config.inclusion import read_rule
from heatlas.reports.figures.gallery import OUTCOME_NAMES
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, columns_of, numeric, page_table, remark, worded_columns
from heatlas.reports.questions.question import ANY_TASK, Caution, Check, Question
from heatlas.reports.read.people import ParticipantRecords, unlike_scans
from heatlas.reports.read.run_files import PREDICTIONS_OF, TABLES
from heatlas.reports.read.run_record import KEYS, RunRecord
from heatlas.reports.vector.drawing import INK, SOFT, Drawing, wrapped
from heatlas.reports.words.numbers import (
    LONGEST_TEXT,
    MISSING,
    count,
    fixed,
    is_missing,
    listing,
    number,
    p_value,
    percent,
    shortened,
)
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import hippocampal_source

WORDS = Words(__file__)

_DROPPED = ("participant_id", "session_id", "scan_id", "diagnosis", "site", "reason")
_FAILED = ("stage", "unit", "error", "message", "traceback")
_LOST = {
    "kept": "dropped", "labelled": "outside the contrast and not used for training",
    "registered": "failed in registration", "predicted": "in no test set, or their fold failed",
    "explained": "without heatmaps",
}  # fmt: skip
MOST_REASONS = 8  # reasons in the flow chart; the list below it has all


def flow(run: RunRecord) -> tuple[list[FlowBox], str]:
    """The flow chart from found to explained scans, with the reasons of those that left, and the same in words."""
    scans = run.tables["scans"]
    kept = scans[scans["kept"].astype(bool)]
    labelled = kept[kept["label"].notna()]
    stages: dict[str, pd.DataFrame | None] = {"found": scans, "kept": kept, "labelled": labelled}
    tables = ("registration", PREDICTIONS_OF[run.task.kind.name], "relevance_bilateral")
    for name, table in zip(("registered", "predicted", "explained"), tables, strict=True):
        there = run.tables.get(table)
        if there is not None and table == "registration":
            there = there[there["status"] == "registered"]
        stages[name] = None if there is None else labelled.merge(there[KEYS].drop_duplicates(), on=KEYS)
    outside = kept.loc[kept["label"].isna(), "diagnosis"].fillna("diagnosis not known").value_counts()
    include = run.config.cohort.include
    decided = steps(scans, read_rule(include)) if include else None  # what each part of the rule of inclusion left
    boxes: list[FlowBox] = []
    said: list[str] = []
    before = len(scans)
    for name, frame in stages.items():
        if frame is None:
            boxes.append(FlowBox(name.capitalize(), ["not reached by this run"], reached=False))
            continue
        if name == "kept" and decided is not None:
            boxes += _inclusion(run, scans, decided, said)
            before = len(decided[-1].left)
        counts = _counts(frame)
        lost = [f"{count(before - len(frame), 'scan')} {_LOST[name]}"] if before > len(frame) else []
        if name == "kept" and lost:
            lost = _with_reasons(lost[0], scans if decided is None else decided[-1].left)
        if name == "labelled" and lost:
            lost += [f"{number(n)} × {shortened(diagnosis)}" for diagnosis, n in outside.items()]
        title = name.capitalize() if name in ("found", "kept", "labelled") else f"Of these, {name}"
        boxes.append(FlowBox(title, [counts, *filter(None, [_split(run, frame)])], lost))
        said.append(f"{name} {counts}")
        before = len(frame)
    return boxes, f"Flow of scans: {', '.join(said)}."


def _inclusion(run: RunRecord, scans: pd.DataFrame, decided: Sequence[InclusionStep], said: list[str]) -> list[FlowBox]:
    """A box of the scans on which the rule decided, and one for each of its parts; adds to what is said in words."""
    usable = scans_reached(scans, read_rule(run.config.cohort.include))
    lost = scans.drop(usable.index)
    first = f"{count(len(lost), 'scan')} {_LOST['kept']}"
    boxes = [FlowBox("Usable", [_counts(usable)], _with_reasons(first, lost) if len(lost) else [])]
    said.append(f"usable {_counts(usable)}")
    for step in decided:
        gone = [f"{count(step.not_met, 'scan')} not met"] if step.not_met else []
        gone += [f"{count(step.unknown, 'scan')} with a missing value"] if step.unknown else []
        boxes.append(FlowBox(shortened(step.part, LONGEST_TEXT), [_counts(step.left)], gone))
        said.append(f"{step.part} {_counts(step.left)}")
    return boxes


def _counts(frame: pd.DataFrame) -> str:
    return f"{count(len(frame), 'scan')} of {count(frame['participant_id'].nunique(), 'participant')}"


def _with_reasons(lost: str, scans: pd.DataFrame) -> list[str]:
    """How many were dropped, and the most frequent reasons."""
    reasons = _reasons(scans)
    further = [f"{count(len(reasons) - MOST_REASONS, 'further reason')} below"] if len(reasons) > MOST_REASONS else []
    return [f"{lost}:", *(f"{n} × {reason}" for reason, n in reasons[:MOST_REASONS]), *further]


def _reasons(scans: pd.DataFrame) -> list[tuple[str, str]]:
    """Why scans were dropped, with how many, the most frequent reason first."""
    reasons = scans.loc[~scans["kept"].astype(bool), "reason"].fillna("no reason given").value_counts()
    return [(shortened(reason, LONGEST_TEXT), number(n)) for reason, n in reasons.items()]


def _split(run: RunRecord, frame: pd.DataFrame) -> str:
    counts = frame["label"].value_counts()
    said = ", ".join(f"{label} {number(counts[label])}" for label in reversed(run.task.outputs) if label in counts)
    others = len(frame) - sum(counts.get(label, 0) for label in run.task.outputs)
    if said and others:
        said += f", other {number(others)}"
    return f"scans: {said}" if said else ""


def build(material: Material) -> Mapping[str, Any]:
    """Flow, demographics, dropped scans by reason, failures."""
    run = material.run
    scans = run.tables["scans"]
    dropped = scans[~scans["kept"].astype(bool)]
    failed = columns_of(run, "failures", _FAILED, message="What happened, what to do", traceback="Details in")
    return {
        "flow": draw_flow(*flow(run)),
        "reasons": _reasons(scans),
        "dropped": page_table(
            dropped,
            columns_of(run, "scans", _DROPPED, session_id="Session", scan_id="Scan"),
            "Every dropped scan.",
            300,
        )
        if len(dropped) and material.shows_people
        else None,
        "demographics": _demographics(run),
        "failed": page_table(run.tables["failures"], failed, "Units that failed.", 200)
        if run.has("failures") and material.shows_people
        else None,
    }


_VARIABLES = {
    "scans": ("Scans per participant", 1), "age": ("Age, years", 1), "female": ("Women", 0),
    "mmse": ("MMSE", 1), "tiv_mm3": ("Intracranial volume, mm³", 0), "hippocampus_mm3": ("Hippocampal volume, mm³", 0),
}  # fmt: skip


def _demographics(run: RunRecord) -> PageTable | None:
    """Mean ± standard deviation per class, over participants, with the number of known values."""
    if not run.has("demographics"):
        return None
    table = run.tables["demographics"]
    labels = [label for label in (*reversed(run.task.classes), "all") if label in set(table["label"])]
    tests = run.tables["demographic_tests"].set_index("variable") if run.has("demographic_tests") else pd.DataFrame()
    rows = []
    for variable in dict.fromkeys(table["variable"]):
        title, decimals = _VARIABLES.get(variable, (variable, 2))
        if variable == "hippocampus_mm3":
            title = f"{title} ({hippocampal_source(run)})"
        row: dict[str, Any] = {"title": title}
        for label in labels:
            found = table[(table["label"] == label) & (table["variable"] == variable)]
            row[label] = _mean_sd(found.iloc[0], decimals) if len(found) else MISSING
        if variable in tests.index:
            row |= tests.loc[variable, ["p", "hedges_g", "hedges_g_low", "hedges_g_high", "test"]].to_dict()
        rows.append(row)
    people = table.drop_duplicates("label").set_index("label")["n_participants"]
    columns = [Column("title", "Per participant")]
    columns += [Column(label, f"{label}, n = {number(people[label])}") for label in labels]
    columns += worded_columns(WORDS, "demographics")
    columns += [Column("test", "Test", remark)]
    caption = WORDS.say("demographics_caption", TABLES=TABLES)
    return page_table(pd.DataFrame(rows), columns, caption)


def _mean_sd(row: pd.Series, decimals: int) -> str:
    if not row["n_known"]:
        return "not known"
    if row["variable"] == "female":
        return percent(row["mean"], 0) + _known(row)
    spread = "" if is_missing(row["sd"]) else f" ± {_grouped(row['sd'], decimals)}"
    return f"{_grouped(row['mean'], decimals)}{spread}{_known(row)}"


def _known(row: pd.Series) -> str:
    return "" if row["n_known"] == row["n_participants"] else f" ({count(int(row['n_known']), 'value')})"


def _grouped(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}".replace(",", "\u202f")


def build_participants(material: Material) -> Mapping[str, Any]:
    """One row per participant with a kept scan."""
    if not material.shows_people:
        return {"table": None, "left_out": True}
    run = material.run
    visits, unlike, rows = ParticipantRecords(run).visits, unlike_scans(run), []
    for participant, scans in visits.groupby("participant_id", sort=True):
        outcomes = [OUTCOME_NAMES[str(name)] for name in dict.fromkeys(scans["outcome"].dropna())]
        folds = dict.fromkeys(str(fold).removesuffix(".0") for fold in scans["fold"] if not is_missing(fold))
        withheld = scans["scan_id"].astype(str).isin(unlike)
        outcomes += ["unlike the training controls"] * bool(withheld.any())
        answers = scans[["probability", "predicted"]].mask(withheld).apply(pd.to_numeric, errors="coerce").mean()
        rows.append({
            "participant_id": participant, "page": material.links.participant(participant), "scans": len(scans),
            "diagnosis": ", ".join(dict.fromkeys(scans["diagnosis"].dropna().astype(str))),
            "age": scans["age"].iloc[0], "sex": scans["sex"].iloc[0], "site": scans["site"].iloc[0],
            "fold": ", ".join(folds) or None, "probability": answers["probability"],
            "outcome": ", ".join(outcomes) or None,
            "predicted": None if run.task.classes or withheld.all() else fixed(answers["predicted"], 1),
        })  # fmt: skip
    title, hint = f"Probability of {run.positive}", "mean over scans"
    probability = [numeric("probability", title, lambda x: fixed(x, 3), hint)] * bool(run.task.classes)
    columns = (
        *worded_columns(WORDS, "build_participants", run=run),
        *probability,
        *worded_columns(WORDS, "build_participants_2"),
    )
    caption = f"{count(len(rows), 'participant')} with kept scans; each name leads to a page."
    return {"table": page_table(pd.DataFrame(rows), columns, caption) if rows else None, "left_out": False}


WIDTH, MAIN, SIDE, GAP, LINE_HEIGHT = 600, 240, 300, 26, 16
KEPT, LOST, NOT_REACHED = "#e6f1f8", "#fff3ea", "#ffffff"


@dataclass(frozen=True)
class FlowBox:
    """One step and what left the flow before it."""

    title: str
    lines: Sequence[str]  # counts of those who are in
    lost: Sequence[str] = ()  # counts of those who are not, with reasons; empty where nobody left
    reached: bool = True  # whether the run came so far


def draw_flow(boxes: Sequence[FlowBox], title: str) -> Markup:
    """All steps from top to bottom."""
    laid = [
        (box, _lines(box.lines, MAIN), [line for text in box.lost for line in _lines([text], SIDE)]) for box in boxes
    ]
    heights = [(_height(len(lines) + 1), _height(len(lost)) if lost else 0) for _, lines, lost in laid]
    total = sum(main + (max(GAP, side + 16) if place else 0) for place, (main, side) in enumerate(heights)) + 2
    drawing = Drawing(WIDTH, total, title)
    top, middle = 1.0, 1 + MAIN / 2
    for place, ((box, lines, lost), (main, side)) in enumerate(zip(laid, heights, strict=True)):
        if place:
            space = max(GAP, side + 16)
            _arrow(drawing, middle, top, middle, top + space)
            if lost:
                centre = top + space / 2
                _arrow(drawing, middle, centre, WIDTH - SIDE - 2, centre)
                _write(drawing, WIDTH - SIDE - 1, centre - side / 2, SIDE, side, lost, LOST)
            top += space
        _write(drawing, 1, top, MAIN, main, lines, KEPT if box.reached else NOT_REACHED, box.title)
        top += main
    return drawing.html


def _lines(texts: Sequence[str], width: float) -> list[str]:
    return [line for text in texts for line in wrapped(text, width - 20, 12.5)]


def _height(lines: int) -> float:
    return LINE_HEIGHT * lines + 14


def _write(
    drawing: Drawing, x: float, y: float, width: float, height: float, lines: Sequence[str], fill: str, title: str = ""
) -> None:
    drawing.box(x, y, width, height, fill, "#aab4c0", 6)
    written = [(title, True)] if title else []
    for place, (text, bold) in enumerate([*written, *((line, False) for line in lines)]):
        drawing.text(x + 10, y + 19 + LINE_HEIGHT * place, text, size=13 if bold else 12.5, bold=bold, fill=INK)


def _arrow(drawing: Drawing, x1: float, y1: float, x2: float, y2: float) -> None:
    drawing.line(x1, y1, x2, y2, SOFT, 1.3)
    if x1 == x2:
        drawing.polyline([(x2 - 4, y2 - 6), (x2, y2 - 1), (x2 + 4, y2 - 6)], SOFT, 1.3)
    else:
        drawing.polyline([(x2 - 6, y2 - 4), (x2 - 1, y2), (x2 - 6, y2 + 4)], SOFT, 1.3)


LARGE_G = 0.5  # smallest difference between the classes, in standard deviations, that is mentioned
FEW_PARTICIPANTS, VERY_FEW_PARTICIPANTS = 50, 20
IMBALANCE = 1.5


def _few(run: RunRecord) -> Caution | None:
    if run.without_labels:
        return None
    one_split = run.config.cohort.split == "single" and run.has("predictions")
    people = _people_by_class(run, run.tables["predictions"]) if one_split else _people_by_class(run)
    smallest = min(people.values())
    if smallest >= FEW_PARTICIPANTS:
        return None
    named = {label: run.in_words(label) for label in people}
    counts = listing([f"{number(n)} {'of ' * (named[label] != label)}{named[label]}" for label, n in people.items()])
    if one_split:
        counts += " of the test part"
    return Caution.read(
        WORDS, "few", level="serious" if smallest < VERY_FEW_PARTICIPANTS else "note", run=run, counts=counts
    )


def _imbalanced(run: RunRecord) -> Caution | None:
    if run.without_labels:
        return None
    people = _people_by_class(run)
    small, large = min(people.values()), max(people.values())
    if small == 0:
        return Caution.read(WORDS, "imbalanced", people=min(people, key=lambda label: people[label]))
    if large / small <= IMBALANCE:
        return None
    return Caution.read(WORDS, "classes-imbalanced", people=[f"{number(n)} {label}" for label, n in people.items()])


def _people_by_class(run: RunRecord, scans: pd.DataFrame | None = None) -> dict[str, int]:
    """Participants with each label among the kept scans, or among those given; with a number, those who have one."""
    if scans is None:
        every = run.tables["scans"]
        scans = every[every["kept"].astype(bool)]
    if not run.task.classes:
        return {"participants": scans.loc[scans["label"].notna(), "participant_id"].nunique()}
    labels = reversed(run.task.outputs)
    return {label: scans.loc[scans["label"] == label, "participant_id"].nunique() for label in labels}


def _dropped(run: RunRecord) -> Caution | None:
    kept = run.tables["scans"]["kept"].astype(bool)
    if kept.all():
        return None
    share = percent(1 - kept.mean(), 0)
    text = f"{count(int((~kept).sum()), 'scan')} of {number(len(kept))} ({share}); scans.tsv gives the reason of each."
    return Caution("note", "Scans were dropped.", text, "cohort")


def _unlike_classes(run: RunRecord) -> Caution | None:
    """Classes that differ in age, sex or head size."""
    table = run.tables["demographic_tests"].set_index("variable")
    titles = {"age": "age", "female": "sex", "tiv_mm3": "intracranial volume", "scans": "scans per participant"}
    differing = []
    for variable, title in titles.items():
        if variable not in table.index:
            continue
        row = table.loc[variable]
        large = variable == "female" or abs(row["hedges_g"]) > LARGE_G
        if pd.notna(row["p"]) and row["p"] < 0.05 and large:
            differing.append(f"{title} ({p_value(row['p'])})")
    if not differing:
        return None
    return Caution.read(WORDS, "unlike-classes", run=run, differing=differing)


def _contradictions(run: RunRecord) -> Caution | None:
    """Contradictions in the tables of the input."""
    rows = run.tables["notes"]
    rows = rows[rows["analysis"] == "inputs"]
    if rows.empty:
        return None
    reasons = " ".join(shortened(reason, LONGEST_TEXT) for reason in rows["reason"].head(3))
    more = f" {number(len(rows) - 3)} more are in group/statistics/notes.tsv." if len(rows) > 3 else ""
    return Caution.read(WORDS, "contradictions", reasons=reasons, more=more)


PARTICIPANTS = Question.read(WORDS, "participants", draw=build_participants, tasks=ANY_TASK)
COHORT = Question.read(
    WORDS,
    "cohort",
    draw=build,
    tasks=ANY_TASK,
    cautions=(
        Check("few", _few, ("scans",)),
        Check("imbalanced", _imbalanced, ("scans",)),
        Check("dropped", _dropped, ("scans",)),
        Check("unlike-classes", _unlike_classes, ("demographic_tests",)),
        Check("contradictions", _contradictions, ("notes",)),
    ),
)
