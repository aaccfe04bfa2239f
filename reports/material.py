"""What the builders of sections work with: the run's record, the gallery for figures, and maps read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipeline.regions.stage import MAPS_STAGE
from pipeline.run.errors import BadInputError
from pipeline.run.jobs import was_made
from pipeline.run.layout import RunLayout
from reports.figures.brain import Backdrop, MapView, view_map
from reports.figures.gallery import Gallery
from reports.figures.maps import MAP_CUTS
from reports.links import Links, participant_file, region_files
from reports.run_record import OUTCOMES, RunRecord, read_run


@dataclass
class Material:
    """Input of every section.

    Parameters
    ----------
    run : RunRecord
    gallery : Gallery
    """

    run: RunRecord
    gallery: Gallery
    _views: dict[Path, MapView] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, layout: RunLayout, all_formats: bool = False) -> Material:
        """Material of a run; with `all_formats` figures are written in every format."""
        return cls(read_run(layout), Gallery(layout.figures, all_formats))

    @cached_property
    def links(self) -> Links:
        """Pages of this report: every bilateral group with relevance, every participant with a kept scan."""
        run = self.run
        groups: list[object] = list(run.tables["relevance"]["group"].dropna().unique()) if run.has("relevance") else []
        kept = run.tables["scans"].loc[run.tables["scans"]["kept"].astype(bool)] if run.has("scans") else None
        people: list[object] = [] if kept is None else list(kept["participant_id"].unique())
        return Links(region_files(map(str, groups)), {str(name): participant_file(str(name)) for name in people})

    @cached_property
    def backdrop(self) -> Backdrop | None:
        return Backdrop.load(self.run.config.registration.resolution_mm)

    def view(self, path: Path) -> MapView:
        """Slices of a map; each file is read once."""
        if path not in self._views:
            self._views[path] = view_map(path, MAP_CUTS, None if self.backdrop is None else self.backdrop.mask)
        return self._views[path]

    @cached_property
    def group_views(self) -> dict[tuple[str, str], MapView]:
        """Mean maps there are, by group and map name; groups without scans have none."""
        keys = [(group, name) for group in (*self.run.labels, *OUTCOMES) for name in self.run.map_names]
        views = {key: self.group_view(*key) for key in keys}
        return {key: view for key, view in views.items() if view is not None}

    def group_view(self, group: str, name: str) -> MapView | None:
        """One mean map; None where none was made, or a group has no scans.

        Raises
        ------
        BadInputError
            If the run has made it and it is gone: no other map may take its place.
        """
        layout = self.run.layout
        path = layout.group_map(group, name)
        if not self.run.group_sizes.get(group, (0, 0))[0]:
            return None
        if not path.is_file() and was_made(layout, MAPS_STAGE, name, path):
            raise BadInputError(f"{path}: this mean map is missing; the same heatlas run again makes it.")
        return self.view(path) if path.is_file() else None
