"""The command line: parser, exit codes, one readable line for every error.

Heavy libraries are imported only once a command is known, so ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import Field
from typing import Any, TextIO, cast

import heatlas
from heatlas.pipeline.run.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RESUMABLE,
    EXIT_USAGE,
    HeatlasError,
    TerminatedError,
    UsageError,
)
from heatlas.pipeline.run.extras import require_study
from heatlas.pipeline.run.plain_text import PlainStream, did_you_mean, nearest, plain, unknown
from heatlas.pipeline.run.work.executors import import_ahead
from heatlas.pipeline.run.work.host import FULL_BYTES, size_limit, too_large, why_unwritten
from heatlas.workflows.commands import SEVERAL, Command, all_commands, is_place, options_of

WORKER_MODULES = (
    "heatlas.pipeline.cohort.demo.cohort",
    "heatlas.pipeline.registration.stage",
    "ants",
    "heatlas.pipeline.explaining.stage",
)
"""Modules that workers need, in order; imported by their server while this process imports the rest."""


class _Parser(argparse.ArgumentParser):
    """A parser that shows arguments in messages as plain text, and positional arguments first in usage lines.

    It suggests the command or choice that a mistaken one may mean. An option that takes several values would take INPUT
    and OUT too if they came after it.
    """

    late_help: Mapping[str, Callable[[], str]] = {}
    """Help of options by name, asked only when it is shown, since it imports heavy libraries."""

    def format_usage(self) -> str:
        self.usage = self._positionals_first()
        return super().format_usage()

    def format_help(self) -> str:
        self.usage = self._positionals_first()
        for action in self._actions:
            if action.dest in self.late_help:
                action.help = self.late_help[action.dest]()
        return super().format_help()

    def _positionals_first(self) -> str | None:
        if self._subparsers:
            return None
        words = [self.prog]
        for action in sorted(self._actions, key=lambda action: bool(action.option_strings)):
            if action.required:
                several = action.nargs == argparse.ONE_OR_MORE
                name = f"{action.metavar} [{action.metavar} ...]" if several else str(action.metavar)
                words.append(" ".join([*action.option_strings[:1], name]))
            elif action.nargs == argparse.OPTIONAL and not action.option_strings:
                words.append(f"[{action.metavar}]")
        return " ".join([*words, "[options]"]).replace("%", "%%")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, unknown("", str(value), map(str, action.choices)).lstrip())

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(plain(message), file)


class _Version(argparse.Action):
    """Prints the version, which is looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"heatlas {heatlas.__version__}")
        parser.exit(EXIT_OK)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="heatlas",
        description="From a folder of brain scans to a report that says which brain regions a classifier relied on.",
        epilog="Exit codes: 0 done; 1 some scans or folds failed, the rest is kept; 2 usage; 65 bad input; "
        "70 internal error; 75 stopped, or another program works there: run again to continue; 130 Ctrl-C; "
        "143 terminated from outside.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    actions: dict[str, Any] = {}
    for record in all_commands():
        above, _, name = record.name.rpartition(" ")
        if above and above not in actions:
            several = commands.add_parser(above, help=SEVERAL[above])
            actions[above] = several.add_subparsers(dest="action", required=True, metavar="ACTION")
        summary, description = help_of(record)
        command = (actions[above] if above else commands).add_parser(
            name, help=summary, description=description, epilog=record.epilog
        )
        command.set_defaults(record=record)
        _add_options(command, record)
    return parser


def _add_options(parser: _Parser, record: type[Command]) -> None:
    """Add the options of a command; those that are not given are left to the defaults of its record."""
    parser.late_help = {}
    there = {_group_of(option) for option in options_of(record)}
    groups = {name: parser.add_argument_group(name) for name in GROUPS if name in there}
    for option in options_of(record):
        how = {name: value for name, value in option.metadata.items() if name != "first"}
        if callable(how["help"]):
            parser.late_help[option.name] = how.pop("help")
        name = option.name if is_place(option) else f"--{option.name.replace('_', '-')}"
        groups.get(_group_of(option), parser).add_argument(name, default=argparse.SUPPRESS, **how)


