"""Reasons for doubt found by the statistics: shortcuts, controls, different classes, unequal performance."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.audit import NO_REGION
from heatlas.reports.questions.audit_verdicts import gathered
from heatlas.reports.questions.question import Caution, Check
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import LONGEST_TEXT, count, fixed, listing, number, p_value, percent, shortened
from heatlas.reports.words.wording import level_in_words, worded

LARGE_G = 0.5  # smallest difference between the classes, in standard deviations, that is mentioned


UNCOVERED = 1 / 3  # share of |relevance| in no region above which the report warns


def _binarised(run: RunRecord) -> Caution | None:
    control = str(getattr(run.config.training, "control", "none"))
    if control in ("", "none"):
        return None
    return Caution(
        "serious", "The networks saw a control, not the scans.",
        f"This run is a control ([training] control = \"{control}\"): the networks were given brain masks only. Their "
        "performance says how much the outline of the brain reveals; nothing here is about tissue.", "performance",
    )  # fmt: skip


def _readable_site(run: RunRecord) -> Caution | None:
    """Site or scanner that can be predicted from relevance.

    The p is corrected over the maps of one target. The caution is serious if it concerns the leading map.
    """
    table = run.tables["site_prediction"]
    tested = table[table["p_fwe"].notna()]
    significant = tested[tested["p_fwe"] < 0.05]
    if significant.empty:
        return None
    leading = tested[tested["map"] == run.main_maps[0]]
    passing = [_predicted(row, with_map=True) for row in significant.sort_values("p_fwe").head(3).to_dict("records")]
    more = f" and {number(len(significant) - 3)} more" if len(significant) > 3 else ""
    tells = leading[leading["p_fwe"] < 0.05]
    concerned, which = (tells, "") if len(tells) else (significant.sort_values("p_fwe").head(1), _of_map(significant))
    scanner = listing([str(target).replace("_", " ") for target in dict.fromkeys(concerned["target"])])
    targets = listing([str(target).replace("_", " ") for target in dict.fromkeys(tested["target"])])
    title = map_title(run.main_maps[0])
    predicted = listing([_predicted(row, with_map=False) for row in leading.to_dict("records")]) or "not tested"
    predicted = (
        f"The leading map, {title}: {predicted}."
        if len(tells) or leading.empty
        else f"From the leading map, {title}, prediction was no better than chance."
    )
    return Caution(
        "serious" if len(tells) else "note",
        f"The {scanner} can be predicted from relevance{which}.",
        f"Of {count(len(tested), 'prediction')} of {targets} from the maps' regional relevance, "
        f"{number(len(significant))} {'is' if len(significant) == 1 else 'are'} significant after correction: "
        f"{'; '.join(passing)}{more}. "
        f"{predicted} {_MEANS[len(tells) > 0]}",
        "shortcuts",
    )


_MEANS = {
    True: "What looks like disease may partly be an effect of the scanner.",
    False: "In the other map, what looks like disease may partly be an effect of the scanner.",
}


def _of_map(predictions: pd.DataFrame) -> str:
    """The map of the clearest prediction, to stand after `Relevance`."""
    return f" of {map_title(str(predictions.sort_values('p_fwe')['map'].iloc[0]))}"


def _predicted(row: Mapping[Hashable, Any], with_map: bool) -> str:
    """How well a site or scanner is predicted from a map."""
    source = f" from {map_title(str(row['map']))}" if with_map else ""
    return (
        f"{str(row['target']).replace('_', ' ')}{source} (balanced accuracy {fixed(row['balanced_accuracy'])}, chance "
        f"{fixed(row['chance'])}, family-wise corrected {p_value(row['p_fwe'])})"
    )


def _gathered_outside(run: RunRecord) -> Caution | None:
    """More relevance than its share at the rim of the mask, outside the brain, or in fluid."""
    table = run.tables["shortcuts"]
    table = gathered(table[table["map"].isin(run.main_maps)])
    if table.empty:
        return None
    headline, *others = run.main_maps
    first = _places(table, headline) or "nothing notable"
    beside = [f"{map_title(name)}: {places}" for name in others if (places := _places(table, name))]
    more = f" In other maps: {'; '.join(beside)}." if beside else ""
    return Caution(
        "note",
        "Relevance gathers in places that should not matter.",
        f"More relevance than an even spread would give: {map_title(headline)}: {first}.{more} The mask, the "
        "registration or the scanner can cause this; in fluid also the widening of the ventricles, a sign of the "
        "disease.",
        "shortcuts",
    )


def _in_no_region(run: RunRecord) -> Caution | None:
    """Relevance inside the brain that lies in no region of the atlas."""
    table = run.tables["shortcuts"]
    table = table[(table["compartment"] == NO_REGION) & table["map"].isin(run.main_maps)]
    uncovered = table[table["share"] > UNCOVERED]
    if uncovered.empty:
        return None
    shares = [f"{percent(row['share'], 0)} in {map_title(row['map'])}" for row in uncovered.to_dict("records")]
    voxels = percent(uncovered["voxel_share"].iloc[0], 0)
    return Caution(
        "serious", "Much of the relevance lies in no region.",
        f"Of |relevance| inside the brain mask: {listing(shares)} (mean over participants; warning above one third). "
        f"The atlas leaves {voxels} of the mask without a region. Rankings, shares and tests of regions ignore "
        "this relevance; the mean maps show it. An atlas that covers more of the brain would include it.", "regions",
    )  # fmt: skip


def _places(table: pd.DataFrame, map_name: str) -> str:
    """Compartments of one map with their enrichment, the highest first."""
    rows = table[table["map"] == map_name].sort_values("enrichment", ascending=False).to_dict("records")
    return listing([f"{worded(row['compartment'])} ({fixed(row['enrichment'], 1)} times its share)" for row in rows])


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


def _unequal(run: RunRecord) -> Caution | None:
    """Subgroups in which the classifier is clearly better or worse."""
    table = run.tables["fairness"]
    unequal = table[(table["metric"] == "balanced_accuracy") & (table["p_fdr"] < 0.05)]
    if unequal.empty:
        return None
    parts = [f"{level_in_words(row['variable'], row['level'])} ({fixed(row['estimate'])} against {fixed(row['rest'])})"
             for row in unequal.sort_values("p_fdr").head(4).to_dict("records")]  # fmt: skip
    return Caution(
        "serious", "It does not work equally well for everyone.",
        f"Balanced accuracy differs in {count(len(unequal), 'subgroup')}: {listing(parts)}.", "subgroups",
    )  # fmt: skip


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


AUDIT_CHECKS: Sequence[Check] = (
    Check(_binarised), Check(_contradictions, ("notes",)), Check(_readable_site, ("site_prediction",)),
    Check(_unequal, ("fairness",)), Check(_in_no_region, ("shortcuts",)), Check(_gathered_outside, ("shortcuts",)),
    Check(_unlike_classes, ("demographic_tests",)), Check(_miscalibrated, ("calibration",)), Check(_undone, ("notes",)),
)  # fmt: skip
