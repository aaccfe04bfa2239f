"""Random halves of the patients: their images, networks and ridge, what is chosen in one half and said of the other.

The rule of choice stands in `patients_outside.py`, which asks all halves and writes the page.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from inherent_runs import learn
from numpy.typing import NDArray
from patients import area, call
from patients_evidence import ridge_parts
from patients_guidance import FOLDS, Places, parts_of
from safetensors.torch import load_file, save_file
from sklearn.preprocessing import StandardScaler
from torch import nn

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import brain_box, configured_grid, configured_template
from heatlas.pipeline.attribution.gradient.paths import ExpectedGradients
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import configured_input, read_network_volume, to_network
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import device_labels, device_region_sums
from heatlas.pipeline.registration.ants_transform import Volume, closest_ras, register, resample
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.training.baselines import ridge
from heatlas.pipeline.training.baselines.images import by_region, random_features, standardised
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes

Floats = NDArray[np.float64]
SEED = 43


@dataclass(frozen=True)
class Recipe:
    """What is chosen; the defaults are where the choice begins."""

    intensities: str = "minmax"
    registration: str = "each"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    on_ridge: bool = False
    """Whether networks learn what is added to the logit of ridge on regions."""
    everyone: bool = False
    """Whether networks learn from the younger people, too, as controls, and age is taken out of the images."""

    @property
    def config(self) -> Config:
        training = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay, "device": "cpu"}
        cohort = {"negative": "CN", "positive": "AD"}
        model = {"intensities": self.intensities}
        return load_config("patients", overrides={"training": training, "model": model, "cohort": cohort})

    @property
    def name(self) -> str:
        words = f"{self.intensities}_{self.registration}_rate-{self.learning_rate:g}_decay-{self.weight_decay:g}"
        return words + "_on-ridge" * self.on_ridge + "_everyone" * self.everyone


PRESET = Recipe(intensities="percentiles")
EVERYONE = dataclasses.replace(PRESET, registration="common", everyone=True)
CHOICES: Mapping[str, Sequence[object]] = {
    "intensities": ("minmax", "percentiles"),
    "registration": ("each", "common"),
    "learning_rate": (1e-3, 3e-4),
    "weight_decay": (1e-4, 1e-2),
}
"""In the order of choice, from the first value of each."""


@dataclass(frozen=True, eq=False)
class Study:
    """Everyone's images and classes; networks and answers lie in `out`."""

    source: Path
    out: Path

    @cached_property
    def scans(self) -> Sequence[Scan]:
        """One scan of each person, registered if they are not."""
        run = self.out / "registered"
        if not (run / "group" / "registration.tsv").is_file():
            call("run", self.source, run, "--preset", "patients", "--n-procs", 1, "--stop-after", "registration")
        return [scan for scan in ScanTable.read(run / "scans.tsv").kept if scan.label is not None]

    @cached_property
    def positive(self) -> NDArray[np.bool_]:
        return np.array([scan.label == "AD" for scan in self.scans])

    def learners(self, own: Places, count: int) -> tuple[Places, NDArray[np.bool_]]:
        """Own people and, of the `count` whose images are given, all younger ones; and who of the `count` is ill."""
        older = len(self.positive)
        return np.concatenate([own, np.arange(older, count)]), np.pad(self.positive, (0, count - older))

    def halves(self, number: int) -> tuple[Places, Places]:
        """Places of the first and the second half, each of all CDR classes; the odd one goes to the first."""
        severity = np.array([min(scan.cdr, 1.0) for scan in self.scans])
        parts: tuple[list[Places], list[Places]] = ([], [])
        for place, one in enumerate(np.unique(severity)):
            own = np.flatnonzero(severity == one)
            own = own[generator(SEED, "halves", number, place).permutation(len(own))]
            cut = (len(own) + 1) // 2
            parts[0].append(np.sort(own[:cut]))
            parts[1].append(np.sort(own[cut:]))
        return np.concatenate(parts[0]), np.concatenate(parts[1])

    def volumes(self, recipe: Recipe) -> torch.Tensor:
        """What networks see, (people, 1, D, H, W), as it is stored for training; kept in a file."""
        kept = self.out / f"volumes_{recipe.intensities}_{recipe.registration}.npy"
        if not kept.is_file():
            read = self._by_own_map if recipe.registration == "each" else self._by_one_map
            np.save(kept, np.stack(read(recipe.config)).astype(np.float16)[:, None])
        return torch.from_numpy(np.load(kept, mmap_mode="c"))

    def _by_own_map(self, config: Config) -> list[NDArray[np.float32]]:
        layout, spec = RunLayout((self.out / "registered").resolve()), configured_input(config)
        files = [layout.scan(one.participant_id, one.session_id, spec.resolution_mm) for one in self.scans]
        return [read_network_volume(own, spec) for own in files]

    def _by_one_map(self, config: Config, others: Sequence[Path] = ()) -> list[NDArray[np.float32]]:
        """Scans, or files of others, moved by the affine map of the scans' mean to the template, whose mask cuts them
        off.
        """
        os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"
        template, spec = configured_template(config.registration), configured_input(config)
        images = [load_t1w(self.source / scan.file) for scan in self.scans]
        mean = closest_ras(Volume(np.mean([one.data for one in images], axis=0), images[0].affine))
        box = brain_box(template)
        fixed = Volume(box.crop(template.t1w), box.grid(template.grid).affine)
        transforms = register(fixed, mean, config.registration.transform, SEED, self.out / "mean_")
        found = []
        for one in map(load_t1w, others) if others else images:
            scan = closest_ras(Volume(one.data, one.affine))
            values = resample(scan, transforms, template.grid.shape, template.grid.affine)
            found.append(to_network(values, template.brain_mask, spec))
        return found

    @cached_property
    def atlas(self) -> PackedAtlas:
        config = PRESET.config
        return PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))

    @cached_property
    def columns(self) -> Floats:
        """Means and spreads of regions in the preset's images, (people, 2 regions), as the baseline sees them."""
        return self.columns_of(self.volumes(PRESET))

    def columns_of(self, volumes: torch.Tensor) -> Floats:
        labels = self.atlas.labels_in(configured_input(PRESET.config).box)
        images = [by_region(standardised(volume[0].float().numpy()), labels) for volume in volumes]
        return np.stack([np.concatenate(pair) for pair in images])

    @cached_property
    def untrained(self) -> Floats:
        """What the untrained network of the baselines makes of the same images."""
        images = [random_features(standardised(one[0].float().numpy())[None]) for one in self.volumes(PRESET)]
        return np.stack(images).astype(np.float64)

    @cached_property
    def younger(self) -> pd.DataFrame:
        """People of the neighbouring folder of those under 60, who are all taken for controls."""
        return pd.read_csv(self.source.parent / "younger" / "participants.tsv", sep="\t")

    @cached_property
    def everyone(self) -> torch.Tensor:
        kept = self.out / "volumes_everyone.npy"
        if not kept.is_file():
            folder = self.source.parent / "younger"
            files = [next(folder.glob(f"{person}/**/*_T1w.nii.gz")) for person in self.younger["participant_id"]]
            images = np.stack(self._by_one_map(EVERYONE.config, files)).astype(np.float16)[:, None]
            np.save(kept, np.concatenate([self.volumes(EVERYONE).numpy(), images]))
        return torch.from_numpy(np.load(kept, mmap_mode="c"))

    def without_age(self, values: NDArray[np.floating], learners: Places) -> NDArray[np.float32]:
        """Values of everyone, (people, ...), as if all had the mean age of those of `scans`.

        A parabola over age, by least squares in the younger people and in the controls among `learners`, is taken out
        of each value.
        """
        older = [float(scan.age) for scan in self.scans]
        age = (np.concatenate([older, self.younger["age"]]) - np.mean(older)) / 10
        design = np.column_stack([np.ones_like(age), age, age**2])
        controls = np.concatenate([learners[~self.positive[learners]], np.arange(len(older), len(age))])
        flat = values.reshape(len(values), -1).astype(np.float32)
        slopes = np.linalg.lstsq(design[controls], flat[controls], rcond=None)[0][1:]
        return (flat - design[:, 1:] @ slopes).astype(np.float32).reshape(values.shape)

    def groups_of(self, numbers: Sequence[int]) -> Floats:
        """From values of regions by number to those of bilateral groups, (numbers, groups)."""
        groups = self.atlas.regions.groups.values()
        return np.array([[number in own for own in groups] for number in numbers], float)


