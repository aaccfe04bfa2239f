"""Lettering on pictures of brains: light, with a dark rim, each text drawn once."""

from __future__ import annotations

import functools
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

_LIGHT, _RIM = (235, 240, 245, 255), (0, 0, 0, 255)
_SIZE = 11


def write(picture: Image.Image, place: tuple[int, int], text: str) -> None:
    """Write into a picture; the place is that of the upper left corner."""
    stamp = _stamp(text)
    picture.paste(stamp, place, stamp)


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib carries and draws with; Pillow's own font has no Greek letters."""
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)


@functools.lru_cache(maxsize=1024)
def _stamp(text: str) -> Image.Image:
    letters = font(_SIZE)
    _, _, right, bottom = letters.getbbox(text, stroke_width=1)
    stamp = Image.new("RGBA", (int(right) + 2, int(bottom) + 2), (*_RIM[:3], 0))
    ImageDraw.Draw(stamp).text((0, 0), text, fill=_LIGHT, font=letters, stroke_width=1, stroke_fill=_RIM)
    return stamp
