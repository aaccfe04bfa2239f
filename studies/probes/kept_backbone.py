"""The backbone of a run's probes, kept in the folder of the run: what is trained later does not need its own folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.studies.probes.body import backbone_files
from heatlas.studies.probes.settings import ProbeConfig

_WEIGHTS = "weights"


def keep_backbone(layout: RunLayout, settings: ProbeConfig, folds: Iterable[int], digests: DigestCache) -> None:
    """Copy the backbone of every fold into the run, unless it is there.

    One that was pre-trained is copied once, a file of weights under a name of its own.

    Raises UsageError if there is none (`backbone_files`).
    """
    wanted = _copies(layout.kept_backbone, settings.backbone, folds)
    for path in layout.kept_backbone.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()  # of another backbone that the run stood on before
    for target, source in wanted.items():
        if target != source and digests.digest(target) != digests.digest(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.tmp")
            shutil.copyfile(source, temporary)
            temporary.replace(target)


def _copies(kept: Path, backbone: str, folds: Iterable[int]) -> dict[Path, Path]:
    """Source of each copy."""
    if Path(backbone).is_file():
        return {kept / f"{_WEIGHTS}{Path(backbone).suffix}": Path(backbone)}
    found: dict[Path, Path] = {}
    for fold in folds:
        source = backbone_files(backbone, fold)
        target = FoldFiles(kept / source.folder.relative_to(backbone))
        found |= {target.weights: source.weights, target.description: source.description}
    return found


def on_kept_backbone(settings: ProbeConfig, layout: RunLayout) -> ProbeConfig:
    """The settings of the probes of a finished run with the copy of their backbone; unchanged where it has none."""
    kept = layout.kept_backbone
    copies = [*kept.glob(f"{_WEIGHTS}.*"), *(kept for _ in kept.glob("models/*/model.json"))]
    return replace(settings, backbone=str(copies[0])) if copies and settings.backbone else settings
