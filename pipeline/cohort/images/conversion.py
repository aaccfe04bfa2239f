"""DICOM series and Analyze pairs to NIfTI, one unit of work each, before registration.

Even the anonymised output of dcm2niix has times and free text in the headers (StudyDescription, ImageComments), and
institution and serial numbers in the sidecars. Only grey values, affine, the numbers of `_NUMBERS` and words of fixed
lists are kept.

The header of an Analyze 7.5 pair (``.hdr`` and ``.img``) has no map to the world, so left and right must be known from
elsewhere: `AXES` states them by folder for the OASIS data sets. Sources: the fact sheet of OASIS (sagittal and
transverse; a capsule of vitamin E marked the left side in the scanner, Marcus et al. 2007); A. Winkler, "Converting
OASIS brains to NIFTI" (brainder.org, 2011), who derives ASL from that capsule; Clinica's ``oasis-to-bids``, whose
matrix for SUBJ_111 is ASL too; Analyze's own convention for transverse images, LAS. A pair whose header is NIfTI (magic
``ni1``, as of OASIS-2) and states an orientation is read by it.
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

from heatlas.atlases.spaces import UNREADABLE
from heatlas.pipeline.cohort.images import headers
from heatlas.pipeline.cohort.images.dicom import DicomSeries, series_of
from heatlas.pipeline.cohort.images.files import dicom_files, is_image, link_problem
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.documents import LARGEST_JSON, irregular_kind, json_object, read_regular
from heatlas.pipeline.run.errors import BadInputError, MissingDataError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import sidecar
from heatlas.pipeline.run.plain_text import counted
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
    """Convert every kept scan that is a DICOM series or an Analyze pair; others are passed through.

    `changed`: gives another job for the conversion of a scan, as `pipeline.registration.images.faces.without_face`
    does. Gives the scans without those that failed, with the NIfTI image as `Scan.location`, and one outcome per
    series.
    """
    series = {scan.name: scan for scan in scans if scan.kept and scan.image is not None and not is_image(scan.file)}
    jobs = [_job(layout, input_root.resolve(), scan, max_voxel_mm) for scan in series.values()]
    if changed is not None:
        jobs = [changed(job, scan) for job, scan in zip(jobs, series.values(), strict=True)]
    if not jobs:
        if layout.failures.is_file():  # conversions that failed in an earlier run: their series are no longer used
            rows = FAILURES_TABLE.read(layout.failures)
            if (rows["stage"] == STAGE).any():
                FAILURES_TABLE.write(layout.failures, rows[rows["stage"] != STAGE])
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
    """Job: convert one series or pair to an image (``.nii.gz``) and its sidecar.

    `file`: one of the series, or the image of the pair. `source`: what messages and sidecar call it.
    """
    if is_pair(file):
        return _convert_pair(outputs, root, file, source)
    series = series_of(root, file, dicom_files(root / file), max_voxel_mm)
    if series is None or series.problem is not None:
        why = "is no readable DICOM file any more" if series is None else series.problem or ""
        why = why if source == file else why.partition(":")[0]  # it names files, which outputs may not
        raise BadInputError(f"{source}: {why}.")
    with tempfile.TemporaryDirectory(dir=outputs["image"].parent) as scratch:
        volumes, content = _run_dcm2niix(root, series, Path(scratch), source)
        raw, affine = _one_volume(volumes, source, series)
    _write_image(outputs["image"], raw, affine)
    record = {
        "Sources": [f"bids:raw:{source}"],
        "Slices": int(series.size.split()[0]),
        **{name: content[name] for name in _NUMBERS if isinstance(content.get(name), int | float)},
        **{name: content[name] for name, allowed in _WORDS.items() if content.get(name) in allowed},
        "ConversionSoftware": "dcm2niix",
        "ConversionSoftwareVersion": metadata.version("dcm2niix"),
    }
    write_json(outputs["sidecar"], record)
    return {"series": series.name, "shape": headers.by(raw.shape)}


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
    return {"axes": axes, "shape": headers.by(raw.shape)}


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


def _version() -> str:
    try:
        return metadata.version("dcm2niix")
    except metadata.PackageNotFoundError:
        return "absent"


def dcm2niix_binary() -> Path:
    """The converter of the installed wheel."""
    spec = importlib.util.find_spec("dcm2niix")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for path in (Path(folder, name) for folder in folders for name in ("dcm2niix", "dcm2niix.exe")):
        if path.is_file():
            return path
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
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=TIMEOUT_S,
            check=False,
        )
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
        result = f"{counted(len(volumes), 'image')} of {series.name}"
        raise BadInputError(
            f"{source}: dcm2niix makes {result}, so it holds more than one volume or its slices are unevenly spaced. "
            f"{by_hand}"
        )
    converted: Any = nib.load(volumes[0])
    slope, intercept = converted.dataobj.slope, converted.dataobj.inter
    raw = np.asanyarray(converted.dataobj.get_unscaled() if (slope, intercept) == (1, 0) else converted.dataobj)
    if raw.dtype == np.float64:
        raw = raw.astype(np.float32)
    if raw.ndim != 3 or (len(series.files) > 1 and len(series.files) not in raw.shape):
        raise BadInputError(
            f"{source}: dcm2niix makes an image of {headers.by(raw.shape)} voxels of {series.name}; one volume with "
            f"all slices is needed. {by_hand}"
        )
    return raw, converted.affine


AXES = {"SUBJ_111": "ASL", "RAW": "ASL", "T88_111": "LAS"}
"""Towards what the first, second and third index rise, by folder.

