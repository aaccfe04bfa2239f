"""From an ADNI download (or a BIDS dataset) to a region-relevance report: the composition of the stages.

Run as ``python workflows/adni.py COMMAND`` or ``heatlas COMMAND``. Each stage reads records that earlier stages
wrote and writes its own; this module only hands them on.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from atlases.labels import load_atlas
from atlases.spaces import template_grid
from atlases.templates import load_template
from pipeline.attribution.explained_scan import map_names
from pipeline.attribution.stage import explain_scans
from pipeline.cohort.conversion import convert_scans
from pipeline.cohort.demo.cohort import write_demo_cohort
from pipeline.cohort.manifest import write_comparison
from pipeline.cohort.reading import PLANTED, inspect_cohort
from pipeline.cohort.records import Scan, ScanTable
from pipeline.cohort.splits import Split, make_split
from pipeline.evaluation.planted import evaluate_planted
from pipeline.regions.stage import aggregate_relevance
from pipeline.registration.stage import register_scans
from pipeline.run.config import Config, load_config, read_config
from pipeline.run.digests import DigestCache
from pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, BadInputError
from pipeline.run.executors import open_executor
from pipeline.run.folder import RunInput, prepare_run_folder, read_run_input, require_same_privacy
from pipeline.run.jobs import Outcome, clear_stale_scratch
from pipeline.run.layout import RunLayout
from pipeline.run.log import open_log
from pipeline.run.private_paths import without_home
from pipeline.run.provenance import write_dataset_description, write_provenance
from pipeline.run.steps import run_step
from pipeline.run.tables import read_table
from pipeline.statistics.stage import analyse
from pipeline.training.stage import train_folds
from reports.build import build_report, report_inputs, written_files
from workflows.check import describe_cohort
from workflows.command_line import STAGES, main
from workflows.explain import explain_command
from workflows.registration import finish_registration
from workflows.settings import seed_of, selection_of, settings_of


@dataclass(frozen=True)
class Work:
    """What every stage of a run is given."""

    layout: RunLayout
    input_root: Path
    config: Config
    scans: tuple[Scan, ...]
    split: Split
    executor: Executor
    digests: DigestCache

    @property
    def map_names(self) -> list[str]:
        return map_names(self.config.attribution)

    @property
    def truth(self) -> Path:
        """What was planted, where the input is a demo cohort."""
        return self.input_root / PLANTED

    def labelled(self, *stages: str) -> list[Scan]:
        """Scans of the contrast that failed in none of the given stages, as registration has left them.

        Registration may drop scans and add volumes, and says so in ``scans.tsv``.
        """
        failures = read_table(self.layout.failures)
        failed = set(failures.loc[failures["stage"].isin(["conversion", *stages]), "unit"])
        return [
            scan for scan in ScanTable.read(self.layout.scans).kept
            if scan.label is not None and scan.name not in failed
        ]  # fmt: skip

    def predicted(self, *stages: str) -> list[Scan]:
        """Those with an out-of-fold prediction: the scans that a network may be asked to explain."""
        names = set(read_table(self.layout.predictions)["scan_id"])
        return [scan for scan in self.labelled("registration", *stages) if scan.scan_id in names]


@dataclass(frozen=True)
class Result:
    """How a stage went: its units of work, and whether a step over the whole group was done."""

    outcomes: Sequence[Outcome] = ()
    step_done: bool = False

    def count(self, status: str) -> int:
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def changed(self) -> bool:
        return self.step_done or self.count("done") > 0

    def __str__(self) -> str:
        counts = [f"{self.count(status)} {status}" for status in ("done", "unchanged", "failed") if self.count(status)]
        return ", ".join(counts) or ("done" if self.step_done else "unchanged")


def register(work: Work) -> Result:
    """Bring every kept scan, labelled or not, to template space; DICOM series become NIfTI first."""
    config = work.config
    scans, conversions = convert_scans(
        work.layout, work.input_root, work.scans, config.cohort.max_voxel_mm, work.executor
    )
    registrations = register_scans(
        work.layout, work.input_root, scans, config.registration, config.seed, work.executor, work.digests
    )
    kept = [scan for scan in scans if scan.kept]
    later = finish_registration(work.layout, kept, registrations, config, work.executor, work.digests)
    told = [*(o for o in conversions if o.status != "unchanged"), *registrations, *(o for o in later if not o.ok)]
    return Result(told, step_done=any(o.status == "done" for o in later))


def train(work: Work) -> Result:
    """Train one network per fold and predict the scans it has not seen."""
    scans = work.labelled("registration")
    return Result(train_folds(work.layout, scans, work.split, work.config, work.executor, work.digests))


def explain(work: Work) -> Result:
    """Make the heatmaps of every scan with the network that has not seen its participant."""
    layout, config = work.layout, work.config
    atlas = load_atlas(config.regions.atlas, template_grid(config.registration.resolution_mm))
    scans, predictions = work.predicted(), read_table(layout.predictions)
    return Result(explain_scans(layout, scans, work.split, predictions, atlas, config, work.executor, work.digests))


def aggregate(work: Work) -> Result:
    """Gather the region sums of all scans and average heatmaps per group."""
    layout, config = work.layout, work.config
    scans, predictions = work.predicted("attribution"), read_table(layout.predictions)
    grid = template_grid(config.registration.resolution_mm)
    done, outcomes = aggregate_relevance(
        layout, scans, predictions, work.map_names, grid, config, work.executor, work.digests
    )
    return Result(outcomes, done)


def infer(work: Work) -> Result:
    """Test relevance against volume and between groups; on a demo cohort, against what was planted."""
    layout, config = work.layout, work.config

    def statistics() -> list[Path]:
        written = analyse(layout, work.predicted("attribution"), read_table(layout.predictions), config)
        if work.truth.is_file():
            evaluate_planted(layout, work.truth)
            written.append(layout.statistics("planted_recovery"))
        return written

    inputs = [layout.scans, layout.predictions, layout.relevance_bilateral, work.truth]
    packages = ["pipeline.statistics", "pipeline.evaluation", "pipeline.regions", "pipeline.run.seeds"]
    parameters = [config.statistics, config.cohort, config.attribution, config.seed]
    return Result(step_done=run_step(layout, "statistics", inputs, parameters, packages, statistics, work.digests))


def report(work: Work) -> Result:
    """Write the report."""
    layout = work.layout

    def build() -> list[Path]:
        build_report(layout)
        return written_files(layout)

    packages = ["reports", "pipeline.regions"]
    return Result(step_done=run_step(layout, "report", report_inputs(layout), None, packages, build, work.digests))


STAGE_FUNCTIONS: dict[str, Callable[[Work], Result]] = {
    "registration": register,
    "training": train,
    "attribution": explain,
    "regions": aggregate,
    "statistics": infer,
    "report": report,
}


def run_pipeline(source: RunInput, out: Path, config: Config, options: argparse.Namespace) -> int:
    """Run all stages up to ``options.stop_after``; return the exit code.

    Parameters
    ----------
    source : RunInput
    out : Path
        Run folder, new or to be continued.
    config : Config
    options : argparse.Namespace
        With ``n_procs``, ``executor``, ``participant_label``, ``stop_after`` and, unless it is the demo, ``manifest``
        and ``anonymise``.
    """
    selection = selection_of(options, config, [source.input, out])
    require_same_privacy(out, config)
    layout = prepare_run_folder(out, source, config)
    clear_stale_scratch(layout)
    with open_log(layout) as log, open_executor(options.n_procs, options.executor) as executor:
        cohort = inspect_cohort(source.input, config.cohort, config.seed, selection)
        text = describe_cohort(cohort, config.cohort)
        if not cohort.table.kept:
            raise BadInputError(f"{text}\nNo scan can be used.")
        cohort.table.write(layout.scans)
        if cohort.matches:
            write_comparison(layout.manifest_comparison, cohort.matches)
        stages = STAGES[1 : STAGES.index(options.stop_after) + 1]
        split = Split(())
        if "training" in stages:  # registering a few participants needs neither labels nor a split
            if cohort.problem:
                raise BadInputError(f"{text}\n{cohort.problem}")
            split = make_split(cohort.table, config.cohort, config.seed)
            split.write(layout.splits)
        write_dataset_description(layout, source.input)
        log.info("%s", text)
        digests = DigestCache(layout.digests)
        work = Work(layout, source.input, config, cohort.table.kept, split, executor, digests)
        changed = not layout.provenance.is_file()
        for stage in stages:
            if stage == "report" and changed:
                _write_provenance(work, cohort.layout)
            changed |= _run_stage(stage, work, log)
            digests.save()
        if "report" not in stages and changed:
            _write_provenance(work, cohort.layout)
        elif "report" in stages:
            log.info("Report: %s", layout.report)
    return _exit_code(layout)


def _run_stage(stage: str, work: Work, log: logging.Logger) -> bool:
    """Run one stage and say how it went; True if it did anything."""
    started = time.monotonic()
    result = STAGE_FUNCTIONS[stage](work)
    log.info("%-13s %s (%.0f s)", stage, result, time.monotonic() - started)
    failed = [outcome for outcome in result.outcomes if not outcome.ok]
    for outcome in failed:
        log.warning("  %s failed: %s", outcome.job.unit, outcome.message)
    if failed:
        log.warning("  listed in %s", work.layout.failures)
    if failed and len(failed) == len(result.outcomes):
        raise BadInputError(f"{stage}: every unit failed; see {work.layout.failures}.")
    return result.changed


def _write_provenance(work: Work, input_layout: str) -> None:
    """Write down what the numbers were made with; a run that found nothing to do leaves the record as it was."""
    config = work.config
    template = load_template(config.registration.resolution_mm)
    atlas = load_atlas(config.regions.atlas, template.grid)
    sources = {
        "input_layout": input_layout,
        "synthetic": work.truth.is_file(),
        "template": {"name": template.name, "sha256": template.source_digest},
        "atlas": {
            "name": atlas.name,
            "title": atlas.title,
            "sha256": atlas.source_digest,
            "credit": atlas.credit,
            "note": atlas.note,
            "empty": [atlas.regions.by_number(number).name for number in atlas.empty],
        },
    }
    command = [without_home(argument) for argument in sys.argv[1:]]
    if "ids" in config.privacy.pseudonyms:  # --participant-label names them
        command = [*command[:1], "(arguments not recorded: ids are pseudonyms)"]
    write_provenance(work.layout, ["heatlas", *command], config.seed, sources)


def _exit_code(layout: RunLayout) -> int:
    failed = layout.failures.is_file() and len(read_table(layout.failures)) > 0
    return EXIT_SOME_FAILED if failed else EXIT_OK


def run_command(arguments: argparse.Namespace) -> int:
    """``heatlas run``."""
    source = RunInput(arguments.input, arguments.preset)
    return run_pipeline(source, arguments.out, settings_of(arguments), arguments)


def demo_command(arguments: argparse.Namespace) -> int:
    """``heatlas demo``."""
    arguments.preset, arguments.participant_label = "demo", []
    config = load_config("demo", arguments.config, seed_of(arguments))
    cohort = arguments.out / "cohort"
    print(f"Synthetic demo cohort: {cohort}")
    with open_executor(arguments.n_procs) as executor:
        write_demo_cohort(cohort, config.seed, executor=executor)
    return run_pipeline(RunInput(cohort, "demo"), arguments.out / "run", config, arguments)


def report_command(arguments: argparse.Namespace) -> int:
    """``heatlas report``."""
    layout = RunLayout(arguments.out.resolve())
    read_run_input(layout)
    read_config(layout.config)
    print(f"Report: {build_report(layout)}")
    return EXIT_OK


__all__ = ["demo_command", "explain_command", "report_command", "run_command"]
"""What `workflows.command_line.main` calls."""

if __name__ == "__main__":
    sys.exit(main())
