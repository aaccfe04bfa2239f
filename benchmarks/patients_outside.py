"""What to expect of new people: choices made in half of the patients and controls, and judged in the other half.

    python benchmarks/patients_outside.py ../shared/data/oasis1/older OUT --halves 12 --fours 12
    python benchmarks/patients_outside.py ../shared/data/oasis1/older OUT --halves 0 --table TSV --page docs/patients.md

The 133 people of docs/patients.md are halved at random, by CDR (0, .5, 1 and more), again and again. Whatever the
preset `patients` embodies and can be afforded is chosen in the first half alone; the second half is only applied to.

**The rule of choice, written before a number was seen.** Three folds of the first half; in each, four fifths of the
rest train and a fifth selects the epoch. `CHOICES` are gone through in their order, each once, from the first value of
each, which is what this program did before it met patients. A value takes the place of the first one if its area under
the curve within folds, of people who were not trained with, is larger; at a tie the first stays. What is chosen is kept
for all later choices. All this with one network a fold, since four cost too much; whether four networks a fold take the
place of one is asked last, by the same rule, when all halves have been done with one (`--fours`). Training for 40
epochs with averaged weights (twice the time), grids of 3 mm (1.6 times) and augmentation were not asked: they would
have cost more than all the rest. So grid (4 mm), 20 epochs and the network are as in the preset.

The networks of all folds together (three, or twelve) answer for the second half by their mean logit, those of the
recipe chosen and those of the preset. Evidence is expected gradients of that mean, each network with `CONTROLS` of its
training part; places are by |g| of the classes among bilateral regions; p_fwe is that of `group_comparisons` (the
networks are the same for all, so no folds are held). Beside them, all learned in the first half: ridge on the means and
spreads of regions (the baseline of a run), an untrained network with a linear head (another), the preset's networks
with their answers averaged over images moved by a voxel to either side, and the preset's networks and ridge stacked:
weights of both logits from the folds of the first half, by which their evidence adds up, too.

Scans are registered once for all halves, which sees no label: an affine map for each scan, or one for all, that of the
mean image. OUT keeps networks and answers; the same command continues. The table has no people in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from guidance_study import run_training
from marked_cohort import FOLDS, parts_of
from numpy.typing import NDArray
from patients import area, call
from patients_evidence import ridge_parts
from safetensors.torch import load_file, save_file

from heatlas.atlases.brain_box import brain_box
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid, configured_template
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.expected_gradients import ExpectedGradients
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import configured_input, read_network_volume, to_network
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import device_labels, device_region_sums
from heatlas.pipeline.registration.ants_transform import Volume, register, resample
from heatlas.pipeline.registration.images.preparation import closest_ras
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.seeds import derived_seed, generator
from heatlas.pipeline.statistics.linear.design import design_of
from heatlas.pipeline.statistics.linear.exchangeability import Exchangeability
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.training.baselines import ridge
from heatlas.pipeline.training.baselines.images import by_region, standardised
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.objectives.records import Context
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
SEED = 43
CONTROLS = {1: 8, 4: 2}
"""Of each network, by the number of networks a fold."""
PERMUTATIONS = 10_000
REGIONS = ("Hippocampus", "Amygdala")


@dataclass(frozen=True)
class Recipe:
    """What is chosen; the defaults are where the choice begins."""

    intensities: str = "minmax"
    registration: str = "each"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    ensemble: int = 1

    @property
    def config(self) -> Config:
        training = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay, "device": "cpu"}
        cohort = {"negative": "CN", "positive": "AD"}
        model = {"intensities": self.intensities}
        return load_config("patients", overrides={"training": training, "model": model, "cohort": cohort})

    @property
    def name(self) -> str:
        return f"{self.intensities}_{self.registration}_rate-{self.learning_rate:g}_decay-{self.weight_decay:g}"


CHOICES: Mapping[str, Sequence[object]] = {
    "intensities": ("minmax", "percentiles"),
    "registration": ("each", "common"),
    "learning_rate": (1e-3, 3e-4),
    "weight_decay": (1e-4, 1e-2),
}
PRESET = Recipe(intensities="percentiles")
FOURS = dataclasses.replace(PRESET, ensemble=4)


@dataclass(frozen=True, eq=False)
class Study:
    """Everyone's images and classes; networks and answers lie in `out`."""

    source: Path
    out: Path

    @cached_property
    def scans(self) -> Sequence[object]:
        """One scan of each person, registered if they are not."""
        run = self.out / "registered"
        call("run", str(self.source), str(run), "--preset", "patients", "--n-procs", "1", "--stop-after",
             "registration")  # fmt: skip
        return [scan for scan in ScanTable.read(run / "scans.tsv").kept if scan.label is not None]

    @cached_property
    def positive(self) -> NDArray[np.bool_]:
        return np.array([scan.label == "AD" for scan in self.scans])

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

    def _by_one_map(self, config: Config) -> list[NDArray[np.float32]]:
        """Scans moved by the affine map of their mean to the template, whose mask cuts them off."""
        os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"
        template, spec = configured_template(config.registration), configured_input(config)
        images = [load_t1w(self.source / one.file) for one in self.scans]
        mean = closest_ras(Volume(np.mean([one.data for one in images], axis=0), images[0].affine))
        box = brain_box(template)
        fixed = Volume(box.crop(template.t1w), box.grid(template.grid).affine)
        transforms = register(fixed, mean, config.registration.transform, SEED, self.out / "mean_")
        found = []
        for one in images:
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
        labels = self.atlas.labels_in(configured_input(PRESET.config).box)
        images = [by_region(standardised(one[0].float().numpy()), labels) for one in self.volumes(PRESET)]
        return np.stack([np.concatenate(pair) for pair in images])

    def groups_of(self, numbers: Sequence[int]) -> Floats:
        """From values of regions by number to those of bilateral groups, (numbers, groups)."""
        groups = self.atlas.regions.groups.values()
        return np.array([[number in own for own in groups] for number in numbers], float)


