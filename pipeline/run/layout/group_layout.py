"""Paths of tables and maps of the whole group: the folder ``group`` of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

TEMPLATE = "MNI152NLin2009cAsym"


@dataclass(frozen=True)
class GroupFiles:
    """Paths below ``group``; part of `pipeline.run.layout.run_layout.RunLayout`."""

    root: Path

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
        return self.group / "maps" / f"group-{name}_space-{TEMPLATE}_desc-{map_name}_relevance.nii.gz"

    def voxel_map(self, source: str, statistic: str) -> Path:
        """A test voxel by voxel (``t``, ``tThresholded``, ``oneMinusPFwe``, ``oneMinusPTfce``) of images or a map."""
        first, *others = source.split("_")  # BIDS has no underscores within a label
        label = first + "".join(word.capitalize() for word in others)
        return self.group / "voxelwise" / f"group_space-{TEMPLATE}_desc-{label}_stat-{statistic}_statmap.nii.gz"
