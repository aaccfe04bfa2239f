"""A CAPS dataset of Clinica: the images of its pipeline ``t1-linear``.

``subjects/sub-*/ses-*/t1_linear/<source>_space-MNI152NLin2009cSym[_desc-Crop]_res-1x1x1_T1w.nii.gz``, where the name of
the source ends in ``_T1w`` in older versions. These are whole heads, N4-corrected and registered to the symmetric
template by an affine map, without brain extraction. They enter as scans: the brain is extracted, and they are
registered to MNI152NLin2009cAsym as any scan is. The uncropped image of a session is used before the cropped one, whose
edges are close to the brain.
"""

from __future__ import annotations

import re
from pathlib import Path

from heatlas.pipeline.cohort.bids.dataset import (
    about_facts,
    described,
    preference,
    row_problem,
    unmatched,
    with_course,
)
from heatlas.pipeline.cohort.bids.derivatives import read_sidecar
from heatlas.pipeline.cohort.bids.facts import ScanFacts, diagnosis_histories
from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.cells.ranges import problem_notes
from heatlas.pipeline.cohort.images.file_kinds import image_stem
from heatlas.pipeline.cohort.listed.beside import visits_and_tables
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.walking import InputFiles
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.plain_text import counted, listed

SUBJECTS = "subjects"
_FOLDER = re.compile(rf"{SUBJECTS}(/sub-[^/]+(/ses-[^/]+(/t1_linear)?)?)?")
_IMAGE = re.compile(
    rf"{SUBJECTS}/(?P<participant>sub-[A-Za-z0-9]+)/(?P<session>ses-[A-Za-z0-9]+)/t1_linear/"
    r"(?P=participant)_(?P=session)_(?P<entities>(?:[a-z]+-[A-Za-z0-9+]+_)*?)(?:T1w_)?"
    r"space-MNI152NLin2009cSym_(?P<crop>desc-Crop_)?res-1x1x1_T1w\.nii(?:\.gz)?"
)


def is_caps(root: Path) -> bool:
    """Whether a folder is a CAPS dataset."""
    return next((root / SUBJECTS).glob("sub-*/ses-*"), None) is not None


def enters(folder: str) -> bool:
    """Whether a folder of a CAPS dataset is searched for images."""
    return _FOLDER.fullmatch(folder) is not None


def read_caps(root: Path, files: InputFiles, config: CohortConfig) -> tuple[list[Candidate], list[str]]:
    """Read a CAPS dataset: one candidate per image of t1-linear, and notes."""
    images = {path: match for path in files.images if (match := _IMAGE.fullmatch(path))}
    if not images:
        return [], ["`clinica run t1-linear` makes the images that are read of a CAPS dataset"]
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
        rank = (*preference(entities, scan.entry), int(match["crop"] is not None))
        try:
            sidecar = read_sidecar(root / path)
        except ValueError as error:
            read.append((Candidate(scan.dropped(f"unreadable sidecar: {error}")), None))
            continue
        read.append(described(scan, tables, sidecar, scan.entry, rank))
    histories, history_notes = diagnosis_histories(tables)
    candidates = [with_course(candidate, histories, config.mci_horizon_months) for candidate, _ in read]
    facts = [(candidate.scan, known) for candidate, known in read if known]
    notes += unmatched(tables, candidates)
    if others := sorted(path for path in files.images if path not in images and "/t1_linear/" in path):
        notes.append(f"{counted(len(others), 'image')} without a CAPS name ignored: {listed(others, 3)}")
    return candidates, [*notes, *tables.notes, *problem_notes(tables.impossible), *history_notes, *about_facts(facts)]
