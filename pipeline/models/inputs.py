"""From a scan in template space to what a network sees, and from a map over that back to template space.

The network sees intensities scaled to [0, 1] inside the scan's brain mask, with a background of exactly 0, on
the template grid or on the part of it that holds the brain. For networks that are trained and tested without some
regions, voxels are replaced by the same tissue in every scan, as a file says, whenever a scan is read; no copy of a
scan is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from heatlas.atlases.spaces import DEFAULT_SPAN, UNREADABLE, Box, Grid, Placed, Span, require_same_grid, template_grid
from heatlas.atlases.templates import Template, brain_box, configured_template, span_of
from heatlas.pipeline.models.families.foreign import Feeding, ForeignConfig
from heatlas.pipeline.models.families.registry import family_of
from heatlas.pipeline.models.foreign.feeding import network_grid, scaled
from heatlas.pipeline.run.config.images import template_name
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.jobs import require_registered


def write_tissue(path: Path, replaced: NDArray[np.bool_], tissue: NDArray[np.floating]) -> None:
    """Write (NPZ) the voxels to be replaced and what replaces them, (D, H, W) as the network sees them."""
    with path.open("wb") as handle:
        np.savez(
            handle, shape=replaced.shape, voxels=np.flatnonzero(replaced), values=tissue[replaced].astype(np.float32)
        )


def with_tissue(volume: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """A volume in which the voxels of a file from `write_tissue` are replaced."""
    with np.load(path, allow_pickle=False) as file:
        shape = tuple(file["shape"].tolist())
        if shape != volume.shape:
            raise BadInputError(f"{path.name}: tissue on the grid {shape}, the network sees {volume.shape}.")
        changed = volume.copy()
        changed.reshape(-1)[file["voxels"]] = file["values"]
    return changed


MARGIN_MM = 2.0
"""Kept around the template's brain at least: a registered brain reaches a little beyond it."""
Normalisation = Literal["minmax-brain", "percentile-brain", "binary-brain"]
PERCENTILES = (0.5, 99.5)
"""Percentiles that ``percentile-brain`` maps to 0 and 1."""


@dataclass(frozen=True)
class NetworkInput:
    """What a network sees of a scan in template space.

    `resolution_mm`: voxel size of the template grid. `box`: part of the template grid that is seen; None for all of it.
    `normalisation`: ``minmax-brain``: minimum and maximum inside the brain mask become 0 and 1, the background 0.
    ``percentile-brain``: the same with the `PERCENTILES` inside; what lies beyond becomes 0 or 1. ``binary-brain``: 1
    inside the brain mask, 0 outside: the control of Tinauer et al. (2025), whose networks see nothing but the contour
    of the brain extraction. `span`: of the template (`atlases.spaces.Span`), which the template grid is made from.
    `images`: suffixes of the kinds of images that enter, one channel each; empty for one image of any kind.
    `feeding`: the input contract of a network that others trained, which says its scaling in place of `normalisation`.
    """

    resolution_mm: float
    box: Box | None
    normalisation: Normalisation = "minmax-brain"
    span: Span = DEFAULT_SPAN
    images: tuple[str, ...] = ()
    feeding: Feeding | None = None

    @property
    def channels(self) -> int:
        return self.feeding.channels if self.feeding else max(len(self.images), 1)

    @property
    def template_grid(self) -> Grid:
        return template_grid(self.resolution_mm, self.span)

    @property
    def grid(self) -> Grid:
        return self.template_grid if self.box is None else self.box.grid(self.template_grid)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.template_grid.shape if self.box is None else self.box.shape


def configured_input(config: Config) -> NetworkInput:
    settings = config.registration
    if isinstance(config.model, ForeignConfig) and config.model.scaling:
        return _by_contract(config, config.model.feeding)
    whole = config.model.field_of_view == "template"
    box = None if whole else covering_box(configured_template(settings), config.model)
    scaling: Normalisation = "percentile-brain" if config.model.intensities == "percentiles" else "minmax-brain"
    shown: Normalisation = "binary-brain" if config.training.control == "binarised" else scaling
    kinds = tuple(kind.suffix for kind in config.cohort.kinds)
    images = kinds if len(kinds) > 1 else ()
    return NetworkInput(settings.resolution_mm, box, shown, span_of(settings.template), images)


