"""Paths and facts of a folder that ``heatlas export`` wrote: the layout of a MONAI bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.run.layout.scan_files import PathIn

FORMAT = 1
"""Version of the folder."""
SECTION = "heatlas"
"""Key of ``metadata.json`` for what MONAI has no key for."""
EXPORT_AGAIN = "Export the run again (heatlas export RUN FOLDER)."


@dataclass(frozen=True)
class BundleLayout:
    """Paths of one folder."""

    root: Path

    metadata = PathIn("root", "configs/metadata.json")
    inference = PathIn("root", "configs/inference.json")
    """How MONAI builds the network."""
    config = PathIn("root", "configs/config.toml")

    def fold(self, index: int) -> FoldFiles:
        return FoldFiles(self.root / "models" / f"fold-{index}")

    people = PathIn("root", "models/people.tsv")
    """Digests of all people of the run, as a table that ``cohort.without`` takes."""
    mean_controls = PathIn("root", "reference/mean_controls.nii.gz")
    norms = PathIn("root", "reference/norms.tsv")
    card = PathIn("root", "docs/README.md")

    def digested(self) -> list[str]:
        """Files whose digests ``metadata.json`` holds, by their paths in the folder: all others but the card."""
        kept = {self.metadata, self.card}
        return sorted(
            path.relative_to(self.root).as_posix()
            for path in self.root.rglob("*")
            if path.is_file() and path not in kept
        )


@dataclass(frozen=True)
class Bundle:
    """An exported run.

    `preset`: named settings that the run began with. `controls`: control scans in the mean, one per person.
    `mean_digest`: SHA-256 of the file of the mean. `norms_digest`: SHA-256 of the table of norms; empty if there is
    none, or an earlier version exported it. `files`: SHA-256 of each file of `BundleLayout.digested`; none if an
    earlier version exported it. `summary`: what ``heatlas networks`` says of it in a line.
    """

    layout: BundleLayout
    preset: str
    folds: tuple[int, ...]
    controls: int
    mean_digest: str
    norms_digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def networks(self) -> Sequence[FoldFiles]:
        return [self.layout.fold(index) for index in self.folds]

    @property
    def facts(self) -> Mapping[str, Any]:
        """The section of ``metadata.json`` that `open_bundle` reads."""
        facts = {"preset": self.preset, "folds": list(self.folds)}
        norms = {"norms_sha256": self.norms_digest} if self.norms_digest else {}
        reference = {"controls": self.controls, "sha256": self.mean_digest, **norms}
        return {"format": FORMAT, **facts, "reference": reference, "files": self.files, "summary": self.summary}


def open_bundle(folder: Path) -> Bundle | None:
    """The exported run in a folder; None if it is none at all.

    Raises BadInputError if it is a bundle of another program, or of a newer version, or cannot be read.
    """
    layout = BundleLayout(folder)
    if not layout.metadata.is_file():
        return None
    facts = read_json(layout.metadata, EXPORT_AGAIN).get(SECTION)
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int):
        raise BadInputError(
            f"{folder}: a MONAI bundle, but not one of heatlas export. Describe its network with model.network instead."
        )
    if facts["format"] > FORMAT:
        raise BadInputError(
            f"{folder}: was exported by a newer Heatlas (format {facts['format']}; this one reads {FORMAT}). Install "
            "that version, or export the run again with this one."
        )
    try:
        reference, folds = facts["reference"], tuple(int(index) for index in facts["folds"])
        digests = str(reference["sha256"]), str(reference.get("norms_sha256", ""))
        files, summary = dict(facts.get("files", {})), dict(facts.get("summary", {}))
        bundle = Bundle(layout, str(facts["preset"]), folds, int(reference["controls"]), *digests, files, summary)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInputError(f"{layout.metadata}: its section {SECTION} is damaged. {EXPORT_AGAIN}") from error
    return bundle
