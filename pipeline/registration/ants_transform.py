"""ANTs: prepare images, estimate the transform from template to scan, and resample.

ITK uses millimetres to the left, back and up (LPS); everything outside this module is RAS. Importing ANTs takes seconds
and only workers need it, so functions that use it import it themselves.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import nibabel as nib
import numpy as np
import scipy.io
import scipy.ndimage

from heatlas.atlases.spaces import Grid
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.run.config.images import T1W, ImageKind
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import HeatlasError, MissingDataError

LPS_FROM_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
THREADS_VARIABLE = "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"
BOTH_METRICS = "SyNQuick[a]+SyN[0.5,CC2+MI32,8mm:100,4mm:70,2mm:10]"
SYN_QUICK, LINEAR = "antsRegistrationSyNQuick[s]", "antsRegistrationSyNQuick[a]"
TO_4MM = "SyN[0.5,MI32,16mm:100,8mm:70,4mm:10]"
AFFINE: Final = "affine"
AFFINE_TORCH: Final = "affine-torch"
Interpolation = Literal["linear", "genericLabel", "nearestNeighbor"]
NAMED = {"syn": BOTH_METRICS, "syn-quick": SYN_QUICK}
"""Names that a person can type for ANTs' parameters."""
LEVELS_MM = {8.0: 100, 4.0: 70, 2.0: 10}
"""Iterations of SyN by voxel size. ANTs' sets count levels in voxels of the template and stop at 4 mm if the
template has 2 mm, which is too coarse for the ventricles (docs/registration.md)."""
COARSE_LEVELS_MM = {16.0: 100, 8.0: 70, 4.0: 10}
"""The same for `TO_4MM`; its rigid stage has the first two of these widths, its affine stage all."""
_LINEAR_ITERATIONS = (1000, 500, 250)

LOOK = "Look at the scan: it may not be a head, or be cut."


class RegistrationError(HeatlasError):
    """ANTs found no transform between a scan and the template."""


def has_ants() -> bool:
    return importlib.util.find_spec("ants") is not None


def engine_of(transform: str) -> str:
    """The transform as it is made here: affine ones by torch where ANTs is not installed."""
    return AFFINE_TORCH if transform == AFFINE and not has_ants() else transform


def require_ants(
    scans: Iterable[Scan], settings: RegistrationConfig, kinds: Sequence[ImageKind], own_labels: bool = False
) -> None:
    """Check before any work that ANTs is installed if a scan has to be registered by it; it is not imported.

    `own_labels`: whether label images of scans are carried to the template, for ``[objective]``.
    """
    by_torch = engine_of(settings.transform) == AFFINE_TORCH and not settings.bias_correction and {*kinds} == {T1W}
    if not has_ants() and (own_labels or not by_torch) and any(scan.entry != "template" for scan in scans):
        if by_torch:
            raise MissingDataError(
                'objective.region_labels = "own": label images are carried to the template by ANTs, which is not '
                "installed: pip install 'heatlas[registration]', or set \"atlas\"."
            )
        raise MissingDataError(
            "scans are registered by ANTs, which is not installed: pip install 'heatlas[registration]', or give images "
            "that lie in template space (--start-at template). T1-weighted images need no ANTs with "
            'registration.transform = "affine" and bias_correction = false, as in the preset patients.'
        )


@dataclass(frozen=True)
class Volume:
    """An array and the affine (4x4, voxel indices to world RAS+ in mm) of its grid."""

    data: np.ndarray
    affine: np.ndarray

    @property
    def voxel_sizes(self) -> np.ndarray:
        """Edge lengths in mm along the array axes."""
        return np.asarray(np.linalg.norm(self.affine[:3, :3], axis=0))


