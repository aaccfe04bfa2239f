"""What the networks of a finished run are applied to: one image, or a cohort with or without labels of both classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from heatlas.atlases.spaces import UNREADABLE
from heatlas.pipeline.cohort.bids import derivatives
from heatlas.pipeline.cohort.candidates import Candidate, with_anatomy, with_readable_headers, without_people
from heatlas.pipeline.cohort.cells.values import PTID, adni_participant
from heatlas.pipeline.cohort.images.content import require_grey_values, require_scan
from heatlas.pipeline.cohort.images.files import image_stem, is_image
from heatlas.pipeline.cohort.images.headers import Orientation, choose_orientation, extent_problem, read_raw_header
from heatlas.pipeline.cohort.oasis import participant as oasis_participant
from heatlas.pipeline.cohort.people.splits import PARTS, SPLITS_TABLE, Split, fitting_folds
from heatlas.pipeline.cohort.people.tasks import SEVERAL_CLASSES, task_of
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.segmented.images import BRAINS, HEADS, visit_of_folder
from heatlas.pipeline.cohort.sharing import capped_ages
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, T1W, template_name
from heatlas.pipeline.run.config.settings import CohortConfig, Config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.folder import read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import listed
from heatlas.pipeline.run.work.digests import DigestCache, file_digest

COPIED = "has the same image, byte for byte, as a person of the run whose networks are applied"
FEWEST = 3
"""People, of each class, with whom performance can be measured and baselines fitted."""
_PTID = re.compile(rf"(?<!\d){PTID}", re.ASCII)
_OASIS1 = re.compile(r"OAS1_[0-9]{4}_MR[0-9]+")
ASKED_OF_IMAGE = {"age": "--age YEARS", "sex": "--sex F or M"}
"""Options that say of the person of one image what the image does not."""


def person_of_image(name: str) -> tuple[str, str | None]:
    """Participant and session of an image by the name of its file, as BIDS, ADNI and OASIS-1 name them.

    >>> person_of_image("sub-07_ses-M12_desc-preproc_T1w.nii.gz"), person_of_image("ADNI_002_S_0295_MR.nii")
    (('sub-07', 'ses-M12'), ('sub-ADNI002S0295', None))
    >>> person_of_image("OAS1_0002_MR1_mpr-1.nii.gz"), person_of_image("my scan.nii.gz"), person_of_image("_.nii")
    (('sub-OASIS10002', None), ('sub-myscan', None), ('sub-scan', None))
    """
    stem = image_stem(name)
    if match := derivatives.BIDS_NAME.fullmatch(stem):
        return match[1], match[2]
    if match := _PTID.search(stem):
        return adni_participant(match[0]), None
    if match := _OASIS1.match(stem):
        return oasis_participant(match[0]), None
    return f"sub-{re.sub('[^A-Za-z0-9]', '', stem) or 'scan'}", None


def read_scan(
    path: Path,
    config: CohortConfig,
    template: str = DEFAULT_TEMPLATE,
    age: float | None = None,
    sex: str | None = None,
) -> InputCohort:
    """One image as a cohort of one person, of whom nothing is known but the name of the file, and age and sex if given.

    They are no label, also where networks predict age.
    """
    if not is_image(path.name):
        raise BadInputError(
            f"{path}: not an image. Give one {config.kind.scan} (.nii, .nii.gz or .mgz), or an ADNI or OASIS "
            "download, a BIDS or CAPS dataset, FreeSurfer subjects, or images with --table."
        )
    if config.further_suffixes:
        raise BadInputError(
            f"{path}: one image, and the networks see {' and '.join(kind.suffix for kind in config.kinds)} of each "
            "session. Give a BIDS dataset with all of them."
        )
    path = path.resolve()
    space = template_name(template)
    entry, problem, _ = derivatives.entry_of_file(path, config.kind, space, config.label)
    person, session = person_of_image(path.name)
    name = image_stem(path.name)
    if path.parent.name == "mri" and path.name in BRAINS + HEADS:  # of FreeSurfer, whose folders name the person
        name = path.parent.parent.name
        person, session = visit_of_folder(name)
        entry = "brain" if path.name in BRAINS else entry
    candidate = Candidate(Scan(person or "sub-scan", session, name or "scan", path.name, entry=entry))
    if config.without and not without_people([candidate], Path(config.without))[0].scan.kept:
        raise BadInputError(
            f"{path}: is a scan of {person}, who is among the people of the run or named in cohort.without. Give a "
            "scan of someone else; if it is of another person with the same id, rename it or add --new-people."
        )
    candidates, notes = derivatives.with_entries(
        [candidate if problem is None else candidate.dropped(problem)], config.start_at
    )
    candidates = with_anatomy(path.parent, candidates, config.kind, config.max_voxel_mm, space)
    candidates, header_notes = with_readable_headers(path.parent, candidates, config.max_voxel_mm)
    (candidate,) = derivatives.over_template(path.parent, candidates, template)
    (scan,), age_notes = capped_ages([replace(candidate.scan, age=age, sex=sex)])
    if not scan.kept:
        raise BadInputError(f"{path}: {scan.reason}. Give one readable {config.kind.scan} with its orientation.")
    _require_voxels(path, config.kind == T1W)
    notes += derivatives.entry_notes([candidate], space) if config.start_at == "auto" else []
    unknown = [name for name, value in (("age", age), ("sex", sex)) if value is None]
    options = " and ".join(ASKED_OF_IMAGE[name] for name in unknown)
    text = f"scores against controls take no account of the person's {' and '.join(unknown)}; add {options}"
    notes = [*notes, *header_notes, *age_notes, *([text] if unknown else [])]
    return InputCohort(path.parent, "image", ScanTable((scan,)), tuple(notes))


def _require_voxels(path: Path, of_t1w: bool) -> None:
    """Refuse an image that cannot be read to its end, or whose values no scan has; of one image this takes seconds.

    `of_t1w`: whether it should be T1-weighted; images of other kinds may be negative, or probabilities.
    """
    try:
        image: Any = nib.load(path)
        values = np.asarray(image.dataobj, dtype=np.float32)
    except UNREADABLE as error:
        message = " ".join(str(error).replace(str(path), "").split())
        raise BadInputError(
            f"{path}: truncated or damaged image data ({message}). Download or convert the scan again."
        ) from error
    orientation = choose_orientation(read_raw_header(path))
    if isinstance(orientation, Orientation) and (problem := extent_problem(orientation.affine, values.shape)):
        raise BadInputError(f"{path}: {problem} Give a scan of the whole head.")
    (require_scan if of_t1w else require_grey_values)(values.reshape(values.shape[:3]), path)


def _n_people(cohort: InputCohort, config: CohortConfig) -> dict[str, int]:
    """Number of labelled people of each class, or with a number."""
    labelled, task = cohort.table.labelled, task_of(config)
    if task.is_number:
        return {task.column: len({scan.participant_id for scan in labelled})}
    people = {(scan.label, scan.participant_id) for scan in labelled}
    return {label: sum(label == of_person for of_person, _ in people) for label in config.labels}


def why_without_performance(cohort: InputCohort, config: CohortConfig) -> str:
    """Why nothing can be right or wrong in a cohort, as a clause; empty where enough people have a label."""
    if cohort.layout == "image":
        return "one scan has no label"
    people, needed = _n_people(cohort, config), "with a number" if task_of(config).is_number else "of each class"
    if min(people.values()) >= FEWEST:
        return ""
    counts = listed([f"{label} {n}" for label, n in people.items()])
    why = f" ({cohort.problem.rstrip('.')})" if cohort.problem else ""
    return f"{FEWEST} people {needed} are needed, and labelled are {counts}{why}"


def _with_copies_named(cohort: InputCohort, config: Config) -> InputCohort:
    """A cohort less the people of whom an image is a copy of one that the networks were made of, under another id.

    Compared are bytes with what the run remembers; an export remembers none. With ``--new-people`` a note names them.
    """
    run = RunLayout(Path(config.training.networks_of))
    if not config.training.networks_of or not run.config.is_file() or not SPLITS_TABLE.path(run).is_file():
        return cohort
    trained = {name for fold in Split.read(run).folds for part in PARTS for name in getattr(fold, part)}
    root, digests = read_run_input(run).input, DigestCache(run.digests)
    read = [digests.remembered(root / scan.file) for scan in ScanTable.read(run).kept if scan.participant_id in trained]
    stamps = {stamp[0]: stamp[1] for stamp in read if stamp is not None}  # sizes first: few files are read
    copies = {scan.participant_id for scan in cohort.table.kept if _is_among(cohort.root / scan.file, stamps)}
    if not copies:
        return cohort
    note = f"{COPIED}: {listed(sorted(copies), 3)}"
    if not config.cohort.without:
        return replace(cohort, notes=(*cohort.notes, note))
    if copies >= {scan.participant_id for scan in cohort.table.kept}:
        raise BadInputError(f"{cohort.root}: {note}. Give scans of other people.")
    scans = [scan.dropped(COPIED) if scan.kept and scan.participant_id in copies else scan for scan in cohort.table]
    return replace(cohort, table=ScanTable(tuple(scans)))


def _is_among(path: Path, stamps: Mapping[str, int]) -> bool:
    try:
        return path.stat().st_size in stamps.values() and file_digest(path) in stamps
    except OSError:  # reported where the image is read
        return False


def to_apply(cohort: InputCohort, config: Config) -> tuple[InputCohort, Config]:
    """The cohort and settings with which networks of a finished run are applied.

    Without enough people with a label, nobody has one: each network of the run predicts everyone.
    """
    cohort = _with_copies_named(cohort, config)
    task = task_of(config.cohort)
    if task.kind.name == SEVERAL_CLASSES:
        if cohort.layout == "image" or cohort.problem:
            raise BadInputError(
                f"{cohort.root}: networks that tell several classes are applied to cohorts with {task.column} only. "
                f"Add it to the table of participants. {cohort.problem}".strip()
            )
        return cohort, config
    why = why_without_performance(cohort, config.cohort)
    if not why:
        folds = fitting_folds(min(_n_people(cohort, config.cohort).values()), config.cohort.folds)
        return cohort, replace(config, cohort=replace(config.cohort, folds=folds))
    scans = ScanTable(tuple(replace(scan, label=None) for scan in cohort.table))
    one = cohort.layout == "image"
    what = "it is" if one else "each scan is"
    note = f"performance is not measured: {why}; {what} predicted and compared with the controls of the run"
    name = Path((scans.scans[0].image if one else None) or cohort.root).name
    settings = replace(
        config,
        cohort=replace(config.cohort, apply_outside_contrast=True),
        attribution=replace(config.attribution, keep_maps="all"),
        report=replace(config.report, title=f"What the networks say of {name}"),
    )
    return replace(cohort, table=scans, problem="", notes=(*cohort.notes, note)), settings
