"""The words of the report, with their meaning in this run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.page.material import Material
from reports.words.glossary import GLOSSARY


def build(material: Material) -> Mapping[str, Any]:
    """Anchor, name and meaning of every word; that of guided backpropagation only where the run has such maps."""
    run = material.run
    said = {"positive": run.positive, "negative": run.negative, "start": run.config.attribution.start_value}
    used = [term for term in GLOSSARY if term.id != "susceptibility" or "gb" in run.map_names]
    return {"terms": [(term.id, term.name, term.meaning.format(**said)) for term in used]}
