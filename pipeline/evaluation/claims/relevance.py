"""Statistics of relevance by region that Böhle et al. (2019) report.

Each is asked of a seed with weights of people (`rule.Statistic`). Each fold has its own network: totals are divided by
their mean in the fold, and gain is over the controls of the fold. What cannot be asked of people or maps raises
`NotAskedError`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from heatlas.pipeline.evaluation.claims.rule import Floats, Ints, Statistic, area_of, mean_of

Flags = NDArray[np.bool_]
BETAS = {0.0: "lrpB000", 0.25: "lrpB025", 0.5: "lrpB050", 0.75: "lrpB075", 1.0: "lrpB100"}
LRP, LAST, GUIDED, PREDICTED = "lrpB000", "lrpB100", "gb", "gb of the predicted class"
MAPS = {"LRP": LRP, "LRP β = 1": LAST, "guided, AD": GUIDED, "guided": PREDICTED}
"""By the name that claims use; `guided`: of the predicted class, as in the code of the source."""
FIRST = ("Transverse temporal gyrus", "Hippocampus", "Planum temporale", "Amygdala")
"""Largest gains of the source, in its order."""
KNOWN = ("Hippocampus", "Amygdala", "Parahippocampal gyrus", "Entorhinal area")
"""Regions that the source calls known of Alzheimer's disease."""
INTENSITY, VOLUME = "intensity of the hippocampus", "volume of the hippocampus"
HIGHER_IN_CONTROLS = ("Cerebral white matter", "Cerebellum")
TOP = 10
FEWEST = 5
"""People of an outcome, at least, who are compared with others."""
SPARSITY = ("Gini index", "entropy")
WAYS: Mapping[str, Callable[[float], bool]] = {
    "": lambda gap: True,
    ", near": lambda gap: gap == 0.25,
    ", far": lambda gap: gap >= 0.75,
}
"""Distances of β: all, neighbours, and .75 and more apart."""
REMEDIES = {PREDICTED: "heatlas explain RUN --method guided-backpropagation --target predicted makes its maps"}
"""Of maps that a run does not make."""


class NotAskedError(Exception):
    """Why something cannot be asked of people or maps."""


