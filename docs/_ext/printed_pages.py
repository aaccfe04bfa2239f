"""The pages of the documentation that the code prints: settings, tables, commands and glossary (``make pages``).

Each is made from declarations of the product, and tests hold the committed pages equal to what is printed here.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from heatlas.pipeline.run.config.networks import NETWORKS, ModelConfig
from heatlas.pipeline.run.config.ranges import in_words, kinds_of, options_of, said, split_kind
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import CLASSES, Table, unit_of
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.comparison.runs import MAP_AGREEMENT_TABLE, MAPS_TABLE, MCNEMAR_TABLE, RUNS_TABLE
from heatlas.reports.read.run_files import DECLARED
from heatlas.reports.words.wording import GLOSSARY
from heatlas.workflows.command_line import build_parser

_SETTINGS = """# Settings

Printed by the code (`make pages`); do not edit it by hand.

A file for `--config` holds the settings to change, section by section; all others keep their defaults, or what
`--preset` gives them. `config.toml` in the folder of a run holds all of them. An unknown name or a value that is not
allowed is refused before any work starts, with the nearest name.

```toml
seed = 7
[training.augmentation]
noise_probability = 0.2
```
"""


def settings_page() -> str:
    """All settings as Markdown: a table per section of the configuration file."""
    return "\n".join([_SETTINGS, *_sections(Config, "")])


@cache
def help_texts(record: type) -> Mapping[str, str]:
    """The docstring below each field of a dataclass, those of its bases included; fields without one are left out."""
    found: dict[str, str] = {}
    for owner in reversed(record.__mro__):
        if not is_dataclass(owner):
            continue
        (definition,) = ast.parse(inspect.getsource(owner)).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _sections(record: type, path: str) -> Iterator[str]:
    """The section of a record, then those of the records nested in it."""
    kinds = get_type_hints(record)
    nested = [field for field in fields(record) if is_dataclass(kinds[field.name])]
    own = [field for field in fields(record) if field not in nested]
    if own:
        yield _section(record, f"`[{path}]`" if path else "Top of the file", own)
    for field in nested:
        inner = f"{path}.{field.name}" if path else field.name
        if kinds[field.name] is ModelConfig:
            yield from _networks()
        else:
            yield from _sections(kinds[field.name], inner)


def _networks() -> Iterator[str]:
    """The section of the network: what all share, what relatives share, then each architecture."""
    yield f"## `[model]`\n\n{inspect.getdoc(ModelConfig)}\n\n{_table(ModelConfig, fields(ModelConfig))}"
    known = {field.name for field in fields(ModelConfig)}
    bases = dict.fromkeys(base for record in NETWORKS.values() for base in record.__mro__[1:])
    for shared in bases:
        if not issubclass(shared, ModelConfig) or "relatives" not in vars(shared) or shared is ModelConfig:
            continue
        heading, own = f"All {shared.relatives} networks", [one for one in fields(shared) if one.name not in known]
        yield f"### {heading}\n\n{inspect.getdoc(shared)}\n\n{_table(shared, own)}{_usual(shared)}"
    for record in dict.fromkeys(NETWORKS.values()):
        names = ", ".join(f"`{name}`" for name, of in NETWORKS.items() if of is record)
        of_networks = [base for base in record.__bases__ if issubclass(base, ModelConfig)]
        inherited = {field.name: field.default for base in of_networks for field in fields(base)}
        own = [
            field
            for field in fields(record)
            if field.name != "architecture" and inherited.get(field.name, MISSING) != field.default
        ]
        more = record.relatives
        about = f"{inspect.getdoc(record)}{more and f' It also takes the settings of all {more} networks.'}"
        changed = "" if more else _usual(record)
        yield f"### {names}\n\n{about}\n\n{_table(record, own) if own else ''}{changed}"


def _usual(record: type[ModelConfig]) -> str:
    """Which defaults of other sections change with a network."""
    changed = [
        f"`{section}.{name} = {_written(value)}`"
        for section, values in record(architecture="").usual.items()
        for name, value in values.items()
    ]
    return f"\nChanges these defaults: {', '.join(changed)}.\n" if changed else ""


def _section(record: type, heading: str, own: list[Field[Any]]) -> str:
    about = (inspect.getdoc(record) or "").splitlines()[0].replace("``", "`")
    return f"## {heading}\n\n{about}\n\n{_table(record, own)}"


def _table(record: type, own: Any) -> str:
    kinds, texts = kinds_of(record), help_texts(record)
    rows = [
        f"| `{field.name}` | {_said(kinds[field.name])} | {_default(field)} | {as_cell(texts.get(field.name, ''))} |"
        for field in own
    ]
    return "\n".join(["| setting | may be | default | meaning |", "|---|---|---|---|", *rows, ""])


def _said(kind: Any) -> str:
    """What a setting may be, in words."""
    words = " or ".join(said(option).removeprefix("a ") for option in options_of(kind))
    for of_errors, of_page in (("one of ", ""), ("any of ", ""), ("'", '"')):
        words = words.replace(of_errors, of_page)
    return as_cell(in_words(split_kind(kind)[1], words))


def _default(field: Field[Any]) -> str:
    if field.name == "architecture":
        return f"`{_written(Config().model.architecture)}`"
    return "" if field.default is MISSING else f"`{_written(field.default)}`"


def _written(value: Any) -> str:
    """A value as it is written in TOML."""
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def as_cell(text: str) -> str:
    """Help as a cell of a Markdown table; names of pages become links.

    Examples
    --------
    >>> as_cell("``a < b``: see docs/lrp.md.")
    '`a &lt; b`: see [lrp.md](lrp.md).'
    """
    plain = " ".join(text.replace("``", "`").split())
    for sign, written in (("|", "\\|"), ("*", "\\*"), ("<", "&lt;")):
        plain = plain.replace(sign, written)
    return re.sub(r"\bdocs/(\w+\.md)", r"[\1](\1)", plain)


_TABLES = """# Tables of a run

