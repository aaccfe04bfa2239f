"""CAM methods and Opti-CAM with its variants by masked recognition, asked of finished runs of patients.

    python benchmarks/patients_cams.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --numbers NAME

Method and measures are those of Zhang et al. (2024). Each person is explained by the network that
was not trained with him or her. Opti-CAM is asked of the people of a fold and class at once, as in the source, which
times eight images; PyTorch takes batches of one far longer. Runs are only read; the answers are kept in
OUT/seed-43/cams.tsv, so that the same command continues. With --numbers all of them are stored for claims.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from claim_numbers import NUMBERS, write_of_runs
from harness import added, arguments_of, kept_rows
from torch import Tensor, nn

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.attribution.cam.channel_maps import normalised
from heatlas.pipeline.attribution.cam.masked_volumes import OptiCam
from heatlas.pipeline.attribution.gradient.smoothing import gaussian_smooth
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.evaluation.scores.faithfulness import max_sensitivity
from heatlas.pipeline.evaluation.scores.masking import (
    average_drop,
    average_gain,
    average_increase,
    part_numbers,
    removal_curve,
)
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout

EIGHT = OptiCam(batch=8)
VARIANTS: dict[str, OptiCam] = {
    "opti-cam": EIGHT,
    "opti-cam, maximum": dataclasses.replace(EIGHT, normalisation="max"),
    "opti-cam, sigmoid": dataclasses.replace(EIGHT, normalisation="sigmoid"),
    "opti-cam, difference": dataclasses.replace(EIGHT, objective="diff"),
}
CAMS = ("grad-cam", "grad-cam++", "score-cam", "ablation-cam", "xgrad-cam", "layer-cam", "hires-cam")
FAKE, INSIDE = "fake-cam", "fake-cam, brain"
"""As published, hiding the first voxel of the scan; hiding the first one of the brain."""
REST = ("insertion", "deletion", "AOPC", "max-sensitivity")
STEPS, AOPC_STEPS, BLUR = 20, 10, 5
"""Of insertion and deletion; of AOPC; edge in voxels of the Gaussian that insertion starts from."""
MASKS = tuple(VARIANTS)[1:]
"""Variants, of which masked recognition alone is asked."""
SLOW = ("score-cam", "ablation-cam")
TABLE, SAMPLES = "cams.tsv", 2


def method_of(name: str) -> Method:
    return VARIANTS[name] if name in VARIANTS else METHODS[name].record()


def map_and_scores(
    model: nn.Module,
    volume: Tensor,
    target: int,
    name: str,
    rest: Sequence[str] = (),
    labels: Tensor | None = None,
    ready: tuple[Tensor, float] | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """A method's map of one scan (1, 1, D, H, W), and its scores: masked recognition, and those of `REST`.

    `labels` of regions are for AOPC; `ready`: the map and its seconds, where several were made at once.
    """
    scan, brain = volume[0, 0], volume[0, 0] != 0
    air = torch.zeros_like(scan)
    method = None if name == INSIDE else method_of(name)

    def score(volumes: Tensor) -> Tensor:
        return model(volumes).softmax(1)[:, target]

    def explain(changed: Tensor) -> Tensor:
        if method is None:
            return all_but_one(changed)
        copies = changed.expand(1 + isinstance(method, OptiCam), 1, -1, -1, -1)  # a batch of one takes far longer
        return mapped(model, copies, target, name)[0]

    started = time.perf_counter()
    values, seconds = ready or (explain(scan), time.perf_counter() - started)
    how = method.normalisation if isinstance(method, OptiCam) else "range"
    with torch.no_grad():
        p, o = (float(score(one)) for one in (volume, volume * normalised(values[None, None], how)))
    row = {"seconds": seconds, "AD": average_drop(p, o), "AG": average_gain(p, o), "AI": average_increase(p, o)}
    if rest:
        blurred, voxels = gaussian_smooth(volume, BLUR)[0, 0], part_numbers(brain)
        row["insertion"] = 100 * removal_curve(score, blurred, scan, voxels, values, STEPS).area
        row["deletion"] = 100 * removal_curve(score, scan, air, voxels, values, STEPS).area
    if "AOPC" in rest:
        row["AOPC"] = 100 * removal_curve(score, scan, air, part_numbers(brain, labels), values, STEPS).aopc(AOPC_STEPS)
    if "max-sensitivity" in rest:
        row["max-sensitivity"] = max_sensitivity(explain, scan, values, brain, samples=SAMPLES)
    return values, row


def all_but_one(scan: Tensor) -> Tensor:
    """1 everywhere and 0 in the first voxel of the brain."""
    values = torch.ones_like(scan)
    values[tuple(torch.nonzero(scan)[0])] = 0
    return values


def mapped(model: nn.Module, volumes: Tensor, target: int, name: str) -> Tensor:
    """Maps (B, D, H, W) of scans (B, 1, D, H, W) by a method."""
    method = method_of(name)
    stage = 0 if name == FAKE else METHODS[method.name].stage_of(model)
    return attribute(model, volumes, target, method, stage).values[:, 0]


def together(
    model: nn.Module, volumes: Mapping[str, Tensor], targets: Mapping[str, int], name: str
) -> dict[str, tuple[Tensor, float]]:
    """Maps of Opti-CAM of several people, those of a class at once, and the seconds of each."""
    found = {}
    for target in sorted(set(targets.values())):
        people = [one for one in volumes if targets[one] == target]
        started = time.perf_counter()
        values = mapped(model, torch.cat([volumes[one] for one in people]), target, name)
        seconds = (time.perf_counter() - started) / len(people)
        found |= {one: (own, seconds) for one, own in zip(people, values, strict=True)}
    return found


def ask(run: Path, methods: Sequence[str], people: int, whole: int, sensitive: int) -> None:
    """Ask the first people of each fold (0: all) what was not asked; rows are added to the run's table as they come."""
    layout, kept = RunLayout(run.resolve()), run / TABLE
    config = read_run_config(layout)
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
    rows = kept_rows(kept, ["participant_id", "method"])
    done = set(zip(rows["participant_id"], rows["method"], strict=True))
    for fold, own in pd.read_csv(run / "group" / "predictions.tsv", sep="\t").groupby("fold"):
        loaded = load_model(layout.fold(int(fold)))
        labels = torch.from_numpy(atlas.labels_in(loaded.input.box))
        targets = {one.participant_id: int(one.target) for one in own.head(people or len(own)).itertuples()}
        files = {one: layout.scan(one, None, loaded.input.resolution_mm) for one in targets}
        volumes = {
            one: torch.from_numpy(read_network_volume(own, loaded.input))[None, None] for one, own in files.items()
        }
        for name in methods:
            new = {one: volume for one, volume in volumes.items() if (one, name) not in done}
            ready = together(loaded.model, new, targets, name) if name in VARIANTS and new else {}
            found = []
            for one, volume in new.items():
                place = list(volumes).index(one)
                rest = REST if place < sensitive else REST[:-1] if place < whole else ()
                rest = () if name in MASKS else rest
                scores = map_and_scores(loaded.model, volume, targets[one], name, rest, labels, ready.get(one))[1]
                found.append({"participant_id": one, "method": name, **scores})
            rows = added(rows, found, kept)


def scores(run: Path) -> pd.DataFrame:
    """Every score of every method that was asked of a run: "SCORE: METHOD"."""
    rows = pd.read_csv(run / TABLE, sep="\t").rename(columns={"participant_id": "person"})
    long = rows.melt(id_vars=["person", "method"], var_name="score").dropna(subset="value")
    return long.assign(measure=long["score"] + ": " + long["method"])


def main() -> None:
    options = arguments_of(
        __doc__,
        "runs",
        numbers=("", NUMBERS),
        methods=[*CAMS, FAKE, INSIDE, *VARIANTS],
        people=(0, "first of each fold, who are asked; 0 for all"),
        whole=(4, "first of each fold, with curves and AOPC"),
        sensitive=(1, "first of each fold, with max-sensitivity"),
    )
    torch.set_num_threads(1)
    for run in options.runs:
        ask(run, options.methods, options.people, options.whole, options.sensitive)
    if options.numbers:
        print(write_of_runs(options.numbers, options.runs, scores))


if __name__ == "__main__":
    main()
