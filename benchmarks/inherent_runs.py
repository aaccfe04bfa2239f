"""Recipes of networks, trained and explained on the scans of a registered run whose truth is known, and scored.

What is compared differs in the recipe alone: scans, folds, regions and scores are those of `heatlas evaluate`. Networks
and maps have receipts in the folder that is written, so the same command continues.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.people.splits import Split, make_split
from heatlas.pipeline.cohort.reading import PLANTED
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.evaluation import variants
from heatlas.pipeline.evaluation.bench.part import Bench, BenchRequest, with_methods
from heatlas.pipeline.evaluation.cohorts import RUN, JudgedCohort, truth_of_input
from heatlas.pipeline.evaluation.nulls import networks_of
from heatlas.pipeline.evaluation.planting.cohort import planted_cohort
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.models.inputs import NetworkInput, read_channels
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config, TrainingConfig
from heatlas.pipeline.run.layout.folder import read_run_input
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.training.objectives.records import Context, Objective
from heatlas.pipeline.training.steps import repeatable
from heatlas.pipeline.training.trainer import NOTHING, Resumption, train
from heatlas.pipeline.training.volumes import LabelledVolumes
from heatlas.studies.consensus.stage import FAMILY, Networks

REGISTERED = "registered"
PERSON = ["person", "class", "fold"]
Ask = Callable[[], Iterable[Mapping[str, object]] | pd.DataFrame]
"""Gives a row for each person: person, class, fold, and a column for each measure."""


@dataclass(frozen=True)
class Recipe:
    """What differs from the settings of the run; the name is that of networks and rows."""

    name: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sections of a configuration; a family other than that of the run starts from its own defaults."""
    methods: tuple[str, ...] = ()

    def config(self, run: Path, seed: int) -> Config:
        return load_config(file=run / "config.toml", overrides={**self.settings, "seed": seed})

    def explanations(self, config: Config) -> tuple[Explanation, ...]:
        refused = family_of(config.model).refused
        return explanations_of_run(with_methods(config, [name for name in self.methods if name not in refused]))


def _merged(base: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `new` says, value by value of all tables."""
    return {**base, **{k: _merged(base.get(k, {}), v) if isinstance(v, Mapping) else v for k, v in new.items()}}


def records_of(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Section, name and settings of each record of a TOML file; those of what it is `like` are its own as well."""
    known: dict[str, dict[str, Any]] = {}
    for section, records in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for record in records:
            name, likes = record.pop("name"), record.pop("like", [])
            whole: dict[str, Any] = {}
            for like in [likes] if isinstance(likes, str) else likes:
                whole = _merged(whole, known[like if "/" in like else f"{section}/{like}"])
            known[f"{section}/{name}"] = whole = _merged(whole, record)
            yield section, name, whole


RECIPES = {
    f"{study}/{name}": Recipe(
        name, {key: values for key, values in whole.items() if key != "methods"}, tuple(whole.get("methods", ()))
    )
    for study, name, whole in records_of(Path(__file__).with_name("recipes.toml"))
}
"""Of recipes.toml, by study and name."""
FOUNDING = Recipe("founding")


def recipes_of(study: str) -> tuple[Recipe, ...]:
    return tuple(one for name, one in RECIPES.items() if name.startswith(f"{study}/"))


def scan_of(layout: RunLayout, spec: NetworkInput, participant: str, session: str | None = None) -> Tensor:
    """A person's scan as a network sees it, (1, 1, D, H, W)."""
    return torch.from_numpy(read_channels(layout.scan(participant, session, spec.resolution_mm), spec))[None]


def layout_of(run: Path, out: Path) -> EvaluationLayout:
    """Writes to a folder, reads scans of a run through a link."""
    layout = EvaluationLayout(out.resolve())
    link = layout.evaluation / "images" / REGISTERED
    for folder in (link.parent, out / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(run.resolve())
    return dataclasses.replace(layout, images=REGISTERED)


@dataclass(frozen=True)
class Workplace:
    """A registered run that is read, a folder that is written, who works, and how many folds (0: all)."""

    run: Path
    out: Path
    executor: Executor
    folds: int = 0

    @property
    def layout(self) -> EvaluationLayout:
        return layout_of(self.run, self.out)

    @property
    def digests(self) -> DigestCache:
        return DigestCache(self.layout.digests)

    def cohort(self, config: Config) -> JudgedCohort:
        """The labelled scans of the run, one per participant and class, in folds that the seed draws."""
        table = ScanTable.read(self.run / "scans.tsv")
        split = make_split(table, config.cohort, config.seed)
        labelled = tuple(scan for scan in table.kept if scan.label is not None)
        first: dict[tuple[str, str | None], Scan] = {}
        for scan in labelled:
            fold = split.fold_of_test(scan.participant_id)
            if fold is not None and (not self.folds or fold.index < self.folds):
                first.setdefault((scan.participant_id, scan.label), scan)
        atlas = PackedAtlas.of(self._atlas(config))
        source = read_run_input(RunLayout(self.run.resolve()))
        truth = truth_of_input(source.input / PLANTED, list(atlas.regions.groups))
        return JudgedCohort(RUN, self.layout, tuple(first.values()), split, config, atlas, truth, labelled, labelled)

    def planted(self, config: Config) -> JudgedCohort:
        """Copies of the controls with planted loss, and untouched ones, with the networks of a recipe."""
        kept, nobody = ScanTable.read(self.run / "scans.tsv").kept, Split(())
        work = self.executor, self.digests
        bench = Bench(self.layout, BenchRequest(), kept, nobody, config, self._atlas(config), *work)
        return planted_cohort(bench, self.folds)[0]

    def _atlas(self, config: Config) -> Any:
        return load_atlas(config.regions.atlas, configured_grid(config.registration))


def trained_networks(work: Workplace, recipe: Recipe, seed: int) -> tuple[JudgedCohort, Networks]:
    """The cohort and the networks of a recipe and seed, one per fold, which are trained if missing.

    Raises
    ------
    RuntimeError
        With what the first failed training says.
    """
    cohort = work.cohort(recipe.config(work.run, seed))
    name = re.sub(r"[^A-Za-z0-9.]+", "-", recipe.name) + f"_seed-{seed}"
    found = Networks(name, FAMILY, networks_of(cohort, name), cohort.config)
    for one in variants.trained(cohort, [found.variant], work.executor, work.digests, name).outcomes:
        if not one.ok:
            raise RuntimeError(f"{one.job.unit}: {one.message}")
    return cohort, found


def learn(
    model: StagedModel,
    training: LabelledVolumes,
    selecting: LabelledVolumes,
    objective: Objective,
    recipe: TrainingConfig,
    seed: int,
    context: Context = NOTHING,
) -> StagedModel:
    """The model with the weights of the epoch that the validation part selects; by one thread of the processor."""
    with repeatable(torch.device("cpu"), seed, 1), tempfile.TemporaryDirectory() as scratch:
        kept = Resumption(Path(scratch) / "training.safetensors", "study")
        found = train(model, training, selecting, objective, recipe, seed, kept, context)
    model.load_state_dict(found.weights)
    return model.eval()
