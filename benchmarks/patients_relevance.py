"""What Böhle et al. (2019) say of LRP and guided backpropagation, asked of finished runs of patients.

    python benchmarks/patients_relevance.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --numbers relevance
    python benchmarks/patients_relevance.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --input INPUT --volumes VOLUMES

Runs are those of `benchmarks/patients.py` with the start value, batch norms and values of β of the source, and with one
scan a person; they are only read, but for guided backpropagation of the predicted class, which `heatlas explain` adds
where it is missing. The first line stores what networks said of each person, of which docs/claims is made
(`relevance_statistics.py`). With VOLUMES, a deformable registration of the patients of INPUT (made if it is not there),
relevance of the hippocampus of true positives is compared with its volume and intensity.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import claim_numbers
import nibabel as nib
import numpy as np
import pandas as pd
from harness import CLAIMS, arguments_of, line, listed, show, table
from numpy.typing import NDArray
from patients import call
from relevance_statistics import BETAS, GUIDED, LRP, PREDICTED

from heatlas.pipeline.evaluation.scores.localisation import entropy, gini
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout

Floats = NDArray[np.float64]
GUIDED_MAPS = (("guided backpropagation of AD", GUIDED), ("guided backpropagation of the predicted class", PREDICTED))
DRAWS = 1000
NAMES = {"mmse": "MMSE", "nwbv": "nWBV"}
TESTED = "regions with family-wise p ≤ .05, "


def numbers_of(run: Path) -> pd.DataFrame:
    """Rows of the table of numbers: sums by region of each map, sparsity by β, the probability of AD."""
    people = pd.read_csv(run / "group" / "predictions.tsv", sep="\t").sort_values("scan_id")
    sums = relevance(run).groupby(["scan_id", "map", "group"], as_index=False)["sum"].sum()
    rows = [sums.assign(measure=sums["map"] + ": " + sums["group"]).rename(columns={"sum": "value"})]
    rows.append(people.assign(measure="probability", value=people["probability"]))
    rows.extend(sparsity(RunLayout(run.resolve()), people))
    who = people.set_index("scan_id")
    each = pd.concat(rows)[["scan_id", "measure", "value"]].set_index("scan_id")
    each = each.assign(person=who["participant_id"], fold=who["fold"], **{"class": who["target"]})
    return pd.concat([each, pd.DataFrame(tested(run))]).assign(seed=int(run.name.rpartition("-")[2]))


def relevance(run: Path) -> pd.DataFrame:
    """Relevance of the regions of the atlas, of all maps."""
    every = pd.concat([pd.read_csv(run / "group" / "relevance.tsv", sep="\t"), predicted(run).assign(map=PREDICTED)])
    return every[
        (every["region"] > 0) & (every["n_voxels"] > 0) & every["map"].isin([*BETAS.values(), GUIDED, PREDICTED])
    ]


def voxels_of(run: Path) -> dict[str, int]:
    """Voxels of each region that sums are of."""
    own = relevance(run)
    one = own[(own["map"] == LRP) & (own["scan_id"] == own["scan_id"].iloc[0])]
    return {str(name): int(n) for name, n in one.groupby("group")["n_voxels"].sum().items()}


def tested(run: Path) -> Iterator[dict[str, object]]:
    """Regions whose density the run's test calls higher and lower in patients, of the whole cohort."""
    rows = pd.read_csv(run / "group" / "statistics" / "group_comparisons.tsv", sep="\t")
    rows = rows[(rows["comparison"] == "AD/CN") & (rows["metric"] == "density") & (rows["p_fwe"] <= 0.05)]
    for name in (*BETAS.values(), GUIDED):
        found = rows.loc[rows["map"] == name, "difference"]
        for word, count in (("more", (found > 0).sum()), ("less", (found < 0).sum())):
            yield {"measure": f"{TESTED}{word} in patients, {name}", "value": float(count)}


def sparsity(layout: RunLayout, people: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Gini index and entropy of the positive values of the maps of each β in the brain."""
    config = read_run_config(layout)
    for beta, name in BETAS.items():
        found = []
        for participant in people["participant_id"]:
            files = layout.scan(participant, None, config.registration.resolution_mm)
            own = voxels(files.relevance_map(name))[voxels(files.brain_mask) > 0]
            found.append((gini(own), entropy(own)))
        for measure, values in zip(("Gini index", "entropy"), zip(*found, strict=True), strict=True):
            yield people.assign(measure=f"{measure} at {beta:g}", value=values)


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
        numbers=("relevance", "name of the table in benchmarks/claims/numbers"),
    )
    if options.volumes:
        text = hippocampus(options.runs, hippocampal(warped(options.input, options.volumes)))
        show(text, options.page, "Relevance and the hippocampus", CLAIMS)
    else:
        rows = pd.concat(numbers_of(run) for run in options.runs)
        settings = options.runs[0].with_suffix(".toml")
        print(claim_numbers.write(options.numbers, rows, settings, {"voxels": voxels_of(options.runs[0])}))


if __name__ == "__main__":
    main()
