"""Claims of the literature about grids, over several runs: ``python benchmarks/grid_directions.py RUN RUN RUN``.

Each run was judged by ``heatlas evaluate RUN --parts grids``. A participant of a run counts once; participants of
different runs are different people. Prints a row per claim: the answer of each run, then that of all together, with its
interval.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from heatlas.pipeline.evaluation.grids.directions import DIRECTIONS_TABLE, directions
from heatlas.pipeline.evaluation.grids.stage import claims_about, read_scores
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout


def main(folders: list[Path]) -> None:
    scores, people, answers = [], {}, {}
    for number, folder in enumerate(folders):
        layout = EvaluationLayout(folder)
        frame = read_scores(sorted((layout.evaluation / "grids").glob("*_scores.tsv")))
        shift = 1_000_000 * (number + 1)  # scans and grids of another run are others
        frame["scan"] += shift
        frame["grid"] += shift
        people |= {scan: f"{number} {scan}" for scan in frame["scan"].dropna().astype(int)}
        scores.append(frame)
        answers[folder.as_posix()] = pd.read_csv(DIRECTIONS_TABLE.path(layout), sep="\t").set_index("claim")["holds"]
    asked = claims_about(EvaluationLayout(folders[0]).fold(0))
    pooled = directions(pd.concat(scores, ignore_index=True), people, asked)
    table = pooled.set_index("claim")[["n_participants", "difference", "ci_low", "ci_high", "holds"]]
    print(pd.DataFrame(answers).join(table.rename(columns={"holds": "together"})).round(2).to_csv(sep="\t"))


if __name__ == "__main__":
    main([Path(one) for one in sys.argv[1:]])
