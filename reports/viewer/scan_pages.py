"""The page of a scan: a viewer of its relevance maps on its own brain."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.run.layout.map_names import map_title
from pipeline.run.layout.scan_files import ScanFiles
from reports.cautions.findings import Caution
from reports.figures.maps import map_unit
from reports.figures.slices import PERSON_PERCENTILES, MapView
from reports.page.components import Component
from reports.page.links import participant_file
from reports.page.pages import Frame, render
from reports.viewer.atlas import ViewingSpace, atlas_component
from reports.viewer.component import ViewerMap, viewer_component
from reports.viewer.of_run import SCALE


def scan_page(
    files: ScanFiles,
    brain: NDArray[np.float32],
    maps: Mapping[str, NDArray[np.float32]],
    views: Mapping[str, MapView],
    space: ViewingSpace,
    cautions: Sequence[Caution] = (),
) -> str:
    """Page of one scan.

    `brain`: shape of ``space.source``; In template space, background 0. `maps`: shape of ``space.source``; Relevance by
    map name, in the order to show. `views`: of the same maps; their percentiles are what the colours are set on.
    `cautions`: what to know before the maps are read.
    """
    caption = SCALE.format(low=PERSON_PERCENTILES[0], high=PERSON_PERCENTILES[1], whose="the scan's own absolute map")
    shown = []
    for name, values in maps.items():
        scale, unit = views[name].scale(PERSON_PERCENTILES), f"{map_unit(name)} per voxel"
        shown.append(
            ViewerMap(
                files.relevance_map(name), files.name, name, files.name, map_title(name), scale.low, scale.high,
                scale.signed, unit, values,
            )
        )  # fmt: skip
    viewer = viewer_component(space, shown, f"Relevance maps of {files.name}", caption, {files.name: brain})
    up = "../" * len(files.viewer.parent.relative_to(files.root).parts)
    frame = Frame(f"{files.name} · viewer", [], [viewer, _labels_of(space)], f"{up}report.html")
    person = up + participant_file(files.participant_id)
    return render(
        "scan_viewer.html.j2",
        frame,
        name=files.name,
        participant=files.participant_id,
        person=person,
        cautions=cautions,
    )


@functools.lru_cache(maxsize=1)
def _labels_of(space: ViewingSpace) -> Component:
    """Labels without the template, once for all scans that a process makes pages of."""
    return atlas_component(space, with_brain=False)
