"""Processed images: which of them can be used, and where they enter the pipeline.

By name and sidecar, so that `heatlas check` reads no voxels, an image enters as ``template`` (``space-`` of the
template, and a grid over it: not registered again), as ``brain`` (``desc-brain``, or SkullStripped in its sidecar: no
brain extraction), or as ``scan``. Registration then verifies every image.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.spaces import Grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.images.files import image_stem, is_image
from heatlas.pipeline.cohort.images.headers import Orientation, choose_orientation, read_raw_header
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, KINDS, T1W, ImageKind, template_name
from heatlas.pipeline.run.documents import LARGEST_JSON, read_regular

Entry = Literal["scan", "brain", "template"]
ENTRIES: tuple[Entry, ...] = ("scan", "brain", "template")

NATIVE_SPACES = frozenset({"T1w", "orig", "individual", "scanner", "native"})
BRAIN_DESCRIPTIONS = frozenset({"brain", "skullstripped", "stripped", "bet", "extracted"})
SCAN_DESCRIPTIONS = frozenset({"preproc", "n4", "biascorr", "biascorrected", "unifized", "conform", "defaced"})
"""Names of processed images that are still of their kind; any other ``desc-`` may be a map or a mask."""

BIDS_NAME = re.compile(r"(sub-[A-Za-z0-9]+)(?:_(ses-[A-Za-z0-9]+))?((?:_[a-z]+-[A-Za-z0-9+]+)*)(?:_([A-Za-z0-9]+))?")
"""Name of a file without its extension: participant, session, other entities, suffix."""

MAX_SHARE_OUTSIDE = 0.01
"""Share of the template's brain that an image in its space may miss."""


def entry_of(
    entities: Mapping[str, str],
    skull_stripped: bool | None,
    kind: ImageKind = T1W,
    template: str = DEFAULT_TEMPLATE,
) -> tuple[Entry, str | None]:
    """Where an image enters (scan, brain or template), and why it cannot be used, if so.

    `template` is the name of the one whose space images may be in. ``SkullStripped`` of the sidecar takes
    precedence over the name.

    >>> entry_of({"run": "1"}, None), entry_of({"desc": "brain"}, None), entry_of({}, True)
    (('scan', None), ('brain', None), ('brain', None))
    >>> entry_of({"space": "MNI152NLin2009cAsym", "res": "1", "desc": "preproc"}, None)
    ('template', None)
    >>> entry_of({"space": "MNI152NLin6Asym"}, None)[1]
    'in another space than MNI152NLin2009cAsym: space-MNI152NLin6Asym; give the image in the space of the scan'
    """
    space, description = entities.get("space"), entities.get("desc")
    accepted = BRAIN_DESCRIPTIONS | SCAN_DESCRIPTIONS | kind.descriptions
    if description is not None and description.lower() not in accepted:
        return "scan", f"not known as a {kind.scan}: desc-{description}; known are {', '.join(sorted(accepted))}"
    if space == template:
        return "template", None
    if space is not None and space not in NATIVE_SPACES:
        return "scan", f"in another space than {template}: space-{space}; give the image in the space of the scan"
    is_brain = description is not None and description.lower() in BRAIN_DESCRIPTIONS
    return ("brain" if (is_brain if skull_stripped is None else skull_stripped) else "scan"), None


def entry_of_file(
    path: Path, kind: ImageKind = T1W, template: str = DEFAULT_TEMPLATE, label: str = ""
) -> tuple[Entry, str | None, dict[str, Any]]:
    """`entry_of` a file of any name, and its sidecar; a name of another kind or tissue is a problem."""
    match = BIDS_NAME.fullmatch(image_stem(path.name))
    entities = entities_of(match[3]) if match else {}
    suffix = (match[4] or "") if match else ""
    if suffix in KINDS and suffix != kind.suffix:
        return "scan", f"named as a {KINDS[suffix].scan}, and cohort.suffix is {kind.suffix}", {}
    if label and entities.get("label", label) != label:
        return "scan", f"another map than cohort.label: label-{entities['label']}", {}
    try:
        sidecar = read_sidecar(path)
    except ValueError as error:
        return "scan", f"unreadable sidecar: {error}", {}
    return *entry_of(entities, sidecar.get("SkullStripped"), kind, template), sidecar


def entities_of(text: str) -> dict[str, str]:
    """The entities in a name or in a part of it: ``acq-fast_run-1_``."""
    return dict(part.split("-", 1) for part in text.split("_") if "-" in part)


