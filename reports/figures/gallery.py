"""How figures look, and where they go: one style, one palette, and files whose bytes are inlined into the page too.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color), safe for colour-blind readers. The positive class is
vermilion, the negative blue; of the outcomes, the wrong ones are the lighter relatives, and each has its own marker, so
that no figure depends on colour alone.

In the report charts are SVG and pictures of brains PNG. In these, anatomy is a ramp of greys, maps are one ramp or two,
lettering is white: 256 fixed colours hold all of them in steps that nobody sees, at a quarter of the file size. A
palette made from the picture itself would band the maps.

``heatlas figures`` writes the same figures in the formats that a journal asks for (SVG, PDF with fonts, PNG at 300
dpi).
"""

from __future__ import annotations

import base64
import functools
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import matplotlib
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from scipy.spatial import cKDTree

from heatlas.pipeline.run.tables import write_bytes

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


LONGEST_METHOD, PER_ROW = 40, 4
"""Letters of a method's name in a figure, and small panels beside each other."""


def new_panels(panels: int, sharex: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of small panels with one vertical scale, and with `sharex` one horizontal scale."""
    columns, rows = min(panels, PER_ROW), -(-panels // PER_ROW)
    figure = new_figure(2.2 * columns + 0.8, 1.9 * rows + 0.8)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=True).flat)
    for ax in axes[panels:]:
        ax.set_visible(False)
    return figure, axes[:panels]


def class_colours(positive: str, negative: str) -> dict[str, str]:
    return {positive: VERMILION, negative: BLUE}


@functools.cache
def warm() -> Colormap:
    """Positive relevance: the upper part of inferno, perceptually uniform, visible on a dark brain."""
    return ListedColormap(mpl.colormaps["inferno"](np.linspace(0.32, 1.0, 256)), name="warm")


@functools.cache
def cool() -> Colormap:
    """Negative relevance: blue, as light as `warm` at every strength."""
    return LinearSegmentedColormap.from_list("cool", ["#123f73", "#0072B2", "#56B4E9", "#e6f7ff"])


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
