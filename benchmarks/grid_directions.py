"""Claims of the literature about grids, over several runs: ``python benchmarks/grid_directions.py RUN RUN RUN``.

Each run was judged by ``heatlas evaluate RUN --parts grids``. A participant of a run counts once; participants of
different runs are different people, but with --same-people, for seeds of one cohort, a person's grids of all runs are
averaged. Prints a row per claim: the answer of each run, then that of all together, with its interval; with --page a
section of that page, whose verdict is that of docs/claims.md: all together, and every run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from sections import write_section

from heatlas.pipeline.evaluation.grids.directions import BY_CONSTRUCTION, DIRECTIONS_TABLE, NEAR, directions
from heatlas.pipeline.evaluation.grids.stage import claims_about, read_scores
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout

TITLE, HEADING = "Grids", "Claims asked of patients"
PREFACE = f"""\
The networks of the first section, by `heatlas evaluate RUN --quick --parts grids` and
`python benchmarks/grid_directions.py`: 2 × 2 × 1 test scans of a fold side by side, the most confident of those
recognised, one grid for each class, fold and kind; 4 mm. Settings are those of the source but for the number of grids,
stages (input and last) and values of γ (.01 and .25). Difference of the shares of positive attribution in the cell of
the class; chance is .25. A person's grids of all seeds are averaged, intervals are over people. Near: within ±{NEAR:g}.
Founding networks have batch normalisation and no global pooling, so DiPart is not defined. 4.3 minutes a seed on a
core that others used too (2 cores, no GPU)."""


def verdict(each: Sequence[float], low: float, high: float, near: bool) -> str:
    """What docs/claims.md says of a claim: its interval and every seed lie on one side of the limit.

    >>> verdict([0.2, 0.1], 0.05, 0.3, False), verdict([0.2, -0.1], 0.05, 0.3, False), verdict([0.3], 0.2, 0.4, True)
    ('holds', 'open', 'does not')
    """
    if near:
        if max(map(abs, (*each, low, high))) < NEAR:
            return "holds"
        return "does not" if min(low, *each) >= NEAR or max(high, *each) <= -NEAR else "open"
    if min(low, *each) > 0:
        return "holds"
    return "does not" if max(high, *each) <= 0 else "open"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--same-people", action="store_true", help="runs are seeds of one cohort")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    scores, people, answers = [], {}, {}
    for number, folder in enumerate(options.runs):
        layout = EvaluationLayout(folder.resolve())
        frame = read_scores(sorted((layout.evaluation / "grids").glob("*_scores.tsv")))
        shift = 1_000_000 * (number + 1)  # scans and grids of another run are others
        frame["scan"] += shift
        frame["grid"] += shift
        owner = "" if options.same_people else f"{number} "
        people |= {scan: f"{owner}{scan - shift}" for scan in frame["scan"].dropna().astype(int)}
        scores.append(frame)
        answers[folder.name] = pd.read_csv(DIRECTIONS_TABLE.path(layout), sep="\t").set_index("claim")
    asked = claims_about(EvaluationLayout(options.runs[0].resolve()).fold(0))
    pooled = directions(pd.concat(scores, ignore_index=True), people, asked).set_index("claim")
    table = pooled[["n_participants", "difference", "ci_low", "ci_high", "holds"]]
    holds = pd.DataFrame({name: own["holds"] for name, own in answers.items()})
    print(holds.join(table.rename(columns={"holds": "together"})).round(2).to_csv(sep="\t"))
    if options.page:
        lines = ["| claim | people | seeds | difference (95 %) | |", "|---|---|---|---|---|"]
        for name, one in pooled[pooled["difference"].notna() & (pooled["holds"] != BY_CONSTRUCTION)].iterrows():
            each = [float(own.loc[name, "difference"]) for own in answers.values()]
            alike = pd.isna(one["ci_low"])  # everybody has the same difference
            low, high = (one["difference"] if alike else one[side] for side in ("ci_low", "ci_high"))
            said = verdict(each, low, high, one["expected"] == "near")
            shown = ", ".join(f"{value:.3f}" for value in each)
            within = f"{one['difference']:.3f} ({'of everybody' if alike else f'{low:.3f} to {high:.3f}'})"
            lines.append(f"| {name} | {one['n_participants']} | {shown} | {within} | {said} |")
        write_section(options.page, TITLE, "\n".join([PREFACE, "", *lines]), HEADING)


if __name__ == "__main__":
    main()
