"""The few colours of brain pictures, as one palette: a byte per pixel, and a quarter of the file.

Anatomy is a ramp of greys, maps are one ramp or two, lettering is white: 256 colours hold all of them in steps that
nobody sees, where a palette made from the picture itself would spend them on the largest areas and band the rest.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial import cKDTree

from reports.figures.style import cool, warm

_WARM, _COOL, _GREY, _WHITE = 104, 56, 80, 16
_BITS_LEFT_OUT = 2
NIGHT = (11, 15, 20)
"""Background of all pictures of brains."""
LIGHTEST = (171, 176, 184)
"""The brightest anatomy under a map: darker than white, so that maps and lettering stand out."""


def reduced(picture: Image.Image) -> Image.Image:
    """The picture in the colours of the palette, each pixel in the nearest to its six leading bits."""
    red, green, blue = np.asarray(picture.convert("RGB")).transpose(2, 0, 1) >> _BITS_LEFT_OUT
    few = Image.fromarray(_nearest()[red, green, blue])
    few.putpalette(_colours().tobytes())
    return few


@functools.cache
def _colours() -> NDArray[np.uint8]:
    """Warm and cool colours of maps, and greys from the background over the anatomy to white."""
    ramps = [np.asarray(table(np.linspace(0, 1, steps)))[:, :3] for table, steps in ((warm(), _WARM), (cool(), _COOL))]
    anatomy = np.linspace(NIGHT, LIGHTEST, _GREY) / 255
    lettering = np.linspace(LIGHTEST, [255, 255, 255], _WHITE + 1)[1:] / 255
    colours: NDArray[np.uint8] = np.rint(255 * np.concatenate([*ramps, anatomy, lettering])).astype(np.uint8)
    return colours


@functools.cache
def _nearest() -> NDArray[np.uint8]:
    """Place in the palette of every colour of six bits a channel."""
    levels = np.arange(0, 256, 1 << _BITS_LEFT_OUT) + (1 << _BITS_LEFT_OUT) / 2 - 0.5
    cube = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1)
    places: NDArray[np.uint8] = cKDTree(_colours()).query(cube)[1].astype(np.uint8)
    return places
