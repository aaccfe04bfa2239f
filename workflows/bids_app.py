"""``heatlas-bids BIDS OUT {participant,group}``: ``heatlas run`` with the command line of BIDS Apps.

At the level ``participant`` scans are registered; at ``group`` everything is done that is not done yet. Calls at the
level ``participant`` that name different people may run at the same time in one OUT; at ``group`` nothing else may.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import heatlas
from heatlas.pipeline.run.errors import UsageError
from heatlas.workflows.commands import Run, path

LEVELS = {"participant": "registration", "group": "report"}
"""Last stage of a run by level of analysis."""
LONGEST_WORK = 70
"""Bytes of the path of the working folder: workers' sockets lie there, and Linux allows 107 for the whole path."""


def build_parser() -> argparse.ArgumentParser:
    """The options that BIDS Apps share; all others are those of ``heatlas run``."""
    parser = argparse.ArgumentParser(
        prog="heatlas-bids",
        usage="heatlas-bids BIDS OUT {participant,group} [options] [options of heatlas run]",
        description="Heatlas as a BIDS App: heatlas run with the usual command line.",
        epilog="All other options are those of `heatlas run`: --preset, --contrast, --target, --config, --n-procs, ... "
        "(docs/commands.md). Exit codes are those of heatlas.",
        allow_abbrev=False,
    )
    parser.add_argument("bids", metavar="BIDS", help="BIDS dataset with participants.tsv; only read")
    parser.add_argument("out", metavar="OUT", help="folder for the results; an unfinished run there is continued")
    parser.add_argument("level", choices=tuple(LEVELS), help="participant: register scans; group: everything")
    parser.add_argument("--version", action="version", version=f"heatlas {heatlas.__version__}")
    parser.add_argument(
        "--participant-label", "--participant_label", nargs="+", action="extend", default=[], metavar="LABEL",
        help="only these; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--bids-filter-file", type=path, metavar="FILE", help="which images, by entities: JSON as fMRIPrep's"
    )
    parser.add_argument("-w", "--work-dir", type=Path, metavar="FOLDER", help="for temporary files")
    parser.add_argument(
        "--skip-bids-validation", "--skip_bids_validation", action="store_true",
        help="accepted; the dataset is not validated, but what cannot be used is named",
    )  # fmt: skip
    return parser


def at_level(run: Run, arguments: argparse.Namespace) -> Run:
    """The run of all other options as the app is asked to do it.

    >>> given = build_parser().parse_args(["in", "out", "participant", "--participant-label", "01"])
    >>> run = at_level(Run(input=Path("in"), out=Path("out"), seed=2), given)
    >>> run.participant_label, run.seed, run.stop_after, run.side_by_side
    (('01',), 2, 'registration', True)
    """
    people = (*arguments.participant_label, *run.participant_label)
    return replace(
        run, participant_label=people, stop_after=LEVELS[arguments.level],
        bids_filter_file=arguments.bids_filter_file or run.bids_filter_file,
        side_by_side=arguments.level == "participant" and bool(people),
    )  # fmt: skip


def main(argv: Sequence[str] | None = None, begin: Callable[[], None] = lambda: None) -> int:
    """Run the app and return its exit code, which is that of ``heatlas run``."""
    parser = build_parser()
    arguments, further = parser.parse_known_args(argv)
    if any(len(word) > 4 and "--stop-after".startswith(word) for word in (one.split("=")[0] for one in further)):
        parser.error("--stop-after: the level of analysis says where to stop")
    from heatlas.workflows.command_line import execute, read_command
    from heatlas.workflows.preflight import places_read, require_unread

    run = at_level(cast(Run, read_command(["run", arguments.bids, arguments.out, *further])), arguments)
    if arguments.work_dir is not None:
        if len(os.fsencode(arguments.work_dir.resolve())) > LONGEST_WORK:
            parser.error(f"-w {arguments.work_dir}: its path has more than {LONGEST_WORK} bytes. Give a shorter one.")
        try:
            require_unread(arguments.work_dir, places_read(run), derivatives=True)
            arguments.work_dir.mkdir(parents=True, exist_ok=True)
        except UsageError as error:
            parser.error(f"-w {error}")
        except OSError as error:
            parser.error(f"-w {arguments.work_dir}: {error.strerror}")
        os.environ["TMPDIR"] = tempfile.tempdir = str(arguments.work_dir.resolve())
    return execute(run, begin)


def start() -> int:
    """Run the app of this process, with the signals handled as for ``heatlas``."""
    from heatlas.workflows.interrupts import start as begin_process

    return begin_process(main)


if __name__ == "__main__":
    sys.exit(start())
