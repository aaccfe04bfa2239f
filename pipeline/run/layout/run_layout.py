"""Where everything in a run folder lies; a run is a BIDS derivative.

With `pipeline.run.layout.group_layout` and `pipeline.run.layout.scan_files` the only modules that spell these paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.run.layout.group_layout import GroupFiles
from pipeline.run.layout.scan_files import ScanFiles


@dataclass(frozen=True)
class RunLayout(GroupFiles):
    """Paths of one run folder."""

    def scan(self, participant_id: str, session_id: str | None, resolution_mm: float) -> ScanFiles:
        return ScanFiles(self.root, participant_id, session_id, resolution_mm)

    def fold(self, index: int, repeat: int = 1) -> FoldFiles:
        """Network of a fold; of further repeats of its training in folders of their own."""
        folder = self.root / "models" / f"fold-{index}"
        return FoldFiles(folder if repeat == 1 else folder / f"repeat-{repeat}")

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def lock(self) -> Path:
        """Who is at work in this folder; there only as long as someone is."""
        return self.root / ".heatlas.lock"

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
    def settings(self) -> Path:
        """``config.toml`` as the run wrote it, to see whether it was changed since."""
        return self.logs / "settings.toml"

    @property
    def parsl_logs(self) -> Path:
        """Parsl's own files; there only while it works, and after a run that went wrong."""
        return self.logs / "parsl"

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
