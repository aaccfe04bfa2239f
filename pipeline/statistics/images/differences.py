"""Which regions differ in the images, beside which of them the network used.

The same people, scans, covariates and permutation test for both: Welch's t of people, family-wise p over the regions of
one measure, with the adjusted effect size. The image depends on no network, so it is tested without folds; evidence
(all maps where there is none) within test folds. What is not significant is not shown to be absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import gammaln
from scipy.stats import rankdata

from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import CLASSES, MIN_FREEDOM_OF_G, TwoGroups
from heatlas.pipeline.statistics.data.values import MEASURES, joined, stacked
from heatlas.pipeline.statistics.groups.comparisons import MIN_PER_GROUP
from heatlas.pipeline.statistics.linear.fold_effect import FoldModel, fold_of_units, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import NO_SPREAD, LinearModel, PermutationTest, freedman_lane
from heatlas.pipeline.statistics.linear.permutations import TIE_TOLERANCE, Exchangeability, Permutations, p_value
from heatlas.pipeline.statistics.linear.studentised import HomoscedasticModel
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL, bootstrap_intervals
from heatlas.pipeline.statistics.resampling.means import OF_P, caveat_of_size


@dataclass(frozen=True, eq=False)
class Adjusted:
    """Values of people (people, columns) under a model of one tested column, `exchange` for their rows."""

    values: Floats
    model: LinearModel
    exchange: Exchangeability

    @classmethod
    def of(cls, values: Floats, fold_model: FoldModel, variance_groups: Sequence[Any] | None = None) -> Adjusted:
        """Values of scans (scans, columns) brought to people as `freedman_lane` does, which has such groups too."""
        design = fold_model.design
        exchange = fold_model.exchange.of_rows(design.rows)
        people = exchange.even(exchange.reduce(values[design.rows]))
        groups = None if variance_groups is None else [variance_groups[row] for row in design.rows]
        return cls(people, LinearModel.of(design, exchange, groups), exchange)

    @property
    def residuals(self) -> Floats:
        """Residuals of the values on the covariates, with norm 1; 0 where nothing is left."""
        left = self.values - self.model.nuisance @ (self.model.nuisance.T @ self.values)
        norms = np.linalg.norm(left, axis=0)
        spread = norms**2 > NO_SPREAD * (self.values**2).sum(axis=0)
        scaled: Floats = np.divide(left, norms, out=np.zeros_like(left), where=spread)
        return scaled

    @property
    def hedges_g(self) -> Floats:
        """Adjusted difference in residual standard deviations, corrected for small samples, shape (columns,).

        NaN with fewer than `MIN_FREEDOM_OF_G` degrees of freedom, or where nothing varies.
        """
        df, e = self.model.df, self.residuals
        if df < MIN_FREEDOM_OF_G:
            return np.full(e.shape[1], np.nan)
        r = self.model.tested[:, 0] @ e
        correction = np.exp(gammaln(df / 2) - gammaln((df - 1) / 2)) / np.sqrt(df / 2)
        scale = correction * self.model.to_coefficients[0, 0] * np.sqrt(df)
        left = 1 - r**2
        defined = (left > NO_SPREAD) & (r != 0)
        g: Floats = np.divide(scale * r, np.sqrt(left), out=np.full(len(r), np.nan), where=defined)
        return g

    def sizes(self, permutations: Permutations) -> Floats:
        """Partial R^2 of permuted values (permutations, columns): it ranks columns as |t| and |g| do."""
        model = HomoscedasticModel(self.model.tested, self.model.moving_nuisance, self.model.df)
        return model.size(permutations.rows, self.residuals)

    def drawn_sizes(self, weights: Floats) -> Floats:
        """The same of weighted people, weights (draws, people): (draws, columns)."""
        basis = np.column_stack([self.model.tested, self.model.nuisance])
        sizes = np.empty((len(weights), self.values.shape[1]))
        centred = self.values - self.values.mean(axis=0)
        for place, w in enumerate(weights):
            weighted = basis * w[:, None]
            inverse = np.linalg.pinv(basis.T @ weighted, hermitian=True)
            along = weighted.T @ centred
            b = inverse @ along
            left = np.maximum(w @ centred**2 - (along * b).sum(axis=0), 0.0)
            explained = b[0] ** 2 / max(inverse[0, 0], np.finfo(float).tiny)
            total = explained + left
            sizes[place] = np.divide(explained, total, out=np.zeros_like(total), where=total > 0)
        return sizes


def rank_correlation(first: Floats, second: Floats) -> Floats:
    """Spearman's rank correlation of each row of two arrays (draws, columns); NaN where a row is constant.

    >>> rank_correlation(np.array([[1.0, 2.0, 3.0]]), np.array([[2.0, 9.0, 5.0]])).round(3).tolist()
    [0.5]
    """
    ranks = [rankdata(values, axis=1) for values in (first, second)]
    a, b = (values - values.mean(axis=1, keepdims=True) for values in ranks)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    r: Floats = np.divide((a * b).sum(axis=1), scale, out=np.full(len(scale), np.nan), where=scale > 0)
    return r


CLEAR = 0.05
VERDICTS = ("differs and is used", "differs, not used", "used, does not differ", "neither", "not tested")
BOTH, DIFFERS_ONLY, USED_ONLY, NEITHER, UNKNOWN = VERDICTS

IMAGE_DIFFERENCES_TABLE = declared("image_differences", __file__)
IMAGE_AGREEMENT_TABLE = declared("image_agreement", __file__)
FEWEST_REGIONS = 5
MOST_DRAWS = 2_000
"""Most draws of the bootstrap; each fits all regions again."""


@dataclass(frozen=True, eq=False)
class _Tested:
    """One family of tests."""

    model: FoldModel
    test: PermutationTest
    people: Adjusted
    n_positive: int
    n_negative: int


def image_differences_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    images = measured(inputs)
    two, values = TwoGroups.of(inputs, *CLASSES), inputs.values
    maps = values.evidence or values.maps
    differences, agreements = [], []
    used = {name: _test(inputs, two.rows, values.densities[two.rows, values.maps.index(name)], True) for name in maps}
    for measure, whole in images.items():
        has_it = np.asarray(np.isfinite(whole[two.rows]).any(axis=1), bool)
        rows = two.rows[has_it]
        tested = _test(inputs, rows, whole[rows], False)
        lost = None if has_it.all() else f"{counted(int((~has_it).sum()), 'scan')} without this measure left out"
        for name in maps:
            note = joined(two.note, lost)
            differences.append(_rows(tested, used[name], values.groups, note).assign(measure=measure, map=name))
            agreements.append(_agreement(inputs, rows, whole, name) | {"measure": measure, "map": name})
    return {
        "image_differences": stacked(IMAGE_DIFFERENCES_TABLE, differences),
        "image_agreement": IMAGE_AGREEMENT_TABLE.frame(agreements),
    }


def measured(inputs: StatisticsInputs) -> dict[str, Floats]:
    """Each measure that some scan has (scans, groups), in the order of the scans and groups of the relevance."""
    table, by_name = inputs.image_regions, {}
    for name in MEASURES:
        if name in table and table[name].notna().any():
            wide = table.set_index(["scan_id", "group"])[name].unstack()  # noqa: PD010
            by_name[name] = wide.reindex(index=inputs.values.scans["scan_id"], columns=inputs.values.groups).to_numpy(
                dtype=float
            )
    if not by_name:
        raise BadInputError("group/image_regions.tsv: no scan was measured. Repeat the command that made this run.")
    return by_name


def class_model(inputs: StatisticsInputs, rows: Indices, of_network: bool) -> tuple[FoldModel, Floats]:
    """The model of the classes in some scans, and 1 for each of the positive class (rows,).

    With test folds if a network made the values. BadInputError if the classes cannot be compared.
    """
    settings = inputs.config.statistics
    first = np.asarray(inputs.frame["target"].to_numpy(float)[rows] == 1, dtype=float)
    if min(first.sum(), len(first) - first.sum()) < MIN_PER_GROUP:
        raise BadInputError(f"fewer than {MIN_PER_GROUP} scans of a class, which cannot be compared.")
    frame = inputs.frame.iloc[rows].reset_index(drop=True).assign(_first=first)
    formula = f"{settings.covariates.strip() or '1'} + _first"
    try:
        held = of_network and settings.fold_effect
        return model_within_folds(formula, "_first", frame, held, first.tolist()), first
    except BadInputError as error:
        raise BadInputError(str(error).replace("_first", "class")) from error


def _test(inputs: StatisticsInputs, rows: Indices, values: Floats, of_network: bool) -> _Tested:
    """The test between the classes of the scans at some rows, values (rows, groups)."""
    settings, (model, first) = inputs.config.statistics, class_model(inputs, rows, of_network)
    rng = generator(inputs.seed, "statistics", "image_differences")
    test = freedman_lane(values, model.design, model.exchange, Resampling.orders(settings, rng), first.tolist())
    people = Adjusted.of(values, model)
    of_class = people.exchange.groups_of_units(first[model.design.rows].tolist())
    return _Tested(model, test, people, int((of_class == 1).sum()), int((of_class == 0).sum()))


def _rows(image: _Tested, used: _Tested, groups: Sequence[str], note: str | None) -> pd.DataFrame:
    table = pd.DataFrame({"group": list(groups), **image.test.columns()})
    table = table.rename(columns={"estimate": "difference", "statistic": "t"})
    table = table.assign(evidence_t=used.test.statistic, evidence_p=used.test.p, evidence_p_fwe=used.test.p_fwe)
    for values, column in ((image, "hedges_g"), (used, "evidence_g")):
        table[column] = np.where(np.isfinite(values.test.p), values.people.hedges_g, np.nan)
    both = zip(image.test.p_fwe.tolist(), used.test.p_fwe.tolist(), strict=True)
    table["verdict"] = pd.Series([verdict(*pair) for pair in both], dtype=object)
    problems = zip(image.test.problems, used.test.problems, strict=True)
    left_out = (image.model.design.note, used.model.design.note, note)
    small = caveat_of_size(np.repeat([0, 1], [image.n_negative, image.n_positive]), OF_P)
    caveats = [small if tested else None for tested in np.isfinite(image.test.p)]
    notes = pd.Series(
        [joined(*pair, *left_out, caveat) for pair, caveat in zip(problems, caveats, strict=True)], dtype=object
    )
    return table.assign(
        n_positive=image.n_positive,
        n_negative=image.n_negative,
        covariates=", ".join(used.model.covariates) or None,
        note=notes,
    )


def verdict(p_images: float, p_map: float) -> str:
    """What both family-wise p values say of a region.

    >>> verdict(0.01, 0.01), verdict(0.01, 0.2), verdict(0.2, 0.01), verdict(0.05, 0.2), verdict(0.01, float("nan"))
    ('differs and is used', 'differs, not used', 'used, does not differ', 'neither', 'not tested')
    """
    if not np.isfinite([p_images, p_map]).all():
        return UNKNOWN
    return {(True, True): BOTH, (True, False): DIFFERS_ONLY, (False, True): USED_ONLY, (False, False): NEITHER}[
        p_images < CLEAR, p_map < CLEAR
    ]


def _agreement(inputs: StatisticsInputs, rows: Indices, images: Floats, name: str) -> dict[str, Any]:
    """A row of ``image_agreement``, over the people and regions that both tests have."""
    densities = inputs.values.densities[:, inputs.values.maps.index(name)]
    row: dict[str, Any] = dict.fromkeys(IMAGE_AGREEMENT_TABLE.meanings, np.nan)
    row |= {"interval": NO_INTERVAL, "n_permutations": 0}
    for _ in range(2):  # folds with one participant leave rows out
        model, first = class_model(inputs, rows, True)
        common = model.design.rows
        if len(common) == len(rows):
            break
        rows = rows[common]
    # Images are taken within folds as well: else the folds' means, which no exchange moves, go with the differences of
    # classes where these vary unequally, in both alike, and p is 5 % in 12 % of cohorts without any difference.
    there = np.isfinite(images[rows]).all(axis=0) & np.isfinite(densities[rows]).all(axis=0)
    people = [Adjusted.of(values[rows][:, there], model) for values in (images, densities)]
    n = len(people[0].values)
    row |= {"n_regions": int(there.sum()), "n_participants": n, "note": None}
    if len(common) != len(rows) or there.sum() < FEWEST_REGIONS:
        return row | {"note": f"fewer than {FEWEST_REGIONS} regions that can be compared"}
    settings, seed = inputs.config.statistics, (inputs.seed, "statistics", "image_agreement", name)
    alike, rng = people[1].model.alike.tolist(), generator(*seed, "p")
    permutations = people[1].exchange.permutations(settings.permutations, rng, alike)
    observed = Permutations(np.arange(n, dtype=np.int32)[None], False)
    r = float(rank_correlation(*(source.sizes(observed) for source in people))[0])
    if not np.isfinite(r):
        return row | {"note": "all regions of the images or of the map differ alike, so that they have no order"}
    parts = np.array_split(permutations.rows, max(len(permutations) // 200, 1))
    sizes = ([source.sizes(Permutations(part, False)) for source in people] for part in parts)
    chance = np.concatenate([rank_correlation(*of_both) for of_both in sizes])
    beyond = np.count_nonzero(chance >= r * (1 - TIE_TOLERANCE))
    classes = people[0].exchange.groups_of_units(first.tolist())
    folds = fold_of_units(inputs.frame.iloc[rows], people[0].exchange, model.held)
    strata = pd.factorize(pd.MultiIndex.from_arrays([folds, classes]))[0].tolist()
    m = min(settings.bootstrap_samples, MOST_DRAWS)
    bounds = bootstrap_intervals(
        lambda weights: rank_correlation(*(source.drawn_sizes(weights) for source in people)),
        strata,
        Resampling(m, generator(*seed, "interval"), settings.confidence),
    )
    return row | {
        "r": r,
        **bounds.row(),
        "by_chance": float(np.nanmean(chance)),
        "p": float(p_value(np.array(beyond), len(permutations), permutations.exact)),
        "n_permutations": len(permutations),
    }
