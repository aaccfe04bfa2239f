"""DICOM series and Analyze pairs to NIfTI, one unit of work each, before registration.

The converter is dcm2niix, from its PyPI wheel. Even its anonymised output has times and free text in the headers
(StudyDescription, ImageComments), and institution and serial numbers in the sidecars. Only grey values, affine, the
numbers of `_NUMBERS` and words of fixed lists are kept. The DICOM files are read through links in a scratch folder.
Pairs get the orientation that `pipeline.cohort.images.pairs` states.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from importlib import metadata
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from heatlas.atlases.images import UNREADABLE
from heatlas.pipeline.cohort.images.dicom import DicomSeries, series_of
from heatlas.pipeline.cohort.images.file_kinds import dicom_files, is_image
from heatlas.pipeline.cohort.images.orientation import by
from heatlas.pipeline.cohort.images.pairs import header_of, is_pair, load_pair
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.documents import LARGEST_JSON, json_object
from heatlas.pipeline.run.errors import BadInputError, MissingDataError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import sidecar
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.regular_files import read_regular
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.digests import unit_key
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE, Job, Outcome, run_jobs

STAGE = "conversion"
TIMEOUT_S = 900
_OPTIONS = ("-b", "y", "-ba", "y", "-z", "n", "-g", "i", "-f", "scan")
"""Sidecar, anonymised; uncompressed; no settings from the user's home; a fixed name."""
_NUMBERS = (
    *("MagneticFieldStrength", "EchoTime", "RepetitionTime", "InversionTime", "FlipAngle", "SliceThickness"),
    *("SpacingBetweenSlices", "PixelBandwidth", "ParallelReductionFactorInPlane"),
)
_WORDS = {
    "Manufacturer": ("Siemens", "GE", "Philips", "Toshiba", "Canon", "Hitachi", "UIH", "Bruker"),
    "MRAcquisitionType": ("2D", "3D"),
}


def convert_scans(
    layout: RunLayout,
    input_root: Path,
    scans: Sequence[Scan],
    max_voxel_mm: float,
    executor: Executor,
    changed: Callable[[Job, Scan], Job] | None = None,
) -> tuple[list[Scan], list[Outcome]]:
    """Convert every kept scan that is a DICOM series or an Analyze pair.

    `input_root`: folder that the image paths of the scans start from; only read. `scans`: NIfTI images and dropped
    scans are passed through. `max_voxel_mm`: series with thicker slices fail, as in the check. `changed`: gives another
    job for the conversion of a scan, as `pipeline.registration.images.faces.without_face` does. Returns `scans`: the
    same scans without those that failed; `Scan.location` of a converted scan is its NIfTI image. `outcomes`: one per
    series; a failed one is a row of ``failures.tsv``.
    """
    series = {scan.name: scan for scan in scans if scan.kept and scan.image is not None and not is_image(scan.file)}
    jobs = [_job(layout, input_root.resolve(), scan, max_voxel_mm) for scan in series.values()]
    if changed is not None:
        jobs = [changed(job, scan) for job, scan in zip(jobs, series.values(), strict=True)]
    if not jobs:
        _forget_failures(layout)
        return list(scans), []
    outcomes = run_jobs(layout, jobs, executor, "Conversion to NIfTI")
    images = {outcome.job.unit: outcome.job.outputs["image"] for outcome in outcomes if outcome.ok}
    converted = [
        dataclasses.replace(scan, location=str(images[scan.name])) if scan.name in images else scan
        for scan in scans
        if scan.name in images or scan.name not in series
    ]
    return converted, outcomes


def convert_one(outputs: dict[str, Path], root: Path, file: str, source: str, max_voxel_mm: float) -> Mapping[str, Any]:
    """Job: convert one series or pair.

    BadInputError if the series or pair is not complete, or dcm2niix does not make one volume of it. MissingDataError if
    dcm2niix is not installed.

    `outputs`: image (``.nii.gz``) and sidecar. `root`: input folder, resolved. `file`: one file of the series, or the
    image of the pair, relative to `root`. `source`: what messages and sidecar call it.
    """
    if is_pair(file):
        return _convert_pair(outputs, root, file, source)
    series = series_of(root, file, dicom_files(root / file), max_voxel_mm)
    if series is None or series.problem is not None:
        why = "is no readable DICOM file any more" if series is None else series.problem or ""
        why = why if source == file else why.partition(":")[0]  # it names files, which outputs may not
        raise BadInputError(f"{source}: {why}.")
    with tempfile.TemporaryDirectory(dir=outputs["image"].parent) as scratch:
        volumes, sidecar_content = _run_dcm2niix(root, series, Path(scratch), source)
        raw, affine = _one_volume(volumes, source, series)
    _write_image(outputs["image"], raw, affine)
    record = {
        "Sources": [f"bids:raw:{source}"],
        "Slices": int(series.size.split()[0]),
        **_kept_fields(sidecar_content),
        "ConversionSoftware": "dcm2niix",
        "ConversionSoftwareVersion": metadata.version("dcm2niix"),
    }
    write_json(outputs["sidecar"], record)
    return {"series": series.name, "shape": by(raw.shape)}


