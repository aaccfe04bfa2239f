"""What `heatlas.explain` answers: the map of one image, what it adds up to, its regions, and its picture.

The picture of a map is the same for one image and for a run (`draw_map`): smoothed, its strongest tenth, over a brain.
"""

from __future__ import annotations

import html
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
from heatlas.atlases.templates import find_template
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.explaining.given_image import GivenImage, given_image
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.region_sums import REST, device_labels, device_region_sums
from heatlas.pipeline.regions.tables import scan_rows
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.config.ranges import require_arguments
from heatlas.pipeline.run.errors import BadInputError, HeatlasError, UsageError
from heatlas.pipeline.run.extras import require_study
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.host import on_host

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image


ATLAS = "neuromorphometrics-cat12"
TALAIRACH = 3
"""The first code of NIfTI that is of a template."""
SMOOTHED_MM = 8.0
"""Full width at half maximum of a picture: voxels of a gradient differ from one to the next, what regions share not."""
SHOWN_PERCENTILES = (90.0, 99.5)
"""Of the absolute values of a map: from where a picture shows it, and where its colours end."""
_UNITS = {"evidence": "evidence (logits)", "logit": "logits"}
_EACH_CONTROL = ("expected-gradients",)
"""Methods that compare with each control; the others do so with the mean of their images, unless told to."""
_TITLE_POINTS = 9
_LEADING = 10
"""Regions that a notebook shows."""


def draw_map(
    image: Nifti1Image, brain: Nifti1Image, usual_title: str, smooth: float = SMOOTHED_MM, **options: Any
) -> Any:
    """The strongest tenth of a map over a brain, by `nilearn.plotting.plot_stat_map`, whose display comes back.

    `smooth`: full width at half maximum in mm; 0 for none. `options`: of `plot_stat_map`, over those that are set here.
    Into an ``output_file`` it is written and closed, as nilearn does.
    """
    from nilearn.image import smooth_img  # takes a second that only pictures need
    from nilearn.plotting import plot_stat_map

    require_arguments(smooth=smooth)
    inside = np.asarray(image.dataobj) != 0
    shown = smooth_img(image, smooth) if smooth else image
    strength = np.abs(np.asarray(shown.dataobj, dtype=np.float64)[inside])
    low, high = np.percentile(strength, SHOWN_PERCENTILES).tolist() if strength.size else (0.0, 0.0)
    limits = {"threshold": low if low < high else high / 2, "vmax": high} if high > 0 else {}
    title = options.pop("title", usual_title + f", smoothed {smooth:g} mm" * bool(smooth))
    file = options.pop("output_file", None)
    usual = {"bg_img": brain, "cmap": "RdBu_r", "draw_cross": False, **limits}
    return _titled(plot_stat_map(shown, **{**usual, **options}), title, file)


def _titled(display: Any, title: str | None, file: Any) -> Any:
    """A display with a title in small letters, which is not cut; nothing if it goes into a file."""
    if title:
        display.title(title, size=_TITLE_POINTS)
    if file is None:
        return display
    display.savefig(file)
    return display.close()


