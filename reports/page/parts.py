"""The report in parts that do not wait for each other: sections of the index, pages of regions, pages of people.

Every part is made from the tables and mean maps of the run alone, so that the workers of a run can make them at the
same time, here or on other machines. Sections come back as markup, pages are written where they belong.

What the index and the sections show is also in ``report.json``, for programs. Tables have the cells of the page;
numbers are numbers, as they are in the files of the run. Pages of people and regions show rows of the tables of the run
(``group/*.tsv``), which are read as they are.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

from markupsafe import Markup

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_text
from heatlas.reports.content.run.summary import Summary
from heatlas.reports.figures.gallery import Gallery, Picture, house_style
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import (
    INDEX,
    PAGES,
    PARTICIPANTS,
    REGIONS,
    Component,
    Frame,
    NavigationEntry,
    render,
    render_part,
)
from heatlas.reports.frame.tables import PageTable
from heatlas.reports.page.sections import QUESTIONS, BuiltSection, build_section
from heatlas.reports.people.page import person_content
from heatlas.reports.questions.question import Caution, Question, Verdict
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord, read_run
from heatlas.reports.region_pages.page import RegionMaterial, region_content
from heatlas.reports.words.numbers import shortened


@dataclass(frozen=True)
class FinishedSection:
    """A section as it stands on the index."""

    id: str  # anchor, and name in the table of contents
    short: str
    html: Markup
    components: tuple[Component, ...]  # its interactive parts; their markup is in `html` already
    absent: bool  # whether it only says why it is empty
    facts: Mapping[str, Any] = field(default_factory=dict)  # what it says, for programs


@dataclass(frozen=True)
class FinishedParts:
    """What came of some parts: sections of the index, files of the pages written, relative to the run, and faults."""

    sections: tuple[FinishedSection, ...] = ()
    pages: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def finished_sections(material: Material, ids: Iterable[str]) -> FinishedParts:
    """Build sections, in the order given; those that do not apply are left out."""
    by_id, found = {section.id: section for section in QUESTIONS}, []
    with house_style():
        for name in ids:
            section = by_id[name]
            paths = [TABLES[table].path(material.run.layout) for table in section.requires if table in TABLES]
            files = " or ".join(path.relative_to(material.run.layout.root).as_posix() for path in paths)
            made, wrong = material.faults.attempt(f"“{section.title}”", partial(_finished, section, material), files)
            if wrong:
                html = render_part("section.html.j2", built=BuiltSection(section, absent=wrong))
                facts = {"id": name, "title": section.title, "missing": wrong, **facts_of({})}
                made = FinishedSection(name, section.short, html, (), True, facts)
            found += [] if made is None else [made]
    return FinishedParts(sections=tuple(found), faults=tuple(material.faults.said))


def _finished(section: Question, material: Material) -> FinishedSection | None:
    """A section as it stands on the index; None where it does not apply."""
    built = build_section(section, material)
    if built is None:
        return None
    html = render_part("section.html.j2", built=built)
    facts = {"id": section.id, "title": section.title, "missing": built.absent, **facts_of(built.content)}
    components = tuple(built.content.get("components", ()))
    return FinishedSection(section.id, section.short, html, components, bool(built.absent), facts)


def region_pages(material: Material) -> FinishedParts:
    """Pages of all bilateral groups, each leading to the next."""
    files, shared = material.links.regions, RegionMaterial(material)
    links, names = material.links.seen_from(PAGES), list(files)
    for place, group in enumerate(names):
        beside = [names[other] if 0 <= other < len(names) else None for other in (place - 1, place + 1)]
        previous, following = (None if name is None else _entry(name, links.region(name)) for name in beside)
        around = {"previous": previous, "following": following}
        page, wrong = material.faults.attempt("A page of a region", partial(_region_page, shared, group, around))
        if page is None:
            page = _page_of_fault(links.index, group, wrong)
        write_text(material.run.layout.root / files[group], page)
    return FinishedParts(pages=tuple(files.values()), faults=tuple(material.faults.said))


def _region_page(shared: RegionMaterial, group: str, around: Mapping[str, NavigationEntry | None]) -> str:
    material, links = shared.material, shared.material.links.seen_from(PAGES)
    viewer = () if shared.viewers is None else shared.viewers.components(group)
    content = region_content(shared, group)
    parts = [*_REGION_PARTS, ("tests", "Tests")] if content["tests"] else _REGION_PARTS
    frame = Frame(
        f"{shortened(group)} · {shortened(material.run.config.report.title)}", _anchors(parts), viewer, links.index,
        within=_beside(links.index, REGIONS.file),
    )  # fmt: skip
    return render("region.html.j2", frame, **content, **around)


def _beside(index: str, file: str) -> str:
    """Address of another page of the menu, from a page with this address of the index."""
    return index.removesuffix(INDEX) + file


def _page_of_fault(index: str, heading: str, wrong: str) -> str:
    """A page in the place of one that could not be made, so that links to it lead to the reason."""
    return render("fault.html.j2", Frame(shortened(heading), [], index=index), heading=shortened(heading), wrong=wrong)


def people_pages(material: Material, share: int = 0, shares: int = 1) -> FinishedParts:
    """Pages of all participants, or of one of equal shares of them."""
    people, files = ParticipantRecords(material.run), dict(list(material.links.people.items())[share::shares])
    for participant, file in files.items():
        make = partial(_person_page, material, people, participant)
        page, wrong = material.faults.attempt("A page of a participant", make)
        if page is None:
            page = _page_of_fault(material.links.index, participant, wrong)
        write_text(material.run.layout.root / file, page)
    return FinishedParts(pages=tuple(files.values()), faults=tuple(material.faults.said))


def _person_page(material: Material, people: ParticipantRecords, participant: str) -> str:
    title, index = f"{shortened(participant)} · {shortened(material.run.config.report.title)}", material.links.index
    frame = Frame(title, _anchors(_PERSON_PARTS), index=index, within=_beside(index, PARTICIPANTS))
    return render("participant.html.j2", frame, **person_content(material, people, participant))


_MAPS = ("brain", "maps", "patients")
"""Sections with pictures of brains: a part of their own, since the mean maps are read for them once."""
_OTHERS = tuple(section.id for section in QUESTIONS if section.id not in _MAPS)
PARTS: Mapping[str, Callable[[Material], FinishedParts]] = {
    "sections": partial(finished_sections, ids=_OTHERS),
    "maps": partial(finished_sections, ids=_MAPS),
    "regions": region_pages,
    "people": people_pages,
}
"""All parts, those that take longest first."""


_SHARE = 25
"""People whose pages one process makes; fewer are not worth reading the run once more."""


@functools.lru_cache(maxsize=1)
def _read_once(layout: RunLayout, report: int) -> RunRecord:
    """The run as a worker reads it for all its parts of one report."""
    return read_run(layout)


def _make_part(layout: RunLayout, report: int, part: Callable[[Material], FinishedParts]) -> FinishedParts:
    return part(Material(_read_once(layout, report), Gallery(layout.figures)))


@dataclass(frozen=True)
class BegunParts:
    """Parts that workers make; those of people are begun when it is known how many there are."""

    layout: RunLayout
    executor: Executor
    report: int = field(default_factory=time.time_ns)
    waiting: list[Future[FinishedParts]] = field(default_factory=list)

    def begin(self, part: Callable[[Material], FinishedParts]) -> None:
        self.waiting.append(self.executor.submit(_make_part, self.layout, self.report, part))


def begin_parts(layout: RunLayout, executor: Executor) -> BegunParts:
    """Let workers begin all parts but the pages of people, while this process reads the run."""
    begun = BegunParts(layout, executor)
    for name, part in PARTS.items():
        if name != "people":
            begun.begin(part)
    return begun


def make_parts(material: Material, begun: BegunParts | None) -> FinishedParts:
    """All parts, of the workers where some have begun. The sections are in the order of the report."""
    if begun is None:
        made = [part(material) for part in PARTS.values()]
    else:
        shares = math.ceil(len(material.links.people) / _SHARE)
        for share in range(shares):
            begun.begin(partial(people_pages, share=share, shares=shares))
        made = [future.result() for future in begun.waiting]
    sections = {section.id: section for one in made for section in one.sections}
    in_order = tuple(sections[section.id] for section in QUESTIONS if section.id in sections)
    faults = dict.fromkeys(fault for one in made for fault in one.faults)
    return FinishedParts(in_order, tuple(page for one in made for page in one.pages), tuple(faults))


_REGION_PARTS = (("map", "Map"), ("groups", "By group"), ("volume", "Volume"))
_PERSON_PARTS = (
    ("where", "Where it looked"),
    ("visits", "Scans"),
    ("fingerprint", "Fingerprint"),
    ("quality", "Quality"),
)


def _anchors(parts: Sequence[tuple[str, str]]) -> list[NavigationEntry]:
    return [NavigationEntry(title, f"#{anchor}") for anchor, title in parts]


def _entry(title: str, link: str | None) -> NavigationEntry | None:
    return None if link is None else NavigationEntry(shortened(title), link)


VERSION = 1
Kind = TypeVar("Kind")


def facts_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Verdict, tables and figures among the variables of a section's template."""
    verdict = next(_all(content, Verdict), None)
    return {
        "answer": None if verdict is None else asdict(verdict),
        "tables": [table_of(table) for table in _all(content, PageTable)],
        "figures": [{"file": f"figures/{one.name}", "caption": one.caption} for one in _all(content, Picture)],
    }


