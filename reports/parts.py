"""The report in parts that do not wait for each other: sections of the index, pages of regions, pages of people.

Every part is made from the tables and mean maps of the run alone, so that the workers of a run can make them at the
same time, here or on other machines. Sections come back as markup, pages are written where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.run.layout import RunLayout
from pipeline.run.tables import write_text
from reports.components import Component
from reports.figures.style import house_style
from reports.links import PAGES
from reports.material import Material
from reports.pages import Frame, NavigationEntry, render, render_part
from reports.people.cohort import People
from reports.people.page import person_content
from reports.region_pages.page import RegionMaterial, region_content
from reports.sections import SECTIONS
from reports.specification import build_section


@dataclass(frozen=True)
class FinishedSection:
    """A section as it stands on the index.

    Parameters
    ----------
    id, short : str
        Anchor, and name in the table of contents.
    html : markupsafe.Markup
    components : tuple of Component
        Its interactive parts; their markup is in `html` already.
    absent : bool
        Whether it only says why it is empty.
    """

    id: str
    short: str
    html: Markup
    components: tuple[Component, ...]
    absent: bool


@dataclass(frozen=True)
class Made:
    """What came of some parts: sections of the index, and files of the pages written, relative to the run."""

    sections: tuple[FinishedSection, ...] = ()
    pages: tuple[str, ...] = ()


def finished_sections(material: Material, ids: Iterable[str]) -> Made:
    """Build sections, in the order given; those that do not apply are left out."""
    by_id, found = {section.id: section for section in SECTIONS}, []
    with house_style():
        for name in ids:
            built = build_section(by_id[name], material)
            if built is not None:
                html = render_part("section.html.j2", built=built)
                found.append(
                    FinishedSection(name, by_id[name].short, html, tuple(built.components), bool(built.absent))
                )
    return Made(sections=tuple(found))


def region_pages(material: Material) -> Made:
    """Pages of all bilateral groups, each leading to the next."""
    files, shared = material.links.regions, RegionMaterial(material)
    links, names = material.links.seen_from(PAGES), list(files)
    title = material.run.config.report.title
    for place, group in enumerate(names):
        beside = [names[other] if 0 <= other < len(names) else None for other in (place - 1, place + 1)]
        previous, following = (None if name is None else _entry(name, links.region(name)) for name in beside)
        viewer = () if shared.viewers is None else shared.viewers.components(group)
        content = region_content(shared, group)
        parts = [*_REGION_PARTS, ("tests", "Tests")] if content["tables"] else _REGION_PARTS
        frame = Frame(f"{group} · {title}", _anchors(parts), viewer, links.index)
        page = render("region.html.j2", frame, **content, previous=previous, following=following)
        write_text(material.run.layout.root / files[group], page)
    return Made(pages=tuple(files.values()))


def people_pages(material: Material) -> Made:
    """Pages of all participants."""
    people, files = People(material.run), material.links.people
    for participant, file in files.items():
        frame = Frame(
            f"{participant} · {material.run.config.report.title}", _anchors(_PERSON_PARTS), index=material.links.index
        )
        page = render("participant.html.j2", frame, **person_content(material, people, participant))
        write_text(material.run.layout.root / file, page)
    return Made(pages=tuple(files.values()))


_MAPS = ("maps", "patients")
"""Sections with pictures of brains: a part of their own, since the mean maps are read for them once."""
_OTHERS = tuple(section.id for section in SECTIONS if section.id not in _MAPS)
PARTS: Mapping[str, Callable[[Material], Made]] = {
    "maps": lambda material: finished_sections(material, _MAPS),
    "regions": region_pages,
    "sections": lambda material: finished_sections(material, _OTHERS),
    "people": people_pages,
}
"""All parts, those that take longest first."""


def make_part(layout: RunLayout, all_formats: bool, name: str) -> Made:
    """Make one part in a process of its own."""
    return PARTS[name](Material.of(layout, all_formats))


def make_parts(material: Material, all_formats: bool, executor: Executor | None) -> Made:
    """Make all parts, in the workers where there are any.

    Parameters
    ----------
    material : Material
    all_formats : bool
    executor : concurrent.futures.Executor or None

    Returns
    -------
    Made
        Sections in the order of the report.
    """
    if executor is None:
        made = [part(material) for part in PARTS.values()]
    else:
        waiting = [executor.submit(make_part, material.run.layout, all_formats, name) for name in PARTS]
        made = [future.result() for future in waiting]
    sections = {section.id: section for one in made for section in one.sections}
    in_order = tuple(sections[section.id] for section in SECTIONS if section.id in sections)
    return Made(in_order, tuple(page for one in made for page in one.pages))


_REGION_PARTS = (("map", "Map"), ("groups", "By group"), ("volume", "Volume"))
_PERSON_PARTS = (
    ("visits", "Scans"),
    ("where", "Where it looked"),
    ("fingerprint", "Fingerprint"),
    ("quality", "Quality"),
)


def _anchors(parts: Sequence[tuple[str, str]]) -> list[NavigationEntry]:
    return [NavigationEntry(title, f"#{anchor}") for anchor, title in parts]


def _entry(title: str, link: str | None) -> NavigationEntry | None:
    return None if link is None else NavigationEntry(title, link)
