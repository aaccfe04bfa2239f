"""Reasons to doubt the result, the worst first.

Each check is a function of the run, or of the facts of a question, that gives a caution or None.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE, RELIABILITY
from heatlas.reports.cautions.method_cautions import (
    LOSSES,
    METHOD_CHECKS,
    binarised,
    mirrored_scans,
    misplaced_scans,
    mostly_flagged,
    registered,
    shares,
    sums_of_evidence,
)
from heatlas.reports.frame.material import Faults
from heatlas.reports.questions.analyses import ANALYSES
from heatlas.reports.questions.findings import in_words, performance_estimate
from heatlas.reports.questions.question import Caution, Check
from heatlas.reports.read.run_files import PREDICTIONS_OF
from heatlas.reports.read.run_record import KEYS, OUTCOMES, RunRecord
from heatlas.reports.words.numbers import (
    LONGEST_TEXT,
    count,
    fixed,
    is_missing,
    listing,
    number,
    p_value,
    percent,
    shortened,
)

LARGE_G = 0.5  # smallest difference between the classes, in standard deviations, that is mentioned
FEW_PARTICIPANTS, VERY_FEW_PARTICIPANTS = 50, 20
IMBALANCE = 1.5
LARGE_LOSS, SERIOUS_LOSS = 0.2, 0.5
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


def _few(run: RunRecord) -> Caution | None:
    if run.without_labels:
        return None
    one_split = run.config.cohort.split == "single" and run.has("predictions")
    people = _people_by_class(run, run.tables["predictions"]) if one_split else _people_by_class(run)
    smallest = min(people.values())
    if smallest >= FEW_PARTICIPANTS:
        return None
    counts = listing([f"{number(n)} {label}" for label, n in people.items()])
    if one_split:
        counts += " of the test part"
    return Caution(
        "serious" if smallest < VERY_FEW_PARTICIPANTS else "note",
        "Few participants.",
        f"The {'prediction' if run.task.is_number else 'contrast'} rests on {counts}. With so few, another sample "
        "could give another ranking of regions.",
        "cohort",
    )


def _imbalanced(run: RunRecord) -> Caution | None:
    if run.without_labels:
        return None
    people = _people_by_class(run)
    small, large = min(people.values()), max(people.values())
    if small == 0:
        return Caution("serious", "One class is empty.", f"No participant has the label "
                       f"{min(people, key=lambda label: people[label])}.", "cohort")  # fmt: skip
    if large / small <= IMBALANCE:
        return None
    return Caution(
        "note",
        "Classes are imbalanced.",
        f"{listing([f'{number(n)} {label}' for label, n in people.items()])} participants. Read balanced accuracy, "
        "not accuracy, and look at sensitivity and specificity apart.",
        "performance",
    )


def _people_by_class(run: RunRecord, scans: pd.DataFrame | None = None) -> dict[str, int]:
    """Participants with each label among the kept scans, or among those given; with a number, those who have one."""
    if scans is None:
        every = run.tables["scans"]
        scans = every[every["kept"].astype(bool)]
    if run.task.is_number:
        return {"participants": scans.loc[scans["label"].notna(), "participant_id"].nunique()}
    labels = reversed(run.task.outputs)
    return {label: scans.loc[scans["label"] == label, "participant_id"].nunique() for label in labels}


def _failed(run: RunRecord) -> Caution | None:
    by_stage = run.tables["failures"]["stage"].value_counts()
    counts = listing([f"{number(n)} in {stage}" for stage, n in by_stage.items()])
    return Caution(
        "serious", "Something failed.", f"Without a result: {counts}. The rest of the run continued.", "cohort"
    )


def _dropped(run: RunRecord) -> Caution | None:
    kept = run.tables["scans"]["kept"].astype(bool)
    if kept.all():
        return None
    share = percent(1 - kept.mean(), 0)
    text = f"{count(int((~kept).sum()), 'scan')} of {number(len(kept))} ({share}); scans.tsv gives the reason of each."
    return Caution("note", "Scans were dropped.", text, "cohort")


def _same_images(run: RunRecord) -> Caution | None:
    note = str(run.provenance.get("sources", {}).get("same_images", ""))
    if not note:
        return None
    text = f"{note[:1].upper()}{shortened(note[1:], LONGEST_TEXT)}. The same image then counts several times."
    return Caution("serious", "One image stands for several scans.", text, "cohort")


def _registration(run: RunRecord) -> Caution | None:
    good = registered(run)
    bad = good[misplaced_scans(good)]
    if bad.empty:
        return None
    if mostly_flagged(run):
        return _mostly_flagged(len(good), bad)
    dropped = int((bad["decision"] == "drop").sum())
    first = shortened(bad.sort_values("correlation")["participant_id"].iloc[0])
    worst = f", the worst of them {first}" if run.config.report.people else ""
    return Caution(
        "note" if dropped == len(bad) else "serious",
        "Registration is doubtful.",
        f"Doubtful: {number(len(bad))} of {count(len(good), 'scan')}{worst}; {number(dropped)} dropped, "
        f"{number(len(bad) - dropped)} kept. The relevance of kept scans may be counted in the wrong regions.",
        "registration",
    )


def _mirrored(run: RunRecord) -> Caution | None:
    good = registered(run)
    bad = good[mirrored_scans(good)]
    if bad.empty:
        return None
    names = [shortened(name) for name in bad.sort_values("side_score")["participant_id"].astype(str)]
    more = f" and {number(len(names) - NAMED_FAULTS)} more" if len(names) > NAMED_FAULTS else ""
    who = f": {', '.join(names[:NAMED_FAULTS])}{more}" if run.config.report.people else ""
    return Caution(
        "note" if (bad["decision"] == "drop").all() else "serious",
        f"{count(len(bad), 'scan')} {'looks' if len(bad) == 1 else 'look'} mirrored left to right.",
        f"Their asymmetry is the opposite of the others'{who}. Compare them with "
        "their source. Left and right regions of these scans would be exchanged.",
        "registration",
    )


def _mostly_flagged(scans: int, bad: pd.DataFrame) -> Caution:
    """Flags that most scans have: no reason to doubt one scan more than another."""
    what = Counter(re.split(r" [\d.]", reason)[0] for flags in bad["flags"] for reason in str(flags).split("; "))
    reason, times = what.most_common(1)[0]
    return Caution(
        "note",
        "Most registrations are flagged.",
        f"{number(len(bad))} of {count(scans, 'scan')}, most often for: {shortened(reason)} ({number(times)}). So many "
        "flags do not tell a bad scan from a good one: either the limits, which come from other images, do not fit the "
        "preparation of these, or all were registered badly in the same way. A few of the overviews show which.",
        "registration",
    )


def _own_volumes(run: RunRecord) -> Caution | None:
    """Hippocampal volumes that come from the registration, not from a segmentation."""
    kept = run.tables["scans"][run.tables["scans"]["kept"].astype(bool)]
    known = kept[kept["hippocampus_mm3"].notna()]
    from_jacobian = known["hippocampus_source"].astype(str).str.startswith(JACOBIAN_SOURCE)
    if not from_jacobian.any():
        return None
    text = (
        f"{number(int(from_jacobian.sum()))} of {count(len(known), 'hippocampal volume')} come from the Jacobian "
        f"determinant of the registration; they miss whatever the warp does not follow ({RELIABILITY})."
    )
    if not from_jacobian.all():
        text += " The others come from the input; volumes of the two kinds should not be compared."
    return Caution(
        "note" if from_jacobian.all() else "serious",
        "Hippocampal volumes were measured by the registration.",
        text,
        "volume",
    )


def _chance(run: RunRecord) -> Caution | None:
    estimate = performance_estimate(run, "balanced_accuracy")
    if estimate is None or is_missing(estimate.low) or estimate.low > 0.5:
        return None
    return Caution(
        "serious",
        "The classifier may be guessing.",
        f"The interval of the balanced accuracy, {fixed(estimate.low)} to {fixed(estimate.high)}, includes 0.5. "
        "Heatmaps of a network that does not work explain nothing.",
        "performance",
    )


def _not_converged(run: RunRecord) -> Caution | None:
    folds = [fold for fold, model in run.models.items() if model.get("converged") is False]
    if not folds:
        return None
    return Caution(
        "note" if len(folds) < len(run.models) else "serious",
        "Training was cut off.",
        f"{count(len(folds), 'fold')} of {number(len(run.models))} ({listing([f'fold {fold}' for fold in folds])}) "
        "stopped at the largest number of epochs while the validation loss could still fall.",
        "training",
    )


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


def _not_learned(run: RunRecord) -> Caution | None:
    accuracies = {fold: model.get("validation_balanced_accuracy") for fold, model in run.models.items()}
    folds = [fold for fold, value in accuracies.items() if value is not None and value <= 1 / len(run.task.outputs)]
    if not folds:
        return None
    return Caution(
        "serious",
        "A network does no better than guessing." if run.is_given else "A network did not learn.",
        f"In {count(len(folds), 'fold')} of {number(len(run.models))} ({listing([f'fold {fold}' for fold in folds])}) "
        f"{'it' if run.is_given else 'even the best epoch'} is no better than guessing on the validation participants. "
        "Heatmaps of such a network mean nothing.",
        "training",
    )


def _losses(run: RunRecord) -> Caution | None:
    table = shares(run.tables["conservation"])
    table = table.assign(lost=table[list(LOSSES)].sum(axis=1))
    worst = table.sort_values("lost").iloc[-1]
    if not worst["lost"] > LARGE_LOSS:
        return None
    return Caution(
        "serious" if worst["lost"] > SERIOUS_LOSS else "note",
        "Part of the relevance never reaches the image.",
        f"In {map_title(worst['map'])} maps, biases and units without contribution absorb {percent(worst['lost'], 0)} "
        "of the start value (median over scans). Maps show only the rest.",
        "conservation",
    )


def _negative_start(run: RunRecord) -> Caution | None:
    """Scans whose explained output is negative; these can be true positives, since softmax compares two logits."""
    rows = run.tables["conservation"].drop_duplicates(KEYS)
    rows = rows.merge(run.tables["predictions"][[*KEYS, "outcome"]], on=KEYS)
    negative = rows[rows["start_value"] < 0]
    if negative.empty:
        return None
    hits = int((negative["outcome"] == "TP").sum())
    text = (
        f"In {count(len(negative), 'scan')} of {number(len(rows))}, {number(hits)} of them true positives, the "
        f"explained output of {run.positive} is below 0. The signs of their maps are reversed. Means over such scans, "
        "and gain, mix signs."
    )
    if run.config.attribution.start_value != "probability":
        text += ' With start_value = "probability" in [attribution], no sign is reversed.'
    return Caution("note", "Some maps have reversed signs.", text, "conservation")


def _gain(run: RunRecord) -> Caution | None:
    titles = []
    for name in (map_name for map_name in run.main_maps if map_name not in run.evidence_maps):  # which have no gain
        values = run.region_values[run.region_values["map"] == name]
        filled = values[values["density"].notna()]
        unknown = filled.loc[filled["gain"].isna(), "group"].nunique()
        if unknown:
            titles.append(f"{map_title(name)}: {number(unknown)} of {count(values['group'].nunique(), 'region')}")
    if not titles:
        return None
    return Caution(
        "note",
        "Gain is not known everywhere.",
        f"There is no ratio where the mean sum of {run.negative} scans of a fold is not above 0. In at least one fold: "
        f"{listing(titles)}.",
        "regions",
    )


def _empty_outcomes(run: RunRecord) -> Caution | None:
    empty = [name for name in OUTCOMES if run.group_sizes.get(name, (1, 1))[0] == 0]
    if not empty:
        return None
    return Caution(
        "note", "Empty outcomes.", f"There is no scan among {listing(empty)}; figures leave them out.", "performance"
    )


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
    return Caution(
        "note",
        "The classes differ in more than the disease.",
        f"{run.positive} and {run.negative} differ in {listing(differing)}: the network may have learned part of this.",
        "cohort",
    )


def _miscalibrated(run: RunRecord) -> Caution | None:
    """Bins of probability whose interval does not hold the probability."""
    table = run.tables["calibration"]
    off = table[(table["mean_probability"] < table["ci_low"]) | (table["mean_probability"] > table["ci_high"])]
    if off.empty:
        return None
    people = int(off["n_participants"].sum())
    return Caution(
        "note", "Probabilities are not calibrated.",
        f"In {number(len(off))} of {count(len(table), 'bin')} of probability, the share of {run.positive} is not as "
        f"predicted ({count(people, 'participant')}). Use probabilities to rank scans, not as chances.", "performance",
    )  # fmt: skip


def _undone(run: RunRecord) -> Caution | None:
    """Analyses that the data did not allow."""
    names = [str(name).replace("_", " ") for name in dict.fromkeys(run.tables["notes"]["analysis"]) if name != "inputs"]
    if not names:
        return None
    return Caution(
        "note", "Not everything could be analysed.", f"Without a result: {listing(names)}; the sections say why."
    )


def _contradictions(run: RunRecord) -> Caution | None:
    """Contradictions in the tables of the input."""
    rows = run.tables["notes"]
    rows = rows[rows["analysis"] == "inputs"]
    if rows.empty:
        return None
    reasons = " ".join(shortened(reason, LONGEST_TEXT) for reason in rows["reason"].head(3))
    more = f" {number(len(rows) - 3)} more are in group/statistics/notes.tsv." if len(rows) > 3 else ""
    return Caution("serious", "The tables of the input contradict themselves.", f"{reasons}{more}", "cohort")


_OF_THE_RUN: Sequence[Sequence[Check]] = (
    (Check(sums_of_evidence, ("evidence", "relevance_bilateral")), Check(_in_sample), Check(_without_labels)),
    (
        Check(_synthetic), Check(_shuffled), Check(_unfinished), Check(_unreadable), Check(_changed),
        Check(_failed, ("failures",)), Check(_same_images), Check(_few, ("scans",)), Check(_chance),
    ),
    (
        Check(_mirrored, ("registration",)), Check(_registration, ("registration",)), Check(_own_volumes, ("scans",)),
        Check(_not_learned), Check(_not_converged), Check(_imbalanced, ("scans",)),
        Check(_negative_start, ("conservation", "predictions")), Check(_losses, ("conservation",)),
        Check(_gain, ("relevance_bilateral", "predictions")), Check(_dropped, ("scans",)), Check(_empty_outcomes),
        Check(binarised), Check(_contradictions, ("notes",)),
    ),
    (), (), (),
    (
        Check(_unlike_classes, ("demographic_tests",)), Check(_miscalibrated, ("calibration",)),
        Check(_undone, ("notes",)),
    ),
    METHOD_CHECKS,
)  # fmt: skip
"""By place: those of questions stand after them."""
CHECKS: Sequence[Check] = sorted(
    [
        *(replace(check, place=place) for place, checks in enumerate(_OF_THE_RUN) for check in checks),
        *(check for question in ANALYSES for check in question.checks),
    ],
    key=lambda check: check.place,
)
