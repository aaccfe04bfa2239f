"""Images that other programs made, as input: subjects of FreeSurfer or FastSurfer, and Clinica's CAPS datasets.

*FreeSurfer* (SUBJECTS_DIR). ``<subject>/mri/brain.mgz`` enters as brain. Where it is not there, or with ``--start-at
scan``, the first of `HEADS` enters as scan: the whole head on FreeSurfer's grid. The participant and session are those
that the folder names (``sub-01_ses-M012``, ``002_S_0295_m12``), or those of a row of ``--table``. ``X.long.Y`` is the
longitudinal result of the visit X: its image is resampled once more, so it is used only where the cross-sectional one
is not there.

*CAPS.* Images of ``t1-linear`` are whole heads, N4-corrected and registered to the symmetric template by an affine map:
they enter as scans. The uncropped image is used before the cropped one, whose edges are close to the brain. Maps of
tissue of ``t1-volume`` are normalised by SPM and enter at ``template``; everybody's is of one version, so that versions
do not differ between classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from heatlas.atlases.regions import Region, RegionTable, freesurfer_names, read_dseg_table, split_side
from heatlas.pipeline.cohort.bids import dataset
from heatlas.pipeline.cohort.bids.derivatives import entities_of, read_sidecar
from heatlas.pipeline.cohort.candidates import Candidate, InputFiles
from heatlas.pipeline.cohort.images.files import image_stem
from heatlas.pipeline.cohort.listed import visit_named, visits_and_tables
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.subjects import LONGITUDINAL, find_subjects, named_scan, subjects_of_scans
from heatlas.pipeline.run.config.settings import CohortConfig, Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted, listed, note_on, similar, without_home
from heatlas.pipeline.run.tables import MISSING

BRAINS = ("brain.mgz",)
HEADS = ("T1.mgz", "orig_nu.mgz", "orig.mgz")
BASE = "base-tps"
"""File that marks the folder of a base template."""
_IMAGE = re.compile(r"([^/]+)/mri/([^/]+\.mgz)")
SUBJECT_FOLDERS = r"(?!(?i:fsaverage[^/]*|cvs_avg[^/]*|[lr]h\.EC_average|V1_average)(/|$))[^/]+(/mri)?"
"""Folders below SUBJECTS_DIR that are searched for images."""


def is_subjects_folder(root: Path) -> bool:
    """Whether a folder holds subjects of FreeSurfer or FastSurfer; folders that cannot be read are none."""
    images = (folder / "mri" / name for folder in root.iterdir() for name in BRAINS + HEADS)
    return any(os.path.isfile(path) for path in images)  # noqa: PTH113 `Path.is_file` raises without permission


def read_subjects(
    root: Path, files: InputFiles, config: CohortConfig, _space: str = ""
) -> tuple[list[Candidate], list[str]]:
    images: dict[str, set[str]] = {}
    for path in files.foreign:
        if match := _IMAGE.fullmatch(path):
            images.setdefault(match[1], set()).add(match[2])
    bases = sorted(name for name in images if (root / name / BASE).exists())
    subjects = {name: image_of(names, config.start_at) for name, names in sorted(images.items()) if name not in bases}
    visits, tables, notes = visits_and_tables(root, {name: visit_of_folder(name) for name in subjects}, config)
    read = []
    for name, (image, entry) in subjects.items():
        scan = Scan(*(visits.get(name) or visit_of_folder(name)), name, f"{name}/mri/{image}" if image else None)
        problem = dataset.row_problem(scan, tables, name in visits)
        problem = problem if image else f"no {' or '.join(BRAINS + HEADS)} in its folder mri"
        rank = (int(LONGITUDINAL in name), HEADS.index(image) if image in HEADS else -1)
        read.append(dataset.describe_scan(scan, tables, entry, rank, problem=problem, criteria=("cross-sectional",)))
    candidates, table_notes, fact_notes = dataset.with_courses(read, tables, config.mci_horizon_months)
    notes += note_on(bases, "base template", "of the longitudinal stream ignored")
    return candidates, [*notes, *dataset.unmatched_notes(tables, candidates), *table_notes, *fact_notes]


def image_of(names: Collection[str], start_at: str) -> tuple[str, str]:
    """The image of a subject and how it enters; empty if there is none.

    >>> image_of({"orig.mgz", "T1.mgz", "brain.mgz"}, "auto"), image_of({"orig.mgz", "T1.mgz", "brain.mgz"}, "scan")
    (('brain.mgz', 'brain'), ('T1.mgz', 'scan'))
    >>> image_of({"orig.mgz", "orig_nu.mgz"}, "auto"), image_of({"aseg.mgz"}, "auto")
    (('orig_nu.mgz', 'scan'), ('', 'scan'))
    """
    brains, heads = [(name, "brain") for name in BRAINS], [(name, "scan") for name in HEADS]
    wanted = heads + brains if start_at == "scan" else brains + heads
    return next((kind for kind in wanted if kind[0] in names), ("", "scan"))


def visit_of_folder(name: str) -> tuple[str, str | None]:
    """Participant and session that the folder of a subject names.

    >>> visit_of_folder("sub-01_ses-2_run-1.long.sub-01"), visit_of_folder("bert"), visit_of_folder("002_S_0295_bl")
    (('sub-01', 'ses-2'), ('sub-bert', None), ('sub-ADNI002S0295', 'ses-M000'))
    """
    base = name.split(LONGITUDINAL, 1)[0]
    _, person, session = named_scan(base)
    return (person, session) if person else visit_named(base)


SEGMENTATIONS = ("aparc+aseg.mgz", "aparc.DKTatlas+aseg.mgz", "aparc.DKTatlas+aseg.deep.mgz")
"""Beside the image of a subject of FreeSurfer or FastSurfer, the first that is there."""
OF_SUBJECTS = (*SEGMENTATIONS, "aseg.mgz")
"""Where only regions are wanted that a segmentation without cortex may hold, too."""
DSEG = "_dseg"
_OF_LABELS = ("desc", "label", "seg", "atlas")
"""Entities that say what a segmentation is; it shares all others with its image."""


def segmentation_of(input_root: Path, scan: Scan, pattern: str) -> Path | None:
    """The segmentation of a scan with an image, by `RegionsConfig.own_labels`; None if there is none."""
    if pattern:
        return _first([input_root / scan.filled_in(pattern)])
    image = input_root / scan.file
    return _first([image.with_name(name) for name in SEGMENTATIONS]) if image.parent.name == "mri" else None


def labels_of_scans(
    input_root: Path, scans: Sequence[Scan], config: Config, kept: Sequence[Scan]
) -> Mapping[str, Path]:
    """The label image of each scan that has one, by its identifier: for masks of people's own anatomy.

    Where ``regions.own_labels`` says; else beside the image; else in ``cohort.freesurfer_folder``, but without
    longitudinal results (``X.long.Y``), which lie in the space of their base template. Only among the `kept` scans may
    a subject be of the one visit of a person.
    """
    pattern, folder = config.regions.own_labels, config.cohort.freesurfer_folder
    if pattern:
        paths = [path for scan in kept if (path := segmentation_of(input_root, scan, pattern)) is not None]
        if len(set(paths)) < len(paths):
            raise BadInputError(
                "several scans would have the same segmentation. Let regions.own_labels tell them apart, by "
                "{session_id}, {name} or {scan_id}."
            )
    subjects = subjects_of_scans(kept, folder) if folder and not pattern else {}
    labels = {}
    for scan in scans:
        path = segmentation_of(input_root, scan, pattern)
        if path is None and not pattern:
            path = _labels_beside(t1w_of(input_root, scan)) or _in_subject(subjects.get(scan.scan_id))
        if path is not None:
            labels[scan.scan_id] = path
    return labels


def n_longitudinal(config: Config) -> int:
    """Number of longitudinal results in ``cohort.freesurfer_folder``, whose labels are not used."""
    folder = config.cohort.freesurfer_folder
    if config.regions.own_labels or not folder:
        return 0
    return sum(LONGITUDINAL in name for name, _ in find_subjects(Path(folder)))


def t1w_of(input_root: Path, scan: Scan) -> Path:
    return input_root / (scan.t1w or scan.file)


def region_numbers(labels: Path, input_root: Path, names: Sequence[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Each region with its numbers in a label image: a name of its table, or that of a structure of both sides.

    The table of ``_dseg.nii.gz`` is that of the same name, or the nearest above it; anything else has FreeSurfer's.
    """
    table, called = _table_of(labels, input_root)
    numbers = {**table.groups, **{region.name: (region.number,) for region in table.regions}}
    for name in names:
        if name not in numbers:
            near = ", ".join(similar(name, numbers, 3))
            raise UsageError(f"objective.regions: {name}: no such region of {called}; similar: {near or 'none'}.")
    return tuple((name, numbers[name]) for name in names)