CONTROLS = 8
"""Of each network."""
PERMUTATIONS = 10_000
REGIONS = ("Hippocampus", "Amygdala")
ON_RIDGE = dataclasses.replace(PRESET, on_ridge=True)


@dataclass(frozen=True, eq=False)
class Half:
    """One halving: what is learned in its first half, and what that says of the second."""

    study: Study
    number: int
    folder: Path

    @cached_property
    def parts(self) -> tuple[Places, Places]:
        return self.study.halves(self.number)

    def fold(self, fold: int) -> tuple[Places, Places, Places]:
        """People of the first half to train with, to select the epoch with and to test."""
        first = self.parts[0]
        train, select, test = parts_of(self.study.positive[first], fold, derived_seed(SEED, "outside", self.number))
        return first[train], first[select], first[test]

    def volumes(self, recipe: Recipe, fold: int) -> torch.Tensor:
        """What the network of a fold sees, of the people of both halves, and with `everyone` of the younger, too."""
        if not recipe.everyone:
            return self.study.volumes(recipe)
        return torch.from_numpy(self.study.without_age(self.study.everyone.numpy(), self.fold(fold)[0]))

    def labelled(self, volumes: torch.Tensor, people: Places, start: Floats | None) -> LabelledVolumes:
        """Images and classes; with a start, a plane of it follows the last plane of each image (`OnTop`)."""
        ill = self.study.learners(people, len(volumes))[1]
        targets = torch.from_numpy(ill[people].astype(np.int64))
        volumes = volumes[torch.from_numpy(people)].to(STORED)
        if start is not None:
            plane = torch.from_numpy(start)[:, None, None, None, None].to(STORED).expand(*volumes.shape[:-1], 1)
            volumes = torch.cat([volumes, plane], -1)
        return LabelledVolumes(volumes, targets)

    def network(self, recipe: Recipe, fold: int) -> StagedModel:
        """A network of a fold, trained if it is not kept."""
        kept, config = self.folder / f"{recipe.name}_fold-{fold}.safetensors", recipe.config
        seed = derived_seed(SEED, "outside", self.number, fold, 0)
        torch.manual_seed(seed)
        model = build_network(config.model, configured_input(config).shape, 2)
        if not kept.is_file():
            starts = self.starts(fold) if recipe.on_ridge else (None, None)
            volumes, (train, select, _) = self.volumes(recipe, fold), self.fold(fold)
            learners = self.study.learners(train, len(volumes))[0]
            training, selecting = map(self.labelled, [volumes] * 2, (learners, select), starts)
            task, loss = task_of(config.cohort), family_of(config.model).loss
            objective = objective_of(task, config.training, training.targets, loss)
            learner = StagedModel([OnTop(model)]) if recipe.on_ridge else model
            learn(learner, training, selecting, objective, config.training, seed)
            save_file({name: value.contiguous() for name, value in model.state_dict().items()}, kept)
        model.load_state_dict(load_file(kept))
        return model.eval()

    def cross_validated(self, recipe: Recipe) -> pd.DataFrame:
        """Logit of each person of the first half by the network of the fold that tests him or her."""
        rows = []
        for fold in range(FOLDS):
            people = self.fold(fold)[2]
            logits = answers(self.network(recipe, fold), self.study.volumes(recipe)[torch.from_numpy(people)])
            own = pd.DataFrame({"person": people, "fold": fold, "target": self.study.positive[people]})
            rows.append(own.assign(probability=logits))
        return pd.concat(rows, ignore_index=True)

    @cached_property
    def chosen(self) -> Recipe:
        """The recipe that the first half chooses, by the rule above."""
        best = Recipe()
        for name, (_, other) in CHOICES.items():
            asked = dataclasses.replace(best, **{name: other})
            areas = area(self.cross_validated(best)), area(self.cross_validated(asked))
            print(f"half {self.number}: {asked}: {areas[1]:.3f} against {areas[0]:.3f}", flush=True)
            best = asked if areas[1] > areas[0] + 1e-9 else best
        return best

    def applied(self, recipe: Recipe, moved: Sequence[int] = (0,)) -> Floats:
        """Mean logit of each person of the second half, over all networks and images moved by voxels."""
        logits = []
        for fold in range(FOLDS):
            volumes, network = self.volumes(recipe, fold)[torch.from_numpy(self.parts[1])], self.network(recipe, fold)
            logits += [answers(network, torch.roll(volumes, (by,) * 3, (2, 3, 4))) for by in moved]
        return np.mean(logits, axis=0)

    def evidence(self, recipe: Recipe) -> Floats:
        """Sums of the evidence of the mean logit over bilateral regions, (people of the second half, groups)."""
        kept = self.folder / f"evidence_{recipe.name}.npy"
        if kept.is_file():
            return np.load(kept)
        spec, volumes = configured_input(recipe.config), self.study.volumes(recipe)
        labels = device_labels(self.study.atlas.labels, spec.box, torch.device("cpu"))
        sums = np.zeros((len(self.parts[1]), len(labels.numbers)))
        for fold in range(FOLDS):
            train, network = self.fold(fold)[0], self.network(recipe, fold)
            controls = train[~self.study.positive[train]]
            controls = generator(SEED, "controls", self.number, fold).permutation(controls)[:CONTROLS]
            images = volumes[torch.from_numpy(controls)].float()
            with torch.inference_mode():
                logits = network(images)
            reference = Reference(images.clone(), tuple(map(str, controls)), logits.clone())
            method = ExpectedGradients(reference, batch=CONTROLS, tolerance=float("inf"))
            for place, person in enumerate(self.parts[1]):
                values = attribute(network, volumes[person][None].float(), 1, method, start="evidence").values
                sums[place] += device_region_sums(values[0], labels).numpy()[0] / FOLDS
        found = sums @ self.study.groups_of(labels.numbers)
        np.save(kept, found)
        return found

    def ridge(self, train: Places, people: Places) -> tuple[Floats, Floats]:
        """Logits of people by ridge on regions, and what each bilateral region adds beside the mean control."""
        columns, ill = self.study.columns, self.study.positive
        seed = derived_seed(SEED, "ridge", self.number)
        logits, parts = ridge_parts(columns[train], ill[train], list(map(str, train)), columns[people], seed)
        labels = self.study.atlas.labels_in(configured_input(PRESET.config).box)
        numbers = [int(number) for number in np.unique(labels) if number]
        return logits, parts @ self.study.groups_of(numbers * 2)

    def ridge_of_everyone(self) -> Floats:
        """Logits of the second half by ridge on regions of the first half and the younger, age taken out."""
        first, second = self.parts
        columns = self.study.without_age(self.study.columns_of(self.study.everyone), first).astype(np.float64)
        learners, ill = self.study.learners(first, len(columns))
        seed = derived_seed(SEED, "ridge", self.number)
        return ridge_parts(columns[learners], ill[learners], list(map(str, learners)), columns[second], seed)[0]

    def starts(self, fold: int) -> tuple[Floats, Floats]:
        """Logits by ridge of the people who train, each by a ridge of others, and of those who select the epoch."""
        train, select, _ = self.fold(fold)
        x, seed = self.study.columns, derived_seed(SEED, "ridge", self.number)
        scaler, people = StandardScaler().fit(x[train]), list(map(str, train))
        wide = scaler.transform(x[train])
        turn = wide.T @ ridge.rotation(wide @ wide.T, wide.shape[1])
        fit = ridge.fit(wide @ turn, self.study.positive[train].astype(float), people, 2, seed)
        return np.diff(fit.held_out)[:, 0], self.ridge(train, select)[0]

    def untrained(self) -> Floats:
        """Probabilities of the second half by a ridge on what an untrained network makes of the images."""
        (first, second), features = self.parts, self.study.untrained
        target, people = self.study.positive[first].astype(float), [str(one) for one in first]
        return ridge.predicted(features[first], target, people, features[second], 2, SEED)[:, 1]

    @cached_property
    def stacked(self) -> tuple[float, float]:
        """Weights of the logits of the preset's networks and of ridge, from the folds of the first half."""
        own = self.cross_validated(PRESET)
        folds = [self.fold(fold) for fold in range(FOLDS)]
        of_ridge = np.concatenate([self.ridge(np.concatenate(parts[:2]), parts[2])[0] for parts in folds])
        both = np.column_stack([own["probability"], of_ridge])
        x, people = (both - both.mean(axis=0)) / both.std(axis=0), [str(one) for one in own["person"]]
        fit = ridge.fit(x, own["target"].to_numpy(float), people, 2, SEED)
        found = (fit.weights[1] - fit.weights[0]) / both.std(axis=0)
        return float(found[0]), float(found[1])

    def says(self, recipe: Recipe) -> tuple[Floats, Floats, dict[str, object]]:
        """Logits of the second half by a recipe, its evidence by region, and what it is."""
        facts = {name: getattr(recipe, name) for name in CHOICES} | {"inner area": area(self.cross_validated(recipe))}
        return self.applied(recipe), self.evidence(recipe), facts

    def together(self) -> tuple[Floats, Floats, dict[str, object]]:
        """As `says`, of the preset's networks and ridge."""
        of_network, of_ridge = self.stacked
        logits, added = self.ridge(*self.parts)
        evidence = of_network * self.evidence(PRESET) + of_ridge * added
        return of_network * self.applied(PRESET) + of_ridge * logits, evidence, {}

    def on_top(self) -> tuple[Floats, Floats, dict[str, object]]:
        """As `says`, of ridge and networks that learned what it leaves."""
        logits, added = self.ridge(*self.parts)
        return self.applied(ON_RIDGE) + logits, self.evidence(ON_RIDGE) + added, {}

    def row(self, name: str, logits: Floats, evidence: Floats | None, facts: Mapping[str, object]) -> dict[str, object]:
        ill = self.study.positive[self.parts[1]]
        reached = area(pd.DataFrame({"fold": 0, "target": ill, "probability": logits}))
        found: dict[str, object] = {"half": self.number, "predictor": name, "area": reached}
        if evidence is not None:
            groups, known = list(self.study.atlas.regions.groups), evidence.any(axis=0)
            g = np.where(known, hedges_g(evidence, ill), 0.0)
            order = np.argsort(-np.abs(g))
            frame = pd.DataFrame({"ill": ill.astype(float)})
            test = freedman_lane(
                evidence[:, known],
                design_of("1 + ill", "ill", frame),
                Exchangeability.free(len(ill)),
                Resampling(PERMUTATIONS, generator(SEED, "permutations", self.number)),
                variance_groups=ill.tolist(),
            )
            for region in REGIONS:
                place = groups.index(region)
                found[f"{region} place"] = int(np.flatnonzero(order == place)[0]) + 1
                found[f"{region} g"] = float(g[place])
            found |= {"first region": groups[order[0]], "regions p_fwe": int((test.p_fwe <= 0.05).sum())}
        return found | dict(facts)


class OnTop(nn.Module):
    """A network whose logits are added to a start, half of it with either sign, that stands in the last plane."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = x[:, 0, 0, 0, -1:] / 2
        return self.network(x[..., :-1].contiguous()) + torch.cat([-start, start], 1)


def answers(network: StagedModel, volumes: torch.Tensor) -> Floats:
    """Logit of the disease, (people,)."""
    with torch.inference_mode():
        logits = torch.cat([network(part.float()) for part in torch.split(volumes, 8)])
    return logits.double().diff(dim=1)[:, 0].numpy()
