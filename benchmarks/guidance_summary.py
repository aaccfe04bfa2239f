"""Tables of `guidance_study.py`: means over people and seeds, and paired differences with their intervals.

    python benchmarks/guidance_summary.py docs/benchmarks/guidance_study.tsv   # of kept answers; nothing is trained

Intervals are over people, of values averaged over seeds. The worst group has none: it is the mean over seeds of a least
value, which no bootstrap of so few people holds (`studies.marker.marker_groups`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from guidance_conditions import ON, Condition, sections
from harness import arguments_of, line, listed, over_people, table, within

from heatlas.pipeline.evaluation.scores.localisation import IOU_THRESHOLDS, best_place
from heatlas.studies.before_after.stage import EQUAL, LARGEST_DROP, chosen, pareto_front
from heatlas.studies.marker.marker_groups import GroupAnswers, chance_of_worst, mean_of_classes

Pairs = Sequence[tuple[str, str]]
ENDS = " [{}, {}]"
"""Of an interval."""
GROUPED = ("against_training", "mean_accuracy", "as_in_training")
OF_STUDENTS = ("cosine", "agrees")
ALSO = (
    ("bcos-energy-10%", "bcos-energy"),
    ("energy-middle", "plain"),
    ("bcos-energy-middle", "bcos-plain"),
    ("energy-last", "energy"),
    ("bcos-energy-last", "bcos-energy"),
)
"""As `COMPARED`, of the further section."""
COMPARED = (
    *(("energy-brain", f"{other}-brain") for other in ("l1", "ppce", "rrr")),
    *(("l1-brain", f"{other}-brain") for other in ("ppce", "rrr")),
    *((name, "energy-brain") for name in ("bcos", "energy-10%")),
    *(("marker-bcos-energy", name) for name in ("marker-bcos-l1", "marker-energy")),
)
"""Conditions that claims compare, beside each with what it is against."""


BESIDE = ("energy", "l1")
"""Losses whose chosen weight is compared with that of all others."""
OF_BCOS = (f"bcos{ON}", "energy")
"""Chosen network that is compared with those of other families."""


def tested(rows: pd.DataFrame) -> GroupAnswers:
    wide = rows.pivot_table(index="person", columns="marked", values="correct", aggfunc="mean")
    positive = rows.groupby("person")["positive"].first()
    return GroupAnswers(wide[False].to_numpy(), wide[True].to_numpy(), positive.to_numpy(bool))


def worst_by_seed(rows: pd.DataFrame) -> list[float]:
    return [tested(found).worst for _, found in rows.groupby("seed")]


def per_person(rows: pd.DataFrame, name: str) -> pd.Series:
    return rows.groupby("person")[name].mean()


def summary(rows: pd.DataFrame, wanted: Sequence[Condition]) -> str:
    by_name = dict(list(rows.groupby("condition", sort=False)))
    students = ["cosine", "agreement ID", "OOD"] if any(one.teacher and one.name in by_name for one in wanted) else []
    columns = ["condition", "EPG", "on marker", "worst group", "by seed", "chance", "mean of four"]
    lines = table([*columns, "against training", "as in training", *students])
    for one in wanted:
        own = by_name.get(one.name)
        if own is None:
            continue
        by_seed, answers = worst_by_seed(own), tested(own)
        people = [int((answers.of_class == label).sum()) for label in (False, True)]
        chance = chance_of_worst(people, len(by_seed), one.reversed)
        cells = [one.name, *(f"{own[name].mean():.3f}" for name in (f"epg_{one.mask}", "on_marker_brain"))]
        cells += [
            f"{np.mean(by_seed):.2f}",
            " ".join(f"{value:.2f}" for value in by_seed),
            f"{chance.expected:.2f} ({chance.low:.2f} to {chance.high:.2f})",
            *(f"{getattr(answers, name):.2f}" for name in ("mean_accuracy", "against_training", "as_in_training")),
        ]
        if one.teacher:
            known = own["positive"] == own["marked"]
            agreement = (f"{own.loc[part, 'agrees'].mean():.2f}" for part in (known, ~known))
            cells += [f"{own['cosine'].mean():.2f}", *agreement]
        else:
            cells += [""] * len(students)
        lines.append(line(*cells))
    lines += ["", "Differences (95 % interval over people, seeds averaged; seeds in which it rises)", ""]
    columns = ["condition", "minus", "EPG", "worst group", "against training", "mean of four", "as in training"]
    lines += table([*columns, *students, "IoU", "on-object EPG"])
    named = {one.name: one for one in wanted}
    pairs = [(one.name, one.against) for one in wanted] + [pair for pair in COMPARED if pair[0] in named]
    for name, against in pairs:
        other, own, one = by_name.get(against), by_name.get(name), named[name]
        if other is None or own is None or name == against:
            continue
        cells = [name, against, _difference(own, other, f"epg_{one.mask}"), _worst(own, other)]
        cells += [_grouped(own, other, name) for name in GROUPED]
        if one.teacher and other["cosine"].notna().all():
            cells.append(_difference(own, other, "cosine"))
            for same in (True, False):
                sides = (found[(found["positive"] == found["marked"]) == same] for found in (own, other))
                cells.append(_difference(*sides, "agrees"))
        else:
            cells += [""] * len(students)
        overlaps = (f"{measure}_{one.mask}" for measure in ("iou", "on_object_epg"))
        cells += [_difference(own, other, found) if found in own else "" for found in overlaps]
        lines.append(line(*cells))
    return "\n".join(lines)


def plain_summary(rows: pd.DataFrame, wanted: Sequence[Condition], also: Pairs = ALSO) -> str:
    """Markdown of conditions without a marker: one table of values and one of paired differences, seed by seed."""
    by_name = dict(list(rows.groupby("condition", sort=False)))
    named = {one.name: one for one in wanted if one.plain and one.name in by_name}
    measures = ["EPG", "EPG, last stage", "IoU", *(["on-object EPG"] if any(one.held_out for one in wanted) else [])]
    lines = table(
        ["condition", "accuracy", "by seed", "worse class by seed", *measures, "without a map", "cosine", "agreement"]
    )
    for name, one in named.items():
        own = by_name[name]
        of_seed = own.groupby("seed")["correct"].mean()
        worse = own.groupby(["seed", "positive"])["correct"].mean().groupby("seed").min()
        cells = [name, f"{per_person(own, 'correct').mean():.2f}"]
        cells += [" ".join(f"{value:.2f}" for value in found) for found in (of_seed, worse)]
        cells += [f"{own[column].mean():.3f}" for column in _of_maps(one)]
        cells += [f"{own[_of_maps(one)[0]].isna().mean():.0%}"]
        cells += [f"{own[column].mean():.2f}" if one.teacher else "" for column in OF_STUDENTS]
        lines.append(line(*cells))
    lines += ["", "Differences (95 % interval over people, seeds averaged; each seed)", ""]
    lines += table(["condition", "minus", "accuracy", *measures, "cosine", "agreement"])
    pairs = [(name, one.against) for name, one in named.items() if one.against != name]
    for name, against in (pair for pair in dict.fromkeys((*pairs, *also)) if set(pair) <= set(named)):
        one, own, other = named[name], by_name[name], by_name[against]
        cells = [name, against, *(_paired(own, other, column) for column in ("correct", *_of_maps(one)))]
        both = one.teacher and named[against].teacher
        cells += [_paired(own, other, column) if both else "" for column in OF_STUDENTS]
        lines.append(line(*cells))
    return "\n".join(lines)


def _of_maps(one: Condition) -> tuple[str, ...]:
    names = f"epg_{one.mask}", f"last_epg_{one.mask}", f"iou_{one.mask}"
    return (*names, f"on_object_epg_{one.mask}") if one.held_out else names


def _paired(own: pd.DataFrame, other: pd.DataFrame, name: str) -> str:
    """Mean over people of the difference of the networks of a seed, its interval, and the mean of each seed."""
    places = ["seed", "person"]
    change = (own.set_index(places)[name] - other.set_index(places)[name]).dropna()  # a constant network has no map
    if change.empty:
        return "no map"
    people = change.groupby("person").mean()
    seeds = listed(change.groupby("seed").mean(), "+.3f")
    return f"{people.mean():+.3f}{within(*over_people(people), '+.3f', ENDS)}; {seeds}"


def choices(rows: pd.DataFrame, wanted: Sequence[Condition]) -> str:
    """Markdown: accuracy, EPG and IoU on validation, the Pareto set of each mask, and the condition chosen from it."""
    means = rows.groupby("condition").mean(numeric_only=True)
    lines = table(["mask", "condition", "accuracy", "EPG", "IoU", "Pareto set", "chosen"])
    for mask in dict.fromkeys(one.mask for one in wanted if one.loss and not one.reversed):
        names = ["control", *(one.name for one in wanted if one.loss and one.mask == mask and one.against == "control")]
        names = [name for name in names if name in means.index]
        if len(names) < 2 or names[0] != "control":
            continue
        values = means.loc[names, ["correct", f"epg_{mask}", f"iou_{mask}"]].to_numpy(float)
        front, best = pareto_front(values), chosen(values[:, 0], values[:, 1:], control=0)
        for place, name in enumerate(names):
            cells = [mask, name, *(f"{value:.3f}" for value in values[place])]
            cells += ["yes" if front[place] else "", "yes" if place == best else ""]
            lines.append(line(*cells))
    return "\n".join(["Choice on the validation parts, which are as in training", "", *lines])


def tables(rows: pd.DataFrame, wanted: Sequence[Condition]) -> str:
    test = rows["part"] == "test"
    return f"{summary(rows[test], wanted)}\n\n{choices(rows[~test], wanted)}\n"


def further_tables(rows: pd.DataFrame, wanted: Sequence[Condition]) -> str:
    test = rows[rows["part"] == "test"]
    marked = [one for one in wanted if not one.plain]
    return f"{plain_summary(test, wanted)}\n\nThe reversed task\n\n{summary(test, marked)}\n"


def _difference(own: pd.DataFrame, other: pd.DataFrame, name: str) -> str:
    """Mean over people of the difference, its interval, and in how many seeds it is above 0."""
    change = (per_person(own, name) - per_person(other, name)).dropna()  # a constant network has no map
    means = [[found[name].mean() for _, found in side.groupby("seed")] for side in (own, other)]
    return f"{change.mean():+.3f}{within(*over_people(change), '+.3f', ENDS)}, {_rises(*means)}"


def _worst(own: pd.DataFrame, other: pd.DataFrame) -> str:
    means = worst_by_seed(own), worst_by_seed(other)
    return f"{np.mean(means[0]) - np.mean(means[1]):+.2f}, {_rises(*means)}"


def _grouped(own: pd.DataFrame, other: pd.DataFrame, name: str) -> str:
    first, second = tested(own), tested(other)
    change, low, high = mean_of_classes(first.per_person[name] - second.per_person[name], first.of_class)
    means = [[getattr(tested(found), name) for _, found in side.groupby("seed")] for side in (own, other)]
    return f"{change:+.2f}{within(low, high, '+.2f', ENDS)}, {_rises(*means)}"


def _rises(first: Sequence[float], second: Sequence[float]) -> str:
    return f"{sum(a > b for a, b in zip(first, second, strict=True))}/{len(first)}"


def curve_columns(mask: str) -> list[str]:
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
        pairs += [(pick[OF_BCOS], other) for (_, loss), other in pick.items() if loss == "energy" and OF_BCOS in pick]
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]


def main() -> None:
    print(tables(pd.read_csv(arguments_of(__doc__, "answers").answers, sep="\t"), sections()["first"]), end="")


if __name__ == "__main__":
    main()
