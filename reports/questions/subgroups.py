"""For whom does it work, and what else influences relevance? Subgroups, interactions, other influences, and sites.

Sites are compared before and after harmonisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.frame.tables import correction
from heatlas.reports.questions.question import CLEAR, Caution, Check, Question, Verdict, rows_where, survivors
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, listing, number, p_value, sentence_case
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import OWN, covariates_in_words, level_in_words, variable_in_words, worded

WORDS = Words(__file__)


@dataclass(frozen=True)
class Subgroups:
    """Measures of every subgroup against the rest, and which analyses there are."""

    measures: pd.DataFrame
    has_interactions: bool
    minimum_participants: int


def subgroups_compared(run: RunRecord) -> Subgroups:
    return Subgroups(
        run.tables.get("fairness", pd.DataFrame()), run.has("interactions"),
        run.config.statistics.subgroups.minimum_participants,
    )  # fmt: skip


def _works_for_whom(subgroups: Subgroups) -> Verdict | None:
    """Which subgroups were compared, how many people they have, and whether any difference survives correction."""
    every = known = subgroups.measures
    if len(every):
        known = every[(every["metric"] == "balanced_accuracy") & every["estimate"].notna()]
    if known.empty:
        return None
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
        answer = WORDS.say("no_difference", comparisons=len(tested))
        test = f"Clearest: {_tested(tested.iloc[0])}."
    else:
        answer = WORDS.say("differs_by", groups=list(dict.fromkeys(_subgroup(row) for _, row in clear.iterrows())))
        test = f"After correction: {'; '.join(_tested(row) for _, row in clear.head(3).iterrows())}."
    return Verdict(
        answer,
        WORDS.say("subgroups_grounds", scope=scope, ends=ends, correction=correction("p_fdr"), test=test),
    )


def _subgroup(row: pd.Series) -> str:
    return level_in_words(row["variable"], row["level"])


def _tested(row: pd.Series) -> str:
    measure = "" if row["metric"] == "balanced_accuracy" else f"{worded(row['metric'])} "
    sentence = f"{_subgroup(row)}, {measure}{fixed(row['estimate'])} against {fixed(row['rest'])}"
    return f"{sentence}, corrected {p_value(row['p_fdr'])}"


def _unequal(subgroups: Subgroups) -> Caution | None:
    """Subgroups in which the classifier is clearly better or worse."""
    rows = subgroups.measures
    unequal = rows[(rows["metric"] == "balanced_accuracy") & (rows["p_fdr"] < CLEAR)]
    if unequal.empty:
        return None
    parts = [f"{_subgroup(row)} ({fixed(row['estimate'])} against {fixed(row['rest'])})"
             for _, row in unequal.sort_values("p_fdr").head(4).iterrows()]  # fmt: skip
    return Caution.read(WORDS, "unequal", subgroups=len(unequal), parts=parts)


def _methods_of_subgroups(subgroups: Subgroups) -> str:
    parts = []
    if subgroups.has_interactions:
        parts.append(WORDS.say("methods_interactions"))
    if len(subgroups.measures):
        parts.append(WORDS.say("methods_subgroups", subgroups=subgroups))
    return " ".join(parts)


SUBGROUPS = Question.read(
    WORDS,
    "subgroups",
    facts=subgroups_compared,
    answer=_works_for_whom,
    cautions=(Check("unequal", _unequal, ("fairness",)),),
    methods=_methods_of_subgroups,
)

MAIN_EFFECTS = Question.read(WORDS, "main-effects")


@dataclass(frozen=True)
class SiteEffects:
    """Effects of the site on means, by source, and on the spread."""

    means: pd.DataFrame
    spread: pd.DataFrame
    leading_map: str
    held_in_training: str  # covariates of the model by which effects of the site are estimated


def site_effects(run: RunRecord) -> SiteEffects | None:
    if not run.has("site_effects"):
        return None
    return SiteEffects(
        rows_where(run, "site_effects", effect="location"),
        rows_where(run, "site_effects", effect="scale", known="p_fwe_before"),
        run.leading_map, run.config.statistics.harmonisation.training_covariates,
    )  # fmt: skip


def _depends_on_site(sites: SiteEffects) -> Verdict | None:
    """Whether relevance and volumes depend on the site, before and after harmonisation."""
    parts, marked, lead = [], {}, sites.leading_map
    for source, title in ((lead, map_title(lead)), ("volume", f"volumes ({OWN})")):
        rows = sites.means[sites.means["source"] == source] if len(sites.means) else sites.means
        if rows.empty or not rows["p_fwe_before"].notna().any():
            continue
        first = rows[rows["p_fwe_before"].notna()].iloc[0]
        before, after = (int((rows[p] < CLEAR).sum()) for p in ("p_fwe_before", "p_fwe_after"))
        marked[source] = before
        held = ", test fold held" if str(first.get("fold_held")).lower() == "true" else ""
        spread = sites.spread[sites.spread["source"] == source] if len(sites.spread) else sites.spread
        in_spread = "; in spread " + survivors(spread, "p_fwe_before") + " before" if len(spread) else ""
        parts.append(
            WORDS.say(
                "site_of_source",
                title=title,
                first=first,
                held=held,
                survivors=survivors(rows, "p_fwe_before"),
                after=after,
                in_spread=in_spread,
            )
        )
    if not parts:
        return None
    on_relevance = marked.get(lead)
    if on_relevance is None:
        answer = "It could not be tested for relevance."
    elif on_relevance:
        answer = f"Yes, in the relevance of {count(on_relevance, 'region')}."
    else:
        answer = "No effect of the site was found on the leading map."
    answer += _in_other_maps(sites)
    if marked.get("volume"):
        answer += f" Volumes differ between sites in {count(marked['volume'], 'region')}."
    return Verdict(
        answer,
        f"F test of site in the mean, adjusted for the covariates, permuted. {'. '.join(map(sentence_case, parts))}.",
    )


def _in_other_maps(sites: SiteEffects) -> str:
    """Regions of the other maps whose mean depends on the site, before or after harmonisation."""
    rows = sites.means[~sites.means["source"].isin([sites.leading_map, "volume"])]
    rows = rows[(rows["p_fwe_before"] < CLEAR) | (rows["p_fwe_after"] < CLEAR)]
    if rows.empty:
        return ""
    least = rows.assign(least=rows[["p_fwe_before", "p_fwe_after"]].min(axis=1)).sort_values("least", kind="stable")
    row = least.iloc[0]
    return WORDS.say("in_other_maps", regions=len(rows), row=row)


def _methods_of_sites(sites: SiteEffects) -> str:
    held = (
        WORDS.say("methods_held", covariates_in_words=covariates_in_words(sites.held_in_training))
        if sites.held_in_training else ""
    )  # fmt: skip
    return WORDS.say("methods_sites", held=held)


HARMONISATION = Question.read(
    WORDS, "harmonisation", facts=site_effects, answer=_depends_on_site, methods=_methods_of_sites
)