def _by_contract(config: Config, feeding: Feeding) -> NetworkInput:
    """Refuses what would feed a network otherwise than its input contract says."""
    settings, span = config.registration, span_of(config.registration.template)
    whole, name = template_grid(settings.resolution_mm, span), template_name(settings.template)
    placed = Placed.on(network_grid(feeding, whole), whole)
    finest = min(placed.grid(whole).voxel_sizes_mm)
    method = "affine" if settings.affine_only else "nonlinear"
    problems = {
        "model.head = true, and runs feed brains": feeding.head,
        f"model.space is {feeding.space}, and registration.template {name}": feeding.space not in ("", name),
        f"model.registered is {feeding.registered}, and registration.transform {method}": (
            feeding.registered not in ("", method)
        ),
        f"the network saw voxels of {finest:.3g} mm, and registration.resolution_mm is {settings.resolution_mm:g}": (
            settings.resolution_mm > 1.01 * finest
        ),
        "an input contract is of one image, and the cohort has several kinds": len(config.cohort.kinds) > 1,
    }
    if wrong := [text for text, holds in problems.items() if holds]:
        raise UsageError(f"{wrong[0]}: change the run, or prepare images elsewhere and use heatlas.explain.")
    return NetworkInput(settings.resolution_mm, placed, span=span, feeding=feeding)


