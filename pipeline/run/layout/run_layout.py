"""Paths in a run folder, which is a BIDS derivative.

Only this module and `pipeline.run.layout.scan_files` construct these paths.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, KINDS, T1W, template_name
from heatlas.pipeline.run.documents import read_toml
from heatlas.pipeline.run.layout.scan_files import PathIn, ScanFiles, space_and_resolution

LONGEST_LABEL = 96
"""Characters of a label in the name of a file, which may have 255 bytes."""


def label_in_file_name(label: str) -> str:
    """Any text as part of the name of a file: what names do not allow is written as in a URL.

    A long text is cut, and a digest tells it from others that begin alike.

    Examples
    --------
    >>> label_in_file_name("AD/CN")
    'AD%2FCN'
    >>> label_in_file_name("normal at all visits " * 9)
    'normal%20at%20all%20visits%20normal%20at%20all%20visits%20normal%20at%20all%20visits%20-23bc576e'
    """
    whole = quote(label, safe="")
    if len(whole) <= LONGEST_LABEL:
        return whole
    digest, kept = sha256(label.encode()).hexdigest()[:8], label
    while len(quote(kept, safe="")) > LONGEST_LABEL - 9:
        kept = kept[:-1]
    return f"{quote(kept, safe='')}-{digest}"


class ImageNames(NamedTuple):
    """What the names of the registered images of a run hold: T1-weighted ones in a folder without settings."""

    suffix: str = T1W.suffix
    label: str = ""
    further: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunLayout:
    """Paths of one run folder."""

    root: Path

    config = PathIn("root", "config.toml")

    @functools.cached_property
    def template(self) -> str:
        """Template as this run's own settings name it; the default before it has any."""
        try:
            return str(read_toml(self.config)["registration"]["template"])
        except (OSError, ValueError, KeyError, TypeError):  # no settings yet; damaged ones are refused by `read_config`
            return DEFAULT_TEMPLATE

    @property
    def space(self) -> str:
        return template_name(self.template)

    group = PathIn("root", "group")

    def statistics(self, name: str) -> Path:
        return self.group / "statistics" / f"{name}.tsv"

    def group_map(self, group: str, map_name: str) -> Path:
        """Mean map over a group (``AD``, ``CN``, ``TP`` ...).

        Labels may be any text: `label_in_file_name`.
        """
        name = label_in_file_name(group)
        return self.group / "maps" / f"group-{name}_space-{self.space}_desc-{map_name}_relevance.nii.gz"

    def voxel_map(self, source: str, statistic: str) -> Path:
        """A test voxel by voxel (``t``, ``tThresholded``, ``oneMinusPFwe``, ``oneMinusPTfce``) of images or a map."""
        first, *others = source.split("_")  # BIDS has no underscores within a label
        label = first + "".join(word.capitalize() for word in others)
        return self.group / "voxelwise" / f"group_space-{self.space}_desc-{label}_stat-{statistic}_statmap.nii.gz"

    def scan(self, participant_id: str, session_id: str | None, resolution_mm: float) -> ScanFiles:
        names = self.image_names
        return ScanFiles(
            self.root, participant_id, session_id, resolution_mm, None, names.suffix, names.label, names.further,
            self.template,
        )  # fmt: skip

    @property
    def image_names(self) -> ImageNames:
        """What the names of the registered images hold, as the settings of the run have it."""
        try:
            status = self.config.stat()
        except OSError:
            return ImageNames()
        return _image_names(self.config, status.st_mtime_ns, status.st_size)

    def fold(self, index: int, repeat: int | None = None) -> FoldFiles:
        """Network of a fold; its first training by default, further repeats have subfolders."""
        folder = self.root / "models" / f"fold-{index}"
        return FoldFiles(folder if repeat in (None, 1) else folder / f"repeat-{repeat}")

    @property
    def backbone(self) -> FoldFiles:
        """Network that `heatlas pretrain` made without labels."""
        return FoldFiles(self.root / "models" / "backbone")

    kept_backbone = PathIn("root", "models/kept_backbone")
    """Copy of what the probes of a run stand on, as a folder that ``heatlas run --backbone`` can be given."""
    lock = PathIn("root", ".heatlas.lock")
    """The process working in this folder; exists only while it works."""
    dataset_description = PathIn("root", "dataset_description.json")
    bidsignore = PathIn("root", ".bidsignore")
    readme = PathIn("root", "README")

    def mask_sidecar(self, resolution_mm: float) -> Path:
        """What the brain masks of all scans are: BIDS lets a file at the top speak for those below."""
        return self.root / f"{space_and_resolution(self.space, resolution_mm)}_desc-brain_mask.json"

    @property
    def tables(self) -> Path:
        """Folder that the declared tables lie in, under the names they have there."""
        return self.root

    @property
    def sources(self) -> tuple[Path, ...]:
        """Files that any table written here rests on; a table whose sources have changed since is out of date."""
        return ()

    failures = PathIn("tables", "failures.tsv")
    partial_sums = PathIn("root", "partial")
    """Sums of maps over some scans each, and their table; only if a run keeps no maps of single scans."""

    def partial_sum(self, part: str) -> Path:
        """Sum of the maps of some scans, float64 (NPZ)."""
        return self.partial_sums / f"{part}_sums.npz"

    def partial_scans(self, part: str) -> Path:
        """Tables of these scans until they are moved to their final place (ZIP)."""
        return self.partial_sums / f"{part}_scans.zip"

    explanations = PathIn("root", "explanations")
    """Group tables of ``heatlas explain``; its maps lie beside those of the run."""
    evaluation = PathIn("root", "evaluation")
    """All that ``heatlas evaluate`` writes."""

    def compared_map(self, comparison: str, training: str) -> Path:
        """Where the maps of a training lie: mean over participants of their positive attribution, each summing to 1."""
        return self.evaluation / "maps" / f"{comparison}_{training}.nii.gz"

    report = PathIn("root", "report.html")
    figures = PathIn("root", "figures")
    """Figures of the report as files."""
    logs = PathIn("root", "logs")
    log = PathIn("logs", "run.log")
    settings = PathIn("logs", "settings.toml")
    """``config.toml`` as the run wrote it, to detect later changes."""
    parsl_logs = PathIn("logs", "parsl")
    """Files of Parsl; they exist only while it works, and after a failed run."""
    provenance = PathIn("logs", "provenance.json")
    methods_text = PathIn("logs", "CITATION.md")
    bibliography = PathIn("logs", "CITATION.bib")
    """Works that the methods text cites (BibTeX)."""
    digests = PathIn("logs", "digests.json")
    """Digests of input files by path, size and time, so that unchanged inputs are not read again."""

    def receipt(self, stage: str, unit: str) -> Path:
        return self.logs / "receipts" / stage / f"{unit}.json"

    def traceback(self, stage: str, unit: str) -> Path:
        return self.logs / "failures" / f"{stage}_{unit}.txt"

    scratch = PathIn("root", ".scratch")
    """Unfinished work; on the same file system as the run, so that finishing is a rename."""
    kept_volumes = PathIn("root", ".volumes")
    """Uncompressed scans for training; they exist only while a command works."""


