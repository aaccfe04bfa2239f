"""Networks of a plain script on patients whom they never saw, and a run and its export applied to the same people.

    python benchmarks/own_networks.py ../shared/data/oasis1/older OUT

One half of the people trains a run of the preset `patients` with one network a fold, and an SFCN and a small MONAI
DenseNet by the loop below, which uses nothing of Heatlas. The other half is given to all of them: `heatlas apply` of
the run, `heatlas apply` of its export, and `heatlas run` and `heatlas evaluate` with each network as one's own. Prints
tables in Markdown; what is finished is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from harness import arguments_of, line, table
from monai.networks.nets import DenseNet
from patients import call
from torch import Tensor, nn

METHODS = ("deeplift", "lrp", "guided-backpropagation", "expected-gradients")
MAP = "expectedGradients"
EPOCHS, LEARNING_RATE, SEED = 30, 1e-3, 43
SETTINGS = """[cohort]
without = "{without}"

[attribution]
methods = {methods}

[registration]
transform = "affine"
resolution_mm = 4.0
brain_extraction = "template-mask"
bias_correction = false

[training]
ensemble = 1
"""
DESCRIPTION = """
[model]
architecture = "foreign"
network = "{file}:{name}"
weights = "{weights}"
field_of_view = "template"
intensities = "percentiles"
unseen = true
"""


class Sfcn(nn.Module):
    """Peng et al. 2021 with four blocks, for two classes; answers with log-probabilities as theirs does."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.BatchNorm3d(b), nn.MaxPool3d(2), nn.ReLU(inplace=True))
            for a, b in pairwise((1, 8, 16, 32, 32))
        ]
        self.features = nn.Sequential(*blocks, nn.Conv3d(32, 16, 1), nn.BatchNorm3d(16), nn.ReLU(inplace=True))
        self.last = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Dropout(0.3), nn.Conv3d(16, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.last(self.features(x)).flatten(1), dim=1)


def dense() -> nn.Module:
    """MONAI's DenseNet, small."""
    return DenseNet(3, 1, 2, init_features=16, growth_rate=8, block_config=(3, 3, 3), dropout_prob=0.1)


NETWORKS: dict[str, Callable[[], nn.Module]] = {"Sfcn": Sfcn, "dense": dense}


def halves(source: Path, out: Path) -> tuple[Path, Path]:
    """Tables of the people of each half, drawn within diagnoses."""
    people = pd.read_csv(source / "participants.tsv", sep="\t")
    order = people.sample(frac=1, random_state=SEED).sort_values("diagnosis", kind="stable")
    tables = out / "first.tsv", out / "second.tsv"
    for start, half in enumerate(tables):
        order.iloc[start::2][["participant_id"]].sort_values("participant_id").to_csv(half, sep="\t", index=False)
    return tables


def volumes(run: Path) -> tuple[Tensor, Tensor]:
    """Scans of a run as any script would read them: in the brain, percentiles 0.5 and 99.5 become 0 and 1."""
    rows = pd.read_csv(run / "group" / "predictions.tsv", sep="\t")
    found = []
    for person in rows["participant_id"]:
        (path,) = run.glob(f"{person}/anat/*_desc-preproc_T1w.nii.gz")
        image = nib.load(path).get_fdata(dtype=np.float32)
        low, high = np.percentile(image[image != 0], (0.5, 99.5))
        found.append(np.where(image != 0, np.clip((image - low) / (high - low), 0, 1), 0).astype(np.float32))
    return torch.from_numpy(np.stack(found))[:, None], torch.tensor(rows["target"].to_numpy(np.int64))


def trained(name: str, run: Path, weights: Path) -> None:
    """Train one network on the scans of a run and store its weights."""
    torch.manual_seed(SEED)
    network, (images, targets) = NETWORKS[name](), volumes(run)
    optimiser = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(images)).split(8):
            shift = torch.randint(-1, 2, (3,)).tolist()
            moved = torch.roll(images[part], shift, (2, 3, 4))
            loss = F.cross_entropy(network(moved), targets[part])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
    torch.save(network.state_dict(), weights)


