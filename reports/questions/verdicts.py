"""The verdict of a section: its answer, then the test, n and corrected p, all read from tables of the run.

A result that is not significant among few people is never reported as no effect.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.frame.tables import correction
from heatlas.reports.questions.question import CLEAR, Verdict
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    LONGEST_TEXT,
    count,
    fixed,
    interval,
    is_missing,
    listing,
    mid_sentence,
    number,
    p_value,
    percent,
    sentence_case,
    shortened,
)
from heatlas.reports.words.wording import (
    biomarker_in_words,
    covariates_in_words,
    level_in_words,
    variable_in_words,
    worded,
)

NAMED = 4  # regions named for each direction of a difference


QUANTITIES = {"sum": "relevance", "density": "density", "gain": "gain", "share": "share of the map"}


def primary_quantity(run: RunRecord) -> str:
    """What the primary outcome correlates, in words."""
    row = run.tables["primary"].iloc[0]
    return "evidence" if row["metric"] == "sum" and row["map"] in run.evidence_maps else QUANTITIES[row["metric"]]


def primary_question(run: RunRecord) -> str:
    """The primary outcome as the run named it, with what it is adjusted for."""
    row, what = run.tables["primary"].iloc[0], primary_quantity(run)
    of_map = "" if is_missing(row["map"]) else f" ({map_title(row['map'])})"
    together = f"{listing(list(reversed(run.task.outputs)))} together"
    whom = together if row["scan_group"] == "all" else shortened(row["scan_group"])
    held = "" if is_missing(row["covariates"]) else f", adjusted for {covariates_in_words(row['covariates'])}"
    return (
        f"partial correlation of {what}{of_map} in the {mid_sentence(row['group'])} with "
        f"{biomarker_in_words(run, row['biomarker'])}, {whom}{held}"
    )


def primary(run: RunRecord) -> Verdict | None:
    """The answer to the primary question, and what it rests on; None for a run without one."""
    if not run.has("primary") or run.task.is_number:
        return None
    row = run.tables["primary"].iloc[0]
    named = f"Primary outcome (named before any result: {primary_question(run)})."
    if is_missing(row["p"]):
        return Verdict("Not known.", f"{named} {sentence_case(shortened(row['note'], LONGEST_TEXT))}")
    bounds = interval(row["ci_low"], row["ci_high"], 2, run.config.statistics.confidence)
    note = "" if is_missing(row["note"]) else f" {sentence_case(shortened(row['note'], LONGEST_TEXT))}."
    shown = "A correlation." if row["p"] < CLEAR else "No clear correlation."
    return Verdict(
        shown,
        f"{named} r\xa0=\xa0{fixed(row['r'])} ({bounds}), {p_value(row['p'])}, "
        f"{count(int(row['n_participants']), 'participant')}, {count(int(row['n_scans']), 'scan')}. Permutations "
        f"exchange {row['exchanged']}.{note}",
    )


def g_in_words(row: Mapping[Hashable, object] | pd.Series) -> str:
    """Hedges' g with its interval in square brackets.

    Examples
    --------
    >>> g_in_words({"hedges_g": 0.8, "hedges_g_low": 0.25, "hedges_g_high": 1.35}), g_in_words({"hedges_g": 0.8})
    ('0.80 [0.25 to 1.35]', '0.80')
    """
    low, high = row.get("hedges_g_low"), row.get("hedges_g_high")
    g = fixed(row["hedges_g"])
    return g if is_missing(low) or is_missing(high) else f"{g} [{fixed(low)} to {fixed(high)}]"


def rows_where(run: RunRecord, table: str, known: str = "", **values: object) -> pd.DataFrame:
    """Rows of a table of the run with these values, and with any in the column `known`; none without one of these."""
    if not run.has(table) or not set(values) <= set(run.tables[table]):
        return pd.DataFrame()
    rows = run.tables[table]
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows[rows[known].notna()] if known and len(rows) else rows


def classes_compared(run: RunRecord, known: str = "", **values: object) -> pd.DataFrame:
    """Rows of ``group_comparisons.tsv`` about the classes, with these values."""
    return rows_where(run, "group_comparisons", known, comparison=f"{run.positive}/{run.negative}", **values)


def survivors(rows: pd.DataFrame, p: str) -> str:
    r"""How many tests are significant after correction, and the clearest one.

    Examples
    --------
    >>> survivors(pd.DataFrame({"group": ["A", "B"], "p_fwe": [0.2, 0.01]}), "p_fwe")
    '1 of 2 regions with a corrected p (family-wise, largest statistic) below 0.05 (smallest: p\xa0=\xa00.010, B)'
    """
    tested = rows[rows[p].notna()]
    if tested.empty:
        return "nothing could be tested"
    first = tested.sort_values(p, kind="stable").iloc[0]
    significant = int((tested[p] < CLEAR).sum())
    return (
        f"{number(significant)} of {count(len(tested), 'region')} with a corrected p {correction(p)} below 0.05 "
        f"(smallest: {p_value(first[p])}, {shortened(first['group'])})"
    )


def by_ranks(run: RunRecord, rows: pd.DataFrame) -> str:
    """Where ranks and means disagree on which regions differ, as a sentence with a space before it; empty elsewhere.

    `rows` compare the classes, one per region. A table of an earlier version has no ranks.
    """
    if "p_fwe_ranks" not in rows:
        return ""
    known = rows[rows["p_fwe_ranks"].notna()].sort_values("p_fwe_ranks", kind="stable")
    ranks, means = known["p_fwe_ranks"] < CLEAR, known["p_fwe"] < CLEAR
    more, less = known[ranks & ~means], known[means & ~ranks]
    by_ranks_only = [
        f"{mid_sentence(name)} ({run.positive} above {run.negative} in {percent(share, 0)} of pairs)"
        for name, share in zip(more["group"], more["superiority"], strict=True)
    ]
    by_means_only = [mid_sentence(name) for name in less["group"]]
    parts = [f"also {first_few(by_ranks_only)}"] if by_ranks_only else []
    parts += [f"not {first_few(by_means_only)}"] if by_means_only else []
    return f" By ranks, which no single person's value can move: {', '.join(parts)}." if parts else ""


def first_few(names: Sequence[str], shown: int = NAMED) -> str:
    """The first names, and how many more there are."""
    more = [f"{number(len(names) - shown)} more"] if len(names) > shown else []
    return listing([*names[:shown], *more])


def comparisons(run: RunRecord) -> Verdict | None:
    """Where the classes differ in their share of the leading map, and by density, which follows the prediction."""
    name = run.leading_map
    metric = "density" if run.leads_with_evidence else "share"  # evidence is the density times the voxels
    tested = classes_compared(run, map=name, metric=metric, known="p_fwe")
    if tested.empty:
        return None
    clear = tested[tested["p_fwe"] < CLEAR].assign(size=-tested["hedges_g"].abs())
    clear = clear.sort_values(["p_fwe", "size"], kind="stable")
    what = " evidence" if run.leads_with_evidence else ""
    phrases = [
        f"{word}{what} in {listing([_with_g(row) for row in rows.head(NAMED).to_dict('records')])}"
        for word, rows in (("more", clear[clear["difference"] > 0]), ("less", clear[clear["difference"] < 0]))
        if len(rows)
    ]
    start = f"Scans of {run.positive} have" if run.leads_with_evidence else f"Of the map of {run.positive},"
    measure = "evidence" if run.leads_with_evidence else "share of the map"
    none = f"In none of {count(len(tested), 'region')} does the {measure} differ after correction."
    answer = f"{start} {'; '.join(phrases)}." if phrases else none
    first = tested.iloc[0]
    if run.leads_with_evidence:
        return Verdict(
            answer,
            f"Evidence ({map_title(name)}), {number(first['n_first'])} participants of {run.positive} against "
            f"{number(first['n_second'])} of {run.negative}, Welch's t, permuted: {survivors(tested, 'p_fwe')}; g is "
            f"Hedges' g [interval].{by_ranks(run, tested)} Regions add up to the difference in logits, so this says "
            "which regions carry the prediction.",
        )
    densities = classes_compared(run, map=name, metric="density")
    grounds = (
        f"Share of the map ({map_title(name)}), {number(first['n_first'])} participants of {run.positive} against "
        f"{number(first['n_second'])} of {run.negative}, Welch's t, permuted: {survivors(tested, 'p_fwe')}; g is "
        f"Hedges' g [interval].{by_ranks(run, tested)}"
    )
    if len(densities):
        clear_densities = int((densities["p_fwe"] < CLEAR).sum())
        grounds += (
            f" By density it is {number(clear_densities)} of {number(int(densities['p_fwe'].notna().sum()))}; since "
            f"maps are scaled by the {run.config.attribution.start_value} of {run.positive}, such a difference mostly "
            "repeats the prediction."
        )
    return Verdict(answer, grounds)


def effects(run: RunRecord) -> Verdict | None:
    """How many regions tell the classes apart by density, map by map, and how this was tested."""
    table, phrases = classes_compared(run, metric="density"), []
    if table.empty:
        return None
    for name in run.main_maps:
        rows = table[(table["map"] == name) & table["t"].notna()]
        if len(rows):
            clear = int((rows["p_fwe"] < CLEAR).sum())
            phrases.append(f"{map_title(name)}: {number(clear)} of {count(len(rows), 'region')}")
    first = table.iloc[0]
    within = f" within test folds.{difference_in_words(table)}" if folds_held(table) else "."
    grounds = (
        f"{count(int(first['n_first']), 'participant')} of {run.positive} and {number(first['n_second'])} of "
        f"{run.negative}, each person's scans averaged first; Welch's t, participants reassigned at random{within}"
    )
    if not phrases:
        return Verdict("No difference could be tested.", grounds)
    return Verdict(f"Regions with a family-wise p below 0.05: {'; '.join(phrases)}.", grounds)


def folds_held(table: pd.DataFrame) -> bool:
    """Whether the test fold is held in any comparison of a table."""
    return bool(table["fold_held"].fillna(False).astype(bool).any())


def difference_in_words(table: pd.DataFrame) -> str:
    """What the column of differences is, to end a caption, where it is not the difference of the means beside it."""
    if not folds_held(table):
        return ""
    return " The difference, its interval and g are within test folds: not the difference of the two means."


def _with_g(row: Mapping[Hashable, object]) -> str:
    return f"{mid_sentence(row['group'])} (g {g_in_words(row)})"


def associations(run: RunRecord) -> Verdict | None:
    """Correlations within a class, for the leading map; correction is within each measure and estimator."""
    name, parts, sets, least = run.main_maps[0], [], 0, 1.0
    for label in run.labels:
        rows = rows_where(run, "associations", scan_group=label, map=name, metric="density", known="p_fwe")
        if rows.empty:
            continue
        first = rows.sort_values("p_fwe", kind="stable").iloc[0]
        sets, least = sets + rows.groupby(["biomarker", "estimator"]).ngroups, min(least, float(first["p_fwe"]))
        what = biomarker_in_words(run, first["biomarker"])
        parts.append(
            f"within {label}: {number(int((rows['p_fwe'] < CLEAR).sum()))} of {count(len(rows), 'correlation')} with a "
            f"corrected p {correction('p_fwe')} below 0.05, clearest {mid_sentence(first['group'])} with {what} "
            f"({first['estimator']} r\xa0=\xa0{fixed(first['r'])}, n = {number(first['n_participants'])}, corrected "
            f"{p_value(first['p_fwe'])})"
        )
    if not parts:
        return None
    if least >= CLEAR:
        answer = "Not shown within a class."
    elif least * sets < CLEAR:
        answer = "Yes, within a class and in some regions."
    else:
        answer = (
            "Within a class, some correlations are significant, but so few may be chance in "
            f"{count(sets, 'set')} of tests."
        )
    return Verdict(
        answer,
        f"{map_title(name)}, density, participants permuted, corrected within each of {count(sets, 'set')} (a "
        f"measure, an estimator, a class): {'; '.join(parts)}.",
    )


def fairness(run: RunRecord) -> Verdict | None:
    """Which subgroups were compared, how many people they have, and whether any difference survives correction."""
    known = rows_where(run, "fairness", metric="balanced_accuracy", known="estimate")
    if known.empty:
        return None
    every = run.tables["fairness"]
    variables = listing([variable_in_words(name) for name in dict.fromkeys(known["variable"])])
    sizes = known["n_participants"]
    suppressed = len(every.loc[every["level"].notna(), ["variable", "level"]].drop_duplicates()) - len(known)
    scope = f"{count(len(known), 'subgroup')} by {variables}, n = {number(sizes.min())} to {number(sizes.max())}" + (
        f"; {number(suppressed)} more {'has' if suppressed == 1 else 'have'} too few people" if suppressed else ""
    )
    by_estimate = known.sort_values("estimate", kind="stable")
    ends = [
        f"{fixed(row['estimate'])} ({_subgroup(row)}, n = {number(row['n_participants'])})"
        for row in (by_estimate.iloc[0], by_estimate.iloc[-1])
    ]
    tested = every[every["p_fdr"].notna()].sort_values("p_fdr", kind="stable")
    clear = tested[tested["p_fdr"] < CLEAR]
    if tested.empty:
        answer, test = "Not known.", "No difference could be tested."
    elif clear.empty:
        answer = (
            f"None of the {count(len(tested), 'comparison')} that could be made finds a difference after correction. "
            "Among so few people, this does not show equal performance."
        )
        test = f"Clearest: {_tested(tested.iloc[0])}."
    else:
        answer = "It does not work equally well for everyone."
        test = f"After correction: {'; '.join(_tested(row) for _, row in clear.head(3).iterrows())}."
    return Verdict(
        answer,
        f"Compared: {scope}. Balanced accuracy lies between {listing(ends)}; each against everyone else, "
        f"membership permuted within the class, corrected {correction('p_fdr')} within each variable, "
        f"over its subgroups and measures. {test}",
    )


def _subgroup(row: pd.Series) -> str:
    return level_in_words(row["variable"], row["level"])


def _tested(row: pd.Series) -> str:
    measure = "" if row["metric"] == "balanced_accuracy" else f"{worded(row['metric'])} "
    sentence = f"{_subgroup(row)}, {measure}{fixed(row['estimate'])} against {fixed(row['rest'])}"
    return f"{sentence}, corrected {p_value(row['p_fdr'])}"


def progression(run: RunRecord) -> Verdict | None:
    """Whether the network's score predicts conversion, or that there are too few people to tell."""
    rows = rows_where(run, "progression", predictor="model", measure="concordance")
    if rows.empty:
        return None
    row, settings = rows.iloc[0], run.config.statistics
    people, events = int(row["n_participants"]), int(row["n_events"])
    needed, conversions = settings.progression.min_participants, settings.progression.min_events_per_variable
    in_words = "not known"
    if not is_missing(row["estimate"]):
        bounds = interval(row["ci_low"], row["ci_high"], 2, settings.confidence)
        in_words = f"{fixed(row['estimate'])} ({bounds}; uncorrected {p_value(row['p'])}, permuted; 0.5 is guessing)"
    grounds = f"Concordance of the network's score with the time to AD: {in_words}, n = {number(people)}, " \
              f"{count(events, 'conversion')} ({row['event']})."  # fmt: skip
    if people < needed or events < conversions or is_missing(row["estimate"]):
        return Verdict(
            f"Cannot be answered with n = {number(people)} people with MCI and {count(events, 'conversion')}.",
            f"At least {number(needed)} people, and {number(conversions)} conversions for each predictor of a Cox "
            f"model, are needed. The tables below are shown for completeness only. {grounds}",
        )
    better = [
        f"{worded(other['predictor'])} {fixed(other['estimate'])}"
        for other in rows_where(run, "progression", measure="concordance").to_dict("records")
        if other["predictor"] != "model" and not is_missing(other["estimate"])
    ]
    beside = f" Other predictors: {listing(better)}." if better else ""
    adjusted = rows_where(run, "cox", predictor="model", model="adjusted")
    if len(adjusted) and not is_missing(adjusted["hazard_ratio"].iloc[0]):
        first = adjusted.iloc[0]
        beside += (
            f" Cox model with covariates: hazard ratio {fixed(first['hazard_ratio'])}, corrected (FDR) "
            f"{p_value(first['p_fdr'])}, n = {number(first['n_participants'])}."
        )
    clear = row["p"] < CLEAR
    answer = ("Better than guessing." if row["estimate"] > 0.5 else "Worse than guessing.") if clear else "Not shown."
    return Verdict(answer, grounds + beside)
