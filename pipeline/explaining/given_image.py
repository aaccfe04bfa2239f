"""What users of `heatlas.explain` give: an image, controls and further inputs become what a network takes.

Images become volumes with the place of their voxels, and a network of several inputs becomes one of its volume alone,
the others being held fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from nibabel.analyze import AnalyzeHeader
from nibabel.arrayproxy import ArrayProxy
from torch import Tensor, fx, nn

from heatlas.atlases.spaces import UNREADABLE, Grid
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.models.families.foreign import Feeding
from heatlas.pipeline.models.foreign.feeding import fed
from heatlas.pipeline.models.storage import is_plain_tensor
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.host import on_host

Image = Any
"""A path, an image of nibabel, or an array or tensor (D, H, W) or (C, D, H, W) that the network takes as it is."""
Others = Sequence[Any] | Mapping[str, Any]
"""Further inputs of a network in the order it takes them after the volume, or by name."""
UNSTATED = 2
_MOST_PACKED = 1032
"""Bytes that one of gzip's can hold."""


@dataclass(frozen=True, eq=False)
class GivenImage:
    """An image as the network takes it.

    `volume`: (1, C, D, H, W). `affine`: from voxels to millimetres; of an array, from voxels to voxels. `nowhere`: why
    nothing says where its voxels are; empty if the image does. `space`: NIfTI's code of the space that the millimetres
    are of (1 of the scanner, 3 and 4 of a template); 2, of another image, where none is stated.
    """

    volume: Tensor
    affine: np.ndarray
    nowhere: str = ""
    space: int = UNSTATED

    @property
    def grid(self) -> Grid:
        a, b, c = self.volume.shape[2:]
        return Grid((a, b, c), self.affine)


def given_image(image: Image, like: Tensor, name: str = "image") -> GivenImage:
    """Read an image of finite numbers, in the precision and on the device of `like`."""
    affine, nowhere = np.eye(4), "the image was an array, and nothing says where its voxels are. Give an image"
    space = UNSTATED
    if isinstance(image, str | Path):
        name = str(image)
        try:
            image = nib.load(image)
        except Exception as error:  # nibabel raises many kinds
            raise BadInputError(f"{image}: no image that can be read ({error}).") from error
    if hasattr(image, "dataobj"):
        values, affine, nowhere = _stored(image, name), np.asarray(image.affine), _without_place(image.header)
        space = next(filter(None, _codes(image.header)), UNSTATED)
        values = values[..., 0, :] if values.ndim == 5 and values.shape[3] == 1 else values
        values = values if values.ndim == 3 else np.moveaxis(values, -1, 0)  # channels are last in files
    elif isinstance(image, Tensor):
        if not is_plain_tensor(image):
            raise BadInputError(
                f"{name}: is a sparse, quantised, nested or meta tensor; give a plain one, as image.to_dense() or "
                "image.dequantize()."
            )
        exact = image.is_floating_point() and image.dtype != torch.float64  # bfloat16 is none of numpy's
        values = on_host(image.float() if exact else image).numpy()
    else:
        if np.ma.is_masked(image):
            raise BadInputError(
                f"{name}: {np.count_nonzero(image.mask)} of its values are masked; fill them with what the "
                "network saw there in training, as image.filled(0)."
            )
        values = np.asarray(image)
    if values.dtype.kind not in "buif":
        raise BadInputError(f"{name}: holds {values.dtype}, no numbers.")
    if values.ndim == 5 and len(values) == 1:
        values = values[0]
    values = values[None] if values.ndim == 3 else values
    if values.ndim != 4:
        raise BadInputError(f"{name}: has {values.ndim} axes; it must be (D, H, W) or (C, D, H, W).")
    wide = like.dtype == torch.float64
    largest = 2**53 if wide else 2**24
    if values.dtype.kind in "ui" and values.size and max(int(values.max()), -int(values.min())) > largest:
        raise BadInputError(
            f"{name}: holds whole numbers beyond {largest:,}, which the precision of the network rounds; scale them as "
            "in training."
        )
    with np.errstate(over="ignore"):  # it is infinite then
        values = np.array(values, dtype=np.float64 if wide else np.float32)  # of this machine's byte order
    volume = torch.from_numpy(values)
    broken = int((~torch.isfinite(volume)).sum())
    if broken:
        raise BadInputError(
            f"{name}: {broken} of its values are not finite (NaN or infinity); set them to what the network saw there "
            "in training, as 0 in air."
        )
    return GivenImage(volume.to(like.device, like.dtype)[None], affine, nowhere, space)


