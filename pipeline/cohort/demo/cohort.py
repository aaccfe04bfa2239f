"""Write the demo cohort: synthetic people in the layout of an ADNI download, and the truth about them."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.demo import anatomy
from heatlas.pipeline.cohort.demo import people as planted
from heatlas.pipeline.cohort.demo.anatomy import ReferenceAnatomy
from heatlas.pipeline.cohort.demo.people import SyntheticPerson, SyntheticVisit
from heatlas.pipeline.cohort.demo.scanner import draw_acquisition, nifti_bytes, nifti_image, scan
from heatlas.pipeline.run.declared import Table, described
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError, ResumableError, UsageError
from heatlas.pipeline.run.tables import write_json, write_text
from heatlas.pipeline.run.work.digests import unit_key
from heatlas.pipeline.run.work.progress import Progress
from heatlas.pipeline.run.work.seeds import generator

SEVERITY_TABLE = Table(
    "severity",
    {
        **described("participant_id", "session_id"),
        "scan_id": "Image id",
        "visit": "Visit code as in the clinical table",
        "diagnosis": "CN, MCI or AD",
        **{
            f"severity_{change.short}": f"Planted severity of {change.group}: 0 healthy, 1 severe"
            for change in planted.CHANGES
        },
        **{f"true_{change.short}_mm3": f"True volume of {change.group}, both sides" for change in planted.CHANGES},
        f"true_{planted.DIMORPHIC_SHORT}_mm3": f"True volume of {planted.DIMORPHIC_GROUP}, both sides; planted larger "
        "in men",
        "true_intracranial_mm3": "True volume inside the brain outline",
    },
    "image",
    "How severe is what was planted, and how large are the true volumes?",
    stage="demo",
    file="truth/severity.tsv",
)

README = Path(__file__).with_name("readme.txt")
"""Text for the folder of a cohort."""


PARTICIPANTS, LONGITUDINAL_PARTICIPANTS = 30, 40
"""People with AD or CN in the cohorts of ``heatlas demo``; the longitudinal one has 20 with MCI beside them."""


def write_demo_cohort(
    folder: Path,
    seed: int,
    participants: int = PARTICIPANTS,
    resolution_mm: float = 2.0,
    executor: Executor | None = None,
    longitudinal: bool = False,
) -> Path:
    """Write the demo cohort as an ADNI download, unless it exists, complete and made by the same code.

    `folder`: new, empty, or holding the same cohort. `seed`: equal seeds give byte-identical files. `participants`:
    people with AD or CN, half of each; 30 give 35 scans, and six more images come from five people with MCI and a
    person without a row in the clinical table. `executor`: makes people in parallel. `longitudinal`: three scans each,
    a year apart, of the participants and of half as many with MCI.
    """
    if participants < 4 or not 1 <= resolution_mm <= 4:
        raise UsageError("demo cohort: needs 4 participants or more and a resolution of 1 to 4 mm.")
    settings: dict[str, float] = {"seed": seed, "participants": participants, "resolution_mm": resolution_mm}
    settings |= {"longitudinal": True} if longitudinal else {}
    key = unit_key(anatomy.reference_digests(), settings, "heatlas.pipeline.cohort.demo")
    if _claim(folder, settings, key):
        return folder
    try:
        people = planted.draw_people(seed, participants, longitudinal)
        scanned = _write_images(folder, seed, people, resolution_mm, executor)
        _write_tables(folder, seed, people, scanned)
        (folder / "truth" / "severity_map.nii.gz").write_bytes(
            nifti_bytes(severity_map(anatomy.reference_anatomy()), compressed=True)
        )
        scans = "three scans, as everybody has," if longitudinal else "one scan"
        write_text(
            folder / "README.txt", README.read_text(encoding="utf-8").format(table=FILE_NAME, scans=scans, **settings)
        )
        effects = [effect.record() for effect in planted.EFFECTS]
        write_json(folder / "truth" / "effects.json", {"synthetic": True, "effects": effects})
        # Written last: its presence means that the rest is complete.
        write_json(folder / "truth" / "planted.json", {"synthetic": True, "planted": list(planted.PLANTED_GROUPS)})
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ResumableError(
            f"{folder}: no space left on the disk for the demo cohort (about 60 MB). Free some and run again."
        ) from error
    write_json(_receipt(folder), {"synthetic": True, "settings": settings, "key": key, "files": _sizes(folder)})
    return folder


def image_path(person: SyntheticPerson, visit: SyntheticVisit) -> Path:
    """Path of an image inside the cohort, as LONI's archive lays it out."""
    moment = visit.scanned
    name = (
        f"ADNI_{person.ptid}_MR_{visit.sequence}_br_raw_{moment:%Y%m%d%H%M%S}{visit.image_number % 1000:03d}"
        f"_1_S{visit.image_number % 100_000}_I{visit.image_number}"
    )
    suffix = ".nii.gz" if visit.compressed else ".nii"
    when = f"{moment:%Y-%m-%d_%H_%M_%S}.0"
    return Path("ADNI", person.ptid, visit.sequence, when, f"I{visit.image_number}", name + suffix)


