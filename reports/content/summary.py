"""The page's first words: four questions and their answers in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from pipeline.run.layout import map_title
from pipeline.statistics.volume_association import ADJUSTED
from reports.content.planted import recovery_sentence
from reports.findings import (
    Estimate,
    leading_by_summary,
    performance_estimate,
    primary_volume,
    volume_estimate,
    within_folds,
)
from reports.numbers import count, fixed, interval, listing, number, p_value
from reports.run_record import RunRecord


@dataclass(frozen=True)
class Answer:
    """One question; `figure` is its number in large type."""

    question: str
    text: str
    figure: str = ""
    figure_caption: str = ""


@dataclass(frozen=True)
class Summary:
    """What stands above the sections: where the run comes from, and the answers."""

    source: str
    answers: tuple[Answer, ...]


def summarise(run: RunRecord) -> Summary:
    """The summary of a run, as far as it went."""
    answers = [_classifier(run), _regions(run), _volume(run)]
    if run.has("fairness"):
        answers.append(_subgroups(run))
    if run.has("planted_recovery"):
        answers.append(Answer("Are the planted regions found?", recovery_sentence(run)))
    return Summary(_source(run), tuple(answers))


def _subgroups(run: RunRecord) -> Answer:
    """Balanced accuracy in the subgroups that can be compared, and whether any stands out."""
    table = run.tables["fairness"]
    table = table[(table["metric"] == "balanced_accuracy") & table["estimate"].notna()]
    if table.empty:
        return Answer(_FOR_WHOM, "Not known: no subgroup has enough participants of both classes.")
    low, high = (table.loc[table["estimate"].agg(which)] for which in ("idxmin", "idxmax"))
    clear = table[table["p_fdr"] < 0.05]
    ends = [f"{fixed(row['estimate'])} ({_subgroup(row)}, n = {number(row['n_participants'])})" for row in (low, high)]
    text = f"Balanced accuracy in {count(len(table), 'subgroup')} lies between {listing(ends)}. "
    if clear.empty:
        text += "None differs from the others by more than chance allows; with few participants that says little."
    else:
        text += f"More than chance allows: {listing([_subgroup(row) for _, row in clear.iterrows()])}."
    return Answer(_FOR_WHOM, text)


def _subgroup(row: pd.Series) -> str:
    return f"{str(row['variable']).replace('_', ' ')} {row['level']}"


_FOR_WHOM = "For whom does it work?"


def _source(run: RunRecord) -> str:
    kind = "Synthetic cohort" if run.is_synthetic else f"Input: {run.source.input.name}"
    made = str(run.provenance.get("time", ""))[:10]
    when = f" · run of {made}" if made else ""
    return f"{kind} · {run.positive} against {run.negative} · seed {run.config.seed}{when}"


def _classifier(run: RunRecord) -> Answer:
    question = "How good is the classifier?"
    estimate = performance_estimate(run, "balanced_accuracy")
    if estimate is None:
        if run.has("predictions") and not run.has("performance"):
            return Answer(question, "There are predictions; measures and intervals come with the statistics.")
        if run.has("predictions"):
            return Answer(question, "There are predictions, but no balanced accuracy over both classes.")
        return Answer(question, "Not known: no network has been trained and tested yet.")
    confidence = run.config.statistics.confidence
    others = []
    for metric, name in (
        ("sensitivity", "sensitivity"),
        ("specificity", "specificity"),
        ("auc", "area under the curve"),
    ):
        other = performance_estimate(run, metric)
        if other is not None:
            others.append(f"{name} {fixed(other.value)}")
    text = (
        f"Networks told {run.positive} from {run.negative} in people they had not seen with a balanced accuracy of "
        f"{fixed(estimate.value)} ({interval(estimate.low, estimate.high, 2, confidence)}), where 0.50 is guessing; "
        f"{listing(others)}. This rests on {count(estimate.scans, 'scan')} of "
        f"{count(estimate.participants, 'participant')}."
    )
    return Answer(question, text, fixed(estimate.value), f"balanced accuracy, n = {number(estimate.participants)}")


def _regions(run: RunRecord) -> Answer:
    question = "Where does it look?"
    name = run.main_maps[0]
    by_density = leading_by_summary(run, name, "density", run.positive, 5)
    if not by_density:
        return Answer(question, "Not known: no heatmap has been summed over regions and analysed yet.")
    text = f"In scans of {run.positive}, relevance ({map_title(name)}) is densest in {_inline(by_density)}. "
    by_gain = leading_by_summary(run, name, "gain", "TP", 5)
    if by_gain:
        text += (
            f"Measured against {run.negative} (gain, true positives), {_inline(by_gain)} stand out most. "
            f"{_agreement(by_density, by_gain)}"
        )
    else:
        text += f"Gain against {run.negative} is not known."
    return Answer(question, text)


def _agreement(first: list[str], second: list[str]) -> str:
    shared = len(set(first) & set(second))
    word = ("None", "One", "Two", "Three", "Four", "Five")[shared]
    return f"{word} of five {'is' if shared == 1 else 'are'} in both lists."


def _inline(regions: list[str]) -> str:
    """Region names in a sentence.

    Examples
    --------
    >>> _inline(["Hippocampus", "Amygdala"])
    'hippocampus and amygdala'
    """
    return listing([region[:1].lower() + region[1:] for region in regions])


def _volume(run: RunRecord) -> Answer:
    question = "Does it agree with atrophy?"
    name = run.main_maps[0]
    estimate = volume_estimate(run, name)
    if not run.has("volume_association"):
        return Answer(question, "Not known: the statistics have not been run yet.")
    if estimate is None:
        return Answer(question, "Not known: there are no true positives with a hippocampal volume, or too few of them.")
    guided = volume_estimate(run, "gb")
    known = [(map_title(one), found) for one, found in ((name, estimate), ("gb", guided)) if found is not None]
    adjusted = ", divided by intracranial volume," if primary_volume(run) == ADJUSTED else ""
    confidence = run.config.statistics.confidence
    each = [
        f"{title} r\xa0=\xa0{fixed(one.value)}{within_folds(one)} ({interval(one.low, one.high, 2, confidence)}, "
        f"corrected {p_value(one.p_fdr)}: {'survives correction' if one.p_fdr < CLEAR else 'does not survive it'})"
        for title, one in known
    ]
    text = (
        f"{_verdict([one for _, one in known])} Among {count(estimate.participants, 'true-positive participant')}, "
        f"relevance in the hippocampus and its volume{adjusted} correlate so: {'; '.join(each)}. Corrected is for all "
        "maps, by false discovery rate. Atrophy predicts a negative r: the smaller the hippocampus, the more relevance."
    )
    if guided is not None:
        same = (guided.value < 0) == (estimate.value < 0)
        text += f" The two maps point {'the same way' if same else 'opposite ways'}."
    figure = f"r = {fixed(estimate.value)}"
    caption = (
        f"relevance and volume{within_folds(estimate)}, {map_title(name)}, n = {number(estimate.participants)}, "
        f"corrected {p_value(estimate.p_fdr)}"
    )
    return Answer(question, text, figure, caption)


CLEAR = 0.05
"""A corrected p below this survives correction."""


def _verdict(estimates: Sequence[Estimate]) -> str:
    """The answer in a word, from what survives correction; the headline map comes first."""
    signs = {one.value < 0 for one in estimates if one.p_fdr < CLEAR}
    if not signs:
        return "Not shown."
    if len(signs) == 2:
        return "The maps contradict each other."
    if not estimates[0].p_fdr < CLEAR:
        return "Not shown by the headline map."
    return "Yes." if signs == {True} else "No: the opposite of what atrophy predicts."
