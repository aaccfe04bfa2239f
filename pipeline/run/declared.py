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
from typing import Literal

from heatlas.pipeline.run.columns import Column, Form, column_of
from heatlas.pipeline.run.layout.run_layout import RunLayout

CLASSES = "{classes}"
"""Among the values of a column: the classes of the run, of which there are none where a number is predicted."""


CORRECTIONS = {"p_fwe": "family-wise", "p_fdr": "for the false discovery rate"}
"""How p values are corrected, by the beginning of their column's name."""


@dataclass(frozen=True)
class Inference:
    """What the tests of a table are for.

    Parameters
    ----------
    role : {"primary", "secondary", "exploratory"}
        Primary: the one outcome named before any result. Secondary: answers one question of the study, corrected over
        all of its tests. Exploratory: several questions or audits side by side, not corrected for each other.
    family : str
        The tests that a correction is over.
    """

    role: Literal["primary", "secondary", "exploratory"]
    family: str


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
    inference : Inference or None
        What its tests are for; None for a table without p values.
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
    inference: Inference | None = None

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
    def tests(self) -> str:
        """Role, family and correction of the tests in a sentence; empty for a table without tests.

        Examples
        --------
        >>> Table("made", {"p_fwe": "Corrected p"}, "region", "", inference=Inference("secondary", "all regions")).tests
        'Secondary outcome; family: all regions; corrected family-wise.'
        """
        if self.inference is None:
            return ""
        kinds = [how for start, how in CORRECTIONS.items() if any(name.startswith(start) for name in self.meanings)]
        corrected = f"corrected {' and '.join(kinds)}" if kinds else "not corrected"
        kind = "Exploratory" if self.inference.role == "exploratory" else f"{self.inference.role.capitalize()} outcome"
        return f"{kind}; family: {self.inference.family}; {corrected}."

    @property
    def dictionary(self) -> dict[str, str]:
        """Description of each column for the data dictionary; those of p values state role, family and correction."""
        return {
            name: f"{column.meaning.rstrip('.')}. {self.tests}"
            if column.form is Form.P and self.tests
            else column.meaning
            for name, column in self.columns.items()
        }

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
        owners = {
            "": layout,
            "backbone": layout.backbone,
            "fold": layout.fold(0),
            "scan": layout.scan("sub-001", "ses-M000", 1.0),
        }
        found: Path = attrgetter(place)(owners[whole])
        return found
