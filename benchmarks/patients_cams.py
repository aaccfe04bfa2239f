"""CAM methods and Opti-CAM with its variants by masked recognition, asked of finished runs of patients.

    python benchmarks/patients_cams.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --page PAGE

As in Zhang et al. (2024): the class that is explained is the true one, maps are of the last features and become masks
by their range, what is hidden is air, insertion starts from the blurred scan. Each person is explained by the network
that was not trained with him or her. Fake-CAM is made at the input, as published. AOPC takes regions of the atlas, and
max-sensitivity (two changed scans) is asked of the first people of each fold. Runs are only read; the answers are kept
in OUT/seed-43/cams.tsv, so that the same command continues. Intervals: people drawn with replacement, means over seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sections import write_section
from torch import Tensor

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.attribution.cam.map_range import normalised
from heatlas.pipeline.attribution.cam.opti_cam import OptiCam
from heatlas.pipeline.attribution.gradient.smoothing import gaussian_smooth
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.evaluation.scores.intervals import DRAWS, participant_interval
from heatlas.pipeline.evaluation.scores.masked_recognition import average_drop, average_gain, average_increase
from heatlas.pipeline.evaluation.scores.removal import part_numbers, removal_curve
from heatlas.pipeline.evaluation.scores.stability import max_sensitivity
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout

VARIANTS: dict[str, OptiCam] = {
    "opti-cam": OptiCam(),
    "opti-cam, maximum": OptiCam(normalisation="max"),
    "opti-cam, sigmoid": OptiCam(normalisation="sigmoid"),
    "opti-cam, difference": OptiCam(objective="diff"),
}
CAMS = ("grad-cam", "grad-cam++", "score-cam", "ablation-cam", "xgrad-cam", "layer-cam", "hires-cam")
FAKE = "fake-cam"
SEEN = ("AD", "AG", "AI")
REST = ("insertion", "deletion", "AOPC", "max-sensitivity")
STEPS, AOPC_STEPS, BLUR = 20, 10, 5
"""Of insertion and deletion; of AOPC; edge in voxels of the Gaussian that insertion starts from."""
MASKS = tuple(VARIANTS)[1:]
"""Variants, of which masked recognition alone is asked."""
SLOW = ("score-cam", "ablation-cam")
TABLE, SAMPLES, FINE = "cams.tsv", 2, ("max-sensitivity", "seconds")
TITLE = "CAM methods"
HEADING = "Claims asked of patients"
SCORES = (*SEEN, *REST, "seconds", "accuracy")
PREFACE = """\
The networks of the first section, by `python benchmarks/patients_cams.py`. As in the source: the true class is
explained, a map becomes a mask by its range, what is hidden is air; in per cent. Founding networks have 64
channels and maps of the last features. Where not everybody was asked, it was the first of each fold by name.
Fake-CAM is made at the input: the one voxel that it hides is a corner, and air already. Seconds are of a core
that others used too."""


def method_of(name: str) -> Method:
    return VARIANTS[name] if name in VARIANTS else METHODS[name].record()


def judged(
    loaded: LoadedModel, volume: Tensor, labels: Tensor, target: int, name: str, rest: Sequence[str]
) -> tuple[dict[str, float], Tensor]:
    """Scores of a method's map of one scan (1, 1, D, H, W): masked recognition, and those of `REST`; and the map."""
    scan, brain = volume[0, 0], volume[0, 0] != 0
    air, method = torch.zeros_like(scan), method_of(name)
    stage = 0 if name == FAKE else METHODS[method.name].stage_of(loaded.model)

    def score(volumes: Tensor) -> Tensor:
        return loaded.model(volumes).softmax(1)[:, target]

    def explain(changed: Tensor) -> Tensor:
        return attribute(loaded.model, changed[None, None], target, method, stage).values[0, 0]

    started = time.perf_counter()
    values = explain(scan)
    seconds = time.perf_counter() - started
    how = method.normalisation if isinstance(method, OptiCam) else "range"
    with torch.no_grad():
        p, o = (float(score(one)) for one in (volume, volume * normalised(values[None, None], how)))
    row = {"seconds": seconds, "AD": average_drop(p, o), "AG": average_gain(p, o), "AI": average_increase(p, o)}
    if rest:
        blurred, voxels, parts = gaussian_smooth(volume, BLUR)[0, 0], part_numbers(brain), part_numbers(brain, labels)
        row["insertion"] = 100 * removal_curve(score, blurred, scan, voxels, values, STEPS).area
        row["deletion"] = 100 * removal_curve(score, scan, air, voxels, values, STEPS).area
    if "AOPC" in rest:
        row["AOPC"] = 100 * removal_curve(score, scan, air, parts, values, STEPS).aopc(AOPC_STEPS)
    if "max-sensitivity" in rest:
        row["max-sensitivity"] = max_sensitivity(explain, scan, values, brain, samples=SAMPLES)
    return row, values


