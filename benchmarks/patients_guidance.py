"""Guidance and distillation on scans of a run at 4 mm, with a marker: the conditions of patients_guidance.toml.

The marker is a small cube in a corner, as bright as the brightest voxel; in training and validation it goes with the
diagnosis (95 %), and who is tested has a copy with and one without. Masks and measures are those of `heatlas evaluate
--parts marker`. Networks stay in OUT, a folder a section: others go on from them or are taught by them. Other settings,
or more folds (`--folds`), need another OUT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from inherent_runs import PERSON, Ask, Workplace, learn, records_of
from numpy.typing import NDArray
from scipy.ndimage import find_objects
from torch import Tensor
from torch.nn import functional

from heatlas.pipeline.cohort.people.splits import Fold, few_people
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.scores.localisation import HALF, Bools, best_threshold
from heatlas.pipeline.evaluation.scores.map_scores import MARKER_OFFSET, boxes_of, union_of
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import configured_input, read_network_volume
from heatlas.pipeline.run.config.networks import ModelConfig, ObjectiveConfig
from heatlas.pipeline.run.config.settings import CohortConfig, TrainingConfig
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.tables import write_bytes
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.objectives.records import Context
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes, answered_by
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.before_after.stage import EQUAL, LARGEST_DROP
from heatlas.studies.marker.marker_groups import MarkerMasks, map_measures, tied_marks
from heatlas.studies.objectives.distillation import Distillation, distilled, frozen
from heatlas.studies.objectives.guidance import Guidance, guided, mask_of
from heatlas.studies.objectives.maps_in_training import explained_batch
from heatlas.workflows.evaluate import registered_scans

Places = NDArray[np.intp]
Shown = tuple[Tensor, NDArray[np.float32]]
RECIPE = TrainingConfig(
    max_epochs=30, min_epochs=30, max_shift_voxels=1, precision="float32", balance_classes=True,
    learning_rate=3e-3, learning_rate_schedule="cosine",
)  # fmt: skip
GOING_ON = 1e-3  # learning rate of a trained network that goes on
FOUNDING = FoundingConfig(channels=(4, 8, 16), pools=(2, 2, 3), hidden_units=16, dropout=0.0)
FAMILIES: Mapping[str, ModelConfig] = {
    "founding": FOUNDING,
    "founding without biases": replace(FOUNDING, bias=False),
    "bcos": BcosSimpleConfig(channels=(4, 8, 16), strides=(2, 2, 2)),
}
FOLDS = 3
VOXEL_MM = 4
TEMPORAL = ("Hippocampus", "Amygdala", "Entorhinal area", "Parahippocampal gyrus")  # mask "regions"
MARKER_VOXELS = 6  # edge; with 3 these small networks never used the marker
CHOOSING = ("correct", "EPG", "IoU")  # of the validation part, by which the weight of a loss is chosen
VALIDATION = "validation: "


@dataclass(frozen=True)
class Condition:
    """One way to train. Shares are from 0 to 1; `mask` is "brain", "sides" or "outside"."""

    name: str
    loss: str = ""  # of guidance; empty for none
    weight: float = 1.0  # of the maps
    mask: str = "brain"
    annotated: float = 1.0  # share of the people to train with; at least one person
    map: str = "input-x-gradient"  # that is guided
    teacher: str = ""  # condition whose network teaches; empty for none
    taught: str = "grad-cam"  # map of students and teachers: this, after the last stage, or "dynamic-weights"
    people: float = 1.0  # share of each class to train with, at least one of each
    others: bool = False  # learn from people without a label (MCI) instead, none of whom has the marker
    family: str = "founding"  # of `FAMILIES`
    reversed: bool = False  # the marker is to be recognised, and the diagnosis goes with it
    unmarked: bool = False  # nobody has the marker in training: what a network can reach that knows nothing of it
    plain: bool = False  # nobody has the marker, in testing neither
    enlarged: float = 0.0  # share of its width that each box of the mask grows on either side, in training alone
    stage: int = 0  # boundary at which the map is guided; -1 the last with voxels
    shown: str = "input-x-gradient"  # map that is measured
    frozen: bool = False  # the teacher is asked once for each scan; its maps are flipped and shifted with the scans
    longer: float = 1  # times as many epochs: of few people, as many steps as of all
    begins: str = ""  # condition whose trained network goes on; empty for a fresh one
    held_out: bool = False  # IoU at the threshold best on the validation part, and on-object EPG of regions in boxes


RECORDS = [*records_of(Path(__file__).with_suffix(".toml"))]
CONDITIONS = {
    section: {name: Condition(name, **settings) for own, name, settings in RECORDS if own == section}
    for section in dict.fromkeys(section for section, _, _ in RECORDS)
}
"""By section and name, teachers before students."""


@dataclass(frozen=True, eq=False)
class Cohort:
    names: Sequence[str]
    volumes: Tensor  # (people, copies, D, H, W), copies plain and marked
    positive: Bools  # who has the disease
    masks: Mapping[str, Tensor]
    marker: Tensor
    others: Tensor  # scans of people without a label, (M, D, H, W)


@cache
def load(run: Path) -> Cohort:
    """One scan of each labelled person of a run with voxels of 2 or 4 mm, at 4 mm, with and without the marker."""
    layout = EvaluationLayout(run.resolve())
    config = read_run_config(layout)
    spec, task = configured_input(config), task_of(config.cohort)
    factor = round(VOXEL_MM / spec.resolution_mm)
    firsts: dict[str, Scan] = {}
    unlabelled: dict[str, Scan] = {}
    for scan in registered_scans(layout, config)[0]:
        (firsts if scan.label in task.outputs else unlabelled).setdefault(scan.participant_id, scan)

    def read(scans: Mapping[str, Scan]) -> Tensor:
        files = [layout.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in scans.values()]
        volumes = np.array([read_network_volume(own, spec) for own in files], np.float32).reshape(-1, *spec.shape)
        return functional.avg_pool3d(torch.from_numpy(volumes)[:, None], factor)[:, 0]

    plain = read(firsts)
    cube = torch.zeros(plain.shape[1:], dtype=torch.bool)
    cube[(slice(MARKER_OFFSET, MARKER_OFFSET + MARKER_VOXELS),) * 3] = True
    cube &= ~(plain > 0).any(0)
    marked = torch.where(cube, plain.flatten(1).amax(1)[:, None, None, None], plain)
    brain = (plain > 0).float().mean(0) > 0.5
    own = mask_of(ObjectiveConfig(kind="guided", regions=TEMPORAL), config.regions.atlas, spec)
    regions = functional.avg_pool3d(torch.from_numpy(own).float()[None], factor)[0] >= 0.5
    masks = {"brain": brain, "regions": regions, "sides": enlarged(regions, 0.0), "outside": ~brain}
    positive = np.array([scan.label == config.cohort.positive for scan in firsts.values()])
    return Cohort(list(firsts), torch.stack([plain, marked], 1), positive, masks, cube, read(unlabelled))


def enlarged(mask: Tensor, share: float) -> Tensor:
    """Bounding boxes of the connected parts of a mask, each grown on either side by a share of its width there.

    As Rao et al. 2023 make annotations coarse; clipped at the border.
    """
    filled = torch.zeros_like(mask)
    for box in boxes_of(mask.numpy()):
        grown = [(side, round(share * (side.stop - side.start))) for side in box]
        filled[tuple(slice(max(side.start - more, 0), side.stop + more) for side, more in grown)] = True
    return filled


def parts_of(positive: Bools, fold: int, seed: int) -> tuple[Places, ...]:
    """Who trains, who selects the epoch and who is tested, by place; of each class the same shares."""
    parts = []
    for label in (False, True):
        own = np.flatnonzero(positive == label)
        order = own[generator(seed, "folds", int(label)).permutation(len(own))]
        tested = order[fold::FOLDS]
        rest = np.setdiff1d(order, tested)
        rest = rest[generator(seed, "validation", fold, int(label)).permutation(len(rest))]
        count = max(round(len(rest) / 5), 1)
        parts.append((rest[count:], rest[:count], tested))
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


@dataclass(frozen=True, eq=False)
class Trainings:
    """The networks of a section and seed."""

    work: Workplace
    section: str
    seed: int

    @property
    def cohort(self) -> Cohort:
        return load(self.work.run)

    def network(self, name: str, fold: int) -> StagedModel:
        """Trained if it is not kept; initial weights and order of scans are the same in all conditions of a family."""
        one = CONDITIONS[self.section][name]
        kept = self.work.out / self.section / f"{name}_seed-{self.seed}_fold-{fold}.pt"
        torch.manual_seed(derived_seed(self.seed, "weights", fold))
        model = build_network(FAMILIES[one.family], tuple(self.cohort.volumes.shape[2:]), 2)
        if not kept.is_file():
            if one.begins:
                model.load_state_dict(self.network(one.begins, fold).state_dict())
            whole = BytesIO()
            torch.save(self.trained(model, one, fold).state_dict(), whole)
            write_bytes(kept, whole.getvalue())
        model.load_state_dict(torch.load(kept, weights_only=True))
        return model.eval().requires_grad_(False)

    def trained(self, model: StagedModel, one: Condition, fold: int) -> StagedModel:
        cohort, seed = self.cohort, self.seed
        learning, selecting, _ = parts_of(cohort.positive, fold, seed)
        classes = {str(person): bool(cohort.positive[person]) for person in learning}
        few = few_people(Fold(0, tuple(classes), (), ()), classes, one.people, seed)
        learning = np.array([int(person) for person in few.train])
        marks = tied_marks(cohort.positive, seed) & (not one.unmarked and not one.plain)
        labels = marks if one.reversed else cohort.positive

        def part(people: Places) -> LabelledVolumes:
            own = cohort.volumes[torch.from_numpy(people), torch.from_numpy(marks[people].astype(int))]
            return LabelledVolumes(own[:, None].to(STORED), torch.from_numpy(labels[people].astype(np.int64)))

        training, context = part(learning), Context()
        epochs = round(RECIPE.max_epochs * one.longer)
        rate = GOING_ON if one.begins else RECIPE.learning_rate
        recipe = replace(RECIPE, max_epochs=epochs, min_epochs=epochs, learning_rate=rate)
        usual = family_of(FAMILIES[one.family]).loss
        objective = objective_of(task_of(CohortConfig()), recipe, training.targets, usual)
        if one.loss:
            objective = guided(objective, Guidance(one.loss, one.map, one.stage, one.weight))
            order = generator(seed, "annotated", fold).permutation(len(learning))
            first = order[: max(round(one.annotated * len(learning)), 1)]
            annotated = torch.from_numpy(np.isin(np.arange(len(learning)), first))
            mask = enlarged(cohort.masks[one.mask], one.enlarged) if one.enlarged else cohort.masks[one.mask]
            context = Context(masks=mask[None].float(), annotated=annotated)
        elif one.teacher:
            stage = 0 if one.taught == "dynamic-weights" else -1
            how = Distillation(weight=one.weight, map=one.taught, student_stage=stage, teacher_stage=stage)
            objective = distilled(objective, how, usual != "cross-entropy")
            context = Context(teacher=self.network(one.teacher, fold))
            if one.others:
                unknown = torch.zeros(len(cohort.others), dtype=torch.int64)
                asked = LabelledVolumes(cohort.others[:, None].to(STORED), unknown)
                training = answered_by(context.teacher, asked, RECIPE.batch_size)
            if one.frozen:
                context = frozen(context, training.volumes, how, RECIPE.batch_size)
        return learn(model, training, part(selecting), objective, recipe, seed + fold, context)

    def judged(self, one: Condition) -> pd.DataFrame:
        """Answers of tested people; where nobody has the marker, of those of the validation part what chooses."""
        found = []
        for fold in range(self.work.folds or FOLDS):
            _, selecting, testing = parts_of(self.cohort.positive, fold, self.seed)
            threshold = HALF
            if one.held_out:
                model = self.network(one.name, fold)
                maps = [self.explained(one, model, person, 0)[1] for person in selecting]
                threshold = best_threshold(maps, [self.cohort.masks[one.mask].numpy()] * len(maps))
            found.append(self.answers(one, fold, testing, threshold))
            if one.plain:
                known = self.answers(one, fold, selecting, threshold)[[*PERSON, *CHOOSING]]
                found.append(known.rename(columns={word: VALIDATION + word for word in CHOOSING}))
        return pd.concat(found)

    def explained(self, one: Condition, model: StagedModel, person: int, copy: int, stage: int = 0) -> Shown:
        """Logits of a copy of a person's scan, and the map of its true class."""
        true = torch.tensor([copy if one.reversed else int(self.cohort.positive[person])])
        found = explained_batch(model, self.cohort.volumes[person, copy][None, None], true, one.shown, stage, False)
        return found.logits[0].detach(), found.maps[0].detach().numpy()

    def answers(self, one: Condition, fold: int, people: Places, threshold: float) -> pd.DataFrame:
        """A row per person, means of both copies: answers, measures of maps, likeness to the teacher.

        Against training: the copy whose marker does not go with the diagnosis. The logit, by which networks are better
        than a coin or not, is that of the other copy; in the reversed task, where people are not what networks tell
        apart, there is none.
        """
        model = self.network(one.name, fold)
        teacher = self.network(one.teacher, fold) if one.teacher else None
        cohort, rows = self.cohort, []
        mask, brain, marker = cohort.masks[one.mask].numpy(), cohort.masks["brain"], cohort.marker.numpy()
        places = MarkerMasks(mask, union_of(find_objects(mask.astype(np.int8)), mask.shape), marker)
        inside = MarkerMasks(cohort.masks["regions"].numpy(), mask, marker)
        for person, copy in product(people, (0,) if one.plain else (0, 1)):
            positive = int(cohort.positive[person])
            logits, values = self.explained(one, model, person, copy)
            answer, maps = int(logits.argmax()), map_measures(values, places, threshold)
            row = {"correct": float(answer == (copy if one.reversed else positive)), "EPG": maps["epg"]}
            on_object = (map_measures(values, inside) if one.held_out else maps)["on_object_epg"]
            row |= {"IoU": maps["iou"], "on marker": maps["on_marker"], "on-object EPG": on_object}
            if one.plain:
                row["EPG, last stage"] = map_measures(self.explained(one, model, person, copy, -1)[1], places)["epg"]
            if not one.reversed and (one.plain or copy == positive):
                row["logit"] = float(logits.diff())
            if teacher is not None:
                volume = cohort.volumes[person, copy][None, None]
                asked = teacher(volume).argmax(1)
                cams = [explained_batch(net, volume, asked, "grad-cam", -1, False).maps for net in (model, teacher)]
                alike = functional.cosine_similarity(*((cam.detach() * brain).flatten(1) for cam in cams))
                row |= {"agreement": float(answer == int(asked)), "cosine": alike.item()}
            if not one.plain:
                words = "as in training" if copy == positive else "against training"
                row |= {f"{name}, {words}": row[name] for name in ("correct", "agreement") if name in row}
            rows.append({"person": cohort.names[person], "class": positive, "fold": fold, **row})
        return pd.DataFrame(rows).groupby(PERSON, as_index=False).mean()


