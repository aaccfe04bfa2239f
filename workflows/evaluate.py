"""``heatlas evaluate``: the bench. Every method against nulls, planted truth and the network; a verdict on each."""

from __future__ import annotations

import argparse
import textwrap

import pandas as pd

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Split
from heatlas.pipeline.cohort.reading import PLANTED
from heatlas.pipeline.cohort.records import SCANS_TABLE, Scan, ScanTable
from heatlas.pipeline.evaluation.bench.part import Bench, BenchRequest
from heatlas.pipeline.evaluation.parts import PARTS, chosen_parts, require_task
from heatlas.pipeline.run.config.files import with_section
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, BadInputError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input, run_lock
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import clear_stale_scratch
from heatlas.pipeline.run.work.progress import open_log
from heatlas.pipeline.training.kept_backbone import on_kept_backbone
from heatlas.reports.content.relevance.evaluation_grids import draw_aggregated

WIDTH = 100
"""Characters of a line of the printed verdicts, without what the log puts before it."""


def evaluate_command(arguments: argparse.Namespace) -> int:
    """Judge the methods on a finished run, without changing anything of it; print the verdicts.

    UsageError if the folder is no run, or a method or part does not exist. BadInputError if the run has nothing to
    judge.
    """
    layout = EvaluationLayout(arguments.out.resolve())
    source, request = read_run_input(layout), request_of(arguments)
    config = on_kept_backbone(read_run_config(layout), layout)
    if arguments.config is not None:
        config = with_section(config, arguments.config, "evaluation")
    if not SCANS_TABLE.path(layout).is_file():
        raise UsageError(
            f"{SCANS_TABLE.path(layout)}: no such file, so there is nothing to evaluate. Finish the run with "
            "heatlas run."
        )
    layout.evaluation.mkdir(exist_ok=True)
    with (
        run_lock(layout.lock) as lock_note,
        open_log(layout, source.input) as log,
        open_executor(arguments.n_procs, arguments.executor, layout.parsl_logs, config.cluster) as executor,
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
        if layout.aggregated_maps.is_file():
            draw_aggregated(layout.aggregated_maps, layout.evaluation_figures)
        for line in verdict_lines(evaluated.verdicts):
            log.info("%s", line)
        log.info("Tables: %s (heatlas report %s puts them into the report)", layout.evaluation, arguments.out)
    failed = [outcome for outcome in evaluated.outcomes if not outcome.ok]
    for outcome in failed:
        print(f"  {outcome.job.unit} failed: {outcome.message}")
    return EXIT_SOME_FAILED if failed else EXIT_OK


def request_of(arguments: argparse.Namespace) -> BenchRequest:
    """What was typed.

    UsageError for a part that does not exist, families without the consensus, or draws without retrain or below 1.
    """
    parts = chosen_parts(_listed(arguments.parts))
    if arguments.plant:
        parts = tuple(dict.fromkeys((*parts, *chosen_parts(["plant"]))))
    for part in PARTS:
        for option, why in part.options.items():
            if getattr(arguments, option) not in (None, []) and part not in parts:
                raise UsageError(f"--{option}: {why}; add {part.name} to --parts.")
    if arguments.draws is not None and arguments.draws < 1:
        raise UsageError(f"--draws {arguments.draws}: give 1 or more.")
    families = tuple(text.strip() for text in arguments.families)  # settings may hold commas
    return BenchRequest(_listed(arguments.methods), parts, arguments.quick, families, arguments.draws)


def _listed(texts: list[str]) -> tuple[str, ...]:
    """Names given one by one or with commas between them."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def registered_scans(layout: EvaluationLayout, config: Config) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    """Kept scans whose registered image and mask are there, and the names of the others.

    BadInputError if no scan is registered.
    """
    found, missing = [], []
    for scan in ScanTable.read(layout).kept:
        files = layout.scan(scan.participant_id, scan.session_id, config.registration.resolution_mm)
        if all(path.is_file() for path in files.seen):
            found.append(scan)
        else:
            missing.append(scan.name)
    if not found:
        raise BadInputError(f"{layout.root}: no scan is registered. Finish the run with heatlas run.")
    return tuple(found), tuple(missing)


def verdict_lines(verdicts: pd.DataFrame) -> list[str]:
    """The verdicts as printed, those that passed first: the answers, and below them the numbers."""
    lines = []
    for cohort, own in verdicts.groupby("cohort", sort=False):
        lines.append(f"On the {'scans of the run' if cohort == 'run' else 'controls with planted loss'}:")
        ordered = own.assign(order=own["passed"].fillna(False)).sort_values("order", ascending=False, kind="stable")
        for row in ordered.to_dict("records"):
            answer = "n/a   " if pd.isna(row["passed"]) else "passed" if row["passed"] else "failed"
            lines += _wrapped(f"{answer} {row['map']}: {row['verdict']}", "  ")
            lines += _wrapped(row["numbers"], " " * 9)
    return lines


def _wrapped(text: str, before: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=before, subsequent_indent=" " * 9)
