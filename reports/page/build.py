"""The report: pages made from the tables and maps of a run.

``report.html`` is the index; beside it lie the pages of `reports.frame.pages`, a page per participant and
``report.json``, which says the same to programs; in ``pages`` one page per region. Each page holds everything it shows,
and opening it makes no request. Its content security policy allows inlined pictures and styles and the scripts that are
part of the page, so that nothing in the data can act as a script.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from markupsafe import Markup

from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE
from heatlas.pipeline.cohort.reading import PLANTED
from heatlas.pipeline.cohort.records import CLINICAL_TABLE, SCANS_TABLE
from heatlas.pipeline.evaluation.parts import BENCH_TABLES
from heatlas.pipeline.regions.ranking import FINGERPRINTS_TABLE
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.folder import read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_text
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE
from heatlas.reports.content.run.colophon import methods_bibtex, methods_markdown
from heatlas.reports.content.run.summary import Summary, summarise
from heatlas.reports.frame.material import Faults, Material
from heatlas.reports.frame.pages import (
    CHAPTERS,
    INDEX,
    PAGES,
    Frame,
    NavigationEntry,
    anchors_of,
    render,
    template_files,
    with_addresses,
)
from heatlas.reports.page.parts import FinishedSection, begin_parts, make_parts, report_json
from heatlas.reports.page.sections import QUESTIONS, find_cautions, missing_stages, sections_of
from heatlas.reports.people.likeness import why_unlike
from heatlas.reports.people.scan_report import SCAN_REPORT, scan_report
from heatlas.reports.questions.question import Caution
from heatlas.reports.viewer.component import shared_data
from heatlas.reports.words.numbers import is_missing, listing, shortened

log = logging.getLogger("heatlas")

JSON = "report.json"


def report_inputs(layout: RunLayout) -> list[Path]:
    """Return the files that a report is made from: those of the run, the planted truth and the templates.

    Provenance is left out, since its time alone is no reason to build the report again.
    """
    of_the_run = [
        layout.config,
        *(table.path(layout) for table in (SCANS_TABLE, CLINICAL_TABLE, SPLITS_TABLE, FAILURES_TABLE)),
    ]
    of_the_folds = [*layout.root.glob("models/fold-*/*.tsv"), *layout.root.glob("models/fold-*/model.json")]
    of_the_group = [path for path in layout.group.rglob("*") if path.is_file()]
    of_the_evaluation = [path for table in BENCH_TABLES if table.on_pages and (path := table.path(layout)).is_file()]
    of_the_scans = [*_maps_of_the_pairs(layout), *_pictures_of_scans(layout)]
    truth = read_run_input(layout).input / PLANTED
    return [
        *of_the_run, *sorted(of_the_folds), *sorted(of_the_group), *of_the_evaluation, *of_the_scans,
        *sorted(template_files()), *([truth] if truth.is_file() else []),
    ]  # fmt: skip


def _maps_of_the_pairs(layout: RunLayout) -> list[Path]:
    """Maps of the two participants whose fingerprints are compared."""
    try:
        table = FINGERPRINTS_TABLE.read(layout, ["map", "participant_id", "session_id"])
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


def _pictures_of_scans(layout: RunLayout) -> list[Path]:
    """Pictures that the run has drawn of each kept scan."""
    try:
        table = SCANS_TABLE.read(layout, ["participant_id", "session_id", "kept"])
    except BadInputError:
        return []
    resolution, found = read_config(layout.config).registration.resolution_mm, []
    for participant, session in table[["participant_id", "session_id"]].drop_duplicates().itertuples(index=False):
        files = layout.scan(participant, None if is_missing(session) else session, resolution)
        found += [path for path in (files.overview, files.portrait, files.unsmoothed_portrait) if path.is_file()]
    return sorted(found)


def written_files(layout: RunLayout) -> list[Path]:
    """Return the files that `build_report` has written: pages, figures, methods text, bibliography."""
    figures = sorted(path for path in layout.figures.glob("*") if path.is_file())
    pages = [layout.root / JSON, layout.root / SCAN_REPORT, *(layout.root / chapter.file for chapter in CHAPTERS[1:])]
    pages = [
        *filter(Path.is_file, pages),
        *sorted(layout.root.glob("sub-*.html")),
        *sorted((layout.root / PAGES).glob("region-*.html")),
    ]
    return [layout.report, layout.methods_text, layout.bibliography, *figures, *pages]


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    index: Path
    faults: tuple[str, ...]  # files that could not be used and parts that are therefore missing, each in a sentence


def build_report(layout: RunLayout, executor: Executor | None = None) -> Path:
    """Write a report and return its index; see `write_report`."""
    return write_report(layout, executor).index


def write_report(layout: RunLayout, executor: Executor | None = None) -> Report:
    """Write all pages, the figures as files, the methods text and its bibliography.

    Works for a run that stopped after any stage, and for one with damaged files; what is missing is said in the report
    and in the log. No image of a single scan is read, so a finished run's report is built again in seconds.

    `executor`: workers that make the parts of the report at the same time. Raises UsageError if the folder is not a
    run.
    """
    begun = None if executor is None else begin_parts(layout, executor)
    material = Material.of(layout)
    made = make_parts(material, begun)
    faults = Faults(layout, dict.fromkeys(made.faults))
    for path, text_of in ((layout.methods_text, methods_markdown), (layout.bibliography, methods_bibtex)):
        text, _ = faults.attempt(path.relative_to(layout.root).as_posix(), partial(text_of, material.run))
        if text is not None:
            write_text(path, text)
    _remove_pages_but(layout, made.pages)
    summary, cautions = summarise(material.run, faults), find_cautions(material.run, faults)
    for file, page in _chapters(material, made.sections, summary, cautions).items():
        write_text(layout.root / file, page)
    of_one_scan, _ = faults.attempt(SCAN_REPORT, partial(scan_report, material))
    if of_one_scan is None:
        (layout.root / SCAN_REPORT).unlink(missing_ok=True)
    else:
        write_text(layout.root / SCAN_REPORT, of_one_scan)
    page_of = {section.id: section.page.file for section in QUESTIONS}
    facts = [(page_of[section.id], section.facts) for section in made.sections]
    title, withheld = shortened(material.run.config.report.title), why_unlike(material.run)
    write_text(layout.root / JSON, report_json(title, summary, cautions, facts, withheld))
    said = tuple(dict.fromkeys([*material.run.unreadable.values(), *faults.said]))
    for fault in said:
        log.warning("%s", fault)
    if missing := missing_stages(material.run):
        log.warning("The run is not finished: there are no results of %s.", listing(missing))
    return Report(layout.report, said)


def _chapters(
    material: Material, made: Sequence[FinishedSection], summary: Summary, cautions: Sequence[Caution]
) -> dict[str, str]:
    """Every page that is a list of sections, by its file."""
    by_id = {section.id: section for section in made}
    report, data, pages = shortened(material.run.config.report.title), None, {}
    for chapter in CHAPTERS:
        names = sections_of(chapter)
        sections = [by_id[name] for name in names if name in by_id]
        figures = numbered([section.html for section in sections])
        sections = [replace(section, html=html) for section, html in zip(sections, figures, strict=True)]
        interactive = [component for section in sections for component in section.components]
        data = data or (shared_data(material) if interactive else None)
        shared = [data] if data is not None and interactive else []
        first = chapter.file == INDEX
        anchors = [NavigationEntry(section.short, f"#{section.id}", section.absent) for section in sections]
        title = report if first else f"{chapter.title} · {report}"
        frame = Frame(title, [] if first else anchors, [*shared, *interactive], "" if first else INDEX, chapter.file)
        about = [one for one in cautions if one.section in names or one.level == "serious"]
        pages[chapter.file] = render(
            "report.html.j2" if first else "chapter.html.j2", frame, title=report if first else chapter.title,
            report=report, summary=summary, cautions=cautions if first else about, sections=sections, shared=shared,
            applied=material.run.without_labels, withheld=why_unlike(material.run),
        )  # fmt: skip
    files = {anchor: file for file, page in pages.items() for anchor in anchors_of(page)}
    return {file: with_addresses(page, files) for file, page in pages.items()}


def numbered(parts: Sequence[Markup]) -> list[Markup]:
    """Parts of a page with numbers in place of the marks before captions, running through all parts.

    Sections are made apart from each other, so a template only marks where a number belongs. Text of the input cannot
    hold the mark, since templates escape it.

    Examples
    --------
    >>> numbered([Markup("<!--figure--> A <!--figure--> B"), Markup("<!--figure--> C")])
    [Markup('Figure 1. A Figure 2. B'), Markup('Figure 3. C')]
    """
    numbers = count(1)
    return [Markup(re.sub("<!--figure-->", lambda _: f"Figure {next(numbers)}.", part)) for part in parts]


def _remove_pages_but(layout: RunLayout, pages: Iterable[str]) -> None:
    """Remove pages of people, regions and sections that this run no longer has."""
    current = {layout.root / file for file in (*pages, *(chapter.file for chapter in CHAPTERS))}
    for path in (
        *layout.root.glob("sub-*.html"),
        *(layout.root / PAGES).glob("region-*.html"),
    ):
        if path not in current:
            path.unlink()