def names_of_regions(labels: Path, table: Path | None) -> Mapping[int, tuple[str, str]]:
    """Name and hemisphere of each number in a label image; nothing for a ``_dseg.nii.gz`` without a `table`."""
    if table is not None:
        return {region.number: (region.name, region.hemisphere) for region in read_dseg_table(table).regions}
    return {} if _is_dseg(labels) else freesurfer_names()


def table_beside(labels: Path, input_root: Path) -> Path | None:
    """The label table of a ``_dseg.nii.gz``; None if it has none, or the numbers are FreeSurfer's."""
    if not _is_dseg(labels):
        return None
    parts = set(image_stem(labels.name).split("_"))
    for folder in (labels.parent, *(above for above in labels.parent.parents if above.is_relative_to(input_root))):
        tables = [path for path in sorted(folder.glob("*dseg.tsv")) if set(path.stem.split("_")) <= parts]
        if tables:
            return max(tables, key=lambda path: len(path.stem))
    return None


def _is_dseg(labels: Path) -> bool:
    return image_stem(labels.name).endswith(DSEG)


def _table_of(labels: Path, input_root: Path) -> tuple[RegionTable, str]:
    """The region table of a label image, and how to call it."""
    if not _is_dseg(labels):
        parts = ((number, name, *split_side(name)) for number, (name, _) in freesurfer_names().items())
        regions = tuple(Region(number, name, side, MISSING, MISSING, group) for number, name, side, group in parts)
        return RegionTable(regions), "FreeSurfer's table"
    table = table_beside(labels, input_root)
    if table is None:
        stem = image_stem(labels.name)
        raise BadInputError(f"{without_home(labels)}: no label table; put {stem}.tsv (index, name) beside it.")
    return read_dseg_table(table), table.name