@dataclass(frozen=True, eq=False)
class Relevance:
    """Sums by region of each map, and what is known of people and regions.

    `maps`: by name, (seeds, people, regions). `voxels`: of each region, in the order of the sums. `fold_of`: (people,
    seeds). `measure`: another measure of people by its name, (people, seeds), NaN where it is not known.
    """

    maps: Mapping[str, Floats]
    voxels: Mapping[str, int]
    classes: Ints
    fold_of: Ints
    measure: Callable[[str], Floats]

    def __post_init__(self) -> None:
        for name, sums in self.maps.items():
            if not np.isfinite(sums).all():
                raise ValueError(f"{name}: a sum of a person, seed and region is not known; leave the person out")

    @cached_property
    def size(self) -> Floats:
        return np.array(list(self.voxels.values()), float)

    @cached_property
    def regions(self) -> tuple[str, ...]:
        return tuple(self.voxels)

    @cached_property
    def positive(self) -> Flags:
        return np.asarray(self.classes == 1)

    @cached_property
    def outcomes(self) -> dict[str, Flags]:
        """TP, FN, TN and FP, each (people, seeds)."""
        called, ill = self.measure("probability") > 0.5, self.positive[:, None]
        return {"TP": called & ill, "FN": ~called & ill, "TN": ~called & ~ill, "FP": called & ~ill}

    def sums(self, name: str, seed: int) -> Floats:
        """Of a map, (people, regions)."""
        if name not in self.maps:
            raise NotAskedError(REMEDIES.get(name, f"no map {name}: see methods and betas of [attribution]"))
        return np.asarray(self.maps[name][seed])

    def who(self, seed: int, *outcomes: str) -> Flags:
        found = np.any([self.outcomes[one][:, seed] for one in outcomes], axis=0)
        if found.sum() < FEWEST:
            raise NotAskedError(f"{found.sum()} people are {' or '.join(outcomes)}, and {FEWEST} are needed")
        return np.asarray(found)

    def place_of(self, region: str) -> int:
        if region not in self.voxels:
            raise NotAskedError(f"the atlas has no region {region}")
        return self.regions.index(region)

    def folds(self, seed: int, weights: Floats) -> Iterator[tuple[Flags, Floats]]:
        """Who is in each fold of a seed, and the weights of all others set to 0."""
        of_seed = self.fold_of[:, seed]
        for fold in np.unique(of_seed):
            yield of_seed == fold, weights * (of_seed == fold)

    def total(self, name: str, *outcomes: str) -> Statistic:
        """Mean total of those with an outcome, as share of the mean of their folds."""

        def statistic(seed: int, weights: Floats) -> Floats:
            own = self.sums(name, seed).sum(axis=1)
            asked = self.who(seed, *outcomes)
            found = np.zeros(len(weights))
            for _, inside in self.folds(seed, weights):
                found += ratio((inside * asked) @ own * inside.sum(axis=1), inside @ own)
            return ratio(found, (weights * asked).sum(axis=1), np.nan)

        return statistic

    def score(self, name: str, metric: str, seed: int, weights: Floats) -> Floats:
        """Of regions, (rows, regions): mean over patients of sum or density, over true positives of gain."""
        own = self.sums(name, seed)
        if metric != "gain":
            return (weights * self.positive) @ own / (self.size if metric == "density" else 1)
        gains = [
            ratio((inside * self.who(seed, "TP")) @ own * (inside * ~self.positive).sum(axis=1)[:, None],
                  (inside * ~self.positive) @ own)
            for _, inside in self.folds(seed, weights)
        ]  # fmt: skip
        return np.asarray(np.sum(gains, axis=0))

    def first(self, name: str, metric: str, seed: int, weights: Floats) -> Flags:
        """The ten regions that are largest, (rows, regions)."""
        score = self.score(name, metric, seed, weights)
        return np.asarray(rankdata(-score, axis=1, method="ordinal") <= TOP)

    def shared(self, metric: str, wanted: Callable[[float], bool]) -> Statistic:
        """Mean share of the first ten regions that two values of β have in common, of pairs that are wanted."""

        def statistic(seed: int, weights: Floats) -> Floats:
            first = {beta: self.first(name, metric, seed, weights) for beta, name in BETAS.items()}
            pairs = [(a, b) for a, b in combinations(first, 2) if wanted(round(b - a, 2))]
            return np.asarray(np.mean([(first[a] & first[b]).sum(axis=1) / TOP for a, b in pairs], axis=0))

        return statistic

    def place(self, region: str) -> Statistic:
        """Place of a region by gain, from 1."""

        def statistic(seed: int, weights: Floats) -> Floats:
            score = self.score(LRP, "gain", seed, weights)
            return np.asarray(1.0 + (score > score[:, [self.place_of(region)]]).sum(axis=1))

        return statistic

    def among(self, names: Sequence[str], metric: str) -> Statistic:
        """How many of these regions are among the first ten."""

        def statistic(seed: int, weights: Floats) -> Floats:
            there = [self.place_of(name) for name in names]
            return np.asarray(self.first(LRP, metric, seed, weights)[:, there].sum(axis=1).astype(float))

        return statistic

    def area(self, name: str) -> Statistic:
        """Area under the curve of totals."""

        def statistic(seed: int, weights: Floats) -> Floats:
            totals = np.stack([self.sums(name, one).sum(axis=1) for one in range(self.fold_of.shape[1])], axis=1)
            return area_of(totals, self.positive, self.fold_of)(seed, weights)

        return statistic

    def mean_of(self, measure: str) -> Statistic:
        return lambda seed, weights: mean_of(self.measure(measure))(seed, weights)

    def right(self, seed: int, weights: Floats) -> Floats:
        """Balanced accuracy."""
        right = np.any([self.outcomes[kind][:, seed] for kind in ("TP", "TN")], axis=0).astype(float)[:, None]
        return np.asarray(
            np.mean([self.mean(right, who, weights)[:, 0] for who in (self.positive, ~self.positive)], axis=0)
        )

    def higher(self, name: str, share: bool = False) -> Statistic:
        """Share of the regions that have more in patients; `share`: more of the person's total."""

        def statistic(seed: int, weights: Floats) -> Floats:
            own = self.sums(name, seed)
            own = own / own.sum(axis=1, keepdims=True) if share else own
            return np.asarray(
                (self.mean(own, self.positive, weights) > self.mean(own, ~self.positive, weights)).mean(axis=1)
            )

        return statistic

    def over_controls(self, name: str, region: str) -> Statistic:
        """Mean of a region in patients over that in controls."""

        def statistic(seed: int, weights: Floats) -> Floats:
            own = self.sums(name, seed)[:, [self.place_of(region)]]
            return (self.mean(own, self.positive, weights) / self.mean(own, ~self.positive, weights))[:, 0]

        return statistic

    @staticmethod
    def mean(values: Floats, who: Flags, weights: Floats) -> Floats:
        return ratio((weights * who) @ values, (weights * who).sum(axis=1)[:, None])

    def alike(self, seed: int, weights: Floats) -> Floats:
        """Rank correlation over regions of the mean density of false and of true positives."""
        own = self.sums(LRP, seed) / self.size
        return correlations(*(self.mean(own, self.who(seed, kind), weights) for kind in ("FP", "TP")))

    def with_size(self, name: str) -> Statistic:
        """Rank correlation over regions of the mean sum of patients and the size."""

        def statistic(seed: int, weights: Floats) -> Floats:
            return correlations(self.mean(self.sums(name, seed), self.positive, weights), self.size[None])

        return statistic

    def wrong_less_right(self, name: str) -> Statistic:
        """The lower of the means of false positives and negatives less the higher of true ones."""

        def statistic(seed: int, weights: Floats) -> Floats:
            of = {kind: self.total(name, kind)(seed, weights) for kind in self.outcomes}
            return np.asarray(np.minimum(of["FP"], of["FN"]) - np.maximum(of["TP"], of["TN"]))

        return statistic

    def beside(self, name: str, tissue: str) -> Statistic:
        """Of true positives, the correlation of the hippocampus's sum, as share of the fold's mean, with its tissue."""

        def statistic(seed: int, weights: Floats) -> Floats:
            values, own = self.measure(tissue), self.sums(name, seed)[:, self.place_of("Hippocampus")]
            there = self.who(seed, "TP") & np.isfinite(values[:, seed])
            shares, known = np.zeros(weights.shape), np.where(there, values[:, seed], 0)
            for _, inside in self.folds(seed, weights * there):
                shares += ratio((inside > 0) * own * inside.sum(axis=1)[:, None], (inside @ own)[:, None])
            weights = weights * there
            total = weights.sum(axis=1)[:, None]
            first, second = (one - (weights * one).sum(axis=1)[:, None] / total for one in (shares, known[None]))
            sums = [(weights * one).sum(axis=1) for one in (first * second, first**2, second**2)]
            with np.errstate(invalid="ignore"):
                return np.asarray(sums[0] / np.sqrt(sums[1] * sums[2]))

        return statistic

    def spread(self, seed: int, weights: Floats) -> Floats:
        """Standard deviation over patients as share of that over controls, within folds; the median over regions."""
        own, each = self.sums(LRP, seed), []
        for who in (self.positive, ~self.positive):
            squares, people = np.zeros((len(weights), len(self.regions))), np.zeros((len(weights), 1))
            for _, inside in self.folds(seed, weights * who):
                n = inside.sum(axis=1)[:, None]
                squares, people = squares + inside @ own**2 - ratio((inside @ own) ** 2, n), people + n - (n > 0)
            each.append(np.sqrt(np.maximum(squares, 0) / people))
        with np.errstate(divide="ignore", invalid="ignore"):  # controls that are alike
            return np.asarray(np.median(each[0] / each[1], axis=1))


