"""Images of other kinds than T1-weighted ones: which of them have the T1-weighted image that they need."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.images.headers import check_header
from heatlas.pipeline.run.config.image_kinds import ImageKind
from heatlas.pipeline.run.template_name import DEFAULT_TEMPLATE


def with_anatomy(
    root: Path,
    candidates: Sequence[Candidate],
    kind: ImageKind,
    max_voxel_mm: float,
    space: str = DEFAULT_TEMPLATE,
) -> list[Candidate]:
    """Drop images that can be registered neither by themselves nor through a T1-weighted image of their session.

    Nothing is dropped of a cohort of T1-weighted images, and no image in template space, which needs no `Scan.t1w`.
    """
    if not kind.through_t1w:
        return list(candidates)
    return [_checked(root, one, kind, max_voxel_mm, space) if one.scan.kept else one for one in candidates]


def _checked(root: Path, candidate: Candidate, kind: ImageKind, max_voxel_mm: float, space: str) -> Candidate:
    scan = candidate.scan
    if scan.entry == "template":
        return dataclasses.replace(candidate, scan=dataclasses.replace(scan, t1w=None))
    if kind.normalised:
        return candidate.dropped(
            f"not in template space: a {kind.scan} is used in the space of {space} only (space-{space}, or "
            "--start-at template)"
        )
    if scan.t1w is None:
        return candidate.dropped(
            f"no T1w image of the session: a {kind.scan} is registered through it; add it, or give the image in "
            "template space (--start-at template)"
        )
    problem = check_header(root, scan.t1w, max_voxel_mm).problem
    return candidate if problem is None else candidate.dropped(f"T1w image of the session: {problem}")
