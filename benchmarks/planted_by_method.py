"""Which methods point at planted disease: hits among the first ten regions, on finished demo runs.

    python benchmarks/planted_by_method.py RUN [RUN ...]

Each RUN is the run folder of a demo (``OUT/run``), or of one repeated with shuffled labels. For the true positives,
regions are ranked by the density of LRP under several rules, and by how far the evidence (patient logit less control
logit) falls per voxel when the region is hidden, either by air or by the mean tissue of the scan. Hiding asks the
network itself and is the reference: it tells a network that does not use the lesions from a map that does not show it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from atlases.labels import load_atlas
from atlases.spaces import template_grid
from pipeline.attribution.composites import Composite, composite, focus, founding
from pipeline.attribution.lrp import lrp
from pipeline.attribution.rules import BetaRule, ZBoxRule
from pipeline.models.inputs import from_network, read_network_volume
from pipeline.models.storage import LoadedModel, load_model
from pipeline.run.config import Config
from pipeline.run.config_files import read_config
from pipeline.run.layout import RunLayout
from pipeline.run.tables import read_table

TOP = 10


def composites(volume: Tensor) -> dict[str, Composite]:
    """Rules to compare; zB with bounds 0 to 1 inside the brain of this scan, 0 outside."""
    plus, box = BetaRule(0.0), ZBoxRule(0.0, (volume != 0).to(volume.dtype))
    return {
        "LRP beta=0 (default)": founding(0.0),
        "LRP beta=0, zB first": Composite("", box, plus, plus, plus),
        "LRP focus": focus(low=0.0, high=box.high),
        "LRP composite gamma=.25": composite(0.25, low=0.0, high=box.high),
    }


def densities(
    loaded: LoadedModel, volume: Tensor, target: int, regions: Mapping[str, np.ndarray]
) -> dict[tuple[str, str], float]:
    """Mean relevance per voxel, by method and region."""
    rules = composites(volume)
    answers = lrp(loaded.model, volume, target, list(rules.values()), "probability")
    maps = {name: from_network(a.values[0, 0].numpy(), loaded.input) for name, a in zip(rules, answers, strict=True)}
    return {
        (name, region): float(values[inside].mean())
        for name, values in maps.items()
        for region, inside in regions.items()
    }


def drops(
    loaded: LoadedModel, volume: Tensor, target: int, regions: Mapping[str, np.ndarray]
) -> dict[tuple[str, str], float]:
    """Fall of the evidence per voxel hidden, by filling and region."""
    whole = from_network(volume[0, 0].numpy(), loaded.input)
    tissue = whole > 0

    def evidence(values: np.ndarray) -> float:
        seen = values if loaded.input.box is None else loaded.input.box.crop(values)
        with torch.no_grad():
            logits = loaded.model(torch.from_numpy(np.ascontiguousarray(seen))[None, None])[0]
        return float(logits[target] - logits[1 - target])

    before, found = evidence(whole), {}
    for name, filling in (("hidden by air", 0.0), ("hidden by mean tissue", float(whole[tissue].mean()))):
        for region, inside in regions.items():
            hidden = np.where(inside & tissue, np.float32(filling), whole)
            found[name, region] = (before - evidence(hidden)) / inside.sum()
    return found


def measure(run: Path) -> pd.DataFrame:
    """Mean over true-positive participants of each value, regions by methods."""
    layout = RunLayout(run)
    config = read_config(layout.config)
    regions = region_masks(config)
    predictions = read_table(layout.predictions)
    positive = config.cohort.positive
    hits = predictions[(predictions["label"] == positive) & (predictions["predicted"] == positive)]
    rows: dict[str, list[dict[tuple[str, str], float]]] = {}
    for scan in hits.itertuples():
        loaded = load_model(layout.fold(int(scan.fold)), torch.device("cpu"))
        files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
        volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
        target = loaded.classes.index(positive)
        values = {**densities(loaded, volume, target, regions), **drops(loaded, volume, target, regions)}
        rows.setdefault(scan.participant_id, []).append(values)
    means = {
        person: {key: np.mean([scan[key] for scan in scans]) for key in scans[0]} for person, scans in rows.items()
    }
    keys = next(iter(means.values())).keys()
    mean = {key: np.mean([values[key] for values in means.values()]) for key in keys}
    return pd.DataFrame({name: {region: v for (n, region), v in mean.items() if n == name} for name, _ in keys})


def region_masks(config: Config) -> dict[str, np.ndarray]:
    """Voxels of each bilateral group that the atlas has."""
    atlas = load_atlas(config.regions.atlas, template_grid(config.registration.resolution_mm))
    labels, groups = np.asarray(atlas.labels), {}
    for region in atlas.regions.regions:
        groups.setdefault(region.group, []).append(region.number)
    masks = {group: np.isin(labels, numbers) for group, numbers in groups.items()}
    return {group: inside for group, inside in masks.items() if inside.any()}


def planted_groups(run: Path) -> list[str]:
    """Names of the planted groups, as the run's own evaluation has them."""
    source = json.loads((run / "dataset_description.json").read_text())["SourceDatasets"][0]["URL"]
    truth = json.loads((Path(source.removeprefix("file://")) / "truth" / "planted.json").read_text())
    return list(truth["planted"])


def main(runs: list[Path]) -> None:
    print("| run | ranking | hits | ranks of the planted regions |\n|---|---|---:|---|")
    for run in runs:
        values, planted = measure(run), planted_groups(run)
        for method in values.columns:
            ranks = values[method].rank(ascending=False).astype(int)
            places = {group: int(ranks[group]) for group in planted}
            hits = sum(place <= TOP for place in places.values())
            listed = ", ".join(f"{group} {place}" for group, place in places.items())
            print(f"| {run.parent.name}/{run.name} | {method} | {hits} of {len(planted)} | {listed} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main([Path(argument) for argument in sys.argv[1:]])