def by_contract(image: GivenImage, feeding: Feeding, name: str = "image") -> GivenImage:
    """An image as a network is fed by its input contract; it stays where it is, so that a map over it does too."""
    if image.nowhere:
        raise BadInputError(f"{name}: {image.nowhere}, and an input contract places it by that.")
    if len(image.volume[0]) != 1:
        raise BadInputError(f"{name}: has {len(image.volume[0])} channels; an input contract is of one image.")
    try:
        values, grid = fed(on_host(image.volume[0, 0]).numpy(), image.grid, feeding)
    except BadInputError as error:
        raise BadInputError(f"{name}: {error}") from error
    return replace(image, volume=torch.from_numpy(values).to(image.volume)[None], affine=grid.affine)


def _stored(image: Any, name: str) -> np.ndarray:
    """The values of an image; BadInputError if its file is damaged, or cannot hold what its header announces."""
    stored = image.dataobj
    try:
        if isinstance(stored, ArrayProxy) and (file := image.get_filename()):
            size, needed = Path(file).stat().st_size, stored.offset + prod(stored.shape) * stored.dtype.itemsize
            packed = Path(file).suffix.lower()
            if needed > size * (_MOST_PACKED if packed in (".gz", ".mgz") else 1) and packed not in (".bz2", ".zst"):
                raise EOFError(f"its header announces {needed} bytes, and the file has {size}")
        return np.asarray(stored)
    except UNREADABLE as error:
        why = str(error) or type(error).__name__
        raise BadInputError(f"{name}: damaged or cut short ({why}). Copy, download or convert it again.") from error


def _codes(header: Any) -> list[int]:
    """NIfTI's codes of the space of an image; none in other formats."""
    return [int(header[key]) for key in ("sform_code", "qform_code") if key in header]


def _without_place(header: Any) -> str:
    codes = _codes(header)
    if not codes and isinstance(header, AnalyzeHeader):
        return "Analyze images do not say which side is left. Convert the image to NIfTI, in its right orientation"
    unset = "sform_code and qform_code in the header of the image are 0, so nothing says where its voxels are. Set one"
    return unset if codes and not any(codes) else ""


def given_controls(reference: Sequence[Image], image: GivenImage, feeding: Feeding | None = None) -> Reference | None:
    """The reference of an image, of a sequence of images on its grid; None if it is empty."""
    if not reference:
        return None
    names, volumes = [], []
    for number, control in enumerate(reference, 1):
        names.append(str(control) if isinstance(control, str | Path) else f"reference {number}")
        read = given_image(control, image.volume, names[-1])
        read = read if feeding is None else by_contract(read, feeding, names[-1])
        elsewhere = not (image.nowhere or read.nowhere) and not np.allclose(read.affine, image.affine, atol=1e-3)
        if elsewhere or read.volume.shape != image.volume.shape:
            raise BadInputError(
                f"reference {number}: lies on another grid than the image (its shape is "
                f"{tuple(read.volume.shape[1:])}), so that other voxels would be compared; resample it."
            )
        volumes.append(read.volume)
    return Reference(torch.cat(volumes), tuple(names))


@fx.wrap
def _repeated(value: Tensor, volumes: int) -> Tensor:
    """One row for each volume of a batch; a single operation when a network is traced."""
    return value.expand(volumes, *value.shape[1:])


class WithOthers(nn.Module):
    """A network with all inputs but the volume given, by name or by place; every volume of a batch gets the same."""

    def __init__(self, network: nn.Module, others: Mapping[str, Tensor], by_name: bool) -> None:
        super().__init__()
        self.network, self.others, self._by_name = network, tuple(others), by_name
        for name, value in others.items():
            self.register_buffer(f"other_{name}", value)

    def forward(self, x: Tensor) -> Any:
        each = [_repeated(getattr(self, f"other_{name}"), x.size(0)) for name in self.others]
        return self.network(x, **dict(zip(self.others, each, strict=True))) if self._by_name else self.network(x, *each)


def fixed_inputs(others: Others, like: Tensor) -> dict[str, Tensor]:
    """Further inputs as tensors by name or place, those of floats in the precision and on the device of `like`.

    Examples
    --------
    >>> fixed_inputs((71,), torch.zeros(()))
    {'0': tensor([[71.]])}
    """
    if isinstance(others, str | bytes) or not isinstance(others, Mapping | Sequence):
        raise UsageError("others: give a list of inputs, as others=[age], or inputs by name, as others={'age': age}.")
    named = others if isinstance(others, Mapping) else {str(place): value for place, value in enumerate(others)}
    tensors = {}
    for name, value in named.items():
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"others[{name}]: no number, array or tensor ({error}).") from error
        if tensor.dim() == 0:
            tensor = tensor.reshape(1, 1).to(like.dtype)
        if len(tensor) != 1:
            raise UsageError(
                f"others[{name}]: has the shape {tuple(tensor.shape)}; its first axis is the batch, of one image."
            )
        tensors[name] = tensor.to(like.device, like.dtype if tensor.is_floating_point() else None)
    return tensors
