"""What Böhle et al. (2019) say of LRP and guided backpropagation, asked of finished runs of patients.

    python benchmarks/patients_relevance.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --page PAGE

Runs are those of `benchmarks/patients.py` with the start value, batch norms and values of β of the source, and with one
scan a person; they are only read, but for guided backpropagation of the predicted class, which `heatlas explain` adds
where it is missing. Each fold has its own network: where people of several folds are compared, totals are divided by
their mean in the fold. Intervals: people drawn with replacement within the classes, the same in all seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from patients import call
from scipy.stats import rankdata, spearmanr
from sections import HEADING, arguments_of, line, listed, show, table

from heatlas.pipeline.evaluation.scores.localisation import entropy, gini
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout

Floats = NDArray[np.float64]
BETAS = {0.0: "lrpB000", 0.25: "lrpB025", 0.5: "lrpB050", 0.75: "lrpB075", 1.0: "lrpB100"}
LRP, GUIDED, PREDICTED = "lrpB000", "gb", "gb of the predicted class"
GUIDED_MAPS = (("guided backpropagation of AD", GUIDED), ("guided backpropagation of the predicted class", PREDICTED))
METRICS = ("sum", "density", "gain")
FIRST = ("Transverse temporal gyrus", "Hippocampus", "Planum temporale", "Amygdala")
"""Largest gains of the source, in its order."""
HIGHER_IN_CONTROLS = ("Cerebral white matter", "Cerebellum")
TOP, DRAWS = 10, 1000
TITLE = "Relevance of patients and controls"


@dataclass(frozen=True, eq=False)
class One:
    """A seed: sums of each map, (people, regions), and what is known of people and regions."""

    name: str
    sums: dict[str, Floats]
    size: Floats  # voxels of the regions
    regions: tuple[str, ...]
    positive: NDArray[np.bool_]
    outcome: NDArray[np.str_]  # TP, FP, TN or FN
    fold: NDArray[np.int64]
    sparse: Floats  # Gini index and entropy of the positive values in the brain, (people, betas, 2)
    tested: dict[str, tuple[int, int]]
    """By map, regions with family-wise p of at most .05 in the run's table, more and less in patients."""

    def drawn(self, rows: NDArray[np.int64]) -> One:
        """The same with these people."""
        sums = {name: own[rows] for name, own in self.sums.items()}
        return replace(
            self, sums=sums, positive=self.positive[rows], outcome=self.outcome[rows], fold=self.fold[rows],
            sparse=self.sparse[rows],
        )  # fmt: skip

    def total(self, name: str) -> Floats:
        """Sum over all regions of each person, as share of its mean in the fold."""
        own = pd.Series(self.sums[name].sum(axis=1))
        return np.asarray(own / own.groupby(self.fold).transform("mean"))

    def gain(self, name: str) -> Floats:
        """Sums over their mean over the controls of the fold, (people, regions)."""
        own = self.sums[name]
        means = {one: own[(self.fold == one) & ~self.positive].mean(axis=0) for one in np.unique(self.fold)}
        return own / np.stack([means[one] for one in self.fold])


def order(one: One, name: str, metric: str) -> NDArray[np.int64]:
    """Regions, largest first, ranked as in the source: mean over patients of sum or density, over TP of gain."""
    if metric == "gain":
        means = one.gain(name)[one.outcome == "TP"].mean(axis=0)
    else:
        means = one.sums[name][one.positive].mean(axis=0) / (one.size if metric == "density" else 1)
    return np.argsort(-means, kind="stable")


def shared(one: One, metric: str, wanted: Callable[[float], bool] = lambda gap: True) -> float:
    """Mean share, in per cent, of the first ten regions over pairs of β whose distance is wanted."""
    first = {beta: set(order(one, name, metric)[:TOP]) for beta, name in BETAS.items()}
    pairs = [len(first[a] & first[b]) / TOP for a, b in combinations(first, 2) if wanted(round(b - a, 2))]
    return 100 * float(np.mean(pairs))


