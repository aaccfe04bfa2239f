"""Where figures go: files with a stable name in a folder, and the same bytes inlined into the page.

In the report charts are SVG and pictures of brains PNG. ``heatlas figures`` writes the same figures in the formats that
a journal asks for (SVG, PDF with fonts, PNG at 300 dpi).
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from heatlas.pipeline.run.tables import write_bytes
from heatlas.reports.figures.pictures import reduced

MEDIA_TYPES = {"svg": "image/svg+xml", "png": "image/png"}
FORMATS = ("svg", "png", "pdf")
PAGE_DPI, PRINT_DPI = 144, 300


@dataclass(frozen=True)
class Picture:
    """A figure on the page."""

    name: str  # file name without folder; stable from run to run
    source: str  # data URI, or the address of a file of the run, relative to the page
    alt: str  # what the figure shows, for those who cannot see it
    caption: str
    width: int  # width in pixels at which its text is read comfortably
    dark: bool = False  # whether its background is dark
    height: int = 0  # in pixels at that width, so that a page does not jump when the picture is there; 0 if not known
    template: str = ""  # address of the same slices of the template, to flicker between the two


@dataclass(frozen=True)
class Gallery:
    """Folder of figure files.

    `folder`: made when the first figure is written. `forms`: formats of `FORMATS` for publication. Without any, figures
    are those of the page: one format each.
    """

    folder: Path
    forms: tuple[str, ...] = ()

    @property
    def density(self) -> int:
        """Pixels per inch that pictures of brains should have."""
        return PRINT_DPI if self.forms else PAGE_DPI

    def add(self, figure: Figure, name: str, alt: str, caption: str, form: str = "svg") -> Picture:
        """Write a figure and give it back as a picture; one for publication belongs to no page and has no source.

        `name`: stable file name without suffix. `form`: format on the page: ``svg`` for charts, ``png`` for pictures of
        brains.
        """
        source = ""
        _three_ticks(figure)
        for wanted in self.forms or (form,):
            content = rendered(figure, wanted, self.density, reduce=form == "png")
            self.write(content, f"{name}.{wanted}")
            source = "" if self.forms else inlined(content, form)
        dark = sum(to_rgb(figure.get_facecolor())) < 1
        width, height = (round(inches * 96) for inches in figure.get_size_inches())
        return Picture(f"{name}.{form}", source, alt, caption, width, dark, height)

    def add_png(self, content: bytes, name: str, alt: str, caption: str) -> Picture:
        """Add slices that the run has drawn already, on black."""
        with Image.open(io.BytesIO(content)) as picture:
            pixels = picture.convert("RGB")
        if self.forms:
            figure = Figure(figsize=(pixels.width / PAGE_DPI, pixels.height / PAGE_DPI), facecolor="black")
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            axes.imshow(pixels, aspect="auto")
            return self.add(figure, name, alt, caption, "png")
        self.write(content, f"{name}.png")
        return Picture(f"{name}.png", inlined(content, "png"), alt, caption, pixels.width, True, pixels.height)

    def write(self, content: bytes, name: str) -> None:
        """Write a file into the folder, whole or not at all."""
        write_bytes(self.folder / name, content)


def _three_ticks(figure: Figure) -> None:
    """Let every axis whose ticks matplotlib chooses have three or more; two do not show that a scale is linear."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            locator = axis.get_major_locator()
            if isinstance(locator, MaxNLocator):
                locator.set_params(min_n_ticks=3)


def inlined(content: bytes, form: str) -> str:
    """Data URI of a picture; SVG as text, which is a fifth shorter than base64."""
    if form == "svg":
        return f"data:{MEDIA_TYPES[form]},{quote(content, safe=_SAFE)}"
    return f"data:{MEDIA_TYPES[form]};base64,{base64.b64encode(content).decode()}"


_SAFE = " !$()*+,-./:;=?@[]_~'{}"  # what an address of this kind may hold as it is, besides letters and digits
_FRACTION = re.compile(rb"([1-9]\d*\.\d\d)\d+")
_METADATA = re.compile(rb"<metadata>.*?</metadata>", re.DOTALL)


def _slim(svg: bytes) -> bytes:
    """Drawing coordinates to a hundredth of a point, without matplotlib's metadata and indentation.

    Numbers below 1 are left alone: they are scales of glyphs and opacities.
    """
    text = _FRACTION.sub(rb"\1", _METADATA.sub(b"", svg))
    return b"\n".join(line for line in map(bytes.strip, text.splitlines()) if line)


def rendered(figure: Figure, form: str, dpi: int = PAGE_DPI, reduce: bool = False) -> bytes:
    """A figure as SVG, PNG or PDF; the same figure gives the same bytes. `reduce` is for PNGs of brain slices.

    The canvas is asked directly: ``Figure.savefig`` draws everything a second time to measure it, which nothing here
    needs, and the whole report would take twice as long.
    """
    buffer = io.BytesIO()
    figure.set_dpi(dpi)
    if form == "svg":
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]
        return _slim(buffer.getvalue())
    if form == "pdf":
        FigureCanvasPdf(figure).print_pdf(buffer, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
    else:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]
        (reduced(pixels) if reduce else pixels).save(buffer, "PNG", dpi=(dpi, dpi))
    return buffer.getvalue()
