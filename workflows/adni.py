"""From an ADNI download (or a BIDS dataset) to a region-relevance report: a run, stage by stage.

Run as ``python workflows/adni.py COMMAND`` or ``heatlas COMMAND``; the stages are those of `workflows.stages`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # before the libraries below are imported, so that Ctrl-C works meanwhile
    from heatlas.workflows.interrupts import start

    sys.exit(start())

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid, find_template
from heatlas.pipeline.cohort.applied import read_scan, to_apply
from heatlas.pipeline.cohort.demo.cohort import LONGITUDINAL_PARTICIPANTS, PARTICIPANTS, write_demo_cohort
from heatlas.pipeline.cohort.people.balance import SPLIT_BALANCE_TABLE, balance_sentence
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE
from heatlas.pipeline.cohort.reading import PLANTED, InputCohort, read_cohort
from heatlas.pipeline.cohort.records import CLINICAL_TABLE, ScanTable
from heatlas.pipeline.cohort.sharing import write_comparison
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.controls import mean_controls, read_norms, require_same_code
from heatlas.pipeline.explaining.own_regions import STAGE as OWN_REGIONS
from heatlas.pipeline.models.families.foreign import ForeignConfig, absolute_code
from heatlas.pipeline.models.families.registry import is_given
from heatlas.pipeline.models.named_networks import network_folder, require_as_exported
from heatlas.pipeline.run.config.files import read_config, usual_sentence
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, template_name
from heatlas.pipeline.run.config.inclusion import without_ids
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, BadInputError, HeatlasError, UsageError
from heatlas.pipeline.run.layout.bundle_layout import open_bundle
from heatlas.pipeline.run.layout.folder import (
    RunInput,
    prepare_run_folder,
    read_run_config,
    read_run_input,
    recognise_run_folder,
    run_lock,
    with_registration_seed,
)
from heatlas.pipeline.run.layout.run_layout import ParticipantLayout, RunLayout
from heatlas.pipeline.run.plain_text import last_part
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE, clear_stale_scratch
from heatlas.pipeline.run.work.progress import open_log, write_dataset_description, write_provenance
from heatlas.pipeline.training.given import networks_of_run
from heatlas.reports.page.build import write_report
from heatlas.workflows.check import describe_cohort
from heatlas.workflows.commands import Apply, Demo, Evaluate, Report, Run, run_of
from heatlas.workflows.estimates import expectations
from heatlas.workflows.evaluate import evaluate_command
from heatlas.workflows.preflight import (
    Ready,
    places_read,
    preflight,
    require_none_in,
    require_settings,
    require_unread,
    selection_of,
    settings_of,
    stages_until,
    table_setting,
)
from heatlas.workflows.stages import STAGE_FUNCTIONS, Result, Stage


def run_pipeline(
    source: RunInput, out: Path, config: Config, options: Run, stages: Sequence[str] = (), last: Stage | None = None
) -> int:
    """Run the given stages, by default all up to ``options.stop_after``, and another; return the exit code.

    With ``options.side_by_side`` other jobs may register other people in the same folder meanwhile.
    """
    source = replace(source, input=source.input.resolve())
    stages = stages or stages_until(options.stop_after)
    require_settings(config, stages, elsewhere=options.executor is not None)
    if last is not None:
        last.require_settings(config, options.executor is not None)
    recognised, places = recognise_run_folder(out, source), places_read(options, config.cohort.table)
    require_unread(out, places, derivatives=True)
    require_none_in(out, places)
    selection = selection_of(options, config, [*places, out])
    config = with_registration_seed(config, recognised)
    lock = RunLayout(out.resolve()).lock
    with ExitStack() as held:
        lock_note = "" if options.side_by_side else held.enter_context(run_lock(lock))
        if source.one_image and source.input.is_file():
            cohort = read_scan(source.input, config.cohort, config.registration.template, source.age, source.sex)
        else:
            cohort = read_cohort(source.input, config.cohort, config.seed, selection)
        if config.training.networks_of:
            cohort, config = to_apply(cohort, config)
        ready, description = _made_ready(config, cohort, stages, last), describe_cohort(cohort, config.cohort)
        if options.side_by_side:
            people = {scan.participant_id for scan in cohort.table.kept}  # else each of many jobs would list all scans
            scans = tuple(scan for scan in cohort.table if scan.participant_id in people)
            cohort = replace(cohort, table=ScanTable(scans), matches=())
            lock_note = held.enter_context(run_lock(lock, [scan.participant_id for scan in cohort.table.kept]))
        key = None if selection.disguise is None else selection.disguise.key
        layout = prepare_run_folder(out, source, config, key)
        if options.side_by_side:
            layout = ParticipantLayout(layout.root, cohort.table.kept[0].participant_id)
            config = replace(config, registration=replace(config.registration, flagged="keep"))  # the group decides
        clear_stale_scratch(layout)
        with (
            open_log(layout, source.input) as log,
            open_executor(options.n_procs, options.executor, layout.parsl_logs, config.cluster) as executor,
        ):
            if lock_note:
                log.warning("%s", lock_note)
            log.info("%s", description)
            for note in ready.notes:
                log.warning("note: %s", note)
            timed = cohort.layout != "image"  # of one, which takes minutes, networks and maps are not estimated
            if timed and options.executor is None and not layout.provenance.is_file():
                for sentence in expectations(config, cohort, ready.split, stages, options.n_procs):
                    log.info("%s", sentence)
            of_folds = "" if is_given(config) else balance_sentence(ready.balance)  # every fold has the same network
            for sentence in filter(None, (usual_sentence(config), of_folds)):
                log.info("%s", sentence)
            work = _begin(layout, config, cohort, ready, executor)
            steps = {name: STAGE_FUNCTIONS[name] for name in stages[1:]} | ({last.name: last.work} if last else {})
            _run_stages(work, cohort, steps, log)
            if options.side_by_side:
                log.info("Tables and log: %s; the level group makes those of everybody.", layout.tables)
        clear_stale_scratch(layout)  # workers of a killed run may have outlived it until this run began
    failed = layout.failures.is_file() and len(FAILURES_TABLE.read(layout.failures)) > 0
    return EXIT_SOME_FAILED if failed else EXIT_OK


def _made_ready(config: Config, cohort: InputCohort, stages: Sequence[str], last: Stage | None) -> Ready:
    """Refuse what cannot work before anything is written: a refused setting must not become that of a finished run."""
    try:
        ready = preflight(config, cohort, stages)
        if last is not None:
            last.require_scans(config, cohort.table.kept)
    except HeatlasError as error:
        if cohort.layout != "image":  # of one image the error says it all
            print(describe_cohort(cohort, config.cohort, str(error)))
        raise
    return ready


def _begin(layout: RunLayout, config: Config, cohort: InputCohort, ready: Ready, executor: Executor) -> Work:
    """Write the tables of the cohort, and gather what the stages need."""
    cohort.table.write(layout)
    if cohort.clinical is not None:
        replace(CLINICAL_TABLE, meanings=cohort.clinical.columns).write(layout, cohort.clinical.frame)
    if cohort.matches:
        write_comparison(layout, cohort.matches)
    if ready.split.folds:
        ready.split.write(layout)
        SPLIT_BALANCE_TABLE.write(layout, ready.balance)
    write_dataset_description(layout, cohort.root, config.registration.resolution_mm)
    return Work(layout, cohort.root, config, cohort.table.kept, ready.split, executor, DigestCache(layout.digests))


def _run_stages(
    work: Work, cohort: InputCohort, steps: Mapping[str, Callable[[Work], Result]], log: logging.Logger
) -> None:
    """Run the stages after the cohort, by name, and write the provenance."""
    layout = work.layout
    changed = not layout.provenance.is_file()
    for stage, step in steps.items():
        if stage == "report" and changed:
            _write_provenance(work, cohort)
        changed |= _run_stage(stage, step, work, log)
        work.digests.save()
    if "report" not in steps and changed:
        _write_provenance(work, cohort)
    elif "report" in steps:
        log.info("Report: %s", layout.report)


def _run_stage(stage: str, step: Callable[[Work], Result], work: Work, log: logging.Logger) -> bool:
    started = time.monotonic()
    result = step(work)
    name = "prediction" if stage == "training" and work.config.training.networks_of else stage
    said = str(result) if name == stage or result.count("failed") else "done" if result.changed else "unchanged"
    log.info("%-13s %s (%.0f s)", name, said, time.monotonic() - started)
    failed = [outcome for outcome in result.outcomes if not outcome.ok]
    for outcome in failed:
        log.warning("  %s failed: %s", outcome.job.unit, outcome.message)
    if failed:
        log.warning("  listed in %s", work.layout.failures)
    wanted = [outcome for outcome in result.outcomes if outcome.job.stage != OWN_REGIONS]  # a table beside the others
    if wanted and not any(outcome.ok for outcome in wanted):
        raise BadInputError(f"{name}: every unit failed; see {work.layout.failures}.")
    return result.changed


def _write_provenance(work: Work, cohort: InputCohort) -> None:
    config = work.config
    source = find_template(config.registration.template)
    template = {"name": source.name, "source": source.origin, "sha256": source.digest, "credit": source.credit}
    atlas = load_atlas(config.regions.atlas, configured_grid(config.registration))
    sources = {
        "input_layout": cohort.layout,
        "synthetic": (work.input_root / PLANTED).is_file(),
        "template": {**template, "note": source.note},
        "atlas": {
            "name": atlas.name,
            "title": atlas.title,
            "sha256": atlas.source_digest,
            "credit": atlas.credit,
            "note": atlas.note,
            "empty": [atlas.regions.by_number(number).name for number in atlas.empty],
        },
        "same_images": cohort.same_images,
    }
    command = [last_part(argument) for argument in sys.argv[1:]]
    if "ids" in config.privacy.pseudonyms:  # --participant-label names them
        command = [*command[:1], "(arguments not recorded: ids are pseudonyms)"]
    write_provenance(work.layout, ["heatlas", *command], config.seed, sources)


def run_command(options: Run) -> int:
    source = RunInput(options.input, options.preset)
    return run_pipeline(source, options.out, settings_of(options, options.backbone), options)


def apply_command(options: Apply) -> int:
    """``heatlas apply``: the networks of a finished run, or of its export, on another cohort or one scan."""
    run, out = RunLayout(network_folder(options.run).resolve()), options.out.resolve()
    if run.root.is_relative_to(out) or out.is_relative_to(run.root):
        raise UsageError(f"{options.out}: is, holds or lies in {options.run}. Choose an OUT elsewhere.")
    if bundle := open_bundle(run.root):
        mean_controls(bundle), read_norms(bundle)  # what is altered is refused before anything is written
        require_as_exported(bundle)
        config, preset, people = read_config(bundle.layout.config), bundle.preset, bundle.layout.people
    elif run.config.is_file():
        config, preset, people = read_run_config(run), read_run_input(run).preset, SPLITS_TABLE.path(run)
    else:
        raise UsageError(
            f"{options.run}: neither a finished run nor a folder of heatlas export. Give the OUT of `heatlas run` or "
            "the FOLDER of `heatlas export`."
        )
    if config.training.networks_of:
        raise UsageError(f"{options.run}: has the networks of another run. Apply that one.")
    config = _with_code(config, options, bundle is not None)
    networks = networks_of_run(str(run.root), config.model)  # refuses an unfinished run before anything is written
    if bundle and options.code:
        require_same_code(bundle, networks, options.code)
    training = replace(config.training, networks_of=str(run.root), from_run="", ensemble=1, repeats=1, participants=1.0)
    if options.table is not None and options.input.is_file():
        raise UsageError(f"--table {options.table}: goes with a folder of images, and {options.input} is one image.")
    for name in ("age", "sex") if options.input.is_dir() else ():
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name}: is of the person of one image, and {options.input} is a folder. Give a column {name} in "
                "its table of people."
            )
    table = "" if options.table is None else table_setting(options.table)  # that of the run is of other people
    without = "" if options.new_people else str(people)
    cohort = replace(config.cohort, without=without, start_at=options.start_at, table=table)
    cohort = replace(cohort, freesurfer_folder="")  # of the run's people too
    if options.include is not None or options.input.is_file():  # of one image nothing is known that a rule asks for
        cohort = replace(cohort, include=options.include or "")
    elif cohort.include:
        cohort = replace(cohort, include=without_ids(cohort.include))
    regions = replace(config.regions, own_labels="")  # segmentations of the run's people
    config = replace(
        config, training=training, cohort=cohort, regions=regions, objective=ObjectiveConfig(),
        attribution=replace(config.attribution, plant=options.plant),
    )  # fmt: skip
    source = RunInput(options.input, preset, one_image=True, age=options.age, sex=options.sex)
    return run_pipeline(source, options.out, config, run_of(options))


def _with_code(config: Config, options: Apply, is_export: bool) -> Config:
    """Settings with the code that makes a network of the user's own: that of the run, or what ``--code`` names.

    An export may be from anyone, so that no code runs on its word.
    """
    if not isinstance(config.model, ForeignConfig):
        if options.code:
            raise UsageError(f"--code {options.code}: {options.run} has networks of Heatlas, which need no code.")
        return config
    code = absolute_code(options.code) if options.code else "" if is_export else config.model.network
    return replace(config, model=replace(config.model, network=code, weights=""))  # which the run or export holds


def demo_command(options: Demo) -> int:
    cohort = options.out / "cohort"
    run = run_of(options, input=cohort, out=options.out / "run", preset="demo")
    config = settings_of(run)
    if template_name(config.registration.template) != DEFAULT_TEMPLATE:
        raise UsageError(
            f"registration.template: the demo's people are made from {DEFAULT_TEMPLATE}. Leave the setting out."
        )
    require_settings(config, stages_until(options.stop_after), elsewhere=options.executor is not None)
    expected = {"cohort", "run", *(path.name for path in options.out.glob(f"{RunLayout(options.out).lock.name}*"))}
    if options.out.is_dir() and any(path.name not in expected for path in options.out.iterdir()):
        raise UsageError(f"{options.out}: is not empty and not an earlier demo. Choose an empty or new folder.")
    print(f"Synthetic demo cohort: {cohort}")
    with run_lock(RunLayout(options.out.resolve()).lock):
        with open_executor(options.n_procs) as executor:
            people = LONGITUDINAL_PARTICIPANTS if options.longitudinal else PARTICIPANTS
            write_demo_cohort(cohort, config.seed, people, executor=executor, longitudinal=options.longitudinal)
        code = run_pipeline(RunInput(cohort, "demo"), run.out, config, run)
    if not options.marker or code != EXIT_OK:
        return code
    marker = Evaluate(out=run.out, parts=("marker",), config=options.config, n_procs=run.n_procs, executor=run.executor)
    code = evaluate_command(marker)
    report = Report(out=run.out, n_procs=run.n_procs, executor=run.executor)  # which now shows the marker
    return max(code, report_command(report))


def report_command(options: Report) -> int:
    layout = RunLayout(options.out.resolve())
    source = read_run_input(layout)
    config = read_run_config(layout)
    with (
        run_lock(layout.lock) as lock_note,
        open_log(layout, source.input) as log,
        open_executor(options.n_procs, options.executor, layout.parsl_logs, config.cluster) as executor,
    ):
        if lock_note:
            log.warning("%s", lock_note)
        report = write_report(layout, executor)
        log.info("Report: %s", report.index)
    return EXIT_SOME_FAILED if report.faults else EXIT_OK


__all__ = ["apply_command", "demo_command", "report_command", "run_command"]
"""What `workflows.command_line.main` calls."""
