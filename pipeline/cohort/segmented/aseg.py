"""Volumes from ``stats/aseg.stats`` of FreeSurfer or FastSurfer.

The file is text: ``# Measure`` lines (the intracranial volume among them) and a table of structures whose columns ``#
ColHeaders`` names. Structures are identified by FreeSurfer's label number (17 and 53: left and right hippocampus). The
intracranial volume is EstimatedTotalIntraCranialVol, or IntraCranialVol before FreeSurfer 5.3.
"""

from __future__ import annotations

import re
from pathlib import Path

from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.segmented.volumes import Volumes, checked
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.regular_files import read_regular

LEFT_HIPPOCAMPUS, RIGHT_HIPPOCAMPUS = 17, 53
STATS_FILES = ("aseg.stats", "aseg+DKT.VINN.stats", "aseg+DKT.stats")
"""In order of preference; the others are those of FastSurfer's segmentation without its surface stream."""

_INTRACRANIAL = ("EstimatedTotalIntraCranialVol", "IntraCranialVol")
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)")


def read_aseg(path: Path) -> Volumes:
    """Hippocampal and intracranial volumes of one subject in mm³; the source names the program and its version."""
    try:
        text = read_regular(path).decode("utf-8", errors="replace")
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror}). Check the path and permissions.") from error
    structures = structure_volumes(text)
    if not {LEFT_HIPPOCAMPUS, RIGHT_HIPPOCAMPUS} <= set(structures):
        raise BadInputError(
            f"{path}: no volume of both hippocampi (SegId {LEFT_HIPPOCAMPUS} and {RIGHT_HIPPOCAMPUS}); the file is cut "
            "short or of another segmentation. Run the segmentation of this subject again."
        )
    return checked(
        structures[LEFT_HIPPOCAMPUS],
        structures[RIGHT_HIPPOCAMPUS],
        None,
        intracranial_volume(text),
        f"{path.name} ({_program(path, text)})",
    )


def structure_volumes(text: str) -> dict[int, float]:
    """Volume in mm³ by label number; rows without numbers are skipped.

    >>> header = "# ColHeaders Index SegId NVoxels Volume_mm3 StructName"
    >>> structure_volumes(f"{header}{chr(10)} 9 17 4166 3987.2 Left-Hippocampus")
    {17: 3987.2}
    """
    columns: list[str] = []
    found = {}
    for line in text.splitlines():
        if line.startswith("# ColHeaders"):
            columns = line.split()[2:]
        elif columns and not line.startswith("#"):
            cells = dict(zip(columns, line.split(), strict=False))
            label, volume = values.count(cells.get("SegId")), values.positive(cells.get("Volume_mm3"))
            if label is not None and volume is not None:
                found[label] = volume
    return found


def intracranial_volume(text: str) -> float | None:
    """Intracranial volume in mm³ of the ``# Measure`` lines.

    >>> intracranial_volume("# Measure EstimatedTotalIntraCranialVol, eTIV, Estimated TIV, 1500000.5, mm^3")
    1500000.5
    """
    measures = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.removeprefix("# Measure").split(",")]
        if line.startswith("# Measure") and len(parts) >= 5 and parts[-1] == "mm^3":
            measures[parts[0]] = values.positive(parts[-2])
    return next((measures[name] for name in _INTRACRANIAL if measures.get(name) is not None), None)


def _program(path: Path, text: str) -> str:
    """FreeSurfer or FastSurfer, with its version where the header or ``scripts/build-stamp.txt`` has it."""
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    scripts = path.parent.parent / "scripts"
    stamp = scripts / "build-stamp.txt"
    # such as freesurfer-linux-centos7_x86_64-7.4.1-20230614-7eb8460
    build = stamp.read_text(encoding="utf-8", errors="replace") if stamp.is_file() else ""
    fast = "fastsurfer" in header.lower() or "+DKT" in path.name or (scripts / "deep-seg.log").is_file()
    name = "FastSurfer" if fast else "FreeSurfer"
    named = re.search(rf"{name}[^\n]*", header, re.IGNORECASE)
    after_system = "" if fast else build.split("x86_64", 1)[-1]
    version = _VERSION.search(named[0] if named else "") or _VERSION.search(after_system)
    return f"{name} {version[1]}" if version else f"{name}, version unknown"