@functools.lru_cache(maxsize=16)
def _image_names(config: Path, changed_ns: int, size: int) -> ImageNames:
    """The names in settings that were last changed then; those who use the settings refuse damaged ones."""
    try:
        cohort = read_toml(config).get("cohort", {})
    except (OSError, ValueError):
        return ImageNames()
    suffix, further = str(cohort.get("suffix", T1W.suffix)), cohort.get("further_suffixes", ())
    if suffix not in KINDS or not all(kind in KINDS for kind in further):
        return ImageNames()
    return ImageNames(suffix, str(cohort.get("label", "")), tuple(further))


@dataclass(frozen=True)
class ParticipantLayout(RunLayout):
    """The same run folder for a job of ``heatlas-bids BIDS OUT participant``, while others work in it.

    Images of its people, and receipts of the units that made them, lie where the group finds them. Its tables,
    failures, log and unfinished work are its own; the group makes the tables of everybody.

    `job`: the first of its people.
    """

    job: str = ""

    logs = PathIn("root", "logs/participant/{0.job}")
    scratch = PathIn("root", ".scratch/{0.job}")

    @property
    def tables(self) -> Path:
        return self.logs

    def receipt(self, stage: str, unit: str) -> Path:
        return super().receipt(stage, unit) if stage == "steps" else RunLayout(self.root).receipt(stage, unit)


