"""CAM methods where the truth is known: loss planted in copies of patients' controls.

Loss is planted as by `heatlas evaluate --plant`, and scores are those of `heatlas evaluate`, by boxes and by masked
recognition with what lies inside or outside of boxes alone: "score: METHOD".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache, partial

import numpy as np
import torch
from inherent_runs import Ask, Recipe, Workplace, scan_of
from numpy.typing import NDArray
from patients_cams import CAMS, FAKE, mapped
from torch import Tensor

from heatlas.atlases.spaces import read_brain
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.scan_job import boxed, located
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.scores.faithfulness import Faithfulness
from heatlas.pipeline.evaluation.scores.map_scores import (
    ScanMasks,
    boxes_of,
    marker,
    union_of,
)
from heatlas.pipeline.models.storage import LoadedModel, load_model

OPTI, BOXES = "opti-cam", "boxes alone"
"""The map that is 1 everywhere, which shows the boxes themselves, and has what chance gives in SP and EP."""
PERCENT = ("om", "le", "f1", "sp", "sp, ties", "ep")
PEOPLE, FEWER = 22, 8
"""First by name, whose copies are explained; by Opti-CAM."""
RECIPE = Recipe("founding", {"cohort": {"folds": 3}})


@dataclasses.dataclass(frozen=True, eq=False)
class Copied:
    """A copy of a control as its network sees it, (1, 1, D, H, W), the class explained, and where the truth is."""

    loaded: LoadedModel
    volume: Tensor
    target: int
    places: ScanMasks

    @classmethod
    def of(cls, cohort: JudgedCohort, loaded: LoadedModel, scan: Scan) -> Copied:
        assert cohort.truth is not None
        files = cohort.layout.scan(scan.participant_id, scan.session_id, loaded.input.resolution_mm)
        brain, box = read_brain(files.brain_mask, loaded.input.template_grid), loaded.input.box
        inside = brain if box is None else np.ascontiguousarray(box.crop(brain))
        groups = cohort.atlas.regions.groups
        numbers = [number for name in cohort.truth.groups for number in groups[name]]
        marked = any(one.kind == "marker" and scan.name in one.scans for one in cohort.truth.distractors)
        cube = marker(inside.shape, (0, 0, 0)) if marked else None
        size = min(loaded.input.template_grid.voxel_sizes_mm)
        places = ScanMasks.of(inside, cohort.atlas.labels_in(box), numbers, size, cube)
        volume = scan_of(cohort.layout, loaded.input, scan.participant_id, scan.session_id)
        return cls(loaded, volume, loaded.classes.index(str(cohort.config.cohort.positive)), places)

    @property
    def truth(self) -> NDArray[np.bool_]:
        assert self.places.truth is not None
        return self.places.truth

    def map(self, name: str) -> Tensor:
        """Values (D, H, W) of a method's map; Fake-CAM is made at the input, as published."""
        if name == BOXES:
            return torch.ones_like(self.volume[0, 0])
        return mapped(self.loaded.model, self.volume, self.target, name)[0]

    def row(self, values: Tensor) -> dict[str, float]:
        """Scores of a map: by boxes, and by masked recognition through the map with all, or inside or outside boxes."""

        def score(volumes: Tensor) -> Tensor:
            return self.loaded.model(volumes).softmax(1)[:, self.target]

        scan = self.volume[0, 0]
        faithful = Faithfulness(score, scan, torch.zeros_like(scan, dtype=torch.long))
        found = located(values.numpy(), self.places, self.loaded, self.volume, self.target)
        brain, boxes = self.places.brain, union_of(boxes_of(self.truth), self.truth.shape)
        known = values.numpy()[brain]
        found["sp, ties"] = float((known == known.max())[boxes[brain]].any())
        found["chance"] = 100 * float(boxes[brain].mean())
        found |= {name: 100 * found[name] for name in PERCENT}
        seen = faithful.masked(values)
        return found | {name: seen[name] for name in ("ad", "ag", "ai")} | boxed(faithful, values, self.truth)


def units(work: Workplace, seed: int) -> Iterator[tuple[str, Ask]]:
    """Every method of the first people, Opti-CAM of fewer, with one fold of a founding network."""
    own = dataclasses.replace(work, out=work.out / f"seed-{seed}", folds=1)
    own.out.mkdir(parents=True, exist_ok=True)
    yield "recognised", partial(recognised, own, seed)
    for name in (*CAMS, FAKE, BOXES, OPTI):
        yield name, partial(judged, own, seed, name)


@cache
def planted(work: Workplace, seed: int) -> tuple[JudgedCohort, dict[int, LoadedModel]]:
    """The copies of a seed, and the networks that tell them apart."""
    cohort = work.planted(RECIPE.config(work.run, seed))
    return cohort, {fold.index: load_model(cohort.layout.fold(fold.index)) for fold in cohort.tested_folds}


def judged(work: Workplace, seed: int, name: str) -> Iterator[dict[str, object]]:
    cohort, networks = planted(work, seed)
    people = sorted(cohort.positive, key=lambda one: one.participant_id)[: FEWER if name == OPTI else PEOPLE]
    for scan in people:
        fold = cohort.fold_of(scan)
        copied = Copied.of(cohort, networks[fold], scan)
        scores = copied.row(copied.map(name))
        found = {f"{score}: {name}": value for score, value in scores.items()}
        yield {"person": scan.participant_id, "class": 1, "fold": fold, **found}


def recognised(work: Workplace, seed: int) -> Iterator[dict[str, object]]:
    """Whether the class of a copy is found, with loss or without, in per cent."""
    cohort, networks = planted(work, seed)
    for scan in cohort.scans:
        fold = cohort.fold_of(scan)
        copied = Copied.of(cohort, networks[fold], scan)
        with torch.no_grad():
            found = int(copied.loaded.model(copied.volume).argmax()) == copied.target
        right = 100.0 * (found == (scan.label == cohort.config.cohort.positive))
        yield {"person": scan.participant_id, "class": 1, "fold": fold, f"recognised: {scan.label}": right}
