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

    @property
    def registration_quality(self) -> Path:
        return self.group / "registration.tsv"

    @property
    def region_quality(self) -> Path:
        """Registration quality per scan and region."""
        return self.group / "region_quality.tsv"

    @property
    def volumes(self) -> Path:
        """Volumes of atlas regions, one row per scan and region, from the Jacobian determinant."""
        return self.group / "volumes.tsv"

    @property
    def test_retest(self) -> Path:
        """Agreement of the volumes of two scans of one participant."""
        return self.group / "test_retest.tsv"

    @property
    def predictions(self) -> Path:
        return self.group / "predictions.tsv"

    @property
    def predictions_repeats(self) -> Path:
        """Predictions of every repeat of the training; only if there is more than one."""
        return self.group / "predictions_repeats.tsv"

    @property
    def predictions_baselines(self) -> Path:
        """Out-of-fold predictions of the baselines, on the folds of the networks."""
        return self.group / "predictions_baselines.tsv"

    @property
    def image_regions(self) -> Path:
        """Mean intensity and volume change of bilateral groups, one row per scan and group."""
        return self.group / "image_regions.tsv"

    @property
    def relevance(self) -> Path:
        """One row per scan, map and region (and the unlabelled rest)."""
        return self.group / "relevance.tsv"

    @property
    def relevance_bilateral(self) -> Path:
        """One row per scan, map and bilateral group, with gain."""
        return self.group / "relevance_bilateral.tsv"

    @property
    def predictions_applied(self) -> Path:
        """Predictions for kept scans outside the contrast (MCI), by networks that never saw the participant."""
        return self.group / "predictions_applied.tsv"

    @property
    def relevance_applied(self) -> Path:
        """``relevance.tsv`` of the scans in `predictions_applied`."""
        return self.group / "relevance_applied.tsv"

    @property
    def relevance_applied_bilateral(self) -> Path:
        """``relevance_bilateral.tsv`` of the scans in `predictions_applied`."""
        return self.group / "relevance_applied_bilateral.tsv"

    @property
    def conservation_applied(self) -> Path:
        """``conservation.tsv`` of the scans in `predictions_applied`."""
        return self.group / "conservation_applied.tsv"

    @property
    def relevance_audit(self) -> Path:
        """One row per scan, map and compartment: rim of the brain mask, outside it, fluid, vessels."""
        return self.group / "relevance_audit.tsv"

    @property
    def conservation(self) -> Path:
        """One row per scan and LRP map: start value, relevance in the map, each loss."""
        return self.group / "conservation.tsv"

    @property
    def evidence(self) -> Path:
        """One row per scan and evidence map: evidence of the scan and of its reference, sum of the map, its error."""
        return self.group / "evidence.tsv"

    @property
    def evidence_applied(self) -> Path:
        """``evidence.tsv`` of the scans in `predictions_applied`."""
        return self.group / "evidence_applied.tsv"

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
