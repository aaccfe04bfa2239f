"""Glossary, methods, provenance and credits: what words mean, how the run was made and whom to thank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from heatlas.pipeline.run.layout.private_paths import last_part, without_folders
from heatlas.reports.content.run.methods import credits, methods_text
from heatlas.reports.frame.material import Material
from heatlas.reports.words.glossary import GLOSSARY


def build_glossary(material: Material) -> Mapping[str, Any]:
    """Anchor, name and meaning of every word; guided backpropagation's only where the run has such maps."""
    run = material.run
    said = {"positive": run.positive, "negative": run.negative, "start": run.config.attribution.start_value}
    used = [term for term in GLOSSARY if term.id != "susceptibility" or "gb" in run.map_names]
    return {"terms": [(term.id, term.name, term.meaning.format(**said)) for term in used]}


def build_methods(material: Material) -> Mapping[str, Any]:
    """Paragraphs and references; the same text is in ``logs/CITATION.md``."""
    text = methods_text(material.run)
    return {"paragraphs": text.paragraphs, "references": text.references}


def build_provenance(material: Material) -> Mapping[str, Any]:
    """Command, versions, machine, digests, and the settings in full."""
    run = material.run
    provenance = run.provenance
    machine = provenance.get("machine", {})
    facts = [
        ("Command", " ".join(map(str, provenance.get("command", [])))),
        ("Input", run.source.input.name),
        ("Preset", run.source.preset),
        ("Seed", str(run.config.seed)),
        ("Run at", provenance.get("time")),
        ("Code", provenance.get("code_commit")),
        ("Machine", ", ".join(f"{key} {value}" for key, value in machine.items())),
    ]
    for name, source in provenance.get("sources", {}).items():
        if isinstance(source, dict) and "sha256" in source:
            facts.append((f"{name.capitalize()} (SHA-256)", f"{source.get('name', '')}: {source['sha256']}"))
    settings = run.layout.config.read_text(encoding="utf-8")
    packages = " · ".join(f"{name} {version}" for name, version in provenance.get("packages", {}).items())
    return {
        "facts": [(name, value or "not recorded") for name, value in facts],
        "packages": packages or "not recorded",
        "config": without_folders(re.sub('"(/[^"]*)"', lambda found: f'"{last_part(found[1])}"', settings)),
    }


def build_credits(material: Material) -> Mapping[str, Any]:
    """Acknowledgements and licences, and the files with the works to cite."""
    layout = material.run.layout
    files = [path.relative_to(layout.root).as_posix() for path in (layout.methods_text, layout.bibliography)]
    return {"credits": credits(material.run), "files": files}
