"""Claims of the literature about grids, over several runs: ``python benchmarks/grid_directions.py RUN RUN RUN``.

Each run was judged by ``heatlas evaluate RUN --parts grids``. A participant of a run counts once; participants of
different runs are different people, but with --same-people, for seeds of one cohort, a person's grids of all runs are
averaged. Prints a row per claim: the answer of each run, then that of all together, with its interval; with --page a
section of that page, whose verdict is that of docs/claims.md: all together, and every run. With --nine, copies of the
runs that were judged in grids of nine cells: how far the share of each method falls. With --unnormed, runs of networks
without normalisation, RUN are those with it: a section of its own, on smoothing and on LayerCAM at the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from harness import CLAIMS, arguments_of, line, listed, over_classes, over_people, show, table, within, write_tables
from patients import area

from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.studies.grids.directions import BY_CONSTRUCTION, DIRECTIONS_TABLE, NEAR, by_participant, directions
from heatlas.studies.grids.stage import INVARIANCE_TABLE, claims_about, read_scores

TITLE = "Grids"
OF_MEAN, OF_DIFFERENCE = (("", "people", "seeds", f"{what} (95 %)") for what in ("mean", "difference"))


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


def agreement(runs: Sequence[pd.DataFrame], people: dict[int, str]) -> Iterator[str]:
    """Rows of A21: by width of the kernel, then the change to the last but one and to the widest."""
    smooth = "smooth-integrated-gradients kernel="
    wide = [grid_shares(one) for one in runs]
    kernels = sorted({int(name.removeprefix(smooth)) for own in wide for name, _ in own if name.startswith(smooth)})
    names = ["integrated-gradients", *(f"{smooth}{kernel}" for kernel in kernels)]
    last = max(stage for name, stage in wide[0] if name == "grad-cam")
    owner = [own.index.get_level_values("scan").map(people).to_numpy() for own in wide]
    values = [own[[*((name, 0) for name in names), ("grad-cam", last)]].rank().to_numpy(float) for own in wide]

    def alike(chosen: Sequence[np.ndarray]) -> np.ndarray:
        """Correlation of each kernel with Grad-CAM, (seeds, kernels), over rows of each seed."""
        with np.errstate(invalid="ignore"):  # a draw in which all shares are the same is left out
            ranks = [pd.DataFrame(own[rows]).rank().to_numpy(float) for own, rows in zip(values, chosen, strict=True)]
            return np.array([np.corrcoef(own.T)[-1, :-1] for own in ranks])

    rng = np.random.default_rng(0)
    everybody = sorted(set(np.concatenate(owner)))
    places = [{name: np.flatnonzero(own == name) for name in everybody} for own in owner]
    drawn = []
    for _ in range(1000):
        names_drawn = rng.choice(everybody, len(everybody))
        drawn.append(alike([np.concatenate([own[name] for name in names_drawn]) for own in places]).mean(0))
    found, draws = alike([np.arange(len(own)) for own in values]), np.array(drawn)
    widths = ["none", *(f"K = {kernel}" for kernel in kernels)]
    rows = {width: (found[:, place], draws[:, place]) for place, width in enumerate(widths)}
    for place, what in ((-2, "last but one"), (-1, "widest")):
        rows[f"{what} less none"] = found[:, place] - found[:, 0], draws[:, place] - draws[:, 0]
    for name, (each, own) in rows.items():
        mean = f"{each.mean():.2f}{within(*np.nanquantile(own, [0.025, 0.975]), '.2f')}"
        yield line(f"A21: {name}", len(everybody), listed(each, ".2f"), mean)


def grid_shares(scores: pd.DataFrame) -> pd.DataFrame:
    """Shares in needle grids, a row per grid and a column per method and stage; an undefined map counts as 0."""
    own = in_grids(scores, setting="GridPG", kind="needle")
    own = own.assign(share=own["share"].fillna(0))
    return own.pivot_table(index=["grid", "scan"], columns=["method", "stage"], values="share", sort=False)


def in_grids(scores: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Scores of grids with these values."""
    there = scores["grid"].notna()
    for column, value in wanted.items():
        there &= scores[column] == value
    return scores[there]