def read_sidecar(image: Path) -> dict[str, Any]:
    """JSON sidecar beside an image, empty without one; a malformed one raises ValueError."""
    path = image.with_name(image.name.removesuffix(".gz").rpartition(".")[0] + ".json")
    try:
        content = json.loads(read_regular(path, LARGEST_JSON).decode("utf-8-sig"), object_pairs_hook=_once)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        detail = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"sidecar {path.name} is not readable as JSON: {detail}") from error
    if not isinstance(content, dict):
        raise ValueError(f"sidecar {path.name} is not a JSON object")
    if not isinstance(content.get("SkullStripped"), bool | None):
        raise ValueError(f"sidecar {path.name}: SkullStripped must be true or false, not {content['SkullStripped']!r}")
    return content


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a field that appears twice with different values is an error."""
    content: dict[str, Any] = {}
    for name, value in pairs:
        if content.setdefault(name, value) != value:
            raise ValueError(f"{name} appears twice with different values")
    return content


def with_entries(candidates: Sequence[Candidate], start_at: str) -> tuple[list[Candidate], list[str]]:
    """Set where images enter: as recognised, or as `CohortConfig.start_at` says.

    If some are recognised as that, all others are dropped; if none is, all are treated as such.
    """
    if start_at == "auto":
        return list(candidates), []
    entries = Counter(candidate.scan.entry for candidate in candidates if candidate.scan.kept)
    if entries[start_at]:

        def problem(candidate: Candidate) -> str | None:
            entry = candidate.scan.entry
            return None if entry == start_at else f"enters as {entry}, and --start-at is {start_at}"

        text = f"--start-at {start_at}: {entries[start_at]} images are used, all others dropped"
        return [candidate.dropped_for(problem) for candidate in candidates], [text]
    treated = []
    for candidate in candidates:
        others = {
            suffix: [dataclasses.replace(image, entry=start_at) for image in images]
            for suffix, images in candidate.others.items()
        }
        treated.append(dataclasses.replace(candidate.with_scan(entry=start_at), others=others))
    return treated, [
        f"--start-at {start_at}: no image is recognised as such, so all {entries.total()} are treated as such"
    ]


def entry_notes(candidates: Sequence[Candidate], template: str = DEFAULT_TEMPLATE) -> list[str]:
    """A note on where the images that are used enter, if not all enter as scans."""
    entries = Counter(candidate.scan.entry for candidate in candidates if candidate.scan.kept)
    if set(entries) <= {"scan"}:
        return []
    meaning = {"scan": "as scans", "brain": "brain-extracted", "template": f"registered to {template_name(template)}"}
    counts = ", ".join(f"{entries[entry]} {meaning[entry]}" for entry in ENTRIES if entries[entry])
    mixed = "; networks may learn the origin of the images instead of the classes (--start-at)"
    return [f"images enter {counts}{mixed * (len(entries) > 1)}"]


def over_template(root: Path, candidates: Sequence[Candidate], template: str = DEFAULT_TEMPLATE) -> list[Candidate]:
    """Drop images in template space whose grid does not cover its brain; only headers are read."""

    def problem(candidate: Candidate) -> str | None:
        if candidate.scan.entry != "template":
            return None
        if not is_image(candidate.scan.file):
            return "not in template space: only NIfTI and MGZ images can be; give the scan itself"
        header = read_raw_header(root / candidate.scan.file)
        orientation = choose_orientation(header)
        if not isinstance(orientation, Orientation):
            return orientation
        i, j, k = (int(side) for side in header.get_data_shape()[:3])
        return template_space_problem(Grid((i, j, k), orientation.affine), template)

    return [candidate.dropped_for(problem) for candidate in candidates]


def template_space_problem(grid: Grid, template: str = DEFAULT_TEMPLATE) -> str | None:
    """Why a grid cannot be that of an image in template space; None if it covers the template's brain."""
    voxels = grid.to_voxel(_template_brain_mm(template))
    outside = ((voxels < -0.5) | (voxels > np.array(grid.shape) - 0.5)).any(axis=1).mean()
    if outside <= MAX_SHARE_OUTSIDE:
        return None
    return (
        f"not in the space of {template_name(template)}: its grid misses {outside:.0%} of the template's brain "
        f"({grid}); give the scan itself, to be registered here"
    )


@functools.cache
def _template_brain_mm(template: str) -> NDArray[np.float64]:
    """(N, 3) world coordinates of the template's brain, every 4 mm."""
    brain = load_template(4.0, template)
    return brain.grid.to_world(np.argwhere(brain.brain_mask))
