"""Explain any network of PyTorch on any image: ``heatlas.explain``.

No run and no files are needed. What is explained is a copy of the network (`pipeline.models.foreign.adapted`), by the
same methods and checks as in a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nibabel as nib
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import Grid
from heatlas.pipeline.attribution.entry import Entry, RunContext
from heatlas.pipeline.attribution.method_settings import read_settings
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.attribution.targets import StartValue
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import FAMILIES
from heatlas.pipeline.models.foreign.adapted import Answer, ForeignNetwork, Meaning, adapted
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import device_labels, device_region_sums
from heatlas.pipeline.regions.tables import scan_rows
from heatlas.pipeline.run.errors import BadInputError, UsageError

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

Image = Any
"""A path, an image of nibabel, or an array or tensor (D, H, W) or (C, D, H, W) that the network takes as it is."""
ATLAS = "neuromorphometrics-cat12"
_OF_REGIONS = {"labels", "regions"}
"""Settings of methods that need an atlas."""


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
        What the map's sum lacks of ``value - reference_value``; None for methods that promise no sum.
    ledger : pandas.DataFrame or None
        What each layer passed on and lost, of LRP and B-cos networks.
    attribution : Attribution
        The tensors, with the settings of the method.
    has_space : bool
        Whether the image said where its voxels are.
    """

    map: Nifti1Image
    method: str
    target: int
    value: float
    reference_value: float | None
    missing: float | None
    ledger: pd.DataFrame | None
    attribution: Attribution
    has_space: bool

    def regions(self, atlas: str = ATLAS) -> pd.DataFrame:
        """The map summed over the regions of an atlas; the image must be in MNI152NLin2009cAsym.

        Parameters
        ----------
        atlas : str
            A name of `atlases.catalogue`, or the path of a label image in that space.

        Returns
        -------
        pandas.DataFrame
            One row per region: number, name, hemisphere, bilateral group, voxels, sum and density.

        Raises
        ------
        UsageError
            If the image was an array, which is in no space.
        """
        if not self.has_space:
            raise UsageError("regions: the image was an array, and nothing says where its voxels are. Give an image.")
        packed = PackedAtlas.of(load_atlas(atlas, Grid.of(self.map)))
        values = torch.from_numpy(np.asarray(self.map.dataobj, dtype=np.float32))[None]
        labels = device_labels(packed.labels, None, values.device)
        sums = device_region_sums(values, labels)[0].numpy()
        rows = scan_rows({}, {self.method: sums}, labels, packed.regions)
        return rows[["region", "name", "hemisphere", "group", "n_voxels", "sum", "density"]]


def explain(
    network: nn.Module,
    image: Image,
    method: str = "expected-gradients",
    *,
    target: int | None = None,
    reference: Sequence[Image] = (),
    stage: int | str | None = None,
    start: StartValue | None = None,
    settings: Mapping[str, Any] | None = None,
    output: Meaning = "auto",
    output_item: str = "",
    bins: Sequence[float] = (),
) -> Explained:
    """Explain what any network answers to an image.

    Parameters
    ----------
    network : torch.nn.Module
        Takes (1, C, D, H, W) and gives one row of numbers. Not changed: a copy in evaluation mode is explained.
    image : path, nibabel image, array or tensor
        With the intensities, grid and orientation that the network was trained with. See `Image`.
    method : str
        One of ``heatlas.methods()``.
    target : int, optional
        Output unit; by default the largest.
    reference : sequence of images
        Controls that the image is compared with, of methods on a reference. Without them, those methods refuse.
    stage : int or str, optional
        Where the map is made: 0 for the input, or the name of a layer; by default where the method usually is.
    start : {"logit", "probability", "evidence"}, optional
        What is explained; by default what suits the method.
    settings : mapping, optional
        Of the method, as ``{"samples": 200}``.
    output, output_item, bins
        What the network answers; see `pipeline.models.foreign.adapted.Answer`.

    Returns
    -------
    Explained

    Raises
    ------
    UsageError
        For a method that is unknown, not defined for the network, or lacks its reference.
    BadInputError
        For an image that cannot be read or that the network does not take.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> volume, control = torch.rand(8, 9, 10), torch.rand(8, 9, 10)
    >>> found = explain(network, volume, "deeplift", reference=[control])
    >>> found.map.shape, abs(found.missing) < 1e-6
    ((8, 9, 10), True)
    """
    entry = find_method(method, "method")
    parameter = next(network.parameters(), torch.zeros(()))
    volume, affine = _read(image, parameter)
    model = _prepared(network, volume, Answer(output, output_item, tuple(map(float, bins))))
    with torch.no_grad():
        values = model(volume)[0]
    unit = int(values.argmax()) if target is None else target
    context = _context(entry, affine, volume, reference, parameter)
    texts = [f"{name}={_as_text(value)}" for name, value in (settings or {}).items()]
    built = entry.build(read_settings(method, entry.record, texts, "settings"), context)
    asked_start: StartValue = start or ("evidence" if entry.usual_start == "evidence" else "logit")
    asked_stage = entry.stage_of(model) if stage is None else stage
    (answer, *_) = attribute_all(model, volume, unit, built, asked_stage, asked_start)
    return _explained(answer, entry, affine)


