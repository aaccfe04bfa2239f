"""A result table, declared once: its columns, its file, the question it answers and what one row is.

Each table is declared beside the code that computes it, as data (`declared`) or as a record, written by `Table.write`
and read by `Table.read`. Its data dictionary, the checks of the report, headings on pages and the documentation
(docs/tables.md) come from this record.

A column's name means the same kind of thing in every table, so what it holds (`Form`) and its heading stand once, in
``columns.toml``. A name that is not there is a number, unless it begins with ``n_`` (a count) or ``p_`` (a p value) or
ends with ``_id`` (text).
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from heatlas.pipeline.run.documents import read_toml
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.run.plain_text import listed
from heatlas.pipeline.run.tables import REMEDY, read_table, write_json, write_table
from heatlas.pipeline.run.work.digests import Receipt, read_receipt, same_content, stamp_of


class Form(Enum):
    """What the cells of a column hold; the value is the type that the documentation gives."""

    TEXT = "text"
    CODE = "text, one of a few codes"
    MAP = "text, the name of a relevance map (or volume)"
    NOTE = "text, a remark"
    FLAG = "true or false"
    COUNT = "whole number, 0 or more"
    PROBABILITY = "number between 0 and 1"
    P = "p value, between 0 and 1"
    VALUE = "number"
    RATIO = "number without a unit"
    SHARE = "number, a share of 1"


TEXTS = frozenset({Form.TEXT, Form.CODE, Form.MAP, Form.NOTE})
UNITS: Mapping[str, str] = {
    "_mm3": "mm³", "_mm": "mm", "_ml": "ml", "_degrees": "degrees", "_percent": "%", "_strength": "T",
}  # fmt: skip
"""Unit by the end of a column's name."""
_COLUMNS = read_toml(Path(__file__).with_name("columns.toml"))
MEANINGS: Mapping[str, str] = _COLUMNS.pop("meanings")
"""What columns of many tables mean, in the same words."""


def described(*names: str) -> dict[str, str]:
    return {name: MEANINGS[name] for name in names}


@dataclass(frozen=True)
class DescribedColumn:
    """A column of a table.

    `meaning`: its description in the data dictionary; empty in `KNOWN`, as each table has its own. `title`: heading on
    pages, where ``{positive}`` and ``{negative}`` are the classes; empty for one made from its name.
    """

    meaning: str
    form: Form = Form.VALUE
    title: str = ""

    @property
    def is_text(self) -> bool:
        return self.form in TEXTS


def column_of(name: str, meaning: str) -> DescribedColumn:
    """A column by its name: one of `KNOWN`, or what the name itself says.

    Examples
    --------
    >>> column_of("n_events", "Conversions").form, column_of("p_fdr_after", "Adjusted p").form.name
    (<Form.COUNT: 'whole number, 0 or more'>, 'P')
    >>> column_of("density", "Relevance per voxel").form.value
    'number'
    """
    if name in KNOWN:
        return replace(KNOWN[name], meaning=meaning)
    if name.endswith("_id"):
        return DescribedColumn(meaning, Form.TEXT)
    if name.startswith("n_"):
        return DescribedColumn(meaning, Form.COUNT)
    return DescribedColumn(meaning, Form.P if name.startswith("p_") else Form.VALUE)


def unit_of(name: str) -> str:
    """Unit of a column; empty where it has none, or the column's meaning says it."""
    return "years" if name == "age" else next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


KNOWN: Mapping[str, DescribedColumn] = {
    name: DescribedColumn("", Form[form], title)
    for form, titles in _COLUMNS.items()
    for name, title in (dict.fromkeys(titles.pop("untitled", ()), "") | titles).items()
}


CLASSES = "{classes}"
"""Among the values of a column: the classes of the run, of which there are none where a number is predicted."""


CORRECTIONS = {"p_fwe": "family-wise", "p_fdr": "for the false discovery rate"}
"""How p values are corrected, by the beginning of their column's name."""


RECEIPTS, MADE_FROM = "tables", "made_from"
"""Names the receipts of tables, and in one the files that a table was made from."""


