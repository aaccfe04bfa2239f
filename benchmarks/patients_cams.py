"""CAM methods and Opti-CAM with its variants by masked recognition, asked of finished runs of patients.

Method and measures are those of Zhang et al. (2024). Each person is explained by the network that was not trained with
him or her. Opti-CAM is asked of the people of a fold and class at once, as in the source, which times eight images;
PyTorch takes batches of one far longer.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pandas as pd
import torch
from inherent_runs import Ask, Workplace, scan_of
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
FAST, SLOW = ("grad-cam", INSIDE), ("score-cam", "ablation-cam", *VARIANTS)
FEW = 4
"""First of each fold, who are asked of slow methods, and have curves and AOPC; the first has max-sensitivity."""
SAMPLES = 2


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


def units(work: Workplace, _: int) -> Iterator[tuple[str, Ask]]:
    for name in (*FAST, *SLOW):
        yield name, partial(judged, work, name)


def judged(work: Workplace, name: str) -> Iterator[dict[str, object]]:
    """Every score of a method, "SCORE: METHOD", of everybody or of the first of each fold."""
    layout = RunLayout(work.run.resolve())
    config = read_run_config(layout)
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
    for fold, own in pd.read_csv(work.run / "group" / "predictions.tsv", sep="\t").groupby("fold"):
        if work.folds and int(fold) >= work.folds:
            continue
        loaded = load_model(layout.fold(int(fold)))
        labels = torch.from_numpy(atlas.labels_in(loaded.input.box))
        asked = own if name in FAST else own.head(FEW)
        targets = {one.participant_id: int(one.target) for one in asked.itertuples()}
        volumes = {one: scan_of(layout, loaded.input, one) for one in targets}
        ready = together(loaded.model, volumes, targets, name) if name in VARIANTS else {}
        for place, (one, volume) in enumerate(volumes.items()):
            rest = () if name in MASKS or place >= FEW else REST[:-1] if place else REST
            scores = map_and_scores(loaded.model, volume, targets[one], name, rest, labels, ready.get(one))[1]
            yield {"person": one, **{f"{score}: {name}": value for score, value in scores.items()}}
