"""Simple predictors to compare networks with, on their folds and people: what each sees, and what it says out of fold.

A predictor is one record in `BASELINES`. All are fitted in one step after the training.

What simple predictors see of an image: regions, a smoothed image, and what an untrained network makes of it.

The untrained network is after un-CNN 1.0.0 (bioRxiv 2026.06.07.730652), which is set against foundation models: 3D
convolutions with weights drawn once, frozen, at four scales, and a simple model on what they give. A trained network
that is no better has learned nothing that random filters and a ridge do not know. As there: the first scale has two
full convolutions, each later one two depthwise ones with pointwise ones behind, twice as many channels as before; group
normalisation, ReLU, mean pooling; of each scale the means of its channels in the eight octants and the covariances of
its first 32. Unlike there: a quarter of the channels, voxels of 4 mm instead of 2, and the image alone without its
local median and its edges, so that a scan costs a tenth of a second instead of many; a ridge instead of a random
forest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from heatlas.pipeline.models.inputs import NetworkInput, read_channels
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pandas as pd

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Split
from heatlas.pipeline.cohort.people.tasks import SEVERAL_CLASSES, Task, task_of
from heatlas.pipeline.cohort.records import CLINICAL_TABLE, SCANS_TABLE, Scan
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.columns import Form, described
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.run.work.steps import run_step
from heatlas.pipeline.training.baselines.ridge import predicted
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE

Floats = NDArray[np.float64]
FWHM_MM = 8.0
COARSE_MM = 4.0
"""Voxels of the smoothed image: half its FWHM, so that sampling loses next to nothing. And of the untrained network."""
CHANNELS = (16, 32, 64, 128)
NORM_GROUPS = 8
OF_COVARIANCE = 32
EDGE = 3


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What the baselines see of one scan.

    `means`, `spreads`: (kinds of images * regions,), of the regions with voxels on the grid, in the order of their
    numbers; of the first kind of image first. `smoothed`: flat, inside what the network sees. `untrained`: features by
    an untrained network.
    """

    means: Floats
    spreads: Floats
    smoothed: NDArray[np.float32]
    untrained: NDArray[np.float32]


def image_features(files: ScanFiles, spec: NetworkInput, atlas: PackedAtlas) -> ImageFeatures:
    """Read a registered scan as the network sees it, standardise it within the brain, and summarise it.

    Raises BadInputError if the scan cannot be read; see `pipeline.models.inputs.read_channels`.
    """
    volumes, labels = [standardised(image) for image in read_channels(files, spec)], atlas.labels_in(spec.box)
    voxel_mm = min(spec.template_grid.voxel_sizes_mm)
    means, spreads = zip(*(by_region(volume, labels) for volume in volumes), strict=True)
    coarse = [smoothed(volume, voxel_mm) for volume in volumes]
    features = random_features(np.stack([coarsened(volume, voxel_mm) for volume in volumes]))
    return ImageFeatures(np.concatenate(means), np.concatenate(spreads), np.concatenate(coarse), features)


def standardised(volume: NDArray[np.float32]) -> NDArray[np.float32]:
    """Intensities less their mean over the brain, divided by their standard deviation there; 0 outside.

    The scale of a network's input is that of the brightest voxel, which says little of the tissue.
    """
    brain = volume > 0
    scaled = np.zeros_like(volume)
    inside = volume[brain].astype(np.float64)
    scaled[brain] = (inside - inside.mean()) / (inside.std() or 1.0)
    return scaled