def make_person(folder: Path, seed: int, person: SyntheticPerson, resolution_mm: float) -> dict[str, dict[str, float]]:
    """Write all images of one person; gives the true volumes in mm3 by visit code and bilateral group."""
    reference = anatomy.reference_anatomy()
    shape = anatomy.draw_shape(generator(seed, "demo", "shape", person.rid), person.sex, reference)
    volumes = {}
    for visit in person.visits:
        if not visit.has_image:
            continue
        rng = generator(seed, "demo", "scanner", person.rid, visit.code)
        acquisition = draw_acquisition(rng, reference, shape, resolution_mm, planted.coil_log_gain_per_mm(person.site))
        scanned = scan(reference, shape, person.course.severities(person.age, visit.years), acquisition)
        path = folder / image_path(person, visit)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(nifti_bytes(scanned.image, visit.compressed))
        true = dict(zip((*planted.PLANTED_GROUPS, planted.DIMORPHIC_GROUP), scanned.volumes_mm3, strict=True))
        volumes[visit.code] = {**true, "intracranial": scanned.intracranial_mm3}
    return volumes


def _write_images(
    folder: Path, seed: int, people: Sequence[SyntheticPerson], resolution_mm: float, executor: Executor | None
) -> dict[int, dict[str, dict[str, float]]]:
    """Make all people with an image; returns true volumes by RID and visit code."""
    imaged = [person for person in people if any(visit.has_image for visit in person.visits)]
    volumes: dict[int, dict[str, dict[str, float]]] = {}
    with Progress(len(imaged), "Demo cohort") as bar:
        if executor is None:
            for person in imaged:
                volumes[person.rid] = make_person(folder, seed, person, resolution_mm)
                bar.update()
            return volumes
        pending = {executor.submit(make_person, folder, seed, who, resolution_mm): who.rid for who in imaged}
        try:
            for future in as_completed(pending):
                volumes[pending[future]] = future.result()
                bar.update()
        except BaseException:
            for future in pending:
                future.cancel()
            raise
    return volumes


def _write_tables(
    folder: Path, seed: int, people: Sequence[SyntheticPerson], volumes: Mapping[int, Mapping[str, dict[str, float]]]
) -> None:
    """The clinical table and the truth per scan."""
    clinical: list[dict[str, object]] = []
    truth = []
    for person in people:
        for visit in person.visits:
            true = volumes.get(person.rid, {}).get(visit.code)
            if visit.in_table:
                clinical.append(adnimerge_row(seed, person, visit, true))
            if true is None:
                continue
            severities = person.course.severities(person.age, visit.years)
            rounded = {group: round(volume, 1) for group, volume in true.items()}
            truth.append(
                (
                    *(person.participant_id, f"ses-M{visit.month:03d}", f"I{visit.image_number}", visit.code),
                    *(visit.diagnosis, *(round(severity, 6) for severity in severities)),
                    *(rounded[name] for name in (*planted.PLANTED_GROUPS, planted.DIMORPHIC_GROUP, "intracranial")),
                )
            )
    write_text(folder / FILE_NAME, adnimerge_csv(clinical))
    SEVERITY_TABLE.write(folder / SEVERITY_TABLE.file, truth)


def severity_map(reference: ReferenceAnatomy) -> Any:
    """Where the disease is, on the 2 mm template grid, at severity 1 in every region.

    Size of the local log volume change and -log(tissue left in place): 0.2 where either changes by a fifth.
    """
    deformation = anatomy.exponential(reference.disease_velocity((1.0,) * len(planted.CHANGES)), anatomy.SPACING_MM)
    size = np.abs(np.log(anatomy.jacobian_determinant(deformation, anatomy.SPACING_MM)))
    grid = template_grid(2.0)
    offset = grid.affine[:3, 3] - reference.origin
    centres = np.tensordot(grid.affine[:3, :3], np.indices(grid.shape), axes=1) + offset[:, None, None, None]
    points = centres.astype(np.float32)
    magnitude = anatomy.sample(size, points / np.float32(anatomy.SPACING_MM))
    inside, shares = reference.region_shares(points)
    magnitude[inside] += np.tensordot(
        np.array([change.loss_rate for change in planted.CHANGES], np.float32), shares[:-1], axes=1
    )
    magnitude *= anatomy.sample(reference.brain.view(np.uint8), points) > 0.5
    return nifti_image(magnitude, grid.affine, "SYNTHETIC: planted disease at severity 1", "mni")