@dataclass(frozen=True)
class Transforms:
    """Files of a registration, as ANTs writes them.

    A point x of template space (mm) lies in the scan at A(x + u(x)), where u is the field in `warp` and A the
    map in `affine`. The fields live on the box of the template in which the registration ran; outside they are 0.
    An image that was registered through that scan has the map in `rigid` after it.
    """

    affine: Path
    warp: Path
    inverse_warp: Path
    rigid: Path | None = None

    @property
    def template_to_scan(self) -> list[str]:
        return [str(path) for path in (self.warp, self.affine, self.rigid) if path is not None]


def register(fixed: Volume, moving: Volume, transform: str, seed: int, prefix: Path) -> Transforms:
    """Register a scan (moving) to the template (fixed): rigid, affine, then SyN unless `transform` is ``affine``.

    After ``affine`` the displacement is 0, and its files say so. With one thread the result is repeatable to the bit.
    `transform` is the parameter set of `RegistrationConfig`, and `prefix` the start of the names of all files, in a
    folder that the caller removes. RegistrationError if ANTs finds no transform.
    """
    require_one_thread()
    with _ants(seed):
        run_ants(to_ants(fixed), to_ants(moving), NAMED.get(transform, transform), str(prefix), singleprecision=True)
    names = ("0GenericAffine.mat", "1Warp.nii.gz", "1InverseWarp.nii.gz")
    files = Transforms(*[prefix.with_name(prefix.name + name) for name in names])
    if transform == AFFINE and files.affine.is_file():
        for path in (files.warp, files.inverse_warp):
            write_no_displacement(path, fixed)
    if not files.inverse_warp.is_file():
        raise RegistrationError(f"ANTs ended without a result. {LOOK}")
    return files


CENTRES, HEADERS = None, "Identity"
"""Where a search for a rigid map starts: centres of mass on each other, or where the headers put the images."""


def register_rigidly(
    fixed: Volume, moving: Volume, where: np.ndarray, start: str | None, seed: int, prefix: Path
) -> Path:
    """The file of a rigid map from `fixed` to `moving`, by mutual information inside a mask of `fixed`.

    `start` is `CENTRES`, `HEADERS` or the file of a map. With one thread the result is repeatable to the bit.
    """
    require_one_thread()
    import ants

    with _ants(seed):
        ants.registration(
            to_ants(fixed),
            to_ants(moving),
            "Rigid",
            initial_transform=start,
            outprefix=str(prefix),
            mask=to_ants(Volume(where, fixed.affine)),
            mask_all_stages=True,
            aff_random_sampling_rate=0.5,
            aff_iterations=(100, 50),
            aff_shrink_factors=(2, 1),
            aff_smoothing_sigmas=(1, 0),
            singleprecision=True,
        )
    path = prefix.with_name(f"{prefix.name}0GenericAffine.mat")
    if not path.is_file():
        raise RegistrationError(f"ANTs ended without a rigid map. {LOOK}")
    return path


def run_ants(fixed: Any, moving: Any, transform: str, prefix: str, **options: Any) -> None:
    """Call ANTs once or, for `BOTH_METRICS` and `TO_4MM`, once for the linear stages and once for SyN.

    Cross-correlation of neighbourhoods places most regions better, mutual information the ventricles with their sharp
    borders (docs/registration.md). Ten iterations with steps of half a voxel do as well as fifty with steps of a fifth.
    The names of the affine and warp files are the same either way.
    """
    import ants

    if transform == TO_4MM:
        _to_4mm(fixed, moving, prefix, **options)
        return
    if transform not in (BOTH_METRICS, AFFINE):
        ants.registration(fixed, moving, transform, outprefix=prefix, **options)
        return
    ants.registration(fixed, moving, LINEAR, outprefix=prefix, **options)
    if transform == AFFINE:
        return
    ants.registration(
        fixed,
        moving,
        "SyNOnly",
        initial_transform=f"{prefix}0GenericAffine.mat",  # the list that ANTs returns includes files of earlier calls
        outprefix=prefix,
        grad_step=0.5,
        syn_metric="CC",
        syn_sampling=2,
        multivariate_extras=[("MI", fixed, moving, 1, 32)],
        reg_iterations=iterations(min(fixed.spacing)),
        **options,
    )


