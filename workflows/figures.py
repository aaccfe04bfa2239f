"""``heatlas figures``: every figure of a finished run's report, and every mean map in every view, for publication."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor, as_completed
from functools import partial
from urllib.parse import quote

from heatlas.pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, UsageError
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input, require_no_links_out
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.template_name import is_mni
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.progress import Progress
from heatlas.reports.content.relevance.maps import class_difference, group_map
from heatlas.reports.figures.gallery import Gallery, house_style
from heatlas.reports.figures.maps import VIEWS, draw_group_maps
from heatlas.reports.frame.material import Material
from heatlas.reports.page.parts import finished_sections
from heatlas.reports.page.sections import SECTIONS
from heatlas.reports.read.run_record import OUTCOMES, read_run


def figures_command(arguments: argparse.Namespace) -> int:
    """Write all figures of a run in the formats asked for; the run itself is only read."""
    layout = RunLayout(arguments.out.resolve())
    source = read_run_input(layout).input
    config = read_run_config(layout)
    if arguments.to is None:
        require_no_links_out(layout.root)
    folder = (arguments.to or layout.figures / "publication").resolve()
    if folder.is_relative_to(source) and not folder.is_relative_to(source / "derivatives"):
        raise UsageError(f"--to {arguments.to}: lies inside the input {source}, which is never written to.")
    gallery = Gallery(folder, tuple(dict.fromkeys(arguments.format)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_executor(arguments.n_procs, arguments.executor, layout.parsl_logs, config.cluster) as executor:
            faults = write_figures(layout, gallery, executor)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write figures there ({error.strerror}).") from error
    for fault in faults:
        print(fault)
    print(f"{len([path for path in folder.iterdir() if path.suffix[1:] in gallery.forms])} figures: {folder}")
    return EXIT_SOME_FAILED if faults else EXIT_OK


def write_figures(layout: RunLayout, gallery: Gallery, executor: Executor) -> list[str]:
    """Write all figures; return what could not be drawn, each in a sentence.

    `gallery`: with the folder and the formats.
    """
    run = read_run(layout)
    names = run.map_names if run.keeps_mean_maps and run.has("relevance_bilateral") else ()
    tasks = [partial(draw_sections, layout, gallery), *(partial(draw_maps, layout, gallery, name) for name in names)]
    faults: dict[str, None] = dict.fromkeys(run.unreadable.values())
    with Progress(len(tasks), "figures") as progress:
        for future in as_completed([executor.submit(task) for task in tasks]):
            faults |= dict.fromkeys(future.result())
            progress.update()
    return sorted(faults)


def draw_sections(layout: RunLayout, gallery: Gallery) -> tuple[str, ...]:
    """Write the figures of the report's index; return the faults."""
    return finished_sections(Material(read_run(layout), gallery), [section.id for section in SECTIONS]).faults


def draw_maps(layout: RunLayout, gallery: Gallery, name: str) -> tuple[str, ...]:
    """Write one map of every group, and of the difference of the classes, in every view; return the faults."""
    material = Material(read_run(layout), gallery)
    run = material.run
    shown = {group: group_map(material, group, name) for group in (*run.map_groups, *OUTCOMES)}
    if len(run.map_groups) == 2:
        shown["-minus-".join(run.map_groups)] = class_difference(material, name)
    with house_style():
        for group, one in ((group, one) for group, one in shown.items() if one is not None):
            for view in VIEWS if is_mni(run.layout.space) else ("slices",):  # the others are of MNI space
                figure = draw_group_maps([(one, (view,))], material.backdrop)
                title = f"map-{name}_group-{quote(group, safe='')}_view-{view}"
                gallery.add(figure, title, one.title, one.title, "png")
    return tuple(material.faults.said)
