"""The bench of a finished run: every method against nulls, planted truth and the network itself; a verdict on each.

One record says all that the bench, the command line and the report know of a part. The bench asks every part at fixed
points; it knows none by name. `pipeline.evaluation.parts` registers them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd

from heatlas.atlases.labels import Atlas
from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench.judging import CohortMaps, Extent, Judge, judged_rows
from heatlas.pipeline.evaluation.bench.table import EVALUATION_TABLE, evaluation_table
from heatlas.pipeline.evaluation.bench.verdicts import (
    DISTRACTORS_TABLE,
    VERDICTS_TABLE,
    distractor_table,
    verdict_table,
)
from heatlas.pipeline.evaluation.cohorts import RUN, JudgedCohort, truth_of_input
from heatlas.pipeline.evaluation.nulls import shuffled_variants
from heatlas.pipeline.evaluation.variants import trained
from heatlas.pipeline.explaining.explained_scan import Explanation
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run, require_all_defined
from heatlas.pipeline.models.families.registry import build_network, family_of, is_given
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.documents import known_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome, record_failures
from heatlas.pipeline.run.work.progress import duration


@dataclass(frozen=True)
class Shown:
    """A table of a part in the report.

    `title`: the question it answers. `table`: name of its declaration. `command`: what makes it, after ``heatlas
    evaluate OUT``; empty for ``--parts`` with the name of the part.
    """

    title: str
    table: str
    command: str = ""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of ``heatlas evaluate``.

    Parameters
    ----------
    name : str
        After ``--parts``.
    help : str
        What it does, in one line.
    require : callable
        ``require(request, config)``: refuse it with a `UsageError`, before anything is planted or trained.
    extent : collection of {"nulls", "faithful", "controls"}
        What it needs of the maps of every cohort; fields of `pipeline.evaluation.bench.judging.Extent`.
    cohort : callable or None
        ``cohort(bench)``: makes a further cohort.
    after : callable or None
        ``after(bench, cohort, rows)``: goes on with the maps of the first cohort.
    run : callable or None
        ``run(bench, cohort)``: all of its work, on the first cohort, with tables of its own. If no other part is
        asked for, the verdicts stay as they are.
    tables : sequence of Table
        Written by it alone.
    shown : sequence of Shown
        What the section *Further results of the evaluation* shows of it, in this order.
    options : mapping of str to str
        Arguments of the command that only it takes, each with the sentence that says so.
    usual, any_task, several_images, trains, last, at_stages : bool
        Whether it is asked by default; defined for several classes and for numbers too; defined for networks that see
        several images; trains networks with the recipe of the run; done after the others, since it may find nothing to
        do; asks inherent maps of hybrids at stages of its own, with a row that says so where they are not defined.
    """

    name: str
    help: str
    require: Callable[[BenchRequest, Config], object] = lambda *_: None
    extent: Collection[Literal["nulls", "faithful", "controls"]] = ()
    cohort: Callable[[Bench], tuple[JudgedCohort, list[Outcome]]] | None = None
    after: Callable[[Bench, JudgedCohort, CohortMaps], list[Outcome]] | None = None
    run: Callable[[Bench, JudgedCohort], list[Outcome]] | None = None
    tables: Sequence[Table] = ()
    shown: Sequence[Shown] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    usual: bool = False
    any_task: bool = False
    several_images: bool = False
    trains: bool = False
    last: bool = False
    at_stages: bool = False


USUAL_METHODS = (
    "expected-gradients", "integrated-gradients-from-mean", "deeplift", "region-swap", "lrp", "guided-backpropagation",
    "gradient", "input-x-gradient", "integrated-gradients", "grad-cam",
)  # fmt: skip
"""Those that a run makes by default, the other maps relative to controls, and the most used of the rest."""
FEW_METHODS = ("expected-gradients", "deeplift", "lrp")
"""Methods of the parts that train networks for every method, unless methods are named."""
SHUFFLES = 3


@dataclass(frozen=True)
class BenchRequest:
    """What is asked of the bench.

    `methods`: empty for `USUAL_METHODS` and the methods of the run, less those not defined for the family of networks.
    `quick`: one swap of labels instead of three, and less of other parts. `families`, `draws`: for parts that ask other
    families of networks, or draw random regions; None for as many draws as usual.
    """

    methods: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    quick: bool = False
    families: tuple[str, ...] = ()
    draws: int | None = None

    @property
    def in_order(self) -> list[Part]:
        return sorted(self.parts, key=lambda part: part.last)

    def extent(self, shuffles: int = SHUFFLES) -> Extent:
        needed = {name: True for part in self.parts for name in part.extent}
        swaps = min(shuffles, 1 if self.quick else SHUFFLES) if "nulls" in needed else 0
        return Extent(swaps, **needed)