def _first(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _in_subject(folder: Path | None) -> Path | None:
    return None if folder is None else _first([folder / "mri" / name for name in OF_SUBJECTS])


def _labels_beside(image: Path) -> Path | None:
    """The segmentation beside an image; without `sub-` in its name it must be named alike, as others may lie there."""
    if image.parent.name == "mri":
        return _in_subject(image.parent.parent)
    entities = _entities(image.name)
    if "sub" not in entities:
        return _first([image.with_name(f"{image_stem(image.name).removesuffix('_T1w')}{DSEG}.nii.gz")])
    paths = [path for path in sorted(image.parent.glob(f"*{DSEG}.nii.gz")) if _entities(path.name) == entities]
    if len(paths) > 1:
        raise BadInputError(
            f"{without_home(image)}: {len(paths)} segmentations lie beside it ({listed([p.name for p in paths], 3)}). "
            "Name one by the pattern regions.own_labels."
        )
    return paths[0] if paths else None


def _entities(name: str) -> dict[str, str]:
    entities = entities_of(image_stem(name))
    return {entity: value for entity, value in entities.items() if entity not in _OF_LABELS}


SUBJECTS = "subjects"
CAPS_FOLDERS = (
    rf"{SUBJECTS}(/sub-[^/]+(/ses-[^/]+(/t1_linear|/t1(/spm(/dartel(/group-[^/]+)?|/segmentation"
    r"(/normalized_space)?)?)?)?)?)?"
)
"""Folders of a CAPS dataset that are searched for images."""
_VISIT = (
    rf"{SUBJECTS}/(?P<participant>sub-[A-Za-z0-9]+)/(?P<session>ses-[A-Za-z0-9]+)/{{folder}}/"
    r"(?P=participant)_(?P=session)_(?P<entities>(?:[a-z]+-[A-Za-z0-9+]+_)*?)(?:T1w_)?"
)
_OF_CAPS = re.compile(
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
    return next((root / SUBJECTS).glob("sub-*/ses-*"), None) is not None


def read_caps(
    root: Path, files: InputFiles, config: CohortConfig, _space: str = ""
) -> tuple[list[Candidate], list[str]]:
    """Read a CAPS dataset: one candidate per image of t1-linear, or of t1-volume for maps of tissue, and notes."""
    maps = config.kind.normalised
    images = {path: match for path in files.images if (match := _OF_CAPS.fullmatch(path))}
    image_notes: list[str] = []
    if maps:
        images, image_notes = _maps(root, files.images, config.label)
    if not images:
        command = "t1-volume" if maps else "t1-linear"
        return [], [f"`clinica run {command}` makes the {'maps' if maps else 'images'} that are read of a CAPS dataset"]
    sessions = {path: (match["participant"], match["session"]) for path, match in images.items()}
    visits, tables, notes = visits_and_tables(root, {"_".join(key): key for key in sessions.values()}, config)
    read = []
    for path, match in images.items():
        visit = "_".join(sessions[path])
        scan = Scan(*visits.get(visit, sessions[path]), image_stem(path), path)
        problem = dataset.row_problem(scan, tables, visit in visits)
        sidecar = {}
        if problem is None:
            try:
                sidecar = read_sidecar(root / path)
            except ValueError as error:
                problem = f"unreadable sidecar: {error}"
        entry = "template" if maps else scan.entry
        rank = (*dataset.preference(entities_of(match["entities"]), entry), int(match["crop"] is not None))
        read.append(dataset.describe_scan(scan, tables, entry, rank, sidecar, problem))
    candidates, table_notes, fact_notes = dataset.with_courses(read, tables, config.mci_horizon_months)
    notes += [*image_notes, *dataset.unmatched_notes(tables, candidates, config.kind)]
    others = sorted(path for path in files.images if not _OF_CAPS.fullmatch(path) and "/t1_linear/" in path)
    notes += note_on(others, "image", "without a CAPS name ignored", limit=3)
    return candidates, [*notes, *table_notes, *fact_notes]


def _maps(root: Path, paths: Sequence[str], label: str) -> tuple[dict[str, re.Match[str]], list[str]]:
    """The maps of a tissue, all of one version, and notes: of DARTEL first, then modulated, then least smoothed."""
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
