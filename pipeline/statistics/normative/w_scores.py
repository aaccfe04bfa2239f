"""Scores of every scan against the controls outside its fold, and what they make of each participant.

Nobody is normed against themselves: the norm of a fold is made of the controls that are not tested in it, with their
first scan each, and explained, as everybody is, by networks that never saw them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.run.columns import Form
from pipeline.run.config.settings import Config
from pipeline.run.declared import CLASSES, Table
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.region_features import NO_FOLD, VOLUME, FoldedScans, RegionFeatures
from pipeline.statistics.linear.covariates import CovariateColumns
from pipeline.statistics.normative.norm import Norm, fit_norm

_SCAN = {
    "participant_id": "BIDS participant, with the prefix sub-",
    "session_id": "BIDS session, with the prefix ses-; n/a where the input has no sessions",
    "scan_id": "Identifier of the image in its source",
}
W_SCORE_COLUMNS = {
    **_SCAN,
    "label": "Class in the contrast of this run; n/a outside the contrast",
    "fold": "Test fold of the participant: the norm is made of controls outside it; all: of all controls",
    "source": "Relevance map (densities), or volume",
    "group": "Bilateral group",
    "w": "Residual from the controls' regression over its standard deviation; negative volumes are small ones",
    "z": "The same with account of how few the controls are: standard normal in new controls, whatever their number",
    "note": "Why there is no score, or what to know of it",
}
W_SCORES_TABLE = Table(
    "w_scores", W_SCORE_COLUMNS, "scan, source and bilateral group",
    "How far is each scan from what its age and sex let expect?", forms={"fold": Form.TEXT}, on_pages=False,
)  # fmt: skip
NORM_COLUMNS = {
    "source": "Relevance map (densities), or volume",
    "fold": "Test fold that the norm serves",
    "group": "Bilateral group",
    "n_controls": "Controls outside the fold with all values, one scan each",
    "covariates": "Columns of the regression",
    "residual_df": "Controls less coefficients",
    "residual_sd": "Standard deviation of controls about the regression, in the unit of the source",
    "note": "Why there is no norm, and covariates left out, each with the reason",
}
W_NORMS_TABLE = Table(
    "w_norms", NORM_COLUMNS, "source, fold and bilateral group", "The norms behind w_scores", forms={"fold": Form.TEXT},
    on_pages=False,
)  # fmt: skip
CALIBRATION_COLUMNS = {
    "source": "Relevance map (densities), or volume",
    "fold": "Test fold of the controls, all of whose scores come from one norm; all: of all folds",
    "group": "Bilateral group",
    "n_controls": "Controls scored against others, one scan each",
    "mean_w": "Mean w of these controls; 0 where norms fit",
    "sd_w": "Standard deviation of w; above 1 where norms are made of few",
    "mean_z": "Mean z; 0 where norms fit",
    "sd_z": "Standard deviation of z; 1 where norms fit",
    "beyond": "Share of |z| > 1.96; .05 where norms fit",
    "note": "Why there is no value",
}
W_CALIBRATION_TABLE = Table(
    "w_calibration", CALIBRATION_COLUMNS, "source, fold and bilateral group",
    "Do the norms fit controls they were not made of?", forms={"fold": Form.TEXT},
)  # fmt: skip
FINGERPRINT_COLUMNS = {
    "participant_id": "BIDS participant, with the prefix sub-",
    "label": "Class of the scans; n/a outside the contrast",
    "source": "Relevance map (densities), or volume",
    "group": "Bilateral group",
    "n_scans": "Scans averaged",
    "w": "Mean w over these scans",
    "z": "Mean z over these scans",
    "rank": "1 for the group furthest from controls by |z|",
}
W_FINGERPRINTS_TABLE = Table(
    "w_fingerprints", FINGERPRINT_COLUMNS, "participant, source and bilateral group",
    "Where is each person farthest from the norm?", filled=("participant_id", "source", "group"),
    values={"label": (CLASSES,)},
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one source of features.

    Parameters
    ----------
    features : RegionFeatures
    w, z : array, shape (scans, groups)
    notes : tuple of (str or None)
        Of each scan: why it has none.
    norms : mapping of str to (Norm, CovariateColumns)
        By fold.
    """

    features: RegionFeatures
    w: Floats
    z: Floats
    notes: tuple[str | None, ...]
    norms: Mapping[str, tuple[Norm, CovariateColumns]]


def score(features: RegionFeatures, scans: FoldedScans, config: Config) -> Scores:
    """Norms and scores, fold by fold.

    Raises
    ------
    BadInputError
        If the covariates name a column that is not there.
    """
    settings = config.statistics.normative
    formula = settings.volume_covariates if features.source == VOLUME else settings.relevance_covariates
    w, z = np.full_like(features.values, np.nan), np.full_like(features.values, np.nan)
    notes: list[str | None] = [None] * len(scans.frame)
    norms: dict[str, tuple[Norm, CovariateColumns]] = {}
    is_control = (scans.frame["label"] == config.cohort.negative).to_numpy(bool)
    for fold in scans.folds:
        controls = np.flatnonzero(scans.training(fold) & is_control)
        covariates = CovariateColumns.of(formula, scans.frame.iloc[controls])
        columns, why = covariates.matrix(scans.frame.iloc[controls])
        usable = np.array([reason is None for reason in why], dtype=bool)
        norm = fit_norm(features.values[controls][usable], columns[usable], settings.min_freedom)
        norms[fold] = norm, covariates
        rows = np.flatnonzero(scans.tested(fold))
        own, reasons = covariates.matrix(scans.frame.iloc[rows])
        w[rows], z[rows] = norm.scores(features.values[rows], own)
        w[rows[[reason is not None for reason in reasons]]] = np.nan
        z[np.isnan(w)] = np.nan
        for row, reason in zip(rows, reasons, strict=True):
            notes[row] = reason
    return Scores(features, w, z, tuple(notes), norms)


