"""DICOM series in an input folder, by their headers alone.

A *series* is the slices of one image, with the same SeriesInstanceUID. Files are grouped by it, whatever their names
and folders. Pixels are not read here; `pipeline.cohort.images.conversion` converts a series to NIfTI.

Headers hold names, birth dates and free text that may contain either. So only the fields of `_TAGS` are read, and text
other than words of fixed lists never leaves this module: messages name a series by its number and size.

Slices make one complete volume if they are evenly spaced: the position of a slice (centre of its first pixel, mm) is
projected on the normal of its plane (DICOM PS3.3, C.7.6.2).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.errors import InvalidDicomError
from pydicom.uid import UID

from heatlas.pipeline.cohort.images.files import following_links, link_problem
from heatlas.pipeline.cohort.images.headers import by, too_thick
from heatlas.pipeline.run.documents import irregular_kind

_TAGS = (
    *("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "SeriesNumber", "InstanceNumber", "Modality", "PatientID"),
    *("SeriesDescription", "ProtocolName", "BodyPartExamined", "MagneticFieldStrength", "EchoTime", "AcquisitionDate"),
    *("Rows", "Columns", "BitsAllocated", "SamplesPerPixel", "NumberOfFrames", "PixelSpacing"),
    *("ImagePositionPatient", "ImageOrientationPatient", "ImagesInAcquisition"),
)
_BODY_PARTS = (
    *("ABDOMEN", "ANKLE", "ARM", "BREAST", "CHEST", "CSPINE", "ELBOW", "EXTREMITY", "FOOT", "HAND", "HEART", "HIP"),
    *("KNEE", "LEG", "LIVER", "LSPINE", "PELVIS", "PROSTATE", "SHOULDER", "SPINE", "THIGH", "TSPINE", "WRIST"),
)
"""Body parts (DICOM PS3.16, annex L) other than the head."""
_UNCOMPRESSED = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")


@dataclass(frozen=True)
class DicomSeries:
    """One series in one folder."""

    files: tuple[str, ...]  # paths relative to the input folder, in order of name; a slice stored twice is named once
    number: int | None  # SeriesNumber
    size: str  # slices and matrix in words
    problem: str | None  # why it cannot be used; details follow a colon
    # Sequence according to the header, to recognise a T1-weighted one; free text that must never be written anywhere
    description: str = ""
    patient: str = ""  # PatientID, to compare with the folder's participant; must never be written anywhere
    field_strength: float | None = None  # tesla
    date: date | None = None  # of the acquisition

    @property
    def name(self) -> str:
        """The series as messages call it.

        >>> DicomSeries(("a/1.dcm",), 3, "170 slices of 256 x 256", None).name
        'series 3 (170 slices of 256 x 256)'
        """
        return f"series {'without a number' if self.number is None else self.number} ({self.size})"


def read_folder(root: Path, folder: str, names: Sequence[str], max_voxel_mm: float) -> list[DicomSeries]:
    """The image series of one folder in order of number; if no file can be read, one series says so."""
    by_series: dict[str, dict[str, Slice]] = {}
    headers: dict[str, Any] = {}
    damaged: dict[str, str] = {}
    for name in sorted(names):
        path = name if folder == "." else f"{folder}/{name}"
        header = _read(root, path)
        if isinstance(header, str):
            damaged[path] = header
            continue
        if not header.get("Rows"):
            continue
        uid = str(header.get("SeriesInstanceUID", ""))
        headers.setdefault(uid, header)
        part = Slice(
            path=path,
            shape=(int(header.Rows), int(header.get("Columns") or 0)),
            position=_numbers(header, "ImagePositionPatient", 3),
            orientation=_numbers(header, "ImageOrientationPatient", 6),
            spacing=_numbers(header, "PixelSpacing", 2),
            echo_time=_number(header, "EchoTime"),
            frames=int(header.get("NumberOfFrames") or 1),
        )
        by_series.setdefault(uid, {}).setdefault(str(header.get("SOPInstanceUID", path)), part)
    if not by_series and damaged:
        return [DicomSeries(tuple(damaged), None, f"{len(damaged)} files", _damage(damaged))]
    series_list = [_series(headers[uid], list(of.values()), damaged, max_voxel_mm) for uid, of in by_series.items()]
    return sorted(series_list, key=lambda series: (series.number is None, series.number or 0, series.files))


def series_of(root: Path, image: str, names: Sequence[str], max_voxel_mm: float) -> DicomSeries | None:
    """The series that a DICOM file belongs to; None if it is no longer in its folder."""
    folder = image.rpartition("/")[0] or "."
    with following_links(True):  # the series was chosen, so its links were judged
        series = read_folder(root, folder, names, max_voxel_mm)
    return next((candidate for candidate in series if image in candidate.files), None)


def _read(root: Path, path: str) -> Any:
    """The used part of a file's header, or why it cannot be read."""
    problem = link_problem(root, path)
    if problem is not None:
        return problem
    try:
        if irregular_kind(root / path) is not None:
            return "not a file"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning quotes the invalid value, which may be a name
            with (root / path).open("rb") as handle:
                header = pydicom.dcmread(handle, stop_before_pixels=True, force=True, specific_tags=list(_TAGS))
                read, size = handle.tell(), os.fstat(handle.fileno()).st_size
            if "SOPClassUID" not in header and "SeriesInstanceUID" not in header:
                return "not a DICOM file"
            for element in header:  # values are decoded only when they are asked for
                _ = element.value
            return _truncation(header, size - read) or header
    except PermissionError:
        return "no permission to read it"
    except (InvalidDicomError, OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError):
        return "not a readable DICOM file"


