"""``heatlas compare``: compare runs of one cohort."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.run.cells import require_whole
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.comparison.rankings import RANKING_AGREEMENT_TABLE
from heatlas.pipeline.statistics.comparison.runs import (
    MAP_AGREEMENT_TABLE,
    MAPS_TABLE,
    MCNEMAR_TABLE,
    RUNS_TABLE,
    Run,
    atlases_note,
    common_scans,
    map_table,
    mcnemar_table,
    region_table,
    run_agreement_table,
    run_table,
    too_few,
    with_one_name_per_person,
)
from heatlas.pipeline.statistics.data.inputs import PREDICTION_COLUMNS, read_relevance, require_predictions
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.reports.page.comparison import PAGE, comparison_page


def compare_command(arguments: argparse.Namespace) -> int:
    """Write the tables of a comparison and their page, ``comparison.html``; the runs are only read."""
    if len(arguments.outs) < 2:
        raise UsageError("compare: two runs or more are needed. Name several run folders.")
    folders = [path.resolve() for path in arguments.outs]
    target = arguments.to.resolve()
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"compare: {folder} is named twice.")
    names = run_names(folders)
    runs = [_read(folder, name, target) for folder, name in zip(folders, names, strict=True)]
    for folder in (target, *target.parents):
        if _is_run(folder):
            raise UsageError(f"--to {arguments.to}: lies inside the run {folder}; give another folder.")
    runs = with_one_name_per_person(runs)
    scans = common_scans(runs)
    seed = runs[0].config.seed
    tests, ranks = mcnemar_table(runs, scans, seed), run_agreement_table(runs, scans, seed)
    placed = list(zip(runs, map(RunLayout, folders), strict=True))
    of_runs, of_maps, alike = run_table(placed, scans, seed), map_table(placed), region_table(runs, scans)
    try:
        MCNEMAR_TABLE.write(target / MCNEMAR_TABLE.file, tests)
        RANKING_AGREEMENT_TABLE.write(target / "ranking_agreement.tsv", ranks)
        RUNS_TABLE.write(target / RUNS_TABLE.file, of_runs)
        MAPS_TABLE.write(target / MAPS_TABLE.file, of_maps)
        MAP_AGREEMENT_TABLE.write(target / MAP_AGREEMENT_TABLE.file, alike)
        (target / PAGE).write_text(comparison_page(of_runs, of_maps, alike, tests), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--to {arguments.to}: cannot write there ({error.strerror}).") from error
    print(f"{len(scans)} scans common to {', '.join(run.name for run in runs)}: {target}")
    for run in runs:
        left_out = len(run.predictions) - len(scans)
        print(f"  {run.name}: {left_out} scans that another run lacks are left out" if left_out else f"  {run.name}")
    empty = None if ranks["kendall_w"].notna().any() else "no ranking of regions can be compared"
    for note in filter(None, (too_few(int(tests["n_participants"].iloc[0])), atlases_note(runs), empty)):
        print(f"  note: {note}")
    return EXIT_OK


def run_names(folders: Sequence[Path]) -> list[str]:
    """The shortest distinct ends of the paths of the runs.

    >>> run_names([Path("/a/x/run"), Path("/a/y/run")])
    ['x/run', 'y/run']
    """
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if max(Counter(names).values()) == 1:
            return names
    return [str(folder) for folder in folders]


def _is_run(folder: Path) -> bool:
    try:
        read_run_input(RunLayout(folder))
    except UsageError:
        return False
    return True


def _read(folder: Path, name: str, target: Path) -> Run:
    """Read one run; every error names the run."""
    layout = RunLayout(folder)
    try:
        source = read_run_input(layout).input
        if target.is_relative_to(source) and not target.is_relative_to(source / "derivatives"):
            raise UsageError(f"--to {target}: lies inside the input {source}, which is never written to.")
        config = read_run_config(layout)
        task = task_of(config.cohort)
        if task.kind.undefined:
            what = "predicts a number" if task.is_number else "has several classes"
            raise BadInputError(f"only runs of two classes are compared, and this one {what}.")
        path = PREDICTIONS_TABLE.path(layout)
        predictions = PREDICTIONS_TABLE.read(layout, PREDICTION_COLUMNS)
        require_whole(path)
        require_predictions(path, predictions)
        relevance = read_relevance(RELEVANCE_BILATERAL_TABLE.path(layout))
        return Run(name, config, predictions, RelevanceValues.of(relevance, predictions))
    except (BadInputError, UsageError) as error:
        raise type(error)(f"compare: run {name}: {error}") from error