def table_of(table: PageTable) -> dict[str, Any]:
    """A table with a mapping per row; a cell of a numeric column without a number is null."""
    rows = [
        {
            column.key: _number(cell.order) if column.numeric else cell.whole or cell.text
            for column, cell in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    ]
    titles = {column.key: column.title for column in table.columns}
    return {"caption": table.caption, "columns": titles, "rows": rows, "rows_in_file_only": table.more,
            "notes": list(table.notes)}  # fmt: skip


def report_json(
    title: str,
    summary: Summary,
    cautions: Sequence[Caution],
    sections: Sequence[tuple[str, Mapping[str, Any]]],
    withheld: str = "",
) -> str:
    """Text of ``report.json``; `sections`: the page of each section and what it says.

    `withheld`: why the pages fold what the networks say, where they do.
    """
    content = {
        "report_version": VERSION,
        "title": title,
        **({"unlike": withheld} if withheld else {}),
        **asdict(summary),
        "cautions": [asdict(one) for one in cautions],
        "sections": [{"page": page, **section} for page, section in sections],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _number(order: str) -> float | None:
    value = float(order) if order else math.nan
    return value if math.isfinite(value) else None


def _all(value: Any, kind: type[Kind]) -> Iterator[Kind]:
    """Objects of a kind inside mappings, sequences and records, in their order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _all(one, kind)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _all(one, kind)
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from _all(getattr(value, one.name), kind)
