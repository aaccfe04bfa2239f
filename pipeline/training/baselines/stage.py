"""Simple predictors to compare networks with, on their folds and people: what each sees, and what it says out of fold.

A predictor is one record in `BASELINES`. All are fitted in one step after the training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Fold
from heatlas.pipeline.cohort.people.tasks import SEVERAL_CLASSES, Task, task_of
from heatlas.pipeline.cohort.records import CLINICAL_TABLE, SCANS_TABLE, Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.jobs import run_step
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.pipeline.training.baselines.images import Floats, ImageFeatures, image_features
from heatlas.pipeline.training.baselines.ridge import predicted
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.pipeline.training.tables import declared

SEXES = {"F": 0.0, "M": 1.0}
UNTRAINED = "untrained"


@dataclass(frozen=True, eq=False)
class Seen:
    """All that is known of the scans of a run, in one order.

    `clinical`: ``clinical.tsv`` by scan_id; empty if the run has none. `predicted`: column that no baseline sees.
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

    `sees`: what it knows of a scan, for readers. `columns`: (scans, columns); those that nobody has are left out.
    `person`: columns of people among them, which come last in words.
    """

    name: str
    sees: str
    columns: Callable[[Seen], NDArray[np.floating]]
    person: tuple[str, ...] = ()

    def in_words(self, predicted: str = "") -> str:
        """What it sees, without the column that is predicted."""
        *first, last = [*filter(None, [self.sees]), *(name for name in self.person if name != predicted.lower())]
        return " and ".join(filter(None, [", ".join(first), last]))


PERSON = ("age", "sex")


def _demographic(seen: Seen) -> Floats:
    return np.column_stack([seen.column(name) for name in PERSON])


def _volumes(seen: Seen) -> Floats:
    head = seen.column("tiv_mm3")
    hippocampus = seen.column("hippocampus_mm3")
    volumes = [hippocampus, hippocampus / head, seen.column("nwbv"), head]
    there = any(np.isfinite(values).any() for values in volumes[:3])
    return np.column_stack([*volumes, _demographic(seen)]) if there else np.empty((len(head), 0))


def _of_images(*names: str) -> Callable[[Seen], NDArray[np.floating]]:
    def columns(seen: Seen) -> NDArray[np.floating]:
        return np.stack([np.concatenate([getattr(image, name) for name in names]) for image in seen.images])

    return columns


BASELINES = (
    Baseline("demographics", "", _demographic, PERSON),
    Baseline("volumes", "hippocampal and brain volume", _volumes, PERSON),
    Baseline("regions", "mean and spread of intensity in each region of the atlas", _of_images("means", "spreads")),
    Baseline("voxels", "the image, smoothed to 8 mm", _of_images("smoothed")),
    Baseline(UNTRAINED, "what an untrained network makes of the image", _of_images("untrained")),
)
"""All baselines."""


log = logging.getLogger("heatlas")

PREDICTIONS_BASELINES_TABLE = declared(
    "predictions_baselines", baselines="; ".join(f"{baseline.name} ({baseline.in_words()})" for baseline in BASELINES)
)


def baselines_table(task: Task) -> Table:
    several = task.outputs if task.kind.name == SEVERAL_CLASSES else ()
    probabilities = {f"probability_{name}": f"Probability of {name}" for name in several}
    return replace(PREDICTIONS_BASELINES_TABLE, meanings={**PREDICTIONS_BASELINES_TABLE.meanings, **probabilities})


def compare_with_baselines(work: Work, scans: Sequence[Scan], atlas: PackedAtlas) -> bool:
    """Write ``predictions_baselines.tsv``, and say whether; nothing where no network has predicted anyone.

    `scans`: labelled and registered. Those of a test part that a network has not predicted are not predicted here.
    """
    layout, config = work.layout, work.config
    if not PREDICTIONS_TABLE.path(layout).is_file():
        PREDICTIONS_BASELINES_TABLE.remove(layout)
        return False
    spec = configured_input(config)
    files = [work.files(scan) for scan in scans]

    def write() -> list[Path]:
        layout.scratch.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=layout.scratch) as folder:
            predictions = _predictions(work, scans, files, atlas, spec, Path(folder))
        return [baselines_table(task_of(config.cohort)).write(layout, predictions)]

    images = [path for scan in files for path in scan.seen]
    tables = (SPLITS_TABLE, PREDICTIONS_TABLE, CLINICAL_TABLE, SCANS_TABLE)
    inputs = [*images, *(table.path(layout) for table in tables)]
    parameters = [config.cohort, config.seed, atlas.version, spec.box, spec.normalisation]
    return run_step(layout, "baselines", inputs, parameters, [_predictions], write, work.digests)


def _predictions(
    work: Work, scans: Sequence[Scan], files: Sequence[ScanFiles], atlas: PackedAtlas, spec: NetworkInput, folder: Path
) -> pd.DataFrame:
    """Predictions of all baselines; columns lie in a folder, of which a worker reads the rows of one fold."""
    layout, config, n = work.layout, work.config, len(scans)
    images: list[ImageFeatures] = list(work.executor.map(image_features, files, [spec] * n, [atlas] * n))
    there = CLINICAL_TABLE.path(layout).is_file()
    clinical = CLINICAL_TABLE.read(layout).set_index("scan_id") if there else pd.DataFrame()
    task = task_of(config.cohort)
    classes = len(task.classes)
    seen = Seen(scans, clinical, images, task.column)
    target = np.array([task.value(scan.label, scan.name) for scan in scans])
    person = name_of_person(scan.participant_id for scan in scans)
    people = np.array([person[scan.participant_id] for scan in scans])
    predictions = PREDICTIONS_TABLE.read(layout, ["scan_id", "fold"])
    folds = dict(zip(predictions["scan_id"], predictions["fold"], strict=True))
    asked: list[tuple[Baseline, Fold, list[int]]] = []
    fits: list[tuple[Any, ...]] = []  # the arguments of `_attempt`
    for baseline in BASELINES:
        columns = baseline.columns(seen)
        columns = columns[:, np.isfinite(columns).any(axis=0)]
        if not columns.shape[1]:
            log.info(
                "baseline %s: nobody has what it sees (%s), so the network is not compared with it; add these columns "
                "to the input's tables",
                baseline.name,
                baseline.in_words(seen.predicted),
            )
            continue
        np.save(path := folder / f"{baseline.name}.npy", columns, allow_pickle=False)
        for fold in work.split.folds:
            members = {*fold.train, *fold.validation}
            train = [k for k, scan in enumerate(scans) if scan.participant_id in members]
            test = [k for k, scan in enumerate(scans) if folds.get(scan.scan_id) == fold.index]
            if not test or not _can_be_fitted(target[train], people[train], task):
                continue  # no network to compare with, or too few to learn from
            seed = derived_seed(config.seed, "baselines", fold.index)
            asked.append((baseline, fold, test))
            fits.append((path, train, test, target[train], people[train].tolist(), classes, seed))
    rows = []
    answered = work.executor.map(_attempt, *zip(*fits, strict=True)) if fits else ()
    for (baseline, fold, test), answers in zip(asked, answered, strict=True):
        if isinstance(answers, str):
            log.warning(
                "baseline %s, fold %d: %s; the networks of this fold are not compared with it. Use fewer folds, or "
                "add participants",
                baseline.name,
                fold.index,
                answers,
            )
            continue
        for k, answer in zip(test, answers, strict=True):
            scan = scans[k]
            identity = [scan.participant_id, scan.session_id, scan.scan_id, fold.index, baseline.name, target[k]]
            rows.append([*identity, *_cells(answer, task)])
    return pd.DataFrame(rows, columns=list(baselines_table(task).meanings))


def _attempt(
    path: Path, train: list[int], test: list[int], target: Floats, people: list[str], classes: int, seed: int
) -> Floats | str:
    """`predicted` of rows of a file, or why scikit-learn can fit no model to these data."""
    columns = np.load(path, mmap_mode="r")
    try:
        return predicted(columns[train], target, people, columns[test], classes, seed)
    except ValueError as error:
        return str(error)


def _cells(answer: np.ndarray, task: Task) -> list[float]:
    """The prediction of a scan, and of several classes the probability of each."""
    if not task.classes:
        return [float(answer)]
    every = [float(probability) for probability in answer] if task.kind.name == SEVERAL_CLASSES else []
    return [float(answer[task.unit]), *every]


def _can_be_fitted(target: np.ndarray, people: np.ndarray, task: Task) -> bool:
    of_class = [len(set(people[target == value])) for value in range(len(task.classes))]
    return min(of_class) > 1 if of_class else len(target) > 0
