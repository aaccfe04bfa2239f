"""Whether results depend on the site, before and after harmonisation."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.frame.pages import FAIRNESS
from heatlas.reports.questions.question import CLEAR, Question, Verdict
from heatlas.reports.questions.rows import rows_where, survivors
from heatlas.reports.questions.views import View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, number, p_value, sentence_case, shortened
from heatlas.reports.words.wording import OWN, covariates_in_words


@dataclass(frozen=True)
class SiteEffects:
    """Effects of the site on means, by source, and on the spread."""

    means: pd.DataFrame
    spread: pd.DataFrame
    leading_map: str
    held_in_training: str  # covariates of the model by which effects of the site are estimated


def facts(run: RunRecord) -> SiteEffects | None:
    if not run.has("site_effects"):
        return None
    return SiteEffects(
        rows_where(run, "site_effects", effect="location"),
        rows_where(run, "site_effects", effect="scale", known="p_fwe_before"),
        run.leading_map, run.config.statistics.harmonisation.training_covariates,
    )  # fmt: skip


def _answer(sites: SiteEffects) -> Verdict | None:
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
            f"{title} (n = {number(first['n_participants'])} of {number(first['n_sites'])} sites{held}): "
            f"{survivors(rows, 'p_fwe_before')} before, {number(after)} after{in_spread}"
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
    return (
        f" Other maps: in {count(len(rows), 'region')}, corrected map by map (clearest: {map_title(row['source'])}, "
        f"{shortened(row['group'])}, family-wise {p_value(row['p_fwe_before'])} before, "
        f"{p_value(row['p_fwe_after'])} after)."
    )


def _methods(sites: SiteEffects) -> str:
    held = (
        f", with their {covariates_in_words(sites.held_in_training)} in the model, so that their effects are not "
        "removed as effects of the site (they are not used for the participants tested)"
        if sites.held_in_training else ""
    )  # fmt: skip
    return (
        "Regional values were harmonised over sites with ComBat [@combat] [@neurocombat], its parameters estimated "
        f"from the training participants of each fold{held}, and applied to those it tests."
    )


HARMONISATION = Question(
    "harmonisation", "Do results depend on the site? Before and after harmonisation", "Sites", FAIRNESS,
    "Effect of the site on relevance and volumes, adjusted for the covariates, before and after ComBat. Parameters "
    "are estimated from the training participants of each fold and applied to its test participants. Covariates of "
    "the training participants (the class, unless [statistics.harmonisation] training_covariates says otherwise) keep "
    "effects of the disease from being removed as effects of the site; those of test participants are not used. This "
    "test has other covariates and joins other sites than “What else influences relevance and volume?”, so p values "
    "differ.",
    (
        View(
            "site_effects", "Effect of site by region, largest before harmonisation first.",
            ("source", "group", "effect", "f_before", "r2_before", "p_fwe_before", "f_after", "r2_after", "p_fwe_after",
             "n_participants", "n_sites", "note"),
            order=("p_fwe_before", "-r2_before"), shown=15, leading=False, finding="p_fwe_before",
        ),
        View(
            "harmonisation_models", "How harmonisation changed each site.",
            ("source", "fold", "site", "n_training", "n_tested", "treatment", "gamma", "scale", "note"), shown=15,
        ),
    ),
    facts,
    _answer,
    methods=_methods,
)  # fmt: skip
