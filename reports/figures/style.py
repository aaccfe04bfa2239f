"""One look for all figures: colours safe for colour-blind readers, quiet axes, fonts that survive a phone.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color). The positive class is vermilion, the negative blue;
of the outcomes, the wrong ones are the lighter relatives, and each has its own marker, so that no figure
depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure

BLUE, VERMILION, ORANGE, SKY = "#0072B2", "#D55E00", "#E69F00", "#56B4E9"
INK, GREY = "#1c2733", "#6b7785"

OUTCOME_COLOURS: Mapping[str, str] = {"TP": VERMILION, "FN": ORANGE, "TN": BLUE, "FP": SKY}
OUTCOME_MARKERS: Mapping[str, str] = {"TP": "o", "FN": "^", "TN": "s", "FP": "D"}
OUTCOME_NAMES: Mapping[str, str] = {
    "TP": "true positive", "FP": "false positive", "TN": "true negative", "FN": "false negative",
}  # fmt: skip

_STYLE: Mapping[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "auto",
    "svg.hashsalt": "heatlas",
    "text.parse_math": False,  # a name may hold a dollar sign
    "svg.fonttype": "path",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the style of the report; settings of matplotlib are as before afterwards."""
    with mpl.rc_context():
        mpl.rcParams.update(_STYLE)  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float, **options: object) -> Figure:
    """A figure of the given size in inches that belongs to no window and needs no closing."""
    return Figure(figsize=(width, height), layout="constrained", **options)  # type: ignore[arg-type]


def class_colours(positive: str, negative: str) -> dict[str, str]:
    return {positive: VERMILION, negative: BLUE}


def warm() -> Colormap:
    """Positive relevance: the upper part of inferno, perceptually uniform, visible on a dark brain."""
    return ListedColormap(mpl.colormaps["inferno"](np.linspace(0.32, 1.0, 256)), name="warm")


def cool() -> Colormap:
    """Negative relevance: blue, as light as `warm` at every strength."""
    return LinearSegmentedColormap.from_list("cool", ["#123f73", "#0072B2", "#56B4E9", "#e6f7ff"])