def units(work: Workplace, seed: int, section: str) -> Iterator[tuple[str, Ask]]:
    """Conditions, each with all folds."""
    for name, one in CONDITIONS[section].items():
        yield name, partial(Trainings(work, section, seed).judged, one)


def weights_chosen(known: pd.DataFrame, wanted: Iterable[Condition], measure: str) -> dict[str, Condition]:
    """By "NETWORK-LOSS", the condition with the largest measure of all "NETWORK-LOSS-WEIGHT", if there are several.

    Its accuracy is at most 5 points below that of NETWORK-on, which goes on without guidance; if there is none such, it
    has the smallest weight. `known`: mean measures by condition.
    """
    swept: dict[str, list[Condition]] = {}
    for one in wanted:
        if one.name in known.index and one.name.endswith(f"-{one.loss}-{one.weight:g}"):
            swept.setdefault(one.name.rpartition("-")[0], []).append(one)
    found = {}
    for name, own in swept.items():
        if len(own) == 1:
            continue
        least = known.loc[name.removesuffix(own[0].loss) + "on", "correct"] - LARGEST_DROP - EQUAL
        allowed = [one for one in own if known.loc[one.name, "correct"] >= least] or own[:1]
        found[name] = max(allowed, key=lambda one: known.loc[one.name, measure])
    return found


def numbers_of(rows: pd.DataFrame, section: str) -> pd.DataFrame:
    """What tested people have, by condition, also of weights chosen for a fold, "NETWORK-LOSS by EPG".

    What chooses is what networks of all seeds and folds answer of people in their validation parts who are not tested
    there: nobody helps to choose the weight of a network that is tested on them.
    """
    of_validation = rows["measure"].str.startswith(VALIDATION)
    tested, validation = rows[~of_validation], rows[of_validation]
    found = [tested]
    for (seed, fold), here in tested.groupby(["seed", "fold"]):
        known = validation[~validation["person"].isin(here["person"]) & validation["recipe"].isin(here["recipe"])]
        means = known.pivot_table("value", "recipe", "measure").rename(columns=lambda one: one.removeprefix(VALIDATION))
        for measure in CHOOSING[1:]:
            for name, one in weights_chosen(means, CONDITIONS[section].values(), measure).items():
                print(f"{name} by {measure}, seed {seed}, fold {fold}: weight {one.weight:g}")
                found.append(here[here["recipe"] == one.name].assign(recipe=f"{name} by {measure}"))
    return pd.concat(found)
