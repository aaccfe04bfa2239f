"""The viewer of a run's mean maps, and what viewers and explorers of a page share."""

from __future__ import annotations

import functools

from pipeline.run.errors import HeatlasError
from pipeline.run.layout.map_names import map_title
from reports.figures.slices import GROUP_PERCENTILES
from reports.figures.style import OUTCOME_NAMES
from reports.page.components import Component
from reports.page.material import Material
from reports.read.run_record import OUTCOMES, group_name
from reports.viewer.atlas import ViewingSpace, atlas_component
from reports.viewer.component import ViewerMap, viewer_component
from reports.words.numbers import count

SCALE = "Colours run from the {low:g}th to the {high:g}th percentile of {whose} inside the brain, as in the figures."


@functools.lru_cache(maxsize=1)
def viewing_space(resolution_mm: float, atlas: str) -> ViewingSpace | None:
    """Space of a run, loaded once for all pages; None where the template's package or the atlas is not at hand."""
    try:
        return ViewingSpace.of(resolution_mm, atlas)
    except HeatlasError:
        return None


@functools.lru_cache(maxsize=1)
def _shared(resolution_mm: float, atlas: str) -> Component | None:
    space = viewing_space(resolution_mm, atlas)
    return None if space is None else atlas_component(space)


def space_of(material: Material) -> ViewingSpace | None:
    """Viewing space of a run."""
    config = material.run.config
    return viewing_space(config.registration.resolution_mm, config.regions.atlas)


def shared_data(material: Material) -> Component | None:
    """Labels and brain that the viewers and explorers of a page read; every page that has one needs this once."""
    config = material.run.config
    return _shared(config.registration.resolution_mm, config.regions.atlas)


def group_viewer(material: Material) -> Component | None:
    """Mean maps: both classes by every method, the outcomes by the leading one, so that the page stays small.

    None where no mean map was kept, or there is no template to show it on.
    """
    run, space = material.run, space_of(material)
    if space is None or not run.keeps_mean_maps:
        return None
    views = material.group_views
    wanted = [(group, name) for group in run.map_groups for name in run.ordered_maps]
    wanted += [(group, run.main_maps[0]) for group in OUTCOMES]
    there = [key for key in wanted if key in views]
    maps = []
    for group, name in there:
        alike = [views[key] for key in there if key[1] == name]  # the positive class first, if it has a map
        scale = alike[0].scale(GROUP_PERCENTILES, alike)
        scans, people = run.group_sizes[group]
        of = f"{count(scans, 'scan')} of {count(people, 'person', 'people')}"
        maps.append(
            ViewerMap(
                run.layout.group_map(group, name), group, name,
                f"{OUTCOME_NAMES[group].capitalize() if group in OUTCOMES else group_name(group)}, mean of {of}",
                map_title(name), scale.low, scale.high, scale.signed, f"{run.map_unit(name)} per voxel",
            )
        )  # fmt: skip
    if not maps:
        return None
    missing = material.missing_maps(run.map_groups, run.map_names) or material.missing_maps(OUTCOMES, run.main_maps[:1])
    whose = f"the absolute mean map of {group_name(run.map_groups[0])} by the method"
    caption = SCALE.format(low=GROUP_PERCENTILES[0], high=GROUP_PERCENTILES[1], whose=whose)
    return viewer_component(space, maps, "Mean relevance maps", f"{caption} {missing}".strip())
