"""Age and sex as tasks with known answers, and how alike the maps of two scans of a person are.

    python benchmarks/patients_tasks.py ../shared/data/oasis1/older ../shared/data/oasis1/younger OUT

Joins both folders (279 people, 13 of them scanned twice), runs the preset `patients` with one network a fold for the
age and for the sex, and prints tables in Markdown. Finished runs are not repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from harness import arguments_of, line, table
from patients import baseline_table, call, less_baseline, region_table
from scipy.stats import spearmanr

EVIDENCE = "expectedGradients"
AGE = "[training]\nensemble = 1\n"
# The class cannot be its own covariate.
SEX = f"""{AGE}[statistics]
covariates = "age"
[statistics.harmonisation]
relevance_covariates = "age"
volume_covariates = "age"
[statistics.normative]
relevance_covariates = "age"
volume_covariates = "age"
"""


def joined(folders: Sequence[Path], out: Path) -> Path:
    if (out / "participants.tsv").is_file():
        return out
    for folder in folders:
        shutil.copytree(folder, out, dirs_exist_ok=True)
    tables = [
        pd.read_csv(folder / "participants.tsv", sep="\t", dtype=str, keep_default_na=False) for folder in folders
    ]
    pd.concat(tables).fillna("n/a").to_csv(out / "participants.tsv", sep="\t", index=False)
    return out


def evidence_of(run: Path) -> pd.DataFrame:
    """Evidence by scan (rows) and region (columns), with the participant and the fold in the index."""
    rows = pd.read_csv(run / "group" / "relevance_bilateral.tsv", sep="\t")
    rows = rows[rows["map"] == EVIDENCE]
    folds = pd.read_csv(run / "group" / "predictions.tsv", sep="\t").set_index("scan_id")["fold"]
    rows = rows.assign(fold=rows["scan_id"].map(folds))
    return rows.pivot_table(index=["participant_id", "fold", "scan_id"], columns="group", values="sum")


def icc(first: np.ndarray, second: np.ndarray) -> float:
    """Intraclass correlation of single values, one-way (Shrout and Fleiss 1979, ICC(1,1)), of n pairs.

    >>> icc(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0]))
    1.0
    """
    pairs = np.column_stack([first, second])
    between = 2 * pairs.mean(axis=1).var(ddof=1)
    within = float((np.diff(pairs, axis=1) ** 2).sum() / 2 / len(pairs))
    return float((between - within) / (between + within))


def repeatability(run: Path) -> list[str]:
    """Two scans of a person against scans of two people of the same fold, in evidence over regions and in output."""
    table = evidence_of(run)
    people = table.index.get_level_values("participant_id")
    twice = [name for name, n in people.value_counts().items() if n > 1]
    folds = table.index.get_level_values("fold")
    own, others = [], []
    for name in twice:
        first, second = table[people == name].to_numpy()[:2]
        own.append(np.corrcoef(first, second)[0, 1])
        beside = table[(folds == folds[people == name][0]) & (people != name)].to_numpy()
        others.append(np.median([np.corrcoef(first, one)[0, 1] for one in beside]))
    firsts = np.array([table[people == name].to_numpy()[0] for name in twice])
    seconds = np.array([table[people == name].to_numpy()[1] for name in twice])
    by_region = pd.Series([icc(a, b) for a, b in zip(firsts.T, seconds.T, strict=True)], table.columns)
    low, middle, high = by_region.quantile([0.25, 0.5, 0.75])
    sums = icc(firsts.sum(axis=1), seconds.sum(axis=1))
    return [
        f"{run.name}: {len(twice)} people scanned twice. Correlation of the evidence of both scans over "
        f"{table.shape[1]} regions: median {np.median(own):.2f} ({min(own):.2f} to {max(own):.2f}); with another "
        f"person of the fold: {np.median(others):.2f}.",
        f"ICC(1,1) of the evidence of a region: median {middle:.2f}, quartiles {low:.2f} to {high:.2f}; hippocampus "
        f"{by_region['Hippocampus']:.2f}; of the sum {sums:.2f}.",
    ]


def age_table(run: Path) -> list[str]:
    """Errors beside the baselines, and regions whose evidence rises or falls with age most."""
    lines = table(["predictor", "metric", "estimate", "networks minus this (95 %)", "p"])
    for one in pd.read_csv(run / "group" / "statistics" / "baselines.tsv", sep="\t").itertuples():
        lines.append(line(one.baseline, one.metric, f"{one.estimate:.2f}", less_baseline(one), f"{one.p:.4f}"))
    said = pd.read_csv(run / "group" / "predictions.tsv", sep="\t")
    error = (said["prediction"] - said["target"]).abs().groupby(said["participant_id"]).mean().mean()
    evidence = evidence_of(run)
    target = said.set_index("scan_id")["target"].reindex(evidence.index.get_level_values("scan_id")).to_numpy()
    rho = pd.Series([spearmanr(evidence[name], target).statistic for name in evidence], evidence.columns)
    rho = rho.sort_values(key=np.abs, ascending=False)
    firsts = ", ".join(f"{name} {value:+.2f}" for name, value in rho.head(8).items())
    return [
        f"Networks: mean absolute error {error:.1f} years.",
        *lines,
        "",
        f"Spearman's ρ of evidence and age: {firsts}.",
    ]


def sex_table(run: Path) -> list[str]:
    return [*baseline_table([run]), "", *region_table([run], [EVIDENCE])]


def main() -> None:
    options = arguments_of(__doc__, "folders out --n-procs", folders={"type": Path, "nargs": 2}, n_procs=2)
    everyone = joined(options.folders, options.out / "everyone")
    tasks = {"age": (AGE, ["--target", "age"]), "sex": (SEX, ["--contrast", "sex=F,M"])}
    for name, (settings, task) in tasks.items():
        file = options.out / f"{name}.toml"
        file.write_text(settings, encoding="utf-8")
        if not (options.out / name / "group" / "statistics" / "baselines.tsv").is_file():
            own = ["--preset", "patients", "--config", file, *task]
            call("run", everyone, options.out / name, *own, "--stop-after", "statistics", "--n-procs", options.n_procs)
    age, sex = options.out / "age", options.out / "sex"
    print("\n".join([*age_table(age), "", *sex_table(sex), "", *repeatability(age), *repeatability(sex)]))


if __name__ == "__main__":
    main()
