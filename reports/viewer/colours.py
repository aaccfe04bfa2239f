"""Colours of the interactive pictures: those of the figures, as tables that a script can look up.

All are perceptually uniform and safe for colour-blind readers: ``warm`` and ``cool`` of the figures of maps, cividis
for quantities from small to large, and for quantities with two signs a map from blue over grey to orange.
"""

from __future__ import annotations

import base64

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap

from reports.figures.style import cool, warm

STEPS = 256


def two_sided() -> Colormap:
    """Blue for negative, light for zero, orange for positive; equally dark at equal distance from zero."""
    return LinearSegmentedColormap.from_list("two_sided", ["#0a5a9c", "#7fb3dc", "#ececec", "#e59a5c", "#b04a00"])


def colour_tables() -> dict[str, str]:
    """Red, green, blue of 256 steps each, base64, by name."""
    tables = {"warm": warm(), "cool": cool(), "sequential": mpl.colormaps["cividis"], "diverging": two_sided()}
    return {name: base64.b64encode(_bytes(table)).decode() for name, table in tables.items()}


def _bytes(table: Colormap) -> bytes:
    rows = np.asarray(table(np.linspace(0, 1, STEPS)))[:, :3]
    return bytes(np.rint(255 * rows).astype(np.uint8))
