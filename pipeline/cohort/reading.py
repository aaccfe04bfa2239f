"""Read an input folder: its layout, its scans, which of them are used, and why the others are not.

A filter file of BIDS Apps chooses images by the entities of their names, as fMRIPrep's does: ``{"t1w": {"session":
"baseline", "acquisition": ["mprage", null], "run": 1}}``. For another ``cohort.suffix`` the key is that suffix in lower
case. Entities have the names of PyBIDS or those of file names; null means that the entity is absent, and ``"*"`` any
value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from heatlas.pipeline.cohort import candidates as steps
from heatlas.pipeline.cohort import oasis
from heatlas.pipeline.cohort.adni import download as adni
from heatlas.pipeline.cohort.adni.download import parse_image
from heatlas.pipeline.cohort.bids import dataset as bids
from heatlas.pipeline.cohort.bids.derivatives import entry_notes, over_template, with_entries
from heatlas.pipeline.cohort.bids.tables import PARTICIPANTS
from heatlas.pipeline.cohort.candidates import Candidate, InputFiles
from heatlas.pipeline.cohort.images.files import are_followed, dead_link, following_links
from heatlas.pipeline.cohort.listed import find_table, names_images, read_listed, require_short
from heatlas.pipeline.cohort.people.inclusion import Clinical, apply_rule, clinical_table, require_no_person
from heatlas.pipeline.cohort.people.persons import roll_over_notes, unusual_ages
from heatlas.pipeline.cohort.people.tasks import shuffled_labels, unknown_diagnoses, with_labels
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.cohort.segmented import images as freesurfer
from heatlas.pipeline.cohort.segmented.subjects import has_volumes, with_segmented_volumes
from heatlas.pipeline.cohort.sharing import Disguise, Manifest, Match, capped_ages, select, with_capped_columns
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, T1W, ImageKind, template_name
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.folder import require_input
from heatlas.pipeline.run.plain_text import counted, listed, note_on

DEMO_TRUTH = "truth"
"""Folder of the demo cohort that holds the planted truth, which must not be read as input."""
PLANTED = Path(DEMO_TRUTH, "planted.json")
"""Marks an input as a demo cohort."""


Layout = Literal["adni", "bids", "oasis", "caps", "freesurfer", "table", "image"]


@dataclass(frozen=True)
class InputCohort:
    """An input folder as the pipeline sees it.

    `root`: resolved; `Scan.file` is relative to it. `notes`: what the rows of the table do not show. `problem`: why
    there are no labels. `matches`: with a manifest. `same_images`: the note on these; empty without.
    """

    root: Path
    layout: Layout
    table: ScanTable
    notes: tuple[str, ...]
    problem: str = ""
    matches: tuple[Match, ...] = ()
    clinical: Clinical | None = None
    same_images: str = ""

    @property
    def synthetic(self) -> bool:
        return (self.root / PLANTED).is_file()


@dataclass(frozen=True)
class ScanSelection:
    """Which scans of an input are used, and how they are anonymised.

    `participants`: with or without ``sub-``, or as PTID; empty for all. `entities`: values by entity of BIDS, which
    names of images must have. `template`: as in the settings. `follow_links`: to folders, and to files outside the
    input.
    """

    participants: tuple[str, ...] = ()
    manifest: Manifest | None = None
    disguise: Disguise | None = None
    entities: Filter = field(default_factory=dict)
    template: str = DEFAULT_TEMPLATE
    follow_links: bool = False


def read_cohort(
    root: Path, config: CohortConfig, seed: int, selection: ScanSelection | Sequence[str] = ()
) -> InputCohort:
    """Read the people and images of an input folder without writing anything; a sequence names participants.

    Gives all images found; if none is kept, the table gives the reasons. If scans cannot be labelled, because the
    contrast names a column or value that does not occur, they are still read, and `InputCohort.problem` says why.
    """
    if not isinstance(selection, ScanSelection):
        selection = ScanSelection(tuple(selection))
    require_input(root)
    with following_links(selection.follow_links):
        return _read(root.resolve(), config, seed, selection)


def _read(root: Path, config: CohortConfig, seed: int, selection: ScanSelection) -> InputCohort:
    require_no_person(config)
    space = template_name(selection.template)
    layout, candidates, notes = _find_candidates(root, config, space)
    candidates, further_notes = _with_images_and_values(root, layout, candidates, config, space)
    problem = ""
    try:
        candidates = with_labels(candidates, config)
    except BadInputError as error:
        problem = str(error)
    candidates, matches, header_notes = _chosen(root, candidates, config, selection)
    if config.start_at == "auto":
        further_notes = [*entry_notes(candidates, space), *further_notes]
    clinical, clinical_notes = clinical_table(candidates, config.clinical_columns, selection.disguise)
    scans, age_notes = capped_ages(candidate.scan for candidate in candidates)
    notes += roll_over_notes(scan.participant_id for scan in scans if scan.kept)
    notes += unusual_ages({scan.participant_id: scan.age for scan in scans if scan.kept and scan.age is not None})
    notes += [*further_notes, *header_notes, *age_notes, *clinical_notes]
    notes += unknown_diagnoses(candidates) if config.contrast_column == "diagnosis" else []
    if config.shuffle_labels:
        kept = shuffled_labels([scan for scan in scans if scan.kept], seed)
        scans = [scan for scan in scans if not scan.kept] + kept
        notes.append("labels are shuffled between participants: a control run")
    if selection.disguise is not None:
        matches = selection.disguise.matches(matches, scans)
        scans, notes = [selection.disguise.scan(scan) for scan in scans], selection.disguise.notes(notes)
    used = [scan for scan in scans if scan.kept]
    copies = steps.same_images_note(steps.same_images(root, used))
    notes += ([copies] if copies else []) + steps.same_kinds_note(root, used)
    return InputCohort(root, layout, ScanTable(tuple(scans)), tuple(notes), problem, tuple(matches), clinical, copies)


def _with_images_and_values(
    root: Path, layout: Layout, candidates: list[Candidate], config: CohortConfig, space: str
) -> tuple[list[Candidate], list[str]]:
    """Where images enter, the further images of their sessions, and values that are possible and may be shown."""
    candidates, entry_lines = with_entries(candidates, config.start_at)
    candidates = steps.with_anatomy(root, candidates, config.kind, config.max_voxel_mm, space)
    candidates = steps.with_further_kinds(root, candidates, config, space)
    measured = config.freesurfer_folder or (str(root) if layout == "freesurfer" and has_volumes(root) else "")
    candidates, volume_notes = with_segmented_volumes(candidates, measured)
    candidates, range_notes = steps.possible_scans(candidates)
    return with_capped_columns(candidates), [*entry_lines, *volume_notes, *range_notes]


def _chosen(
    root: Path, candidates: list[Candidate], config: CohortConfig, selection: ScanSelection
) -> tuple[list[Candidate], list[Match], list[str]]:
    """Drop who is not asked for, images that cannot be used, and all but one of a session."""
    candidates = keep_matching(steps.only_participants(candidates, selection.participants), selection.entities)
    if config.without:
        candidates = steps.without_people(candidates, Path(config.without))
    candidates, header_notes = steps.with_readable_headers(root, candidates, config.max_voxel_mm)
    candidates = steps.without_duplicates(over_template(root, candidates, selection.template))
    matches: list[Match] = []
    if selection.manifest is not None:
        candidates, matches = select(root, candidates, selection.manifest)
    return steps.one_per_session(apply_rule(candidates, config.include)), matches, header_notes


@dataclass(frozen=True)
class Source:
    """How a layout is read.

    `read`: the images below a folder, by the settings and the name of the template, with notes. `folders`: which are
    searched, as a pattern of their paths. `images`: the field of `InputFiles` with the images of this reader alone.
    """

    read: Callable[[Path, InputFiles, CohortConfig, str], tuple[list[Candidate], list[str]]]
    folders: str = rf"(?!{DEMO_TRUTH}$).*"
    images: str = ""


SOURCES: Mapping[str, Source] = {
    "adni": Source(adni.read_adni),
    "bids": Source(bids.read_bids, "sub-.*"),
    "oasis": Source(oasis.read_oasis, images="pairs"),
    "caps": Source(freesurfer.read_caps, freesurfer.CAPS_FOLDERS),
    "freesurfer": Source(freesurfer.read_subjects, freesurfer.SUBJECT_FOLDERS, images="foreign"),
    "table": Source(read_listed),
}


def _find_candidates(root: Path, config: CohortConfig, space: str) -> tuple[Layout, list[Candidate], list[str]]:
    listed_images = bool(config.table) and names_images(find_table(config.table, root))
    layout = "table" if listed_images else detect_layout(root, with_table=bool(config.table))
    read_as_such = layout in ("bids", "table") or (layout == "caps" and config.kind.normalised)
    if config.kind.through_t1w and not read_as_such:
        raise BadInputError(
            f'{root}: images of cohort.suffix = "{config.suffix}" are read of a BIDS dataset, or by --table in '
            "template space (maps of tissue also of a CAPS dataset), and this is neither. Convert it to BIDS, or take "
            "cohort.suffix out."
        )
    if config.further_suffixes and layout != "bids":
        raise BadInputError(
            f"{root}: images of several kinds (cohort.further_suffixes) are read of a BIDS dataset, and this is none. "
            "Convert it to BIDS, or take cohort.further_suffixes out."
        )
    source = SOURCES[layout]
    files = steps.walk_input(root, source.folders)
    candidates, notes = source.read(root, files, config, space)
    used = getattr(files, source.images) if source.images else [c.scan.image for c in candidates if c.scan.image]
    notes = [*notes, *_file_notes(root, files, layout, used)]
    if not candidates:
        raise BadInputError(f"{root}: no image of a participant found. " + " ".join(note + "." for note in notes))
    for scan in (c.scan for c in candidates):
        require_short(f"{root}: {(scan.image or scan.scan_id)[-60:]}", scan.participant_id, scan.session_id)
    return layout, candidates, notes


def detect_layout(root: Path, with_table: bool = False) -> Layout:
    """Detect the layout of a folder; one of no known layout is refused unless a table of its images is given."""
    if freesurfer.is_subjects_folder(root):
        return "freesurfer"
    if freesurfer.is_caps(root):
        return "caps"
    if with_table:
        return "table"
    names = {entry.name for entry in root.iterdir()}
    if names & {PARTICIPANTS, "dataset_description.json"} or any(name.startswith("sub-") for name in names):
        return "bids"
    if any(re.fullmatch(r"adnimerge.*\.csv", name, re.IGNORECASE) for name in names):
        return "adni"
    files = steps.walk_input(root, Source.folders)
    tables = [name.rsplit("/", 1)[-1].lower() for name in files.tables]
    series = [f"{folder}/{names[0]}" for folder, names in files.dicom.items()]
    of_participants = any(parse_image(path) is not None for path in (*files.images, *series))
    if of_participants or any(name.startswith("adnimerge") for name in tables):
        return "adni"
    if oasis.is_oasis(files):
        return "oasis"
    if any(oasis.OASIS3_FOLDER.fullmatch(name) for name in names):
        raise BadInputError(
            f"{root}: sessions of OASIS-3, which is read as a BIDS dataset only. Convert it with Clinica "
            "(`clinica convert oasis3-to-bids`), and give the folder that it makes."
        )
    raise BadInputError(
        f"{root}: neither an ADNI download (folders named like 002_S_0295, ADNIMERGE*.csv) nor one of OASIS (folders "
        "named like OAS1_0001_MR1 with Analyze pairs) nor a BIDS dataset (participants.tsv, folders sub-*) nor "
        "FreeSurfer subjects (*/mri/brain.mgz), and no table of its images is given (--table people.csv); "
        f"{len(files.images)} NIfTI and {files.dicom_count} DICOM files seen."
        + (" Put each DICOM series into a folder of its participant, such as 002_S_0295/MPRAGE." * bool(files.dicom))
        + "".join(f" {note}." for note in _foreign_notes(files))
    )


def _file_notes(root: Path, files: InputFiles, layout: str, used: Collection[str]) -> list[str]:
    notes = []
    if files.dicom and layout == "bids":
        notes.append(f"{counted(files.dicom_count, 'DICOM file')} ignored: BIDS uses NIfTI; convert them")
    why = "in a circle, not followed" if are_followed() else "not followed; give the real folder, or --follow-links"
    notes += note_on(files.linked_folders, "link", f"to folders {why}", limit=3)
    if files.dead_links:
        kinds = dict.fromkeys(dead_link(root / name) for name in files.dead_links)
        notes.append(f"{listed(files.dead_links, 3)}: {'; '.join(kinds)}")
    notes += _foreign_notes(files, used)
    text = "not read (a named pipe, a socket or a device)"
    notes += note_on(files.irregular, "table or XML file", text, verb="is", plural="tables or XML files", limit=3)
    text = "left out because of names that are not UTF-8 or hold control characters; rename them"
    notes += note_on(files.unwritable, "file or folder", text, verb="is", plural="files and folders", limit=3)
    return notes + note_on(files.unreadable, "folder", "could not be listed (permissions?)", limit=3)


def _foreign_notes(files: InputFiles, used: Collection[str] = ()) -> list[str]:
    foreign = [name for name in files.foreign if name not in used]
    text = "of unsupported format ignored; unpack or convert them"
    return note_on(foreign, "archive or image", text, plural="archives or images", limit=3)


_SHORT = dict(
    subject="sub",
    session="ses",
    acquisition="acq",
    ceagent="ce",
    reconstruction="rec",
    inversion="inv",
    description="desc",
    resolution="res",
    tracer="trc",
)
_ENTITIES = frozenset({*_SHORT.values(), "run", "echo", "part", "space"})

Filter = Mapping[str, tuple[str | None, ...]]
"""Values by entity; None where it may be absent."""


def read_filter(path: Path, kind: ImageKind = T1W) -> Filter:
    """The filter of images of a kind in a file; BadInputError if it cannot be one."""
    key = kind.suffix.lower()
    wanted = read_json(path, f"Give a filter of {key} images, as docs/bids_app.md shows.").get(key, {})
    if not isinstance(wanted, dict):
        raise BadInputError(f"{path}: {key} is not an object of entities and values.")
    always = {"datatype": kind.folder, "suffix": kind.suffix}  # filters of other programs name them too
    chosen: dict[str, tuple[str | None, ...]] = {}
    for name, value in wanted.items():
        values = value if isinstance(value, list) else [value]
        if not values or not all(v is None or type(v) in (str, int) for v in values):
            raise BadInputError(f"{path}: {key}.{name} must be a text, a whole number, null or a list of these.")
        if name in always:
            if always[name] not in values:
                raise BadInputError(f'{path}: {key}.{name} must be "{always[name]}"; other images are not read.')
            continue
        if (short := _SHORT.get(name, name)) not in _ENTITIES:
            raise BadInputError(f"{path}: {key}.{name} is no entity; known are {', '.join(sorted(_ENTITIES))}.")
        chosen[short] = tuple(None if v is None else _plain(str(v).removeprefix(f"{short}-")) for v in values)
    return chosen


def keep_matching(candidates: Sequence[Candidate], wanted: Filter) -> list[Candidate]:
    """Drop the images whose names do not match; the reason names the entity."""

    def problem(candidate: Candidate) -> str | None:
        stem = PurePosixPath(candidate.scan.file).name.split(".")[0]
        parts = [part.partition("-") for part in stem.split("_")]
        entities = {key: _plain(value) for key, dash, value in parts if dash}
        for name, values in wanted.items():
            if entities.get(name) not in values and not ("*" in values and name in entities):
                return f"not chosen by --bids-filter-file: {name}-{entities.get(name, '(absent)')}"
        return None

    return steps.drop(candidates, problem)


def _plain(value: str) -> str:
    """A value without the zeros before a number, so that 1 stands for ``run-01``.

    >>> _plain("01"), _plain("0"), _plain("m00")
    ('1', '0', 'm00')
    """
    return re.sub(r"^0+(?=\d+$)", "", value)
