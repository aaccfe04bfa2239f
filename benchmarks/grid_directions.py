"""Shares of maps in grids of patients, over seeds.

    python benchmarks/grid_directions.py RUN RUN RUN --numbers grids

Each run was judged by ``heatlas evaluate RUN --parts grids``. Stores the mean share of each person's grids by setting,
kind of grid, method and stage for claims; with --nine, copies of the runs that were judged in grids of nine cells, the
shares there as well. Prints what no person has: shares on what is written twice (A19).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from claim_numbers import NUMBERS, write_of_runs
from harness import arguments_of, line, listed, table

from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.studies.grids.directions import by_participant
from heatlas.studies.grids.stage import INVARIANCE_TABLE, read_scores

PLACES = ["setting", "kind", "method", "stage"]
IN_THE_COPY = "in the copy, less an even map"
"""Of the share in cells of the class that the head cannot see."""


def written_twice(folders: Sequence[Path]) -> Iterator[str]:
    """Rows of A19: of each method, its share on what is not read by both networks, by seed."""
    tables = [pd.read_csv(INVARIANCE_TABLE.path(EvaluationLayout(one.resolve())), sep="\t") for one in folders]
    for name, own in pd.concat(tables).groupby("method", sort=False):
        if own["share_cancelling"].notna().all():
            shares = (listed(own[f"share_{side}"], ".3f") for side in ("plain", "cancelling"))
            yield line(f"A19: {name}", own["n_grids"].sum(), *shares)


def shares(run: Path) -> pd.DataFrame:
    """Of each person the mean share by place, as "SETTING KIND: METHOD at STAGE"; person, measure and value."""
    scores, people = read(run)
    scores = scores.assign(copy=(scores["class_share"] - scores["share"]).fillna(0) - scores["chance"])
    rows = []
    for (setting, kind, method, stage), own in scores.groupby(PLACES, sort=False):
        for column, more in (("share", ""), ("copy", f", {IN_THE_COPY}"))[: 1 + (setting == "DiFull")]:
            each = by_participant(own, people, column)
            measure = f"{setting} {kind}: {method} at {stage:g}{more}"
            rows.append(pd.DataFrame({"person": each.index, "measure": measure, "value": each.to_numpy()}))
    return pd.concat(rows, ignore_index=True)


def of_nine(runs: dict[str, Path], run: Path) -> pd.DataFrame:
    """Shares of a run, and of its copy in grids of nine cells."""
    nine = [shares(runs[run.name])] if run.name in runs else []
    return pd.concat([shares(run), *(one.assign(measure="nine cells, " + one["measure"]) for one in nine)])


def read(run: Path) -> tuple[pd.DataFrame, dict[int, str]]:
    """Scores of the grids of a run, and the person of each scan."""
    scores = read_scores(sorted((EvaluationLayout(run.resolve()).evaluation / "grids").glob("*_scores.tsv")))
    people = {place: scan.participant_id for place, scan in enumerate(ScanTable.read(run / "scans.tsv").kept)}
    return scores[scores["grid"].notna()], people


def main() -> None:
    options = arguments_of(
        __doc__,
        "runs",
        nine={"type": Path, "nargs": "+", "default": [], "help": "the same runs in grids of nine cells"},
        numbers=("", NUMBERS),
    )
    print("\n".join([*table(["", "grids", "as it is", "with two units that cancel"]), *written_twice(options.runs)]))
    if options.numbers:
        nine = {run.name: run for run in options.nine}
        print(write_of_runs(options.numbers, options.runs, lambda run: of_nine(nine, run)))


if __name__ == "__main__":
    main()