def _truncation(header: Any, rest: int) -> str | None:
    """Whether a file ends too early: in its header, or, if uncompressed, before the last pixel."""
    if not header.get("Rows"):
        kind = UID(str(header.get("SOPClassUID") or ""))  # a UID without a name is cut off or unknown
        return "truncated in its header" if kind.name == kind or "Image Storage" in kind.name else None
    syntax = getattr(header, "file_meta", {}).get("TransferSyntaxUID", _UNCOMPRESSED[0])
    if str(syntax) not in _UNCOMPRESSED:
        return None if rest else "truncated: no pixels"
    bits = int(header.get("BitsAllocated") or 0) * int(header.get("SamplesPerPixel") or 1)
    pixels = int(header.get("Rows") or 0) * int(header.get("Columns") or 0) * int(header.get("NumberOfFrames") or 1)
    return "truncated: fewer bytes than its pixels need" if rest < pixels * bits // 8 else None


def _series(header: Any, slices: list[Slice], damaged: dict[str, str], max_voxel_mm: float) -> DicomSeries:
    slices.sort(key=lambda part: part.path)
    number, announced = _number(header, "SeriesNumber"), _number(header, "ImagesInAcquisition")
    count = sum(part.frames for part in slices)
    tesla = _number(header, "MagneticFieldStrength") or 0.0
    problem = (
        _kind_problem(header)
        or (_damage(damaged) if damaged else None)
        or stack_problem(slices, None if announced is None else int(announced), max_voxel_mm)
    )
    return DicomSeries(
        files=tuple(part.path for part in slices),
        number=None if number is None else int(number),
        size=f"{count} slice{'s' if count != 1 else ''} of {slices[0].shape[0]} x {slices[0].shape[1]}",
        problem=problem,
        description=" ".join(str(header.get(name) or "") for name in ("SeriesDescription", "ProtocolName")),
        patient=str(header.get("PatientID") or ""),
        field_strength=round(tesla / 1e4 if tesla > 100 else tesla, 1) if tesla > 0 else None,  # 15000 is in gauss
        date=_date(header),
    )


def _kind_problem(header: Any) -> str | None:
    """Why a series is not an MR image of a head; None also if its header does not say."""
    modality = str(header.get("Modality") or "")
    if modality != "MR":
        word = modality if modality in ("CT", "PT", "NM", "US", "OT", "SC", "CR", "DX", "XA") else "unknown"
        return f"not an MR image by its DICOM header: modality {word}"
    body_part = str(header.get("BodyPartExamined") or "").upper().replace(" ", "")
    if body_part in _BODY_PARTS:
        return f"not a head by its DICOM header: body part {body_part}"
    return None


def _damage(damaged: dict[str, str]) -> str:
    path, why = next(iter(damaged.items()))
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return f"DICOM files in its folder that cannot be read: {path}{more} ({why}); download the series again"


