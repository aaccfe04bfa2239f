"""Agreement of region rankings within a run: between folds, betas and methods.

A ranking orders bilateral groups by their mean over participants. Agreement is Kendall's W, 1 for identical rankings
and about 1 / rankings for unrelated ones (Kendall & Babington Smith 1939), and the overlap of the top regions; p comes
from permuting each ranking independently. That null hypothesis is weak: regions differ in size, and every measure that
follows size agrees. The overlap by density, which does not depend on size, is the number to look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.layout.scan_files import beta_of
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import RelevanceValues, participant_codes, participant_means
from heatlas.pipeline.statistics.linear.permutations import p_value

AT_ONCE = 500
"""Permutations per chunk; bounds memory (500 x 5 rankings x 68 regions: 1.4 MB)."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of k rankings of n regions; columns of ``ranking_agreement.tsv``, which says what they are."""

    kendall_w: float
    p: float
    top: int
    overlap: float
    overlap_chance: float
    overlap_p: float


def kendall_w(values: Floats) -> float:
    """Kendall's W of k rankings by values (k, n), corrected for ties; NaN if a ranking is constant.

    >>> kendall_w(np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]))
    1.0
    """
    ranks = np.asarray(rankdata(values, axis=1))
    spread = _spread(ranks[None])[0]
    largest = float(len(ranks) * ((ranks - ranks.mean(axis=1, keepdims=True)) ** 2).sum())  # that of equal rankings
    return float(spread / largest) if largest > 0 else float("nan")


def tops(values: Floats, count: int) -> Flags:
    """Mask (k, n) of the `count` largest regions of each ranking; ties go to the first."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    chosen = np.zeros(values.shape, bool)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


def mean_overlap(chosen: Flags) -> Floats:
    """Share of top regions in common, averaged over pairs of rankings; shape (...) for chosen (..., k, n)."""
    k, count = chosen.shape[-2], chosen[..., 0, :].sum(axis=-1)
    times = chosen.sum(axis=-2)
    common: Floats = (times * (times - 1) / 2).sum(axis=-1) / (k * (k - 1) / 2) / count
    return common


def agreement(values: Floats, top: int, permutations: int, rng: np.random.Generator) -> Agreement:
    """All measures of agreement of k >= 2 rankings by values (k, n) without NaN; top is at most n."""
    k, n = values.shape
    ranks, chosen = np.asarray(rankdata(values, axis=1)), tops(values, top)
    spread, overlap = _spread(ranks[None])[0], float(mean_overlap(chosen))
    wider = closer = 0
    for start in range(0, permutations, AT_ONCE):
        m = min(AT_ONCE, permutations - start)
        order = rng.permuted(np.tile(np.arange(n), (m, k, 1)), axis=2)
        wider += int((_spread(np.take_along_axis(ranks[None], order, axis=2)) >= spread * (1 - 1e-9)).sum())
        shuffled = np.take_along_axis(chosen[None], order, axis=2)
        closer += int((mean_overlap(shuffled) >= overlap * (1 - 1e-9)).sum())
    p = p_value(np.array([wider, closer]), permutations, exact=False)
    return Agreement(kendall_w(values), float(p[0]), top, overlap, top / n, float(p[1]))


def _spread(ranks: Floats) -> Floats:
    """Sum of squared deviations of the rank sums from their mean; ranks (m, k, n)."""
    sums = ranks.sum(axis=1)
    squares: Floats = ((sums - sums.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return squares


METRICS = ("sum", "density")

RANKING_AGREEMENT_TABLE = declared("ranking_agreement", __file__)


@dataclass(frozen=True, eq=False)
class Rankings:
    """Rankings to compare; each array of `values` (groups,) gives one ranking, NaN where missing."""

    between: str
    map: str | None
    metric: str
    scans: str
    values: Mapping[str, Floats]
    n_participants: int
    n_scans: int
    note: str | None = None


def ranking_agreement_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Agreement inside a run: ``ranking_agreement``."""
    return agreement_table(rankings_of_run(inputs.values), inputs.config.statistics, inputs.seed)


def agreement_table(rankings: Iterator[Rankings], settings: StatisticsConfig, seed: int) -> pd.DataFrame:
    table = RANKING_AGREEMENT_TABLE.frame(_row(pair, settings, seed) for pair in rankings)
    return table.astype(dict.fromkeys(("n_regions", "top", "n_permutations"), "Int64"))


def rankings_of_run(values: RelevanceValues) -> Iterator[Rankings]:
    """Rankings between folds, betas and methods, of all scans and of the positive class."""
    betas = [name for name in values.maps if beta_of(name) is not None]
    methods = [*betas[:1], *(name for name in values.maps if beta_of(name) is None)]
    folds = values.scans["fold"].to_numpy()
    for scans, chosen in populations(values.scans["target"].to_numpy(float)).items():
        people, n_scans = values.scans["participant_id"][chosen].nunique(), int(chosen.sum())
        for metric in METRICS:
            for m, map_name in enumerate(values.maps):
                of_fold = {
                    f"fold {fold}": mean_over_people(values, metric, chosen & (folds == fold))[m]
                    for fold in np.unique(folds[chosen])
                }
                yield Rankings("folds", map_name, metric, scans, of_fold, people, n_scans)
            means = dict(zip(values.maps, mean_over_people(values, metric, chosen), strict=True))
            for between, names in (("betas", betas), ("methods", methods)):
                yield Rankings(between, None, metric, scans, {name: means[name] for name in names}, people, n_scans)


def populations(target: Floats) -> dict[str, Flags]:
    """Masks of the scans to rank: all, and those of the positive class."""
    return {"all": np.ones(len(target), bool), "positive": target == 1}


def mean_over_people(values: RelevanceValues, metric: str, chosen: Flags) -> Floats:
    """Mean over participants, shape (maps, groups); NaN if any participant lacks the group."""
    array = (values.sums if metric == "sum" else values.densities)[chosen]
    if not chosen.any():
        return np.full(array.shape[1:], np.nan)
    codes, _ = participant_codes(values.scans["participant_id"][chosen].tolist())
    means: Floats = participant_means(array, codes).mean(axis=0)
    return means


def _row(rankings: Rankings, settings: StatisticsConfig, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(RANKING_AGREEMENT_TABLE.meanings)
    row |= {field.name: getattr(rankings, field.name) for field in fields(rankings) if field.name != "values"}
    row |= {"rankings": ", ".join(rankings.values) or None, "n_rankings": len(rankings.values)}
    if len(rankings.values) < 2:
        return row | {"note": f"{counted(len(rankings.values), 'ranking')}; two are needed"}
    stacked = np.stack(list(rankings.values.values()))
    complete = stacked[:, ~np.isnan(stacked).any(axis=0)]
    row |= {"n_regions": complete.shape[1]}
    if complete.shape[1] < 3:
        return row | {"note": f"{counted(complete.shape[1], 'region')} with a value in every ranking; three are needed"}
    top = min(settings.comparison.top, complete.shape[1])
    names = (rankings.between, rankings.map or "", rankings.metric, rankings.scans)
    answer = agreement(complete, top, settings.permutations, generator(seed, "statistics", "agreement", *names))
    return row | asdict(answer) | {"n_permutations": settings.permutations}
