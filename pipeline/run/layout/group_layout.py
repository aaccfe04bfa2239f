"""Paths of tables and maps of the whole group: the folder ``group`` of a run."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from heatlas.pipeline.run.documents import read_toml
from heatlas.pipeline.run.template_name import DEFAULT_TEMPLATE, template_name


@dataclass(frozen=True)
class GroupFiles:
    """Paths below ``group``; part of `pipeline.run.layout.run_layout.RunLayout`."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @functools.cached_property
    def template(self) -> str:
        """Template as this run's own settings name it; the default before it has any."""
        try:
            return str(read_toml(self.config)["registration"]["template"])
        except (OSError, ValueError, KeyError, TypeError):  # no settings yet; damaged ones are refused by `read_config`
            return DEFAULT_TEMPLATE

    @property
    def space(self) -> str:
        """Name of the template, as part of file names."""
        return template_name(self.template)

    @property
    def group(self) -> Path:
        return self.root / "group"

    def statistics(self, name: str) -> Path:
        """A table of ``group/statistics``."""
        return self.group / "statistics" / f"{name}.tsv"

    def group_map(self, group: str, map_name: str) -> Path:
        """Mean map over a group (``AD``, ``CN``, ``TP`` ...).

        Labels may be any text; characters that file names do not allow are written as in a URL.
        """
        name = quote(group, safe="")
        return self.group / "maps" / f"group-{name}_space-{self.space}_desc-{map_name}_relevance.nii.gz"

    def voxel_map(self, source: str, statistic: str) -> Path:
        """A test voxel by voxel (``t``, ``tThresholded``, ``oneMinusPFwe``, ``oneMinusPTfce``) of images or a map."""
        first, *others = source.split("_")  # BIDS has no underscores within a label
        label = first + "".join(word.capitalize() for word in others)
        return self.group / "voxelwise" / f"group_space-{self.space}_desc-{label}_stat-{statistic}_statmap.nii.gz"