def _numbers(header: Any, name: str, count: int) -> tuple[float, ...] | None:
    try:
        values = tuple(float(value) for value in header.get(name) or ())
    except (TypeError, ValueError):
        return None
    return values if len(values) == count else None


def _number(header: Any, name: str) -> float | None:
    try:
        return float(header.get(name))
    except (TypeError, ValueError):
        return None


def _date(header: Any) -> date | None:
    try:
        return datetime.strptime(str(header.get("AcquisitionDate") or "")[:8], "%Y%m%d").date()
    except ValueError:
        return None


MIN_SLICES = 16
"""A series with fewer is a localizer or a fragment."""
SPACING_TOLERANCE = 0.25
"""Largest deviation of a distance from the slice spacing, as a share; a missing slice doubles the distance."""
SAME_DIRECTION = 1e-3


@dataclass(frozen=True)
class Slice:
    """Geometry of one DICOM file; lengths in mm, None where missing in the header."""

    path: str
    shape: tuple[int, int]  # rows and columns
    position: tuple[float, ...] | None  # ImagePositionPatient
    orientation: tuple[float, ...] | None  # ImageOrientationPatient: directions of rows and columns
    spacing: tuple[float, ...] | None  # PixelSpacing
    echo_time: float | None  # ms
    frames: int  # more than 1 for a file that holds a whole volume (enhanced MR)


def stack_problem(slices: Sequence[Slice], announced: int | None, max_voxel_mm: float) -> str | None:
    """Why slices of one series do not make one volume, or None; `announced` is the number that the header gives."""
    if any(part.frames > 1 for part in slices):
        return None if len(slices) == 1 else f"mixed series: {len(slices)} files of several frames each"
    shapes = {part.shape for part in slices}
    if len(shapes) > 1:
        return f"mixed series: slices of {len(shapes)} sizes, {', '.join(by(shape) for shape in sorted(shapes)[:3])}"
    if len(slices) < MIN_SLICES:
        return f"too few slices for a head: {len(slices)}, a localizer or a fragment"
    located = [(part.position, part.orientation) for part in slices if part.position and part.orientation]
    if len(located) < len(slices):
        return f"slices without a position in their header: {len(slices) - len(located)} of {len(slices)}"
    directions = np.array([orientation for _, orientation in located])
    if np.abs(directions - directions[0]).max() > SAME_DIRECTION:
        return "mixed series: slices in several directions, as a localizer has them"
    normal = np.cross(directions[0, :3], directions[0, 3:])
    distances = np.array([position for position, _ in located]) @ normal
    echoes = {part.echo_time for part in slices}
    step = float(np.ptp(distances)) / (len(slices) - 1)
    sizes = np.array([*(slices[0].spacing or (step, step)), step])
    return _spacing_problem(np.sort(distances), len(echoes), announced) or too_thick(sizes, max_voxel_mm)


def _spacing_problem(distances: np.ndarray, echoes: int, announced: int | None) -> str | None:
    """Why slices at ascending `distances` (mm) are incomplete, uneven or overlap; None if they are not."""
    count = len(distances)
    steps = np.diff(distances)
    whole = steps[steps > 1e-3]
    if len(whole) < count - 1:
        doubled = count - 1 - len(whole)
        why = f"{echoes} echoes" if echoes > 1 else "a repeat, or several images in one series"
        return f"mixed series: {doubled} of {count} slices lie where another one lies ({why}); give one volume"
    step = float(np.median(steps))
    gaps = steps / step
    missing = int(np.rint(gaps[gaps > 1 + SPACING_TOLERANCE] - 1).sum())
    if missing:
        places = ", ".join(f"after slice {index + 1}" for index in np.flatnonzero(gaps > 1 + SPACING_TOLERANCE)[:3])
        return f"missing slices: {missing} of {count + missing}, {places}; download the series again"
    if np.abs(gaps - 1).max() > SPACING_TOLERANCE:
        return f"uneven slices: {steps.min():.2f} to {steps.max():.2f} mm apart"
    if announced is not None and count < announced < 2 * count:
        return (
            f"missing slices: {announced - count} of {announced} that the header announces; download the series again"
        )
    return None