def score_table(scores: Scores, scans: FoldedScans) -> pd.DataFrame:
    """One row per scan and group; columns of `W_SCORE_COLUMNS`."""
    groups, frame = scores.features.groups, scans.frame
    rows = np.repeat(np.arange(len(frame)), len(groups))
    table = frame.iloc[rows][["participant_id", "session_id", "scan_id", "label"]].reset_index(drop=True)
    table["fold"], table["source"] = np.array(scans.fold, dtype=object)[rows], scores.features.source
    table["group"] = list(groups) * len(frame)
    table["w"], table["z"] = scores.w.ravel(), scores.z.ravel()
    means = _means_of_networks(scans, scores.features.source)
    problems = [
        problem or note or ("no value" if np.isnan(value) else mean)
        for note, mean, fold, own in zip(scores.notes, means, scans.fold, scores.features.values, strict=True)
        for problem, value in zip(scores.norms[fold][0].problems, own, strict=True)
    ]
    table["note"] = pd.Series(problems, dtype=object)
    return table[list(W_SCORE_COLUMNS)]


def _means_of_networks(scans: FoldedScans, source: str) -> list[str | None]:
    """What to know of each scan's relevance if it is the mean over several networks."""
    if source == VOLUME or "n_networks" not in scans.frame:
        return [None] * len(scans.frame)
    said = "mean over {:g} networks, scored against maps of single networks, which scatter more: another scale"
    return [said.format(n) if n > 1 else None for n in scans.frame["n_networks"]]


def norm_table(scores: Scores) -> pd.DataFrame:
    """One row per fold and group; columns of `NORM_COLUMNS`."""
    tables = []
    for fold, (norm, covariates) in scores.norms.items():
        left_out = [f"covariate {name} left out: {reason}" for name, reason in covariates.dropped.items()]
        notes = ["; ".join([*([problem] if problem else []), *left_out]) or None for problem in norm.problems]
        table = pd.DataFrame({"source": scores.features.source, "fold": fold, "group": scores.features.groups})
        table["n_controls"] = norm.controls.astype(int)
        table["covariates"] = ", ".join(covariates.names) or None
        table["residual_df"], table["residual_sd"] = norm.freedom, norm.deviation
        tables.append(table.assign(note=pd.Series(notes, dtype=object)))
    return pd.concat(tables)[list(NORM_COLUMNS)]


def calibration_table(scores: Scores, scans: FoldedScans, negative: str) -> pd.DataFrame:
    """Controls scored against norms they are no part of; columns of `CALIBRATION_COLUMNS`."""
    controls = scans.first & (scans.frame["label"] == negative).to_numpy(bool)
    folds = {NO_FOLD: controls} | {fold: controls & scans.tested(fold) for fold in scans.folds if fold != NO_FOLD}
    rows = []
    for (fold, own), (i, group) in itertools.product(folds.items(), enumerate(scores.features.groups)):
        w, z = (one[own, i][~np.isnan(one[own, i])] for one in (scores.w, scores.z))
        row = {"source": scores.features.source, "fold": fold, "group": group, "n_controls": len(z)}
        row |= dict.fromkeys(("mean_w", "sd_w", "mean_z", "sd_z", "beyond"), np.nan)
        row["note"] = None if len(z) > 1 else f"{len(z)} controls have a score; 2 or more are needed"
        if len(z) > 1:
            row |= {"mean_w": w.mean(), "sd_w": w.std(ddof=1), "mean_z": z.mean(), "sd_z": z.std(ddof=1)}
            row["beyond"] = (np.abs(z) > 1.96).mean()
        rows.append(row)
    return pd.DataFrame(rows, columns=list(CALIBRATION_COLUMNS))


def fingerprint_table(table: pd.DataFrame) -> pd.DataFrame:
    """One row per participant, label, source and group; columns of `FINGERPRINT_COLUMNS`.

    Parameters
    ----------
    table : pandas.DataFrame
        From `score_table`.
    """
    known = table[table["z"].notna()]
    keys = ["participant_id", "label", "source", "group"]
    grouped = known.groupby(keys, sort=False, dropna=False)
    prints = grouped.agg(n_scans=("scan_id", "size"), w=("w", "mean"), z=("z", "mean")).reset_index()
    size = prints.assign(size=-prints["z"].abs())
    ranks = size.groupby(keys[:3], sort=False, dropna=False)["size"].rank(method="first")
    return prints.assign(rank=ranks.astype("Int64"))[list(FINGERPRINT_COLUMNS)]
