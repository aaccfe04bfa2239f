"""What users of `heatlas.explain` give, and what it answers.

An image, controls and further inputs become what a network takes: images become volumes with the place of their voxels,
and a network of several inputs becomes one of its volume alone, the others being held fixed. The answer is the map of
one image, and what it adds up to.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nibabel as nib
import numpy as np
import pandas as pd
import torch
from nibabel.analyze import AnalyzeHeader
from nibabel.arrayproxy import ArrayProxy
from torch import Tensor, fx, nn

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import MNI, UNREADABLE, Grid
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.models.storage import is_plain_tensor
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import device_labels, device_region_sums
from heatlas.pipeline.regions.tables import scan_rows
from heatlas.pipeline.run.config.ranges import require_arguments
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.host import on_host

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image


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


def given_controls(reference: Sequence[Image], image: GivenImage) -> Reference | None:
    """The reference of an image, of a sequence of images on its grid; None if it is empty."""
    if not reference:
        return None
    names, volumes = [], []
    for number, control in enumerate(reference, 1):
        names.append(str(control) if isinstance(control, str | Path) else f"reference {number}")
        read = given_image(control, image.volume, names[-1])
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
        self.network, self._names, self._by_name = network, tuple(others), by_name
        for name, value in others.items():
            self.register_buffer(f"other_{name}", value)

    def forward(self, x: Tensor) -> Any:
        each = [_repeated(getattr(self, f"other_{name}"), x.size(0)) for name in self._names]
        return self.network(x, **dict(zip(self._names, each, strict=True))) if self._by_name else self.network(x, *each)


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


ATLAS = "neuromorphometrics-cat12"
TALAIRACH = 3
"""The first code of NIfTI that is of a template."""


@dataclass(frozen=True, eq=False)
class Explained:
    """The map of one image.

    Parameters
    ----------
    map : nibabel.Nifti1Image
        float32, on the grid of the image; summed over channels.
    method : str
    target : int
        Output unit that was explained.
    value : float
        Its explained value: the logit, the probability, the evidence, or the number.
    reference_value : float or None
        The same of the reference; None for methods without.
    missing : float or None
        What the map's sum lacks of ``value - reference_value``, or of ``value`` for LRP, whose ledger says which layer
        lost it; None for methods that promise no sum.
    ledger : pandas.DataFrame or None
        What each layer passed on and lost, of LRP and B-cos networks.
    attribution : Attribution
        The tensors, with the settings of the method.
    channels : tuple of nibabel.Nifti1Image
        Of an image of several channels, the map of each, of which `map` is the sum; empty for a method that makes one
        map for all.
    others : mapping of str to Tensor
        What the network was given besides the image, by name or place: held fixed, and the same for the reference.
    nowhere : str
        Why nothing says where the voxels are, so that there are no regions; empty if the image does.
    """

    map: Nifti1Image
    method: str
    target: int
    value: float
    reference_value: float | None
    missing: float | None
    ledger: pd.DataFrame | None
    attribution: Attribution
    channels: tuple[Nifti1Image, ...]
    others: Mapping[str, Tensor]
    nowhere: str

    def regions(self, atlas: str = ATLAS) -> pd.DataFrame:
        """The map summed over the regions of an atlas; the image must be in MNI152NLin2009cAsym.

        `atlas`: a name of `atlases.catalogue`, or the path of a label image in that space. Returns one row per region:
        number, name, hemisphere, bilateral group, voxels, sum and density; the largest density first. Warns if the
        header of the image does not say that it is in template space. Raises UsageError if nothing says where the
        voxels of the image are.
        """
        require_arguments(atlas=atlas)
        if self.nowhere:
            raise UsageError(f"regions: {self.nowhere}.")
        code = int(self.map.header["sform_code"])  # that of the image
        if code < TALAIRACH:
            warnings.warn(
                f"regions: the image is not said to be in template space (NIfTI's code is {code}, not {MNI}). If it is "
                "in MNI152NLin2009cAsym, say so by image.set_sform(image.affine, 4); else register it first.",
                stacklevel=2,
            )
        packed = PackedAtlas.of(load_atlas(atlas, Grid.of(self.map)))
        values = torch.from_numpy(np.asarray(self.map.dataobj, dtype=np.float32))[None]
        labels = device_labels(packed.labels, None, values.device)
        sums = device_region_sums(values, labels)[0].numpy()
        rows = scan_rows({}, {self.method: sums}, labels, packed.regions)
        table = rows[["region", "name", "hemisphere", "group", "n_voxels", "sum", "density"]]
        return table.sort_values("density", ascending=False, kind="stable", ignore_index=True)

    def save(self, folder: str | Path) -> None:
        """Write ``map.nii.gz``, its numbers (``explained.json``) and tables (``regions.tsv``, ``ledger.tsv``).

        Maps of single channels are ``channel-0.nii.gz`` and so on. There are no regions of an image that is in no
        space, and no ledger of methods without.

        `folder`: made if it does not exist. Raises UsageError if the folder holds a map already, or cannot be written.
        """
        require_arguments(folder=folder)
        into = Path(folder)
        if (into / "explained.json").exists():
            raise UsageError(f"{into}: holds an explained image already. Name another folder, or delete this one.")
        tables = {"regions": None if self.nowhere else self.regions(), "ledger": self.ledger}
        try:
            into.mkdir(parents=True, exist_ok=True)
            nib.save(self.map, into / "map.nii.gz")
            for place, channel in enumerate(self.channels):
                nib.save(channel, into / f"channel-{place}.nii.gz")
            for name, table in tables.items():
                if table is not None:
                    table.to_csv(into / f"{name}.tsv", sep="\t", index=False, na_rep="n/a")
            write_json(into / "explained.json", self._numbers())  # last: what is there is whole
        except OSError as error:
            raise UsageError(f"{into}: cannot be written ({error.strerror}). Name another folder.") from error

    def _numbers(self) -> dict[str, Any]:
        names = ("method", "target", "value", "reference_value", "missing", "nowhere")
        others = {name: values.tolist() for name, values in self.others.items()}
        numbers = {name: getattr(self, name) for name in names}
        return numbers | {"settings": dict(self.attribution.parameters), "others": others}


def explained(answer: Attribution, method: str, image: GivenImage, others: Mapping[str, Tensor]) -> Explained:
    def written(values: Tensor) -> Any:
        made: Any = nib.Nifti1Image(on_host(values.float()).numpy(), image.affine)  # type: ignore[no-untyped-call]
        made.set_sform(image.affine, image.space)
        return made

    value = float(on_host(answer.start_value[0]))
    of_reference = None if answer.reference_value is None else float(on_host(answer.reference_value[0]))
    ledger = answer.ledger
    total = float(on_host(ledger.map_sum[0] if of_reference is None and ledger else answer.values.double().sum()))
    return Explained(
        map=written(answer.values[0, 0]),
        method=method,
        target=answer.target,
        value=value,
        reference_value=of_reference,
        missing=None if of_reference is None and ledger is None else value - (of_reference or 0.0) - total,
        ledger=None if ledger is None else ledger.frame(method, 0).drop(columns="map"),
        attribution=answer,
        channels=() if answer.channels is None else tuple(map(written, answer.channels[0])),
        others=others,
        nowhere=image.nowhere,
    )
