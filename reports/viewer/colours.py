"""Colours of the interactive pictures: those of the figures, as tables that a script can look up.

Both are perceptually uniform, safe for colour-blind readers, and grow lighter on a dark ground: ``warm`` for positive
values, ``cool`` for negative ones.
"""

from __future__ import annotations

import base64

import numpy as np
from matplotlib.colors import Colormap

from reports.figures.style import cool, warm

STEPS = 256


def colour_tables() -> dict[str, str]:
    """Red, green, blue of 256 steps each, base64, by name."""
    return {name: base64.b64encode(_bytes(table)).decode() for name, table in (("warm", warm()), ("cool", cool()))}


def _bytes(table: Colormap) -> bytes:
    rows = np.asarray(table(np.linspace(0, 1, STEPS)))[:, :3]
    return bytes(np.rint(255 * rows).astype(np.uint8))