def near_less_far(one: One, metric: str) -> float:
    """Overlap of neighbouring values of β less that of values .75 and more apart."""
    return shared(one, metric, lambda gap: gap == 0.25) - shared(one, metric, lambda gap: gap >= 0.75)


def separation(one: One, name: str) -> float:
    """Probability that a patient's total is above a control's of the same fold."""
    won = pairs = 0.0
    for fold in np.unique(one.fold):
        own = one.fold == fold
        ranks, there = rankdata(one.sums[name][own].sum(axis=1)), one.positive[own]
        n = int(there.sum())
        won += ranks[there].sum() - n * (n + 1) / 2
        pairs += n * int((~there).sum())
    return won / pairs


def higher(one: One, name: str) -> float:
    """Regions whose mean is higher in patients."""
    own = one.sums[name]
    return float((own[one.positive].mean(axis=0) > own[~one.positive].mean(axis=0)).sum())


def mean_of(one: One, name: str, *outcomes: str) -> float:
    return float(one.total(name)[np.isin(one.outcome, outcomes)].mean())


def false_less_true(one: One) -> float:
    return mean_of(one, LRP, "FP") - mean_of(one, LRP, "TP")


def alike(one: One) -> float:
    """Rank correlation over regions of the mean density of false and of true positives."""
    means = [one.sums[LRP][one.outcome == outcome].mean(axis=0) / one.size for outcome in ("FP", "TP")]
    return float(spearmanr(*means).statistic)


def wrong_less_right(one: One, name: str) -> float:
    """The lower of the means of false positives and negatives less the higher of true ones."""
    return min(mean_of(one, name, kind) for kind in ("FP", "FN")) - max(mean_of(one, name, k) for k in ("TP", "TN"))


def with_size(one: One, name: str) -> float:
    return float(spearmanr(one.sums[name][one.positive].mean(axis=0), one.size).statistic)


def among_first(one: One) -> float:
    """How many of the four of the source are among the first ten by gain."""
    return float(sum(one.regions[place] in FIRST for place in order(one, LRP, "gain")[:TOP]))


def sparser(one: One, measure: int) -> float:
    """Gini index (0) or entropy (1) at the largest β less that at the smallest, mean over people."""
    return float((one.sparse[:, -1, measure] - one.sparse[:, 0, measure]).mean())


def spreads(one: One) -> Floats:
    """By region, standard deviation over patients as share of that over controls, both within folds."""
    shares = []
    for label in (True, False):
        own = one.positive == label
        frame = pd.DataFrame(one.sums[LRP][own])
        left = frame - frame.groupby(one.fold[own]).transform("mean")
        shares.append(np.sqrt((left**2).sum() / (own.sum() - len(np.unique(one.fold[own])))))
    return np.asarray(shares[0] / shares[1])


def spread(one: One) -> float:
    return float(np.median(spreads(one)))


def row(what: str, statistic: Callable[[One], float], runs: Sequence[One], digits: int = 2) -> str:
    """A row: each seed, the mean and its interval."""
    found = [statistic(one) for one in runs]
    rng, means = np.random.default_rng(0), []
    classes = [np.flatnonzero(runs[0].positive == label) for label in (True, False)]
    for _ in range(DRAWS):
        rows = np.concatenate([rng.choice(own, len(own)) for own in classes])
        means.append(np.mean([statistic(one.drawn(rows)) for one in runs]))
    low, high = np.nanquantile(means, [0.025, 0.975])
    form = f".{digits}f"
    return line(what, listed(found, form), f"{float(np.mean(found)):{form}}", f"{low:{form}} to {high:{form}}")


