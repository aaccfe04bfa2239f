"""What the builders of sections work with, and what they could not show.

The material is the run's record, the gallery for figures, and maps read once. A fault is said in its place, at the top
of the report, and in the log.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import numpy as np
from jinja2 import UndefinedError
from numpy.typing import NDArray

from heatlas.atlases.templates import configured_grid, configured_template
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.errors import BadInputError, HeatlasError, MissingDataError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_text
from heatlas.reports.figures.gallery import Gallery
from heatlas.reports.figures.slices import MAP_CUTS, Backdrop, BrainImage, MapView, smoothed, view_of
from heatlas.reports.frame.overviews import draw_overview
from heatlas.reports.frame.pages import Links, participant_file, region_files
from heatlas.reports.read.run_files import not_as_written
from heatlas.reports.read.run_record import OUTCOMES, RunRecord, read_run
from heatlas.reports.words.numbers import LONGEST_TEXT, listing, shortened

Made = TypeVar("Made")
CAUSED_BY_DATA = (ArithmeticError, AttributeError, LookupError, TypeError, UndefinedError, ValueError)
"""What a value that no check has foreseen may end in. A full disk or too little memory is no fault of the data."""


@dataclass
class Faults:
    """Sentences, each once, in the order in which they were met."""

    layout: RunLayout  # of the run, whose logs keep the tracebacks
    said: dict[str, None] = field(default_factory=dict)

    def add(self, sentence: str) -> str:
        """Write a sentence down, and give it back for the place that it is about."""
        self.said[sentence] = None
        return sentence

    def attempt(self, part: str, make: Callable[[], Made], files: str = "") -> tuple[Made | None, str]:
        """Make a part of the report; None and the reason where its data do not allow it.

        `part`: what is made, to begin the sentence with. `files`: those that it is made from, as far as they are known.
        """
        try:
            return make(), ""
        except HeatlasError as error:
            return None, self.add(f"{part} is missing. {error}")
        except CAUSED_BY_DATA as error:
            log = self.layout.traceback("report", "".join(c if c.isalnum() else "-" for c in part)[:80])
            write_text(log, traceback.format_exc())
            return None, self.add(
                f"{part} is missing: {files or 'a table of this run'} holds something unexpected "
                f"({type(error).__name__}: {shortened(error, LONGEST_TEXT)}; details in "
                f"{log.relative_to(self.layout.root).as_posix()}). Repeat the command that made this run."
            )


@dataclass
class Material:
    """Input of every section."""

    run: RunRecord
    gallery: Gallery
    _views: dict[Path, MapView | None] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, layout: RunLayout) -> Material:
        """Material of a run's report."""
        return cls(read_run(layout), Gallery(layout.figures))

    @property
    def shows_people(self) -> bool:
        """Whether single people may be shown."""
        return self.run.config.report.people

    @cached_property
    def links(self) -> Links:
        """Pages of this report: every bilateral group with relevance, every participant with a kept scan."""
        run = self.run
        known = run.has("relevance_bilateral")
        groups: list[object] = list(run.tables["relevance_bilateral"]["group"].dropna().unique()) if known else []
        named = self.shows_people and run.has("scans")
        kept = run.tables["scans"].loc[run.tables["scans"]["kept"].astype(bool)] if named else None
        people: list[object] = [] if kept is None else list(kept["participant_id"].unique())
        return Links(region_files(map(str, groups)), {str(name): participant_file(str(name)) for name in people})

    @cached_property
    def backdrop(self) -> Backdrop | None:
        return Backdrop.load(self.run.config.registration)

    @property
    def brain(self) -> NDArray[np.bool_] | None:
        """Voxels of the template's brain; None if its package is not installed."""
        return None if self.backdrop is None else self.backdrop.mask

    @cached_property
    def faults(self) -> Faults:
        """What could not be shown so far, besides tables, which the run's record names."""
        return Faults(self.run.layout)

    def view(self, path: Path) -> MapView | None:
        """Slices of a map that the run should have, smoothed; None, and a fault, where it is missing or damaged.

        Each file is read once.
        """
        if path not in self._views:
            image = self.image(path)
            smooth = None if image is None else smoothed(image, inside=self.brain)
            self._views[path] = None if smooth is None else view_of(smooth, MAP_CUTS, self.brain)
        return self._views[path]

    def picture(self, path: Path) -> bytes | None:
        """A PNG that the run has drawn; None where there is none, and a fault where it is damaged."""
        if not path.is_file():
            return None
        content = path.read_bytes()
        if content.startswith(b"\x89PNG") and content.endswith(b"IEND\xaeB`\x82"):
            return content
        file = path.relative_to(self.run.layout.root).as_posix()
        self.faults.add(f"{file}: is no whole picture. Delete it and repeat the command that made this run.")
        return None

    def address(self, path: Path) -> str:
        """Address of a file of the run from a page at its top."""
        return quote(path.relative_to(self.run.layout.root).as_posix())

    @cached_property
    def template_overview(self) -> str:
        """Address of the template in the slices of the overviews, written once; empty where it is not at hand."""
        if self.backdrop is None:
            return ""
        path = self.gallery.folder / "registration_template.png"
        template = configured_template(self.run.config.registration)
        brain = BrainImage(template.t1w * template.brain_mask, template.grid.affine)
        self.gallery.write(draw_overview(brain, template, [f"The template, {template.name}"]), path.name)
        return self.address(path)

    def image(self, path: Path) -> BrainImage | None:
        """A map that the run should have, whole; None, and a fault, where it is missing or damaged."""
        file = path.relative_to(self.run.layout.root).as_posix()
        if not path.is_file():
            self.faults.add(f"{file}: this map is missing. Repeat the command that made this run.")
            return None
        if changed := not_as_written(self.run.layout, path):
            self.faults.add(changed)
            return None
        try:
            grid = configured_grid(self.run.config.registration)
            return BrainImage(read_map(path, grid), grid.affine)
        except (BadInputError, MissingDataError) as error:
            self.faults.add(str(error).replace(str(path), file))
            return None

    @cached_property
    def group_views(self) -> dict[tuple[str, str], MapView]:
        """Mean maps that can be shown, by group and map name; groups without scans have none."""
        keys = [(group, name) for group in (*self.run.map_groups, *OUTCOMES) for name in self.run.map_names]
        views = {key: self.group_view(*key) for key in keys}
        return {key: view for key, view in views.items() if view is not None}

    def group_view(self, group: str, name: str) -> MapView | None:
        """One mean map; None where it cannot be shown, or the group has no scans."""
        return self.view(self.run.layout.group_map(group, name)) if self.expects_map(group) else None

    def has_map(self, group: str, name: str) -> bool:
        """Whether a mean map can be shown."""
        return (group, name) in self.group_views

    def expects_map(self, group: str) -> bool:
        """Whether the run has made mean maps of a group: it keeps them, and the group has scans."""
        made = self.run.keeps_mean_maps and self.run.has("relevance_bilateral")
        return made and bool(self.run.group_sizes.get(group, (0, 0))[0])

    def missing_maps(self, groups: Iterable[str], names: Iterable[str]) -> str:
        """A sentence that names the files of mean maps that should be there and cannot be shown; empty without any."""
        names = list(names)
        files = [
            self.run.layout.group_map(group, name).relative_to(self.run.layout.root).as_posix()
            for group in groups
            if self.expects_map(group)
            for name in names
            if not self.has_map(group, name)
        ]
        if not files:
            return ""
        return f"Missing or damaged, and left empty here: {listing(files)}."
