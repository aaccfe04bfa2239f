"""Scores of every scan against controls of the same age, sex and head size, and fingerprints of participants.

The norm of a fold is fitted on the first scans of the controls outside it, so no one is compared with themselves. The
w-score (Jack et al. 1997; La Joie et al. 2012) is the residual of a regression fitted on controls over the residual
standard deviation. With few controls it is too large: for a new person ``w / sqrt(1 + h)``, h the leverage of their
covariates, has a t distribution (Crawford & Garthwaite 2006); ``z`` is the normal deviate with the same probability.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.stats import norm as normal
from scipy.stats import t as student

from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.features import NO_FOLD, VOLUME, CovariateColumns, FoldedScans, RegionFeatures
from heatlas.pipeline.statistics.data.values import joined, stacked

NO_SPREAD = 1e-12
"""Residual variance, relative to the mean square, below which controls count as constant."""


@dataclass(frozen=True, eq=False)
class Norm:
    """Regression of features on covariates among controls; NaN, with a problem, for features that cannot be normed.

    Shapes: coefficients (1 + covariates, features), intercept first; inverse (features, 1 + covariates, 1 +
    covariates), (X'X)^-1 of the controls with a value; deviation (features,), residual standard deviation; controls,
    freedom (features,), controls with a value and residual degrees of freedom.
    """

    coefficients: Floats
    inverse: Floats
    deviation: Floats
    controls: Floats
    freedom: Floats
    problems: tuple[str | None, ...]

    def scores(self, values: Floats, covariates: Floats) -> tuple[Floats, Floats]:
        """Scores w and z (rows, features) of values (rows, features); NaN where value, covariate or norm is missing."""
        design = np.column_stack([np.ones(len(values)), covariates])
        w = (values - design @ self.coefficients) / self.deviation
        leverage = np.einsum("rp,fpq,rq->rf", design, self.inverse, design)
        t = w / np.sqrt(1 + leverage)
        return w, np.copysign(normal.isf(student.sf(np.abs(t), self.freedom)), t)


def fit_norm(values: Floats, covariates: Floats, min_freedom: int) -> Norm:
    """Fit on controls, one row each; features with fewer than `min_freedom` residual degrees of freedom have no norm.

    Covariates have no NaN and full rank together with an intercept; controls with NaN are left out for that feature.
    """
    n_features = values.shape[1]
    design = np.column_stack([np.ones(len(values)), covariates])
    p = design.shape[1]
    coefficients, inverse = np.full((p, n_features), np.nan), np.full((n_features, p, p), np.nan)
    deviation, freedom = np.full(n_features, np.nan), np.full(n_features, np.nan)
    present = ~np.isnan(values)
    controls = present.sum(axis=0).astype(float)
    problems: list[str | None] = [None] * n_features
    for feature in range(n_features):
        rows = present[:, feature]
        df = int(rows.sum()) - p
        if df < min_freedom:
            n = int(rows.sum())
            problems[feature] = (
                f"{counted(n, 'control')} for {counted(p, 'coefficient')}; {p + min_freedom} or more are needed"
            )
            continue
        x, y = design[rows], values[rows, feature]
        solution, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
        if rank < p:
            problems[feature] = "covariates are collinear among the controls with a value"
            continue
        variance = float(((y - x @ solution) ** 2).sum()) / df
        if variance <= NO_SPREAD * float((y**2).mean()):
            problems[feature] = "the controls are constant"
            continue
        coefficients[:, feature], freedom[feature] = solution, df
        deviation[feature] = np.sqrt(variance)
        inverse[feature] = np.linalg.inv(x.T @ x)
    return Norm(coefficients, inverse, deviation, controls, freedom, tuple(problems))


FEWEST_CONTROLS = 5
"""Smallest number of controls for a comparison."""
CONTROLS_OF_A_FOLD = 10
"""Smallest number of controls in the participant's fold for using only these."""
BAND = (0.05, 0.25, 0.75, 0.95)
"""Quantiles of the controls that a fingerprint shows."""


@dataclass(frozen=True)
class ControlGroup:
    """Participants of the negative class whom one is compared with: mean shares of the map (people, groups)."""

    values: pd.DataFrame
    who: str

    @cached_property
    def mean(self) -> pd.Series:
        return self.values.mean()

    @cached_property
    def spread(self) -> pd.Series:
        """Standard deviation (n - 1); NaN where the controls are constant."""
        spread = self.values.std(ddof=1)
        return spread.where(spread > 0)

    def scores(self, person: pd.Series) -> pd.Series:
        return (person - self.mean) / self.spread

    @cached_property
    def bands(self) -> Mapping[str, tuple[float, ...]]:
        """Quantiles (`BAND`) of the controls' own scores by bilateral group; none where the controls are constant."""
        scores = ((self.values - self.mean) / self.spread).dropna(axis=1, how="all")
        values = scores.to_numpy(float)
        quantile = np.nanquantile if np.isnan(values).any() else np.quantile  # nanquantile is slower
        quantiles = quantile(values, BAND, axis=0).T if scores.size else np.zeros((0, len(BAND)))
        return {str(name): tuple(row) for name, row in zip(scores.columns, quantiles.tolist(), strict=True)}

    def share_below(self, person: pd.Series) -> pd.Series:
        """Share of the controls with lower values than the participant, by bilateral group; NaN where unknown."""
        present = self.values.notna()
        below = (self.values.lt(person, axis=1) & present).sum()
        return (below / present.sum().where(present.any())).where(person.notna())


def comparable_controls(
    values: pd.DataFrame, fold_of: Mapping[str, object], fold: object, participant: str, label: str
) -> ControlGroup | None:
    """Controls of the participant's fold if they are enough, else all others; None if these are too few."""
    others = values[values.index != participant]
    same = others[[fold_of.get(name) == fold for name in others.index]] if fold is not None else others[:0]
    if len(same) >= CONTROLS_OF_A_FOLD:
        return ControlGroup(same, f"{len(same)} {label} of the same fold")
    return ControlGroup(others, f"{len(others)} {label}") if len(others) >= FEWEST_CONTROLS else None


W_SCORES_TABLE = declared("w_scores", __file__)
W_NORMS_TABLE = declared("w_norms", __file__)
W_CALIBRATION_TABLE = declared("w_calibration", __file__)
W_FINGERPRINTS_TABLE = declared("w_fingerprints", __file__)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores w and z (scans, groups) of one source; `notes` say why a scan has none; `norms` are by fold."""

    features: RegionFeatures
    w: Floats
    z: Floats
    notes: tuple[str | None, ...]
    norms: Mapping[str, tuple[Norm, CovariateColumns]]


def score(features: RegionFeatures, scans: FoldedScans, config: Config) -> Scores:
    """Norms and scores, fold by fold; BadInputError if the covariates name a missing column."""
    settings = config.statistics.normative
    formula = settings.volume_covariates if features.source == VOLUME else settings.relevance_covariates
    w, z = np.full_like(features.values, np.nan), np.full_like(features.values, np.nan)
    notes: list[str | None] = [None] * len(scans.frame)
    norms: dict[str, tuple[Norm, CovariateColumns]] = {}
    is_control = (scans.frame["label"] == config.cohort.negative).to_numpy(bool)
    for fold in scans.folds:
        controls = np.flatnonzero(scans.training(fold) & is_control)
        values, facts = features.values[controls], scans.frame.iloc[controls]
        norm, covariates = norms[fold] = norm_of(values, facts, formula, settings.min_freedom)
        rows = np.flatnonzero(scans.tested(fold))
        x, reasons = covariates.matrix(scans.frame.iloc[rows])
        w[rows], z[rows] = norm.scores(features.values[rows], x)
        w[rows[[reason is not None for reason in reasons]]] = np.nan
        z[np.isnan(w)] = np.nan
        for row, reason in zip(rows, reasons, strict=True):
            notes[row] = reason
    return Scores(features, w, z, tuple(notes), norms)


def norm_of(
    values: Floats, facts: pd.DataFrame, formula: str, min_freedom: int, without: Collection[str] = ()
) -> tuple[Norm, CovariateColumns]:
    """The norm of controls with values (controls, groups) and these facts; raises as `CovariateColumns.of`."""
    covariates = CovariateColumns.of(formula, facts, without)
    columns, why = covariates.matrix(facts)
    usable = np.array([reason is None for reason in why], dtype=bool)
    return fit_norm(values[usable], columns[usable], min_freedom), covariates


def score_table(scores: Scores, scans: FoldedScans) -> pd.DataFrame:
    groups, frame = scores.features.groups, scans.frame
    rows = np.repeat(np.arange(len(frame)), len(groups))
    table = frame.iloc[rows][["participant_id", "session_id", "scan_id", "label"]].reset_index(drop=True)
    table["fold"], table["source"] = np.array(scans.fold, dtype=object)[rows], scores.features.source
    table["group"] = list(groups) * len(frame)
    table["w"], table["z"] = scores.w.ravel(), scores.z.ravel()
    means = _means_of_networks(scans, scores.features.source)
    problems = [
        problem or note or ("no value" if np.isnan(value) else mean)
        for note, mean, fold, values in zip(scores.notes, means, scans.fold, scores.features.values, strict=True)
        for problem, value in zip(scores.norms[fold][0].problems, values, strict=True)
    ]
    table["note"] = pd.Series(problems, dtype=object)
    return table[list(W_SCORES_TABLE.meanings)]


def _means_of_networks(scans: FoldedScans, source: str) -> list[str | None]:
    """A note for each scan whose relevance is the mean over several networks."""
    if source == VOLUME or "n_networks" not in scans.frame:
        return [None] * len(scans.frame)
    text = "mean over {:g} networks, scored against maps of single networks, which vary more; scores are not comparable"
    return [text.format(n) if n > 1 else None for n in scans.frame["n_networks"]]


def norm_table(scores: Scores) -> pd.DataFrame:
    tables = []
    for fold, (norm, covariates) in scores.norms.items():
        left_out = [f"covariate {name} left out: {reason}" for name, reason in covariates.dropped.items()]
        notes = [joined(problem, *left_out) for problem in norm.problems]
        table = pd.DataFrame({"source": scores.features.source, "fold": fold, "group": scores.features.groups})
        table["n_controls"] = norm.controls.astype(int)
        table["covariates"] = ", ".join(covariates.names) or None
        table["residual_df"], table["residual_sd"] = norm.freedom, norm.deviation
        tables.append(table.assign(note=pd.Series(notes, dtype=object)))
    return stacked(W_NORMS_TABLE, tables)


def calibration_table(scores: Scores, scans: FoldedScans, negative: str) -> pd.DataFrame:
    """Scores of controls by norms that do not include them; columns of `W_CALIBRATION_TABLE`."""
    controls = scans.first & (scans.frame["label"] == negative).to_numpy(bool)
    folds = {NO_FOLD: controls} | {fold: controls & scans.tested(fold) for fold in scans.folds if fold != NO_FOLD}
    rows = []
    for (fold, members), (i, group) in itertools.product(folds.items(), enumerate(scores.features.groups)):
        w, z = (scores_of[members, i][~np.isnan(scores_of[members, i])] for scores_of in (scores.w, scores.z))
        row = {"source": scores.features.source, "fold": fold, "group": group, "n_controls": len(z)}
        row |= dict.fromkeys(("mean_w", "sd_w", "mean_z", "sd_z", "beyond"), np.nan)
        row["note"] = None if len(z) > 1 else f"{counted(len(z), 'control', 'has')} a score; 2 or more are needed"
        if len(z) > 1:
            row |= {"mean_w": w.mean(), "sd_w": w.std(ddof=1), "mean_z": z.mean(), "sd_z": z.std(ddof=1)}
            row["beyond"] = (np.abs(z) > 1.96).mean()
        rows.append(row)
    return W_CALIBRATION_TABLE.frame(rows)


def fingerprint_table(table: pd.DataFrame) -> pd.DataFrame:
    """Means of `score_table` per participant, label, source and group; columns of `W_FINGERPRINTS_TABLE`."""
    with_score = table[table["z"].notna()]
    keys = ["participant_id", "label", "source", "group"]
    grouped = with_score.groupby(keys, sort=False, dropna=False)
    prints = grouped.agg(n_scans=("scan_id", "size"), w=("w", "mean"), z=("z", "mean")).reset_index()
    size = prints.assign(size=-prints["z"].abs())
    ranks = size.groupby(keys[:3], sort=False, dropna=False)["size"].rank(method="first")
    return prints.assign(rank=ranks.astype("Int64"))[list(W_FINGERPRINTS_TABLE.meanings)]
