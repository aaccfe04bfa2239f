"""docs/commands.md, made from the command line: ``python -m heatlas.workflows.command_documentation`` prints it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from heatlas.pipeline.run.config.documentation import as_cell
from heatlas.workflows.command_line import build_parser

_HEAD = """# Commands

Made by `python -m heatlas.workflows.command_documentation > docs/commands.md`; do not edit it by hand.

`heatlas COMMAND --help` says the same; `python workflows/adni.py COMMAND` does the same. Put INPUT and OUT first,
since an option with several values would take them too. Exit codes: [what a run takes](resources.md).
"""


def documentation() -> str:
    """All commands and their options as Markdown."""
    return "\n".join([_HEAD, *_commands(build_parser(), "heatlas")])


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


if __name__ == "__main__":
    print(documentation(), end="")