def covering_box(template: Template, network: ModelConfig) -> Box:
    """The smallest box around the brain of which the network sees every voxel.

    Where pooling rounds down, the last voxels of an axis reach no feature in a box of any other size, and what lies
    there could never be relevant. The brain sits in the middle, as far as the template grid allows. Where such a box
    is larger than the grid, it is the largest that fits: what then stays unseen is cut evenly from both ends.
    """
    family, tight = family_of(network), brain_box(template, MARGIN_MM)
    starts, sides = [], []
    for start, side, limit in zip(tight.start, tight.shape, template.grid.shape, strict=True):
        wanted = family.covering_side(side, network)
        if wanted > limit:  # of a grid that is too small for the network, all: the refusal names the whole grid
            wanted = family.seen_side(limit, network) if limit >= family.smallest_side(network) else limit
        starts.append(min(max(start - (wanted - side) // 2, 0), limit - wanted))
        sides.append(wanted)
    return Box((starts[0], starts[1], starts[2]), (sides[0], sides[1], sides[2]))


def scale_in_mask(volume: np.ndarray, mask: np.ndarray, percentiles: tuple[float, float] = (0.0, 100.0)) -> np.ndarray:
    """Map two percentiles inside the mask, usually minimum and maximum, to 0 and 1, and everything outside to 0."""
    if volume.shape != mask.shape:
        raise BadInputError(f"image has shape {volume.shape} but its brain mask {mask.shape}; register the scan again.")
    inside = volume[mask].astype(np.float32)
    if not inside.size:
        raise BadInputError("brain mask is empty; check the registration of this scan.")
    low, high = map(float, np.percentile(inside, percentiles))
    if not math.isfinite(high - low):
        raise BadInputError("intensities inside the brain mask are not finite; check the image.")
    if low == high:
        raise BadInputError(f"all intensities inside the brain mask are {low:g}; check the image.")
    scaled = np.zeros(volume.shape, np.float32)
    scaled[mask] = np.clip((inside - np.float32(low)) / np.float32(high - low), 0, 1)
    return scaled


def to_network(volume: np.ndarray, mask: np.ndarray, spec: NetworkInput) -> np.ndarray:
    """What the network sees of one image in template space; voxels of the mask above 0.5 are brain."""
    if spec.feeding is not None and spec.box is not None:
        return scaled(spec.box.crop(_on_grid(volume, spec)), spec.feeding)
    seen = scale_volume(volume, mask, spec)
    return seen if spec.box is None else np.ascontiguousarray(spec.box.crop(seen))


def scale_volume(volume: np.ndarray, mask: np.ndarray, spec: NetworkInput) -> np.ndarray:
    """One image in template space on the network's scale, whole; voxels of the mask above 0.5 are brain."""
    volume = _on_grid(volume, spec)
    if spec.feeding is not None and spec.box is not None:
        return scaled(volume, spec.feeding, like=spec.box.crop(volume))
    ends = PERCENTILES if spec.normalisation == "percentile-brain" else (0.0, 100.0)
    seen = scale_in_mask(volume, mask > 0.5, ends)
    if spec.normalisation == "binary-brain":  # the same scans are refused as in the run that it is compared with
        seen = (mask > 0.5).astype(np.float32)
    return seen


def _on_grid(volume: np.ndarray, spec: NetworkInput) -> np.ndarray:
    if volume.shape != spec.template_grid.shape:
        raise BadInputError(
            f"image has shape {volume.shape} but the template grid at {spec.resolution_mm:g} mm "
            f"{spec.template_grid.shape}; register the scan at the resolution of this run."
        )
    return volume.astype(np.float32, copy=False)


def from_network(values: np.ndarray, spec: NetworkInput) -> np.ndarray:
    """Put a map (..., D, H, W) over the network's input on the template grid; 0 where the network sees nothing."""
    if values.shape[-3:] != tuple(spec.shape):
        raise ValueError(f"map has shape {values.shape[-3:]} but the network's input {tuple(spec.shape)}.")
    return values if spec.box is None else spec.box.paste(values, spec.template_grid.shape)


def read_channels(files: ScanFiles, spec: NetworkInput) -> np.ndarray:
    """Read a registered scan as the network sees it; float32, shape (channels, *``spec.shape``).

    Each image is scaled by itself, inside the one brain mask. Voxels of ``files.tissue``, if there is such a file, are
    replaced last, on the network's scale.
    """
    images = (files.suffix, *files.further)
    if len(images) != max(len(spec.images), 1) or (spec.images and images != spec.images):
        seen = ", ".join(spec.images) or "one image"
        raise BadInputError(
            f"{files.name}: its images are {', '.join(images)}, and the network sees {seen}. Train again with heatlas "
            "run, or set cohort.suffix and cohort.further_suffixes as they were."
        )
    if spec.feeding is not None:
        return as_channels(read_network_volume(files, spec), spec)
    return _read(files, files.images, spec)


def as_channels(volume: NDArray[np.float32], spec: NetworkInput) -> NDArray[np.float32]:
    """One image (D, H, W) as a network takes it, (channels, D, H, W): by an input contract maybe several times."""
    return np.repeat(volume[None], 1 if spec.feeding is None else spec.channels, axis=0)


def read_network_volume(files: ScanFiles, spec: NetworkInput) -> np.ndarray:
    """Read the first image of a registered scan, scaled as a network sees it; float32, shape ``spec.shape``."""
    first: np.ndarray = _read(files, files.images[:1], spec)[0]
    return first


def _read(files: ScanFiles, images: Sequence[Path], spec: NetworkInput) -> np.ndarray:
    require_registered(files)
    *volumes, mask = (_on_template(path, spec) for path in (*images, files.brain_mask))
    seen: list[np.ndarray] = []
    for path, values in zip(images, volumes, strict=True):
        try:
            seen.append(to_network(values, mask, spec))
        except BadInputError as error:
            raise BadInputError(f"{path}: {error}") from error
    return np.stack(seen if files.tissue is None else [with_tissue(values, files.tissue) for values in seen])


def _on_template(path: Path, spec: NetworkInput) -> np.ndarray:
    """The voxels of a file that must lie on the template grid."""
    try:
        image = nib.nifti1.Nifti1Image.from_filename(path)
        values: np.ndarray = np.asanyarray(image.dataobj)
    except UNREADABLE as error:
        raise BadInputError(f"{path}: cannot be read ({error}); run the registration again.") from error
    require_same_grid(Grid.of(image), spec.template_grid, path.name)
    return values