def _to_4mm(fixed: Any, moving: Any, prefix: str, **options: Any) -> None:
    """Linear stages and SyN by mutual information that end at voxels of 4 mm.

    In SyNQuick at 2 mm, two thirds of the time went into a rigid map at 4 mm, which the affine one finds again, into
    levels of 2 mm without an iteration, and into small steps of SyN.
    """
    import ants

    voxel_mm = min(fixed.spacing)
    shrink = tuple(max(round(width / voxel_mm), 1) for width in COARSE_LEVELS_MM)
    start, levels = None, len(shrink) - 1
    for kind in ("Rigid", "Affine"):
        ants.registration(
            fixed,
            moving,
            kind,
            initial_transform=start,
            outprefix=prefix,
            aff_metric="mattes",
            aff_sampling=32,
            aff_random_sampling_rate=0.25,
            aff_iterations=_LINEAR_ITERATIONS[:levels],
            aff_shrink_factors=shrink[:levels],
            aff_smoothing_sigmas=tuple(width / voxel_mm for width in (6, 4, 2)[:levels]),
            **options,
        )
        start, levels = f"{prefix}0GenericAffine.mat", len(shrink)
    ants.registration(
        fixed,
        moving,
        "SyNOnly",
        initial_transform=start,
        outprefix=prefix,
        grad_step=0.5,
        syn_metric="mattes",
        syn_sampling=32,
        reg_iterations=iterations(voxel_mm, COARSE_LEVELS_MM),
        **options,
    )


def iterations(voxel_mm: float, levels_mm: Mapping[float, int] | None = None) -> tuple[int, ...]:
    """Iterations of SyN from the coarsest level to the template's voxels, halving the width at each level.

    Each level gets the iterations of the nearest width in `levels_mm` (`LEVELS_MM`), and none below the finest.

    >>> iterations(1.0), iterations(2.0), iterations(1.5), iterations(4.0)
    ((100, 70, 10, 0), (100, 70, 10), (100, 70, 10), (100, 70))
    >>> iterations(2.0, COARSE_LEVELS_MM)
    (100, 70, 10, 0)
    """
    levels = LEVELS_MM if levels_mm is None else levels_mm
    finest = round(math.log2(max(levels) / voxel_mm))
    widths = [max(levels) / 2**step for step in range(finest + 1)]
    return tuple(levels.get(width, 0) for width in widths)


def resample(
    moving: Volume,
    transforms: Transforms,
    shape: tuple[int, int, int],
    affine: np.ndarray,
    interpolation: Interpolation = "linear",
) -> np.ndarray:
    """Resample a scan, or an image in its space, on a grid of template space in one interpolation: float32, 0 outside.

    `interpolation`: the others for label images: each voxel takes the label with the largest share (ITK's
    ``LabelImageGenericInterpolateImageFunction``), or that of the voxel in which its centre lies. Voxels are computed
    independently, so the number of threads does not matter.
    """
    if not has_ants():
        return _resample_affinely(moving, transforms, shape, affine, interpolation)
    import ants

    reference = to_ants(Volume(np.zeros(shape, dtype=np.float32), affine))
    result = ants.apply_transforms(
        fixed=reference,
        moving=to_ants(moving),
        transformlist=transforms.template_to_scan,
        interpolator=interpolation,
        singleprecision=True,
    )
    return np.asarray(result.numpy(), dtype=np.float32)


def _resample_affinely(
    moving: Volume, transforms: Transforms, shape: tuple[int, int, int], affine: np.ndarray, interpolation: str
) -> np.ndarray:
    """`resample` without ANTs, of a map without displacement."""
    if interpolation == "genericLabel" or transforms.rigid is not None or read_values(transforms.warp).any():
        raise MissingDataError("a transform needs ANTs, which is not installed: pip install 'heatlas[registration]'.")
    to_voxels = np.linalg.inv(moving.affine) @ read_affine(transforms.affine) @ affine
    order = 1 if interpolation == "linear" else 0
    values = scipy.ndimage.affine_transform(
        moving.data.astype(np.float64), to_voxels[:3, :3], to_voxels[:3, 3], shape, order=order
    )
    return np.asarray(values, dtype=np.float32)


