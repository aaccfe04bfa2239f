"""Effects of sex, age, education, field strength and site on relevance and volume, each adjusted for the others.

The model always includes the class, so an effect is one that patients and controls share; whether it differs between
them is tested in ``interactions.tsv``. Tests are over participants (scans averaged first) by Freedman-Lane; those of
relevance are adjusted for the test fold. Volumes are log(volume / intracranial volume).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.data.features import VOLUME, RegionFeatures, region_features
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import joined
from heatlas.pipeline.statistics.linear.design import Design
from heatlas.pipeline.statistics.linear.fold_effect import EVEN, FoldModel, model_within_folds, with_variances
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import POOLED_FDR

CLASS = "label"
FEWEST_KNOWN = 0.8
"""Share of participants for whom a covariate must be known; a rarer one would exclude too many from every test."""

MAIN_EFFECTS_COLUMNS = {
    "source": "Relevance map (density), or volume: log(volume / intracranial volume)",
    "variable": "Variable tested, adjusted for the class and the other variables",
    "contrast": "Levels compared by estimate; n/a for a numeric variable (estimate per unit) and for more than two "
    "levels",
    "group": "Bilateral group of regions; n/a if the variable cannot be tested",
    "estimate": f"Difference between two levels, or change per unit; of relevance {EVEN}; n/a for more than two levels",
    "standard_error": "Standard error of estimate",
    "statistic": "t, or F for more than two levels, with one variance per level, or for all where the note says so",
    "df_tested": "Numerator degrees of freedom; 1 for t",
    "df": "Residual degrees of freedom (of F with one variance per level: Welch's)",
    "partial_r": "Partial correlation (effect size); for F the square root of partial R2",
    "p": "Two-sided permutation p over participants (Freedman-Lane; within test folds if adjusted for fold), "
    "(b+1)/(m+1)",
    "p_fwe": "Family-wise p: corrected by the largest statistic of each permutation over the groups of the source",
    "p_fdr": POOLED_FDR,
    "covariates": "Covariates of the model; for relevance they include the test fold; n/a for none",
    "n_participants": "Participants without missing values",
    **described("n_permutations", "exact"),
    "note": "Why there is no test, or what was left out",
}
MAIN_EFFECTS_TABLE = Table(
    "main_effects", MAIN_EFFECTS_COLUMNS, "variable, source and bilateral group",
    "Do other variables affect relevance and volume?",
    inference=Inference("exploratory", "all regions of one variable and source"),
)  # fmt: skip


def main_effects_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``main_effects``: a row per source, variable and bilateral group."""
    frame = inputs.frame
    variables = inputs.config.statistics.main_effects.variables
    blocks = [pd.DataFrame(columns=list(MAIN_EFFECTS_COLUMNS))]
    models: dict[tuple[str, bool, bytes], tuple[FoldModel, list[Any] | None]] = {}
    for features in region_features(inputs.values, inputs.volumes):
        values = relative_volumes(features, frame) if features.source == VOLUME else features.values
        for variable in variables:
            try:
                blocks.append(_test_source(inputs, features, values, variable, frame, models))
            except BadInputError as error:
                row = dict.fromkeys(MAIN_EFFECTS_COLUMNS) | {"source": features.source, "variable": variable}
                blocks.append(pd.DataFrame([row | {"note": str(error)}]).astype({"n_participants": "Int64"}))
    filled = [block.dropna(axis=1, how="all") for block in blocks[1:]]  # which pandas 2 warns of
    table = pd.concat(filled or blocks, ignore_index=True)
    return table.reindex(columns=list(MAIN_EFFECTS_COLUMNS))


def relative_volumes(features: RegionFeatures, frame: pd.DataFrame) -> NDArray[np.float64]:
    """Log of volume over intracranial volume, shape (scans, groups); NaN where one of them is unknown or 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        relative: NDArray[np.float64] = np.log(features.values / frame["tiv_mm3"].to_numpy(float)[:, None])
    relative[~np.isfinite(relative)] = np.nan
    return relative


def _test_source(
    inputs: StatisticsInputs,
    features: RegionFeatures,
    values: NDArray[np.float64],
    variable: str,
    frame: pd.DataFrame,
    models: dict[tuple[str, bool, bytes], tuple[FoldModel, list[Any] | None]],
) -> pd.DataFrame:
    """Rows of one variable in one source; BadInputError if it cannot be tested. Maps of the same scans share models."""
    settings = inputs.config.statistics
    variables = settings.main_effects.variables
    if variable not in frame.columns:
        raise BadInputError(f"no column {variable} in scans.tsv or clinical.tsv.")
    has_value = np.isfinite(values).any(axis=1)
    if not has_value.any():
        raise BadInputError("no scan has a volume and an intracranial volume.")
    lacking = (
        f"{counted(int((~has_value).sum()), 'scan')} without a value in any group" if not has_value.all() else None
    )
    frame, values = frame.iloc[np.flatnonzero(has_value)].reset_index(drop=True), values[has_value]
    others, sparse = _covariates([name for name in variables if name != variable], frame)
    key = variable, settings.fold_effect and features.source != VOLUME, has_value.tobytes()
    if key not in models:
        held = model_within_folds(" + ".join([CLASS, *others, variable]), variable, frame, key[1])
        models[key] = with_variances(held, frame[variable].tolist(), variable)
    (model, groups), design = models[key], models[key][0].design
    rng = generator(inputs.seed, "statistics", "main_effects", features.source, variable)
    test = freedman_lane(values, design, model.exchange, Resampling.orders(settings, rng), groups)
    table = pd.DataFrame(
        {"group": features.groups, "estimate": test.estimate, "standard_error": test.standard_error,
         "statistic": test.statistic, "df": test.df, "partial_r": test.partial_r, "p": test.p, "p_fwe": test.p_fwe,
         "p_fdr": test.p_fdr}
    )  # fmt: skip
    return table.assign(
        source=features.source, variable=variable, contrast=_contrast(design, variable, test.df_tested),
        df_tested=test.df_tested, covariates=", ".join(model.covariates) or None, n_participants=test.n_units,
        n_permutations=test.n_permutations, exact=test.exact,
        note=np.array([joined(problem, lacking, sparse, design.note) for problem in test.problems], dtype=object),
    )  # fmt: skip


def _covariates(names: list[str], frame: pd.DataFrame) -> tuple[list[str], str | None]:
    """Covariates known for enough participants, and a note on those left out."""
    has_value = frame[[name for name in names if name in frame.columns]].notna().groupby(frame["participant_id"]).any()
    kept = [str(name) for name in has_value if has_value[name].mean() >= FEWEST_KNOWN]
    rare = [f"{name} ({int(has_value[name].sum())} of {len(has_value)})" for name in has_value if name not in kept]
    return kept, f"not adjusted for, known for too few participants: {', '.join(rare)}" if rare else None


def _contrast(design: Design, variable: str, df_tested: int) -> str | None:
    """Levels of a two-level factor in the direction of the estimate; None otherwise."""
    level = re.fullmatch(re.escape(variable) + r"\[T\.(.+)\]", design.names[0])
    return f"{level[1]} - the other" if level is not None and df_tested == 1 else None
