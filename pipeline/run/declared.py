"""A result table, declared once: its columns, its file, the question it answers and what one row is.

Each table is declared beside the code that computes it. Its data dictionary, the checks of the report, headings on
pages and the documentation (docs/tables.md) all come from this declaration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from pipeline.run.columns import Column, Form, column_of
from pipeline.run.layout.run_layout import RunLayout

CLASSES = "{classes}"
"""Among the values of a column: the classes of the run, of which there are none where a number is predicted."""


@dataclass(frozen=True)
class Table:
    """A table of a run.

    Parameters
    ----------
    meanings : mapping of str to str
        Description of each column, in order: the data dictionary.
    rows : str
        What one row is, after "one row per".
    question : str
        What the table answers, for its readers.
    stage : str
        The stage that writes it.
    place : str
        Its path in `RunLayout`; ``group/statistics/<name>.tsv`` where it is empty. A table of one fold or scan has
        ``fold.`` or ``scan.`` before it.
    forms : mapping of str to Form
        Of columns that hold something else than their name says (``all`` among the numbers of folds).
    filled : sequence of str
        Columns that are never empty.
    values : mapping of str to sequence of str
        The only values of some columns; `CLASSES` stands for all classes of the run.
    finite : bool
        Whether it holds measurements, where no number is infinite; a statistic or an interval can be.
    later : collection of str
        Columns that earlier versions did not write.
    on_pages : bool
        Whether the report reads it; the largest stay in their files.
    """

    name: str
    meanings: Mapping[str, str]
    rows: str
    question: str
    stage: str = "statistics"
    place: str = ""
    forms: Mapping[str, Form] = field(default_factory=dict)
    filled: Collection[str] = ()
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    finite: bool = False
    later: Collection[str] = ()
    on_pages: bool = True

    def __post_init__(self) -> None:
        unknown = {*self.forms, *self.filled, *self.values, *self.later} - {*self.meanings}
        if unknown:
            raise ValueError(f"table {self.name}: {', '.join(sorted(unknown))} not among its columns.")

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """All columns by name, in order."""
        found = {name: column_of(name, meaning) for name, meaning in self.meanings.items()}
        return found | {name: replace(found[name], form=form) for name, form in self.forms.items()}

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that the table of any version has."""
        return tuple(name for name in self.meanings if name not in self.later)

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of text, which may look like numbers."""
        return tuple(name for name, column in self.columns.items() if column.is_text)

    def path(self, layout: RunLayout) -> Path:
        """Where the table of the whole cohort lies; that of the first fold, or of a made-up scan, if there is none."""
        if not self.place:
            return layout.statistics(self.name)
        whole, _, place = self.place.rpartition(".")
        owners = {"": layout, "fold": layout.fold(0), "scan": layout.scan("sub-001", "ses-M000", 1.0)}
        found: Path = attrgetter(place)(owners[whole])
        return found
