"""Where everything in a run folder lies; with `pipeline.run.group_layout` the only module that spells these paths.

A run is a BIDS derivative. Scans are named by participant and session; a dataset without sessions has none in
its names. Maps are named by method: ``lrpB025`` is LRP with beta 0.25, ``gb`` guided backpropagation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.group_layout import TEMPLATE as TEMPLATE
from pipeline.run.group_layout import GroupFiles

GUIDED_MAP = "gb"
"""Name of the map of guided backpropagation in files and tables."""


def lrp_map_name(beta: float) -> str:
    """Name of an LRP map in files and tables: beta times 100, three digits.

    Examples
    --------
    >>> lrp_map_name(0.25)
    'lrpB025'
    """
    return f"lrpB{round(beta * 100):03d}"


def is_map_of_a_run(name: str) -> bool:
    """Whether a map is one that a run makes by itself; ``heatlas explain`` never writes one of these.

    Examples
    --------
    >>> is_map_of_a_run("lrpB025"), is_map_of_a_run("gb"), is_map_of_a_run("gradcam")
    (True, True, False)
    """
    return name == GUIDED_MAP or re.fullmatch(r"lrpB\d{3,}", name) is not None


def sidecar(image: Path) -> Path:
    """JSON file beside an image.

    Examples
    --------
    >>> sidecar(Path("sub-01_desc-gb_relevance.nii.gz")).name
    'sub-01_desc-gb_relevance.json'
    """
    return image.with_name(image.name.removesuffix(".nii.gz") + ".json")


def map_title(name: str) -> str:
    """Name of a map as a reader sees it.

    Examples
    --------
    >>> map_title("lrpB050"), map_title("gb")
    ('LRP β=0.5', 'Guided backpropagation')
    """
    if name.startswith("lrpB"):
        return f"LRP β={int(name[4:]) / 100:g}"
    return {GUIDED_MAP: "Guided backpropagation"}.get(name, name)


@dataclass(frozen=True)
class ScanFiles:
    """Files of one scan inside a run folder.

    Parameters
    ----------
    root : Path
        The run folder.
    participant_id : str
        With its ``sub-`` prefix.
    session_id : str or None
        With its ``ses-`` prefix; None where the dataset has no sessions.
    resolution_mm : float
        Voxel size in template space; part of the file names.
    """

    root: Path
    participant_id: str
    session_id: str | None
    resolution_mm: float

    @property
    def name(self) -> str:
        """BIDS prefix; also the name of this scan's units of work."""
        return "_".join(part for part in (self.participant_id, self.session_id) if part)

    @property
    def folder(self) -> Path:
        return self.root.joinpath(*(part for part in (self.participant_id, self.session_id) if part))

    @property
    def _space(self) -> str:
        return f"{self.name}_space-{TEMPLATE}_res-{self.resolution_mm:g}".replace(".", "p")

    def _anat(self, rest: str) -> Path:
        return self.folder / "anat" / rest

    @property
    def converted(self) -> Path:
        """NIfTI image made of a DICOM series, in the space of the scan."""
        return self._anat(f"{self.name}_desc-converted_T1w.nii.gz")

    @property
    def t1w(self) -> Path:
        """Brain in template space, float32, background 0."""
        return self._anat(f"{self._space}_desc-preproc_T1w.nii.gz")

    @property
    def brain_mask(self) -> Path:
        """The scan's own brain mask, carried to template space."""
        return self._anat(f"{self._space}_desc-brain_mask.nii.gz")

    @property
    def log_jacobian(self) -> Path:
        """Natural log of the Jacobian determinant of the map template -> scan; > 0 where the scan is larger."""
        return self._anat(f"{self._space}_desc-logjacobian_T1w.nii.gz")

    @property
    def affine_transform(self) -> Path:
        return self._anat(f"{self.name}_from-T1w_to-{TEMPLATE}_mode-image_desc-affine_xfm.mat")

    @property
    def warp(self) -> Path:
        return self._anat(f"{self.name}_from-T1w_to-{TEMPLATE}_mode-image_desc-syn_xfm.nii.gz")

    @property
    def inverse_warp(self) -> Path:
        return self._anat(f"{self.name}_from-{TEMPLATE}_to-T1w_mode-image_desc-syn_xfm.nii.gz")

    @property
    def quality(self) -> Path:
        """Registration numbers of this scan (JSON)."""
        return self._anat(f"{self._space}_desc-registration_quality.json")

    @property
    def volumes(self) -> Path:
        """Volumes of atlas regions in this scan, from the Jacobian determinant (TSV)."""
        return self._anat(f"{self._space}_desc-jacobian_volumes.tsv")

    @property
    def overview(self) -> Path:
        """The registered scan under the contours of the template, on three planes (PNG)."""
        return self.folder / "figures" / f"{self._space}_desc-registration_T1w.png"

    @property
    def portrait(self) -> Path:
        """The leading relevance maps of the scan on its own brain, with regions outlined (PNG)."""
        return self.folder / "figures" / f"{self._space}_desc-relevance_T1w.png"

    @property
    def viewer(self) -> Path:
        """Page to look through this scan's leading relevance maps on its own brain (HTML)."""
        return self.folder / "figures" / f"{self._space}_desc-relevance_viewer.html"

    def relevance_map(self, map_name: str) -> Path:
        return self.folder / "relevance" / f"{self._space}_desc-{map_name}_relevance.nii.gz"

    @property
    def ledger(self) -> Path:
        """Conservation ledger of this scan's LRP maps (TSV)."""
        return self.folder / "relevance" / f"{self._space}_desc-lrp_ledger.tsv"

    @property
    def region_table(self) -> Path:
        """Sums of this scan's maps over regions (TSV)."""
        return self.folder / "relevance" / f"{self._space}_desc-regions_relevance.tsv"

    @property
    def audit_table(self) -> Path:
        """Shares of this scan's maps at the rim of the brain mask, outside it, in fluid and in vessels (TSV)."""
        return self.folder / "relevance" / f"{self._space}_desc-audit_relevance.tsv"

    def maps_of_the_run(self) -> list[Path]:
        """Relevance maps of this scan that the run itself has written; not those of ``heatlas explain``."""
        found = sorted((self.folder / "relevance").glob(f"{self._space}_desc-*_relevance.nii.gz"))
        return [path for path in found if is_map_of_a_run(path.name.rpartition("_desc-")[2].split("_")[0])]

    def explanation_ledger(self, label: str) -> Path:
        """Conservation ledger of such a map, of a method that keeps one (TSV); not named as that of the run."""
        return self.folder / "relevance" / f"{self._space}_desc-{label}_conservation.tsv"

    def explanation_regions(self, label: str) -> Path:
        """Sums over regions of a map that ``heatlas explain`` has made (TSV)."""
        return self.folder / "relevance" / f"{self._space}_desc-{label}_regions.tsv"


