"""A run in a notebook: its tables as pandas, its maps as nibabel images, one picture by nilearn.

``import heatlas; run = heatlas.open("OUT")``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nibabel as nib
import numpy as np
import pandas as pd

from heatlas.atlases.spaces import MNI
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.explaining.explained_image import SMOOTHED_MM, draw_map, template_brain
from heatlas.pipeline.models.inputs import read_channels
from heatlas.pipeline.models.storage import LoadedModel, load_model
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.regions.tables import ALL
from heatlas.pipeline.run.config.ranges import require_arguments
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.folder import read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import counted, similar
from heatlas.pipeline.run.tables import REMEDY
from heatlas.reports.read.run_files import DECLARED, PREDICTIONS_OF, not_as_written, read_sound
from heatlas.reports.read.run_record import RunRecord, read_run

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

    from heatlas.pipeline.models.contract import StagedModel

SCAN = ["participant_id", "session_id", "scan_id"]
OF_SCAN = ["label", "diagnosis", "age", "sex", "site"]
BOTH_SIDES = "both"
_NOBODY: dict[str, list[str]] = {"participant_id": []}


def open_run(folder: str | Path) -> OpenRun:
    """Open a finished, or stopped, run to read from it. Nothing is written.

    Parameters
    ----------
    folder : str or Path
        ``OUT`` of ``heatlas run``, or ``demo/run``.

    Raises
    ------
    UsageError
        If it is not the folder of a run.
    """
    require_arguments(folder=folder)
    layout = RunLayout(Path(folder))
    read_run_input(layout)  # refuses what is not a run, as the commands do
    return OpenRun(read_run(layout))


@dataclass(frozen=True, eq=False)
class OpenRun:
    """What a run found. Missing parts raise `BadInputError`, which names the stage that makes them.

    Parameters
    ----------
    record : RunRecord
        The same record that the report is made from.
    """

    record: RunRecord

    def __repr__(self) -> str:
        scans = self.record.tables["scans"] if self.record.has("scans") else pd.DataFrame({"kept": [], **_NOBODY})
        kept, explained = scans[scans["kept"].astype(bool)], self.record.explained
        people = f"{counted(kept['participant_id'].nunique(), 'participant')} kept"
        people += f", {explained['participant_id'].nunique()} analysed"
        return f"<run {self.record.layout.root}: {people}; maps {', '.join(self.maps) or 'none'}>"

    @property
    def maps(self) -> Sequence[str]:
        """Names of the maps of this run, the one that leads the report first."""
        return self.record.ordered_maps

    @cached_property
    def tables(self) -> Mapping[str, Path]:
        """Tables that this run has, by name, with their files; `table` reads one."""
        # the same file has other columns for another task
        others = {*PREDICTIONS_OF.values()} - {PREDICTIONS_OF[self.record.task.kind.name]}
        found = {table.name: table.path(self.record.layout) for table in DECLARED if table.name not in others}
        return {name: path for name, path in found.items() if path.is_file()}

    def table(self, name: str) -> pd.DataFrame:
        """One table by its name in ``docs/tables.md``, ``n/a`` as missing values.

        Raises UsageError for a name that this run has no table of; lists similar names. Raises BadInputError if the
        file is not what the run wrote: a column is missing or doubled, a row is repeated or cut short, a cell cannot be
        right, or scans are gone.
        """
        _require_text("table", name)
        if name not in self.tables:
            raise UsageError(f"{name}: this run has no such table.{_similar(name, self.tables)}")
        table, wrong = read_sound(name, self.tables[name], self.record.config), self.record.unreadable.get(name, "")
        if wrong.startswith(self.tables[name].relative_to(self.record.layout.root).as_posix()):
            raise BadInputError(f"{self.record.layout.root}: {wrong}")
        return table

    @property
    def scans(self) -> pd.DataFrame:
        """Every scan found, kept or dropped with its reason."""
        return self.table("scans")

    @property
    def predictions(self) -> pd.DataFrame:
        """Out-of-fold predictions, one row per scan."""
        if self.record.predictions is None:
            raise self._absent("predictions", PREDICTIONS_OF[self.record.task.kind.name])
        return self.record.predictions

    def _absent(self, what: str, *tables: str) -> BadInputError:
        """Why something is not there: a damaged table, or a run that has not come so far."""
        otherwise = f"no {what} yet; finish the run with heatlas run."
        return BadInputError(f"{self.record.layout.root}: {self.record.why_absent('scans', *tables) or otherwise}")

    @cached_property
    def relevance(self) -> pd.DataFrame:
        """Every map summed over every region, one row per scan, map and region, with label, age, sex and site.

        Rows with hemisphere ``both`` are bilateral groups and have no label number; their ``name`` is the group.
        """
        parts = {name: self.table(name) for name in ("relevance", "relevance_bilateral") if name in self.tables}
        if not parts:
            raise self._absent("relevance", "relevance_bilateral")
        if empty := [name for name, rows in parts.items() if rows.empty]:
            raise BadInputError(f"{self.tables[empty[0]]}: has no rows. {REMEDY}")
        if "relevance_bilateral" in parts:
            groups = parts["relevance_bilateral"]
            parts["relevance_bilateral"] = groups.assign(name=groups["group"], hemisphere=BOTH_SIDES)
        rows = pd.concat(parts.values(), ignore_index=True)
        scans = self.scans[[*SCAN, *OF_SCAN]]
        return rows.merge(scans, on=SCAN, how="left", validate="many_to_one")

    def evidence(self, region: str, map_name: str | None = None) -> pd.DataFrame:
        """Evidence of one region in every scan, relative to controls.

        `region`: a bilateral group, or a region with its side; letter case does not matter. `map_name`: one of `maps`;
        None for the leading evidence map. Returns one row per scan: participant, session, scan, label, diagnosis, age,
        sex, site, and ``evidence`` in logits (for regression in the unit of the target). Raises UsageError for an
        unknown region or map, or a map that is no evidence.
        """
        _require_text("region", region)
        _require_text("map", map_name, optional=True)
        evidence = self.record.evidence_maps
        if not evidence and not self.record.has("relevance_bilateral"):
            raise self._absent("relevance", "relevance_bilateral")
        if map_name is None and not evidence:
            raise UsageError(f"this run has no evidence map, only {', '.join(self.maps)}; see `relevance` for these.")
        name = map_name or next(one for one in self.maps if one in evidence)
        if name not in evidence:
            raise UsageError(f"{name} is no evidence map of this run; those are {', '.join(evidence) or 'none'}.")
        rows = self.relevance[self.relevance["map"] == name]
        wanted = rows["name"].str.casefold() == region.casefold()
        if not wanted.any():
            raise UsageError(f"{region}: no such region.{_similar(region, rows['name'].unique())}")
        found = rows[wanted]
        both = found["hemisphere"] == BOTH_SIDES  # a region on the midline is a group of itself
        found = found[both] if both.any() else found
        return found[[*SCAN, *OF_SCAN, "evidence"]].reset_index(drop=True)

    def map(self, map_name: str | None = None, group: str | None = None, participant: str | None = None) -> Nifti1Image:
        """A mean map over a group of scans, or the map of a participant's first explained scan, in template space.

        `map_name`: one of `maps`; None for the leading one. `group`: a class, or TP, FP, TN, FN; None for the explained
        class. `participant`: with or without ``sub-``. Not together with `group`. Raises UsageError for an unknown map
        or participant, or both a group and a participant. Raises BadInputError if the run has not made or kept that
        map, or the file is not the one it wrote (another person's, say), or is damaged, on another grid or not finite.
        """
        for what, value in (("map", map_name), ("group", group), ("participant", participant)):
            _require_text(what, value, optional=True)
        name = map_name or self.maps[0]
        if name not in self.maps:
            raise UsageError(f"{name}: this run has no such map; it has {', '.join(self.maps)}.")
        if group is not None and participant is not None:
            raise UsageError("name a group or a participant, not both.")
        if participant is None:
            groups = self.record.map_groups
            path = self.record.layout.group_map(group or (ALL if ALL in groups else groups[0]), name)
        else:
            path = self.record.files_of(self._first_scan(participant)).relevance_map(name)
        if not path.is_file():
            raise BadInputError(
                f"{path}: this run has no such map. Finish it with heatlas run; [attribution] keep_maps decides which "
                "maps are kept."
            )
        if changed := not_as_written(self.record.layout, path):
            raise BadInputError(f"{self.record.layout.root}: {changed}")
        read_map(
            path, configured_grid(self.record.config.registration)
        )  # all of it now: a file cut short has a good header
        return nib.nifti1.Nifti1Image.from_filename(path)

    def _first_scan(self, participant: str) -> pd.Series:
        name = participant if participant.startswith("sub-") else f"sub-{participant}"
        explained = self.record.explained
        scans = explained[explained["participant_id"] == name]
        if scans.empty:
            raise UsageError(f"{name}: no explained scan.{_similar(name, explained['participant_id'].unique())}")
        return scans.iloc[0]

    def network(self, participant: str) -> StagedModel:
        """The network that tested a participant, whom it was not trained with; in evaluation mode, on the CPU.

        `participant`: with or without ``sub-``. Its first explained scan counts, as in `image`. Raises UsageError for
        an unknown participant.
        """
        _require_text("participant", participant)
        return self._network_of(self._first_scan(participant)).model

    def image(self, participant: str) -> Nifti1Image:
        """A participant's first explained scan as `network` takes it: scaled, cut to the brain, in template space.

        Of several kinds of images the last axis has one volume each.
        """
        _require_text("participant", participant)
        scan = self._first_scan(participant)
        seen = self._network_of(scan).input
        values = read_channels(self.record.files_of(scan), seen)
        shown = values[0] if len(values) == 1 else np.moveaxis(values, 0, -1)
        image = nib.nifti1.Nifti1Image(shown, seen.grid.affine)  # type: ignore[no-untyped-call]
        image.set_sform(seen.grid.affine, MNI)  # type: ignore[no-untyped-call]
        return image

    def _network_of(self, scan: pd.Series) -> LoadedModel:
        return load_model(self.record.layout.fold(int(scan["fold"])))

    def plot(
        self, map_name: str | None = None, group: str | None = None, participant: str | None = None,
        smooth: float = SMOOTHED_MM, **options: Any,
    ) -> Any:  # fmt: skip
        """Show a map on the template by `nilearn.plotting.plot_stat_map`: smoothed, the strongest tenth of its voxels.

        The first three as of `map`. `smooth`: full width at half maximum in mm; 0 for none. `**options`: of
        `plot_stat_map`: ``display_mode``, ``cut_coords``, ``threshold``, ``output_file`` and so on. Returns the display
        of nilearn.
        """
        image, name = self.map(map_name, group, participant), map_name or self.maps[0]
        whose = participant or f"mean of {group or self.record.map_groups[0]}"
        title = f"{map_title(name)}, {whose}: {self.record.map_unit(name)} per voxel"
        return draw_map(image, template_brain(self.record.config.registration.template), title, smooth, **options)


def _require_text(what: str, value: Any, optional: bool = False) -> None:
    if not isinstance(value, str) and not (optional and value is None):
        raise UsageError(f"the name of a {what} is text, not {_shown(value)}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else f'{text[:39]}…'} ({type(value).__name__})"


def _similar(name: str, known: Any) -> str:
    near = similar(name, known)
    return f" Similar: {', '.join(near)}." if near else f" Known: {', '.join(sorted(map(str, known))[:20])}."
