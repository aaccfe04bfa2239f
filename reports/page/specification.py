"""The report as data: what a section is. The list itself is in `reports.page.sections`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.cohort.people.tasks import TWO_CLASSES, KindName
from reports.page.components import Component
from reports.page.material import Material
from reports.read.run_record import RunRecord


@dataclass(frozen=True)
class Section:
    """One section of the report."""

    id: str  # anchor; stable, since warnings and readers link to it
    title: str  # heading
    short: str  # name in the table of contents
    template: str  # file in ``reports/templates``
    build: Callable[[Material], Mapping[str, Any]]  # ``build(material)`` gives the variables of the template
    # Tables (names of `reports.read.written_tables.TABLES`) without which the section cannot be made
    requires: tuple[str, ...] = ()
    absent: str = ""  # sentence shown in place of the section when one of them is missing
    optional: bool = False  # leave the section out, rather than saying that it is missing
    # ``applies(run)`` says whether the section has anything to say, where that is more than a list of tables
    applies: Callable[[RunRecord], bool] | None = None
    tasks: frozenset[KindName] = frozenset({TWO_CLASSES})
    """Kinds of tasks that the section is made for; in a run of another it says that it is not."""


@dataclass(frozen=True)
class BuiltSection:
    """A section ready to be rendered: with its variables, or with the sentence that says why it is empty."""

    section: Section
    content: Mapping[str, Any] = field(default_factory=dict)
    absent: str = ""

    @property
    def components(self) -> Sequence[Component]:
        """Interactive parts of the section; what a builder gives as ``components``."""
        found: Sequence[Component] = self.content.get("components", ())
        return found


def build_section(section: Section, material: Material) -> BuiltSection | None:
    """Build one section; None if it is optional and its tables are not in the folder, or it does not apply."""
    kind = material.run.task.kind
    if kind.name not in section.tasks:
        made_for_it = section.optional or TWO_CLASSES not in section.tasks
        return None if made_for_it else BuiltSection(section, absent=f"There is no such section. {kind.undefined}")
    if section.applies is not None and not section.applies(material.run):
        return None
    missing = [name for name in section.requires if not material.run.has(name)]
    if missing:
        absent = material.run.why_absent(*missing, otherwise="" if section.optional else section.absent)
        return BuiltSection(section, absent=absent) if absent else None
    return BuiltSection(section, section.build(material))