@dataclass(frozen=True)
class RunLayout(GroupFiles):
    """Paths of one run folder."""

    def scan(self, participant_id: str, session_id: str | None, resolution_mm: float) -> ScanFiles:
        return ScanFiles(self.root, participant_id, session_id, resolution_mm)

    def fold(self, index: int) -> FoldFiles:
        return FoldFiles(self.root / "models" / f"fold-{index}")

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def dataset_description(self) -> Path:
        return self.root / "dataset_description.json"

    @property
    def bidsignore(self) -> Path:
        return self.root / ".bidsignore"

    @property
    def scans(self) -> Path:
        return self.root / "scans.tsv"

    @property
    def clinical(self) -> Path:
        """Further clinical columns of the scans of ``scans.tsv``, one row per scan."""
        return self.root / "clinical.tsv"

    @property
    def manifest_comparison(self) -> Path:
        """How the images of a manifest were found in the input."""
        return self.root / "manifest_comparison.tsv"

    @property
    def splits(self) -> Path:
        return self.root / "splits.tsv"

    @property
    def failures(self) -> Path:
        return self.root / "failures.tsv"

    @property
    def flagged(self) -> Path:
        """Scans whose registration is in doubt, for a person to decide on; only where the settings ask."""
        return self.root / "flagged.tsv"

    @property
    def partial_sums(self) -> Path:
        """Sums of maps over some scans each, and their table; only where a run keeps no maps of single scans."""
        return self.root / "partial"

    @property
    def partial_table(self) -> Path:
        """Which scan's maps are in which partial sum."""
        return self.partial_sums / "scans.tsv"

    def partial_sum(self, part: str) -> Path:
        """Sum of the maps of some scans, float64 (NPZ)."""
        return self.partial_sums / f"{part}_sums.npz"

    def partial_scans(self, part: str) -> Path:
        """Tables of these scans, one by one, until they are in their places (ZIP)."""
        return self.partial_sums / f"{part}_scans.zip"

    @property
    def explanations(self) -> Path:
        """What ``heatlas explain`` says of the whole group; its maps lie beside those of the run."""
        return self.root / "explanations"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def figures(self) -> Path:
        """Figures of the report as files."""
        return self.root / "figures"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def log(self) -> Path:
        return self.logs / "run.log"

    @property
    def provenance(self) -> Path:
        return self.logs / "provenance.json"

    @property
    def methods_text(self) -> Path:
        return self.logs / "CITATION.md"

    @property
    def bibliography(self) -> Path:
        """Works that the methods text cites (BibTeX)."""
        return self.logs / "CITATION.bib"

    @property
    def digests(self) -> Path:
        """Digests of input files by path, size and time, so that unchanged inputs are not read again."""
        return self.logs / "digests.json"

    def receipt(self, stage: str, unit: str) -> Path:
        return self.logs / "receipts" / stage / f"{unit}.json"

    def traceback(self, stage: str, unit: str) -> Path:
        return self.logs / "failures" / f"{stage}_{unit}.txt"

    @property
    def scratch(self) -> Path:
        """Unfinished work; on the same file system as the run, so that finishing is a rename."""
        return self.root / ".scratch"


