"""Where figures go: a file with a stable name in the run folder, and the same bytes inlined into the page."""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass
from pathlib import Path

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

MEDIA_TYPES = {"svg": "image/svg+xml", "png": "image/png"}


@dataclass(frozen=True)
class Picture:
    """A figure on the page.

    Parameters
    ----------
    name : str
        File name without folder; stable from run to run.
    source : str
        Data URI.
    alt : str
        What the figure shows, for those who cannot see it.
    caption : str
    width : int
        Width in pixels at which its text is read comfortably.
    dark : bool
        Whether its background is dark.
    """

    name: str
    source: str
    alt: str
    caption: str
    width: int
    dark: bool = False


@dataclass(frozen=True)
class Gallery:
    """Folder of figure files.

    Parameters
    ----------
    folder : Path
        Made when the first figure is written.
    """

    folder: Path

    def add(self, figure: Figure, name: str, alt: str, caption: str, form: str = "svg") -> Picture:
        """Write a figure and give it back as a picture.

        Parameters
        ----------
        figure : matplotlib.figure.Figure
        name : str
            Stable file name without suffix.
        alt, caption : str
        form : str
            ``svg`` for charts, ``png`` for brain slices.
        """
        buffer = io.BytesIO()
        # No date: the same run gives the same bytes.
        metadata = {"Date": None} if form == "svg" else {"Software": "heatlas"}
        figure.savefig(buffer, format=form, metadata=metadata, dpi=144)
        width = round(figure.get_figwidth() * 96)
        dark = sum(to_rgb(figure.get_facecolor())) < 1
        return self._keep(buffer.getvalue(), name, form, alt, caption, width, dark)

    def add_png(self, content: bytes, name: str, alt: str, caption: str) -> Picture:
        """Add brain slices that are drawn already, on black."""
        width = int.from_bytes(content[16:20], "big")  # of the IHDR chunk, which comes first
        return self._keep(content, name, "png", alt, caption, width, True)

    def _keep(self, content: bytes, name: str, form: str, alt: str, caption: str, width: int, dark: bool) -> Picture:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.{form}"
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        temporary.replace(path)
        data = base64.b64encode(content).decode()
        return Picture(path.name, f"data:{MEDIA_TYPES[form]};base64,{data}", alt, caption, width, dark)