def tables(runs: Sequence[One]) -> str:
    """The section."""
    last, lines = len(runs[0].regions), table(["", "seeds", "mean", "95 %"])

    def add(what: str, of: Callable[[One], float], digits: int = 2) -> None:
        lines.append(row(what, of, runs, digits))

    for beta, name in ((0, LRP), (1, "lrpB100")):
        add(f"L4: regions of {last} with more LRP β = {beta} in patients", lambda one, n=name: higher(one, n), 0)
    for what, name in (("LRP β = 0", LRP), *GUIDED_MAPS):
        add(f"L5: area, {what}, patients against controls", lambda one, n=name: separation(one, n))
    for what, name in GUIDED_MAPS:
        less = partial(lambda one, n: separation(one, LRP) - separation(one, n), n=name)
        add(f"L5: area of LRP less that of {what}", less)
        add(f"L5: regions of {last} with more {what} in patients", lambda one, n=name: higher(one, n), 0)
    add("L6: LRP of false positives less that of true positives", false_less_true)
    add("L6: rank correlation over regions, false and true positives", alike)
    for what, name in GUIDED_MAPS:
        add(
            f"L7: {what}: the lower of FP and FN less the higher of TP and TN",
            lambda one, n=name: wrong_less_right(one, n),
        )
    for what, name in (("LRP β = 0", LRP), *GUIDED_MAPS):
        add(f"L8: rank correlation of sum and size over regions, {what}", lambda one, n=name: with_size(one, n))
    add("L9: of the source's four regions, those among the first ten by gain", among_first, 1)
    add("L10: Gini index at β = 1 less that at β = 0", lambda one: sparser(one, 0), 3)
    add("L10: entropy at β = 1 less that at β = 0, bits", lambda one: sparser(one, 1))
    for more, less_ in (("sum", "density"), ("density", "gain"), ("sum", "gain")):
        gap = partial(lambda one, a, b: shared(one, a) - shared(one, b), a=more, b=less_)
        add(f"L11: overlap of the first ten, {more} less {less_}, per cent", gap, 0)
    for metric in METRICS:
        add(f"L12: overlap of neighbouring less distant β, {metric}", lambda one, m=metric: near_less_far(one, m), 0)
    add("L13: standard deviation of density, patients over controls, median over regions", spread)
    return "\n".join([*lines, "", *details(runs)])


def details(runs: Sequence[One]) -> list[str]:
    """What has no interval: means by outcome, places, overlaps."""
    lines = table(["", *(one.name for one in runs)])

    def add(what: str, of: Callable[[One], str]) -> None:
        lines.append(line(what, *map(of, runs)))

    kinds = ("TP", "FN", "TN", "FP")
    add("people: TP, FN, TN, FP", lambda one: ", ".join(str((one.outcome == kind).sum()) for kind in kinds))
    for what, name in (("LRP β = 0", LRP), ("LRP β = 1", "lrpB100"), ("guided, AD", GUIDED)):
        add(f"regions with family-wise p ≤ .05, more and less in patients, {what}",
            lambda one, n=name: ", ".join(map(str, one.tested[n])))  # fmt: skip
    for what, name in (("LRP β = 0", LRP), *GUIDED_MAPS):
        add(f"mean total (1: mean of the fold), {what}: TP, FN, TN, FP",
            lambda one, n=name: ", ".join(f"{mean_of(one, n, kind):.2f}" for kind in kinds))  # fmt: skip
    for name in HIGHER_IN_CONTROLS:
        add(f"guided, predicted class: {name.lower()}, patients over controls", lambda one, n=name: _ratio(one, n))
    add("places by gain: " + ", ".join(FIRST).lower(), _places)
    add("first four by gain", lambda one: ", ".join(one.regions[k] for k in order(one, LRP, "gain")[:4]))
    for metric in METRICS:
        add(f"overlap of the first ten over all pairs of β, neighbours, and .75 and more apart, {metric}, per cent",
            lambda one, m=metric: _overlaps(one, m))  # fmt: skip
    add("Gini index by β", lambda one: ", ".join(f"{v:.3f}" for v in one.sparse[:, :, 0].mean(axis=0)))
    add("entropy by β, bits", lambda one: ", ".join(f"{v:.2f}" for v in one.sparse[:, :, 1].mean(axis=0)))
    add("regions with a larger standard deviation in patients", lambda one: f"{(spreads(one) > 1).sum()}")
    return lines


