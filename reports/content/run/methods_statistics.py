"""Sentences of the methods text about the statistics, and about each further analysis that gave a table."""

from __future__ import annotations

from collections.abc import Callable

from heatlas.pipeline.statistics.associations.volume_association import WITHIN
from heatlas.reports.questions.verdicts import primary_question
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import is_missing, listing, number
from heatlas.reports.words.wording import covariates_in_words, worded


def statistics_text(run: RunRecord) -> str:
    if not run.has("performance"):
        return ""
    settings = run.config.statistics
    text = (
        f"The participant is the unit of inference: {100 * settings.confidence:g} % intervals of differences and "
        "correlations are made with the critical value of the permuted statistic, those of means with Student's t "
        "corrected for skewness [@hall], and those of performance on a logit scale with the standard error of "
        f"{number(settings.bootstrap_samples)} bootstrap samples of participants within test folds and classes [@raowu]"
    )
    if run.has("volume_association"):
        text += (
            f", and the correlation of relevance with hippocampal volume is tested by {number(settings.permutations)} "
            "permutations of participants, p = (b + 1) / (m + 1) [@permutation]" + _change_within(run)
        )
    text += "."
    if run.has("group_comparisons"):
        text += (
            " Relevance of the classes is compared region by region over participants, whose scans are averaged "
            f"first: Welch's t, {number(settings.permutations)} permutations of participants, the largest |t| over "
            "all maps and regions for the family-wise p, Benjamini and Hochberg's false discovery rate [@fdr] beside "
            f"it. {_networks(run)}"
        )
    return text


def _change_within(run: RunRecord) -> str:
    table = run.tables["volume_association"]
    if table.loc[table["unit"] == WITHIN, "r"].isna().all():
        return ""
    return (
        ", and whether the two change together over the visits of a person by the repeated-measures correlation "
        "[@rmcorr], the signs of participants' change in relevance being flipped"
    )


def _networks(run: RunRecord) -> str:
    """What the comparison of the classes does about each fold having its own network."""
    if run.tables["group_comparisons"]["fold_held"].fillna(False).astype(bool).any():
        return (
            "Each fold has its own network: the test fold is a factor of the model, and participants are reassigned "
            "within their fold only [@freedman_lane] [@winkler]."
        )
    return "The test fold is not in the model."


def _curves(run: RunRecord) -> str:
    if not run.has("calibration"):
        return ""
    return (
        "Calibration was assessed in bins of probability in which each participant counts once, with Wilson intervals."
    )


def _primary(run: RunRecord) -> str:
    if not run.has("primary") or run.task.is_number:
        return ""
    row = run.tables["primary"].iloc[0]
    how = "" if is_missing(row["p"]) else f", tested by permutation of {row['exchanged']} [@freedman_lane]"
    return (
        f"The primary outcome, named before any result, was the {primary_question(run)}{how}. All other tests are "
        "secondary or exploratory, as the data dictionary of each table says with its family and correction."
    )


def _associations(run: RunRecord) -> str:
    if not run.has("associations"):
        return ""
    table = run.tables["associations"]
    formulas = dict.fromkeys(str(terms) for terms in table["covariates"].dropna())
    adjusted = list(dict.fromkeys(name for terms in formulas for name in covariates_in_words(terms).split(", ")))
    text = (
        "Associations of regional relevance with biomarkers were tested over participants by permutation, the largest "
        "|r| of each permutation giving family-wise p values, with the false discovery rate beside them [@fdr]"
    )
    if adjusted:
        each = ", each those that its row of the table names" if len(formulas) > 1 else ""
        text += f"; covariates held constant: {listing(adjusted)}{each} (Freedman-Lane [@freedman_lane] [@winkler])"
    return f"{text}."


def _groups(run: RunRecord) -> str:
    parts = []
    if run.has("group_comparisons"):
        parts.append(
            "Groups were compared by Welch's t over participants under permutation; log-gains were shrunk towards the "
            "mean of their map by empirical Bayes."
        )
        if "place_low" in run.tables["group_comparisons"]:
            parts.append(
                "The place of a region among all regions by Hedges' g has an interval from its differences to all "
                "others at once [@places]."
            )
    if run.has("interactions"):
        parts.append(
            "Whether the difference between the classes depends on a subgroup was tested as an interaction "
            "(Freedman-Lane [@freedman_lane] [@winkler])."
        )
    if run.has("fairness"):
        few = run.config.statistics.subgroups.minimum_participants
        parts.append(
            f"Performance in subgroups of at least {number(few)} participants was compared with everyone else by "
            "exchanging membership between participants of the same class."
        )
    return " ".join(parts)


def _progression(run: RunRecord) -> str:
    parts = []
    if run.has("progression"):
        parts.append(
            "Participants with MCI were predicted by networks that were never trained on them; conversion to AD was "
            "predicted from their first scan, with Harrell's concordance [@concordance]."
        )
    if run.has("cox"):
        parts.append(
            "Hazards come from Cox models [@cox], fitted with statsmodels [@statsmodels]; p values permute "
            "participants, and proportionality of hazards was tested with scaled Schoenfeld residuals [@schoenfeld]."
        )
    if run.has("trajectories") and run.tables["trajectories"]["estimate"].notna().any():
        parts.append(
            "Change over visits was estimated by one least-squares slope per participant; mean slopes were tested by "
            "flipping signs, with a correction for skewness [@hall], differences by permuting participants within "
            "networks, with the network as a factor and one residual variance per group."
        )
    return " ".join(parts)


def _sites(run: RunRecord) -> str:
    if not run.has("site_effects"):
        return ""
    return (
        "Regional values were harmonised over sites with ComBat [@combat] [@neurocombat], its parameters estimated "
        f"from the training participants of each fold{_beside_sites(run)}, and applied to those it tests."
    )


def _beside_sites(run: RunRecord) -> str:
    """Covariates of the model by which effects of the site are estimated."""
    columns = run.config.statistics.harmonisation.training_covariates
    if not columns:
        return ""
    return (
        f", with their {covariates_in_words(columns)} in the model, so that their effects are not removed as "
        "effects of the site (they are not used for the participants tested)"
    )


def _norms(run: RunRecord) -> str:
    parts = []
    if run.has("w_fingerprints"):
        parts.append(
            f"W-scores [@wscore] are residuals from a norm of {run.negative} among the fold's training participants."
        )
    if run.has("subtype_numbers"):
        parts.append(
            "Subtypes of fingerprints come from consensus clustering [@consensus], their number from the gap statistic "
            "[@gap]."
        )
    return " ".join(parts)


def _audit(run: RunRecord) -> str:
    parts = []
    if run.has("shortcuts"):
        table = run.tables["shortcuts"]
        places = [worded(name) for name in dict.fromkeys(table.loc[table["enrichment"].notna(), "compartment"])]
        if places:
            parts.append(
                f"As an audit, the share of relevance in places that should not matter ({listing(places)}) was divided "
                "by their share of the voxels."
            )
    if run.has("site_prediction"):
        parts.append("Site and field strength were predicted from regional relevance, out of fold by participant.")
    if run.has("ranking_agreement"):
        parts.append("Agreement of rankings of regions is Kendall's W [@kendall].")
    return " ".join(parts)


def analyses_text(run: RunRecord) -> str:
    """All sentences that apply, with citations as ``[@key]``."""
    return " ".join(found for write in _WRITERS if (found := write(run)))


_WRITERS: tuple[Callable[[RunRecord], str], ...] = (
    _primary, _curves, _associations, _groups, _progression, _sites, _norms, _audit,
)  # fmt: skip
