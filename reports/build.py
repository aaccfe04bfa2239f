"""The report: one HTML file made from the tables and maps of a run.

It holds everything it shows; opening it makes no request. Its content security policy allows inlined pictures and
styles and the one script that is part of the page, so that nothing in the data can act as a script.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.run.config import read_config
from pipeline.run.errors import BadInputError
from pipeline.run.layout import RunLayout
from pipeline.run.tables import read_table, write_text
from reports.cautions import find_cautions
from reports.content.summary import summarise
from reports.figures.style import house_style
from reports.material import Material
from reports.methods import methods_markdown
from reports.numbers import is_missing
from reports.sections import SECTIONS
from reports.specification import build_section

TEMPLATES = Path(__file__).parent / "templates"


def report_inputs(layout: RunLayout) -> list[Path]:
    """Return the files of a run that its report is made from, and the report's own templates.

    Provenance is left out: its time of day alone is no reason to build the report again.
    """
    of_the_run = [layout.config, layout.scans, layout.splits, layout.failures]
    of_the_folds = [*layout.root.glob("models/fold-*/*.tsv"), *layout.root.glob("models/fold-*/model.json")]
    of_the_group = [path for path in layout.group.rglob("*") if path.is_file()]
    templates = [path for path in TEMPLATES.rglob("*") if path.is_file()]
    return [
        *of_the_run, *sorted(of_the_folds), *sorted(of_the_group), *_maps_of_the_pairs(layout), *sorted(templates),
    ]  # fmt: skip


def _maps_of_the_pairs(layout: RunLayout) -> list[Path]:
    """Maps of single scans: those of the two participants whose fingerprints are compared."""
    try:
        table = read_table(layout.statistics("fingerprints"), ["map", "participant_id", "session_id"])
    except BadInputError:  # not there yet, or damaged, which the page says
        return []
    config = read_config(layout.config)
    if config.attribution.keep_maps != "all":
        return []
    resolution = config.registration.resolution_mm
    pairs = table[["map", "participant_id", "session_id"]].dropna(subset="participant_id").drop_duplicates()
    paths = [
        layout.scan(participant, None if is_missing(session) else session, resolution).relevance_map(name)
        for name, participant, session in pairs.itertuples(index=False)
    ]
    return sorted(path for path in paths if path.is_file())


def written_files(layout: RunLayout) -> list[Path]:
    """Return the files that `build_report` has written: the page, its figures, the methods text."""
    figures = sorted(path for path in layout.figures.glob("*") if path.is_file())
    return [layout.report, layout.methods_text, *figures]


def build_report(layout: RunLayout) -> Path:
    """Write ``report.html``, the figures as files, and the methods text.

    Works for a run that stopped after any stage; what is missing is said in the report.

    Parameters
    ----------
    layout : RunLayout

    Returns
    -------
    Path
        The report.

    Raises
    ------
    UsageError
        If the folder is not a run.
    """
    with house_style():
        material = Material.of(layout)
        built = [build_section(section, material) for section in SECTIONS]
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        title=material.run.config.report.title,
        summary=summarise(material.run),
        cautions=find_cautions(material.run),
        sections=[section for section in built if section is not None],
        style=style,
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    write_text(layout.methods_text, methods_markdown(material.run))
    write_text(layout.report, page)
    return layout.report
