"""What is made of finished runs, which are only read: their comparison, and figures for a publication.

``heatlas compare`` writes tables that compare runs of one cohort, and a page of them, which computes nothing.
``heatlas figures`` draws every figure of a run's report, and every mean map in every view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, as_completed
from functools import partial
from pathlib import Path

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.run.config.images import is_mni
from heatlas.pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, BadInputError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input, require_no_links_out
from heatlas.pipeline.run.layout.run_layout import RunLayout, label_in_file_name
from heatlas.pipeline.run.plain_text import unknown
from heatlas.pipeline.run.tables import require_whole
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.progress import Progress
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
from heatlas.pipeline.statistics.data.values import RelevanceValues, joined
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.reports.content.relevance.maps import class_difference, group_map
from heatlas.reports.figures.gallery import Gallery, house_style
from heatlas.reports.figures.maps import VIEWS, draw_group_maps
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Frame, NavigationEntry, render
from heatlas.reports.frame.tables import Column, footnote, numeric, page_table, remark
from heatlas.reports.page.parts import finished_sections
from heatlas.reports.page.sections import QUESTIONS, missing_stages
from heatlas.reports.read.run_record import OUTCOMES, RunRecord, read_run
from heatlas.reports.vector.charts import IntervalRow, draw_intervals
from heatlas.reports.words.numbers import fixed, listing
from heatlas.workflows.commands import Compare, Figures


def compare_command(options: Compare) -> int:
    """Write the tables of a comparison and their page, ``comparison.html``; the runs are only read."""
    if len(options.outs) < 2:
        raise UsageError("compare: two runs or more are needed. Name several run folders.")
    folders = [path.resolve() for path in options.outs]
    target = options.to.resolve()
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"compare: {folder} is named twice.")
    names = run_names(folders)
    runs = [_read(folder, name, target) for folder, name in zip(folders, names, strict=True)]
    for folder in (target, *target.parents):
        if _is_run(folder):
            raise UsageError(f"--to {options.to}: lies inside the run {folder}; give another folder.")
    runs = with_one_name_per_person(runs)
    scans = common_scans(runs)
    seed = runs[0].config.seed
    tests, ranks = mcnemar_table(runs, scans, seed), run_agreement_table(runs, scans, seed)
    placed = list(zip(runs, map(RunLayout, folders), strict=True))
    of_runs, of_maps, alike = run_table(placed, scans), map_table(placed), region_table(runs, scans)
    unfinished = [_unfinished(layout) for _, layout in placed]
    of_runs["note"] = [joined(*both) for both in zip(of_runs["note"], unfinished, strict=True)]
    try:
        MCNEMAR_TABLE.write(target / MCNEMAR_TABLE.file, tests)
        RANKING_AGREEMENT_TABLE.write(target / "ranking_agreement.tsv", ranks)
        RUNS_TABLE.write(target / RUNS_TABLE.file, of_runs)
        MAPS_TABLE.write(target / MAPS_TABLE.file, of_maps)
        MAP_AGREEMENT_TABLE.write(target / MAP_AGREEMENT_TABLE.file, alike)
        (target / PAGE).write_text(comparison_page(of_runs, of_maps, alike, tests), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--to {options.to}: cannot write there ({error.strerror}).") from error
    print(f"{len(scans)} scans common to {', '.join(run.name for run in runs)}: {target}")
    for run in runs:
        left_out = len(run.predictions) - len(scans)
        print(f"  {run.name}: {left_out} scans that another run lacks are left out" if left_out else f"  {run.name}")
    empty = None if ranks["kendall_w"].notna().any() else "no ranking of regions can be compared"
    begun = [f"{run.name}: {said}" for run, said in zip(runs, unfinished, strict=True) if said]
    for note in filter(None, (*begun, too_few(int(tests["n_participants"].iloc[0])), atlases_note(runs), empty)):
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
            raise BadInputError(f"only runs of two classes are compared, and this one {task.kind.does}.")
        path = PREDICTIONS_TABLE.path(layout)
        predictions = PREDICTIONS_TABLE.read(layout, PREDICTION_COLUMNS)
        require_whole(path)
        require_predictions(path, predictions)
        relevance = read_relevance(RELEVANCE_BILATERAL_TABLE.path(layout))
        return Run(name, config, predictions, RelevanceValues.of(relevance, predictions))
    except (BadInputError, UsageError) as error:
        raise type(error)(f"compare: run {name}: {error}") from error


def _unfinished(layout: RunLayout) -> str | None:
    missing = missing_stages(read_run(layout))
    return f"the run is not finished: there are no results of {listing(missing)}" if missing else None


PAGE = "comparison.html"
CLOSEST = 40  # pairs of maps on the page; the file has all


def _seconds(value: object) -> str:
    return fixed(value, 1)


def _map(name: object) -> str:
    return map_title(str(name))


RUNS = (
    Column("run", "Run"), Column("architecture", "Networks"), numeric("n_participants", "Participants"),
    numeric("balanced_accuracy", "Balanced accuracy", fixed), numeric("ci_low", "from", fixed),
    numeric("ci_high", "to", fixed), numeric("parameters", "Parameters"),
    numeric("training_seconds", "Training per fold, s", _seconds),
    numeric("explaining_seconds", "All maps of a scan, s", _seconds), Column("note", "Note", remark),
)  # fmt: skip
MAPS = (
    Column("run", "Run"), Column("architecture", "Networks"), Column("map", "Map", _map),
    numeric("hits_found", "Hits, patients"), numeric("n_planted_found", "of"), numeric("hits", "Hits, classes"),
    numeric("n_planted", "of"),
    numeric("auroc_mean", "AUROC, patients", fixed), numeric("auroc", "AUROC, classes", fixed),
    numeric("enrichment", "Enrichment", fixed), numeric("pointing", "Pointing", fixed),
    Column("passed", "Passed every test"), numeric("seconds", "s per map", _seconds), Column("note", "Note", footnote),
)  # fmt: skip
REGIONS = (
    Column("run_a", "Run"), Column("map_a", "Map", _map), Column("run_b", "Other run"),
    Column("map_b", "Its map", _map),
    numeric("spearman", "Rank correlation", fixed), numeric("n_regions", "Regions"),
    numeric("n_participants", "Patients"), Column("note", "Note", remark),
)  # fmt: skip
PAIRS = (
    Column("run_a", "Run"), Column("run_b", "Other run"), numeric("both_right", "Both right"),
    numeric("only_a_right", "Only the first right"), numeric("only_b_right", "Only the second right"),
    numeric("both_wrong", "Both wrong"), numeric("difference", "Difference", fixed), numeric("ci_low", "from", fixed),
    numeric("ci_high", "to", fixed), numeric("p_holm", "p (Holm)"), Column("note", "Note", remark),
)  # fmt: skip


def comparison_page(runs: pd.DataFrame, maps: pd.DataFrame, regions: pd.DataFrame, pairs: pd.DataFrame) -> str:
    """The page as HTML, from the tables of a comparison.

    `runs`, `maps`, `regions`: of `pipeline.statistics.comparison.runs`. `pairs`: ``mcnemar.tsv``.
    """
    measured = runs[runs["balanced_accuracy"].notna()]
    rows = [
        IntervalRow(
            f"{row['run']} ({row['architecture']})", f"n = {row['n_participants']}",
            float(row["balanced_accuracy"]), float(row["ci_low"]), float(row["ci_high"]),
        )
        for _, row in measured.iterrows()
    ]  # fmt: skip
    picture = draw_intervals(rows, "Balanced accuracy", "Balanced accuracy of each run", 0.5) if rows else None
    ordered = regions.sort_values("spearman", ascending=False, na_position="last", kind="stable")
    maps = maps.assign(passed=maps["passed"].map({True: "yes", False: "no"})).dropna(axis=1, how="all")
    caption = "Maps of different runs, the most alike first (map_agreement.tsv)."
    titles = {"accuracy": "Accuracy and cost", "maps": "What the maps find", "regions": "Agreement on regions"}
    entries = [NavigationEntry(title, f"#{name}") for name, title in titles.items()]
    return render(
        "comparison.html.j2", Frame("Runs compared", entries, of_a_run=False), titles=titles, names=list(runs["run"]),
        picture=picture,
        n_scans=int(runs["n_scans"].iloc[0]),
        runs=page_table(runs, RUNS, "Accuracy on the scans of all runs, and cost (family_comparison.tsv)."),
        pairs=page_table(pairs, PAIRS, "Runs against one another, by participant (mcnemar.tsv)."),
        maps=page_table(maps, MAPS, "Scores of every map (map_comparison.tsv)."),
        regions=page_table(ordered, REGIONS, caption, CLOSEST),
    )  # fmt: skip


def figures_command(options: Figures) -> int:
    """Write all figures of a run in the formats asked for; the run itself is only read."""
    layout = RunLayout(options.out.resolve())
    source = read_run_input(layout).input
    config = read_run_config(layout)
    if options.to is None:
        require_no_links_out(layout.root)
    folder = (options.to or layout.figures / "publication").resolve()
    if folder.is_relative_to(source) and not folder.is_relative_to(source / "derivatives"):
        raise UsageError(f"--to {options.to}: lies inside the input {source}, which is never written to.")
    names = drawn_maps(read_run(layout)) if options.map else ()
    for name in options.map:
        if name not in names:
            raise UsageError(unknown("--map", name, names))
    gallery = Gallery(folder, tuple(dict.fromkeys(options.format)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_executor(options.n_procs, options.executor, layout.parsl_logs, config.cluster) as executor:
            faults = write_figures(layout, gallery, executor, options.map)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write figures there ({error.strerror}).") from error
    for fault in faults:
        print(fault)
    print(f"{len([path for path in folder.iterdir() if path.suffix[1:] in gallery.forms])} figures: {folder}")
    return EXIT_SOME_FAILED if faults else EXIT_OK


def drawn_maps(run: RunRecord) -> tuple[str, ...]:
    """Names of the maps whose means are drawn."""
    return run.map_names if run.keeps_mean_maps and run.has("relevance_bilateral") else ()


def write_figures(layout: RunLayout, gallery: Gallery, executor: Executor, maps: Sequence[str] = ()) -> list[str]:
    """Write all figures, or those of `maps` alone; return what could not be drawn, each in a sentence.

    `gallery`: with the folder and the formats.
    """
    run = read_run(layout)
    tasks = [partial(draw_maps, layout, gallery, name) for name in maps or drawn_maps(run)]
    if not maps:
        tasks.insert(0, partial(draw_sections, layout, gallery))
    faults: dict[str, None] = dict.fromkeys(run.unreadable.values())
    with Progress(len(tasks), "figures") as progress:
        for future in as_completed([executor.submit(task) for task in tasks]):
            faults |= dict.fromkeys(future.result())
            progress.update()
    return sorted(faults)


def draw_sections(layout: RunLayout, gallery: Gallery) -> tuple[str, ...]:
    return finished_sections(Material(read_run(layout), gallery), [section.id for section in QUESTIONS]).faults


def draw_maps(layout: RunLayout, gallery: Gallery, name: str) -> tuple[str, ...]:
    """Write one map of every group, and of the difference of the classes, in every view; return the faults."""
    material = Material(read_run(layout), gallery)
    run = material.run
    shown = {group: group_map(material, group, name) for group in (*run.map_groups, *OUTCOMES)}
    if len(run.map_groups) == 2:
        shown["-minus-".join(run.map_groups)] = class_difference(material, name)
    with house_style():
        for group, average in ((group, average) for group, average in shown.items() if average is not None):
            for view in VIEWS if is_mni(run.layout.space) else ("slices",):  # the others are of MNI space
                figure = draw_group_maps([(average, (view,))], material.backdrop)
                title = f"map-{name}_group-{label_in_file_name(group)}_view-{view}"
                gallery.add(figure, title, average.title, average.title, "png")
    return tuple(material.faults.said)
