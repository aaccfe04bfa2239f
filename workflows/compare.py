"""``heatlas compare``: runs of one cohort side by side."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pipeline.run.config_files import read_config
from pipeline.run.errors import EXIT_OK, UsageError
from pipeline.run.folder import read_run_input
from pipeline.run.layout import RunLayout
from pipeline.run.tables import read_table, write_table
from pipeline.statistics.comparison.rankings import AGREEMENT_COLUMNS
from pipeline.statistics.comparison.runs import (
    MCNEMAR_COLUMNS,
    Run,
    common_scans,
    mcnemar_table,
    run_agreement_table,
    with_one_name_per_person,
)
from pipeline.statistics.inputs import PREDICTION_COLUMNS, RELEVANCE_COLUMNS
from pipeline.statistics.values import RelevanceValues


def compare_command(arguments: argparse.Namespace) -> int:
    """Write ``mcnemar.tsv`` and ``ranking_agreement.tsv``; the runs are only read.

    Raises
    ------
    UsageError
        If a run is named twice, or the tables would lie inside one.
    BadInputError
        If a run has no predictions or relevance yet, or the runs have no cohort in common.
    """
    folders = [path.resolve() for path in arguments.outs]
    target = arguments.to.resolve()
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"compare: {folder} is named twice.")
        if target.is_relative_to(folder):
            raise UsageError(f"--to {arguments.to}: lies inside the run {folder}; give a folder of its own.")
    runs = with_one_name_per_person(
        [_read(folder, name) for folder, name in zip(folders, run_names(folders), strict=True)]
    )
    scans = common_scans(runs)
    seed = runs[0].config.seed
    try:
        write_table(target / "mcnemar.tsv", mcnemar_table(runs, scans, seed), MCNEMAR_COLUMNS)
        write_table(target / "ranking_agreement.tsv", run_agreement_table(runs, scans, seed), AGREEMENT_COLUMNS)
    except OSError as error:
        raise UsageError(f"--to {arguments.to}: cannot write there ({error.strerror}).") from error
    print(f"{len(scans)} scans in all of {', '.join(run.name for run in runs)}: {target}")
    for run in runs:
        beside = len(run.predictions) - len(scans)
        print(f"  {run.name}: {beside} scans that another run lacks are left out" if beside else f"  {run.name}")
    return EXIT_OK


def run_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart.

    Examples
    --------
    >>> run_names([Path("/a/x/run"), Path("/a/y/run")])
    ['x/run', 'y/run']
    """
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if max(Counter(names).values()) == 1:
            return names
    return [str(folder) for folder in folders]


def _read(folder: Path, name: str) -> Run:
    layout = RunLayout(folder)
    read_run_input(layout)
    predictions = read_table(layout.predictions, PREDICTION_COLUMNS)
    relevance = read_table(layout.relevance_bilateral, RELEVANCE_COLUMNS, ("map", "group"))
    return Run(name, read_config(layout.config), predictions, RelevanceValues.of(relevance, predictions))