@dataclass(frozen=True)
class ExplanationLayout(RunLayout):
    """The same run folder with separate receipts and failures for ``heatlas explain``.

    A scan that cannot be explained is not a failure of the run: its failures, exit code and report do not change.
    """

    failures = PathIn("explanations", "failures.tsv")

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
class EvaluationLayout(RunLayout):
    """The same run folder with separate networks, receipts and failures for ``heatlas evaluate``.

    `networks`: which networks `fold` names: those of the run (empty), or networks trained for the evaluation. `images`:
    which registered scans `scan` names: those of the run (empty), or copies made for the evaluation. `repeat`: training
    of each fold of the run that `fold` names unless told another. `tissue`: voxels that are replaced in every scan.
    """

    networks: str = ""
    images: str = ""
    repeat: int = 1
    tissue: Path | None = None

    failures = PathIn("evaluation", "failures.tsv")
    log = PathIn("evaluation", "evaluation.log")

    @property
    def sources(self) -> tuple[Path, ...]:
        """What the run has of its answers and its sums over regions: other networks or maps change them."""
        files = (self.group / f"{name}.tsv" for name in ("predictions", "relevance_bilateral"))
        return tuple(filter(Path.is_file, files))

    def receipt(self, stage: str, unit: str) -> Path:
        return self.evaluation / "receipts" / stage / f"{unit}.json"

    def traceback(self, stage: str, unit: str) -> Path:
        return self.evaluation / "failures" / f"{stage}_{unit}.txt"

    def fold(self, index: int, repeat: int | None = None) -> FoldFiles:
        if not self.networks:
            return super().fold(index, self.repeat if repeat is None else repeat)
        return FoldFiles(self.evaluation / "models" / self.networks / f"fold-{index}")

    def scan(self, participant_id: str, session_id: str | None, resolution_mm: float) -> ScanFiles:
        files = super().scan(participant_id, session_id, resolution_mm)
        root = self.evaluation / "images" / self.images if self.images else self.root
        return replace(files, root=root, tissue=self.tissue)

    def grid_file(self, unit: str, name: str) -> Path:
        """Scores (TSV), invariance (TSV) or pictures (NPZ) of one grid."""
        return self.evaluation / "grids" / f"{unit}_{name}.{'npz' if name == 'pictures' else 'tsv'}"

    aggregated_maps = PathIn("evaluation", "aggregated_maps.npz")
    """Arrays of the AggAtt figure (NPZ)."""
    evaluation_figures = PathIn("evaluation", "figures")

    def scores_of_scan(self, cohort: str, name: str) -> Path:
        """Scores of each map of one scan, one row per network and map (TSV)."""
        return self.evaluation / "scans" / cohort / f"{name}_scores.tsv"

    def sides_of_scan(self, cohort: str, name: str) -> Path:
        """What each side of a region, and both, are worth in one scan (TSV)."""
        return self.evaluation / "scans" / cohort / f"{name}_sides.tsv"

    def sums_of_scan(self, cohort: str, name: str) -> Path:
        """Sums over regions of each map of one scan (NPZ)."""
        return self.evaluation / "scans" / cohort / f"{name}_sums.npz"


@dataclass(frozen=True)
class FoldFiles:
    """Files of one trained model."""

    folder: Path

    weights = PathIn("folder", "model.safetensors")
    description = PathIn("folder", "model.json")
    """Architecture, input grid, classes, participants, seeds (JSON)."""
    history = PathIn("folder", "history.tsv")
    """One row per epoch (TSV)."""
    events = PathIn("folder", "events")
    """The same for TensorBoard, written while a network is trained, if it is installed."""
    predictions = PathIn("folder", "predictions.tsv")
    """Predictions of this fold's test participants (TSV)."""
    measures = PathIn("folder", "measures.tsv")
    """How well the maps of this fold's test participants keep to a mask (TSV)."""

    def mean_map(self, training: str) -> Path:
        """Mean map of this fold's test participants, by one of the trainings that are compared."""
        return self.folder / f"mean-map_{training}.nii.gz"

    predictions_applied = PathIn("folder", "predictions_applied.tsv")
    """Predictions of this fold's network for scans outside the contrast (TSV)."""