def _prepared(network: nn.Module, volume: Tensor, answer: Answer) -> StagedModel:
    """The network itself if it is one of ours, which is staged already; a copy of any other."""
    plain = isinstance(network, StagedModel) and not isinstance(network, ForeignNetwork)
    if plain and answer == Answer() and not network.training:
        return network  # type: ignore[return-value]
    return adapted(network, volume, None, answer)


def _context(
    entry: Entry, affine: np.ndarray | None, volume: Tensor, reference: Sequence[Image], like: Tensor
) -> RunContext:
    controls = None
    if entry.needs_reference and reference:
        read = [_read(one, like) for one in reference]
        for (controls_volume, place), number in zip(read, range(1, len(read) + 1), strict=True):
            other = affine is not None and place is not None and not np.allclose(place, affine, atol=1e-3)
            if other or controls_volume.shape != volume.shape:
                raise BadInputError(
                    f"reference {number}: lies on another grid than the image (its shape is "
                    f"{tuple(controls_volume.shape[1:])}), so that other voxels would be compared; resample it."
                )
        volumes = torch.cat([one for one, _ in read])
        names = [str(one) if isinstance(one, str | Path) else f"reference {n}" for n, one in enumerate(reference, 1)]
        controls = Reference(volumes, tuple(names))
    atlas: Any = None
    if _OF_REGIONS & {field.name for field in dataclasses.fields(entry.record)}:
        if affine is None:
            raise UsageError(f"{entry.name}: needs the regions of an atlas, and the image is an array. Give an image.")
        atlas = PackedAtlas.of(load_atlas(ATLAS, Grid(tuple(volume.shape[2:]), affine)))  # type: ignore[arg-type]
    return RunContext(atlas, None, controls)


def _explained(answer: Attribution, entry: Entry, affine: np.ndarray | None) -> Explained:
    values = answer.values[0, 0].float().cpu().numpy()
    image: Any = nib.Nifti1Image(values, np.eye(4) if affine is None else affine)  # type: ignore[no-untyped-call]
    value = float(answer.start_value[0])
    of_reference = None if answer.reference_value is None else float(answer.reference_value[0])
    total = float(answer.values.double().sum())
    return Explained(
        map=image,
        method=entry.name,
        target=answer.target,
        value=value,
        reference_value=of_reference,
        missing=None if of_reference is None else value - of_reference - total,
        ledger=None if answer.ledger is None else answer.ledger.frame(entry.name, 0).drop(columns="map"),
        attribution=answer,
        has_space=affine is not None,
    )


def _read(image: Image, like: Tensor) -> tuple[Tensor, np.ndarray | None]:
    """An image as the network takes it, (1, C, D, H, W), and where its voxels are, if it says so."""
    affine = None
    if isinstance(image, str | Path):
        try:
            image = nib.load(image)
        except Exception as error:  # nibabel raises many kinds
            raise BadInputError(f"{image}: no image that can be read ({error}).") from error
    if hasattr(image, "dataobj"):
        values = np.asarray(image.dataobj, dtype=np.float32)
        affine = np.asarray(image.affine)
        values = values if values.ndim == 3 else np.moveaxis(values, -1, 0)  # channels are last in files
    else:
        values = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if values.ndim == 5 and len(values) == 1:
        values = values[0]
    values = values[None] if values.ndim == 3 else values
    if values.ndim != 4:
        raise BadInputError(f"image: has {values.ndim} axes; it must be (D, H, W) or (C, D, H, W).")
    return torch.from_numpy(np.ascontiguousarray(values)).to(like.device, like.dtype)[None], affine


def _as_text(value: Any) -> str:
    """A value as it is typed in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_as_text, value))}]" if isinstance(value, list | tuple) else str(value)


def methods() -> pd.DataFrame:
    """All methods: name, what each shows, whether it needs a reference, and where its map is made by default.

    Examples
    --------
    >>> bool(methods().set_index("method").loc["deeplift", "needs_reference"])
    True
    """
    rows = [(name, entry.help, entry.needs_reference, entry.usual_stage) for name, entry in sorted(METHODS.items())]
    return pd.DataFrame(rows, columns=["method", "shows", "needs_reference", "made_at"])


def networks() -> pd.DataFrame:
    """All families of networks that Heatlas can build: name, what it is, and the methods that do not explain it.

    Examples
    --------
    >>> networks().set_index("network").loc["resnet10", "not_explained_by"]
    ['cgw1', 'inherent', 'raw-attention', 'rollout', 'vit-cx']
    """
    rows = [
        (name, (family.settings.__doc__ or "").splitlines()[0], sorted(family.refused))
        for name, family in FAMILIES.items()
    ]
    return pd.DataFrame(rows, columns=["network", "is", "not_explained_by"])
