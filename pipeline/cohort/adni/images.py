"""The images of an ADNI download, NIfTI files and DICOM series: what their paths and headers say.

LONI unpacks to ``<PTID>/<sequence>/<date>/<image id>/``, with one NIfTI file or the slices of one DICOM series inside.
A series is identified by the path of its first file. If a folder holds several series, each is listed. If only one of
them is usable, it is used; if several are, none is used, because the image id does not say which of them it means.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from heatlas.pipeline.cohort.cells import values
from heatlas.pipeline.cohort.images.dicom import DicomSeries, read_folder
from heatlas.pipeline.cohort.images.file_kinds import image_stem, is_nifti
from heatlas.pipeline.cohort.walking import InputFiles
from heatlas.pipeline.run.plain_text import counted, listed
from heatlas.pipeline.run.work.progress import Progress

PTID = re.compile(r"\d{3}_S_\d{4,}", re.IGNORECASE)
_DATE_FOLDER = re.compile(r"\d{4}-\d{2}-\d{2}")
_ID_FOLDER = re.compile(r"[ISD]\d+")
_T1W = re.compile(
    r"mp-?_?rage|(^|[_ ])mpr([_ -]|$)|spgr|(^|_)mt1(_|$)|(^|[_ -])t1w?([_ -]|$)|bravo|mdeft|(^|[_ ])tfe", re.IGNORECASE
)
_OTHER = re.compile(
    r"flair|t2|(^|[_ -])pd([_ -]|$)|dti|dwi|diff|bold|fmri|epi|asl|pcasl|swi|gre|field|b1|loc|scout|survey|hippo|pet",
    re.IGNORECASE,
)
"""Names of other sequences of ADNI's protocols."""
_DERIVED = re.compile(r"mask|label|(^|_)seg|harp", re.IGNORECASE)


@dataclass(frozen=True)
class AdniImage:
    """What the path of an image and, for a DICOM series, its header say."""

    path: str  # relative to the input folder; of a series, its first file
    ptid: str
    sequence: str | None  # folder that LONI names after the sequence or the processing
    date: date | None  # of the scan: from its folder or, failing that, from the header of a series
    image_id: str
    problem: str | None = None  # why the image cannot be used, regardless of the tables
    description: str = ""  # sequence according to the DICOM header; free text that must never be written anywhere
    patient: str = ""  # PatientID of a DICOM header, for comparison; must never be written anywhere
    field_strength: float | None = None  # tesla, from a DICOM header

    @property
    def sequence_or_name(self) -> str:
        """Name of the image for messages: its folder, else its file (not for a series)."""
        return self.sequence or (image_stem(self.path) if is_nifti(self.path) else "DICOM series")

    def sequence_problem(self, recorded: str | None = None) -> str | None:
        """Why the names of the image do not suggest an original T1-weighted scan; None if they do."""
        names = [name for name in (self.sequence_or_name, recorded, self.description) if name]
        # The other names count only where the folder's name is ambiguous.
        is_t1w = _T1W.search(names[0]) or (not _OTHER.search(names[0]) and any(map(_T1W.search, names)))
        if is_t1w and not any(map(_DERIVED.search, names)):
            return None
        return f"not named as a T1-weighted sequence (MPRAGE, SPGR): {self.sequence_or_name}"


def parse_image(path: str) -> AdniImage | None:
    """Read an image's path; None if it is not in a participant's folder.

    >>> image = parse_image("ADNI/002_S_0295/MPRAGE/2006-04-18_08_20_30.0/I118671/brain.nii")
    >>> image.ptid, image.sequence, str(image.date), image.image_id
    ('002_S_0295', 'MPRAGE', '2006-04-18', 'I118671')
    """
    parts = path.split("/")
    start = next((i for i, part in enumerate(parts[:-1]) if PTID.fullmatch(part)), None)
    if start is None:
        return None
    folders = parts[start + 1 : -1]
    dates = [part for part in folders if _DATE_FOLDER.match(part)]
    numbers = [part for part in folders if _ID_FOLDER.fullmatch(part)]
    sequences = [part for part in folders if part not in dates and part not in numbers]
    return AdniImage(
        path=path,
        ptid=parts[start].upper(),
        sequence=sequences[0] if sequences else None,
        date=values.calendar_date(dates[0]) if dates else None,
        image_id=_image_id(parts[start:], numbers),
    )