GROUPS = {
    "who takes part": ("contrast", "target", "include", "participant_label", "manifest", "new_people", "scan"),
    "images": ("table", "follow_links", "start_at", "bids_filter_file", "resolution", "age", "sex"),
    "privacy": ("anonymise", "pseudonymise"),
    "computing": ("seed", "n_procs", "executor", "stop_after"),
}
"""Headings of the help, and the options below each; the others are a command's own."""


def _group_of(option: Field[Any]) -> str:
    return "" if is_place(option) else next((title for title, names in GROUPS.items() if option.name in names), "")


def help_of(record: type[Command]) -> tuple[str, str | None]:
    """The line for the list of commands, and what ``heatlas COMMAND --help`` says above the options.

    >>> from heatlas.workflows.commands import ManifestExport
    >>> help_of(ManifestExport)
    ('write image ids and digests of the scans that a run would use, and nothing else about them', None)
    """
    first, _, rest = inspect.cleandoc(record.__doc__ or "").partition("\n\n")
    return first[:1].lower() + first[1:].removesuffix("."), " ".join(rest.split()) or None


def read_command(words: Sequence[str] | None = None) -> Command:
    """The record of a command line, by default that of the process; exits where argparse refuses it.

    Without any word it shows the help, and exits as where a command is missing.
    """
    parser = build_parser()
    if not (sys.argv[1:] if words is None else words):
        parser.print_help(sys.stderr)
        parser.exit(EXIT_USAGE)
    arguments, further = parser.parse_known_args(words)
    given = vars(arguments)
    record: type[Command] = given["record"]
    if further:
        options = [f"--{one.name.replace('_', '-')}" for one in options_of(record) if not is_place(one)]
        meant = did_you_mean(nearest(further[0].partition("=")[0], options))
        parser.error(f"unrecognized arguments: {' '.join(further)}.{meant}")
    values = {option.name: given[option.name] for option in options_of(record) if option.name in given}
    return record(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def main(argv: Sequence[str] | None = None, begin: Callable[[], None] = lambda: None) -> int:
    """Run a command line, by default that of the process, and return its exit code; `begin` as of `execute`."""
    return execute(read_command(argv), begin)


def execute(command: Command, begin: Callable[[], None] = lambda: None) -> int:
    """Do what a record says, with one readable line for every error; return the exit code.

    `begin` is called when everything is imported, before the work begins.
    """
    try:
        require_study(f"heatlas {command.name}")
        limit = size_limit()
        if limit is not None and limit < FULL_BYTES and not command.only_reads:
            raise UsageError(f"{too_large()} and run the same command again.")
        if command.computes and getattr(command, "executor", None) is None:
            import_ahead(WORKER_MODULES)
        home, _, function = command.does.partition(".")
        module = importlib.import_module(f".{home}", type(command).__module__.rpartition(".")[0])
        begin()
        with redirect_stdout(cast(TextIO, PlainStream(sys.stdout))):
            return int(getattr(module, function)(command))
    except (KeyboardInterrupt, TerminatedError) as error:
        then = "run the same command again to continue." if command.computes else "the same command starts anew."
        return _report(f"{str(error) or 'interrupted'}; {then}", getattr(error, "exit_code", EXIT_INTERRUPTED))
    except HeatlasError as error:
        return _report(str(error), error.exit_code)
    except OSError as error:
        why = why_unwritten(error)
        if why is not None:
            return _report(f"{why} and run the same command again.", EXIT_RESUMABLE)
        if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
            return _report("no folder for temporary files can be written to; set TMPDIR to one.", EXIT_USAGE)
        if error.errno is None or error.filename is None:
            return _defect(error)
        where = f"{error.filename} -> {error.filename2}" if error.filename2 else error.filename
        return _report(f"{where}: {error.strerror}. Check this path and who may read and write there.", EXIT_USAGE)
    except Exception as error:
        return _defect(error)


def _report(line: str, code: int) -> int:
    print(f"heatlas: {line}", file=cast(TextIO, PlainStream(sys.stderr)))
    return code


def _defect(error: Exception) -> int:
    print("".join(traceback.format_exception(error)), end="", file=cast(TextIO, PlainStream(sys.stderr)))
    return _report(f"internal error ({type(error).__name__}: {error}). Please report it.", EXIT_INTERNAL)
