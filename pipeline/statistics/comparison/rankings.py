"""Agreement of region rankings within a run: between folds, betas and methods.

A ranking orders bilateral groups by their mean over participants. Folds differ in test participants and networks; betas
and methods share both. Rankings of several runs (seeds, models) are compared by ``heatlas compare``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.run.layout.map_names import beta_of
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats
from heatlas.pipeline.statistics.comparison.agreement import agreement
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.values import RelevanceValues, participant_codes, participant_means

METRICS = ("sum", "density")

AGREEMENT_COLUMNS = {
    "between": "What the rankings differ in: folds, betas, methods or runs",
    "map": "Relevance map; n/a if the rankings come from several maps",
    "metric": "Metric that regions are ranked by: mean sum or mean density over participants",
    "scans": "Scans included: all, or those of the positive class",
    "rankings": "Names of the rankings",
    "n_rankings": "Number of rankings",
    "n_regions": "Bilateral groups with a value in every ranking",
    "kendall_w": "Kendall's coefficient of concordance, corrected for ties: 1 for full agreement, about 1 / "
    "n_rankings for unrelated rankings",
    "p": "p of W from permuting each ranking independently, (b+1)/(m+1); a small p only says that the rankings are "
    "not unrelated",
    "top": "Number of top regions compared",
    "overlap": "Share of the top regions that two rankings have in common, averaged over pairs",
    "overlap_chance": "Expected overlap of unrelated rankings: top / n_regions",
    "overlap_p": "p of the overlap, from the same permutations",
    "n_permutations": "Permutations",
    "n_participants": "Participants included (for folds: over all folds)",
    **described("n_scans", "note"),
}
RANKING_AGREEMENT_TABLE = Table(
    "ranking_agreement", AGREEMENT_COLUMNS, "what is compared, map, metric and group of scans",
    "Do other networks, betas or methods rank the regions alike?",
    inference=Inference("exploratory", "each row alone"),
)  # fmt: skip


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
    """One row per set of rankings; columns of `AGREEMENT_COLUMNS`."""
    table = pd.DataFrame([_row(one, settings, seed) for one in rankings], columns=list(AGREEMENT_COLUMNS))
    return table.astype(dict.fromkeys(("n_regions", "top", "n_permutations"), "Int64"))


def rankings_of_run(values: RelevanceValues) -> Iterator[Rankings]:
    """Rankings between folds, betas and methods, of all scans and of the positive class."""
    betas = [name for name in values.maps if beta_of(name) is not None]
    methods = [*betas[:1], *(name for name in values.maps if beta_of(name) is None)]
    folds = values.scans["fold"].to_numpy()
    for scans, chosen in populations(values.scans["target"].to_numpy(float)).items():
        for metric in METRICS:
            for m, map_name in enumerate(values.maps):
                of_fold = {
                    f"fold {fold}": mean_over_people(values, metric, chosen & (folds == fold))[m]
                    for fold in np.unique(folds[chosen])
                }
                yield _of(values, "folds", map_name, metric, scans, chosen, of_fold)
            means = dict(zip(values.maps, mean_over_people(values, metric, chosen), strict=True))
            for between, names in (("betas", betas), ("methods", methods)):
                yield _of(values, between, None, metric, scans, chosen, {name: means[name] for name in names})


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


def _of(
    values: RelevanceValues,
    between: str,
    map_name: str | None,
    metric: str,
    scans: str,
    chosen: Flags,
    rankings: Mapping[str, Floats],
) -> Rankings:
    people = values.scans["participant_id"][chosen].nunique()
    return Rankings(between, map_name, metric, scans, rankings, people, int(chosen.sum()))


def _row(rankings: Rankings, settings: StatisticsConfig, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(AGREEMENT_COLUMNS) | {
        "between": rankings.between, "map": rankings.map, "metric": rankings.metric, "scans": rankings.scans,
        "rankings": ", ".join(rankings.values) or None, "n_rankings": len(rankings.values),
        "n_participants": rankings.n_participants, "n_scans": rankings.n_scans, "note": rankings.note,
    }  # fmt: skip
    if len(rankings.values) < 2:
        return row | {"note": f"{counted(len(rankings.values), 'ranking')}; two are needed"}
    stacked = np.stack(list(rankings.values.values()))
    complete = stacked[:, ~np.isnan(stacked).any(axis=0)]
    row |= {"n_regions": complete.shape[1]}
    if complete.shape[1] < 3:
        return row | {"note": f"{counted(complete.shape[1], 'region')} with a value in every ranking; three are needed"}
    top = min(settings.comparison.top, complete.shape[1])
    names = (rankings.between, rankings.map or "", rankings.metric, rankings.scans)
    found = agreement(complete, top, settings.permutations, generator(seed, "statistics", "agreement", *names))
    return row | asdict(found) | {"n_permutations": settings.permutations}