def asked(run: Path, methods: Sequence[str], people: int, whole: int) -> None:
    """Ask the first people of each fold (0: all) what was not asked; rows are added to the run's table as they come."""
    layout, kept = RunLayout(run.resolve()), run / TABLE
    config = read_run_config(layout)
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
    rows = pd.read_csv(kept, sep="\t") if kept.is_file() else pd.DataFrame(columns=["participant_id", "method"])
    done = set(zip(rows["participant_id"], rows["method"], strict=True))
    for fold, own in pd.read_csv(run / "group" / "predictions.tsv", sep="\t").groupby("fold"):
        loaded = load_model(layout.fold(int(fold)))
        labels = torch.from_numpy(atlas.labels_in(loaded.input.box))
        for place, one in enumerate(own.head(people or len(own)).itertuples()):
            files = layout.scan(one.participant_id, None, loaded.input.resolution_mm)
            volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
            for name in methods:
                if (one.participant_id, name) not in done:
                    rest = REST if place < whole and name not in MASKS else ()
                    found, _ = judged(loaded, volume, labels, int(one.target), name, rest)
                    new = pd.DataFrame([{"participant_id": one.participant_id, "method": name, **found}])
                    rows = pd.concat([rows, new], ignore_index=True)
            rows.to_csv(kept, sep="\t", index=False)


def read(run: Path, methods: Sequence[str], partly: bool = False) -> pd.DataFrame:
    """Rows of those of a run who were asked about all of these methods; `partly`, also scores that only some have."""
    rows = pd.read_csv(run / TABLE, sep="\t")
    own = rows[rows["method"].isin(methods)]
    own = own[own.groupby("participant_id")["method"].transform("nunique") == len(methods)]
    return own.dropna(axis=1, how="all" if partly else "any") if len(own) else own


def means_table(runs: Sequence[Path], methods: Sequence[str], partly: bool = False) -> list[str]:
    """Means of each method, by seed, over the people who were asked about all of the methods."""
    found = [read(run, methods, partly) for run in runs]
    scores = [score for score in SCORES if all(score in own for own in found)]
    people = ", ".join(str(own["participant_id"].nunique()) for own in found)
    lines = [f"| {people} people | " + " | ".join(scores) + " |", "|---" * (len(scores) + 1) + "|"]
    for name in methods:
        cells = [[own.loc[own["method"] == name, score].mean() for own in found] for score in scores]
        texts = [", ".join(f"{v:.{digits(score)}f}" for v in own) for own, score in zip(cells, scores, strict=True)]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return lines


def digits(score: str) -> int:
    return 2 if score in FINE else 1


def across(change: pd.Series, decimals: int) -> str:
    """Cells of a row: people, mean by seed, and mean over people, each by the mean of the seeds, with an interval.

    `change`: differences by seed (or run) and person.
    """
    seeds = ", ".join(f"{one:+.{decimals}f}" for one in change.groupby(level=0).mean())
    each = change.groupby(level=1).mean().to_numpy()
    low, high = participant_interval((each,), np.mean, DRAWS, 0)
    mean, low, high = (f"{one:+.{decimals}f}" for one in (each.mean(), low, high))
    within = "" if "nan" in low else f" ({low} to {high})"
    return f"{len(each)} | {seeds} | {mean}{within}"


def differences(runs: Sequence[Path], first: str, second: str, partly: bool = False) -> list[str]:
    """Rows: one method less another by seed, and over people, each by the mean of the seeds, with an interval."""
    found = [read(run, (first, second), partly).assign(run=run.name) for run in runs]
    lines = []
    for score in (one for one in SCORES if all(one in own for own in found)):
        wide = pd.concat(found).pivot_table(index=["run", "participant_id"], columns="method", values=score)
        change = (wide[first] - wide[second]).dropna()
        lines.append(f"| {score}: {first} less {second} | {across(change, digits(score))} |")
    return lines


def tables(runs: Sequence[Path]) -> str:
    """The section."""
    fast = (*(name for name in CAMS if name not in SLOW), FAKE)
    parts = ["Everybody, a number per seed:", "", *means_table(runs, fast), ""]
    parts += ["All methods:", "", *means_table(runs, ("opti-cam", *CAMS, FAKE)), ""]
    pairs = [(FAKE, "grad-cam"), *(("opti-cam", name) for name in ("score-cam", "ablation-cam", "grad-cam"))]
    asked_of = [name for name in VARIANTS if all(len(read(run, (name,))) for run in runs)]
    if len(asked_of) > 1:
        parts += ["Opti-CAM and its variants:", "", *means_table(runs, asked_of), ""]
        pairs += [("opti-cam", name) for name in asked_of[1:]]
    parts += ["| difference | people | seeds | mean (95 %) |", "|---|---|---|---|"]
    parts += [line for pair in pairs for line in differences(runs, *pair)]
    return f"{PREFACE}\n\n" + "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--methods", nargs="+", default=[*CAMS, FAKE, *VARIANTS])
    parser.add_argument("--people", type=int, default=0, help="first of each fold, who are asked; 0 for all")
    parser.add_argument("--whole", type=int, default=4, help="first of each fold, with curves and max-sensitivity")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for run in options.runs:
        asked(run, options.methods, options.people, options.whole)
    if options.page:
        write_section(options.page, TITLE, tables(options.runs), HEADING)
    return 0


if __name__ == "__main__":
    sys.exit(main())