def to_ants(volume: Volume) -> Any:
    """A volume as an ANTs image at the same world position."""
    import ants

    lps = LPS_FROM_RAS @ volume.affine
    spacing = volume.voxel_sizes
    return ants.from_numpy(
        np.ascontiguousarray(volume.data, dtype=np.float32),
        origin=tuple(lps[:3, 3]),
        spacing=tuple(spacing),
        direction=lps[:3, :3] / spacing,
    )


def read_values(path: Path) -> np.ndarray:
    """The voxels of an image that was written here, float32."""
    image: Any = nib.load(path)
    return np.asarray(image.dataobj, dtype=np.float32)


def read_affine(path: Path) -> np.ndarray:
    """Read ITK's affine (``.mat``) as a 4x4 matrix template -> scan in world RAS+ mm.

    ITK stores the matrix M, the translation t and the centre c of y = M (x - c) + c + t, in LPS.
    """
    content = scipy.io.loadmat(path)
    parameters = next(value for name, value in content.items() if name.startswith(("AffineTransform", "MatrixOffset")))
    matrix = np.asarray(parameters[:9], dtype=np.float64).reshape(3, 3)
    translation = np.asarray(parameters[9:], dtype=np.float64).ravel()
    centre = np.asarray(content["fixed"], dtype=np.float64).ravel()
    lps = np.eye(4)
    lps[:3, :3] = matrix
    lps[:3, 3] = centre + translation - matrix @ centre
    return np.asarray(LPS_FROM_RAS @ lps @ LPS_FROM_RAS)


def read_displacement(path: Path) -> np.ndarray:
    """Read ITK's displacement field as (X, Y, Z, 3) float32, mm, world RAS+ components, axes as stored."""
    field = read_values(path)[..., 0, :]
    return np.asarray(field * np.array([-1, -1, 1], dtype=np.float32))


def write_no_displacement(path: Path, grid: Volume) -> None:
    """Write a displacement of 0 on the grid of a volume, as ANTs writes fields."""
    image: Any = nib.nifti1.Nifti1Image(np.zeros((*grid.data.shape, 1, 3), np.float32), grid.affine)  # type: ignore[no-untyped-call]
    image.header.set_intent("vector")
    nib.save(image, path)


def require_one_thread() -> None:
    """Raise an error if ITK would use several threads, whose sums differ from run to run.

    ITK reads the variable when ANTs is loaded, so it must be set before; `pipeline.run.work.executors` does.
    """
    if os.environ.get(THREADS_VARIABLE) != "1":
        raise RuntimeError(
            f"{THREADS_VARIABLE} must be 1 for repeatable registration; start workers through "
            "heatlas.pipeline.run.work.executors.open_executor."
        )


@contextmanager
def _ants(seed: int) -> Iterator[None]:
    """One call of ``antsRegistration``: ANTsPy takes its seed from settings; RegistrationError if it stops."""
    import ants

    ants.config.set_ants_deterministic(on=False, seed_value=seed)  # "on" would reseed numpy and change os.environ
    try:
        yield
    except RuntimeError as error:
        raise RegistrationError(f"ANTs stopped: {error}. {LOOK}") from error
    finally:
        ants.config.set_ants_deterministic(on=False, seed_value=None)


FIELD_VOXEL_MM = 4.0
"""The field is estimated on voxels of at least this size; it varies over centimetres."""


def closest_ras(volume: Volume) -> Volume:
    """Flip and swap the axes of an array so that they run as closely as possible to right, front and up.

    No value is interpolated. ITK's results depend slightly on the order of axes (correlation 0.98 between registrations
    of the same head stored in two orders, at 4 mm), so all scans get the same order.
    """
    order = nib.io_orientation(volume.affine)  # type: ignore[no-untyped-call]
    data = nib.apply_orientation(volume.data, order)  # type: ignore[no-untyped-call]
    inverse = nib.orientations.inv_ornt_aff(order, volume.data.shape)  # type: ignore[no-untyped-call]
    return Volume(np.ascontiguousarray(data), volume.affine @ inverse)