def _image_id(parts: Sequence[str], numbers: Sequence[str]) -> str:
    """I number of the folder or of the file name; else a series number; else the path below the person's folder.

    Files without a number often have the same name in every folder (``brain.nii``), so the name alone does not identify
    them. File names of a DICOM series name slices and are not used.
    """
    stem = image_stem(parts[-1]) if is_nifti(parts[-1]) else parts[-1].removesuffix(Path(parts[-1]).suffix)
    in_name = re.search(r"_(I\d+)$", stem)
    of_image = [number for number in numbers if number.startswith("I")]
    whole = "_".join([parts[0].upper(), *parts[1:-1], *([stem] if is_nifti(parts[-1]) else [])])
    return (of_image[-1:] or ([in_name[1]] if in_name else []) or numbers[-1:] or [whole])[0]


def find_images(root: Path, files: InputFiles, max_voxel_mm: float) -> tuple[list[AdniImage], list[str]]:
    """Find all images in participants' folders: one per NIfTI file and one per DICOM series.

    Notes name images outside participants' folders, and folders that hold several series.
    """
    found = [(path, parse_image(path)) for path in files.images]
    images = [image for _, image in found if image is not None]
    outside = [path for path, image in found if image is None]
    several: list[str] = []
    with Progress(len(files.dicom), "Reading DICOM headers") as bar:
        for folder, names in files.dicom.items():
            bar.update()
            if parse_image(f"{folder}/{names[0]}") is None:
                outside.append(f"{folder} (DICOM)")
                continue
            of_folder = _of_folder(read_folder(root, folder, names, max_voxel_mm))
            several += [folder] if len(of_folder) > 1 else []
            images += of_folder
    notes = []
    if several:
        notes.append(
            f"{counted(len(several), 'folder', 'holds')} several DICOM series, each is listed: {listed(several, 3)}"
        )
    if outside:
        notes.append(
            f"{counted(len(outside), 'image')} outside participants' folders (NNN_S_NNNN) ignored: {listed(outside, 3)}"
        )
    return images, notes


def _of_folder(found: Sequence[DicomSeries]) -> list[AdniImage]:
    """The series of one folder as images; at most one of several has no problem."""
    images = [_image(series) for series in found]
    if len(images) == 1:
        return images
    # The folder name describes only one of them, so the header must say that a series is T1-weighted.
    header_problems = [series.problem or _unlike_t1w(series) for series in found]
    usable = [index for index, problem in enumerate(header_problems) if problem is None]
    names = listed((found[index].name for index in usable), 3)
    ambiguous = f"several series in one folder: {names} could each be the image; put each in a separate folder"
    decided = []
    for index, (series, image) in enumerate(zip(found, images, strict=True)):
        if usable == [index]:
            decided.append(image)
            continue
        series_id = f"{image.image_id}_series-{index + 1 if series.number is None else series.number}"
        decided.append(dataclasses.replace(image, image_id=series_id, problem=header_problems[index] or ambiguous))
    return decided


def _unlike_t1w(series: DicomSeries) -> str | None:
    if not series.description.strip() or (_T1W.search(series.description) and not _DERIVED.search(series.description)):
        return None
    return f"not named as a T1-weighted sequence by its DICOM header: {series.name}"


def _image(series: DicomSeries) -> AdniImage:
    image = parse_image(series.files[0])
    if image is None:
        raise ValueError(f"{series.files[0]} is not in a participant's folder")
    return dataclasses.replace(
        image,
        date=image.date or series.date,
        problem=series.problem,
        description=series.description,
        patient=series.patient,
        field_strength=series.field_strength,
    )
