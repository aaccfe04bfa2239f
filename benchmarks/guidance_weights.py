"""The section of `guidance_study.py` in which weights are swept: its conditions and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from guidance_conditions import Condition, conditions, further
from guidance_summary import Pairs, plain_summary, summary
from sections import line, table

from heatlas.pipeline.evaluation.scores.localisation import IOU_THRESHOLDS, best_place
from heatlas.studies.before_after.stage import EQUAL, LARGEST_DROP

WEIGHTS = {"energy": (1.0, 3.0, 10.0), "l1": (1.0, 10.0, 100.0), "ppce": (0.1, 1.0, 10.0), "rrr": (10.0, 100.0, 1e3)}
"""Of each loss, mildest first."""
FEW = 3.0
"""Weight of the energy of what is asked with one weight; with few annotations, as much larger as batches are rarer."""
LAST = (0.3, 1.0, FEW)
"""Weights of the energy at the last stage."""
ON = "-on"
"""End of the name of what goes on for as long without guidance."""
BESIDE = ("energy", "l1")
"""Losses whose chosen weight is compared with that of all others."""
BCOS = (f"bcos{ON}", "energy")
"""Chosen network that is compared with those of other families."""


def swept() -> list[Condition]:
    """Trained networks that go on under guidance, a marker with other weights, and students of all three folds."""
    known = {one.name: one for one in (*conditions(), *further())}
    found = []
    for name, losses in (("bcos-plain", tuple(WEIGHTS)), ("plain", ("energy",)), ("x-dnn", ("energy",))):
        start = replace(known[name], held_out=True, folds=1 if name == "x-dnn" else 3)
        short = name.removesuffix("-plain")
        on = replace(start, name=f"{short}{ON}", begins=name, longer=1 / 3, folds=1, against=name)
        found += [start, on]
        for loss in losses:
            found += [
                replace(on, name=f"{short}-{loss}-{weight:g}", loss=loss, weight=weight, against=on.name)
                for weight in WEIGHTS[loss]
            ]
    by_name = {one.name: one for one in found}
    energy, l1 = by_name[f"bcos-energy-{FEW:g}"], by_name[f"bcos-l1-{WEIGHTS['l1'][1]:g}"]
    found += [
        replace(energy, name=f"{energy.name}-10%", annotated=0.1, weight=3 * FEW, against=energy.name),
        replace(energy, name=f"{energy.name}-1%", annotated=0.01, weight=18 * FEW, against=f"bcos{ON}"),
        *(replace(one, name=f"{one.name}+50%", enlarged=0.5, against=one.name) for one in (energy, l1)),
        replace(energy, name=f"{energy.name}-middle", stage=3, against=energy.name),
        *(
            replace(by_name[f"{short}-energy-{FEW:g}"], name=f"{short}-energy-{weight:g}-last", weight=weight, stage=-1)
            for short in ("bcos", "plain", "x-dnn")
            for weight in LAST
        ),
    ]
    mild = replace(known["bcos"], name="marker-bcos-energy", weight=FEW)
    l1 = replace(mild, name="marker-bcos-l1", loss="l1", weight=10.0)
    founding = replace(known["energy-brain"], name="marker-energy", weight=FEW, folds=1)
    last = replace(founding, name="marker-energy-last", stage=-1)
    found += [known["bcos-control"], mild, l1, replace(known["control"], folds=1), founding, last]
    names = "kd-bcos", "kd-bcos+weights", "kd-bcos-frozen", "kd-bcos+weights-frozen", "kd", "kd+maps"
    return found + [replace(known[name], held_out=True) for name in names]


def curve_columns(mask: str) -> list[str]:
    """Of the IoU at each of `IOU_THRESHOLDS`."""
    return [f"iou_{mask}_{place}" for place in range(len(IOU_THRESHOLDS))]


def held_out_iou(rows: pd.DataFrame, mask: str = "sides") -> pd.DataFrame:
    """The IoU of each network at the threshold that is best on its validation part, where there are curves."""
    names = curve_columns(mask)
    if names[0] not in rows:
        return rows
    parts = []
    for _, own in rows.groupby(["condition", "seed", "fold"], sort=False):
        known = own.loc[own["part"] == "validation", names]
        if own[names].notna().to_numpy().any():
            place = best_place(known.to_numpy())
            own = own.assign(**{f"iou_{mask}": np.nan if place is None else own[names[place]]})
        parts.append(own.drop(columns=names))
    return pd.concat(parts)


def weights_chosen(known: pd.DataFrame, wanted: Sequence[Condition], measure: str) -> dict[tuple[str, str], str]:
    """By control and loss, the condition with the largest measure of those whose accuracy is at most 5 points lower.

    Where there is none, the one with the smallest weight. All values are means over the validation parts.
    """
    means = known.groupby("condition").mean(numeric_only=True)
    found = {}
    swept_ones = [one for one in wanted if one.loss and one.against.endswith(ON) and one.annotated == 1]
    there = [one for one in swept_ones if one.name in means.index and one.stage == 0]
    for against, loss in dict.fromkeys((one.against, one.loss) for one in there):
        own = [one for one in there if (one.against, one.loss) == (against, loss)]
        least = means.loc[against, "correct"] - LARGEST_DROP - EQUAL
        allowed = [one for one in own if means.loc[one.name, "correct"] >= least] or own[:1]
        found[against, loss] = max(allowed, key=lambda one: means.loc[one.name, measure.format(one.mask)]).name
    return found


def swept_tables(rows: pd.DataFrame, wanted: Sequence[Condition]) -> str:
    """Markdown: weights and their choice, the chosen beside each other, a marker, and students of all folds."""
    test = rows["part"] == "test"
    known, tested = (rows[(rows["fold"] == 0) & part] for part in (~test, test))
    boxes = [one for one in wanted if one.plain and not one.teacher]
    picks = [weights_chosen(known, boxes, name) for name in ("epg_{}", "iou_{}")]
    text = [_weights(known, boxes, picks), plain_summary(tested, boxes, _beside(picks, boxes))]
    marked = [one for one in wanted if not one.plain]
    taught = {one.name: one.teacher for one in wanted if one.plain and one.teacher}
    students = [one for one in wanted if one.name in {*taught, *taught.values()}]
    text += ["Beside a marker", summary(tested, marked)]
    whole = [one.name for one in marked if one.folds > 1]
    text += ["Beside a marker, of all folds", summary(rows[test & rows["condition"].isin(whole)], marked)]
    if set(taught) & set(rows["condition"]):
        text += ["Students, of all folds", plain_summary(rows[test], students)]
    return "\n\n".join(text) + "\n"


def _weights(known: pd.DataFrame, wanted: Sequence[Condition], picks: Sequence[dict[tuple[str, str], str]]) -> str:
    """Markdown: what is known of each weight on the validation parts, and which one is chosen by which measure."""
    means = known.groupby("condition").mean(numeric_only=True)
    lines = table(["on the validation parts", "accuracy", "EPG", "IoU", "chosen by"])
    for one in (one for one in wanted if one.name in means.index):
        by = [name for name, pick in zip(("EPG", "IoU"), picks, strict=True) if one.name in pick.values()]
        values = (f"{means.loc[one.name, name]:.3f}" for name in ("correct", f"epg_{one.mask}", f"iou_{one.mask}"))
        lines.append(line(one.name, *values, " and ".join(by)))
    return "\n".join(lines)


def _beside(picks: Sequence[dict[tuple[str, str], str]], wanted: Sequence[Condition]) -> Pairs:
    """Chosen conditions: each beside what it begins with, energy and L1 beside other losses and other networks."""
    starts = {one.name: one.begins for one in wanted}
    pairs = []
    for pick in picks:
        pairs += [(name, starts[name]) for name in pick.values()]
        for (against, loss), name in pick.items():
            if loss in BESIDE:
                pairs += [(name, other) for (control, _), other in pick.items() if control == against and other != name]
        pairs += [(pick[BCOS], other) for (_, loss), other in pick.items() if loss == "energy" and BCOS in pick]
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]