def around_brain(volume: Volume, mask: np.ndarray, margin_mm: float) -> Volume:
    """Crop or pad with 0 to the box of a mask plus a margin, so that the original margin does not matter.

    ITK ignores points outside the moving image; a tightly cropped brain would let the template extend
    beyond its edge at no cost.
    """
    inside = np.nonzero(mask)
    margin = np.ceil(margin_mm / volume.voxel_sizes).astype(int)
    start = np.array([axis.min() for axis in inside]) - margin
    stop = np.array([axis.max() + 1 for axis in inside]) + margin
    box = np.zeros(stop - start, dtype=volume.data.dtype)
    low, high = np.maximum(start, 0), np.minimum(stop, volume.data.shape)
    source = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    target = tuple(slice(a, b) for a, b in zip(low - start, high - start, strict=True))
    box[target] = volume.data[source]
    affine = volume.affine.copy()
    affine[:3, 3] = (volume.affine @ np.append(start, 1))[:3]
    return Volume(box, affine)


def coarsen(volume: Volume, voxel_mm: float) -> Volume:
    r"""Resample to `voxel_mm` along every axis that is finer; other axes do not change.

    Before sampling, a Gaussian takes the resolution from voxel size s to t: its full width at half maximum is
    :math:`\sqrt{t^2 - s^2}` (Cardoso et al. 2015, doi:10.1007/978-3-319-24571-3_81). The field of view keeps its
    centre.
    """
    sizes = volume.voxel_sizes
    wanted = np.where(sizes < voxel_mm * (1 - 1e-3), voxel_mm, sizes)
    factor = wanted / sizes
    if np.allclose(factor, 1):
        return volume
    full_width = np.sqrt(wanted**2 - sizes**2) / sizes
    smooth = scipy.ndimage.gaussian_filter(volume.data, full_width / np.sqrt(8 * np.log(2)), mode="nearest", truncate=3)
    old = np.array(volume.data.shape)
    new = np.maximum(np.ceil(old / factor), 1).astype(int)
    offset = ((old - 1) - (new - 1) * factor) / 2
    data = scipy.ndimage.affine_transform(smooth, np.diag(factor), offset, tuple(new), order=1, mode="nearest")
    scaling = np.diag(np.append(factor, 1.0))
    scaling[:3, 3] = offset
    return Volume(data, volume.affine @ scaling)


def on_grid(volume: Volume, grid: Grid) -> np.ndarray:
    """Linear interpolation on a grid of the same space, after smoothing to its voxel size; 0 outside the image."""
    smooth = coarsen(volume, min(grid.voxel_sizes_mm))
    to_source = np.linalg.inv(smooth.affine) @ grid.affine
    values = scipy.ndimage.affine_transform(
        smooth.data, to_source[:3, :3], to_source[:3, 3], grid.shape, order=1, mode="grid-constant"
    )
    return np.asarray(values, dtype=np.float32)


def correct_bias_field(volume: Volume, mask: np.ndarray) -> np.ndarray:
    """Divide an image by its bias field, estimated inside a mask.

    N4 (Tustison et al. 2010, doi:10.1109/TMI.2010.2046908) with the default parameters of ANTs; voxels outside the mask
    are divided by the same smooth field.
    """
    require_one_thread()
    import ants

    shrink = math.ceil(FIELD_VOXEL_MM / float(volume.voxel_sizes.min()) - 1e-3)
    field = ants.n4_bias_field_correction(
        to_ants(volume), mask=to_ants(Volume(mask, volume.affine)), shrink_factor=shrink, return_bias_field=True
    ).numpy()
    return np.asarray(volume.data / np.maximum(field, np.float32(1e-3)), dtype=np.float32)