def template_brain(name: str = DEFAULT_TEMPLATE) -> Nifti1Image:
    """A template, at its own resolution, as nilearn takes it."""
    template = find_template(name)
    return nib.nifti1.Nifti1Image(template.t1w, template.grid.affine)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class Explained:
    """The map of one image. It prints itself in three lines, and in a notebook with its leading regions.

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
    image : nibabel.Nifti1Image
        What was explained, its first channel.
    of_bins : bool
        Whether the expected value over bins of a number was explained, in the unit of the bins.
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
    image: Nifti1Image
    of_bins: bool = False

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        shown = "<br>".join(map(html.escape, self._lines()))
        try:
            leading = self.regions().head(_LEADING) if self._in_template else None
        except HeatlasError:  # as of a grid that is not that of a head
            leading = None
        return shown if leading is None else f"{shown}{leading.to_html(index=False, float_format='{:.3g}'.format)}"

    def _lines(self) -> list[str]:
        """What the map is, what it explains and misses, and what to do with it."""
        size = " x ".join(map(str, self.map.shape))
        where = "template space" if self._in_template else "no space" if self.nowhere else "space of the scanner"
        compared = "" if self.reference_value is None else f", of {self._compared_with} {self.reference_value:.3g}"
        whole = "it" if self.reference_value is None else "their difference"
        adds = "need not add up" if self.missing is None else f"adds up to {whole} but for {abs(self.missing):.1g}"
        steps = ".map, " + ".regions(), " * (not self.nowhere) + '.plot(), .save("FOLDER")'
        return [
            f"{METHODS[self.method].title} map of output {self.target}: {size} voxels in {where}",
            f"{self._start} {self.value:.3g}{compared}; the map {adds}",
            f"next: {steps}",
        ]

    @property
    def _in_template(self) -> bool:
        return not self.nowhere and int(self.map.header["sform_code"]) >= TALAIRACH

    @property
    def _start(self) -> str:
        return "expected value" if self.of_bins else str(self.attribution.parameters.get("start", "value"))

    @property
    def _compared_with(self) -> str:
        """Whose value `reference_value` is."""
        each = self.method in _EACH_CONTROL or self.attribution.parameters.get("compare") in ("each", "controls")
        return "the controls (mean)" if each else "the mean image of the controls"

    def plot(self, smooth: float = SMOOTHED_MM, **options: Any) -> Any:
        """Show the map by `nilearn.plotting.plot_stat_map`: smoothed, the strongest tenth of its voxels.

        It lies over the template if the header of the image says that it is in template space, else over the image.

        Parameters
        ----------
        smooth : float
            Full width at half maximum in mm, or in voxels of an array; 0 for none.
        **options
            Of `plot_stat_map`: ``display_mode``, ``cut_coords``, ``threshold``, ``output_file`` and so on.

        Returns
        -------
        nilearn display
        """
        require_study(".plot()", "matplotlib", "nilearn")
        unit = "relative strength" if self.missing is None else f"{_UNITS.get(self._start, self._start)} per voxel"
        title = f"{METHODS[self.method].title}, output {self.target}: {unit}"
        return draw_map(self.map, template_brain() if self._in_template else self.image, title, smooth, **options)

    def regions(self, atlas: str = ATLAS) -> pd.DataFrame:
        """The map summed over the regions of an atlas; the image must be in MNI152NLin2009cAsym.

        `atlas`: a name of `atlases.catalogue`, or the path of a label image in that space. Returns one row per region:
        name, hemisphere, bilateral group, sum, density (sum by voxel), voxels and number. The largest densities of
        either sign come first; of LRP, those that speak for the output. What has no label is the last row.
        Warns if the header of the image does not say that it is in template space. Raises UsageError if nothing says
        where the voxels of the image are.
        """
        require_arguments(atlas=atlas)
        if self.nowhere:
            raise UsageError(f"regions: {self.nowhere}.")
        return _sums_over_regions(self.map, atlas, self.method, self._sign)

    @property
    def _sign(self) -> float | None:
        """Of relevance: -1 where negative values speak for the output."""
        return None if self.attribution.sign is None else float(on_host(self.attribution.sign[0]))

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


def regions(map: Any, atlas: str = ATLAS) -> pd.DataFrame:
    """Any map in MNI152NLin2009cAsym, of whatever program, summed over the regions of an atlas.

    Parameters
    ----------
    map : str, Path or nibabel image
        One volume of finite values, on any grid.
    atlas : str
        A name of `atlases.catalogue`, or the path of a label image in that space.

    Returns
    -------
    pandas.DataFrame
        One row per region, as of `Explained.regions`: the largest densities of either sign first, and what has no
        label last.

    Raises
    ------
    BadInputError
        For what is no image of finite numbers, or has several volumes.
    UsageError
        For an array, or an image whose header does not say where its voxels are.
    """
    require_arguments(atlas=atlas)
    read = given_image(map, torch.empty(0), "map")
    if read.nowhere:
        raise UsageError(f"regions: {read.nowhere}.")
    if read.volume.shape[1] > 1:
        raise BadInputError(f"regions: the map has {read.volume.shape[1]} volumes; give one, as map.slicer[..., 0].")
    return _sums_over_regions(_written(read.volume[0, 0], read), atlas, "map")


def _sums_over_regions(image: Nifti1Image, atlas: str, name: str, sign: float | None = None) -> pd.DataFrame:
    """The table of regions of a map; `sign`: -1 where negative values come first, None for the size of either sign."""
    code = int(image.header["sform_code"])
    if code < TALAIRACH:
        warnings.warn(
            f"regions: the image is not said to be in template space (NIfTI's code is {code}, not {MNI}). If it is "
            "in MNI152NLin2009cAsym, say so by image.set_sform(image.affine, 4); else register it first.",
            stacklevel=3,
        )
    packed = PackedAtlas.of(load_atlas(atlas, Grid.of(image)))
    values = torch.from_numpy(np.asarray(image.dataobj, dtype=np.float32))[None]
    labels = device_labels(packed.labels, None, values.device)
    sums = device_region_sums(values, labels)[0].numpy()
    rows = scan_rows({}, {name: sums}, labels, packed.regions)
    table = rows[["name", "hemisphere", "group", "sum", "density", "n_voxels", "region"]]
    effect = table["density"].abs() if sign is None else table["density"] * sign
    is_rest = table["region"] == REST
    order = effect[~is_rest].sort_values(ascending=False, kind="stable").index
    return table.loc[[*order, *table.index[is_rest]]].reset_index(drop=True)


def _written(values: Tensor, image: GivenImage) -> Any:
    """Values on the grid of an image, which keeps its space."""
    made: Any = nib.Nifti1Image(on_host(values.float()).numpy(), image.affine)  # type: ignore[no-untyped-call]
    made.set_sform(image.affine, image.space)
    return made


def explained(
    answer: Attribution, method: str, image: GivenImage, others: Mapping[str, Tensor], of_bins: bool = False
) -> Explained:
    value = float(on_host(answer.start_value[0]))
    of_reference = None if answer.reference_value is None else float(on_host(answer.reference_value[0]))
    ledger = answer.ledger
    total = float(on_host(ledger.map_sum[0] if of_reference is None and ledger else answer.values.double().sum()))
    return Explained(
        map=_written(answer.values[0, 0], image),
        method=method,
        target=answer.target,
        value=value,
        reference_value=of_reference,
        missing=None if of_reference is None and ledger is None else value - (of_reference or 0.0) - total,
        ledger=None if ledger is None else ledger.frame(method, 0).drop(columns="map"),
        attribution=answer,
        channels=() if answer.channels is None else tuple(_written(values, image) for values in answer.channels[0]),
        others=others,
        nowhere=image.nowhere,
        image=_written(image.volume[0, 0], image),
        of_bins=of_bins,
    )