def summary(out: Path, names: Sequence[str]) -> None:
    """Accuracy beside ridge on regions, and the regions that evidence puts first by Hedges' g."""
    columns = ["networks", "area within folds (ridge on regions; difference)", "first regions (g)", "hippocampus"]
    print(*table(columns), sep="\n")
    for name in names:
        tables = out / name / "group" / "statistics"
        rows = pd.read_csv(tables / "baselines.tsv", sep="\t")
        (row,) = rows[(rows["baseline"] == "regions") & (rows["metric"] == "auc_within_folds")].to_dict("records")
        groups = pd.read_csv(tables / "group_comparisons.tsv", sep="\t")
        groups = groups[(groups["comparison"] == "AD/CN") & (groups["map"] == MAP) & (groups["metric"] == "density")]
        groups = groups.sort_values("hedges_g", ascending=False)
        order = list(groups["group"])
        first = ", ".join(f"{group} {g:.2f}" for group, g in zip(order[:3], groups["hedges_g"][:3], strict=True))
        gap = f"{row['difference']:+.2f}, {row['difference_low']:+.2f} to {row['difference_high']:+.2f}"
        place = f"{order.index('Hippocampus') + 1} of {len(order)}"
        print(line(name, f"{row['network']:.2f} ({row['estimate']:.2f}; {gap})", first, place))


def same(one: Path, other: Path) -> None:
    """How far tables of the run applied and of its export applied lie apart, map by map."""
    keys = ["participant_id", "map", "region"]
    tables = [pd.read_csv(run / "group" / "relevance.tsv", sep="\t").set_index(keys)["density"] for run in (one, other)]
    columns = ["map", "median correlation over people", "largest difference, relative to the largest value"]
    print(*table(columns), sep="\n")
    for name, rows in pd.concat(tables, axis=1, keys=["run", "export"]).groupby("map"):
        by_person = rows.groupby("participant_id").apply(lambda own: own["run"].corr(own["export"], "spearman"))
        gap = (rows["run"] - rows["export"]).abs().max() / rows["run"].abs().max()
        print(line(name, f"{by_person.median():.3f}", f"{gap:.1e}"))


def main() -> None:
    options = arguments_of(
        __doc__,
        "input out --n-procs",
        n_procs=2,
        parts=(["nulls", "faithfulness"], "of heatlas evaluate"),
        only={"nargs": "+", "choices": sorted(NETWORKS), "default": sorted(NETWORKS)},
    )
    out, source = options.out.resolve(), options.input.resolve()
    out.mkdir(parents=True, exist_ok=True)
    first, second = halves(source, out)
    common = ["--preset", "patients", "--n-procs", options.n_procs]
    for half, other in ((first, second), (second, first)):
        settings = SETTINGS.format(without=other, methods=list(METHODS)).replace("'", '"')
        (out / f"{half.stem}.toml").write_text(settings, encoding="utf-8")
    if not (out / "run" / "report.html").is_file():
        call("run", source, out / "run", *common, "--config", out / "first.toml")
    if not (out / "export").is_dir():
        call("export", out / "run", out / "export")
    # apply leaves the people of the run out by itself
    for applied, by in (("applied", "run"), ("applied-export", "export")):
        if not (out / applied / "report.html").is_file():
            call("apply", out / by, source, out / applied, "--n-procs", options.n_procs)
    same(out / "applied", out / "applied-export")
    for name in options.only:
        weights, settings = out / f"{name}.pt", out / f"{name}.toml"
        if not weights.is_file():
            trained(name, out / "run", weights)
        described = DESCRIPTION.format(file=Path(__file__).resolve(), name=name, weights=weights)
        settings.write_text((out / "second.toml").read_text(encoding="utf-8") + described, encoding="utf-8")
        if not (out / name / "report.html").is_file():
            call("run", source, out / name, *common, "--config", settings)
        if not (out / name / "evaluation" / "verdicts.tsv").is_file():
            asked = ["--parts", *options.parts, "--methods", *METHODS]
            call("evaluate", out / name, "--quick", *asked, "--n-procs", options.n_procs)
            call("report", out / name)
    summary(out, ["run", "applied", *options.only])


if __name__ == "__main__":
    main()
