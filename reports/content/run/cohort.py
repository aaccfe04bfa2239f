"""Who is in the run: from every image found to every scan explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.page.material import Material
from reports.page.tables import Column, PageTable, numeric, page_table, remark
from reports.read.run_record import KEYS, RunRecord
from reports.read.written_tables import PREDICTIONS_OF
from reports.vector.flowchart import FlowBox, draw_flow
from reports.words.numbers import LONGEST_TEXT, MISSING, count, fixed, is_missing, number, p_cell, percent, shortened
from reports.words.volume_sources import hippocampal_source

_DROPPED = (
    Column("participant_id", "Participant"),
    Column("session_id", "Session"),
    Column("scan_id", "Scan"),
    Column("diagnosis", "Diagnosis"),
    Column("site", "Site"),
    Column("reason", "Reason", remark),
)
_FAILED = (
    Column("stage", "Stage"),
    Column("unit", "Unit"),
    Column("error", "Error"),
    Column("message", "What happened, what to do", remark),
    Column("traceback", "Details in"),
)


@dataclass(frozen=True)
class FlowStep:
    """One step of the cohort's flow; `lost` says why scans left before it."""

    name: str
    scans: int
    people: int
    split: str
    lost: str
    reached: bool = True


def flow(run: RunRecord) -> list[FlowStep]:
    """The steps from found to explained scans; steps that the run has not reached are marked."""
    scans = run.tables["scans"]
    kept = scans[scans["kept"].astype(bool)]
    labelled = kept[kept["label"].notna()]
    stages: list[tuple[str, pd.DataFrame | None]] = [("found", scans), ("kept", kept), ("labelled", labelled)]
    for name, table in (
        ("registered", "registration"),
        ("predicted", PREDICTIONS_OF[run.task.kind.name]),
        ("explained", "relevance"),
    ):
        frame = None
        if run.has(table):
            there = run.tables[table]
            there = there[there["status"] == "registered"] if table == "registration" else there
            frame = labelled.merge(there[KEYS].drop_duplicates(), on=KEYS)
        stages.append((name, frame))
    steps: list[FlowStep] = []
    before: pd.DataFrame | None = None
    for name, frame in stages:
        if frame is None:
            steps.append(FlowStep(name, 0, 0, "", "", reached=False))
            continue
        lost = 0 if before is None else len(before) - len(frame)
        steps.append(FlowStep(name, len(frame), frame["participant_id"].nunique(), _split(run, frame),
                              f"{count(lost, 'scan')} {_LOST[name]}" if lost else ""))  # fmt: skip
        before = frame
    return steps


_LOST = {
    "found": "",
    "kept": "dropped",
    "labelled": "outside the contrast and not used for training",
    "registered": "failed in registration",
    "predicted": "in no test set, or their fold failed",
    "explained": "without heatmaps",
}


MOST_REASONS = 8
"""Reasons in the flow chart; the list below it has all."""


def flow_boxes(run: RunRecord) -> list[FlowBox]:
    """The flow chart: steps, with the scans that left and the reasons beside them."""
    scans = run.tables["scans"]
    dropped = scans[~scans["kept"].astype(bool)]
    reasons = dropped["reason"].fillna("no reason given").value_counts()
    boxes = []
    for step in flow(run):
        if not step.reached:
            boxes.append(FlowBox(step.name.capitalize(), ["not reached by this run"], reached=False))
            continue
        lines = [f"{count(step.scans, 'scan')} of {count(step.people, 'participant')}"]
        lost = [step.lost] if step.lost else []
        if step.name == "kept" and len(reasons):
            lost = [f"{count(len(dropped), 'scan')} dropped:"]
            lost += [
                f"{number(n)} × {shortened(reason, LONGEST_TEXT)}" for reason, n in reasons.head(MOST_REASONS).items()
            ]
            lost += [f"{count(len(reasons) - MOST_REASONS, 'further reason')} below"] * (len(reasons) > MOST_REASONS)
        if step.name == "labelled" and step.lost:
            lost += [f"{number(n)} × {shortened(diagnosis)}" for diagnosis, n in _outside(run).items()]
        boxes.append(FlowBox(step.name.capitalize(), [*lines, *([step.split] if step.split else [])], lost))
    return boxes


def flow_sentence(run: RunRecord) -> str:
    """The flow chart in words."""
    steps = [f"{step.name} {count(step.scans, 'scan')} of {count(step.people, 'participant')}"
             for step in flow(run) if step.reached]  # fmt: skip
    return f"Flow of scans: {', '.join(steps)}."


def _outside(run: RunRecord) -> pd.Series:
    """Kept scans outside the contrast, by diagnosis."""
    scans = run.tables["scans"]
    outside = scans[scans["kept"].astype(bool) & scans["label"].isna()]
    return outside["diagnosis"].fillna("diagnosis not known").value_counts()


def _split(run: RunRecord, frame: pd.DataFrame) -> str:
    counts = frame["label"].value_counts()
    said = ", ".join(f"{label} {number(counts[label])}" for label in reversed(run.task.outputs) if label in counts)
    return f"scans: {said}" if said else ""


def build(material: Material) -> Mapping[str, Any]:
    """Flow, demographics, dropped scans by reason, failures."""
    run = material.run
    scans = run.tables["scans"]
    dropped = scans[~scans["kept"].astype(bool)]
    reasons = dropped["reason"].fillna("no reason given").value_counts()
    return {
        "flow": draw_flow(flow_boxes(run), flow_sentence(run)),
        "reasons": [(shortened(reason, LONGEST_TEXT), number(n)) for reason, n in reasons.items()],
        "dropped": page_table(dropped, _DROPPED, "Every dropped scan.", 300) if len(dropped) else None,
        "demographics": _demographics(run),
        "failed": page_table(run.tables["failures"], _FAILED, "Units that failed.", 200)
        if run.has("failures")
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
    classes = () if run.task.is_number else reversed(run.task.outputs)
    labels = [label for label in (*classes, "all") if label in set(table["label"])]
    rows = []
    for variable in dict.fromkeys(table["variable"]):
        title, decimals = _VARIABLES.get(variable, (variable, 2))
        if variable == "hippocampus_mm3":
            title = f"{title} ({hippocampal_source(run)})"
        row: dict[str, Any] = {"title": title}
        for label in labels:
            found = table[(table["label"] == label) & (table["variable"] == variable)]
            row[label] = _mean_sd(found.iloc[0], decimals) if len(found) else MISSING
        rows.append(row)
    people = table.drop_duplicates("label").set_index("label")["n_participants"]
    tests = run.tables["demographic_tests"].set_index("variable") if run.has("demographic_tests") else None
    for row, variable in zip(rows, dict.fromkeys(table["variable"]), strict=True):
        found = None if tests is None or variable not in tests.index else tests.loc[variable]
        row |= {} if found is None else {"p": found["p"], "hedges_g": found["hedges_g"], "test": found["test"]}
    columns = [Column("title", "Per participant")]
    columns += [Column(label, f"{label}, n = {number(people[label])}") for label in labels]
    columns += [
        numeric("hedges_g", "Hedges' g", fixed, "difference in standard deviations"),
        numeric("p", "Uncorrected p", p_cell),
    ]
    columns += [Column("test", "Test", remark)]
    caption = (
        "Participants analysed: mean ± standard deviation over participants, with the number of known values where "
        "some are missing. p values describe this sample and are not corrected."
    )
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
