"""What Böhle et al. (2019) say of LRP and guided backpropagation, asked of finished runs of patients.

    python benchmarks/patients_relevance.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --page PAGE
    python benchmarks/patients_relevance.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --input INPUT --volumes VOLUMES

Runs are those of `benchmarks/patients.py` with the start value, batch norms and values of β of the source, and with one
scan a person; they are only read, but for guided backpropagation of the predicted class, which `heatlas explain` adds
where it is missing. Each fold has its own network: totals are divided by their mean in the fold. With VOLUMES, a
deformable registration of the patients of INPUT (made if it is not there), relevance of the hippocampus of true
positives is compared with its volume and intensity.
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
from harness import CLAIMS, arguments_of, line, listed, over_classes, show, table
from numpy.typing import NDArray
from patients import call
from scipy.stats import rankdata, spearmanr

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
WAYS = (lambda gap: True, lambda gap: gap == 0.25, lambda gap: gap >= 0.75)
"""Distances of β: all, neighbours, and .75 and more apart."""
NAMES = {"mmse": "MMSE", "nwbv": "nWBV"}


@dataclass(frozen=True, eq=False)
class Seed:
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

    def drawn(self, rows: NDArray[np.int64]) -> Seed:
        """The same with these people."""
        sums = {name: own[rows] for name, own in self.sums.items()}
        own = {name: getattr(self, name)[rows] for name in ("positive", "outcome", "fold", "sparse")}
        return replace(self, sums=sums, **own)

    def total(self, name: str) -> Floats:
        """Sum over all regions of each person, as share of its mean in the fold."""
        own = pd.Series(self.sums[name].sum(axis=1))
        return np.asarray(own / own.groupby(self.fold).transform("mean"))

    def gain(self, name: str) -> Floats:
        """Sums over their mean over the controls of the fold, (people, regions)."""
        own = self.sums[name]
        means = {fold: own[(self.fold == fold) & ~self.positive].mean(axis=0) for fold in np.unique(self.fold)}
        return own / np.stack([means[fold] for fold in self.fold])


def order(seed: Seed, name: str, metric: str) -> NDArray[np.int64]:
    """Regions, largest first, ranked as in the source: mean over patients of sum or density, over TP of gain."""
    if metric == "gain":
        means = seed.gain(name)[seed.outcome == "TP"].mean(axis=0)
    else:
        means = seed.sums[name][seed.positive].mean(axis=0) / (seed.size if metric == "density" else 1)
    return np.argsort(-means, kind="stable")


def shared(seed: Seed, metric: str, wanted: Callable[[float], bool] = lambda gap: True) -> float:
    """Mean share, in per cent, of the first ten regions over pairs of β whose distance is wanted."""
    first = {beta: set(order(seed, name, metric)[:TOP]) for beta, name in BETAS.items()}
    pairs = [len(first[a] & first[b]) / TOP for a, b in combinations(first, 2) if wanted(round(b - a, 2))]
    return 100 * float(np.mean(pairs))


def separation(seed: Seed, name: str) -> float:
    """Probability that a patient's total is above a control's of the same fold."""
    won = pairs = 0.0
    for fold in np.unique(seed.fold):
        own = seed.fold == fold
        ranks, there = rankdata(seed.sums[name][own].sum(axis=1)), seed.positive[own]
        n = int(there.sum())
        won += ranks[there].sum() - n * (n + 1) / 2
        pairs += n * int((~there).sum())
    return won / pairs


def higher(seed: Seed, name: str) -> float:
    own = seed.sums[name]
    return float((own[seed.positive].mean(axis=0) > own[~seed.positive].mean(axis=0)).sum())


def mean_of(seed: Seed, name: str, *outcomes: str) -> float:
    return float(seed.total(name)[np.isin(seed.outcome, outcomes)].mean())


def alike(seed: Seed) -> float:
    """Rank correlation over regions of the mean density of false and of true positives."""
    means = [seed.sums[LRP][seed.outcome == outcome].mean(axis=0) / seed.size for outcome in ("FP", "TP")]
    return float(spearmanr(*means).statistic)


def wrong_less_right(seed: Seed, name: str) -> float:
    """The lower of the means of false positives and negatives less the higher of true ones."""
    return min(mean_of(seed, name, kind) for kind in ("FP", "FN")) - max(mean_of(seed, name, k) for k in ("TP", "TN"))


def sparser(seed: Seed, measure: int) -> float:
    """Gini index (0) or entropy (1) at the largest β less that at the smallest, mean over people."""
    return float((seed.sparse[:, -1, measure] - seed.sparse[:, 0, measure]).mean())


def spreads(seed: Seed) -> Floats:
    """By region, standard deviation over patients as share of that over controls, both within folds."""
    shares = []
    for label in (True, False):
        own = seed.positive == label
        frame = pd.DataFrame(seed.sums[LRP][own])
        left = frame - frame.groupby(seed.fold[own]).transform("mean")
        shares.append(np.sqrt((left**2).sum() / (own.sum() - len(np.unique(seed.fold[own])))))
    return np.asarray(shares[0] / shares[1])


def row(what: str, statistic: Callable[[Seed], float], runs: Sequence[Seed], digits: int = 2) -> str:
    found = [statistic(seed) for seed in runs]
    classes = [np.flatnonzero(runs[0].positive == label) for label in (True, False)]
    low, high = over_classes(classes, lambda rows: np.mean([statistic(seed.drawn(rows)) for seed in runs]))
    form = f".{digits}f"
    return line(what, listed(found, form), f"{float(np.mean(found)):{form}}", f"{low:{form}} to {high:{form}}")


def tables(runs: Sequence[Seed]) -> str:
    last, lines = len(runs[0].regions), table(["", "seeds", "mean", "95 %"])

    def add(what: str, of: Callable[[Seed], float], digits: int = 2) -> None:
        lines.append(row(what, of, runs, digits))

    for beta, name in ((0, LRP), (1, "lrpB100")):
        add(f"L4: regions of {last} with more LRP β = {beta} in patients", lambda seed, n=name: higher(seed, n), 0)
    for what, name in (("LRP β = 0", LRP), *GUIDED_MAPS):
        add(f"L5: area, {what}, patients against controls", lambda seed, n=name: separation(seed, n))
    for what, name in GUIDED_MAPS:
        less = partial(lambda seed, n: separation(seed, LRP) - separation(seed, n), n=name)
        add(f"L5: area of LRP less that of {what}", less)
        add(f"L5: regions of {last} with more {what} in patients", lambda seed, n=name: higher(seed, n), 0)
    add(
        "L6: LRP of false positives less that of true positives",
        lambda seed: mean_of(seed, LRP, "FP") - mean_of(seed, LRP, "TP"),
    )
    add("L6: rank correlation over regions, false and true positives", alike)
    for what, name in GUIDED_MAPS:
        add(
            f"L7: {what}: the lower of FP and FN less the higher of TP and TN",
            lambda seed, n=name: wrong_less_right(seed, n),
        )
    for what, name in (("LRP β = 0", LRP), *GUIDED_MAPS):
        means = lambda seed, n=name: seed.sums[n][seed.positive].mean(axis=0)  # noqa: E731
        title = f"L8: rank correlation of sum and size over regions, {what}"
        add(title, lambda seed, of=means: float(spearmanr(of(seed), seed.size).statistic))
    places = lambda seed: order(seed, LRP, "gain")[:TOP]  # noqa: E731
    among = lambda seed: float(sum(seed.regions[place] in FIRST for place in places(seed)))  # noqa: E731
    add("L9: of the source's four regions, those among the first ten by gain", among, 1)
    add("L10: Gini index at β = 1 less that at β = 0", lambda seed: sparser(seed, 0), 3)
    add("L10: entropy at β = 1 less that at β = 0, bits", lambda seed: sparser(seed, 1))
    for more, less_ in (("sum", "density"), ("density", "gain"), ("sum", "gain")):
        gap = partial(lambda seed, a, b: shared(seed, a) - shared(seed, b), a=more, b=less_)
        add(f"L11: overlap of the first ten, {more} less {less_}, per cent", gap, 0)
    for metric in METRICS:
        near, far = (partial(shared, metric=metric, wanted=way) for way in (WAYS[1], WAYS[2]))
        less = lambda seed, a=near, b=far: a(seed) - b(seed)  # noqa: E731
        add(f"L12: overlap of neighbouring less distant β, {metric}", less, 0)
    add(
        "L13: standard deviation of density, patients over controls, median over regions",
        lambda seed: float(np.median(spreads(seed))),
    )
    return "\n".join([*lines, "", *details(runs)])


def details(runs: Sequence[Seed]) -> list[str]:
    """What has no interval: means by outcome, places, overlaps."""
    lines = table(["", *(seed.name for seed in runs)])

    def add(what: str, of: Callable[[Seed], str]) -> None:
        lines.append(line(what, *map(of, runs)))

    kinds = ("TP", "FN", "TN", "FP")
    add("people: TP, FN, TN, FP", lambda seed: ", ".join(str((seed.outcome == kind).sum()) for kind in kinds))
    for what, name in (("LRP β = 0", LRP), ("LRP β = 1", "lrpB100"), ("guided, AD", GUIDED)):
        title = f"regions with family-wise p ≤ .05, more and less in patients, {what}"
        add(title, lambda seed, n=name: ", ".join(map(str, seed.tested[n])))
    for what, name in (("LRP β = 0", LRP), *GUIDED_MAPS):
        title = f"mean total (1: mean of the fold), {what}: TP, FN, TN, FP"
        add(title, lambda seed, n=name: listed((mean_of(seed, n, kind) for kind in kinds), ".2f"))
    for name in HIGHER_IN_CONTROLS:
        add(f"guided, predicted class: {name.lower()}, patients over controls", lambda seed, n=name: _ratio(seed, n))
    add("places by gain: " + ", ".join(FIRST).lower(), _places)
    add("first four by gain", lambda seed: ", ".join(seed.regions[k] for k in order(seed, LRP, "gain")[:4]))
    for metric in METRICS:
        title = f"overlap of the first ten over all pairs of β, neighbours, and .75 and more apart, {metric}, per cent"
        add(title, lambda seed, m=metric: _overlaps(seed, m))
    add("Gini index by β", lambda seed: listed(seed.sparse[:, :, 0].mean(axis=0), ".3f"))
    add("entropy by β, bits", lambda seed: listed(seed.sparse[:, :, 1].mean(axis=0), ".2f"))
    add("regions with a larger standard deviation in patients", lambda seed: f"{(spreads(seed) > 1).sum()}")
    return lines


def _ratio(seed: Seed, region: str) -> str:
    own = seed.sums[PREDICTED][:, seed.regions.index(region)]
    return f"{own[seed.positive].mean() / own[~seed.positive].mean():.2f}"


def _overlaps(seed: Seed, metric: str) -> str:
    return listed((shared(seed, metric, wanted) for wanted in WAYS), ".0f")


def _places(seed: Seed) -> str:
    names = [seed.regions[k] for k in order(seed, LRP, "gain")]
    return ", ".join(str(names.index(name) + 1) for name in FIRST)


def read(run: Path) -> Seed:
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
    sums = {name: table.to_numpy(dtype=float)[:, keep] for name, table in tables.items()}
    regions, fold = tuple(np.array(names)[keep]), people["fold"].to_numpy()
    known = (size.to_numpy(dtype=float)[keep], regions, positive, outcome, fold)
    return Seed(run.name.replace("-", " "), sums, *known, sparseness(layout, people), tested(run))


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


def beside_tissue(run: Path, volumes: pd.Series) -> pd.DataFrame:
    """Of each true positive (rows) the sum in the hippocampus by map, as share of the fold's mean, and its tissue."""
    people = pd.read_csv(run / "group" / "predictions.tsv", sep="\t").set_index("scan_id")
    people = people[(people["target"] == 1) & (people["probability"] > 0.5)]
    frames = [pd.read_csv(run / "group" / "relevance.tsv", sep="\t"), predicted(run).assign(map=PREDICTED)]
    own = pd.concat(frames).query("group == 'Hippocampus' and scan_id in @people.index")
    sums = own.pivot_table(index="scan_id", columns="map", values="sum", aggfunc="sum")
    shares = sums / sums.groupby(people["fold"]).transform("mean")
    image = pd.read_csv(run / "group" / "image_regions.tsv", sep="\t").set_index("scan_id")
    intensity = image.loc[image["group"] == "Hippocampus", "intensity"]
    return shares.assign(volume=volumes, intensity=intensity)