@dataclass(frozen=True, eq=False)
class Half:
    """One halving: what is learned in its first half, and what that says of the second."""

    study: Study
    number: int

    @cached_property
    def parts(self) -> tuple[Places, Places]:
        return self.study.halves(self.number)

    @property
    def folder(self) -> Path:
        return self.study.out / f"half-{self.number}"

    def fold(self, fold: int) -> tuple[Places, Places, Places]:
        """People of the first half to train with, to select the epoch with and to test."""
        first = self.parts[0]
        train, select, test = parts_of(self.study.positive[first], fold, derived_seed(SEED, "outside", self.number))
        return first[train], first[select], first[test]

    def labelled(self, recipe: Recipe, people: Places) -> LabelledVolumes:
        targets = torch.from_numpy(self.study.positive[people].astype(np.int64))
        return LabelledVolumes(self.study.volumes(recipe)[torch.from_numpy(people)].to(STORED), targets)

    def network(self, recipe: Recipe, fold: int, member: int) -> StagedModel:
        """A network of a fold, trained if it is not kept."""
        kept, config = self.folder / f"{recipe.name}_fold-{fold}_{member}.safetensors", recipe.config
        seed = derived_seed(SEED, "outside", self.number, fold, member)
        torch.manual_seed(seed)
        model = build_network(config.model, configured_input(config).shape, 2)
        if not kept.is_file():
            training, selecting = (self.labelled(recipe, people) for people in self.fold(fold)[:2])
            objective = objective_of(
                task_of(config.cohort), config.training, training.targets, family_of(config.model).loss
            )
            weights = run_training(model, training, selecting, objective, config.training, seed,
                                   self.folder / "training.safetensors", Context())  # fmt: skip
            save_file({name: value.contiguous() for name, value in weights.items()}, kept.with_suffix(".part"))
            kept.with_suffix(".part").rename(kept)
        model.load_state_dict(load_file(kept))
        return model.eval()

    def networks(self, recipe: Recipe, fold: int) -> list[StagedModel]:
        return [self.network(recipe, fold, member) for member in range(recipe.ensemble)]

    def cross_validated(self, recipe: Recipe) -> pd.DataFrame:
        """Mean logit of each person of the first half by the networks of the fold that tests him or her."""
        rows = []
        for fold in range(FOLDS):
            people = self.fold(fold)[2]
            logits = answers(self.networks(recipe, fold), self.study.volumes(recipe)[torch.from_numpy(people)])
            rows.append(pd.DataFrame({"person": people, "fold": fold, "target": self.study.positive[people],
                                      "probability": logits}))  # fmt: skip
        return pd.concat(rows, ignore_index=True)

    def inner_area(self, recipe: Recipe) -> float:
        return area(self.cross_validated(recipe))

    @cached_property
    def chosen(self) -> Recipe:
        """The recipe that the first half chooses, by the rule above, with one network a fold."""
        best = Recipe()
        for name, (_, other) in CHOICES.items():
            best = self.better(best, dataclasses.replace(best, **{name: other}))
        return best

    def better(self, first: Recipe, other: Recipe) -> Recipe:
        """The other recipe if it is better in the first half."""
        areas = self.inner_area(first), self.inner_area(other)
        print(f"half {self.number}: {other}: {areas[1]:.3f} against {areas[0]:.3f}", flush=True)
        return other if areas[1] > areas[0] + 1e-9 else first

    def applied(self, recipe: Recipe, moved: Sequence[int] = (0,)) -> Floats:
        """Mean logit of each person of the second half, over all networks and images moved by voxels."""
        volumes = self.study.volumes(recipe)[torch.from_numpy(self.parts[1])]
        every = [one for fold in range(FOLDS) for one in self.networks(recipe, fold)]
        return np.mean([answers(every, torch.roll(volumes, (by,) * 3, (2, 3, 4))) for by in moved], axis=0)

    def evidence(self, recipe: Recipe) -> Floats:
        """Sums of the evidence of the mean logit over bilateral regions, (people of the second half, groups)."""
        kept = self.folder / f"evidence_{recipe.name}_{recipe.ensemble}.npy"
        if kept.is_file():
            return np.load(kept)
        spec, volumes = configured_input(recipe.config), self.study.volumes(recipe)
        labels = device_labels(self.study.atlas.labels, spec.box, torch.device("cpu"))
        count = CONTROLS[recipe.ensemble]
        sums = np.zeros((len(self.parts[1]), len(labels.numbers)))
        for fold in range(FOLDS):
            train = self.fold(fold)[0]
            controls = train[~self.study.positive[train]]
            controls = controls[generator(SEED, "controls", self.number, fold).permutation(len(controls))]
            for member, network in enumerate(self.networks(recipe, fold)):
                own = controls[np.arange(member * count, (member + 1) * count) % len(controls)]
                images = volumes[torch.from_numpy(own)].float()
                with torch.inference_mode():
                    logits = network(images)
                reference = Reference(images.clone(), tuple(map(str, own)), logits.clone())
                method = ExpectedGradients(reference, seed=member, batch=count, tolerance=float("inf"))
                for place, person in enumerate(self.parts[1]):
                    values = attribute(network, volumes[person][None].float(), 1, method, start="evidence").values
                    sums[place] += device_region_sums(values[0], labels).numpy()[0] / (FOLDS * recipe.ensemble)
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

    @cached_property
    def stacked(self) -> tuple[float, float]:
        """Weights of the logits of the preset's networks and of ridge, from the folds of the first half."""
        own = self.cross_validated(PRESET)
        folds = [self.fold(fold) for fold in range(FOLDS)]
        of_ridge = np.concatenate([self.ridge(np.concatenate(parts[:2]), parts[2])[0] for parts in folds])
        both = np.column_stack([own["probability"], of_ridge])
        spread = both.std(axis=0)
        x = (both - both.mean(axis=0)) / spread
        fit = ridge.fit(x, own["target"].to_numpy(float), [str(one) for one in own["person"]], 2, SEED)
        found = (fit.weights[1] - fit.weights[0]) / spread
        return float(found[0]), float(found[1])

    def says(self, recipe: Recipe) -> tuple[Floats, Floats, dict[str, object]]:
        """Logits of the second half by a recipe, its evidence by region, and what it is."""
        facts = {**dataclasses.asdict(recipe), "inner area": self.inner_area(recipe)}
        return self.applied(recipe), self.evidence(recipe), facts

    def stack(self) -> tuple[Floats, Floats, dict[str, object]]:
        """As `says`, of the preset's networks and ridge."""
        of_network, of_ridge = self.stacked
        logits, added = self.ridge(*self.parts)
        return (of_network * self.applied(PRESET) + of_ridge * logits,
                of_network * self.evidence(PRESET) + of_ridge * added, {})  # fmt: skip

    def row(self, name: str, logits: Floats, evidence: Floats | None, facts: Mapping[str, object]) -> dict[str, object]:
        """Area and places of a predictor in the second half."""
        ill = self.study.positive[self.parts[1]]
        rows = pd.DataFrame({"fold": 0, "target": ill, "probability": logits})
        found: dict[str, object] = {"half": self.number, "predictor": name, "area": area(rows)}
        if evidence is not None:
            groups, known = list(self.study.atlas.regions.groups), evidence.any(axis=0)
            g = np.where(known, hedges_g(evidence, ill), 0.0)
            order = np.argsort(-np.abs(g))
            frame = pd.DataFrame({"ill": ill.astype(float)})
            test = freedman_lane(
                evidence[:, known], design_of("1 + ill", "ill", frame), Exchangeability.free(len(ill)), PERMUTATIONS,
                generator(SEED, "permutations", self.number), variance_groups=ill.tolist(),
            )  # fmt: skip
            for region in REGIONS:
                place = groups.index(region)
                found[f"{region} place"] = int(np.flatnonzero(order == place)[0]) + 1
                found[f"{region} g"] = float(g[place])
            found |= {"first region": groups[order[0]], "regions p_fwe": int((test.p_fwe <= 0.05).sum()),
                      "regions": int(known.sum())}  # fmt: skip
        return found | dict(facts)