def methods_of(request: BenchRequest, config: Config) -> tuple[str, ...]:
    """Names of the methods that are judged; UsageError for one that does not exist or is not defined for the family."""
    family = family_of(config.model)
    for name in request.methods:
        find_method(name, "--methods")
        family.require_method(name)
    names = [name for name in dict.fromkeys((*USUAL_METHODS, *config.attribution.methods)) if name in METHODS]
    return tuple(dict.fromkeys(request.methods)) or tuple(name for name in names if name not in family.refused)


def few_methods(request: BenchRequest, config: Config) -> tuple[Explanation, ...]:
    """The methods named, or `FEW_METHODS`, less those not defined for the family of networks."""
    refused = family_of(config.model).refused
    asked = dict.fromkeys(request.methods or FEW_METHODS)
    return explanations_of_run(with_methods(config, tuple(name for name in asked if name not in refused)))


def with_methods(config: Config, methods: Sequence[str]) -> Config:
    """The same settings with other methods: those of the run with their settings, and of LRP two values of β."""
    kept = tuple(text for text in config.attribution.settings if text.partition("=")[0].partition(":")[0] in methods)
    betas = config.attribution.betas
    ends = tuple(dict.fromkeys((min(betas), max(betas))))
    attribution = dataclasses.replace(config.attribution, methods=tuple(methods), settings=kept, betas=ends)
    return dataclasses.replace(config, attribution=attribution)


log = logging.getLogger("heatlas")

VERDICT_TABLES = (EVALUATION_TABLE, DISTRACTORS_TABLE, VERDICTS_TABLE)
"""Tables that the bench writes whatever parts are asked for."""