@cache
def warn_once(text: str) -> None:
    """Log a warning, once and not in the worker processes, which read the same files."""
    if multiprocessing.parent_process() is None:
        logging.getLogger("heatlas").warning("%s", text)


@dataclass(frozen=True)
class Inference:
    """What the tests of a table are for.

    `role`: primary: the one outcome named before any result. Secondary: answers one question of the study, corrected
    over all of its tests. Exploratory: several questions or audits side by side, not corrected for each other.
    `family`: the tests that a correction is over.
    """

    role: Literal["primary", "secondary", "exploratory"]
    family: str


@dataclass(frozen=True)
class Table:
    """A table of a run.

    `meanings`: description of each column, in order: the data dictionary. `rows`: what one row is, after "one row per".
    `question`: what the table answers, for its readers. `stage`: the stage that writes it. `file`: its path in the run
    folder; if empty, its name in the folder of the stage: ``group/statistics``, ``evaluation`` or ``group``. Of a table
    of each fold, that of the first. `forms`: of columns that hold something else than their name says (``all`` among
    the numbers of folds). `filled`: columns that are never empty. `values`: the only values of some columns; `CLASSES`
    stands for all classes of the run. `finite`: whether it holds measurements, where no number is infinite; a statistic
    or an interval can be. `later`: columns that a table may lack: earlier versions did not write them, or some runs do
    not. `on_pages`: whether the report reads it; the largest stay in their files. `inference`: what its tests are for;
    None for a table without p values.
    """

    name: str
    meanings: Mapping[str, str]
    rows: str
    question: str
    stage: str = "statistics"
    file: str = ""
    forms: Mapping[str, Form] = field(default_factory=dict)
    filled: Collection[str] = ()
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    finite: bool = False
    later: Collection[str] = ()
    on_pages: bool = True
    inference: Inference | None = None

    def __post_init__(self) -> None:
        folder = {"statistics": "group/statistics", "evaluation": "evaluation"}.get(self.stage, "group")
        object.__setattr__(self, "file", self.file or f"{folder}/{self.name}.tsv")
        unknown = {*self.forms, *self.filled, *self.values, *self.later} - {*self.meanings}
        if unknown:
            raise ValueError(f"table {self.name}: {', '.join(sorted(unknown))} not among its columns.")

    @cached_property
    def columns(self) -> Mapping[str, DescribedColumn]:
        columns = {name: column_of(name, meaning) for name, meaning in self.meanings.items()}
        return columns | {name: replace(columns[name], form=form) for name, form in self.forms.items()}

    def without(self, *names: str) -> Table:
        """The table less some columns: of one scan, whose name is added when the tables of all are gathered."""

        def kept(values: Iterable[str]) -> list[str]:
            return [name for name in values if name not in names]

        return replace(
            self, meanings={name: self.meanings[name] for name in kept(self.meanings)}, filled=kept(self.filled),
            forms={name: self.forms[name] for name in kept(self.forms)}, later=kept(self.later),
            values={name: self.values[name] for name in kept(self.values)},
        )  # fmt: skip

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

    def path(self, where: RunLayout | Path) -> Path:
        """The file in a run; a path is the file itself, of one fold or in another folder."""
        return where if isinstance(where, Path) else where.tables / self.file

    def files(self, where: RunLayout | Path) -> list[Path]:
        return [self.path(where).with_suffix(suffix) for suffix in (".tsv", ".json")]

    def frame(self, rows: Iterable[Any] = ()) -> pd.DataFrame:
        """Rows, as mappings or in the order of the columns, as a frame with all columns."""
        return pd.DataFrame(list(rows), columns=list(self.meanings))

    def write(
        self, where: RunLayout | Path, rows: pd.DataFrame | Iterable[Any], made_from: Iterable[Path] | None = None
    ) -> Path:
        """Write the table and its data dictionary; in a run also a receipt, by which `not_as_written` knows it.

        `where`: see `path`. `rows`: columns in any order; or rows, as mappings or in the order of the columns. Those of
        `later` may be missing. `made_from`: files of the run whose change makes the table `outdated`; by default the
        sources of the layout.
        Raises ValueError if a column is missing or not declared.
        """
        frame = rows if isinstance(rows, pd.DataFrame) else self.frame(rows)
        described = self.dictionary
        columns = {name: described[name] for name in described if name in frame or name not in self.later}
        path = self.path(where)
        if set(columns) != set(frame.columns):
            raise ValueError(f"{path.name}: columns and descriptions differ: {set(columns) ^ set(frame.columns)}")
        write_json(path.with_suffix(".json"), {name: {"Description": text} for name, text in columns.items()})
        write_table(path, frame[list(columns)])
        if isinstance(where, RunLayout):
            stamps = {path.relative_to(where.root).as_posix(): stamp_of(path)}
            sources = where.sources if made_from is None else made_from
            known = {one.relative_to(where.root).as_posix(): stamp_of(one) for one in sources}
            content = {"key": "", "outputs": stamps, **({MADE_FROM: known} if known else {})}
            write_json(where.receipt(RECEIPTS, self.name), content)
        return path

    def read(self, where: RunLayout | Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Read the table, its text as text; `columns` must exist, all of `required` if not given.

        Raises BadInputError if the file is missing, not a table or lacks one. That it is not what the run wrote is
        logged.
        """
        frame = read_table(self.path(where), self.required if columns is None else columns, self.texts)
        if isinstance(where, RunLayout) and (changed := self.not_as_written(where)):
            warn_once(f"{where.root}: {changed}")
        return frame

    def not_as_written(self, layout: RunLayout) -> str:
        """That the file is not the one that the run wrote, in a sentence; empty if it is, or nothing is recorded.

        A file whose size and times are those of its receipt is not read. Runs of earlier versions have no receipts.
        """
        path, file = self.path(layout), self.file
        stamps = [one.outputs[file] for one in self._receipts(layout) if file in one.outputs]
        if not stamps or not path.is_file() or any(same_content(stamp_of(path, stamp), stamp) for stamp in stamps):
            return ""
        return f"{file}: not the table that the run wrote there (SHA-256 differs). {REMEDY}"

    def outdated(self, layout: RunLayout) -> str:
        """That files which the table was made from have changed since, in a sentence; empty if none has."""
        changed = []
        for file, stamp in [pair for one in self._receipts(layout) for pair in one.content.get(MADE_FROM, {}).items()]:
            now = stamp_of(layout.root / file, stamp)
            if (now or [None])[0] != (stamp or [None])[0]:
                changed.append(file)
        if not changed:
            return ""
        return f"{self.file} was made from {listed(changed)}, changed or gone since. Repeat the command that made it."

    def _receipts(self, layout: RunLayout) -> list[Receipt]:
        paths = [kind(layout.root).receipt(RECEIPTS, self.name) for kind in (RunLayout, EvaluationLayout)]
        return [receipt for receipt in map(read_receipt, paths) if receipt]

    def remove(self, where: RunLayout | Path) -> bool:
        """Remove the table that an earlier command wrote, if there is one; whether there was."""
        there = self.path(where).is_file()
        for path in self.files(where):
            path.unlink(missing_ok=True)
        return there


_read_once = cache(read_toml)


@cache
def declared_in(file: Path, name: str, **words: object) -> Table:
    """The table that a section of a TOML file declares.

    `words`: what its texts name in braces, besides the ``words`` of the file.
    """
    sections = _read_once(file)
    section: dict[str, Any] = {"name": name, **sections[name]}
    words, usual = sections.get("words", {}) | words, MEANINGS | sections.get("usual", {})
    meanings = {column: str(text or usual[column]).format_map(words) for column, text in section.pop("columns").items()}
    forms = {column: Form[form] for column, form in section.pop("forms", {}).items()}
    inference = Inference(*section.pop("tests")) if "tests" in section else None
    return Table(**section, meanings=meanings, forms=forms, inference=inference)


def declarations(module: str) -> Path:
    """The ``tables.toml`` of the room of a module, a ``__file__``."""
    return next(file for folder in Path(module).parents if (file := folder / "tables.toml").is_file())


def declared(name: str, module: str, **words: object) -> Table:
    """The table of this name that the room of `module`, a ``__file__``, declares in its ``tables.toml``."""
    return declared_in(declarations(module), name, **words)