Printed by the code (`make pages`); do not edit it by hand.

Tables are tab-separated, in UTF-8, with `n/a` for what is missing. Beside each lies a JSON data dictionary with the
same descriptions. The unit of inference is the participant, whose scans are averaged first.
"""

_COMPARISON = """## Comparison of runs

`heatlas compare` writes the following tables into the folder that `--to` names, and a `ranking_agreement.tsv` with the
columns above.
"""
OF_COMPARISON = (MCNEMAR_TABLE, RUNS_TABLE, MAPS_TABLE, MAP_AGREEMENT_TABLE)
"""Tables that belong to no run."""


def tables_page() -> str:
    """All tables as Markdown."""
    root = Path("run")
    files = {table.name: table.path(RunLayout(root)).relative_to(root).as_posix() for table in DECLARED}
    of_runs = [_table_section(table, files[table.name]) for table in DECLARED]
    return "\n".join([_TABLES, *of_runs, _COMPARISON, *(_table_section(table, table.file) for table in OF_COMPARISON)])


def _table_section(table: Table, file: str) -> str:
    question = table.question if table.question.endswith((".", "?")) else f"{table.question}."
    lines = [
        f'<a id="{table.name}"></a>',
        "",
        f"## {file}",
        "",
        f"{question} One row per {table.rows}. Stage: {table.stage}. {table.tests}".rstrip(),
        "",
    ]
    if not table.meanings:
        return "\n".join(lines)
    lines += ["| column | holds | unit | meaning |", "|---|---|---|---|"]
    for name, column in table.columns.items():
        values = table.values.get(name, ())
        holds = "one of " + ", ".join(values) if values else column.form.value
        lines.append(f"| `{name}` | {_table_cell(holds)} | {unit_of(name)} | {_table_cell(column.meaning)} |")
    return "\n".join([*lines, ""])


def _table_cell(text: str) -> str:
    return text.replace(CLASSES, "the classes").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


_COMMANDS = """# Commands

Printed by the code (`make pages`); do not edit it by hand.

`heatlas COMMAND --help` says the same; `python workflows/adni.py COMMAND` does the same. Put INPUT and OUT first,
since an option with several values would take them too. Exit codes: [what a run takes](resources.md).
"""


def commands_page() -> str:
    """All commands and their options as Markdown."""
    return "\n".join([_COMMANDS, *_commands(build_parser(), "heatlas")])


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    for group in parser._actions:
        if isinstance(group, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in group._choices_actions}
            for command, below in group.choices.items():
                if any(isinstance(action, argparse._SubParsersAction) for action in below._actions):
                    yield from _commands(below, f"{name} {command}")
                else:
                    yield _command(below, f"{name} {command}", helps[command])


def _command(parser: argparse.ArgumentParser, name: str, summary: str) -> str:
    parser.format_help()  # completes what is gathered late
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    places = " ".join(str(action.metavar) for action in actions if not action.option_strings)
    words = [f"## `{' '.join(filter(None, [name, places]))}`", "", _sentence(summary)]
    words += [part for text in (parser.description, parser.epilog) if text for part in ("", as_cell(text))]
    rows = [f"| {_name(action)} | {as_cell((action.help or '').replace('%%', '%'))} |" for action in actions]
    return "\n".join([*words, "", "| argument | meaning |", "|---|---|", *rows, ""])


def _name(action: argparse.Action) -> str:
    """An argument as it is typed."""
    several = " ..." if action.nargs in (argparse.ONE_OR_MORE, argparse.ZERO_OR_MORE) else ""
    if not action.option_strings:
        return f"`{action.metavar}{several}`"
    value = action.metavar or "|".join(map(str, action.choices or [action.dest.upper()]))
    takes = "" if action.nargs == 0 else f" {value}{several}"
    return f"`{action.option_strings[-1]}{takes}`".replace("|", "\\|")


def _sentence(text: str) -> str:
    return as_cell(text[:1].upper() + text[1:]).rstrip(".") + "."


def glossary_page() -> str:
    """The glossary, for a run of AD against CN."""
    words = {"positive": "AD", "negative": "CN", "start": "probability"}
    intro = "As used in the report, for a run that explains the probability of AD against CN, as the demo does."
    entries = [f"**{term.name}.** {term.meaning.format(**words)}" for term in GLOSSARY]
    return "\n\n".join(["# Glossary", intro, *entries]) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page, "tables.md": tables_page, "commands.md": commands_page, "glossary.md": glossary_page,
}  # fmt: skip
"""The pages in ``docs``, and what writes each."""
DOCS = Path(__file__).parents[1]
REMEDY = "run: make pages"


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
