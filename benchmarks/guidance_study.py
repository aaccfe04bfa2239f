"""What guidance and distillation do on a marker cohort: paired differences from controls that trained as long.

    python benchmarks/guidance_study.py /tmp/demo/run /tmp/study --seeds 43 44 45
    python benchmarks/guidance_study.py /tmp/demo/run /tmp/study --seeds 43 44 45 --only control energy-brain

RUN has registered scans at 2 or 4 mm, and is only read: one scan of each person, at 4 mm. The marker is a small cube in
a corner, as bright as the brightest voxel; in training and validation it goes with the diagnosis (95 %), and who is
tested has a copy with and one without. Masks and measures are those of `heatlas evaluate --parts marker`. A training
that is done is not repeated: other epochs need another OUT. Writes OUT/guidance_study.tsv, an answer a row, and prints
the weights that are chosen for each network by people it is not tested on. With --numbers what test people have is
stored for claims, named "CONDITION, MEASURE", or "LOSS by EPG, MEASURE" of the chosen weights.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from claim_numbers import NUMBERS, write_of_study
from guidance_conditions import ON, Condition, sections
from harness import arguments_of
from scipy.ndimage import find_objects
from scipy.ndimage import label as label_parts
from torch import nn
from torch.nn import functional

from heatlas.pipeline.cohort.people.splits import Fold, few_people
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.scores.localisation import IOU_THRESHOLDS, best_place, iou_curve
from heatlas.pipeline.evaluation.scores.map_scores import MARKER_OFFSET
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import configured_input, read_network_volume
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.settings import CohortConfig, TrainingConfig
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.objectives.records import Context, Objective
from heatlas.pipeline.training.progress import remove_checkpoint
from heatlas.pipeline.training.steps import repeatable
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes, answered_by
from heatlas.studies.before_after.stage import EQUAL, LARGEST_DROP
from heatlas.studies.marker.marker_groups import MarkerMasks, map_measures, tied_marks
from heatlas.studies.objectives.distillation import Distillation, distilled, frozen
from heatlas.studies.objectives.guidance import Guidance, guided, mask_of
from heatlas.studies.objectives.maps_in_training import explained_batch
from heatlas.workflows.evaluate import registered_scans

RECIPE = TrainingConfig(
    max_epochs=30,
    min_epochs=30,
    max_shift_voxels=1,
    precision="float32",
    learning_rate=3e-3,
    learning_rate_schedule="cosine",
)
GOING_ON = 1e-3
"""Learning rate of a trained network that is guided."""
OBJECT = "regions"
"""Mask of what the boxes of a `held_out` condition are around."""
FOLDS = 3
VOXEL_MM = 4
TEMPORAL = ("Hippocampus", "Amygdala", "Entorhinal area", "Parahippocampal gyrus")
"""Mask `regions`."""
MARKER_VOXELS = 6
"""Edge; with 3 these small networks never used the marker."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """Volumes (people, copies, D, H, W), copies plain and marked; masks by name; who has the disease.

    `others` are scans of people without a label, (M, D, H, W).
    """

    names: Sequence[str]
    volumes: torch.Tensor
    positive: np.ndarray
    masks: Mapping[str, torch.Tensor]
    marker: torch.Tensor
    others: torch.Tensor


def load(run: Path) -> Cohort:
    """One scan of each labelled person of a run with voxels of 2 or 4 mm, at 4 mm, with and without the marker."""
    layout = EvaluationLayout(run.resolve())
    config = read_run_config(layout)
    spec, task = configured_input(config), task_of(config.cohort)
    factor = round(VOXEL_MM / spec.resolution_mm)
    firsts, unlabelled = {}, {}
    for scan in registered_scans(layout, config)[0]:
        (firsts if scan.label in task.outputs else unlabelled).setdefault(scan.participant_id, scan)

    def read(scans: Mapping[str, Scan]) -> torch.Tensor:
        if not scans:
            return torch.zeros(0, *(side // factor for side in spec.shape))
        files = [layout.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in scans.values()]
        volumes = np.stack([read_network_volume(own, spec) for own in files])
        return functional.avg_pool3d(torch.from_numpy(volumes)[:, None], factor)[:, 0]

    plain = read(firsts)
    cube = torch.zeros(plain.shape[1:], dtype=torch.bool)
    cube[(slice(MARKER_OFFSET, MARKER_OFFSET + MARKER_VOXELS),) * 3] = True
    cube &= ~(plain > 0).any(0)
    marked = torch.where(cube, plain.flatten(1).amax(1)[:, None, None, None], plain)
    masks = {"brain": (plain > 0).float().mean(0) > 0.5}
    own = mask_of(ObjectiveConfig(kind="guided", regions=TEMPORAL), config.regions.atlas, spec)
    masks["regions"] = functional.avg_pool3d(torch.from_numpy(own).float()[None], factor)[0] >= 0.5
    masks["sides"] = enlarged(masks["regions"], 0.0)
    masks["outside"] = ~masks["brain"]
    positive = np.array([scan.label == config.cohort.positive for scan in firsts.values()])
    return Cohort(list(firsts), torch.stack([plain, marked], 1), positive, masks, cube, read(unlabelled))


def enlarged(mask: torch.Tensor, share: float) -> torch.Tensor:
    """Bounding boxes of the connected parts of a mask, each grown on either side by a share of its width there.

    As Rao et al. 2023 make annotations coarse; clipped at the border.

    Examples
    --------
    >>> line = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0]).bool()
    >>> enlarged(line.view(1, 1, -1), 0.5).int().flatten().tolist()
    [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    """
    filled = torch.zeros_like(mask)
    for box in find_objects(label_parts(mask.numpy(), np.ones((3, 3, 3)))[0]):
        grown = [(side, round(share * (side.stop - side.start))) for side in box]
        filled[tuple(slice(max(side.start - more, 0), side.stop + more) for side, more in grown)] = True
    return filled


def parts_of(positive: np.ndarray, fold: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    train_, validate, test = [], [], []
    for label in (False, True):
        own = np.flatnonzero(positive == label)
        order = own[generator(seed, "folds", int(label)).permutation(len(own))]
        tested = order[fold::FOLDS]
        rest = np.setdiff1d(order, tested)
        rest = rest[generator(seed, "validation", fold, int(label)).permutation(len(rest))]
        count = max(round(len(rest) / 5), 1)
        validate.append(rest[:count])
        train_.append(rest[count:])
        test.append(tested)
    return np.concatenate(train_), np.concatenate(validate), np.concatenate(test)


def trained(
    cohort: Cohort,
    one: Condition,
    fold: int,
    seed: int,
    teacher: nn.Module | None,
    work: Path,
    epochs: int,
    begun: nn.Module | None = None,
) -> StagedModel:
    """A network of one condition, fold and seed; the same initial weights and order of scans in every condition.

    A network that goes on from `begun` does so at the rate `GOING_ON`.
    """
    shape = tuple(cohort.volumes.shape[2:])
    learning, selecting, _ = parts_of(cohort.positive, fold, seed)
    learning = fewer(learning, cohort.positive, one.people, seed)
    marks = tied_marks(cohort.positive, seed) & (not one.unmarked and not one.plain)
    labels = marks if one.reversed else cohort.positive

    def part(people: np.ndarray) -> LabelledVolumes:
        own = cohort.volumes[torch.from_numpy(people), torch.from_numpy(marks[people].astype(int))]
        return LabelledVolumes(own[:, None].to(STORED), torch.from_numpy(labels[people].astype(np.int64)))

    training = part(learning)
    epochs = round(epochs * one.longer)
    recipe = replace(RECIPE, balance_classes=True, max_epochs=epochs, min_epochs=epochs)
    recipe = recipe if begun is None else replace(recipe, learning_rate=GOING_ON)
    usual = family_of(one.family).loss
    objective = objective_of(task_of(CohortConfig()), recipe, training.targets, usual)
    context = Context()
    if one.loss:
        objective = guided(objective, Guidance(one.loss, one.map, one.stage, one.weight))
        order = generator(seed, "annotated", fold).permutation(len(learning))
        annotated = torch.zeros(len(learning), dtype=torch.bool)
        annotated[torch.from_numpy(order[: max(round(one.annotated * len(learning)), 1)])] = True
        controls = training.volumes[training.targets == 0].float().mean(0)[None]
        mask = cohort.masks[one.mask]
        mask = enlarged(mask, one.enlarged) if one.enlarged else mask
        context = Context(masks=mask[None].float(), annotated=annotated, reference=controls)
    elif teacher is not None:
        stage = 0 if one.taught == "dynamic-weights" else -1
        how = Distillation(weight=one.weight, map=one.taught, student_stage=stage, teacher_stage=stage)
        objective = distilled(objective, how, usual != "cross-entropy")
        context = Context(teacher=teacher)
        if one.others:
            unknown = torch.zeros(len(cohort.others), dtype=torch.int64)
            asked = LabelledVolumes(cohort.others[:, None].to(STORED), unknown)
            training = answered_by(teacher, asked, RECIPE.batch_size)
        if one.frozen:
            context = frozen(context, training.volumes, how, RECIPE.batch_size)
    torch.manual_seed(derived_seed(seed, "weights", fold))
    model = build_network(one.family, shape, 2)
    if begun is not None:
        model.load_state_dict(begun.state_dict())
    result = run_training(model, training, part(selecting), objective, recipe, seed + fold, work, context)
    model.load_state_dict(result)
    return model.eval()


def fewer(people: np.ndarray, positive: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A share of the people of each class, as ``training.participants`` draws them."""
    names = {str(one): bool(positive[one]) for one in people}
    return np.array([int(name) for name in few_people(Fold(0, tuple(names), (), ()), names, share, seed).train])


def run_training(
    model: StagedModel,
    training: LabelledVolumes,
    validation: LabelledVolumes,
    objective: Objective,
    recipe: TrainingConfig,
    seed: int,
    work: Path,
    context: Context,
) -> Mapping[str, torch.Tensor]:
    """Weights of the epoch that the validation part selects."""
    remove_checkpoint(work)  # of a study that was stopped, in another training
    resumption = Resumption(work, "study")
    with repeatable(torch.device("cpu"), seed, 1):
        found = train(model, training, validation, objective, recipe, seed, resumption, context)
    remove_checkpoint(work)
    return found.weights


def measured(
    cohort: Cohort, model: StagedModel, teacher: StagedModel | None, one: Condition, test: np.ndarray
) -> pd.DataFrame:
    """A row per tested person and copy: answer, measures of the map of the true class, agreement with the teacher."""
    rows = []
    places = {
        name: MarkerMasks(mask.numpy(), box_of(mask).numpy(), cohort.marker.numpy())
        for name, mask in cohort.masks.items()
    }
    brain = cohort.masks["brain"]
    for person in test:
        for copy in (0,) if one.plain else (0, 1):
            label = copy if one.reversed else int(cohort.positive[person])
            volume = cohort.volumes[person, copy][None, None]
            found = explained_batch(model, volume, torch.tensor([label]), one.shown, 0, False)
            row = {"person": cohort.names[person], "positive": bool(cohort.positive[person]), "marked": bool(copy)}
            row["correct"] = float(found.logits.argmax(1).item() == label)
            row["logit"] = float(found.logits[0].detach().diff())
            values = found.maps[0].detach().numpy()
            for name, where in places.items():
                row |= {f"{measure}_{name}": value for measure, value in map_measures(values, where).items()}
            if one.held_out:
                mask = cohort.masks[one.mask].numpy()
                row |= dict(zip(curve_columns(one.mask), iou_curve(values, mask), strict=True))
                inside = MarkerMasks(cohort.masks[OBJECT].numpy(), mask, cohort.marker.numpy())
                row[f"on_object_epg_{one.mask}"] = map_measures(values, inside)["on_object_epg"]
            if one.plain:
                last = explained_batch(model, volume, torch.tensor([label]), one.shown, -1, False).maps[0].detach()
                row[f"last_epg_{one.mask}"] = map_measures(last.numpy(), places[one.mask])["epg"]
            if teacher is not None:
                asked = teacher(volume).argmax(1)
                maps = [
                    explained_batch(net, volume, asked, "grad-cam", -1, False).maps.detach() * brain
                    for net in (model, teacher)
                ]
                row["agrees"] = float(found.logits.argmax(1).item() == asked.item())
                row["cosine"] = functional.cosine_similarity(*(found.flatten(1) for found in maps)).item()
            rows.append(row)
    return pd.DataFrame(rows)


def box_of(mask: torch.Tensor) -> torch.Tensor:
    filled = torch.zeros_like(mask)
    places = mask.nonzero()
    filled[tuple(slice(int(a), int(b) + 1) for a, b in zip(places.amin(0), places.amax(0), strict=True))] = True
    return filled


def study(
    cohort: Cohort,
    out: Path,
    seeds: Sequence[int],
    everything: Mapping[str, Condition],
    only: Sequence[str],
    epochs: int,
    folds: int,
) -> None:
    for one in (one for name, one in everything.items() if not only or name in only):
        for seed in seeds:
            for fold in range(folds):
                weights, table = (out / f"{one.name}_seed-{seed}_fold-{fold}{end}" for end in (".pt", ".tsv"))
                if table.is_file() and weights.is_file():
                    continue
                teacher, earlier = (
                    stored(cohort, everything[name], out / f"{name}_seed-{seed}_fold-{fold}.pt") if name else None
                    for name in (one.teacher, one.begins)
                )
                begun = time.process_time()
                work = weights.with_suffix(".safetensors")
                model = trained(cohort, one, fold, seed, teacher, work, epochs, earlier)
                torch.save(model.state_dict(), weights)
                _, selecting, testing = parts_of(cohort.positive, fold, seed)
                rows = measured(cohort, model, teacher, one, testing).assign(part="test")
                known = measured(cohort, model, None, one, selecting).assign(part="validation")
                marks = dict(zip(cohort.names, tied_marks(cohort.positive, seed) & (not one.plain), strict=True))
                known = known[known["marked"] == known["person"].map(marks)]  # the copy that training knows
                both = pd.concat([rows, known]).assign(condition=one.name, seed=seed, fold=fold)
                both.to_csv(table, sep="\t", index=False)
                print(
                    f"{one.name} seed {seed} fold {fold}: {time.process_time() - begun:.0f} s, "
                    f"correct {rows['correct'].mean():.2f}, on marker {rows['on_marker_brain'].mean():.2f}",
                    flush=True,
                )


def stored(cohort: Cohort, one: Condition, weights: Path) -> StagedModel:
    model = build_network(one.family, tuple(cohort.volumes.shape[2:]), 2)
    model.load_state_dict(torch.load(weights, weights_only=True))
    return model.eval().requires_grad_(False)


def curve_columns(mask: str) -> list[str]:
    return [f"iou_{mask}_{place}" for place in range(len(IOU_THRESHOLDS))]


def held_out_iou(rows: pd.DataFrame, mask: str = "sides") -> pd.DataFrame:
    """The IoU of each network at the threshold that is best on its validation part, where there are curves."""
    names = curve_columns(mask)
    if names[0] not in rows:
        return rows
    parts = []
    for _, own in rows.groupby(["condition", "seed", "fold"], sort=False):
        known = own.loc[own["part"] == "validation", names]
        if own[names].notna().to_numpy().any():
            place = best_place(known.to_numpy())
            own = own.assign(**{f"iou_{mask}": np.nan if place is None else own[names[place]]})
        parts.append(own.drop(columns=names))
    return pd.concat(parts)


def weights_chosen(known: pd.DataFrame, wanted: Sequence[Condition], measure: str) -> dict[tuple[str, str], Condition]:
    """By control and loss, the condition with the largest measure of those whose accuracy is at most 5 points lower.

    Where there is none, the one with the smallest weight. All values are means over `known`.
    """
    means = known.groupby("condition").mean(numeric_only=True)
    found = {}
    for (against, loss), own in swept(wanted, means.index).items():
        least = means.loc[against, "correct"] - LARGEST_DROP - EQUAL
        allowed = [one for one in own if means.loc[one.name, "correct"] >= least] or own[:1]
        found[against, loss] = max(allowed, key=lambda one: means.loc[one.name, measure.format(one.mask)])
    return found


def swept(wanted: Sequence[Condition], there: Collection[str]) -> dict[tuple[str, str], list[Condition]]:
    """By control and loss, the conditions that differ in the weight of the loss alone, if there are several."""
    found: dict[tuple[str, str], list[Condition]] = {}
    for one in wanted:
        if one.loss and one.against.endswith(ON) and one.annotated == 1 and one.stage == 0 and one.name in there:
            found.setdefault((one.against, one.loss), []).append(one)
    return {key: own for key, own in found.items() if len(own) > 1}


def with_weights_chosen(
    rows: pd.DataFrame, wanted: Sequence[Condition]
) -> Iterator[tuple[str, Condition, pd.DataFrame]]:
    """Name, condition and test rows of each loss with the weight chosen for a seed and fold, by EPG and by IoU.

    What chooses is what networks of all seeds and folds answer of people in their validation parts who are not tested
    there: nobody helps to choose the weight of a network that is tested on them.
    """
    boxes = [one for one in wanted if one.plain and not one.teacher]
    rows = rows[rows["condition"].isin([one.name for one in boxes])]
    validation, test = rows[rows["part"] == "validation"], rows[rows["part"] == "test"]
    for _, here in test.groupby(["seed", "fold"]):
        known = validation[~validation["person"].isin(here["person"])]
        for word in ("EPG", "IoU"):
            for (against, loss), one in weights_chosen(known, boxes, f"{word.lower()}_{{}}").items():
                yield f"{against.removesuffix(ON)}-{loss} by {word}", one, here[here["condition"] == one.name]


def measures_of(rows: pd.DataFrame, one: Condition) -> pd.DataFrame:
    """Columns of a condition by the name of the measure; both copies of a person's scan count as much.

    Against training: the copy whose marker does not go with the diagnosis. The logit, by which networks are better than
    a coin or not, is that of the other copy; in the reversed task, where people are not what networks tell apart, there
    is none.
    """
    names = {f"epg_{one.mask}": "EPG", f"iou_{one.mask}": "IoU", f"on_object_epg_{one.mask}": "on-object EPG"}
    names |= {"on_marker_brain": "on marker", f"last_epg_{one.mask}": "EPG, last stage", "cosine": "cosine"}
    names |= {"correct": "correct", "agrees": "agreement"} | ({} if one.reversed else {"logit": "logit"})
    found = rows[[name for name in names if name in rows]].rename(columns=names).astype(float)
    if not one.plain:
        known = rows["positive"] == rows["marked"]
        for name in ("correct", "agreement"):
            if name in found:
                found[f"{name}, as in training"] = found[name].where(known)
                found[f"{name}, against training"] = found[name].where(~known)
        if "logit" in found:
            found["logit"] = found["logit"].where(known)
    return found


def numbers_of(rows: pd.DataFrame, wanted: Sequence[Condition]) -> pd.DataFrame:
    """Rows of test people for claims: a measure is named "CONDITION, MEASURE"; shares are from 0 to 1."""
    keys = ["person", "seed", "fold", "class"]
    rows = rows.assign(**{"class": rows["positive"].astype(int)})
    tested = rows[rows["part"] == "test"]
    parts = [(one.name, one, tested[tested["condition"] == one.name]) for one in wanted]
    found = []
    for name, one, own in (*parts, *with_weights_chosen(rows, wanted)):
        each = measures_of(own, one).assign(**{key: own[key] for key in keys}).groupby(keys).mean().reset_index()
        long = each.melt(keys, var_name="measure").dropna(subset="value")
        found.append(long.assign(measure=f"{name}, " + long["measure"]))
    return pd.concat(found, ignore_index=True)


def main() -> None:
    arguments = arguments_of(
        __doc__,
        "run out --seeds --section --only --folds",
        section={"choices": sections(), "default": "first", "help": "each with its conditions"},
        only=[],
        folds=FOLDS,
        epochs=RECIPE.max_epochs,
        numbers=("", NUMBERS),
    )
    wanted = sections()[arguments.section]
    torch.set_num_threads(1)
    everything = {one.name: one for one in wanted}
    cohort = load(arguments.run)
    study(cohort, arguments.out, arguments.seeds, everything, arguments.only, arguments.epochs, arguments.folds)
    rows = pd.concat([pd.read_csv(path, sep="\t") for path in sorted(arguments.out.glob("*_seed-*.tsv"))])
    rows = held_out_iou(rows[rows["seed"].isin(arguments.seeds)])
    rows.to_csv(arguments.out / "guidance_study.tsv", sep="\t", index=False, float_format="%.3g")
    for name, one, own in with_weights_chosen(rows, wanted):
        seed, fold = own[["seed", "fold"]].iloc[0]
        print(f"{name}, seed {seed}, fold {fold}: weight {one.weight:g}")
    if arguments.numbers:
        print(write_of_study(arguments.numbers, numbers_of(rows, wanted), arguments.run))


if __name__ == "__main__":
    main()
