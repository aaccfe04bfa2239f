"""Which images have what they need of their session: the T1-weighted image, and those of further kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.images.headers import check_header
from heatlas.pipeline.run.config.image_kinds import KINDS, ImageKind
from heatlas.pipeline.run.config.settings import CohortConfig
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


def with_further_kinds(
    root: Path, candidates: Sequence[Candidate], config: CohortConfig, space: str = DEFAULT_TEMPLATE
) -> list[Candidate]:
    """Add the images of ``cohort.further_suffixes`` to each scan, and drop scans whose session lacks one.

    All images of a session enter alike: in template space if the first does, else in the space of the scanner.
    """
    if not config.further_suffixes:
        return list(candidates)
    return [_with_further(root, one, config, space) if one.scan.kept else one for one in candidates]


def _with_further(root: Path, candidate: Candidate, config: CohortConfig, space: str) -> Candidate:
    placed, paths = candidate.scan.entry == "template", []
    where = f" in the space of {space}, as its {config.suffix} image is" if placed else ""
    for suffix in config.further_suffixes:
        if KINDS[suffix].normalised and not placed:
            return candidate.dropped(
                f"not in template space: a {KINDS[suffix].scan} is used in the space of {space} only, and then with "
                f"the {config.suffix} image in that space"
            )
        problems: list[str] = []
        for image in candidate.others.get(suffix, ()):
            if image.problem is None and (image.entry == "template") != placed:
                continue
            problem = image.problem or check_header(root, image.path, config.max_voxel_mm).problem
            if problem is None:
                paths.append(image.path)
                break
            problems.append(problem)
        else:
            if problems:
                return candidate.dropped(f"{suffix} image of the session: {problems[0]}")
            return candidate.dropped(
                f"no {suffix} image of the session{where}: networks see {suffix} beside {config.suffix} "
                "(cohort.further_suffixes)"
            )
    return dataclasses.replace(candidate, scan=dataclasses.replace(candidate.scan, further=tuple(paths)))
