"""Mean maps on the cortical surface, in a glass brain and on slices, drawn by nilearn.

The surface is fsaverage5, whose files are part of nilearn: nothing is downloaded. Maps lie in the
space of an MNI152 template and fsaverage in MNI305 space, a few millimetres apart. This is not corrected: the pictures
are for display only, and no number of a report is made from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nibabel as nib
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from heatlas.reports.figures.gallery import new_figure
from heatlas.reports.figures.maps import LIGHT, draw_colour_bar
from heatlas.reports.figures.slices import AXIS, HIPPOCAMPAL_CUTS, Backdrop, BrainImage, ColourScale, coloured

VIEWS: Mapping[str, float] = {"surface": 1.5, "glass": 1.4, "slices": 2.0}
"""Ways to show a map, with the height of each in inches."""
SIDES = (("left", "lateral"), ("left", "medial"), ("right", "medial"), ("right", "lateral"))
"""Hemispheres and sides of the surface, from left to right."""
WIDTH = 7.2  # inches; two columns of a journal
_TITLE, _BAR = 0.3, 0.4
_STEPS = 512


@dataclass(frozen=True)
class GroupMap:
    """A map to be drawn."""

    title: str  # the method, the group and its n
    image: BrainImage  # in template space
    scale: ColourScale
    unit: str  # of the colour bar

    @property
    def nifti(self) -> Any:
        """The map as nilearn takes it, with the values that its scale can show."""
        values = self.image.values if self.scale.signed else self.image.values.clip(min=0)
        return nib.Nifti1Image(values * (not self.scale.empty), self.image.affine)  # type: ignore[no-untyped-call]

    @property
    def colours(self) -> Mapping[str, Any]:
        """Colours and limits of the slice figures, for nilearn."""
        scale = ColourScale(0.5, 1.0, False) if self.scale.empty else self.scale
        table = ListedColormap(coloured(np.linspace(-scale.high, scale.high, _STEPS), scale)[:, :3])
        threshold = scale.low or scale.high / _STEPS  # at 0 all that is empty would be drawn
        return {"cmap": table, "threshold": threshold, "vmin": -scale.high, "vmax": scale.high, "colorbar": False}


def draw_group_maps(shown: Sequence[tuple[GroupMap, Sequence[str]]], backdrop: Backdrop | None) -> Figure:
    """Maps one below the other, each in one or more views, with a colour bar.

    `shown`: views are those of `VIEWS`. `backdrop`: under the slices.
    """
    height = sum(_TITLE + sum(VIEWS[view] for view in views) + _BAR for _, views in shown)
    figure = new_figure(WIDTH, height, facecolor="black")
    figure.set_layout_engine("none")
    top = 0.0
    for one, views in shown:
        figure.text(0.01, 1 - (top + 0.2) / height, one.title, color="white", fontsize=8.5, weight="bold")
        top += _TITLE
        for view in views:
            top += VIEWS[view]
            place = (0.0, 1 - top / height, 1.0, VIEWS[view] / height)
            if view == "surface":
                _draw_surface(figure, place, one)
            else:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "empty mask")  # a map without relevance
                    _draw_volume(figure, place, one, view, backdrop)
        draw_colour_bar(figure.add_axes((0.35, 1 - (top + 0.12) / height, 0.3, 0.08 / height)), one.scale)
        figure.text(0.66, 1 - (top + 0.12) / height, one.unit, color=LIGHT, fontsize=6.5)
        top += _BAR
    return figure


def surface_values(shown: GroupMap, hemisphere: str) -> NDArray[np.float64]:
    """Values of a map at the vertices of a hemisphere (``left``, ``right``): nilearn's mean over a ball of 3 mm."""
    from nilearn.surface import vol_to_surf  # late: it takes a second that only these figures need

    return np.asarray(np.nan_to_num(vol_to_surf(shown.nifti, _fsaverage()[f"pial_{hemisphere}"])))


def _fsaverage() -> Mapping[str, str]:
    from nilearn.datasets import fetch_surf_fsaverage

    files: Mapping[str, str] = fetch_surf_fsaverage("fsaverage5")  # the one mesh that nilearn carries
    return files


def _draw_surface(figure: Figure, place: tuple[float, float, float, float], shown: GroupMap) -> None:
    """Both hemispheres from both sides; triangles become pixels, which keeps SVG and PDF small."""
    from nilearn.plotting import plot_surf_stat_map

    files, (left, bottom, width, height) = _fsaverage(), place
    values = {hemisphere: surface_values(shown, hemisphere) for hemisphere in ("left", "right")}
    for number, (hemisphere, side) in enumerate(SIDES):
        middle = left + (number + 0.5) * width / 4
        box = (middle - 0.16 * width, bottom - 0.12 * height, 0.32 * width, 1.2 * height)
        axes: Any = figure.add_axes(box, projection="3d")
        plot_surf_stat_map(
            files[f"infl_{hemisphere}"], values[hemisphere], hemi=hemisphere, view=side, figure=figure, axes=axes,
            bg_map=files[f"sulc_{hemisphere}"], **shown.colours,
        )  # fmt: skip
        axes.patch.set_visible(False)
        for triangles in axes.collections:
            triangles.set_rasterized(True)
        name = f"{hemisphere[0].upper()}, {side}"
        figure.text(middle, bottom + 0.95 * height, name, color=LIGHT, fontsize=6.5, ha="center")


def _draw_volume(
    figure: Figure, place: tuple[float, float, float, float], shown: GroupMap, view: str, backdrop: Backdrop | None
) -> None:
    """Strongest values along lines through a glass brain, or three slices through the left hippocampus."""
    from nilearn import plotting

    common = {"figure": figure, "axes": place, "black_bg": True, "annotate": False, **shown.colours}
    if view == "glass":
        display = plotting.plot_glass_brain(shown.nifti, display_mode="lyrz", plot_abs=False, alpha=1, **common)
        for side in "lr":
            axes = display.axes[side].ax
            axes.text(0.02, 0.9, side.upper(), transform=axes.transAxes, color="white", fontsize=7)
    else:
        cuts = [mm for _, mm in sorted(HIPPOCAMPAL_CUTS, key=lambda cut: AXIS[cut[0]])]
        under = None if backdrop is None else backdrop.nifti
        display = plotting.plot_stat_map(shown.nifti, bg_img=under, cut_coords=cuts, draw_cross=False, **common)
    display.annotate(size=7)
