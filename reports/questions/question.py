"""All that the report says of one question, as one record: its page, tables, answer, warnings and methods text.

A question whose section is a list of views (`reports.questions.views`) stands in a module of this folder; one whose
section is drawn by hand stands in the module that draws it, with a template of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from heatlas.pipeline.cohort.people.tasks import KINDS, SEVERAL_CLASSES, TWO_CLASSES, KindName
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Chapter
from heatlas.reports.frame.tables import PageTable
from heatlas.reports.questions.views import View, show_view
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import LONGEST_TEXT, number, shortened

TWO = frozenset({TWO_CLASSES})
CLASSES = frozenset({TWO_CLASSES, SEVERAL_CLASSES})
ANY_TASK = frozenset(KINDS)
CLEAR = 0.05  # below this, a corrected p is significant


@dataclass(frozen=True)
class Verdict:
    """An answer, and what it rests on."""

    answer: str
    grounds: str


@dataclass(frozen=True)
class Answer:
    """An answer of the summary; `figure` is a number in large type, `more` is folded under the answer."""

    question: str
    text: str
    figure: str = ""
    figure_caption: str = ""
    more: str = ""


@dataclass(frozen=True)
class Caution:
    """One reason for doubt."""

    level: str  # ``serious`` (conclusions may be wrong) or ``note`` (keep in mind)
    title: str  # a short sentence
    text: str
    section: str = ""  # anchor of the section with the details


@dataclass(frozen=True)
class Check:
    """A check of a run, or of the facts of a question, that gives a caution or None."""

    name: str
    find: Callable[[Any], Caution | None]
    tables: tuple[str, ...] = ()  # it is made where the run has these

    def __call__(self, run: RunRecord) -> Caution | None:
        return self.find(run) if run.has(*self.tables) else None


@dataclass(frozen=True)
class Headline:
    """What the summary at the top of the report asks, and its answer."""

    asked: str
    tables: tuple[str, ...]  # those that the answer is read from
    answer: Callable[[RunRecord], Answer | None]


def _itself(run: RunRecord) -> RunRecord:
    return run


ROWS = 12
"""Rows shown of each table of a part of the evaluation; the others are in its file."""


class Section:
    """What the report shows: the kind of record that comes by the entry point ``heatlas.questions``."""


@dataclass(frozen=True)
class PartView(Section):
    """How a table of ``heatlas evaluate`` is shown among the *Further results of the evaluation*."""

    name: str  # of the table
    show: Callable[[RunRecord, pd.DataFrame], tuple[str, tuple[PageTable, ...]]]  # a few sentences, and tables
    figures: Callable[[Material], tuple[Picture, ...]] | None = None
    write: Callable[[EvaluationLayout], None] | None = None  # figures as files, at the end of ``heatlas evaluate``


@dataclass(frozen=True)
class Question(Section):
    """All that the report says of one question. Its sentences see its facts; if it picks none, the run itself."""

    id: str  # anchor; stable, since warnings and readers link to it
    title: str
    short: str  # name in the table of contents
    page: Chapter
    # Question and method in plain words; ``{horizon}``: the months within which MCI may convert
    lead: str = ""
    views: Sequence[View] = ()
    facts: Callable[[RunRecord], Any] = _itself  # picks the rows of its sentences; None where there are none
    answer: Callable[[Any], Verdict | None] | None = None  # a sentence or two, also for the list of the index
    cautions: Sequence[Check] = ()
    methods: Callable[[Any], str] | None = None  # what was done, with citations as ``[@key]``
    headline: Headline | None = None  # its part of the summary
    tasks: frozenset[KindName] = TWO  # kinds of tasks that it is asked for
    requires: tuple[str, ...] = ()  # tables without which its section cannot be made
    # Shown where one of them is missing; without it the section is left out
    absent: str = ""
    # Whether there is anything to say; without it, views without `requires` need one of their tables, or a note on it
    applies: Callable[[RunRecord], bool] | None = None
    draw: Callable[[Material], Mapping[str, Any]] | None = None  # variables of its own template, in place of views
    after: str = ""  # anchor of the section of the page that it follows; else the last one

    @property
    def name(self) -> str:
        return self.id

    @property
    def template(self) -> str:
        """In ``reports/templates/sections``."""
        return f"{self.id}.html.j2" if self.draw else "analysis.html.j2"

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(view.table for view in self.views))

    @property
    def checks(self) -> Iterator[Check]:
        """Its cautions, as checks of a run."""
        for check in self.cautions:
            yield replace(check, find=partial(self.of_facts, check.find))

    def of_facts(self, say: Callable[[Any], Any] | None, run: RunRecord) -> Any:
        """What one of its functions says of a run; None where there are no facts, or no such function."""
        facts = None if say is None else self.facts(run)
        return None if say is None or facts is None else say(facts)

    def answered(self, run: RunRecord) -> Verdict | None:
        """Its answer in a run."""
        verdict: Verdict | None = self.of_facts(self.answer, run)
        return verdict

    def applies_to(self, run: RunRecord) -> bool:
        """Whether it is asked for the task of the run, and there is anything to say."""
        if run.task.kind.name not in self.tasks:
            return False
        if self.applies is not None:
            return self.applies(run)
        return not self.views or bool(self.requires) or any(map(run.has, self.tables)) or bool(self.undone(run))

    def build(self, material: Material) -> Mapping[str, Any]:
        """Variables of its template."""
        if self.draw is not None:
            return self.draw(material)
        run = material.run
        lead = self.lead.format(
            positive=run.positive, negative=run.negative, start=run.config.attribution.start_value,
            horizon=number(run.config.cohort.mci_horizon_months), predicted=run.predicted,
        )  # fmt: skip
        shown = [table for view in self.views if (table := show_view(view, material)) is not None]
        return {"lead": lead, "verdict": self.answered(run), "views": shown, "undone": self.undone(run)}

    def undone(self, run: RunRecord) -> list[str]:
        """Why tables of its views are missing: they cannot be used, or the statistics stage has noted it."""
        unusable = [run.unreadable[name] for name in self.tables if name in run.unreadable]
        if not run.has("notes"):
            return unusable
        rows = run.tables["notes"]
        rows = rows[rows["tables"].notna()]
        there = rows[[bool(set(self.tables) & set(str(tables).split(", "))) for tables in rows["tables"]]]
        return unusable + [
            f"Not done: {row['analysis']}: {shortened(row['reason'], LONGEST_TEXT)}" for row in there.to_dict("records")
        ]
