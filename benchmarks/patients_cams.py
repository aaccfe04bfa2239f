"""CAM methods and Opti-CAM with its variants by masked recognition, asked of finished runs of patients.

    python benchmarks/patients_cams.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --page docs/benchmarks/patients_claims.md

As in Zhang et al. (2024): the class that is explained is the true one, maps are of the last features and become masks by
their range, what is hidden is air, insertion starts from the blurred scan. Each person is explained by the network that
was not trained with him or her. Fake-CAM is made at the input, as published. AOPC takes regions of the atlas, and
max-sensitivity (two changed scans) is asked of the first people of each fold. Runs are only read; the answers are kept
in OUT/seed-43/cams.tsv, so that the same command continues. Intervals: people drawn with replacement, means over seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
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
CURVES = ("insertion", "deletion", "AOPC")
STEPS, AOPC_STEPS, BLUR = 20, 10, 5
"""Of insertion and deletion; of AOPC; edge in voxels of the Gaussian that insertion starts from."""
SENSITIVE = 4
"""People of each fold who are asked for max-sensitivity."""
LOWER_IS_BETTER = ("AD", "deletion", "max-sensitivity")
TITLE = "CAM methods"
HEADING = "Claims asked of patients"


def method_of(name: str) -> Method:
    return VARIANTS[name] if name in VARIANTS else METHODS[name].record()


def judged(loaded: LoadedModel, volume: Tensor, labels: Tensor, target: int, sensitive: bool) -> list[dict[str, object]]:
    """A row for each method, of one scan (1, 1, D, H, W)."""
    scan, brain = volume[0, 0], volume[0, 0] != 0
    air = torch.zeros_like(scan)

    def score(volumes: Tensor) -> Tensor:
        return loaded.model(volumes).softmax(1)[:, target]

    with torch.no_grad():
        p = float(score(volume))
    rows = []
    for name in (*VARIANTS, *CAMS, FAKE):
        method = method_of(name)
        stage = 0 if name == FAKE else METHODS[method.name].stage_of(loaded.model)

        def explain(changed: Tensor, method: Method = method, stage: int | str = stage) -> Tensor:
            return attribute(loaded.model, changed[None, None], target, method, stage).values[0, 0]

        started = time.perf_counter()
        values = explain(scan)
        seconds = time.perf_counter() - started
        how = method.normalisation if isinstance(method, OptiCam) else "range"
        with torch.no_grad():
            o = float(score(volume * normalised(values[None, None], how)))
        row = {"method": name, "seconds": seconds, "p": p}
        row |= {"AD": average_drop(p, o), "AG": average_gain(p, o), "AI": average_increase(p, o)}
        if name not in VARIANTS or name == "opti-cam":
            blurred = gaussian_smooth(volume, BLUR)[0, 0]
            voxels = part_numbers(brain)
            row["insertion"] = 100 * removal_curve(score, blurred, scan, voxels, values, STEPS).area
            row["deletion"] = 100 * removal_curve(score, scan, air, voxels, values, STEPS).area
            parts = part_numbers(brain, labels)
            row["AOPC"] = 100 * removal_curve(score, scan, air, parts, values, STEPS).aopc(AOPC_STEPS)
            if sensitive and name != FAKE:
                row["max-sensitivity"] = max_sensitivity(explain, scan, values, brain, samples=2)
        rows.append(row)
    return rows


def answers(run: Path) -> pd.DataFrame:
    """Rows of every person and method of a run."""
    kept = run / "cams.tsv"
    if kept.is_file():
        return pd.read_csv(kept, sep="\t")
    layout = RunLayout(run.resolve())
    config = read_run_config(layout)
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
    people = pd.read_csv(run / "group" / "predictions.tsv", sep="\t")
    rows = []
    for fold, own in people.groupby("fold"):
        loaded = load_model(layout.fold(int(fold)))
        labels = torch.from_numpy(atlas.labels_in(loaded.input.box))
        for place, one in enumerate(own.itertuples()):
            files = layout.scan(one.participant_id, None, loaded.input.resolution_mm)
            volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
            found = judged(loaded, volume, labels, int(one.target), place < SENSITIVE)
            rows += [{"participant_id": one.participant_id, "fold": fold, **row} for row in found]
        print(f"{run.name} fold {fold}", file=sys.stderr, flush=True)
    frame = pd.DataFrame(rows)
    frame.to_csv(kept, sep="\t", index=False)
    return frame
