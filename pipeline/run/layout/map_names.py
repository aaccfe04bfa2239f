"""Names of relevance maps in files, in tables and for readers.

Maps are named by method: ``lrpB025`` is LRP with beta 0.25, ``gb`` guided backpropagation.
"""

from __future__ import annotations

import re

from pipeline.run.config.settings import AttributionConfig

GUIDED_MAP = "gb"
"""Name of the map of guided backpropagation in files and tables."""


def lrp_map_name(beta: float) -> str:
    """Name of an LRP map in files and tables: beta times 100, three digits.

    Examples
    --------
    >>> lrp_map_name(0.25)
    'lrpB025'
    """
    return f"lrpB{round(beta * 100):03d}"


def map_names(settings: AttributionConfig) -> list[str]:
    """Maps that these settings ask for."""
    return [lrp_map_name(beta) for beta in settings.betas] + [GUIDED_MAP] * settings.guided_backpropagation


def is_map_of_a_run(name: str) -> bool:
    """Whether a map is one that a run makes by itself; ``heatlas explain`` never writes one of these.

    Examples
    --------
    >>> is_map_of_a_run("lrpB025"), is_map_of_a_run("gb"), is_map_of_a_run("gradcam")
    (True, True, False)
    """
    return name == GUIDED_MAP or re.fullmatch(r"lrpB\d{3,}", name) is not None


def map_title(name: str) -> str:
    """Name of a map as a reader sees it.

    Examples
    --------
    >>> map_title("lrpB050"), map_title("gb")
    ('LRP β=0.5', 'Guided backpropagation')
    """
    if name.startswith("lrpB"):
        return f"LRP β={int(name[4:]) / 100:g}"
    return {GUIDED_MAP: "Guided backpropagation"}.get(name, name)
