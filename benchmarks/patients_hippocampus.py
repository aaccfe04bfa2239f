"""Relevance of the hippocampus beside its volume and intensity, as Böhle et al. (2019) asked of true positives.

    python benchmarks/patients_hippocampus.py INPUT VOLUMES OUT/seed-43 OUT/seed-44 OUT/seed-45 --page PAGE

Runs are those of `patients_relevance.py`. VOLUMES is a run of the patients of INPUT with a deformable registration; it
is made if it is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from patients import call
from patients_relevance import BETAS, DRAWS, GUIDED_MAPS, LRP, PREDICTED, Floats, predicted
from sections import HEADING, arguments_of, line, listed, show, table

TITLE = "Relevance and the hippocampus"
NAMES = {"mmse": "MMSE", "nwbv": "nWBV"}


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
        call("run", str(source), str(run), "--preset", "patients", "--config", str(settings), "--include", "cdr > 0",
             "--stop-after", "registration", "--n-procs", "1")  # fmt: skip
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


def main() -> int:
    options = arguments_of(__doc__, "input", ("volumes", {"type": Path}), "runs", "--page")
    text = hippocampus(options.runs, hippocampal(warped(options.input, options.volumes)))
    show(text, options.page, TITLE, HEADING, words=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