def by_region(volume: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Mean and standard deviation in each label above 0, in the order of their numbers.

    Examples
    --------
    >>> by_region(np.array([1.0, 3.0, 5.0, 9.0], np.float32), np.array([2, 2, 0, 7]))
    (array([2., 9.]), array([1., 0.]))
    """
    _, place = np.unique(labels.ravel(), return_inverse=True)
    values = volume.ravel().astype(np.float64)
    counts = np.bincount(place)
    means = np.bincount(place, values) / counts
    variance = np.bincount(place, values**2) / counts - means**2
    first = int((labels == 0).any())
    return means[first:], np.sqrt(np.clip(variance, 0, None))[first:]


def smoothed(volume: NDArray[np.float32], voxel_mm: float) -> NDArray[np.float32]:
    """The volume smoothed to a full width at half maximum of `FWHM_MM`, every `COARSE_MM`, flat."""
    wide = gaussian_filter(volume, FWHM_MM / voxel_mm / np.sqrt(8 * np.log(2)), mode="constant")
    step = _step(voxel_mm)
    return np.ascontiguousarray(wide[::step, ::step, ::step]).ravel().astype(np.float32)


def coarsened(volume: NDArray[np.float32], voxel_mm: float) -> NDArray[np.float32]:
    """Means over cubes of about `COARSE_MM`; voxels that fill no cube are left out.

    Examples
    --------
    >>> coarsened(np.arange(8, dtype=np.float32).reshape(2, 2, 2), 2.0).tolist()
    [[[3.5]]]
    """
    step = _step(voxel_mm)
    sides = [side // step for side in volume.shape]
    whole = volume[tuple(slice(side * step) for side in sides)]
    cubes: NDArray[np.float32] = whole.reshape(sides[0], step, sides[1], step, sides[2], step).mean(axis=(1, 3, 5))
    return cubes


def _step(voxel_mm: float) -> int:
    return max(round(COARSE_MM / voxel_mm), 1)


@lru_cache(maxsize=2)
def random_weights(images: int) -> tuple[tuple[Tensor, ...], ...]:
    """Weights of each scale, the same in every run: full, or depthwise and pointwise in turns.

    Normal, with a variance of 2 / inputs of a filter (He et al. 2015), so that no scale fades.
    """
    import torch

    rng, before, scales = generator(0, "untrained network"), images, []

    def drawn(*shape: int) -> Tensor:
        values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        return torch.from_numpy(values.astype(np.float32))

    for place, width in enumerate(CHANNELS):
        filters = []
        for inputs in (before, width):
            if place == 0:
                filters.append(drawn(width, inputs, EDGE, EDGE, EDGE))
            else:
                filters += [drawn(inputs, 1, EDGE, EDGE, EDGE), drawn(width, inputs, 1, 1, 1)]
        scales.append(tuple(filters))
        before = width
    return tuple(scales)


def random_features(volumes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features of one scan.

    `volumes`: (images, X, Y, Z), standardised, voxels of about 4 mm. Returns (3528,). Of each scale the means of its
    channels in octants, then covariances of its first 32 channels, 16 of the first.
    """
    import torch

    with torch.inference_mode():
        values = torch.from_numpy(np.ascontiguousarray(volumes))[None]
        return torch.cat(list(_scales(values))).numpy()


def _scales(values: Tensor) -> Iterator[Tensor]:
    from torch.nn import functional

    for filters in random_weights(values.shape[1]):
        for weights in filters:
            depthwise = len(filters) == 4 and weights.shape[1] == 1
            groups = len(weights) if depthwise else 1
            values = functional.conv3d(values, weights, padding=weights.shape[2] // 2, groups=groups)
            if not depthwise:
                values = functional.relu(functional.group_norm(values, NORM_GROUPS))
        halved = [min(side, 2) for side in values.shape[2:]]  # a side of one voxel stays
        values = functional.avg_pool3d(values, halved, ceil_mode=True)
        yield functional.adaptive_avg_pool3d(values, 2).flatten()
        yield covariances(values[0, :OF_COVARIANCE].flatten(1))


def covariances(values: Tensor) -> Tensor:
    """Mean products of the deviations of rows (channels, voxels), each pair once, row by row; 0 of one voxel.

    Examples
    --------
    >>> import torch
    >>> covariances(torch.tensor([[1.0, 3.0], [2.0, 6.0], [1.0, -1.0]])).tolist()
    [2.0, -1.0, -2.0]
    """
    import torch

    first, second = torch.triu_indices(len(values), len(values), offset=1)
    return torch.cov(values, correction=0)[first, second]


SEXES = {"F": 0.0, "M": 1.0}
UNTRAINED = "untrained"


@dataclass(frozen=True, eq=False)
class Seen:
    """All that is known of the scans of a run, in one order.

    `clinical`: ``clinical.tsv`` by scan_id; empty if the run has none. `predicted`: column that is to be predicted,
    which no baseline sees.
    """

    scans: Sequence[Scan]
    clinical: pd.DataFrame
    images: Sequence[ImageFeatures]
    predicted: str

    def column(self, name: str) -> Floats:
        """A number of each scan; NaN where it is not known, or is what is to be predicted."""
        if name == self.predicted.lower():  # sources write ``nWBV``
            return np.full(len(self.scans), np.nan)
        if name in self.clinical:
            return self.clinical[name].reindex([scan.scan_id for scan in self.scans]).to_numpy(float)
        values = [getattr(scan, name, None) for scan in self.scans]
        return np.array([np.nan if value is None else SEXES.get(str(value), value) for value in values], dtype=float)


@dataclass(frozen=True)
class Baseline:
    """A predictor to compare the network with.

    `sees`: what it knows of a scan, for readers. `columns`: from `Seen` to an array (scans, columns); columns that
    nobody has are left out by the caller.
    """

    name: str
    sees: str
    columns: Callable[[Seen], Floats]


def _demographic(seen: Seen) -> Floats:
    return np.column_stack([seen.column("age"), seen.column("sex")])


def _volumes(seen: Seen) -> Floats:
    head = seen.column("tiv_mm3")
    hippocampus = seen.column("hippocampus_mm3")
    volumes = [hippocampus, hippocampus / head, seen.column("nwbv"), head]
    there = any(np.isfinite(values).any() for values in volumes[:3])
    return np.column_stack(volumes) if there else np.empty((len(head), 0))


def _with_demographic(columns: Callable[[Seen], Floats]) -> Callable[[Seen], Floats]:
    def both(seen: Seen) -> Floats:
        values = columns(seen)
        return np.column_stack([values, _demographic(seen)]) if values.shape[1] else values

    return both


BASELINES = (
    Baseline("demographics", "age and sex", _demographic),
    Baseline("volumes", "hippocampal and brain volume, age and sex", _with_demographic(_volumes)),
    Baseline(
        "regions",
        "mean and spread of intensity in each region of the atlas",
        lambda seen: np.stack([np.concatenate([image.means, image.spreads]) for image in seen.images]),
    ),
    Baseline(
        "voxels",
        "the image, smoothed to 8 mm",
        lambda seen: np.stack([image.smoothed for image in seen.images]).astype(np.float64),
    ),
    Baseline(
        UNTRAINED,
        "what an untrained network makes of the image",
        lambda seen: np.stack([image.untrained for image in seen.images]).astype(np.float64),
    ),
)
"""All baselines."""


log = logging.getLogger("heatlas")

COLUMNS = {
    **described("participant_id", "session_id", "scan_id"),
    "fold": "Test fold: fitted on the other people of this fold, as the network was",
    "baseline": "What it sees: " + "; ".join(f"{baseline.name} ({baseline.sees})" for baseline in BASELINES),
    "target": "1 for the positive class and 0 for the negative one, of several classes as in predictions.tsv, or the "
    "number",
    "prediction": "Probability of the positive class (of several classes, of the one that maps explain), or the "
    "number: ridge regression, logistic for classes, with the penalty chosen inside the training part",
}
PREDICTIONS_BASELINES_TABLE = Table(
    "predictions_baselines", COLUMNS, "scan and baseline",
    "What do simple predictors say of the same scans? Of several classes each has a probability, in a column with its "
    "name.",
    stage="training", file="group/predictions_baselines.tsv", forms={"target": Form.VALUE, "baseline": Form.CODE},
    filled=("participant_id", "scan_id", "fold", "baseline", "target", "prediction"), finite=True,
)  # fmt: skip


def baselines_table(task: Task) -> Table:
    """``predictions_baselines.tsv`` of a task, with its own columns."""
    several = task.outputs if task.kind.name == SEVERAL_CLASSES else ()
    columns = COLUMNS | {f"probability_{name}": f"Probability of {name}" for name in several}
    return replace(PREDICTIONS_BASELINES_TABLE, meanings=columns)


def compare_with_baselines(
    layout: RunLayout,
    scans: Sequence[Scan],
    split: Split,
    config: Config,
    atlas: PackedAtlas,
    executor: Executor,
    digests: DigestCache,
) -> bool:
    """Write ``predictions_baselines.tsv``; nothing where no network has predicted anyone.

    `scans`: labelled and registered. Those of a test part that a network has not predicted are not predicted here.
    `atlas`: whose regions are measured. Returns whether anything was done. Raises BadInputError if a scan cannot be
    read.
    """
    predicted_by_networks = PREDICTIONS_TABLE.path(layout)
    if not predicted_by_networks.is_file():
        PREDICTIONS_BASELINES_TABLE.remove(layout)
        return False
    spec = configured_input(config)
    files = [layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm) for scan in scans]

    def write() -> list[Path]:
        made = _predictions(layout, scans, files, split, config, atlas, executor, spec)
        return [baselines_table(task_of(config.cohort)).write(layout, made)]

    images = [path for scan in files for path in scan.seen]
    tables = (SPLITS_TABLE, PREDICTIONS_TABLE, CLINICAL_TABLE, SCANS_TABLE)
    inputs = [*images, *(table.path(layout) for table in tables)]
    parameters = [config.cohort, config.seed, atlas.version, spec.box, spec.normalisation]
    return run_step(layout, "baselines", inputs, parameters, [_predictions], write, digests)


def _predictions(
    layout: RunLayout,
    scans: Sequence[Scan],
    files: Sequence[ScanFiles],
    split: Split,
    config: Config,
    atlas: PackedAtlas,
    executor: Executor,
    spec: NetworkInput,
) -> pd.DataFrame:
    n = len(scans)
    images: list[ImageFeatures] = list(executor.map(image_features, files, [spec] * n, [atlas] * n))
    there = CLINICAL_TABLE.path(layout).is_file()
    clinical = CLINICAL_TABLE.read(layout).set_index("scan_id") if there else pd.DataFrame()
    task = task_of(config.cohort)
    classes = 0 if task.is_number else len(task.outputs)
    seen = Seen(scans, clinical, images, task.column)
    target = np.array([task.value(scan.label, scan.name) for scan in scans])
    person = name_of_person(scan.participant_id for scan in scans)
    people = np.array([person[scan.participant_id] for scan in scans])
    predictions = PREDICTIONS_TABLE.read(layout, ["scan_id", "fold"])
    folds = dict(zip(predictions["scan_id"], predictions["fold"], strict=True))
    rows = []
    for baseline in BASELINES:
        columns = baseline.columns(seen)
        columns = columns[:, np.isfinite(columns).any(axis=0)]
        if not columns.shape[1]:
            log.info(
                "baseline %s: nobody has what it sees (%s), so the network is not compared with it; add these columns "
                "to the input's tables",
                baseline.name,
                baseline.sees,
            )
            continue
        for fold in split.folds:
            members = {*fold.train, *fold.validation}
            train = [k for k, scan in enumerate(scans) if scan.participant_id in members]
            test = [k for k, scan in enumerate(scans) if folds.get(scan.scan_id) == fold.index]
            if not test or not _can_be_fitted(target[train], people[train], task):
                continue  # no network to compare with, or too few to learn from
            seed = derived_seed(config.seed, "baselines", fold.index)
            try:
                who = people[train].tolist()
                answers = predicted(columns[train], target[train], who, columns[test], classes, seed)
            except ValueError as error:  # scikit-learn's, of data that no model can be fitted to
                log.warning(
                    "baseline %s, fold %d: %s; the networks of this fold are not compared with it. Use fewer folds, or "
                    "add participants",
                    baseline.name,
                    fold.index,
                    error,
                )
                continue
            for k, answer in zip(test, answers, strict=True):
                scan = scans[k]
                identity = [scan.participant_id, scan.session_id, scan.scan_id, fold.index, baseline.name, target[k]]
                rows.append([*identity, *_cells(answer, task)])
    return pd.DataFrame(rows, columns=list(baselines_table(task).meanings))


def _cells(answer: np.ndarray, task: Task) -> list[float]:
    """The prediction of a scan, and of several classes the probability of each."""
    if task.is_number:
        return [float(answer)]
    every = [float(probability) for probability in answer] if task.kind.name == SEVERAL_CLASSES else []
    return [float(answer[task.unit]), *every]


def _can_be_fitted(target: np.ndarray, people: np.ndarray, task: Task) -> bool:
    """Whether there are two people of each class, or any whose number is known."""
    of_class = [len(set(people[target == value])) for value in range(len(task.outputs))]
    return len(target) > 0 if task.is_number else min(of_class) > 1
