"""What `heatlas.explain` answers: the map of one image, and what it adds up to."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nibabel as nib
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import MNI, Grid
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.explaining.inputs import GivenImage
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import device_labels, device_region_sums
from heatlas.pipeline.regions.tables import scan_rows
from heatlas.pipeline.run.config.ranges import require_arguments
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.host import on_host

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

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
        return {name: getattr(self, name) for name in names} | {
            "settings": dict(self.attribution.parameters), "others": others,
        }  # fmt: skip


def explained(answer: Attribution, method: str, image: GivenImage, others: Mapping[str, Tensor]) -> Explained:
    """The first volume of an answer of the engine."""

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