def warped(source: Path, run: Path) -> Path:
    """A run with the volumes of the patients, registered by deformation."""
    if not (run / "group" / "volumes.tsv").is_file():
        settings = run.with_suffix(".toml")
        settings.write_text('[registration]\nresolution_mm = 2.0\ntransform = "syn-quick"\n', encoding="utf-8")
        own = ["--config", settings, "--include", "cdr > 0"]
        call("run", source, run, "--preset", "patients", *own, "--stop-after", "registration", "--n-procs", 1)
    return run


def hippocampal(run: Path) -> pd.DataFrame:
    """Volume of both hippocampi without fluid, MMSE and nWBV by scan, of a run with a deformable registration."""
    tables = {
        name: pd.read_csv(run / f"{name}.tsv", sep="\t", na_values="n/a")
        for name in ("group/volumes", "scans", "clinical")
    }
    rows = tables["group/volumes"]
    rows = rows[(rows["group"] == "Hippocampus") & rows["tissue_mm3"].notna()]
    known = [tables[name].set_index("scan_id")[[column]] for name, column in (("scans", "mmse"), ("clinical", "nwbv"))]
    return rows.groupby("scan_id")[["tissue_mm3"]].sum().rename(columns={"tissue_mm3": "volume"}).join(known)


def hippocampus(runs: Sequence[Path], warped: pd.DataFrame) -> str:
    """The section: correlations with volume and intensity by map, and how they change with β."""
    volumes = warped["volume"]
    found = [beside_tissue(run, volumes) for run in runs]
    unknown = sorted({name for own in found for name in own.index[own["volume"].isna()]})
    if unknown:
        sys.exit(f"{len(unknown)} true positives have no hippocampal volume, such as {unknown[0]}")
    names = sorted(set().union(*(own.index for own in found)))
    rng = np.random.default_rng(0)
    drawn = [found, *([] for _ in range(DRAWS))]
    for place in range(DRAWS):
        chosen = rng.choice(names, len(names))
        drawn[place + 1] = [own.loc[[name for name in chosen if name in own.index]] for own in found]
    lines = table([f"r, {', '.join(str(len(own)) for own in found)} people", "seeds", "mean", "95 %"])

    def add(what: str, values: Floats) -> None:
        low, high = np.quantile(values[1:].mean(axis=1), [0.025, 0.975])
        mean = f"{values[0].mean():.2f}"
        lines.append(line(what, listed(values[0], ".2f"), mean, f"{low:.2f} to {high:.2f}"))

    maps = list(found[0].columns.drop(["volume", "intensity"]))
    both = np.array([[own.corr().loc[[*maps, "intensity"], ["volume", "intensity"]] for own in one] for one in drawn])
    for place, tissue in enumerate(("volume", "intensity")):
        means = both[..., place]  # (draws, seeds, maps)
        for beta, name in BETAS.items():
            add(f"L1, L3: LRP β = {beta:g} and {tissue}", means[..., maps.index(name)])
        change = means[..., maps.index(BETAS[1.0])] - means[..., maps.index(LRP)]
        add(f"L3: {tissue}, LRP β = 1 less β = 0", change)
        for what, name in GUIDED_MAPS:
            add(f"L2: {what} and {tissue}", means[..., maps.index(name)])
    add("volume and intensity", both[..., -1, 0])
    for name in ("mmse", "nwbv"):
        rows = warped[["volume", name]].dropna().to_numpy(float)
        at = np.concatenate([np.arange(len(rows))[None], rng.integers(len(rows), size=(DRAWS, len(rows)))])
        own = np.array([np.corrcoef(rows[one].T)[0, 1] for one in at])
        add(f"volume and {NAMES[name]}, {len(rows)} patients", own[:, None])
    return "\n".join(lines)


def main() -> None:
    options = arguments_of(
        __doc__,
        "runs --input --volumes --page",
        input={"type": Path, "help": "scans of the runs, for VOLUMES"},
        volumes={"type": Path, "help": "run with a deformable registration: relevance of the hippocampus is asked"},
    )
    if options.volumes:
        text = hippocampus(options.runs, hippocampal(warped(options.input, options.volumes)))
        show(text, options.page, "Relevance and the hippocampus", CLAIMS)
    else:
        show(tables([read(run) for run in options.runs]), options.page, "Relevance of patients and controls", CLAIMS)


if __name__ == "__main__":
    main()
