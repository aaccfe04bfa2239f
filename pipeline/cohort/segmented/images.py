"""A folder of FreeSurfer or FastSurfer subjects (SUBJECTS_DIR) as input: ``<subject>/mri/brain.mgz``.

``brain.mgz`` enters as brain: extracted by FreeSurfer, intensities corrected. Where it is not there, or with
``--start-at scan``, the first of ``T1.mgz``, ``orig_nu.mgz`` and ``orig.mgz`` enters as scan: the whole head on
FreeSurfer's grid.

The participant and session of a subject are those that its folder names (``sub-01_ses-M012``, ``002_S_0295_m12``), or
those of the row of ``--table`` in which a column holds the name of the folder. ``X.long.Y`` is the longitudinal result
of the visit X: it is used only where the cross-sectional one is not there, since its image is resampled once more. Base
templates and ``fsaverage`` are no scans of anybody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from heatlas.pipeline.cohort.bids.dataset import about_facts, described, row_problem, unmatched, with_course
from heatlas.pipeline.cohort.bids.tables import ScanFacts, diagnosis_histories
from heatlas.pipeline.cohort.candidates import Candidate, InputFiles
from heatlas.pipeline.cohort.cells.ranges import problem_notes
from heatlas.pipeline.cohort.listed import visit_named, visits_and_tables
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.subjects import named_scan
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.plain_text import counted, listed

BRAINS = ("brain.mgz",)
HEADS = ("T1.mgz", "orig_nu.mgz", "orig.mgz")
LONGITUDINAL = ".long."
BASE = "base-tps"
"""File that marks the folder of a base template."""
_IMAGE = re.compile(r"([^/]+)/mri/([^/]+\.mgz)")
_NO_SUBJECT = re.compile(r"fsaverage.*|cvs_avg.*|[lr]h\.EC_average|V1_average", re.IGNORECASE)


def is_subjects_folder(root: Path) -> bool:
    """Whether a folder holds subjects of FreeSurfer or FastSurfer; folders that cannot be read are none."""
    images = (one / "mri" / name for one in root.iterdir() for name in BRAINS + HEADS)
    return any(os.path.isfile(path) for path in images)  # noqa: PTH113 `Path.is_file` raises without permission


def enters(folder: str) -> bool:
    """Whether a folder below SUBJECTS_DIR is searched for images."""
    return re.fullmatch(r"[^/]+(/mri)?", folder) is not None and not _NO_SUBJECT.fullmatch(folder.split("/")[0])


def read_subjects(root: Path, files: InputFiles, config: CohortConfig) -> tuple[list[Candidate], list[str]]:
    """Read a folder of subjects: one candidate per subject with an image, and notes."""
    images: dict[str, set[str]] = {}
    for path in files.foreign:
        if match := _IMAGE.fullmatch(path):
            images.setdefault(match[1], set()).add(match[2])
    bases = sorted(name for name in images if (root / name / BASE).exists())
    subjects = {name: image_of(found, config.start_at) for name, found in sorted(images.items()) if name not in bases}
    visits, tables, notes = visits_and_tables(root, {name: visit_of_folder(name) for name in subjects}, config)
    read: list[tuple[Candidate, ScanFacts | None]] = []
    for name, (image, entry) in subjects.items():
        person, session = visits.get(name) or visit_of_folder(name)
        scan = Scan(person, session, name, f"{name}/mri/{image}" if image else None)
        problem = row_problem(scan, tables) if name in visits else f"no row in {tables.names[2]}"
        problem = problem if image else f"no {' or '.join(BRAINS + HEADS)} in its folder mri"
        if problem is not None:
            read.append((Candidate(scan.dropped(problem)), None))
            continue
        preference = (int(LONGITUDINAL in name), HEADS.index(image) if image in HEADS else -1)
        read.append(described(scan, tables, {}, entry, preference, ("cross-sectional",)))
    histories, history_notes = diagnosis_histories(tables)
    if bases:
        notes.append(f"{counted(len(bases), 'base template')} of the longitudinal stream ignored: {listed(bases)}")
    candidates = [with_course(candidate, histories, config.mci_horizon_months) for candidate, _ in read]
    facts = [(candidate.scan, known) for candidate, known in read if known]
    notes += unmatched(tables, candidates)
    return candidates, [*notes, *tables.notes, *problem_notes(tables.impossible), *history_notes, *about_facts(facts)]


def image_of(names: Collection[str], start_at: str) -> tuple[str, str]:
    """The image of a subject and how it enters; empty if there is none.

    >>> image_of({"orig.mgz", "T1.mgz", "brain.mgz"}, "auto"), image_of({"orig.mgz", "T1.mgz", "brain.mgz"}, "scan")
    (('brain.mgz', 'brain'), ('T1.mgz', 'scan'))
    >>> image_of({"orig.mgz", "orig_nu.mgz"}, "auto"), image_of({"aseg.mgz"}, "auto")
    (('orig_nu.mgz', 'scan'), ('', 'scan'))
    """
    kinds = [(name, "brain") for name in BRAINS] + [(name, "scan") for name in HEADS]
    wanted = sorted(kinds, key=lambda kind: kind[1] != "scan") if start_at == "scan" else kinds
    return next((kind for kind in wanted if kind[0] in names), ("", "scan"))


def visit_of_folder(name: str) -> tuple[str, str | None]:
    """Participant and session that the folder of a subject names.

    >>> visit_of_folder("sub-01_ses-2_run-1.long.sub-01"), visit_of_folder("bert"), visit_of_folder("002_S_0295_bl")
    (('sub-01', 'ses-2'), ('sub-bert', None), ('sub-ADNI002S0295', 'ses-M000'))
    """
    base = name.split(LONGITUDINAL, 1)[0]
    _, person, session = named_scan(base)
    return (person, session) if person else visit_named(base)