def ratio(above: Floats, below: Floats, of_nobody: float = 0.0) -> Floats:
    """A quotient that is `of_nobody` where the divisor is 0: nobody was drawn."""
    out = np.full(np.broadcast_shapes(above.shape, below.shape), of_nobody)
    return np.asarray(np.divide(above, below, out=out, where=below != 0))


def correlations(first: Floats, second: Floats) -> Floats:
    """Rank correlation of each row."""
    ranks = [rankdata(one, axis=1) for one in (first, second)]
    a, b = (one - one.mean(axis=1, keepdims=True) for one in ranks)
    with np.errstate(invalid="ignore"):  # all alike
        return np.asarray((a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1)))


def statistics(own: Relevance) -> dict[str, Statistic]:
    """By the names that claims use."""
    found: dict[str, Statistic] = {"balanced accuracy": own.right, "false like true positives": own.alike}
    found["among the first ten by gain"] = own.among(FIRST, "gain")
    found["known, among the first ten by density"] = own.among(KNOWN, "density")
    found["spread, patients over controls"] = own.spread
    for name, of in MAPS.items():
        found[f"area, {name}"] = own.area(of)
        found[f"regions, {name}"] = own.higher(of)
        found[f"regions by share, {name}"] = own.higher(of, share=True)
        found[f"misclassified above others, {name}"] = own.wrong_less_right(of)
        found[f"with size, {name}"] = own.with_size(of)
        found |= {f"total of {kind}, {name}": own.total(of, kind) for kind in ("TP", "FN", "TN", "FP")}
        found |= {f"total of controls, {name}": own.total(of, "TN", "FP")}
        found |= {f"{region}, {name}": own.over_controls(of, region) for region in HIGHER_IN_CONTROLS}
    for tissue in (INTENSITY, VOLUME):
        found |= {f"{tissue}, LRP β = {beta:g}": own.beside(of, tissue) for beta, of in BETAS.items()}
        found[f"{tissue}, guided"] = own.beside(PREDICTED, tissue)
    for metric in ("sum", "density", "gain"):
        found |= {f"overlap by {metric}{way}": own.shared(metric, wanted) for way, wanted in WAYS.items()}
    found |= {f"place of {region.lower()}": own.place(region) for region in FIRST}
    found |= {f"{name} at {beta:g}": own.mean_of(f"{name} at {beta:g}") for name in SPARSITY for beta in BETAS}
    return found


KNOWN_STATISTICS = frozenset(
    statistics(Relevance({}, {}, np.zeros(0, int), np.zeros((0, 1), int), lambda name: np.zeros((0, 1))))
)
