"""``heatlas claims``: claims of the literature, asked of a finished run and of further trainings of its recipe."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.people.splits import make_split
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.evaluation.claims.of_run import (
    CLAIMS_TABLE,
    NOT_ASKED,
    OF_PREDICTED,
    Answers,
    answers_of,
    claims_table,
    planned,
    sources_of,
)
from heatlas.pipeline.evaluation.claims.records import OF_THE_LITERATURE, read_claims
from heatlas.pipeline.evaluation.claims.relevance import KNOWN_STATISTICS, NotAskedError
from heatlas.pipeline.explaining.on_demand import ExplanationRequest, show_scans
from heatlas.pipeline.explaining.stage import STAGE as EXPLAINED
from heatlas.pipeline.models.families.family import NO_BACKBONE
from heatlas.pipeline.models.families.registry import is_given, on_backbone
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.registration.own_labels import carry_labels
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import known_json
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.layout.folder import RunInput, prepare_run_folder, read_run_config, read_run_input, run_lock
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, ExplanationLayout, RunLayout
from heatlas.pipeline.run.layout.scan_files import GUIDED, LRP
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE, clear_stale_scratch
from heatlas.pipeline.run.work.progress import duration, open_log
from heatlas.pipeline.training.stage import STAGE as TRAINED
from heatlas.pipeline.training.stage import train_folds
from heatlas.workflows.commands import Claims
from heatlas.workflows.stages import aggregate, explain, predicted

FOLDER = "claims"
"""Of a run, with a run folder for each further training."""


def claims_command(options: Claims) -> int:
    """Ask a finished run the claims of the literature, or those of a file; say first which can be asked, and the cost.

    The run is only read; the answers are a table in OUT/evaluation, and further trainings lie in OUT/claims.
    """
    layout = EvaluationLayout(options.out.resolve())
    source, config = read_run_input(layout), read_run_config(layout)
    file = options.claims or OF_THE_LITERATURE
    claims = read_claims(file, KNOWN_STATISTICS)
    if options.train is not None:
        require_trainable(options.train, config)
    run, further = RunLayout(layout.root), list[RunLayout]()
    with run_lock(layout.lock):
        answers = ask(run, config)
        plan = list(planned(claims, answers))
        for claim, why, seconds in plan:
            print(f"{claim.id}: {claim.says}\n    {why or f'asked, about {duration(seconds)}'}", flush=True)
        if options.train is not None and any(not why for _, why, _ in plan):
            seeds = [config.seed + place for place in range(1, options.train + 1)]
            print(cost_in_words(run, seeds), flush=True)
            with open_executor(options.n_procs, options.executor, layout.parsl_logs, config.cluster) as executor:
                further = [trained_with(seed, run, source, config, executor) for seed in seeds]
            answers = ask(run, config, further)
            plan = list(planned(claims, answers))
        table = claims_table(plan, answers)
        CLAIMS_TABLE.write(layout, table, sources_of(run, further))
    for row in table[table["verdict"] != NOT_ASKED].to_dict("records"):
        numbers = f"{row['estimate']:.3g} ({row['ci_low']:.3g} to {row['ci_high']:.3g})"
        print(f"{row['claim']} {row['verdict']}: {row['measure']} {numbers}, as said if {row['rule']}")
    print(f"{CLAIMS_TABLE.path(layout)} (heatlas report {options.out} puts it into the report)")
    return EXIT_OK


def ask(run: RunLayout, config: Config, further: Sequence[RunLayout] = ()) -> Answers | str:
    """What a run and further trainings say, or why nothing can be asked of them."""
    try:
        return answers_of(run, config, further)
    except NotAskedError as error:
        return str(error)


def require_trainable(further: int, config: Config) -> None:
    """Refuse further trainings of a run whose recipe another seed cannot repeat."""
    if further < 1:
        raise UsageError(f"--train {further}: give 1 or more.")
    if is_given(config):
        raise UsageError("--train: the networks of this run were trained elsewhere. Leave it out.")
    stands_on_others = config.training.from_run or config.objective.teacher
    if stands_on_others or on_backbone(config.model) is not NO_BACKBONE:
        raise UsageError(
            "--train: the networks of this run build on others, which know the people that another seed would test. "
            "Leave it out."
        )


def cost_in_words(run: RunLayout, seeds: Sequence[int]) -> str:
    """What the trainings cost, from the times of the run's own."""
    receipts = [
        *run.receipt(TRAINED, "any").parent.glob("fold-?*.json"),
        *run.receipt(EXPLAINED, "any").parent.glob("*.json"),
    ]
    own = [path for path in receipts if "_repeat-" not in path.name]
    seconds = sum(float(known_json(path).get("seconds", 0)) for path in own) * len(seeds)
    names = f"seed{'s' * (len(seeds) > 1)} {listed([str(seed) for seed in seeds])}"
    return (
        f"Trains {counted(len(seeds), 'further set')} of networks, with {names}, and explains by them: about "
        f"{duration(seconds)} of one process, as the run's own took. What is finished is kept."
    )