def fallen(four: Sequence[pd.DataFrame], nine: Sequence[pd.DataFrame], people: dict[int, str]) -> Iterator[str]:
    """Rows of A20: of each method and stage, its share in four cells less that in nine."""
    needles = [[in_grids(one, setting="GridPG", kind="needle") for one in side] for side in (four, nine)]
    both = [pd.concat(side) for side in needles]
    for (name, stage), own in both[1].groupby(["method", "stage"], sort=False):
        if re.search(r"kernel=|bias=false|from=air|gamma=(?!0.25)|beta=(?!0$)", name):
            continue
        asked = [[one[(one["method"] == name) & (one["stage"] == stage)] for one in side] for side in needles]
        seeds = [by_participant(a, people).mean() - by_participant(b, people).mean() for a, b in zip(*asked)]  # noqa: B905
        pair = pd.concat([by_participant(pd.concat(side), people) for side in asked], axis=1).dropna()
        each = (pair.iloc[:, 0] - pair.iloc[:, 1]).to_numpy(float)
        what = f"A20: {name} at stage {stage:g}, {own['share'].fillna(0).mean():.2f} in nine cells"
        yield of_each(what, seeds, each)


def cells_of(seeds: Sequence[float], mean: float, low: float, high: float) -> str:
    """Cells of a row: each seed, the mean and its interval; none where everybody has the same."""
    return f"{listed(seeds, '.3f')} | {mean:.3f}{within(low, high, '.3f') or ' (of everybody)'}"


def of_each(what: str, seeds: Sequence[float], each: np.ndarray) -> str:
    return line(what, len(each), cells_of(seeds, float(each.mean()), *over_people(each)))


def mean_row(what: str, runs: Sequence[pd.DataFrame], people: dict[int, str], column: str) -> str:
    """A row of a column of scores, averaged over the grids of each person."""
    seeds = [by_participant(one, people, column).mean() for one in runs]
    return of_each(what, seeds, by_participant(pd.concat(runs), people, column).to_numpy(float))


def in_the_copy(runs: Sequence[pd.DataFrame], people: dict[int, str]) -> str:
    corners = [in_grids(one, setting="DiFull", kind="corner", method="grad-cam") for one in runs]
    corners = [one[one["stage"] == one["stage"].max()] for one in corners]
    corners = [one.assign(copy=(one["class_share"] - one["share"]).fillna(0) - one["chance"]) for one in corners]
    return mean_row("A7: Grad-CAM in the copy, less an even map", corners, people, "copy")


def areas(folders: Sequence[Path]) -> str:
    """A row: area under the curve within folds of each run, and their mean with an interval over people."""
    rows = [pd.read_csv(one / "group" / "predictions.tsv", sep="\t").set_index("participant_id") for one in folders]
    classes = [own.index.to_numpy() for _, own in rows[0].groupby("target")]
    ends = over_classes(classes, lambda drawn: np.mean([area(own.loc[drawn]) for own in rows]))
    found = [area(own) for own in rows]
    mean = f"{np.mean(found):.2f}{within(*ends, '.2f')}"
    return line("area within folds", len(rows[0]), listed(found, ".2f"), mean)


def below_chance(runs: Sequence[pd.DataFrame], people: dict[int, str], which: str) -> str:
    own = [in_grids(one, method="layer-cam", stage=0, kind="needle") for one in runs]
    own = [one.assign(less=one["share"].fillna(0) - one["chance"]) for one in own]
    return mean_row(f"A12: LayerCAM at the input less chance, {which}", own, people, "less")


def without_norms(normed: Sequence[Path], unnormed: Sequence[Path], same_people: bool) -> Iterator[str]:
    scores, people = read(unnormed, same_people)
    yield from (*table(OF_MEAN), areas(unnormed), "")
    yield from claim_rows(unnormed, scores, people)
    yield from ("", *table(OF_DIFFERENCE))
    yield below_chance(scores, people, "no normalisation")
    yield below_chance(*read(normed, same_people), "batch normalisation")
    yield from ("", *table(OF_MEAN), *agreement(scores, people))


