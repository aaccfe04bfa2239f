"""What the commands of this folder share: arguments, Markdown, paired differences, kept rows, sections of pages."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
STATISTICS = "Statistics: speed, error rates, power"
"""Heading of a page to which many commands write."""
FOLDERS = ("run", "out", "input", "cohort", "source", "answers", "table", "volumes")
ARGUMENTS: dict[str, dict[str, Any]] = {
    **{name: {"type": Path} for name in FOLDERS},
    "runs": {"type": Path, "nargs": "+"},
    "--seeds": {"type": int, "nargs": "+", "default": [43, 44, 45]},
    "--only": {"nargs": "+"},
    "--folds": {"type": int, "default": 0, "help": "the first ones only; 0 for all"},
    "--data-sets": {"type": int, "default": 2_000},
    "--repeats": {"type": int, "default": 3},
    "--n-procs": {"type": int, "default": 1},
    **{name: {"type": Path, "help": "Markdown page to write to"} for name in ("--page", "--output")},
}
"""What an argument of this name is in every command that has it."""


def arguments_of(doc: str | None, names: str = "", **given: Any) -> argparse.Namespace:
    """What a command was given; the folder `out` is made.

    Parameters
    ----------
    names : str
        Arguments in their order, as ``"run out --seeds"``: those of `ARGUMENTS`, or of `given`.
    **given
        For an argument of `names`, its default or a mapping of what `add_argument` takes. Any other is an option: its
        default, or its default and help. False makes it a switch, and a list takes several values.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in names.split():
        own = given.pop(name.lstrip("-").replace("-", "_"), {})
        own = own if isinstance(own, Mapping) else {"default": own}
        parser.add_argument(name, **{**ARGUMENTS.get(name, {}), **own})
    for name, value in given.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **_settings_of(value))
    arguments = parser.parse_args()
    if "out" in names.split():
        arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def _settings_of(value: Any) -> Mapping[str, Any]:
    """What `add_argument` takes for an option by its default."""
    if isinstance(value, Mapping):
        return value
    default, words = value if isinstance(value, tuple) else (value, None)
    if default is False:
        return {"action": "store_true", "help": words}
    if isinstance(default, list):
        return {"nargs": "+", "type": type(default[0]), "default": default, "help": words}
    return {"type": type(default), "default": default, "help": words}


def line(*cells: object) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]] = (), rule: str = "---") -> list[str]:
    """Lines of a Markdown table; more rows can be added."""
    return [line(*columns).replace("|  |", "| |"), "|" + f"{rule}|" * len(columns), *(line(*row) for row in rows)]


def listed(values: Iterable[float], form: str) -> str:
    """Numbers beside each other in one cell.

    >>> listed([1, 2.5], "+.1f")
    '+1.0, +2.5'
    """
    return ", ".join(f"{value:{form}}" for value in values)


def kept_rows(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """What earlier commands wrote to a table; no rows if there is none."""
    return pd.read_csv(path, sep="\t") if path.is_file() else pd.DataFrame(columns=list(columns))


def added(rows: pd.DataFrame, new: Any, path: Path) -> pd.DataFrame:
    """Rows with new ones, which are written to the table at once."""
    rows = pd.concat([rows, pd.DataFrame(new)], ignore_index=True)
    rows.to_csv(path, sep="\t", index=False)
    return rows


def replaced(rows: pd.DataFrame, path: Path, keys: Sequence[str]) -> None:
    """Add rows to a table; earlier ones with the same keys go."""
    every = pd.concat([kept_rows(path, rows.columns), rows], ignore_index=True) if path.is_file() else rows
    every.drop_duplicates(list(keys), keep="last").to_csv(path, sep="\t", index=False)


def write_tables(page: Path, title: str, tables: str, heading: str) -> None:
    """Replace the tables of the section ``## title``, or add it; its words stay, for they stand on the page alone.

    A new page begins with ``# heading``.
    """
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# {heading}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    earlier = pattern.search(text)
    body = with_tables(earlier[0].partition("\n")[2] if earlier else "", tables)
    section = f"## {title}\n\n{body.strip()}\n"
    text = pattern.sub(lambda _: section + "\n", text, count=1) if earlier else f"{text.rstrip()}\n\n{section}"
    _write(page, text)


def with_tables(text: str, tables: str) -> str:
    """A text with new tables in place of its own; where their numbers differ, after the words above its first one.

    >>> with_tables("A:\\n\\n| 1 |\\n\\nB:\\n\\n| 2 |\\n\\nC.", "| 3 |\\n\\n| 4 |")
    'A:\\n\\n| 3 |\\n\\nB:\\n\\n| 4 |\\n\\nC.'
    """
    blocks = re.compile(r"(?:^\|.*\n?)+", re.MULTILINE)
    new = [block.strip() for block in blocks.findall(tables)]
    if len(new) == len(blocks.findall(text)):
        return blocks.sub(lambda found: new.pop(0) + "\n" * found[0].endswith("\n"), text)
    words = blocks.split(text, maxsplit=1)[0].strip().removesuffix(blocks.split(tables, maxsplit=1)[0].strip())
    return f"{words.strip()}\n\n{tables}"


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text.rstrip() + "\n", encoding="utf-8")


def show(tables: str, page: Path | None, title: str, heading: str) -> None:
    """Print the tables of a section, and write them to a page if one is asked for."""
    print(tables)
    if page:
        write_tables(page, title, tables, heading)


def show_page(tables: str, page: Path | None, heading: str) -> None:
    """Print the tables of a page and where they were made, and write the tables if asked for.

    What the page says of the machine is changed by hand.
    """
    print(f"{tables}\n\n`{' '.join(['python', *sys.argv])}`: {machine()}.")
    if page:
        text = page.read_text(encoding="utf-8") if page.is_file() else f"# {heading}\n"
        _write(page, with_tables(text, tables))


def machine() -> str:
    """What a reader needs to judge seconds: processor, system, versions, and the load of the last minute."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)", info.read_text() if info.exists() else "", re.MULTILINE)
    name = names[0] if names else platform.processor() or platform.machine()
    torch = f", PyTorch {sys.modules['torch'].__version__}" if "torch" in sys.modules else ""
    return (
        f"{name}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}{torch}; load {os.getloadavg()[0]:.1f}"
    )
