"""Reasons to doubt the result, the worst first: those of the run as a whole, and those of each question.

A check is a function of the run, or of the facts of a question, that gives a caution or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from heatlas.atlases.templates import configured_template
from heatlas.reports.frame.material import Faults
from heatlas.reports.page.sections import QUESTIONS
from heatlas.reports.questions.comparisons import scaled_by_probability
from heatlas.reports.questions.findings import in_words
from heatlas.reports.questions.question import Caution, Check
from heatlas.reports.read.run_files import PREDICTIONS_OF
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import LONGEST_TEXT, count, listing, number, percent, shortened

UNSEEN_SHARE = 0.01
NAMED_FAULTS = 8  # faults named on the page


def find_cautions(run: RunRecord, faults: Faults | None = None) -> list[Caution]:
    """All cautions that apply, serious ones first; a check that cannot be made is added to `faults`."""
    faults = faults or Faults(run.layout)
    cautions = [faults.attempt("A warning", partial(check, run))[0] for check in CHECKS]
    cautions.append(_faulty(list(faults.said)))
    return sorted(filter(None, cautions), key=lambda caution: caution.level != "serious")


def _faulty(sentences: Sequence[str]) -> Caution | None:
    """Maps and sections that are missing from the report; tables have their own caution."""
    if not sentences:
        return None
    more = (
        f" {number(len(sentences) - NAMED_FAULTS)} more are in logs/run.log." if len(sentences) > NAMED_FAULTS else ""
    )
    return Caution("serious", "Parts of this report are missing.", " ".join(sentences[:NAMED_FAULTS]) + more)


def _synthetic(run: RunRecord) -> Caution | None:
    if not run.is_synthetic:
        return None
    return Caution(
        "serious",
        "Synthetic people.",
        f"The scans were made from the template brain with planted disease{_planted_regions(run)}. Nothing here says "
        "anything about Alzheimer's disease; it shows whether the method finds what was planted.",
        "cohort",
    )


def _planted_regions(run: RunRecord) -> str:
    """The planted regions by name; empty where the truth is not known."""
    if not run.planted:
        return ""
    named = in_words(run.planted)
    return f" in {count(len(run.planted), 'region')}, here called the planted regions: {named}"


def _shuffled(run: RunRecord) -> Caution | None:
    if not run.config.cohort.shuffle_labels:
        return None
    return Caution(
        "serious",
        "Labels were shuffled.",
        "This run is a control: classes were exchanged between participants. A balanced accuracy far from 0.5, or "
        "regions that stand out, would mean that information leaks.",
        "performance",
    )


def missing_stages(run: RunRecord) -> list[str]:
    """Stages of a run that have no results yet."""
    predictions = PREDICTIONS_OF[run.task.kind.name]
    if run.without_labels:
        tables = {"training": "predictions_applied", "regions": "relevance_applied_bilateral", "statistics": "notes"}
        return [stage for stage, table in tables.items() if not run.has(table) and table not in run.unreadable]
    stages = (
        ("registration", ("registration",)), ("training", (predictions,)),
        # Maps that owe nothing to a start value or reference are in the table of regions only.
        ("attribution", ("conservation", "evidence", "relevance_bilateral")),
        ("regions", ("relevance_bilateral",)), ("statistics", (predictions.replace("predictions", "performance"),)),
    )  # fmt: skip
    return [stage for stage, tables in stages if not any(run.has(table) or table in run.unreadable for table in tables)]


def _unfinished(run: RunRecord) -> Caution | None:
    missing = missing_stages(run)
    if not missing:
        return None
    return Caution(
        "serious",
        "The run is not finished.",
        f"There are no results of {listing(missing)}. The next stage is {missing[0]}: repeat the command that made "
        "this run, without --stop-after if it had that. The parts of this report that need these results say so.",
    )


def _unreadable(run: RunRecord) -> Caution | None:
    if not run.unreadable:
        return None
    which = "A table" if len(run.unreadable) == 1 else "Tables"
    return Caution("serious", f"{which} cannot be used.", run.why_absent(*run.unreadable))


def _changed(run: RunRecord) -> Caution | None:
    if not run.changed:
        return None
    which = "A table was" if len(run.changed) == 1 else "Tables were"
    return Caution("serious", f"{which} changed after the run.", " ".join(run.changed))


def _without_labels(run: RunRecord) -> Caution | None:
    if not run.without_labels:
        return None
    return Caution(
        "serious",
        "Nothing here says how good the networks are.",
        f"Too few people of {run.positive} and {run.negative} have a label, so no prediction can be right or wrong. "
        "The report of the run that they are from, and heatlas apply on a cohort with labels, say what they are worth. "
        "No prediction is a diagnosis.",
    )


def _failed(run: RunRecord) -> Caution | None:
    by_stage = run.tables["failures"]["stage"].value_counts()
    counts = listing([f"{number(n)} in {stage}" for stage, n in by_stage.items()])
    return Caution(
        "serious", "Something failed.", f"Without a result: {counts}. The rest of the run continued.", "cohort"
    )


def _same_images(run: RunRecord) -> Caution | None:
    note = str(run.provenance.get("sources", {}).get("same_images", ""))
    if not note:
        return None
    text = f"{note[:1].upper()}{shortened(note[1:], LONGEST_TEXT)}. The same image then counts several times."
    return Caution("serious", "One image stands for several scans.", text, "cohort")


def _in_sample(run: RunRecord) -> Caution | None:
    if not run.may_have_seen:
        return None
    return Caution(
        "serious",
        "Accuracy and maps may be in sample.",
        "The network was trained elsewhere, and it is not known with whom. If these people were among them, accuracy "
        "is too good and maps show what was learned by heart. If you know that they were not, set unseen = true in "
        "[model]; name those who were in a table for cohort.without.",
    )


def _undone(run: RunRecord) -> Caution | None:
    """Analyses that the data did not allow."""
    names = [str(name).replace("_", " ") for name in dict.fromkeys(run.tables["notes"]["analysis"]) if name != "inputs"]
    if not names:
        return None
    return Caution(
        "note", "Not everything could be analysed.", f"Without a result: {listing(names)}; the sections say why."
    )


def _binarised(run: RunRecord) -> Caution | None:
    control = str(getattr(run.config.training, "control", "none"))
    if control in ("", "none"):
        return None
    return Caution(
        "serious", "The networks saw a control, not the scans.",
        f"This run is a control ([training] control = \"{control}\"): the networks were given brain masks only. Their "
        "performance says how much the outline of the brain reveals; nothing here is about tissue.", "performance",
    )  # fmt: skip


def _several_networks(run: RunRecord) -> Caution | None:
    if not run.has("relevance_bilateral") or len(run.models) < 2:
        return None
    if run.config.statistics.fold_effect:
        tests = (
            "Every test on relevance is adjusted for the fold: it compares only people explained by the same network."
        )
    else:
        tests = "The tests are not adjusted for the fold ([statistics] fold_effect = false)."
    return Caution(
        "note",
        "Several networks are pooled.",
        f"Each fold has its own network and its own scale of relevance. {tests} Mean maps, means and figures pool "
        "the folds; gain compares people within a fold.",
        "regions",
    )


def _unseen(run: RunRecord) -> Caution | None:
    """Part of the brain that lies outside the field of view of the networks."""
    described = [model for model in run.models.values() if "seen_shape" in model]
    if not described:
        return None
    brain = configured_template(run.config.registration).brain_mask
    shares = []
    for model in described:
        box, shape = model.get("input", {}).get("box"), model["seen_shape"]
        start = box["start"] if box else (0, 0, 0)
        seen = tuple(slice(first, first + side) for first, side in zip(start, shape, strict=True))
        shares.append(1 - np.count_nonzero(brain[seen]) / np.count_nonzero(brain))
    if max(shares) <= UNSEEN_SHARE:
        return None
    return Caution(
        "serious",
        "The network does not see the whole brain.",
        f"{percent(max(shares))} of the template brain reaches no feature of the network, so nothing there can be "
        "relevant. Choose pool sizes that divide the field of view without a remainder.",
        "training",
    )


def _atlas(run: RunRecord) -> Caution | None:
    atlas = run.provenance.get("sources", {}).get("atlas", {})
    empty = atlas.get("empty", [])
    text = " ".join(
        filter(None, [atlas.get("note", ""), empty and f"Without a voxel at this resolution: {listing(empty)}."])
    )
    return Caution("note", "About the atlas.", text, "credits") if text else None


_OF_THE_RUN: Sequence[Check] = (
    Check("in-sample", _in_sample), Check("without-labels", _without_labels), Check("synthetic", _synthetic),
    Check("shuffled", _shuffled), Check("unfinished", _unfinished), Check("unreadable", _unreadable),
    Check("changed", _changed), Check("failed", _failed, ("failures",)), Check("same-images", _same_images),
    Check("binarised", _binarised), Check("undone", _undone, ("notes",)), Check("unseen", _unseen),
    Check("scaled", scaled_by_probability), Check("several-networks", _several_networks), Check("atlas", _atlas),
)  # fmt: skip
_ORDER = (
    "sums", "in-sample", "without-labels", "other-cohort", "synthetic", "shuffled", "unfinished", "unreadable",
    "changed", "failed", "same-images", "few", "chance", "not-better", "mirrored", "registration", "own-volumes",
    "not-learned", "not-converged", "imbalanced", "negative-start", "losses", "gain", "dropped", "empty-outcomes",
    "binarised", "contradictions", "site", "unequal", "no-region", "gathered", "unlike-classes", "miscalibrated",
    "undone", "planted", "leading-map", "unseen", "scaled", "several-networks", "atlas",
)  # fmt: skip
"""Cautions of one level in the order of the page; others follow."""


def _all_checks() -> list[Check]:
    places = {name: place for place, name in enumerate(_ORDER)}
    checks = [*_OF_THE_RUN, *(check for question in QUESTIONS for check in question.checks)]
    return sorted(checks, key=lambda check: places.get(check.name, len(places)))


CHECKS = _all_checks()
