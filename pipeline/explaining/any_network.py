"""Explain any network of PyTorch on any image: ``heatlas.explain``.

No run and no files are needed. What is explained is a copy of the network (`pipeline.models.foreign.adapted`), by the
same methods and checks as in a run.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from heatlas.pipeline.attribution.network_view import split_layers
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.attribution.targets import StartValue
from heatlas.pipeline.explaining.given_images import GivenImage, Image, given_controls, given_image
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import FAMILIES
from heatlas.pipeline.models.foreign.adapted import ForeignNetwork, Meaning, OutputForm, adapted
from heatlas.pipeline.models.foreign.inputs import Others, WithOthers, fixed_inputs
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import device_labels, device_region_sums
from heatlas.pipeline.regions.tables import scan_rows
from heatlas.pipeline.run.errors import UsageError

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

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
            If nothing says where the voxels of the image are.
        """
        if self.nowhere:
            raise UsageError(f"regions: {self.nowhere}.")
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
    others: Others = (),
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
        With the intensities, grid and orientation that the network was trained with, (D, H, W) or (C, D, H, W); the
        channels of a file are its last axis.
    method : str
        One of ``heatlas.methods()``.
    target : int, optional
        Output unit; by default the largest.
    reference : sequence of images
        Controls that the image is compared with, of methods on a reference. Without them, those methods refuse.
    others : sequence, or mapping of str
        What the network takes after the image, as ``[age]``, or by name, as ``{"age": 71}``: numbers, which it gets as
        (1, 1), or arrays and tensors of one row. They are held fixed, for the reference too.
    stage : int or str, optional
        Where the map is made: 0 for the input, or the name of a layer; by default where the method usually is.
    start : {"logit", "probability", "evidence"}, optional
        What is explained; by default what suits the method.
    settings : mapping, optional
        Of the method, as ``{"samples": 200}``.
    output, output_item, bins
        What the network answers; see `pipeline.models.foreign.adapted.OutputForm`.

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
    given = given_image(image, next(network.parameters(), torch.zeros(())))
    fixed = fixed_inputs(others, given.volume)
    model = _prepared(network, given.volume, fixed, others, OutputForm(output, output_item, tuple(map(float, bins))))
    with torch.no_grad():
        values = model(given.volume)[0]
    unit = int(values.argmax()) if target is None else _unit(target)
    context = _context(entry, given, reference)
    texts = [f"{name}={_as_text(value)}" for name, value in (settings or {}).items()]
    built = entry.build(read_settings(method, entry.record, texts, "settings"), context)
    asked_start: StartValue = start or ("evidence" if entry.usual_start == "evidence" else "logit")
    asked_stage = entry.stage_of(model) if stage is None else stage
    if isinstance(asked_stage, str):
        _require_whole(model, given.volume, asked_stage, values)
    (answer, *_) = attribute_all(model, given.volume, unit, built, asked_stage, asked_start)
    return _explained(answer, entry, given, fixed)


def _unit(target: Any) -> int:
    try:
        if isinstance(target, bool):
            raise TypeError
        return operator.index(target)
    except TypeError as error:
        raise UsageError(f"target = {target!r}: must be the number of an output unit, counted from 0.") from error


def _prepared(
    network: nn.Module, volume: Tensor, fixed: Mapping[str, Tensor], others: Others, form: OutputForm
) -> StagedModel:
    """The network itself if it is one of ours, which is staged already; a copy of any other."""
    plain = isinstance(network, StagedModel) and not isinstance(network, ForeignNetwork)
    if plain and form == OutputForm() and not network.training and not fixed:
        return network  # type: ignore[return-value]
    return adapted(WithOthers(network, fixed, isinstance(others, Mapping)) if fixed else network, volume, None, form)


def _require_whole(model: StagedModel, volume: Tensor, stage: str, wanted: Tensor) -> None:
    """Refuse a layer at which patches or slices stand in place of the volumes, so that its two sides are no network."""
    before, after = split_layers(model, stage)
    found = volume
    try:
        with torch.no_grad():
            for _, layer in (*before, *after):
                found = layer(found)
    except RuntimeError:
        found = volume
    if found.shape != (1, *wanted.shape) or not torch.allclose(found[0], wanted, rtol=1e-4, atol=1e-5):
        raise UsageError(
            f"stage {stage!r}: taken apart there, the network answers differently (its batch axis holds patches or "
            "slices there); name a layer before or after these."
        )


def _context(entry: Entry, image: GivenImage, reference: Sequence[Image]) -> RunContext:
    controls = given_controls(reference, image) if entry.needs_reference else None
    atlas: Any = None
    if _OF_REGIONS & {field.name for field in dataclasses.fields(entry.record)}:
        if image.nowhere:
            raise UsageError(f"{entry.name}: needs the regions of an atlas, but {image.nowhere}.")
        atlas = PackedAtlas.of(load_atlas(ATLAS, Grid(tuple(image.volume.shape[2:]), image.affine)))  # type: ignore[arg-type]
    return RunContext(atlas, None, controls)


def _explained(answer: Attribution, entry: Entry, image: GivenImage, fixed: Mapping[str, Tensor]) -> Explained:
    def written(values: Tensor) -> Any:
        return nib.Nifti1Image(values.float().cpu().numpy(), image.affine)  # type: ignore[no-untyped-call]

    value = float(answer.start_value[0])
    of_reference = None if answer.reference_value is None else float(answer.reference_value[0])
    total = float(answer.values.double().sum())
    return Explained(
        map=written(answer.values[0, 0]),
        method=entry.name,
        target=answer.target,
        value=value,
        reference_value=of_reference,
        missing=None if of_reference is None else value - of_reference - total,
        ledger=None if answer.ledger is None else answer.ledger.frame(entry.name, 0).drop(columns="map"),
        attribution=answer,
        channels=() if answer.channels is None else tuple(map(written, answer.channels[0])),
        others=fixed,
        nowhere=image.nowhere,
    )


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
