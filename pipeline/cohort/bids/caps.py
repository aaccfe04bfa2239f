"""A CAPS dataset of Clinica: the images of its pipelines ``t1-linear`` and, as maps of tissue, ``t1-volume``.

``subjects/sub-*/ses-*/t1_linear/<source>_space-MNI152NLin2009cSym[_desc-Crop]_res-1x1x1_T1w.nii.gz``, where the name of
the source ends in ``_T1w`` in older versions. These are whole heads, N4-corrected and registered to the symmetric
template by an affine map, without brain extraction. They enter as scans: the brain is extracted, and they are
registered to MNI152NLin2009cAsym as any scan is. The uncropped image of a session is used before the cropped one, whose
edges are close to the brain.

``subjects/sub-*/ses-*/t1/spm/dartel/group-*/<source>_segm-<tissue>_space-Ixi549Space_modulated-{on|off}[_fwhm-8mm]
_probability.nii.gz`` are maps of a tissue that SPM has normalised; before DARTEL they lie in
``t1/spm/segmentation/normalized_space``. They enter at ``template``. Everybody's map is of one version, so that
versions do not differ between classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from heatlas.pipeline.cohort.bids.dataset import (
    describe_scan,
    preference,
    row_problem,
    unmatched_notes,
    with_courses,
)
from heatlas.pipeline.cohort.bids.derivatives import read_sidecar
from heatlas.pipeline.cohort.bids.tables import ScanFacts
from heatlas.pipeline.cohort.candidates import Candidate, InputFiles
from heatlas.pipeline.cohort.images.files import image_stem
from heatlas.pipeline.cohort.listed import visits_and_tables
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, listed

SUBJECTS = "subjects"
_FOLDER = re.compile(
    rf"{SUBJECTS}(/sub-[^/]+(/ses-[^/]+(/t1_linear|/t1(/spm(/dartel(/group-[^/]+)?|/segmentation"
    r"(/normalized_space)?)?)?)?)?)?"
)
_VISIT = (
    rf"{SUBJECTS}/(?P<participant>sub-[A-Za-z0-9]+)/(?P<session>ses-[A-Za-z0-9]+)/{{folder}}/"
    r"(?P=participant)_(?P=session)_(?P<entities>(?:[a-z]+-[A-Za-z0-9+]+_)*?)(?:T1w_)?"
)
_IMAGE = re.compile(
    _VISIT.format(folder="t1_linear") + r"space-MNI152NLin2009cSym_(?P<crop>desc-Crop_)?res-1x1x1_T1w\.nii(?:\.gz)?"
)
_MAP = re.compile(
    _VISIT.format(folder="t1/spm/(?P<place>dartel/group-[A-Za-z0-9]+|segmentation/normalized_space)")
    + r"segm-(?P<tissue>[a-z]+)_space-Ixi549Space_modulated-(?P<modulated>on|off)(?:_fwhm-(?P<fwhm>[0-9]+)mm)?"
    r"_probability(?P<crop>)\.nii(?:\.gz)?"
)
_TISSUES = {"GM": "graymatter", "WM": "whitematter", "CSF": "csf"}
"""Names of tissues in CAPS by `CohortConfig.label`."""


def is_caps(root: Path) -> bool:
    """Whether a folder is a CAPS dataset."""
    return next((root / SUBJECTS).glob("sub-*/ses-*"), None) is not None


def enters_as_caps(folder: str) -> bool:
    """Whether a folder of a CAPS dataset is searched for images."""
    return _FOLDER.fullmatch(folder) is not None


def read_caps(root: Path, files: InputFiles, config: CohortConfig) -> tuple[list[Candidate], list[str]]:
    """Read a CAPS dataset: one candidate per image of t1-linear, or of t1-volume for maps of tissue, and notes."""
    maps = config.kind.normalised
    image_notes: list[str] = []
    if maps:
        images, image_notes = _maps(root, files.images, config.label)
    else:
        images = {path: match for path in files.images if (match := _IMAGE.fullmatch(path))}
    if not images:
        command = "t1-volume" if maps else "t1-linear"
        return [], [f"`clinica run {command}` makes the {'maps' if maps else 'images'} that are read of a CAPS dataset"]
    named = {f"{match['participant']}_{match['session']}": (match["participant"], match["session"])
             for match in images.values()}  # fmt: skip
    visits, tables, notes = visits_and_tables(root, named, config)
    read: list[tuple[Candidate, ScanFacts | None]] = []
    for path, match in images.items():
        visit = f"{match['participant']}_{match['session']}"
        scan = Scan(*visits.get(visit, named[visit]), image_stem(path), path)
        problem = row_problem(scan, tables) if visit in visits else f"no row in {tables.names[2]}"
        if problem is not None:
            read.append((Candidate(scan.dropped(problem)), None))
            continue
        entities = dict(entity.split("-", 1) for entity in match["entities"].split("_") if entity)
        entry = "template" if maps else scan.entry
        rank = (*preference(entities, entry), int(match["crop"] is not None))
        try:
            sidecar = read_sidecar(root / path)
        except ValueError as error:
            read.append((Candidate(scan.dropped(f"unreadable sidecar: {error}")), None))
            continue
        read.append(describe_scan(scan, tables, sidecar, entry, rank))
    candidates, table_notes, fact_notes = with_courses(read, tables, config.mci_horizon_months)
    notes += [*image_notes, *unmatched_notes(tables, candidates, config.kind)]
    if others := sorted(path for path in files.images if not _IMAGE.fullmatch(path) and "/t1_linear/" in path):
        notes.append(f"{counted(len(others), 'image')} without a CAPS name ignored: {listed(others, 3)}")
    return candidates, [*notes, *table_notes, *fact_notes]


def _maps(root: Path, paths: Sequence[str], label: str) -> tuple[dict[str, re.Match[str]], list[str]]:
    """The maps of a tissue by their paths, all of one version, and notes.

    Maps of DARTEL are used before those of the segmentation, modulated ones before others, and the least smoothed.
    """
    if label not in _TISSUES:
        raise BadInputError(
            f'{root}: cohort.label = "{label}" is no tissue of a CAPS dataset. Set one of {", ".join(_TISSUES)}.'
        )
    matches = {path: match for path in paths if (match := _MAP.fullmatch(path)) and match["tissue"] == _TISSUES[label]}
    if not matches:
        return {}, []
    best = min(map(_version, matches.values()))
    used = {path: match for path, match in matches.items() if _version(match) == best}
    places = sorted({match["place"] for match in used.values()})
    if len(places) > 1:
        raise BadInputError(
            f"{root}: maps of several groups of DARTEL ({listed(place.split('/')[-1] for place in places)}), whose "
            "templates differ. Give a folder with the maps of one group only."
        )
    smoothed = f"smoothed by {best[2]} mm" if best[2] else "not smoothed"
    notes = [
        f"maps of {places[0]}, {'not ' * best[1]}modulated, {smoothed}, are in the space of SPM (Ixi549Space) and not "
        "registered again: borders of regions fit less well than in the space of the template"
    ]
    if others := len(matches) - len(used):
        notes.append(f"{counted(others, 'map')} of {label} of other versions ignored")
    return used, notes


def _version(match: re.Match[str]) -> tuple[int, int, int]:
    """Which version of a map it is; the smallest is used."""
    return int(not match["place"].startswith("dartel")), int(match["modulated"] == "off"), int(match["fwhm"] or 0)
