"""What networks learn from patients, over seeds, beside baselines and shuffled labels, and where their maps look.

    python benchmarks/patients.py ../shared/data/oasis1/older OUT --seeds 43 44 45 --shuffled 46 47 48
    python benchmarks/patients.py INPUT OUT --config other.toml --preset patients

Registers once (`OUT/registered`), then runs training, maps and statistics for each seed, and with labels that changed
places for each shuffled seed; finished runs are not repeated. Prints tables in Markdown: the people are the unit, and
seeds are shown one by one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from harness import arguments_of, line, listed, table
from scipy.stats import spearmanr

from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople, auc
from heatlas.workflows.command_line import main as heatlas

WANTED = ("Hippocampus", "Amygdala", "Entorhinal area")
NAMES = {"expectedGradients": "evidence (expected gradients)", "gb": "guided backpropagation", "lrpB000": "LRP β = 0"}


def run_of(options: argparse.Namespace, seed: int, shuffled: bool) -> Path:
    """The run folder of a seed up to its statistics, made from the registered one."""
    out = options.out / f"{'shuffled' if shuffled else 'seed'}-{seed}"
    base = options.config.read_text(encoding="utf-8") if options.config else ""
    if shuffled and "[cohort]" in base:
        sys.exit("The file for --config may not have a section [cohort]: shuffled labels are set there.")
    settings = options.out / f"{out.name}.toml"
    settings.write_text(base + ("\n[cohort]\nshuffle_labels = true\n" if shuffled else ""), encoding="utf-8")
    if (out / "group" / "statistics" / "group_comparisons.tsv").is_file():
        return out
    registered = options.out / "registered"
    common = ["--preset", options.preset, "--n-procs", options.n_procs]
    plain = ["--config", options.config] if options.config else []
    call("run", options.input, registered, *common, *plain, "--stop-after", "registration")
    if not out.is_dir():
        shutil.copytree(registered, out)
    call("run", options.input, out, *common, "--config", settings, "--seed", seed, "--stop-after", "statistics")
    return out


def call(*arguments: object) -> None:
    """Run a command of Heatlas; stop if it fails."""
    if code := heatlas([str(one) for one in arguments]):
        sys.exit(f"heatlas {' '.join(map(str, arguments))} ended with {code}")


def people_of(run: Path) -> pd.DataFrame:
    """Predictions of a run with what is known about each person; `z` is the logit within its fold."""
    rows = pd.read_csv(run / "group" / "predictions.tsv", sep="\t")
    known = pd.read_csv(run / "scans.tsv", sep="\t")[["scan_id", "cdr", "mmse"]]
    clinical = pd.read_csv(run / "clinical.tsv", sep="\t").reindex(columns=["scan_id", "nwbv"])
    rows = rows.merge(known, on="scan_id").merge(clinical, on="scan_id", how="left")
    logit = np.log(rows["probability"] / (1 - rows["probability"]))
    return rows.assign(z=logit.groupby(rows["fold"]).transform(lambda one: (one - one.mean()) / one.std(ddof=1)))


def area(rows: pd.DataFrame) -> float:
    """Area under the curve within folds, weighted by pairs."""
    fold, positive = rows["fold"].to_numpy(), rows["target"].to_numpy() == 1
    people = HeldOutPeople(rows.index.to_numpy(str), fold, positive)
    return float(auc(rows["probability"].to_numpy(), people, np.ones((1, len(rows))))[0])


def accuracy_table(runs: Sequence[Path]) -> list[str]:
    columns = ["run", "area", "CDR ≥ 1 against 0", "CDR 0.5 against 0", "mean z at CDR 0, 0.5, ≥ 1", "ρ with MMSE"]
    lines = table([*columns, "ρ with nWBV (within CN, within AD)"])
    for run in runs:
        rows = people_of(run)
        dose = [rows.loc[own, "z"].mean() for own in (rows["cdr"] == 0, rows["cdr"] == 0.5, rows["cdr"] >= 1)]
        severe, mild = rows[(rows["cdr"] == 0) | (rows["cdr"] >= 1)], rows[rows["cdr"] <= 0.5]
        inside = listed((rank_correlation(own, "nwbv") for _, own in rows.groupby("target")), "+.2f")
        areas = (f"{area(own):.2f}" for own in (rows, severe, mild))
        rho = f"{rank_correlation(rows, 'mmse'):+.2f}", f"{rank_correlation(rows, 'nwbv'):+.2f} ({inside})"
        lines.append(line(run.name, *areas, listed(dose, "+.2f"), *rho))
    return lines


def rank_correlation(rows: pd.DataFrame, name: str) -> float:
    return float(spearmanr(rows["z"], rows[name], nan_policy="omit").statistic)


def baseline_table(runs: Sequence[Path]) -> list[str]:
    """Areas of the baselines on each run's own folds, and the paired differences of the networks."""
    lines = table(["run", "baseline", "area", "networks minus baseline (95 %)", "p", "verdict"])
    for run in runs:
        rows = pd.read_csv(run / "group" / "statistics" / "baselines.tsv", sep="\t")
        for one in rows[rows["metric"] == "auc_within_folds"].itertuples():
            change = f"{one.difference:+.2f} ({one.difference_low:+.2f} to {one.difference_high:+.2f})"
            lines.append(line(run.name, one.baseline, f"{one.estimate:.2f}", change, f"{one.p:.3f}", one.verdict))
    return lines


def places(run: Path, name: str) -> pd.DataFrame:
    """Regions of a map, those that differ most first (absolute g of the density)."""
    rows = pd.read_csv(run / "group" / "statistics" / "group_comparisons.tsv", sep="\t")
    own = rows[(rows["map"] == name) & (rows["metric"] == "density")]
    own = own[own["comparison"] == own["comparison"].iloc[0]]
    return own.assign(size=own["hedges_g"].abs()).sort_values("size", ascending=False).reset_index(drop=True)


def region_table(runs: Sequence[Path], maps: Sequence[str]) -> list[str]:
    """Where the maps of each run differ between the classes."""
    lines = table(["run", "map", "first three (g)", f"places of {', '.join(WANTED).lower()}", "p_fwe ≤ .05"])
    for name in maps:
        for run in runs:
            rows = places(run, name)
            first = ", ".join(f"{one.group} {one.hedges_g:+.2f}" for one in rows.head(3).itertuples())
            found = ", ".join(str(int(rows.index[rows["group"] == one][0]) + 1) for one in WANTED)
            count = int((rows["p_fwe"] <= 0.05).sum())
            lines.append(line(run.name, NAMES.get(name, name), first, found, f"{count} of {len(rows)}"))
    return lines


def main() -> None:
    seeds = {"type": int, "nargs": "*"}
    options = arguments_of(
        __doc__,
        "input out --seeds --shuffled --config --n-procs",
        seeds=seeds,
        shuffled={**seeds, "default": [46, 47, 48]},
        config={"type": Path},
        preset="patients",
        maps=list(NAMES),
        n_procs=2,
    )
    real = [run_of(options, seed, shuffled=False) for seed in options.seeds]
    every = [*real, *(run_of(options, seed, shuffled=True) for seed in options.shuffled)]
    lines = [*accuracy_table(every), "", *baseline_table(real), "", *region_table(every, options.maps)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
