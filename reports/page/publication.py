"""``heatlas figures``: every figure of the report, and every mean map in every view, as files for publication."""

from __future__ import annotations

from concurrent.futures import Executor, as_completed
from functools import partial
from urllib.parse import quote

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.template_name import is_mni
from heatlas.pipeline.run.work.progress import Progress
from heatlas.reports.content.relevance.maps import class_difference, group_map
from heatlas.reports.figures.gallery import Gallery, house_style
from heatlas.reports.figures.maps import VIEWS, draw_group_maps
from heatlas.reports.frame.material import Material
from heatlas.reports.page.parts import finished_sections
from heatlas.reports.page.sections import SECTIONS
from heatlas.reports.read.run_record import OUTCOMES, read_run


def write_figures(layout: RunLayout, gallery: Gallery, executor: Executor) -> list[str]:
    """Write all figures; return what could not be drawn, each in a sentence.

    Parameters
    ----------
    layout : RunLayout
    gallery : Gallery
        With the folder and the formats.
    executor : concurrent.futures.Executor
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