def trained_with(seed: int, run: RunLayout, source: RunInput, config: Config, executor: Executor) -> RunLayout:
    """A run folder with the recipe and the registered scans of a run, and folds, networks and maps of another seed."""
    target, scans = RunLayout(run.root / FOLDER / f"seed-{seed}"), ScanTable.read(run)
    of_predicted = ExplanationLayout(run.root).bilateral(OF_PREDICTED).is_file()
    attribution, guided_by_own = config.attribution, config.objective.own_anatomy
    config = replace(
        config, seed=seed,
        cohort=replace(config.cohort, apply_outside_contrast=False),
        training=replace(config.training, repeats=1),
        attribution=replace(
            attribution,
            methods=tuple(one for one in attribution.methods if one in (LRP, GUIDED)),
            settings=tuple(one for one in attribution.settings if one.partition(":")[0] in (LRP, GUIDED)),
        ),
        regions=config.regions if guided_by_own else replace(config.regions, own_labels=""),
    )  # fmt: skip
    prepare_run_folder(target.root, source, config)
    share_registered(run, target, scans, config.registration.resolution_mm)
    split = make_split(scans, config.cohort, seed)
    split.write(target)
    clear_stale_scratch(target)
    with open_log(target, source.input) as log:
        work = Work(target, source.input, config, scans.kept, split, executor, DigestCache(target.digests))
        log.info("Seed %d:", seed)
        labelled = work.labelled("registration")
        carry_labels(work, work.located(labelled), configured_input(config).box if guided_by_own else None)
        if failed := [one for one in train_folds(work, labelled) if not one.ok]:
            raise BadInputError(f"{target.root}: {failed[0].job.unit} failed: {failed[0].message}")
        explain(work)  # people who cannot be explained are logged, and take no part in the answers
        aggregate(work)
        if of_predicted:
            atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
            wanted = replace(work, scans=tuple(predicted(work)))
            show_scans(wanted, ExplanationRequest((GUIDED,), target="predicted"), atlas)
        work.digests.save()
    return target


def share_registered(run: RunLayout, target: RunLayout, scans: ScanTable, resolution_mm: float) -> None:
    """Give a run folder the registered scans of another with their receipts, as links where the disk allows it."""
    scans.write(target)
    failures = FAILURES_TABLE.read(run.failures) if run.failures.is_file() else FAILURES_TABLE.frame()
    FAILURES_TABLE.write(target.failures, failures[failures["stage"].isin(["conversion", "registration"])])
    for scan in scans.kept:
        files = run.scan(scan.participant_id, scan.session_id, resolution_mm)
        folders = {path.parent for path in files.seen if path.is_file()}
        made = [path for folder in sorted(folders) for path in folder.iterdir()]
        for path in [*made, run.receipt("registration", files.name)]:
            _share(path, target.root / path.relative_to(run.root))


def _share(path: Path, copy: Path) -> None:
    if not path.is_file() or (copy.is_file() and filecmp.cmp(path, copy)):
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.unlink(missing_ok=True)
    try:
        os.link(path, copy)
    except OSError:
        shutil.copy2(path, copy)