def _convert_pair(outputs: dict[str, Path], root: Path, file: str, source: str) -> Mapping[str, Any]:
    try:
        raw, affine = load_pair(root / file)
    except BadInputError as error:
        raise BadInputError(str(error).replace(str(root / file), source)) from error
    except UNREADABLE as error:
        raise BadInputError(f"{source}: cannot be read ({error}). Download the session again.") from error
    _write_image(outputs["image"], raw, affine)
    axes = "".join(nib.orientations.aff2axcodes(affine))  # type: ignore[no-untyped-call]
    write_json(outputs["sidecar"], {"Sources": [f"bids:raw:{source}"], "AxesOfTheVoxels": axes})
    return {"axes": axes, "shape": by(raw.shape)}


def _write_image(path: Path, raw: np.ndarray, affine: np.ndarray) -> None:
    clean: Any = nib.Nifti1Image(raw, affine)  # type: ignore[no-untyped-call]
    clean.header.set_xyzt_units("mm")
    clean.set_sform(affine, 1)
    clean.set_qform(affine, 1)
    clean.to_filename(path)


def _job(layout: RunLayout, root: Path, scan: Scan, max_voxel_mm: float) -> Job:
    source = scan.image or ""
    files = layout.scan(scan.participant_id, scan.session_id, 1.0)
    # Hundreds of slices are identified by name, size and time: digesting them would take longer than conversion. A
    # copied input is converted again to the same bytes, and so is not registered again.
    stamps: dict[str, str] = {}
    folder = (root / scan.file).parent
    halves = (Path(scan.file).name, header_of(Path(scan.file).name))
    for name in halves if is_pair(scan.file) else dicom_files(root / scan.file):
        try:
            status = (folder / name).stat()
            stamps[name] = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            stamps[name] = "unreadable"
    outputs = {"image": files.converted, "sidecar": sidecar(files.converted)}
    key = unit_key(stamps, [source, max_voxel_mm, _version()], convert_one)
    return Job(STAGE, files.name, key, outputs, convert_one, (root, scan.file, source, max_voxel_mm))


def _forget_failures(layout: RunLayout) -> None:
    """Take conversions that failed in an earlier run out of ``failures.tsv``: their series are no longer used."""
    if layout.failures.is_file():
        rows = FAILURES_TABLE.read(layout.failures)
        if (rows["stage"] == STAGE).any():
            FAILURES_TABLE.write(layout.failures, rows[rows["stage"] != STAGE])


def _version() -> str:
    try:
        return metadata.version("dcm2niix")
    except metadata.PackageNotFoundError:
        return "absent"


def dcm2niix_binary() -> Path:
    """The converter of the installed wheel."""
    spec = importlib.util.find_spec("dcm2niix")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        for name in ("dcm2niix", "dcm2niix.exe"):
            if (Path(folder) / name).is_file():
                return Path(folder) / name
    raise MissingDataError("dcm2niix is needed to read DICOM and is not installed: pip install dcm2niix.")


def _run_dcm2niix(root: Path, series: DicomSeries, scratch: Path, source: str) -> tuple[list[Path], dict[str, Any]]:
    """Convert the files of one series; gives the images written and the sidecar of the first."""
    binary = dcm2niix_binary()
    links, target = scratch / "in", scratch / "out"
    links.mkdir()
    target.mkdir()
    for index, file in enumerate(series.files):
        # Hides the other series of the folder, and unusual characters in paths, from the converter.
        (links / f"{index:06d}.dcm").symlink_to(root / file)
    command = [str(binary), *_OPTIONS, "-o", str(target), str(links)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DCM2NIIX")}
    try:
        # What it prints may quote the header, so it is not kept.
        subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BadInputError(
            f"{source}: dcm2niix did not finish within {TIMEOUT_S} s. Convert the series by hand and give it as NIfTI."
        ) from error
    volumes = sorted(target.glob("*.nii"))
    try:  # names in it may be in any encoding
        return volumes, json_object(read_regular(target / "scan.json", LARGEST_JSON).decode(errors="replace"))
    except (OSError, ValueError):
        return volumes, {}


def _one_volume(volumes: Sequence[Path], source: str, series: DicomSeries) -> tuple[np.ndarray, np.ndarray]:
    """Grey values and affine of the one image that was written; none, several or missing slices are refused."""
    by_hand = "Look at it with dcm2niix by hand, or give the scan as NIfTI."
    if not volumes:
        raise BadInputError(f"{source}: dcm2niix makes no image of {series.name}. {by_hand}")
    if len(volumes) > 1:
        made = f"{counted(len(volumes), 'image')} of {series.name}"
        raise BadInputError(
            f"{source}: dcm2niix makes {made}, so it holds more than one volume or its slices are unevenly spaced. "
            f"{by_hand}"
        )
    converted: Any = nib.load(volumes[0])
    slope, intercept = converted.dataobj.slope, converted.dataobj.inter
    raw = np.asanyarray(converted.dataobj.get_unscaled() if (slope, intercept) == (1, 0) else converted.dataobj)
    if raw.dtype == np.float64:
        raw = raw.astype(np.float32)
    if raw.ndim != 3 or (len(series.files) > 1 and len(series.files) not in raw.shape):
        raise BadInputError(
            f"{source}: dcm2niix makes an image of {by(raw.shape)} voxels of {series.name}; one volume with all slices "
            f"is needed. {by_hand}"
        )
    return raw, converted.affine


def _kept_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of dcm2niix's sidecar that are safe to keep: numbers, and words of fixed lists."""
    numbers = {name: content[name] for name in _NUMBERS if isinstance(content.get(name), int | float)}
    words = {name: content[name] for name, known in _WORDS.items() if content.get(name) in known}
    return {**numbers, **words}
