"""Tables of `guidance_study.py`: means over people and seeds, and paired differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pipeline.evaluation.planting.marker_groups import GroupAnswers
from pipeline.evaluation.scores.intervals import DRAWS, participant_interval
from pipeline.evaluation.scores.pareto import chosen, pareto_front

if TYPE_CHECKING:
    from guidance_study import Condition

MEASURES = ("epg", "iou", "on_object_epg", "on_marker")


def tested(rows: pd.DataFrame) -> GroupAnswers:
    """Means over seeds of each person's copies."""
    wide = rows.pivot_table(index="person", columns="marked", values="correct", aggfunc="mean")
    positive = rows.groupby("person")["positive"].first()
    return GroupAnswers(wide[False].to_numpy(), wide[True].to_numpy(), positive.to_numpy(bool))


def per_person(rows: pd.DataFrame, name: str) -> pd.Series:
    return rows.groupby("person")[name].mean()


def summary(rows: pd.DataFrame, wanted: Sequence[Condition]) -> str:
    """Markdown: one table of values and one of paired differences."""
    by_name = dict(list(rows.groupby("condition", sort=False)))
    lines = [
        "| condition | seeds | EPG | IoU | on-object EPG | on marker | worst group | by seed | as in training "
        "| cosine | agreement ID | OOD |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in wanted:
        own = by_name.get(one.name)
        if own is None:
            continue
        by_seed = [tested(found).worst for _, found in own.groupby("seed")]
        cells = [
            one.name,
            str(own["seed"].nunique()),
            *(f"{own[f'{name}_{one.mask}'].mean():.3f}" for name in MEASURES),
        ]
        cells += [
            f"{np.mean(by_seed):.2f}",
            " ".join(f"{value:.2f}" for value in by_seed),
            f"{tested(own).as_in_training:.2f}",
        ]
        if one.teacher:
            known = own["positive"] == own["marked"]
            cells += [
                f"{own['cosine'].mean():.2f}",
                *(f"{own.loc[part, 'agrees'].mean():.2f}" for part in (known, ~known)),
            ]
        else:
            cells += ["", "", ""]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Differences (interval over people, seeds averaged; seeds in which it rises)",
        "",
        "| condition | against | EPG | worst group | as in training | cosine | agreement ID | OOD |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in wanted:
        other, own = by_name.get(one.against), by_name.get(one.name)
        if other is None or own is None or one.name == one.against:
            continue
        cells = [
            one.name,
            one.against,
            _difference(own, other, f"epg_{one.mask}"),
            _grouped(own, other, "worst"),
            _grouped(own, other, "as_in_training"),
        ]
        if one.teacher and "cosine" in other and other["cosine"].notna().all():
            cells.append(_difference(own, other, "cosine"))
            for same in (True, False):
                cells.append(
                    _difference(
                        *(found[(found["positive"] == found["marked"]) == same] for found in (own, other)), "agrees"
                    )
                )
        else:
            cells += ["", "", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def choices(rows: pd.DataFrame, wanted: Sequence[Condition]) -> str:
    """Markdown: accuracy, EPG and IoU on validation, the Pareto set of each mask, and the condition chosen from it."""
    means = rows.groupby("condition").mean(numeric_only=True)
    lines = ["| mask | condition | accuracy | EPG | IoU | Pareto set | chosen |", "|---|---|---|---|---|---|---|"]
    for mask in dict.fromkeys(one.mask for one in wanted if one.loss and not one.reversed):
        names = ["control", *(one.name for one in wanted if one.loss and one.mask == mask and one.against == "control")]
        names = [name for name in names if name in means.index]
        if len(names) < 2 or names[0] != "control":
            continue
        values = means.loc[names, ["correct", f"epg_{mask}", f"iou_{mask}"]].to_numpy(float)
        front, best = pareto_front(values), chosen(*values.T, control=0)
        for place, name in enumerate(names):
            cells = [mask, name, *(f"{value:.3f}" for value in values[place])]
            cells += ["yes" if front[place] else "", "yes" if place == best else ""]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(["Choice on the validation parts, which are as in training", "", *lines])


def _difference(own: pd.DataFrame, other: pd.DataFrame, name: str) -> str:
    """Mean over people of the difference, its interval, and in how many seeds it is above 0."""
    change = per_person(own, name) - per_person(other, name)
    low, high = participant_interval((change.to_numpy(),), np.mean, DRAWS, 0)
    seeds = sorted(set(own["seed"]) & set(other["seed"]))
    means = [[side.loc[side["seed"] == seed, name].mean() for seed in seeds] for side in (own, other)]
    up = sum(a > b for a, b in zip(*means, strict=True))
    return f"{change.mean():+.3f}{_within(low, high, 3)}, {up}/{len(seeds)}"


def _grouped(own: pd.DataFrame, other: pd.DataFrame, name: str) -> str:
    sides = [tested(own), tested(other)]
    samples = (*(values for side in sides for values in (side.plain, side.marked)), sides[0].of_class.astype(float))

    def change(*drawn: np.ndarray) -> float:
        first, second = GroupAnswers(drawn[0], drawn[1], drawn[4] > 0), GroupAnswers(drawn[2], drawn[3], drawn[4] > 0)
        return float(getattr(first, name) - getattr(second, name))

    low, high = participant_interval(samples, change, DRAWS, 0)
    seeds = sorted(set(own["seed"]) & set(other["seed"]))
    values = [[getattr(tested(side[side["seed"] == s]), name) for s in seeds] for side in (own, other)]
    up = sum(a > b for a, b in zip(*values, strict=True))
    return f"{np.mean(values[0]) - np.mean(values[1]):+.2f}{_within(low, high, 2)}, {up}/{len(seeds)}"


def _within(low: float, high: float, decimals: int) -> str:
    """An interval; nothing where all draws are the same."""
    return "" if np.isnan(low) else f" [{low:+.{decimals}f}, {high:+.{decimals}f}]"
