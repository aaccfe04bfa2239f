"""All that the report says of one question, as one record: its page, tables, answer, warnings and methods text.

A question whose section is a list of views (`reports.questions.views`) stands in a module of this folder; one whose
section is drawn by hand stands in the module that draws it, with a template of its name. Below the record: how rows of
the tables are picked by their values, and words for tests that several questions share. A result that is not
significant among few people is never reported as no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd

from heatlas.pipeline.cohort.people.tasks import KINDS, SEVERAL_CLASSES, TWO_CLASSES, KindName
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.frame import pages
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Chapter
from heatlas.reports.frame.tables import PageTable, correction
from heatlas.reports.questions.views import View, show_view
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    LONGEST_TEXT,
    count,
    fixed,
    is_missing,
    listing,
    mid_sentence,
    number,
    p_value,
    percent,
    shortened,
)
from heatlas.reports.words.sentences import Words, filled

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

    question: str = field(default="", kw_only=True)  # filled in by the summary
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

    @classmethod
    def read(cls, words: Words, name: str, /, **facts: Any) -> Caution:
        """A caution of the table ``cautions`` of a file, filled with facts; `level` among them where it depends."""
        told = {"level": facts.get("level", "")} | words.all["cautions"][name]
        return cls(**{part: filled(text, **facts) for part, text in told.items()})


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
    """How the summary at the top of the report answers a question."""

    tables: tuple[str, ...]  # those that the answer is read from
    answer: Callable[[RunRecord], Answer | None]


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
    facts: Callable[[RunRecord], Any] = lambda run: run  # picks the rows of its sentences; None where there are none
    answer: Callable[[Any], Verdict | None] | None = None  # a sentence or two, also for the list of the index
    cautions: Sequence[Check] = ()
    methods: Callable[[Any], str] | None = None  # what was done, with citations as ``[@key]``
    headline: Headline | None = None  # its part of the summary
    asked: str = ""  # what the summary asks, where this is not the title
    tasks: frozenset[KindName] = TWO  # kinds of tasks that it is asked for
    requires: Sequence[str] = ()  # tables without which its section cannot be made
    # Shown where one of them is missing; without it the section is left out
    absent: str = ""
    # Whether there is anything to say; without it, views without `requires` need one of their tables, or a note on it
    applies: Callable[[RunRecord], bool] | None = None
    draw: Callable[[Material], Mapping[str, Any]] | None = None  # variables of its own template, in place of views
    after: str = ""  # anchor of the section of the page that it follows; else the last one
    folded: bool = False  # whether the page shows its answer, and folds grounds, charts and tables

    @classmethod
    def read(cls, words: Words, name: str, **others: Any) -> Question:
        """A question whose words stand in a file; `others`: its functions, and the tasks that it is asked for."""
        told = dict(words.all[name])
        page: Chapter = getattr(pages, told.pop("page"))
        views = [View.of(view) for view in told.pop("views", ())]
        return cls(name, page=page, views=views, **told, **others)

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
            trained_with=run.trained_with,
        )  # fmt: skip
        shown = [table for view in self.views if (table := show_view(view, material)) is not None]
        return {
            "lead": lead, "verdict": self.answered(run), "views": shown, "undone": self.undone(run),
            "folded": self.folded,
        }  # fmt: skip

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


NAMED = 4  # regions named for each direction of a difference


def g_in_words(row: Mapping[Hashable, object] | pd.Series) -> str:
    """Hedges' g with its interval in square brackets.

    Examples
    --------
    >>> g_in_words({"hedges_g": 0.8, "hedges_g_low": 0.25, "hedges_g_high": 1.35}), g_in_words({"hedges_g": 0.8})
    ('0.80 [0.25 to 1.35]', '0.80')
    """
    low, high = row.get("hedges_g_low"), row.get("hedges_g_high")
    g = fixed(row["hedges_g"])
    return g if is_missing(low) or is_missing(high) else f"{g} [{fixed(low)} to {fixed(high)}]"


def rows_where(run: RunRecord, table: str, known: str = "", **values: object) -> pd.DataFrame:
    """Rows of a table of the run with these values, and with any in the column `known`; none without one of these."""
    if not run.has(table) or not set(values) <= set(run.tables[table]):
        return pd.DataFrame()
    rows = run.tables[table]
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows[rows[known].notna()] if known and len(rows) else rows


def classes_compared(run: RunRecord, known: str = "", **values: object) -> pd.DataFrame:
    """Rows of ``group_comparisons.tsv`` about the classes, with these values."""
    return rows_where(run, "group_comparisons", known, comparison=f"{run.positive}/{run.negative}", **values)


def survivors(rows: pd.DataFrame, p: str) -> str:
    r"""How many tests are significant after correction, and the clearest one.

    Examples
    --------
    >>> survivors(pd.DataFrame({"group": ["A", "B"], "p_fwe": [0.2, 0.01]}), "p_fwe")
    '1 of 2 regions with a corrected p (family-wise, largest statistic) below 0.05 (smallest: p\xa0=\xa00.010, B)'
    """
    tested = rows[rows[p].notna()]
    if tested.empty:
        return "nothing could be tested"
    first = tested.sort_values(p, kind="stable").iloc[0]
    significant = int((tested[p] < CLEAR).sum())
    return (
        f"{number(significant)} of {count(len(tested), 'region')} with a corrected p {correction(p)} below 0.05 "
        f"(smallest: {p_value(first[p])}, {shortened(first['group'])})"
    )


def by_ranks(positive: str, negative: str, rows: pd.DataFrame) -> str:
    """Where ranks and means disagree on which regions differ, as a sentence with a space before it; empty elsewhere.

    `rows` compare the classes, one per region. A table of an earlier version has no ranks.
    """
    if "p_fwe_ranks" not in rows:
        return ""
    known = rows[rows["p_fwe_ranks"].notna()].sort_values("p_fwe_ranks", kind="stable")
    ranks, means = known["p_fwe_ranks"] < CLEAR, known["p_fwe"] < CLEAR
    more, less = known[ranks & ~means], known[means & ~ranks]
    by_ranks_only = [
        f"{mid_sentence(name)} ({positive} above {negative} in {percent(share, 0)} of pairs)"
        for name, share in zip(more["group"], more["superiority"], strict=True)
    ]
    by_means_only = [mid_sentence(name) for name in less["group"]]
    parts = [f"also {first_few(by_ranks_only)}"] if by_ranks_only else []
    parts += [f"not {first_few(by_means_only)}"] if by_means_only else []
    return f" By ranks, which no single person's value can move: {', '.join(parts)}." if parts else ""


def first_few(names: Sequence[str], shown: int = NAMED) -> str:
    """The first names, and how many more there are."""
    more = [f"{number(len(names) - shown)} more"] if len(names) > shown else []
    return listing([*names[:shown], *more])


def folds_held(table: pd.DataFrame) -> bool:
    """Whether the test fold is held in any comparison of a table."""
    return bool(table["fold_held"].fillna(False).astype(bool).any())


def difference_in_words(table: pd.DataFrame) -> str:
    """What the column of differences is, to end a caption, where it is not the difference of the means beside it."""
    if not folds_held(table):
        return ""
    return " The difference, its interval and g are within test folds: not the difference of the two means."
