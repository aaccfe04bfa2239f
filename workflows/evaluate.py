"""Methods on a finished run: maps (``heatlas explain``) and the bench (``heatlas evaluate``).

The bench tests every method against nulls, planted truth and the network, with a verdict on each.
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Split
from heatlas.pipeline.cohort.reading import PLANTED
from heatlas.pipeline.cohort.records import SCANS_TABLE, Scan, ScanTable
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.evaluation.bench.part import Bench, BenchRequest
from heatlas.pipeline.evaluation.parts import PARTS, chosen_parts, require_task
from heatlas.pipeline.explaining.on_demand import SEEN, ExplanationRequest, explainable, show_scans
from heatlas.pipeline.models.families.registry import on_backbone
from heatlas.pipeline.run.config.files import with_section
from heatlas.pipeline.run.config.inclusion import read_class
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, BadInputError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input, run_lock
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, ExplanationLayout
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import Outcome, clear_stale_scratch
from heatlas.pipeline.run.work.progress import open_log
from heatlas.reports.page.sections import PART_VIEWS
from heatlas.workflows.commands import Evaluate, Explain

LISTED = 5
"""Largest number of empty maps that are named."""


def explain_command(options: Explain) -> int:
    """Explain scans of a run, without changing its maps, receipts, failures and report."""
    layout = ExplanationLayout(options.out.resolve())
    source = read_run_input(layout)
    with run_lock(layout.lock) as lock_note:
        if lock_note:
            print(lock_note)
        return _explain(layout, source.input, options)


def _explain(layout: ExplanationLayout, input_root: Path, options: Explain) -> int:
    config = read_run_config(layout)
    for path in (SCANS_TABLE.path(layout), SPLITS_TABLE.path(layout)):
        if not path.is_file():
            raise UsageError(
                f"{path}: no such file, so this run has no networks to explain. Finish the run with heatlas run."
            )
    by_number = read_class(options.target or "", config.cohort.contrast_column)  # ``>=0.5`` for ``cdr ≥ 0.5``
    target = options.target if by_number is None else by_number.name
    request = ExplanationRequest(
        options.method, options.setting, target, options.stage, options.start, options.participant_label, options.scan
    )
    scans, split, digests = ScanTable.read(layout).kept, Split.read(layout), DigestCache(layout.digests)
    try:
        atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
    except (UsageError, BadInputError) as error:
        raise type(error)(f"{layout.config}: regions.atlas: {error}") from error
    clear_stale_scratch(layout)
    with open_executor(options.n_procs, options.executor, layout.parsl_logs, config.cluster) as executor:
        work = Work(layout, input_root, config, scans, split, executor, digests)
        outcomes = show_scans(work, request, atlas)
    if not (request.participants or request.scans):  # all scans were asked for
        for why, count in Counter(reason for reason in explainable(work)[1].values() if reason != SEEN).items():
            print(f"  {counted(count, 'scan')} left out: {why.replace(f'{layout.root}{os.sep}', '')}")
    explained = [outcome for outcome in outcomes if outcome.ok]
    for outcome in outcomes:
        if not outcome.ok:
            print(f"  {outcome.job.unit} failed: {outcome.message}")
    empty = [outcome.job.unit for outcome in outcomes if outcome.ok and not _shows_anything(outcome)]
    for unit in empty[:LISTED]:
        print(f"  {unit}: the map is 0 in every region; the method finds no evidence for the target")
    if len(empty) > LISTED:
        print(f"  ... and {len(empty) - LISTED} more such maps")
    print(f"{len(explained)} of {len(outcomes)} explanations are available, in {layout.root}/sub-*/**/relevance")
    for label in dict.fromkeys(outcome.job.arguments[0].explanations[0].label for outcome in explained):
        print(f"  {layout.regions(label)}")
    if outcomes and not explained:
        first = " ".join(outcomes[0].message.split())
        raise BadInputError(f"every explanation failed ({layout.failures}). The first: {first}")
    return EXIT_OK if len(explained) == len(outcomes) else EXIT_SOME_FAILED


def _shows_anything(outcome: Outcome) -> bool:
    """Whether the map has relevance in any region.

    Grad-CAM's maps often have none: its last step sets evidence against the target to 0.
    """
    return bool((read_table(outcome.job.outputs["regions"], ["sum"])["sum"].fillna(0) != 0).any())


WIDTH = 100
"""Characters of a line of the printed verdicts, without what the log puts before it."""


def evaluate_command(options: Evaluate) -> int:
    """Judge the methods on a finished run, without changing anything of it; print the verdicts.

    UsageError if the folder is no run, or a method or part does not exist. BadInputError if the run has nothing to
    judge.
    """
    layout = EvaluationLayout(options.out.resolve())
    source, request = read_run_input(layout), request_of(options)
    config = read_run_config(layout)
    config = replace(config, model=on_backbone(config.model).kept(config.model, layout))
    if options.config is not None:
        config = with_section(config, options.config, "evaluation")
    if not SCANS_TABLE.path(layout).is_file():
        raise UsageError(
            f"{SCANS_TABLE.path(layout)}: no such file, so there is nothing to evaluate. Finish the run with "
            "heatlas run."
        )
    layout.evaluation.mkdir(exist_ok=True)
    with (
        run_lock(layout.lock) as lock_note,
        open_log(layout, source.input) as log,
        open_executor(options.n_procs, options.executor, layout.parsl_logs, config.cluster) as executor,
    ):
        if lock_note:
            log.warning("%s", lock_note)
        clear_stale_scratch(layout)
        atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
        split = Split.read(layout) if SPLITS_TABLE.path(layout).is_file() else Split(())
        scans, missing = registered_scans(layout, config)
        for name in missing:
            log.warning("%s is not registered and is left out", name)
        bench = Bench(layout, request, scans, split, config, atlas, executor, DigestCache(layout.digests))
        require_task(request.parts, config, split)
        evaluated = bench.evaluate(source.input / PLANTED)
        clear_stale_scratch(layout)
        for view in PART_VIEWS.values():
            if view.write is not None:
                view.write(layout)
        for line in verdict_lines(evaluated.verdicts):
            log.info("%s", line)
        log.info("Tables: %s (heatlas report %s puts them into the report)", layout.evaluation, options.out)
    failed = [outcome for outcome in evaluated.outcomes if not outcome.ok]
    for outcome in failed:
        print(f"  {outcome.job.unit} failed: {outcome.message}")
    return EXIT_SOME_FAILED if failed else EXIT_OK


def request_of(options: Evaluate) -> BenchRequest:
    """What was typed.

    UsageError for a part that does not exist, families without the consensus, or draws without retrain or below 1.
    """
    parts = chosen_parts(_listed(options.parts))
    if options.plant:
        parts = tuple(dict.fromkeys((*parts, *chosen_parts(["plant"]))))
    for part in PARTS:
        for name, why in part.options.items():
            if getattr(options, name) not in (None, ()) and part not in parts:
                raise UsageError(f"--{name}: {why}; add {part.name} to --parts.")
    if options.draws is not None and options.draws < 1:
        raise UsageError(f"--draws {options.draws}: give 1 or more.")
    families = tuple(text.strip() for text in options.families)  # settings may hold commas
    return BenchRequest(_listed(options.methods), parts, options.quick, families, options.draws)


def _listed(texts: Sequence[str]) -> tuple[str, ...]:
    """Names given one by one or with commas between them."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def registered_scans(layout: EvaluationLayout, config: Config) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    """Kept scans whose registered image and mask are there, and the names of the others.

    BadInputError if no scan is registered.
    """
    kept, resolution = ScanTable.read(layout).kept, config.registration.resolution_mm
    files = [layout.scan(scan.participant_id, scan.session_id, resolution) for scan in kept]
    names = {one.name for one in files if all(path.is_file() for path in one.seen)}
    found = tuple(scan for scan in kept if scan.name in names)
    if not found:
        raise BadInputError(f"{layout.root}: no scan is registered. Finish the run with heatlas run.")
    return found, tuple(scan.name for scan in kept if scan.name not in names)


def verdict_lines(verdicts: pd.DataFrame) -> list[str]:
    """The verdicts as printed, those that passed first: the answers, and below them the numbers."""
    lines = []
    for cohort, of_cohort in verdicts.groupby("cohort", sort=False):
        lines.append(f"On the {'scans of the run' if cohort == 'run' else 'controls with planted loss'}:")
        ordered = of_cohort.assign(order=of_cohort["passed"].fillna(False)).sort_values(
            "order", ascending=False, kind="stable"
        )
        for row in ordered.to_dict("records"):
            answer = "n/a   " if pd.isna(row["passed"]) else "passed" if row["passed"] else "failed"
            lines += _wrapped(f"{answer} {row['map']}: {row['verdict']}", "  ")
            lines += _wrapped(row["numbers"], " " * 9)
    return lines


def _wrapped(text: str, before: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=before, subsequent_indent=" " * 9)