def _receipt(folder: Path) -> Path:
    return folder / "truth" / "cohort.json"


def _claim(folder: Path, settings: Mapping[str, float], key: str) -> bool:
    """True if the cohort exists already; otherwise prepare the folder. Anything but remains of one is refused."""
    if not _receipt(folder).is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder}: is not empty and not a demo cohort. Choose a new folder.")
    else:
        try:
            receipt = read_json(_receipt(folder), "Choose a new folder.")
        except BadInputError as error:
            raise UsageError(str(error)) from error
        files, past = receipt.get("files"), receipt.get("settings")
        if past != settings:
            raise UsageError(f"{folder}: holds a demo cohort with other settings, {past}. Choose a new folder.")
        sizes = _sizes(folder)
        whole = isinstance(files, dict) and files and all(sizes.get(name) == size for name, size in files.items())
        if receipt.get("key") == key and whole:
            return True
        shutil.rmtree(folder / "ADNI", ignore_errors=True)
    write_json(_receipt(folder), {"synthetic": True, "settings": settings, "key": key, "files": {}})
    return False


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != _receipt(folder))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


FILE_NAME = "ADNIMERGE_11Nov2025.csv"
VOLUME_NOISE = 0.05
"""Relative standard deviation of measured regional volumes."""

SOURCE = "SYNTHETIC demo cohort: planted volume with 5 % noise (no FreeSurfer)"

_DIAGNOSIS = {"CN": "CN", "MCI": "MCI", "AD": "Dementia"}
_BASELINE_DIAGNOSIS = {"CN": "CN", "MCI": "LMCI", "AD": "AD"}


def adnimerge_row(
    seed: int, person: SyntheticPerson, visit: SyntheticVisit, volumes: dict[str, float] | None
) -> dict[str, object]:
    """One row; `volumes` are the true ones in mm3 by bilateral group and ``"intracranial"``, None without a scan."""
    rng = generator(seed, "demo", "table", person.rid, visit.code)
    noise = 1 + VOLUME_NOISE * rng.standard_normal(3)
    since_baseline = (visit.date - person.visits[0].date).days
    scores = planted.clinical_scores(rng, person.course.mean_severity(person.age, visit.years))
    columns = ("Ventricles", "Hippocampus", "WholeBrain", "Entorhinal", "Fusiform", "MidTemp", "ICV")
    measured: dict[str, int | None] = dict.fromkeys(columns)
    # Real tables lack volumes of some people, so one person has none.
    if volumes is not None and person.rid != 9006:
        measured["Ventricles"] = round(volumes["Lateral ventricle"] * noise[0])
        measured["Hippocampus"] = round(volumes["Hippocampus"] * noise[1])
        measured["Entorhinal"] = round(volumes["Entorhinal area"] * noise[2])
        measured["ICV"] = round(volumes["intracranial"])
    return {
        "RID": person.rid,
        "COLPROT": "ADNI1",
        "ORIGPROT": "ADNI1",
        "PTID": person.ptid,
        "SITE": person.site,
        "VISCODE": visit.code,
        "EXAMDATE": visit.date.isoformat(),
        "DX_bl": _BASELINE_DIAGNOSIS[person.diagnosis],
        "AGE": person.age,
        "PTGENDER": {"F": "Female", "M": "Male"}[person.sex],
        "PTEDUCAT": person.education,
        **dict.fromkeys(("PTETHCAT", "PTRACCAT", "PTMARRY"), "Unknown"),
        "APOE4": person.apoe4,
        "CDRSB": scores["CDRSB"],
        "ADAS13": scores["ADAS13"],
        "MMSE": round(scores["MMSE"]),
        "FLDSTRENG": {1.5: "1.5 Tesla MRI", 3.0: "3 Tesla MRI"}[person.field_strength],
        "FSVERSION": SOURCE,
        "IMAGEUID": visit.image_number if visit.has_image and visit.month == 0 else None,
        **measured,
        "DX": _DIAGNOSIS[visit.diagnosis],
        "EXAMDATE_bl": person.visits[0].date.isoformat(),
        "Years_bl": round(since_baseline / 365.25, 5),
        "Month_bl": round(since_baseline / 30.5, 5),
        "Month": visit.month,
        "M": visit.month,
        "update_stamp": "2025-11-11 00:00:00.0",
    }


def adnimerge_csv(rows: list[dict[str, object]]) -> str:
    """The table as ADNI exports it: comma-separated, every field quoted, missing values empty."""
    frame = pd.DataFrame(rows)
    whole = ["APOE4", "IMAGEUID", "Ventricles", "Hippocampus", "Entorhinal", "ICV"]
    frame[whole] = frame[whole].astype("Int64")
    text: str = frame.to_csv(index=False, quoting=1, lineterminator="\n")
    return text
