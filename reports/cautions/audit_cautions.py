"""Reasons for doubt that the statistics have found: shortcuts, controls, unlike classes, unequal performance."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.regions.audit import NO_REGION
from pipeline.run.layout.map_names import map_title
from reports.analyses.audit_verdicts import gathered
from reports.analyses.columns import worded
from reports.cautions.record import Caution
from reports.read.run_record import RunRecord
from reports.words.numbers import LONGEST_TEXT, count, fixed, listing, number, p_value, percent, shortened
from reports.words.wording import level_in_words

LARGE_G = 0.5
"""Difference between the classes, in standard deviations, from which it is worth a word."""


UNCOVERED = 1 / 3
"""Share of |relevance| in no region above which the report warns."""


def _binarised(run: RunRecord) -> Caution | None:
    control = str(getattr(run.config.training, "control", "none"))
    if control in ("", "none"):
        return None
    return Caution(
        "serious", "The networks saw a control, not the scans.",
        f"This run is a control ([training] control = \"{control}\"): the networks were given brain masks only. What "
        "they reach says how much the outline of the brain tells; nothing here is about tissue.", "performance",
    )  # fmt: skip


def _readable_site(run: RunRecord) -> Caution | None:
    """Site or scanner that can be read from relevance.

    Its corrected p is over the maps of one target; serious is what the leading map shows, or what holds over the
    targets too (Bonferroni).
    """
    if not run.has("site_prediction"):
        return None
    table = run.tables["site_prediction"]
    tested = table[table["p_fwe"].notna()]
    found = tested[tested["p_fwe"] < 0.05]
    if found.empty:
        return None
    leading = tested[tested["map"] == run.main_maps[0]]
    serious = (leading["p_fwe"] < 0.05).any() or found["p_fwe"].min() * tested["target"].nunique() < 0.05
    passing = [_predicted(row, with_map=True) for row in found.sort_values("p_fwe").head(3).to_dict("records")]
    more = f" and {number(len(found) - 3)} more" if len(found) > 3 else ""
    tells = leading[leading["p_fwe"] < 0.05]
    concerned, which = (tells, "") if len(tells) else (found.sort_values("p_fwe").head(1), _of_map(found))
    scanner = listing([str(target).replace("_", " ") for target in dict.fromkeys(concerned["target"])])
    own = listing([_predicted(row, with_map=False) for row in leading.to_dict("records")]) or "not tested"
    return Caution(
        "serious" if serious else "note", f"Relevance{which} tells the {scanner}.",
        f"{number(len(found))} of {count(len(tested), 'prediction')} from regional relevance "
        f"{'passes' if len(found) == 1 else 'pass'} correction over the maps: {'; '.join(passing)}{more}. The leading "
        f"map, {map_title(run.main_maps[0])}: {own}. {_MEANS[len(tells) > 0]}",
        "shortcuts",
    )  # fmt: skip


_MEANS = {
    True: "What looks like disease may in part be the scanner.",
    False: "The summary rests on the leading map, which does not pass; in the other, what looks like disease may in "
    "part be the scanner.",
}


def _of_map(found: pd.DataFrame) -> str:
    """The map of the clearest prediction, to stand after `Relevance`."""
    return f" of {map_title(str(found.sort_values('p_fwe')['map'].iloc[0]))}"


def _predicted(row: Mapping[Hashable, Any], with_map: bool) -> str:
    """How well a site or scanner is predicted from a map."""
    source = f" from {map_title(str(row['map']))}" if with_map else ""
    return (
        f"{str(row['target']).replace('_', ' ')}{source} (balanced accuracy {fixed(row['balanced_accuracy'])}, chance "
        f"{fixed(row['chance'])}, family-wise corrected {p_value(row['p_fwe'])})"
    )


def _gathered_outside(run: RunRecord) -> Caution | None:
    """More relevance than its share at the rim of the mask, outside the brain, or in fluid."""
    if not run.has("shortcuts"):
        return None
    table = run.tables["shortcuts"]
    table = gathered(table[table["map"].isin(run.main_maps)])
    if table.empty:
        return None
    headline, *others = run.main_maps
    first = _places(table, headline) or "nothing that stands out"
    beside = [f"{map_title(name)}: {places}" for name in others if (places := _places(table, name))]
    more = f" In other maps: {'; '.join(beside)}." if beside else ""
    return Caution(
        "note", "Relevance gathers in places that should not matter.",
        f"More than an even spread would put there: {map_title(headline)}: {first}.{more} A mask, a registration or "
        "the scanner can be behind it; in fluid, also the widening of the ventricles, which is a sign of the disease.",
        "shortcuts",
    )  # fmt: skip


def _in_no_region(run: RunRecord) -> Caution | None:
    """Relevance inside the brain that no region of the atlas takes in."""
    if not run.has("shortcuts"):
        return None
    table = run.tables["shortcuts"]
    table = table[(table["compartment"] == NO_REGION) & table["map"].isin(run.main_maps)]
    found = table[table["share"] > UNCOVERED]
    if found.empty:
        return None
    shares = [f"{percent(row['share'], 0)} in {map_title(row['map'])}" for row in found.to_dict("records")]
    voxels = percent(found["voxel_share"].iloc[0], 0)
    return Caution(
        "serious", "Much of the relevance lies in no region.",
        f"Of |relevance| inside the brain mask: {listing(shares)} (mean over participants; warned of above one third). "
        f"The atlas leaves {voxels} of the mask without a region. Rankings, shares and tests of regions leave this "
        "relevance out; the mean maps show it. An atlas that covers more of the brain would take it in.", "regions",
    )  # fmt: skip


def _places(table: pd.DataFrame, map_name: str) -> str:
    """Compartments of one map with their enrichment, the highest first."""
    rows = table[table["map"] == map_name].sort_values("enrichment", ascending=False).to_dict("records")
    return listing([f"{worded(row['compartment'])} ({fixed(row['enrichment'], 1)} times its share)" for row in rows])


def _unlike_classes(run: RunRecord) -> Caution | None:
    """Classes that differ in age, sex or head size."""
    if not run.has("demographic_tests"):
        return None
    table = run.tables["demographic_tests"].set_index("variable")
    titles = {"age": "age", "female": "sex", "tiv_mm3": "intracranial volume", "scans": "scans per participant"}
    found = []
    for variable, title in titles.items():
        if variable not in table.index:
            continue
        row = table.loc[variable]
        large = variable == "female" or abs(row["hedges_g"]) > LARGE_G
        if pd.notna(row["p"]) and row["p"] < 0.05 and large:
            found.append(f"{title} ({p_value(row['p'])})")
    if not found:
        return None
    return Caution(
        "note", "The classes are not alike.",
        f"{run.positive} and {run.negative} differ in {listing(found)}: part of what the network learned may be that.",
        "cohort",
    )  # fmt: skip


def _unequal(run: RunRecord) -> Caution | None:
    """Subgroups in which the classifier is clearly better or worse."""
    if not run.has("fairness"):
        return None
    table = run.tables["fairness"]
    found = table[(table["metric"] == "balanced_accuracy") & (table["p_fdr"] < 0.05)]
    if found.empty:
        return None
    parts = [f"{level_in_words(row['variable'], row['level'])} ({fixed(row['estimate'])} against {fixed(row['rest'])})"
             for row in found.sort_values("p_fdr").head(4).to_dict("records")]  # fmt: skip
    return Caution(
        "serious", "It does not work alike for everyone.",
        f"Balanced accuracy differs in {count(len(found), 'subgroup')}: {listing(parts)}.", "subgroups",
    )  # fmt: skip


def _miscalibrated(run: RunRecord) -> Caution | None:
    """Bins of probability whose interval does not hold the probability."""
    if not run.has("calibration"):
        return None
    table = run.tables["calibration"]
    off = table[(table["mean_probability"] < table["ci_low"]) | (table["mean_probability"] > table["ci_high"])]
    if off.empty:
        return None
    people = int(off["n_participants"].sum())
    return Caution(
        "note", "Probabilities do not mean what they say.",
        f"In {number(len(off))} of {number(len(table))} bins of probability the share of {run.positive} is not as "
        f"predicted ({count(people, 'participant')}). Read them as an order, not as chances.", "performance",
    )  # fmt: skip


def _undone(run: RunRecord) -> Caution | None:
    """Analyses that the data did not allow."""
    if not run.has("notes"):
        return None
    names = [str(name).replace("_", " ") for name in dict.fromkeys(run.tables["notes"]["analysis"]) if name != "inputs"]
    if not names:
        return None
    return Caution("note", "Not everything could be analysed.",
                   f"Without a result: {listing(names)}; the sections say why.")  # fmt: skip


def _contradictions(run: RunRecord) -> Caution | None:
    """What the tables say of someone that cannot be true."""
    if not run.has("notes"):
        return None
    rows = run.tables["notes"]
    rows = rows[rows["analysis"] == "inputs"]
    if rows.empty:
        return None
    said = " ".join(shortened(reason, LONGEST_TEXT) for reason in rows["reason"].head(3))
    more = f" {number(len(rows) - 3)} more are in group/statistics/notes.tsv." if len(rows) > 3 else ""
    return Caution("serious", "The tables contradict themselves.", f"{said}{more}", "cohort")


AUDIT_CHECKS: Sequence[Callable[[RunRecord], Caution | None]] = (
    _binarised, _contradictions, _readable_site, _unequal, _in_no_region, _gathered_outside, _unlike_classes,
    _miscalibrated, _undone,
)  # fmt: skip
