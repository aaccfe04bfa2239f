"""How near evidence maps of a run come to what they estimate: sums, regions, rankings; trained networks suffice.

    python benchmarks/evidence_accuracy.py measure RUN FOLDER --scans 60      # resumable: a file per scan
    python benchmarks/evidence_accuracy.py table FOLDER [FOLDER ...]
    python benchmarks/evidence_accuracy.py costs             # on the grid of the demo: 80 x 98 x 80 voxels
    python benchmarks/evidence_accuracy.py costs --grid 160 196 160 --repeats 3

The yardstick of each scan is expected gradients with `POINTS` points on the path from every control: 144 forward and
backward passes for 12 controls. Its points are the midpoints of equal parts, so the points that cheaper designs would
take (12 controls with one point, 6 with two, ...) are among them and cost nothing more; each design is dealt out by
`DEALS` seeds.

Costs are ratios to one forward and backward pass, measured in turn on one thread: process CPU time, medians. Memory is
kept between calls as in a run (`pipeline.run.work.host`). The bounds of the design are 15 for expected gradients and 2
for DeepLIFT.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from harness import arguments_of, line
from harness import table as markdown
from lrp_speed import brain_volume, seeded_network
from numpy.typing import NDArray
from scipy import stats
from timed import cpu_seconds
from torch import Tensor, nn

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.attribution.gradient.gradients import score_and_gradient
from heatlas.pipeline.attribution.gradient.paths import (
    ExpectedGradients,
    IntegratedGradients,
    IntegratedGradientsFromMean,
    PathSample,
    path_integral,
    stratified_alphas,
)
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.attribution.network_view import exact_float32, explaining
from heatlas.pipeline.attribution.reference.deeplift import DeepLift, deeplift
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import DeviceLabels, device_labels, device_region_sums
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.host import kept_memory

POINTS = 12
SEGMENTS = (2, 4, 7)
"""Parts into which the path from the mean control is cut, each explained by DeepLIFT."""
STEPS = 14
DEALS = 50
CONTROLS = 12
"""Of the costs."""
Floats = NDArray[np.float64]


def chosen(scans: list[Scan], most: int) -> list[Scan]:
    """The first scan of each person, classes in turns, so that any number of them is balanced."""
    firsts: dict[str, Scan] = {}
    for scan in scans:
        firsts.setdefault(scan.participant_id, scan)
    places: dict[str | None, int] = {}
    order = []
    for scan in firsts.values():
        places[scan.label] = places.get(scan.label, -1) + 1
        order.append((places[scan.label], str(scan.label), scan.participant_id, scan))
    return [one[-1] for one in sorted(order, key=lambda one: one[:3])][:most]


def measure(run: Path, folder: Path, most: int) -> None:
    """Write a file for each scan that has none yet."""
    layout = RunLayout(run.resolve())
    config = read_run_config(layout)
    scans, split = ScanTable.read(layout.root / "scans.tsv").kept, Split.read(layout.root / "splits.tsv")
    resolution = config.registration.resolution_mm
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, template_grid(resolution)))
    controls = controls_of(scans, split, config)
    folder.mkdir(parents=True, exist_ok=True)
    for scan in chosen([scan for scan in scans if scan.label is not None], most):
        out, fold = folder / f"{scan.scan_id}.npz", split.fold_of_test(scan.participant_id)
        if out.exists() or fold is None:
            continue
        loaded = load_model(layout.fold(fold.index))

        def seen(one: Scan) -> Tensor:
            files = layout.scan(one.participant_id, one.session_id, resolution)
            return torch.from_numpy(read_network_volume(files, loaded.input))[None, None]  # noqa: B023

        people = controls.of(fold.index, scan)
        reference = Reference(torch.cat([seen(one) for one in people]), tuple(one.participant_id for one in people))
        labels = device_labels(atlas.labels, loaded.input.box, torch.device("cpu"))
        target = loaded.classes.index(task_of(config.cohort).explained)
        found = maps_of(loaded.model, seen(scan), reference, target, labels)
        unfinished = out.with_suffix(".part")
        with unfinished.open("wb") as handle:
            facts = {"label": str(scan.label), "positive": config.cohort.positive}
            np.savez(handle, **facts, numbers=labels.numbers, n_voxels=labels.n_voxels, **found)
        unfinished.rename(out)
        print(scan.scan_id, flush=True)


def maps_of(
    model: nn.Module, volume: Tensor, reference: Reference, target: int, labels: DeviceLabels
) -> Mapping[str, NDArray[np.generic]]:
    """Sums over regions, and the whole, of every map of one scan."""
    found: dict[str, NDArray[np.generic]] = {}
    mean = reference.mean

    def sums(one: Tensor) -> Floats:
        return np.append(device_region_sums(one[0], labels).numpy()[0], float(one.double().sum()))

    with kept_memory(), explaining(model, volume, target, 0, "evidence") as view:
        with torch.no_grad():
            found["evidence"] = view.own_score.double().numpy()
            found["of_controls"] = torch.cat([view.score(one) for one in torch.split(reference.volumes, 1)]).numpy()
            found["of_mean"] = view.score(mean).numpy()
        parts = []
        for control in torch.split(reference.volumes, 1):
            for point in range(POINTS):
                _, gradient = score_and_gradient(view.score, torch.lerp(control, volume, (point + 0.5) / POINTS))
                parts.append(sums((volume - control) * gradient))
        found["points"] = np.stack(parts).reshape(len(reference.people), POINTS, -1)
        maps = {
            "ig": path_integral(view.score, volume, mean, STEPS).attributions,
            "long": path_integral(view.score, volume, mean, 4 * STEPS).attributions,
        }
    with exact_float32(volume.device):
        each = [deeplift(model, volume, one, target)[0] for one in torch.split(reference.volumes, 1)]
        maps["deeplift"] = deeplift(model, volume, mean, target)[0]
        maps["deeplift-each"] = torch.stack(each).mean(0)
        for count in SEGMENTS:
            maps[f"segments-{count}"] = sum(segments(model, volume, mean, target, count))
    for name, one in maps.items():
        found[f"map {name}"] = sums(one)
    return found


def segments(model: nn.Module, volume: Tensor, start: Tensor, target: int, count: int) -> Iterator[Tensor]:
    """DeepLIFT from part to part of the straight path; the sum is complete, and IG with many parts."""
    ends = [torch.lerp(start, volume, place / count) for place in range(count + 1)]
    for before, after in itertools.pairwise(ends):
        yield deeplift(model, after, before, target)[0]


def designs(one: Mapping[str, NDArray[np.generic]]) -> Iterator[tuple[str, list[Floats], float]]:
    """Maps of a scan by design (sums of regions, total last), one per deal, and what each must add up to."""
    points, evidence = one["points"], float(one["evidence"][0])
    to_controls = evidence - float(one["of_controls"].mean())
    to_mean = evidence - float(one["of_mean"][0])
    count = len(points)
    yield f"expected gradients, {POINTS} points (the yardstick)", [points.mean((0, 1))], to_controls
    for name, controls, each in (("1 point", count, 1), ("half the controls, 2 points", count // 2, 2)):
        drawn = [dealt(points, controls, each, seed) for seed in range(DEALS)]
        yield f"expected gradients, {name}", [sample.mean(0) for sample, _ in drawn], to_controls
        if controls == count:
            weighted = [controlled(sample, to_controls) for sample, _ in drawn]
            yield f"expected gradients, {name}, control variate", weighted, to_controls
            scaled = [sample.mean(0) * to_controls / sample[:, -1].mean() for sample, _ in drawn]
            yield f"expected gradients, {name}, scaled to its sum", scaled, to_controls
    titles = {
        "ig": f"integrated gradients from the mean, {STEPS} points",
        "long": f"integrated gradients from the mean, {4 * STEPS} points",
        "deeplift": "DeepLIFT from the mean",
        "deeplift-each": "DeepLIFT from each control",
        **{f"segments-{count}": f"DeepLIFT from the mean in {count} parts of the path" for count in SEGMENTS},
    }
    for name, title in titles.items():
        yield title, [one[f"map {name}"]], to_controls if name == "deeplift-each" else to_mean


def dealt(points: Floats, controls: int, each: int, seed: int) -> tuple[Floats, Floats]:
    """The points that a design takes, of controls that the seed draws."""
    order = np.random.default_rng(seed).permutation(len(points))[:controls]
    alphas = stratified_alphas(controls, each, seed).numpy()
    place = np.minimum(np.floor(alphas * POINTS + 1e-9).astype(int), POINTS - 1)
    return points[np.repeat(np.sort(order), each), place.ravel()], alphas


def controlled(sample: Floats, wanted: float) -> Floats:
    """`PathSample.controlled` of points that are at hand."""
    deviation = sample[:, -1] - sample[:, -1].mean()
    sums = (sample.mean(0), (deviation[:, None] * sample).mean(0), sample[:, -1])
    return PathSample(*map(torch.from_numpy, sums)).controlled(wanted).numpy()


def table(folder: Path) -> None:
    """One row per design: error of the sum, of regions, of the ranking by the difference of the classes."""
    scans = [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]
    patients = np.array([str(one["label"]) == str(one["positive"]) for one in scans])
    voxels = np.maximum(scans[0]["n_voxels"][1:], 1)
    rows: dict[str, list[tuple[list[Floats], float, Floats]]] = {}
    for one in scans:
        yardstick = one["points"].mean((0, 1))
        for name, maps, wanted in designs(one):
            rows.setdefault(name, []).append((maps, wanted, yardstick))
    print(f"{folder.name}: {len(scans)} scans, {patients.sum()} of them patients\n")
    columns = "sum misses: median, largest", "of the median evidence", "regions: r, relative error", "ranks of g"
    print(*markdown(["map", *columns]), sep="\n")
    for name, found in rows.items():
        missed = np.array([[abs(one[-1] - wanted) for one in maps] for maps, wanted, _ in found])
        evidence = np.median([abs(wanted) for _, wanted, _ in found])
        pairs = [(one[1:-1], mark[1:-1]) for maps, _, mark in found for one in maps]
        r = np.median([np.corrcoef(a, b)[0, 1] for a, b in pairs])
        apart = np.median([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])
        target = effects(np.array([mark[1:-1] for _, _, mark in found]) / voxels, patients)
        by_deal = (np.array([maps[k][1:-1] for maps, _, _ in found]) / voxels for k in range(len(found[0][0])))
        ranks = np.mean([stats.spearmanr(effects(each, patients), target)[0] for each in by_deal])
        share = f"{100 * np.median(missed) / evidence:.1f} %"
        missing = f"{np.median(missed):.3f}, {missed.max():.2f}"
        print(line(name, missing, share, f"{r:.3f}, {apart:.2f}", f"{ranks:.2f}"))


def effects(densities: Floats, patients: NDArray[np.bool_]) -> Floats:
    """Standardised difference of the classes in each region."""
    a, b = densities[patients], densities[~patients]
    spread = np.sqrt((a.var(0, ddof=1) + b.var(0, ddof=1)) / 2)
    return np.divide(a.mean(0) - b.mean(0), spread, out=np.zeros_like(spread), where=spread > 0)


def like(volume: Tensor) -> Reference:
    """People like the volume: its voxels times numbers around 1, air kept."""
    draw = torch.Generator().manual_seed(3)
    noise = torch.randn(CONTROLS, *volume.shape[1:], generator=draw)
    return Reference(volume * (1 + 0.1 * noise), tuple(f"sub-{number}" for number in range(CONTROLS)))


def costs(grid: tuple[int, int, int], repeats: int) -> None:
    """Print what maps cost, in ratios to one forward and backward pass measured in turn."""
    volume = brain_volume(tuple(grid))
    model, reference = seeded_network(volume, seed=1), like(volume)
    with torch.no_grad():
        known = Reference(reference.volumes, reference.people, model(reference.volumes))
    methods = {
        "expected gradients, 12 controls": (ExpectedGradients(known), "evidence"),
        "integrated gradients from the mean, 14 points": (IntegratedGradientsFromMean(known), "evidence"),
        "DeepLIFT from the mean": (DeepLift(known), "evidence"),
        "integrated gradients from air, 50 points": (IntegratedGradients(tolerance=np.inf), "logit"),
    }

    def passes() -> None:
        leaf = volume.clone().requires_grad_()
        score = model(leaf)
        torch.autograd.grad(score[0, 1] - score[0, 0], leaf)

    print(*markdown(["map", "forward and backward passes (least to most)"]), sep="\n")
    with kept_memory():
        passes()
        for name, (method, start) in methods.items():
            ratios = []
            for _ in range(repeats):
                cost = cpu_seconds(lambda: attribute_all(model, volume, 1, method, 0, start))  # noqa: B023
                ratios.append(cost / np.median([cpu_seconds(passes) for _ in range(3)]))
            print(line(name, f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"), flush=True)
        once = np.median([cpu_seconds(passes) for _ in range(9)])
    print(f"\nOne forward and backward pass: {1000 * once:.0f} ms of one core.")


def main() -> None:
    options = arguments_of(
        __doc__,
        "step folders --grid --repeats",
        step={"choices": ["measure", "table", "costs"]},
        folders={"type": Path, "nargs": "*"},
        grid={"type": int, "nargs": 3, "default": (80, 98, 80)},
        repeats=7,
        scans=1000,
    )
    torch.set_num_threads(1)
    if options.step == "measure":
        measure(*options.folders, options.scans)
    elif options.step == "table":
        for each in options.folders:
            table(each)
    else:
        costs(tuple(options.grid), options.repeats)


if __name__ == "__main__":
    main()
