"""Names of relevance maps in files and tables; `pipeline.attribution.titles` has those for readers.

``lrpB025`` is LRP with beta 0.25, ``gb`` guided backpropagation; any other map has the name of its method and of the
settings that differ from the defaults: ``occlusionSize12``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

from heatlas.pipeline.run.config.settings import AttributionConfig

LRP, GUIDED = "lrp", "guided-backpropagation"
"""Methods of the founding study, whose maps have short names."""
GUIDED_MAP = "gb"
"""Name of the map of guided backpropagation in files and tables."""
LONGEST_LABEL = 80


def lrp_map_name(beta: float) -> str:
    """Name of an LRP map in files and tables: beta times 100, three digits.

    Examples
    --------
    >>> lrp_map_name(0.25)
    'lrpB025'
    """
    return f"lrpB{round(beta * 100):03d}"


def beta_of(name: str) -> float | None:
    """Beta of an LRP map by its name; None for any other map.

    Examples
    --------
    >>> beta_of("lrpB025"), beta_of("gb"), beta_of("lrpBatchNormIdentity")
    (0.25, None, None)
    """
    return int(name[4:]) / 100 if re.fullmatch(r"lrpB\d{3,}", name) else None


def map_label(method: str, unusual: Mapping[str, object]) -> str:
    """BIDS label of a map, letters and digits only; unique for each method and settings.

    `method`: name in the registry. `unusual`: settings that differ from the defaults, by name, in the order of the
    label.

    Examples
    --------
    >>> map_label("grad-cam++", {})
    'gradCampp'
    >>> map_label("rise", {"target": "CN", "stage": 2, "masking.baseline": 0.25})
    'riseTargetCNStage2MaskingBaseline0p25'
    """
    word = _letters(method.replace("+", "p"))
    pieces, readable = [word[:1].lower() + word[1:]], True
    for name, value in unusual.items():
        text = str(value)
        if not isinstance(value, str) or re.fullmatch(r"-?[\d.]+", text):
            text = text.replace(".", "p").replace("-", "m")
        readable &= text.isascii() and text.isalnum()
        pieces.append(_letters(name) + re.sub(r"[^A-Za-z0-9]", "", text[:1].upper() + text[1:]))
    label = "".join(pieces)
    if readable and len(label) <= LONGEST_LABEL:
        return label
    text = json.dumps([method, dict(unusual)], sort_keys=True, ensure_ascii=False, allow_nan=False)
    return label[:LONGEST_LABEL] + hashlib.sha256(text.encode()).hexdigest()[:8]


def _letters(name: str) -> str:
    """A setting's name as one word.

    >>> _letters("masking.inner"), _letters("kernel_width")
    ('MaskingInner', 'KernelWidth')
    """
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]", name))


def settings_for(method: str, settings: Sequence[str]) -> list[str]:
    """Settings of one method: ``key=value`` holds for every method, ``method:key=value`` for one.

    Examples
    --------
    >>> settings_for("rise", ["batch=4", "rise:masks=500", "lime:samples=9"])
    ['batch=4', 'masks=500']
    """
    pairs = []
    for text in settings:
        name, colon, _ = text.partition("=")[0].partition(":")
        if not colon or name.strip() == method:
            pairs.append(text.partition(":")[2] if colon else text)
    return pairs


def names_of(method: str, settings: Sequence[str], betas: Sequence[float]) -> list[str]:
    """Maps that a run makes with one method and its settings."""
    if method == LRP and not settings:
        return [lrp_map_name(beta) for beta in betas]
    if method == GUIDED and not settings:
        return [GUIDED_MAP]
    written = dict(sorted((text.partition("=")[0].strip(), text.partition("=")[2].strip()) for text in settings))
    return [map_label(method, written)]


def map_names(attribution: AttributionConfig) -> list[str]:
    """Maps that a run with these settings makes, in the order of its methods.

    Examples
    --------
    >>> map_names(AttributionConfig(methods=("lrp", "rise"), betas=(0.0, 0.5), settings=("rise:masks=500",)))
    ['lrpB000', 'lrpB050', 'riseMasks500']
    """
    return [
        name
        for method in attribution.methods
        for name in names_of(method, settings_for(method, attribution.settings), attribution.betas)
    ]