@dataclass(frozen=True)
class ExplanationLayout(RunLayout):
    """The same run folder with receipts and failures of its own for ``heatlas explain``.

    A chosen scan that cannot be explained is no failure of the run: its table of failures, its exit code and its
    report stay what they were.
    """

    @property
    def failures(self) -> Path:
        return self.explanations / "failures.tsv"

    def receipt(self, stage: str, unit: str) -> Path:
        return self.explanations / "receipts" / stage / f"{unit}.json"

    def traceback(self, stage: str, unit: str) -> Path:
        return self.explanations / "failures" / f"{stage}_{unit}.txt"

    def regions(self, label: str) -> Path:
        """Sum and density per region of every scan explained in this way."""
        return self.explanations / f"desc-{label}_regions.tsv"

    def bilateral(self, label: str) -> Path:
        """The same per bilateral group."""
        return self.explanations / f"desc-{label}_bilateral.tsv"


@dataclass(frozen=True)
class FoldFiles:
    """Files of one trained model."""

    folder: Path

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def description(self) -> Path:
        """Architecture, input grid, classes, participants, seeds (JSON)."""
        return self.folder / "model.json"

    @property
    def history(self) -> Path:
        """One row per epoch (TSV)."""
        return self.folder / "history.tsv"

    @property
    def predictions(self) -> Path:
        """Predictions of this fold's test participants (TSV)."""
        return self.folder / "predictions.tsv"

    @property
    def predictions_applied(self) -> Path:
        """Predictions of this fold's network for scans outside the contrast (TSV)."""
        return self.folder / "predictions_applied.tsv"
