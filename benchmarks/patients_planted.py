"""CAM methods where the truth is known: loss planted in copies of patients' controls, by finished or registered runs.

    python benchmarks/patients_planted.py RUN OUT --seeds 43 44 45 --numbers NAME

RUN is a registered run of `benchmarks/patients.py`; it is only read. Loss is planted as by `heatlas evaluate --plant`,
and scores are those of `heatlas evaluate`, by boxes and by masked recognition with what lies inside or outside of boxes
alone. OUT/planted.tsv keeps a row per seed, person and map; the same command continues. With --numbers they are stored
for claims, as "score: METHOD".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from claim_numbers import NUMBERS, write_of_study
from harness import added, arguments_of, kept_rows, listed
from inherent_runs import Recipe, Workplace
from numpy.typing import NDArray
from patients_cams import CAMS, FAKE, method_of
from torch import Tensor

from heatlas.atlases.spaces import read_brain
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.registry import METHODS
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
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.run.work.executors import open_executor

OPTI, BOXES = "opti-cam", "boxes alone"
"""The map that is 1 everywhere, which shows the boxes themselves, and has what chance gives in SP and EP."""
REAL = (OPTI, *CAMS)
KEYS = ["seed", "participant_id", "method"]
PERCENT = ("om", "le", "f1", "sp", "sp, ties", "ep")
FINE = ("om", "le", "sm")
PLACES = ("", "_inside", "_outside")
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
        volume = torch.from_numpy(read_channels(files, loaded.input))[None]
        return cls(loaded, volume, loaded.classes.index(str(cohort.config.cohort.positive)), places)

    @property
    def truth(self) -> NDArray[np.bool_]:
        assert self.places.truth is not None
        return self.places.truth

    def map(self, name: str) -> Tensor:
        """Values (D, H, W) of a method's map; Fake-CAM is made at the input, as published."""
        if name == BOXES:
            return torch.ones_like(self.volume[0, 0])
        method = method_of(name)
        stage = 0 if name == FAKE else METHODS[method.name].stage_of(self.loaded.model)
        return attribute(self.loaded.model, self.volume, self.target, method, stage).values[0, 0]

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


def ask(work: Workplace, seed: int, rows: pd.DataFrame, people: int, whole: int) -> pd.DataFrame:
    """The rows with those of a seed: every method of the first people, Opti-CAM of fewer."""
    own = dataclasses.replace(work, out=work.out / f"seed-{seed}")
    own.out.mkdir(parents=True, exist_ok=True)
    cohort = own.planted(RECIPE.config(work.run, seed))
    networks = {fold.index: load_model(cohort.layout.fold(fold.index)) for fold in cohort.tested_folds}
    right = recognised(cohort, networks)
    done = set(rows[rows["seed"] == seed][["participant_id", "method"]].itertuples(index=False, name=None))
    for place, scan in enumerate(sorted(cohort.positive, key=lambda one: one.participant_id)[:people]):
        names = [name for name in (*CAMS, FAKE, BOXES, OPTI) if name != OPTI or place < whole]
        names = [name for name in names if (scan.participant_id, name) not in done]
        if not names:
            continue
        copied = Copied.of(cohort, networks[cohort.fold_of(scan)], scan)
        new: list[Mapping[str, Any]] = [
            {"seed": seed, "participant_id": scan.participant_id, "method": name, "right": right}
            | copied.row(copied.map(name))
            for name in names
        ]
        rows = added(rows, new, work.out / "planted.tsv")
    return rows


def recognised(cohort: JudgedCohort, networks: Mapping[int, LoadedModel]) -> float:
    """Per cent of the copies, with loss and without, whose class is found."""
    right = []
    for scan in cohort.scans:
        copied = Copied.of(cohort, networks[cohort.fold_of(scan)], scan)
        with torch.no_grad():
            found = int(copied.loaded.model(copied.volume).argmax()) == copied.target
        right.append(found == (scan.label == cohort.config.cohort.positive))
    return 100 * float(np.mean(right))


def main() -> None:
    options = arguments_of(
        __doc__,
        "run out --seeds --n-procs",
        numbers=("", NUMBERS),
        people=(22, "first by name, whose copies are explained"),
        whole=(8, "those of them whom Opti-CAM explains too"),
    )
    torch.set_num_threads(1)
    kept = options.out / "planted.tsv"
    rows = kept_rows(kept, KEYS)
    with open_executor(options.n_procs) as executor:
        for whole in (0, options.whole):  # what takes long comes last
            for seed in options.seeds:
                work = Workplace(options.run, options.out, executor, folds=1)
                rows = ask(work, seed, rows, options.people, whole)
    rows = pd.read_csv(kept, sep="\t")
    right = listed(rows.groupby("seed")["right"].first(), ".1f")
    print(f"Recognised, per cent by seed: {right}; boxes are {rows['chance'].mean():.1f} per cent of the brain.")
    if options.numbers:
        long = rows.rename(columns={"participant_id": "person"}).melt(["seed", "person", "method"], var_name="score")
        long = long.assign(measure=long["score"] + ": " + long["method"], fold=0, **{"class": 1})
        print(write_of_study(options.numbers, long.dropna(subset="value"), options.run))


if __name__ == "__main__":
    main()