def claim_rows(folders: Sequence[Path], scores: Sequence[pd.DataFrame], people: dict[int, str]) -> Iterator[str]:
    answers, pooled = found_by(folders, scores, people)
    yield from table(["claim", "people", "seeds", "difference (95 %)", ""])
    for name, one in pooled[pooled["difference"].notna() & (pooled["holds"] != BY_CONSTRUCTION)].iterrows():
        each = [float(own.loc[name, "difference"]) for own in answers]
        alike = pd.isna(one["ci_low"])  # everybody has the same difference
        low, high = (one["difference"] if alike else one[side] for side in ("ci_low", "ci_high"))
        said = verdict(each, low, high, one["expected"] == "near")
        found = cells_of(each, one["difference"], one["ci_low"], one["ci_high"])
        yield line(name, one["n_participants"], found, said)


def found_by(
    folders: Sequence[Path], scores: Sequence[pd.DataFrame], people: dict[int, str]
) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    layouts = [EvaluationLayout(one.resolve()) for one in folders]
    answers = [pd.read_csv(DIRECTIONS_TABLE.path(one), sep="\t").set_index("claim") for one in layouts]
    asked = claims_about(layouts[0].fold(0))
    return answers, directions(pd.concat(scores, ignore_index=True), people, asked).set_index("claim")


def written_twice(folders: Sequence[Path]) -> Iterator[str]:
    """Rows of A19: of each method, its share on what is not read by both networks, by seed."""
    tables = [pd.read_csv(INVARIANCE_TABLE.path(EvaluationLayout(one.resolve())), sep="\t") for one in folders]
    for name, own in pd.concat(tables).groupby("method", sort=False):
        if own["share_cancelling"].notna().all():
            shares = (listed(own[f"share_{side}"], ".3f") for side in ("plain", "cancelling"))
            yield line(f"A19: {name}", own["n_grids"].sum(), *shares)


def read(folders: Sequence[Path], same_people: bool, shift: int = 0) -> tuple[list[pd.DataFrame], dict[int, str]]:
    """Scores of each run, whose scans and grids are others than those of the next, and the person of each scan."""
    scores, people = [], {}
    for number, folder in enumerate(folders):
        layout = EvaluationLayout(folder.resolve())
        frame = read_scores(sorted((layout.evaluation / "grids").glob("*_scores.tsv")))
        own = 1_000_000 * (number + 1) + shift
        owner = "" if same_people else f"{number} "
        people |= {scan + own: f"{owner}{scan}" for scan in frame["scan"].dropna().astype(int)}
        scores.append(frame.assign(scan=frame["scan"] + own, grid=frame["grid"] + own))
    return scores, people


def main() -> None:
    run = {"type": Path, "nargs": "+", "default": []}
    options = arguments_of(
        __doc__,
        "runs --page",
        same_people=(False, "runs are seeds of one cohort"),
        nine={**run, "help": "the same runs in grids of nine cells"},
        unnormed={**run, "help": "runs of networks without normalisation"},
    )
    if options.unnormed:
        text = "\n".join(without_norms(options.runs, options.unnormed, options.same_people))
        show(text, options.page, f"{TITLE}, without normalisation", CLAIMS)
        return
    scores, people = read(options.runs, options.same_people)
    answers, pooled = found_by(options.runs, scores, people)
    together = pooled[["n_participants", "difference", "ci_low", "ci_high", "holds"]]
    holds = pd.DataFrame({run.name: own["holds"] for run, own in zip(options.runs, answers, strict=True)})
    print(holds.join(together.rename(columns={"holds": "together"})).round(2).to_csv(sep="\t"))
    if options.page:
        lines = [*claim_rows(options.runs, scores, people)]
        lines += ["", *table(OF_MEAN), *agreement(scores, people)]
        lines += ["", *table(OF_DIFFERENCE), in_the_copy(scores, people)]
        lines += ["", *table(["", "grids", "as it is", "with two units that cancel"])]
        lines += written_twice(options.runs)
        if options.nine:
            nine, others = read(options.nine, options.same_people, 500_000)
            lines += ["", *table(OF_DIFFERENCE), *fallen(scores, nine, people | others)]
        write_tables(options.page, TITLE, "\n".join(lines), CLAIMS)


if __name__ == "__main__":
    main()
