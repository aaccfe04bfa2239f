"""Verdicts of the sections that check the result, each an answer and its grounds, read from the tables of the run.

Do patients lie outside the norm of controls, do sites or shortcuts explain the result, do rankings of regions agree,
do the networks add anything to simple predictors, and does the result hold in another cohort?
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.cohort.people.tasks import SEVERAL_CLASSES
from heatlas.pipeline.regions.audit import NO_REGION
from heatlas.pipeline.statistics.performance.baselines import ALIKE, BETTER, MEAN, WORSE
from heatlas.pipeline.training.baselines.stage import BASELINES, UNTRAINED
from heatlas.reports.analyses.verdicts import CLEAR, Verdict, rows_where, survivors
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
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
    signed,
)
from heatlas.reports.words.wording import OWN, worded

MARGIN = 1.1  # smallest enrichment that is mentioned, if its interval, where it has one, lies above 1


def norms(run: RunRecord) -> Verdict | None:
    """Whether norms fit controls that they were not made from, and whether patients fall into subtypes."""
    parts, worst, off, fewest = [], 0.0, 0.0, float("inf")
    for source, title in ((run.main_maps[0], map_title(run.main_maps[0])), ("volume", f"volumes ({OWN})")):
        rows = rows_where(run, "w_calibration", fold="all", source=source, known="beyond")
        if rows.empty:
            continue
        worst, fewest = max(worst, float(rows["beyond"].mean())), min(fewest, int(rows["n_controls"].max()))
        centre = float(rows["mean_z"].mean())
        off = max(off, abs(centre))
        far = rows.sort_values("mean_z", key=abs, kind="stable").iloc[-1]
        parts.append(
            f"{title}: {percent(rows['beyond'].mean(), 1)} of the scores of "
            f"{count(int(rows['n_controls'].max()), 'control')} lie beyond ±1.96, over "
            f"{count(len(rows), 'region')} (5 % if the norms fit); their mean z is {fixed(centre)} (0 if they fit), "
            f"the largest of a region {fixed(far['mean_z'])} ({shortened(far['group'])})"
        )
    if not parts:
        return None
    doubt = ", but few controls were tested" if fewest < FEW_CONTROLS else ""
    wrong = [what for what, is_wrong in (("in the tails", worst > FIT), ("at the centre", off > CENTRE)) if is_wrong]
    answer = f"The norms do not fit well {listing(wrong)}." if wrong else f"Controls scored as the norms expect{doubt}."
    return Verdict(
        answer,
        f"Each of {run.negative} was scored against a norm made from others; this is not tested. {'; '.join(parts)}."
        f"{_kinds(run)}",
    )


FIT = 0.1  # largest share of control scores beyond ±1.96 (expected: 0.05) with which norms are said to fit
CENTRE = 0.2  # largest mean z of controls (expected: 0) with which norms are said to fit: a small effect (Cohen)
FEW_CONTROLS = 50


def _kinds(run: RunRecord) -> str:
    """Number of subtypes of the leading map, in a sentence."""
    rows = rows_where(run, "subtype_numbers", source=run.main_maps[0])
    chosen = rows[rows["chosen"].astype(str).str.lower() == "true"] if len(rows) else rows
    if chosen.empty:
        return ""
    row, most = chosen.iloc[0], number(rows["k"].max())
    n = f"n = {number(row['n_participants'])} of {run.positive}, gap statistic, no test"
    if int(row["k"]) == 1:
        return f" No subtypes: one group fits better than 2 to {most} ({n})."
    compared = rows_where(run, "subtype_comparison", source=run.main_maps[0])
    clear = int((compared["p_fdr"] < CLEAR).sum()) if len(compared) else 0
    return (
        f" {number(row['k'])} subtypes ({n}); they differ in {number(clear)} of "
        f"{count(int(compared['p_fdr'].notna().sum()) if len(compared) else 0, 'measure')} after correction (FDR)."
    )


def sites(run: RunRecord) -> Verdict | None:
    """Whether relevance and volumes depend on the site, before and after harmonisation."""
    parts, marked = [], {}
    for source, title in ((run.main_maps[0], map_title(run.main_maps[0])), ("volume", f"volumes ({OWN})")):
        rows = rows_where(run, "site_effects", source=source, effect="location")
        if rows.empty or not rows["p_fwe_before"].notna().any():
            continue
        first = rows[rows["p_fwe_before"].notna()].iloc[0]
        before, after = (int((rows[p] < CLEAR).sum()) for p in ("p_fwe_before", "p_fwe_after"))
        marked[source] = before
        held = ", test fold held" if str(first.get("fold_held")).lower() == "true" else ""
        spread = rows_where(run, "site_effects", source=source, effect="scale", known="p_fwe_before")
        in_spread = "; in spread " + survivors(spread, "p_fwe_before") + " before" if len(spread) else ""
        parts.append(
            f"{title} (n = {number(first['n_participants'])} of {number(first['n_sites'])} sites{held}): "
            f"{survivors(rows, 'p_fwe_before')} before, {number(after)} after{in_spread}"
        )
    if not parts:
        return None
    on_relevance = marked.get(run.main_maps[0])
    if on_relevance is None:
        answer = "It could not be tested for relevance."
    elif on_relevance:
        answer = f"Yes, in the relevance of {count(on_relevance, 'region')}."
    else:
        answer = "No effect of the site was found on the leading map."
    answer += _sites_elsewhere(run)
    if marked.get("volume"):
        answer += f" Volumes differ between sites in {count(marked['volume'], 'region')}."
    return Verdict(
        answer,
        f"F test of site in the mean, adjusted for the covariates, permuted. {'. '.join(map(sentence_case, parts))}.",
    )


def _sites_elsewhere(run: RunRecord) -> str:
    """Regions of the other maps whose mean depends on the site, before or after harmonisation."""
    rows = rows_where(run, "site_effects", effect="location")
    rows = rows[~rows["source"].isin([run.main_maps[0], "volume"])]
    found = rows[(rows["p_fwe_before"] < CLEAR) | (rows["p_fwe_after"] < CLEAR)]
    if found.empty:
        return ""
    first = found.assign(least=found[["p_fwe_before", "p_fwe_after"]].min(axis=1)).sort_values("least", kind="stable")
    row = first.iloc[0]
    return (
        f" Other maps: in {count(len(found), 'region')}, corrected map by map (clearest: {map_title(row['source'])}, "
        f"{shortened(row['group'])}, family-wise {p_value(row['p_fwe_before'])} before, "
        f"{p_value(row['p_fwe_after'])} after)."
    )


def gathered(places: pd.DataFrame) -> pd.DataFrame:
    """Rows of `shortcuts.tsv` with clearly more relevance than an even spread would give, of places in doubt.

    The interval lies above 1; where there is none, as with the same enrichment in all people, the estimate does.
    """
    places = places[places["compartment"] != NO_REGION]
    lower = places["ci_low"].fillna(places["enrichment"])
    return places[(lower > 1) & (places["enrichment"] > MARGIN)]


def _bounds(row: Mapping[Hashable, Any]) -> str:
    if is_missing(row["ci_low"]):
        return "no interval"
    return f"{fixed(row['ci_low'], 1)} to {fixed(row['ci_high'], 1)}"


def shortcuts(run: RunRecord) -> Verdict | None:
    """Whether the leading map gathers in places that should not matter, and whether it predicts the site."""
    name = run.main_maps[0]
    places = rows_where(run, "shortcuts", map=name)
    places = places[places["compartment"] != NO_REGION] if len(places) else places
    read = rows_where(run, "site_prediction", map=name, known="p_fwe")
    if places.empty and read.empty:
        return None
    answers, grounds = [], []
    if len(places):
        known = places[places["ci_low"].notna()]
        high = gathered(places).sort_values("enrichment", ascending=False)
        if len(high):
            named = listing([worded(place) for place in high["compartment"]])
            answers.append(f"Possibly: there is more relevance than expected in {named}.")
        else:
            answers.append("No place is shown to hold more relevance than expected." if len(known) else
                           "Whether relevance gathers in some places could not be tested.")  # fmt: skip
        said = [f"{worded(row['compartment'])} {fixed(row['enrichment'], 1)} "
                f"({_bounds(row)}, n = {number(row['n_participants'])})"
                for row in high.to_dict("records")]  # fmt: skip
        none = f"none above {fixed(MARGIN, 1)} with its interval above 1, of {count(len(known), 'place')}"
        grounds.append(
            f"Enrichment of {map_title(name)} with its interval (not tested): {listing(said) or none}. Voxels of no "
            "region of the atlas are not judged: they are mostly fluid and borders of regions."
        )
    if len(read):
        told = read[read["p_fwe"] < CLEAR]
        if len(told):
            answers.append(
                f"{sentence_case(listing([worded(target) for target in told['target']]))} can be predicted from it."
            )
        else:
            targets = sentence_case(listing([worded(target) for target in read["target"]]))
            answers.append(f"{targets} could not be predicted from it better than by chance.")
        answers += _read_elsewhere(run)
        said = [
            f"{worded(row['target'])}: balanced accuracy {fixed(row['balanced_accuracy'])}, chance "
            f"{fixed(row['chance'])}, family-wise corrected {p_value(row['p_fwe'])}, n = "
            f"{number(row['n_participants'])}"
            for row in read.to_dict("records")
        ]
        grounds.append(f"Predicted out of fold from {map_title(name)}: {'; '.join(said)}.")
    return Verdict(" ".join(answers), " ".join(grounds))


def _read_elsewhere(run: RunRecord) -> list[str]:
    """What can be predicted from the other maps."""
    rows = run.tables["site_prediction"]
    rows = rows[(rows["map"] != run.main_maps[0]) & (rows["p_fwe"] < CLEAR)]
    said = [
        f"{worded(row['target'])} from {map_title(row['map'])} (family-wise corrected {p_value(row['p_fwe'])})"
        for row in rows.to_dict("records")
    ]
    return [f"From other maps: {listing(said)}."] if said else []


LARGELY, PARTLY = 0.7, 0.4  # smallest mean rank correlations with which rankings are said to agree largely, and in part


def mean_rank_correlation(w: pd.Series, n_rankings: pd.Series) -> pd.Series:
    """Mean Spearman correlation of all pairs of rankings, from Kendall's W (Kendall & Babington Smith 1939).

    W itself is 1 / m for m rankings drawn by chance, so that two rankings look more alike by it than five; this is 0.
    """
    return (n_rankings * w - 1) / (n_rankings - 1)


def correlation_of_folds(run: RunRecord) -> float | None:
    """Mean rank correlation of the regions of the leading map between networks of different folds; None if unknown."""
    rows = rows_where(
        run, "ranking_agreement", metric="density", scans="all", between="folds", map=run.leading_map, known="kendall_w"
    )
    if rows.empty:
        return None
    return float(mean_rank_correlation(rows["kendall_w"], rows["n_rankings"]).iloc[0])


def agreement(run: RunRecord) -> Verdict | None:
    """Whether folds, values of beta and methods rank regions alike, by density."""
    rows = rows_where(run, "ranking_agreement", metric="density", scans="all")
    if rows.empty:
        return None
    rows = rows[(rows["map"].isna() | (rows["map"] == run.main_maps[0])) & rows["kendall_w"].notna()]
    if rows.empty:
        return None
    rows = rows.assign(correlation=mean_rank_correlation(rows["kendall_w"], rows["n_rankings"]))
    least = rows.sort_values("correlation", kind="stable").iloc[0]
    lead = rows.sort_values("overlap", kind="stable").iloc[0]
    agree = (
        "largely agree" if least["correlation"] >= LARGELY else
        "agree in part" if least["correlation"] >= PARTLY else "hardly agree"
    )  # fmt: skip
    said, first = [_ranked(row) for _, row in rows.iterrows()], rows.iloc[0]
    return Verdict(
        f"Rankings of regions {agree}, least between {_between(least)} (mean rank correlation "
        f"{fixed(least['correlation'])}). Of the first {number(lead['top'])} regions, "
        f"{_between(lead)} share {percent(lead['overlap'], 0)} ({percent(lead['overlap_chance'], 0)} by chance).",
        f"Mean rank correlation (1: the same order, 0: chance) and Kendall's W of the rankings of "
        f"{count(int(first['n_regions']), 'region')} by density, permuted, n = {number(first['n_participants'])}: "
        f"{'; '.join(said)}. Rankings that agree can all be wrong.",
    )


def _ranked(row: pd.Series) -> str:
    return (
        f"{_between(row)} {fixed(row['correlation'])}, W\xa0=\xa0{fixed(row['kendall_w'])}, "
        f"{number(row['n_rankings'])} rankings, "
        f"{percent(row['overlap'], 0)} of the first {number(row['top'])} shared "
        f"({percent(row['overlap_chance'], 0)} by chance), uncorrected {p_value(row['p'])}"
    )


def _between(row: pd.Series) -> str:
    said = _BETWEEN.get(str(row["between"]), str(row["between"]))
    return said if is_missing(row["map"]) else f"{said} ({map_title(str(row['map']))})"


_BETWEEN = {"folds": "networks of different folds", "betas": "values of β", "methods": "LRP and guided backpropagation"}


SEES = {one.name: one.sees for one in BASELINES}
MEASURES_IN_WORDS = {"auc_within_folds": "area under the curve, within folds", "mae": "mean absolute error"}


def best_baseline(run: RunRecord) -> pd.Series | None:
    """Row of the best baseline by its first measure; None where there is none. The mean is no rival of its own."""
    if not run.has("baselines"):
        return None
    rows = run.tables["baselines"]
    rows = rows[rows["metric"].isin(list(MEASURES_IN_WORDS)) & (rows["baseline"] != MEAN) & rows["estimate"].notna()]
    return None if rows.empty else rows.sort_values("estimate", ascending=run.task.is_number, kind="stable").iloc[0]


def baseline_in_words(name: object) -> str:
    """What a baseline is, for readers."""
    return f"ridge regression on {SEES[str(name)]}" if str(name) in SEES else str(name)


def against_baselines(run: RunRecord) -> str:
    """What the networks add to the best baseline, in a sentence; empty where there is none.

    And in another, that they do not beat an untrained network, where they do not.
    """
    row = best_baseline(run)
    if row is None:
        return ""
    several = "mean over classes of the " if run.task.kind.name == SEVERAL_CLASSES else ""
    said = (
        f"The networks are {row['verdict']} {baseline_in_words(row['baseline'])}, the best simple predictor on the "
        f"same folds ({several}{MEASURES_IN_WORDS[row['metric']]}: {fixed(row['network'])} against "
        f"{fixed(row['estimate'])})."
    )
    rows = run.tables["baselines"]
    rows = rows[(rows["baseline"] == UNTRAINED) & (rows["metric"] == row["metric"]) & rows["estimate"].notna()]
    if rows.empty or row["baseline"] == UNTRAINED or (untrained := rows.iloc[0])["verdict"] == BETTER:
        return said
    return (
        f"{said} They are {untrained['verdict']} a network that was never trained, its weights drawn at random "
        f"({fixed(untrained['network'])} against {fixed(untrained['estimate'])})."
    )


def baselines(run: RunRecord) -> Verdict | None:
    """The answer of the section; the best baseline was chosen on the same people, which favours it."""
    row = best_baseline(run)
    if row is None:
        return None
    said = {
        BETTER: "Yes: they are better than every simple predictor.",
        ALIKE: "Not shown: they are no better than the best simple predictor.",
        WORSE: "No: a simple predictor is better.",
    }[str(row["verdict"])]
    grounds = (
        f"{against_baselines(run)} Difference {fixed(row['difference'])} "
        f"({interval(row['difference_low'], row['difference_high'])}, {p_value(row['p'])}). The best of the simple "
        "predictors was chosen on the same people, which favours it a little."
    )
    return Verdict(said, grounds)


OTHER_SHARE = 0.1
"""Difference in the share of the positive class above which it is named."""


def validation_row(run: RunRecord, measure: str, **where: str) -> pd.Series | None:
    """A row of ``external_validation.tsv``, over all people unless a class is named; None where it has no value."""
    if not run.has("external_validation"):
        return None
    rows = run.tables["external_validation"]
    for column, value in {"measure": measure, "label": "all", **where}.items():
        rows = rows[rows[column] == value]
    return None if rows.empty or is_missing(rows["estimate"].iloc[0]) else rows.iloc[0]


def _span(run: RunRecord, row: pd.Series) -> str:
    return interval(row["ci_low"], row["ci_high"], 2, run.config.statistics.confidence)


def other_cohort(run: RunRecord) -> Verdict | None:
    """Whether the networks are as good here as where they come from, and whether the classes differ in like regions."""
    area = validation_row(run, "auc")
    if area is None:
        return None
    answer = "Not told apart: the networks are about as good here as where they come from, or too few people to say."
    if area["ci_high"] < 0:
        answer = "No: the networks are less accurate here than where they come from."
    elif area["ci_low"] > 0:
        answer = "The networks are more accurate here than where they come from."
    grounds = (
        f"Area under the curve {fixed(area['new'])} here ({int(area['n_new'])} people) and {fixed(area['run'])} in the "
        f"test people of the run ({int(area['n_run'])}): difference {signed(area['estimate'])} ({_span(run, area)})."
    )
    regions = validation_row(run, "rank_correlation", map=run.leading_map)
    if regions is not None:
        grounds += (
            f" Over regions, the sizes of the difference between the classes in both cohorts correlate with ρ = "
            f"{fixed(regions['estimate'])} ({_span(run, regions)}; {mid_sentence(map_title(run.leading_map))}), "
            "which the noise of each region draws towards 0."
        )
    return Verdict(answer, grounds)


def cohort_differences(run: RunRecord) -> list[str]:
    """How the cohorts differ, in sentences; empty where nothing is known to."""
    said = []
    share, level = validation_row(run, "share_positive"), validation_row(run, "probability_less_share")
    if share is not None and abs(share["estimate"]) > OTHER_SHARE:
        said.append(
            f"{percent(share['new'], 0)} of the people here are {run.positive} and {percent(share['run'], 0)} in the "
            "run: accuracy, precision and the Brier score depend on that share, areas do not."
        )
    if level is not None and (level["ci_low"] > 0 or level["ci_high"] < 0):
        said.append(
            f"Probabilities are off by {signed(level['new'])} on average here and by {signed(level['run'])} in the "
            "run; set a threshold on this cohort before you use one."
        )
    images = validation_row(run, "intensity", label=run.negative)
    if images is not None and images["estimate"] > images["by_chance"]:
        said.append(
            f"Intensities of registered scans of {run.negative} differ between the cohorts (median g over regions "
            f"{fixed(images['estimate'])}, by chance up to {fixed(images['by_chance'])}): scanner or processing may "
            "explain part of any difference."
        )
    return said
