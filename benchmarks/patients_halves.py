"""The people of docs/patients.md for `patients_outside.py`: images by recipe, regions, and halves of them."""

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
from numpy.typing import NDArray
from patients import call

from heatlas.atlases.brain_box import brain_box
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid, configured_template
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.models.inputs import configured_input, read_network_volume, to_network
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.registration.ants_transform import Volume, register, resample
from heatlas.pipeline.registration.images.preparation import closest_ras
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.training.baselines.images import by_region, random_features, standardised

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
SEED = 43


@dataclass(frozen=True)
class Recipe:
    """What is chosen; the defaults are where the choice begins."""

    intensities: str = "minmax"
    registration: str = "each"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    ensemble: int = 1
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
        return self._columns_of(self.volumes(PRESET))

    @cached_property
    def everyones_columns(self) -> Floats:
        return self._columns_of(self.everyone)

    def _columns_of(self, volumes: torch.Tensor) -> Floats:
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
        """As `volumes`, of all people, those of `scans` first, by one map for all."""
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
