"""Pictures of brains as pixels: a palette of 256 colours, lettering, and the bytes of a PNG.

Anatomy is a ramp of greys, maps are one ramp or two, lettering is white: 256 fixed colours hold all of them in steps
that nobody sees, at a quarter of the file size. A palette made from the picture itself would band the maps.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from scipy.spatial import cKDTree

from heatlas.reports.figures.style import cool, warm

NIGHT = (11, 15, 20)  # background of all pictures of brains
LIGHTEST = (171, 176, 184)  # the brightest anatomy under a map: darker than white, so that maps and lettering stand out
_WARM, _COOL, _GREY, _WHITE = 104, 56, 80, 16
_BITS_LEFT_OUT = 2


def png(sheet: Image.Image, shows: Mapping[str, Sequence[str]] | None = None) -> bytes:
    """The bytes of a picture in the colours of the palette; the same picture gives the same bytes.

    `shows`: lists of words that are kept in the file, for captions: see `shown_in`.
    """
    buffer, kept = io.BytesIO(), PngInfo()
    for name, words in (shows or {}).items():
        kept.add_text(name, json.dumps(list(words)))
    reduced(sheet).save(buffer, format="PNG", pnginfo=kept)
    return buffer.getvalue()


def shown_in(picture: bytes, name: str) -> tuple[str, ...]:
    """What a PNG says that it shows; empty if it says nothing."""
    try:
        with Image.open(io.BytesIO(picture)) as sheet:
            words = json.loads(sheet.info.get(name, "[]"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ()
    return tuple(map(str, words)) if isinstance(words, list) else ()


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


def write(picture: Image.Image, place: tuple[int, int], text: str) -> None:
    """Write light letters with a dark rim into a picture; the place is that of the upper left corner."""
    stamp = _stamp(text)
    picture.paste(stamp, place, stamp)


def width_of(text: str) -> int:
    """Width of a text in pixels, as `write` draws it."""
    return int(_stamp(text).width)


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib carries and draws with; Pillow's own font has no Greek letters."""
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)


@functools.lru_cache(maxsize=1024)
def _stamp(text: str) -> Image.Image:
    letters = font(11)
    _, _, right, bottom = letters.getbbox(text, stroke_width=1)
    stamp = Image.new("RGBA", (int(right) + 2, int(bottom) + 2), (0, 0, 0, 0))
    ImageDraw.Draw(stamp).text((0, 0), text, fill=(235, 240, 245), font=letters, stroke_width=1, stroke_fill=(0, 0, 0))
    return stamp