def answers(networks: Sequence[StagedModel], volumes: torch.Tensor) -> Floats:
    """Mean over networks of the logit of the disease, (people,)."""
    with torch.inference_mode():
        logits = [torch.cat([network(part.float()) for part in torch.split(volumes, 8)]) for network in networks]
    return torch.stack(logits).double().mean(0).diff(dim=1)[:, 0].numpy()


Answer = Callable[[Half], tuple[Floats, Floats | None, dict[str, object]]]
ONES: Mapping[str, Answer] = {
    "ridge on regions": lambda half: (*half.ridge(*half.parts), {}),
    "preset, one network a fold": lambda half: half.says(PRESET),
    "chosen, one network a fold": lambda half: half.says(half.chosen),
    "preset, one network a fold, images moved": lambda half: (half.applied(PRESET, (-1, 0, 1)), None, {}),
    "preset, one network a fold, and ridge, stacked": Half.stack,
}
OF_FOURS: Mapping[str, Answer] = {
    "preset": lambda half: half.says(FOURS),
    "chosen": lambda half: half.says(half.better(half.chosen, dataclasses.replace(half.chosen, ensemble=4))),
}


def asked(study: Study, number: int, predictors: Mapping[str, Answer]) -> None:
    """Add what is missing of a half to the table."""
    half, path = Half(study, number), study.out / "halves.tsv"
    half.folder.mkdir(exist_ok=True)
    for name, answer in predictors.items():
        rows = pd.read_csv(path, sep="\t") if path.is_file() else pd.DataFrame(columns=["half", "predictor"])
        if ((rows["half"] == number) & (rows["predictor"] == name)).any():
            continue
        begun = time.process_time()
        row = half.row(name, *answer(half)) | {"cpu minutes": (time.process_time() - begun) / 60}
        pd.concat([rows, pd.DataFrame([row])], ignore_index=True).to_csv(path, sep="\t", index=False)
        print({key: round(one, 3) if isinstance(one, float) else one for key, one in row.items()}, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--halves", type=int, default=12, help="halvings in all")
    parser.add_argument("--fours", type=int, default=0, help="halvings in all with four networks a fold, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    study = Study(options.source, options.out)
    for count, predictors in ((options.halves, ONES), (options.fours, OF_FOURS)):
        for number in range(count):
            asked(study, number, predictors)
    return 0


if __name__ == "__main__":
    sys.exit(main())