SUBJ_111 is the average of a session's scans (256 x 256 x 160 voxels of 1 mm), RAW one scan (256 x 256 x 128 of 1 x 1 x
1.25 mm), T88_111 the average in the atlas of Talairach (176 x 208 x 176 of 1 mm).
"""
_DIRECTIONS = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1)}
_NIFTI_PAIR = b"ni1\0"


def is_pair(name: str) -> bool:
    """Whether a file is the image of a pair by its name."""
    return name.lower().endswith(".img")


def header_of(image: str) -> str:
    """Path of the header of a pair.

    >>> header_of("RAW/mpr-1.nifti.img")
    'RAW/mpr-1.nifti.hdr'
    """
    return image[: -len("img")] + ("HDR" if image.endswith("IMG") else "hdr")


def stated_affine(axes: str, shape: tuple[int, ...], zooms: np.ndarray) -> np.ndarray:
    """Affine of a volume by the directions of its indices; the world's origin is the middle of the volume.

    >>> stated_affine("ASL", (3, 3, 3), np.ones(3)).astype(int).tolist()
    [[0, 0, -1, 1], [1, 0, 0, -1], [0, 1, 0, -1], [0, 0, 0, 1]]
    """
    affine = np.eye(4)
    affine[:3, :3] = 0.0
    for index, letter in enumerate(axes):
        axis, sign = _DIRECTIONS[letter]
        affine[axis, index] = sign * zooms[index]
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return affine


def read_pair(path: Path) -> tuple[np.ndarray, bool] | str:
    """Affine of a pair by its image file, and whether its header is NIfTI; or why it cannot be read."""
    header_file = path.with_name(header_of(path.name))
    for half, name in ((path, "image"), (header_file, "header")):
        if not half.exists():
            return f"pair without its {name}: {half.name} is missing; download the session again"
        kind = irregular_kind(half)
        if kind is not None:
            return f"not a file: {kind}"
    with header_file.open("rb") as handle:
        block = handle.read(348)
    if len(block) < 348:
        return f"not a readable header: only {len(block)} bytes, fewer than a header has"
    if 348 not in (int.from_bytes(block[:4], "little"), int.from_bytes(block[:4], "big")):
        return "not a readable header: it does not begin like one of Analyze 7.5"
    is_nifti = block[344:348] == _NIFTI_PAIR
    reader: Any = nib.nifti1.Nifti1PairHeader if is_nifti else nib.AnalyzeHeader
    header = reader(block, check=False)
    problem = headers.geometry_problem(header)
    if problem is not None:
        return problem
    voxels = int(np.prod(header.get_data_shape()))
    needed = voxels * int(header.get_data_dtype().itemsize)
    size = path.stat().st_size
    if size < needed:
        return f"truncated file: {size} bytes of {needed}"
    if is_nifti and (int(header["sform_code"]) > 0 or int(header["qform_code"]) > 0):
        chosen = headers.choose_orientation(header)
        return (chosen.affine, is_nifti) if isinstance(chosen, headers.Orientation) else chosen
    zooms = np.asarray(header["pixdim"][1:4], dtype=np.float64)
    low, high = headers.VOXEL_SIZE_MM
    if not np.all((zooms >= low) & (zooms <= high)):  # also where it is not a number
        return f"impossible voxel size: {headers.by(zooms)} mm"
    axes = AXES.get(path.parent.name)
    if axes is None:
        return f"no orientation is known for images in {path.parent.name}; known are {', '.join(AXES)}"
    return stated_affine(axes, header.get_data_shape()[:3], zooms), is_nifti


def check_pair(root: Path, image: str, max_voxel_mm: float) -> headers.HeaderFinding:
    """Check a pair as `pipeline.cohort.images.headers.check_header` checks a NIfTI file."""
    try:
        for half in (image, header_of(image)):
            problem = link_problem(root, half)
            if problem is not None and (root / half).exists():
                return headers.HeaderFinding(problem)
        pair = read_pair(root / image)
    except PermissionError:
        return headers.HeaderFinding("no permission to read it")
    except (*UNREADABLE, KeyError) as error:
        return headers.HeaderFinding(f"not a readable pair: {' '.join(str(error).split())[:120]}")
    if isinstance(pair, str):
        return headers.HeaderFinding(pair)
    return headers.HeaderFinding(headers.thickness_problem(pair[0], max_voxel_mm))


def load_pair(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (3D, in the byte order of this machine) and affine of a pair."""
    pair = read_pair(path)
    if isinstance(pair, str):
        raise BadInputError(f"{path}: {pair}.")
    affine, is_nifti = pair
    kind: Any = nib.Nifti1Pair if is_nifti else nib.AnalyzeImage  # plain Analyze has no scaling
    stored = np.asanyarray(kind.from_filename(path).dataobj)
    voxels = stored.reshape(stored.shape[:3])
    if voxels.dtype == np.float64:
        voxels = voxels.astype(np.float32)
    return voxels.astype(voxels.dtype.newbyteorder("=")), affine