def _ratio(one: One, region: str) -> str:
    own = one.sums[PREDICTED][:, one.regions.index(region)]
    return f"{own[one.positive].mean() / own[~one.positive].mean():.2f}"


def _overlaps(one: One, metric: str) -> str:
    ways = (lambda gap: True, lambda gap: gap == 0.25, lambda gap: gap >= 0.75)
    return ", ".join(f"{shared(one, metric, wanted):.0f}" for wanted in ways)


def _places(one: One) -> str:
    names = [one.regions[k] for k in order(one, LRP, "gain")]
    return ", ".join(str(names.index(name) + 1) for name in FIRST)


def read(run: Path) -> One:
    """A seed from its folder."""
    layout = RunLayout(run.resolve())
    frames = [pd.read_csv(run / "group" / "relevance.tsv", sep="\t")]
    frames.append(predicted(run).assign(map=PREDICTED))
    every = pd.concat(frames)
    every = every[every["region"] > 0]
    people = pd.read_csv(run / "group" / "predictions.tsv", sep="\t").sort_values("scan_id")
    tables = {
        name: own.pivot_table(index="scan_id", columns="group", values="sum", aggfunc="sum").loc[people["scan_id"]]
        for name, own in every.groupby("map")
    }
    names = tuple(tables[LRP].columns)
    own = every[(every["map"] == LRP) & (every["scan_id"] == people["scan_id"].iloc[0])]
    size = own.groupby("group")["n_voxels"].sum().loc[list(names)]
    keep = (size > 0).to_numpy()
    positive = (people["target"] == 1).to_numpy()
    called = (people["probability"] > 0.5).to_numpy()
    outcome = np.where(called, np.where(positive, "TP", "FP"), np.where(positive, "FN", "TN"))
    return One(
        run.name.replace("-", " "), {name: table.to_numpy(dtype=float)[:, keep] for name, table in tables.items()},
        size.to_numpy(dtype=float)[keep], tuple(np.array(names)[keep]), positive, outcome,
        people["fold"].to_numpy(), sparseness(layout, people), tested(run),
    )  # fmt: skip


def tested(run: Path) -> dict[str, tuple[int, int]]:
    """Regions that the run's test of the density of AD and CN calls different, by map and direction."""
    rows = pd.read_csv(run / "group" / "statistics" / "group_comparisons.tsv", sep="\t")
    rows = rows[(rows["comparison"] == "AD/CN") & (rows["metric"] == "density") & (rows["p_fwe"] <= 0.05)]
    found = {name: rows.loc[rows["map"] == name, "difference"] for name in (*BETAS.values(), GUIDED)}
    return {name: (int((own > 0).sum()), int((own < 0).sum())) for name, own in found.items()}


def sparseness(layout: RunLayout, people: pd.DataFrame) -> Floats:
    """Gini index and entropy of the maps of each β, (people, betas, 2), over the voxels of the brain."""
    config = read_run_config(layout)
    values = np.empty((len(people), len(BETAS), 2))
    for place, participant in enumerate(people["participant_id"]):
        files = layout.scan(participant, None, config.registration.resolution_mm)
        brain = voxels(files.brain_mask) > 0
        for number, name in enumerate(BETAS.values()):
            own = voxels(files.relevance_map(name))[brain]
            values[place, number] = gini(own), entropy(own)
    return values


def voxels(path: Path) -> Floats:
    return np.asarray(nib.load(path).dataobj, dtype=float)


def predicted(run: Path) -> pd.DataFrame:
    """Sums of guided backpropagation of the class that the network finds, as the code of the source makes it."""
    table = run / "explanations" / "desc-guidedBackpropagationTargetPredicted_regions.tsv"
    if not table.is_file():
        call("explain", str(run), "--method", "guided-backpropagation", "--target", "predicted", "--n-procs", "1")
    return pd.read_csv(table, sep="\t")


def main() -> int:
    options = arguments_of(__doc__, "runs", "--page")
    show(tables([read(run) for run in options.runs]), options.page, TITLE, HEADING, words=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
