"""``heatlas explain``: heatmaps of chosen scans from a finished run, by any method."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Mapping

from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Split
from heatlas.pipeline.cohort.records import SCANS_TABLE, ScanTable
from heatlas.pipeline.explaining.on_demand import SEEN, ExplanationRequest, explainable, show_scans
from heatlas.pipeline.run.config.number_classes import read_class
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, BadInputError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input, run_lock
from heatlas.pipeline.run.layout.run_layout import ExplanationLayout
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import Outcome, clear_stale_scratch

LISTED = 5
"""Largest number of empty maps that are named."""


def explain_command(arguments: argparse.Namespace) -> int:
    """Explain scans of a run, without changing its maps, receipts, failures and report."""
    layout = ExplanationLayout(arguments.out.resolve())
    read_run_input(layout)
    with run_lock(layout.lock) as lock_note:
        if lock_note:
            print(lock_note)
        return _explain(layout, arguments)


def _explain(layout: ExplanationLayout, arguments: argparse.Namespace) -> int:
    config = read_run_config(layout)
    for path in (SCANS_TABLE.path(layout), SPLITS_TABLE.path(layout)):
        if not path.is_file():
            raise UsageError(
                f"{path}: no such file, so this run has no networks to explain. Finish the run with heatlas run."
            )
    by_number = read_class(arguments.target or "", config.cohort.contrast_column)  # ``>=0.5`` for ``cdr ≥ 0.5``
    target = arguments.target if by_number is None else by_number.name
    request = ExplanationRequest(
        tuple(arguments.method), tuple(arguments.setting), target, arguments.stage, arguments.start,
        tuple(arguments.participant_label), tuple(arguments.scan),
    )  # fmt: skip
    scans, split = ScanTable.read(layout).kept, Split.read(layout)
    atlas = _atlas_of(layout, config)
    digests = DigestCache(layout.digests)
    clear_stale_scratch(layout)
    with open_executor(arguments.n_procs, arguments.executor, layout.parsl_logs, config.cluster) as executor:
        outcomes = show_scans(layout, request, scans, split, atlas, config, executor, digests)
    _report_left_out(layout, request, explainable(layout, scans, split, config)[1])
    made = [outcome for outcome in outcomes if outcome.ok]
    for outcome in outcomes:
        if not outcome.ok:
            print(f"  {outcome.job.unit} failed: {outcome.message}")
    empty = [outcome.job.unit for outcome in outcomes if outcome.ok and not _shows_anything(outcome)]
    for unit in empty[:LISTED]:
        print(f"  {unit}: the map is 0 in every region; the method finds no evidence for the target")
    if len(empty) > LISTED:
        print(f"  ... and {len(empty) - LISTED} more such maps")
    print(f"{len(made)} of {len(outcomes)} explanations are available, in {layout.root}/sub-*/**/relevance")
    for label in dict.fromkeys(outcome.job.arguments[0].explanations[0].label for outcome in made):
        print(f"  {layout.regions(label)}")
    if outcomes and not made:
        first = " ".join(outcomes[0].message.split())
        raise BadInputError(f"every explanation failed ({layout.failures}). The first: {first}")
    return EXIT_OK if len(made) == len(outcomes) else EXIT_SOME_FAILED


def _atlas_of(layout: ExplanationLayout, config: Config) -> Atlas:
    try:
        return load_atlas(config.regions.atlas, configured_grid(config.registration))
    except (UsageError, BadInputError) as error:
        raise type(error)(f"{layout.config}: regions.atlas: {error}") from error


def _report_left_out(layout: ExplanationLayout, request: ExplanationRequest, closed: Mapping[str, str]) -> None:
    """Report scans that are left out because a file or row is missing, if all scans were requested."""
    if not (request.participants or request.scans):
        for why, count in Counter(reason for reason in closed.values() if reason != SEEN).items():
            print(f"  {counted(count, 'scan')} left out: {why.replace(f'{layout.root}{os.sep}', '')}")


def _shows_anything(outcome: Outcome) -> bool:
    """Whether the map has relevance in any region.

    Grad-CAM's maps often have none: its last step sets evidence against the target to 0.
    """
    return bool((read_table(outcome.job.outputs["regions"], ["sum"])["sum"].fillna(0) != 0).any())