@dataclass(frozen=True)
class Evaluated:
    """Tables and outcomes of the bench."""

    evaluation: pd.DataFrame
    verdicts: pd.DataFrame
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Bench:
    """What all parts work with."""

    layout: EvaluationLayout
    request: BenchRequest
    scans: tuple[Scan, ...]
    split: Split
    config: Config
    atlas: Atlas
    executor: Executor
    digests: DigestCache

    def evaluate(self, truth_json: Path) -> Evaluated:
        """Do all parts and write the tables; `truth_json`: ``truth/planted.json`` of the input, which need not exist.

        Raises UsageError for an unknown method, one that is not defined for the network, or a part that is refused.
        Raises BadInputError if the run has no network, controls are missing, or every unit of work failed.
        """
        self._require_defined()
        parts = self.request.in_order
        for part in parts:
            part.require(self.request, self.config)
        self._say_what_is_trained(parts)
        cohorts: list[tuple[JudgedCohort, Extent]] = []
        outcomes: list[Outcome] = []
        if self.split.folds:
            cohort = self._cohort_of_run(truth_json)
            extent = self.request.extent(0 if is_given(self.config) else SHUFFLES)
            if is_given(self.config):
                log.info(
                    "These networks were trained elsewhere, so none is trained on shuffled labels, and no map can pass."
                )
            cohort, trainings = self._with_nulls(cohort, extent)
            outcomes += trainings
            cohorts.append((cohort, extent))
        elif not any(part.cohort for part in self.request.parts):
            raise BadInputError(
                f"{SPLITS_TABLE.path(self.layout)}: no such table, so this run has no networks. Finish it with heatlas "
                "run, or ask for --plant, which needs registered scans only."
            )
        for part in parts:
            if part.cohort is not None:
                cohort, made = part.cohort(self)
                outcomes += made
                extent = self.request.extent(shuffles=1)
                cohort, trainings = self._with_nulls(cohort, extent)
                outcomes += trainings
                cohorts.append((cohort, extent))
        for part in parts:
            if part.run is not None:
                outcomes += part.run(self, cohorts[0][0])
        asked = [part for part in self.request.parts if part.cohort is None]
        if asked and all(part.run for part in asked):  # the verdicts of an earlier call stay
            return Evaluated(EVALUATION_TABLE.frame(), VERDICTS_TABLE.frame(), tuple(outcomes))
        evaluation, marked = [], []
        for cohort, extent in with_shifts_of_first(cohorts):
            explanations = self.explanations(cohort.config)
            cohort, rows, judged = judged_rows(cohort, explanations, extent, self.executor, self.digests)
            outcomes += judged
            for part in parts if cohort.name == cohorts[0][0].name else ():
                outcomes += part.after(self, cohort, rows) if part.after is not None else []
            evaluation.append(evaluation_table(cohort, rows))
            marked.append(distractor_table(cohort, rows))
        record_failures(self.layout, outcomes)  # each cohort has recorded its own alone
        judgement = with_earlier(EVALUATION_TABLE.path(self.layout), pd.concat(evaluation))
        verdicts = verdict_table(judgement)
        EVALUATION_TABLE.write(self.layout, judgement)
        DISTRACTORS_TABLE.write(self.layout, with_earlier(DISTRACTORS_TABLE.path(self.layout), pd.concat(marked)))
        VERDICTS_TABLE.write(self.layout, verdicts)
        return Evaluated(judgement, verdicts, tuple(outcomes))

    def _say_what_is_trained(self, parts: Sequence[Part]) -> None:
        own = self.request.extent(0 if is_given(self.config) else SHUFFLES).shuffles if self.split.folds else 0
        sets = own + sum(1 + self.request.extent(shuffles=1).shuffles for part in parts if part.cohort is not None)
        run = RunLayout(self.layout.root)
        receipts = [known_json(run.receipt("training", f"fold-{fold.index}")) for fold in self.split.folds]
        times = [float(receipt["seconds"]) for receipt in receipts if "seconds" in receipt]
        took = f"; the run's own set took {duration(sum(times))} of one process" if times else ""
        if sets:
            log.info("Trains %s of networks%s. Finished networks are kept.", counted(sets, "set"), took)

    def _require_defined(self) -> None:
        """Refuse methods that are not defined for the network, before anything is planted or trained.

        What is defined from a later stage of the network on may be asked by parts with stages of their own.
        """
        explanations, spec = self.explanations(self.config), configured_input(self.config)
        conditional = [asked for asked in explanations if hasattr(asked.entry.record, "require")]
        if conditional:
            network = build_network(
                self.config.model, spec.shape, len(task_of(self.config.cohort).outputs), spec.channels
            ).eval()
            parts = self.request.parts
            if parts and all(part.at_stages for part in parts):
                conditional = [asked for asked in conditional if not asked.entry.needs_later_stage(network)]
            require_all_defined(network, spec, PackedAtlas.of(self.atlas), conditional)

    def explanations(self, config: Config) -> tuple[Explanation, ...]:
        return explanations_of_run(with_methods(config, methods_of(self.request, config)))

    def _cohort_of_run(self, truth_json: Path) -> JudgedCohort:
        """Scans of the run that a network of the run may explain: of each participant and class the first."""
        task = task_of(self.config.cohort)
        if all(scan.label is None for scan in self.scans):
            raise BadInputError(
                f"{self.layout.root}: nobody has a label, and the bench compares classes. Give heatlas apply a cohort "
                "with labels of both classes."
            )
        tested: dict[tuple[str, str | None], Scan] = {}
        for scan in self.scans:
            fold = self.split.fold_of_test(scan.participant_id) if scan.label is not None else None
            if fold is not None and self.layout.fold(fold.index).weights.is_file():
                tested.setdefault((scan.participant_id, scan.label if task.classes else None), scan)
        if not tested:
            raise BadInputError(
                f"{self.layout.root}: no scan has a network that has not seen it. Finish the run with heatlas run."
            )
        for label in task.classes:
            if not any(seen == label for _, seen in tested):
                raise BadInputError(
                    f"{self.layout.root}: no scan of {label} has a network that has not seen it, and regions are "
                    "ranked by the difference between the classes. Finish the run with heatlas run."
                )
        packed = PackedAtlas.of(self.atlas)
        # what was planted is a disease; a network that predicts a number need not use it
        truth = truth_of_input(truth_json, list(packed.regions.groups)) if task.classes else None
        if truth is None:
            log.info("No truth is known of the scans of the run; --plant makes one from its controls.")
        labelled = tuple(scan for scan in self.scans if scan.label is not None)
        return JudgedCohort(
            RUN, self.layout, tuple(tested.values()), self.split, self.config, packed, truth, labelled, labelled
        )

    def _with_nulls(self, cohort: JudgedCohort, extent: Extent) -> tuple[JudgedCohort, list[Outcome]]:
        """Train networks on labels that say nothing; a network that cannot be trained is missing from the nulls."""
        Judge(cohort, self.explanations(cohort.config), extent, self.digests).require_controls()
        variants = shuffled_variants(cohort, range(1, extent.shuffles + 1))
        networks = trained(cohort, variants, self.executor, self.digests, "training on shuffled labels")
        failed = frozenset(outcome.job.outputs["weights"] for outcome in networks.outcomes if not outcome.ok)
        return dataclasses.replace(cohort, untrained=failed), networks.outcomes


def with_shifts_of_first(cohorts: Sequence[tuple[JudgedCohort, Extent]]) -> list[tuple[JudgedCohort, Extent]]:
    """Cohorts of which the first alone has maps of moved scans for ``shift_curve.tsv``, which has no other."""
    made = list(cohorts[:1])
    for cohort, extent in cohorts[1:]:
        evaluation = dataclasses.replace(cohort.config.evaluation, shifts=())
        config = dataclasses.replace(cohort.config, evaluation=evaluation)
        made.append((dataclasses.replace(cohort, config=config), extent))
    return made


def with_earlier(path: Path, made: pd.DataFrame) -> pd.DataFrame:
    """Rows just made, and those of cohorts that an earlier call judged and this one did not (planted copies).

    A table with other columns, of another version, is not continued.
    """
    earlier = read_table(path) if path.is_file() else made.iloc[:0]
    if list(earlier.columns) != list(made.columns):
        return made
    others = earlier[~earlier["cohort"].isin(set(made["cohort"]))]
    return pd.concat([made, others], ignore_index=True) if len(others) else made
