"""Names of methods and of their maps as readers see them: the title on a method's entry, then its unusual settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache

from heatlas.pipeline.attribution.entry import title_of
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.run.layout.scan_files import GUIDED, GUIDED_MAP, LRP, beta_of, map_label

FIRST = ("inherent", "expectedGradients")
"""Evidence maps that lead before others: the exact one of networks that have it, then the one made by default."""


def maps_to_lead(names: Sequence[str], evidence: Collection[str]) -> list[str]:
    """Maps of a run that may lead, the first where nothing was evaluated: evidence maps, then LRP of the smallest beta.

    Without LRP the first map takes its place. `evidence`: maps in units of evidence, relative to controls.

    >>> maps_to_lead(["lrpB050", "lrpB000", "deeplift", "expectedGradients"], {"deeplift", "expectedGradients"})
    ['expectedGradients', 'deeplift', 'lrpB000']
    """
    places = {name: place for place, name in enumerate(FIRST)}
    found = sorted((name for name in names if name in evidence), key=lambda name: places.get(name, len(FIRST)))
    betas = {name: beta for name in names if (beta := beta_of(name)) is not None}
    return [*found, min(betas, key=betas.__getitem__, default=names[0])]


def map_title(name: str) -> str:
    """Name of a map as a reader sees it.

    >>> map_title("lrpB050"), map_title("gb"), map_title("integratedGradients"), map_title("riseP0p25")
    ('LRP β=0.5', 'Guided backpropagation', 'Integrated gradients', 'RISE p 0.25')
    """
    beta = beta_of(name)
    if beta is not None:
        return f"{METHODS[LRP].title} β={beta:g}"
    if name == GUIDED_MAP:
        return METHODS[GUIDED].title
    for label, title in _titles_of_labels():
        rest = name[len(label) :]
        if name.startswith(label) and not rest[:1].islower():
            return f"{title} {_words(rest)}".rstrip()
    return title_of(_words(name))


@cache
def _titles_of_labels() -> Sequence[tuple[str, str]]:
    """How the labels of each method's maps begin, with its title; the longer of two that begin alike first."""
    return sorted(((map_label(name, {}), entry.title) for name, entry in METHODS.items()), reverse=True)


def _words(label: str) -> str:
    """A label as words.

    >>> _words("SizeMm12"), _words("riseP0p25")
    ('size mm 12', 'rise p 0.25')
    """
    plain = re.sub(r"(?<=\d)p(?=\d)", ".", label)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Za-z])(?=\d)", " ", plain).lower()


def method_title(name: str) -> str:
    """Name of a method, and the settings behind it, as a reader sees it.

    >>> method_title("guided-backpropagation"), method_title("lrp beta=0.25"), method_title("lrp focus")
    ('Guided backpropagation', 'LRP β=0.25', 'LRP focus')
    """
    method, _, settings = name.partition(" ")
    title = METHODS[method].title if method in METHODS else title_of(method)
    return f"{title} {settings.replace('beta=', 'β=').replace('gamma=', 'γ=')}".rstrip()
