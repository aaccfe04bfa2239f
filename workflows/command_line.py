"""The command line: options, exit codes, one readable line for every error.

Heavy libraries are imported only once a command is known, so ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

import heatlas
from heatlas.pipeline.run.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RESUMABLE,
    EXIT_USAGE,
    HeatlasError,
    UsageError,
)
from heatlas.pipeline.run.plain_text import PlainStream, plain
from heatlas.pipeline.run.work.executors import import_ahead
from heatlas.pipeline.run.work.memory import FULL_BYTES, size_limit, too_large, why_unwritten

_HOMES = ("check", "export", "compare", "manifest", "figures", "models", "evaluate")
"""Commands whose own module runs them: they need neither networks nor ANTs, and start fast without these libraries."""
WORKER_MODULES = (
    "heatlas.pipeline.cohort.demo.cohort",
    "heatlas.pipeline.registration.stage",
    "ants",
    "heatlas.pipeline.explaining.stage",
)
"""Modules that workers need, in order; imported by their server while this process imports the rest."""
_COMPUTING = ("demo", "run", "apply", "pretrain", "explain", "evaluate")
_READING = ("check", "models")
"""Commands that write no large file."""
_MOST_PROCESSES = 1024
_INPUTS = "ADNI or OASIS download, BIDS or CAPS dataset, FreeSurfer subjects, or images with --table; only read"
FIGURE_FORMATS = ("svg", "pdf", "png")
STAGES = ("cohort", "registration", "training", "attribution", "regions", "statistics", "report")


class _Parser(argparse.ArgumentParser):
    """A parser that shows arguments in messages as plain text, and positional arguments first in usage lines.

    An option that takes several values would take INPUT and OUT too if they came after it.
    """

    def format_usage(self) -> str:
        self.usage = self._positionals_first()
        return super().format_usage()

    late_help: Mapping[str, Callable[[], str]] = {}
    """Help of options by name, asked only when it is shown, since it imports heavy libraries."""

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
        for action in sorted(self._actions, key=lambda one: bool(one.option_strings)):
            if action.required:
                several = action.nargs == argparse.ONE_OR_MORE
                name = f"{action.metavar} [{action.metavar} ...]" if several else str(action.metavar)
                words.append(" ".join([*action.option_strings[:1], name]))
        return " ".join([*words, "[options]"]).replace("%", "%%")

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(plain(message), file)


class _Version(argparse.Action):
    """Prints the version, which is looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"heatlas {heatlas.__version__}")
        parser.exit(EXIT_OK)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="heatlas",
        description="From a folder of brain scans to a report that says which brain regions a classifier relied on.",
        epilog="Exit codes: 0 done; 1 some scans or folds failed, the rest is kept; 2 usage; 65 bad input; "
        "70 internal error; 75 stopped, or another program works there: run again to continue; 130 Ctrl-C; "
        "143 terminated from outside.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="make the synthetic demo cohort and run everything on it")
    demo.add_argument("out", type=_path, metavar="OUT", help="folder for the cohort (OUT/cohort) and the run (OUT/run)")
    _add_seed_and_config(demo)
    _add_run_options(demo)
    demo.add_argument(
        "--marker",
        action="store_true",
        help="then plant a scanner marker that goes with the diagnosis in training only, and train with and without "
        "guidance (as heatlas evaluate OUT/run --parts marker)",
    )
    demo.add_argument(
        "--longitudinal",
        action="store_true",
        help="60 people with three scans each, a year apart, of whom a third have MCI: for the pages on change, "
        "conversion and prognosis; takes about five times as long",
    )

    check = commands.add_parser("check", help="say what would be used, dropped and missing, and stop")
    check.add_argument("input", type=_path, metavar="INPUT", help=_INPUTS)
    _add_check_options(check)

    _add_manifest(commands)

    run = commands.add_parser("run", help="end to end: cohort, registration, training, heatmaps, statistics, report")
    run.add_argument("input", type=_path, metavar="INPUT", help=_INPUTS)
    run.add_argument("out", type=_path, metavar="OUT", help="run folder; an unfinished run there is continued")
    _add_settings(run)
    run.add_argument(
        "--backbone", type=_path, metavar="FOLDER",
        help="train a probe on the network of heatlas pretrain, or on those of a finished run (docs/pretraining.md)",
    )  # fmt: skip
    _add_manifest_option(run)
    _add_run_options(run)

    _add_pretrain(commands)
    _add_apply(commands)
    _add_export(commands)
    _add_explain(commands)
    _add_evaluate(commands)

    compare = commands.add_parser(
        "compare",
        help="compare runs of one cohort: accuracy, what maps find, rankings of regions, cost",
        description="Exact McNemar tests between runs (seeds, settings, models, control runs), one vote per "
        "participant, agreement of their region rankings, scores of their maps, and cost. Scans that some run did "
        "not predict are left out and counted.",
    )
    compare.add_argument("outs", type=_path, nargs="+", metavar="OUT", help="run folders, two or more; only read")
    compare.add_argument(
        "--to", type=_path, required=True, metavar="FOLDER", help="for the page comparison.html and its tables"
    )

    models = commands.add_parser("models", help="the families of networks: size, settings, which methods explain them")
    models.add_argument(
        "--resolution", type=float, metavar="MM", help="voxel size in template space (default: 1 and 2)"
    )

    report = commands.add_parser("report", help="rebuild the report of a run from its tables and maps")
    report.add_argument("out", type=_path, metavar="OUT", help="run folder")
    _add_workers(report)

    figures = commands.add_parser(
        "figures",
        help="publication figures of a finished run, at 300 dpi",
        description="Write every figure of the report, and every mean map on the cortical surface, in a glass brain "
        "and on slices.",
    )
    figures.add_argument("out", type=_path, metavar="OUT", help="run folder")
    figures.add_argument("--to", type=_path, metavar="FOLDER", help="default: OUT/figures/publication")
    figures.add_argument(
        "--format", nargs="+", choices=FIGURE_FORMATS, default=FIGURE_FORMATS, metavar="FORMAT",
        help=f"one or more of {', '.join(FIGURE_FORMATS)} (default: all)",
    )  # fmt: skip
    _add_workers(figures)
    return parser


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=_path, metavar="FOLDER", help="write scans.tsv and a summary there as well")
    _add_manifest_option(parser)
    _add_settings(parser)
    _add_coming_run(parser)


def _add_coming_run(parser: argparse.ArgumentParser) -> None:
    """Options of the later run that a check needs to know."""
    parser.add_argument(
        "--executor", type=_executor, metavar="NAME", help="the run will use one; workers may have a GPU"
    )
    _add_stop_after(parser)


def _add_manifest_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--manifest", type=_path, metavar="FILE", help="use only the images of this manifest, if they are the same"
    )


def _add_manifest(commands: Any) -> None:
    manifest = commands.add_parser(
        "manifest", help="share which images a cohort holds, or rebuild one from such a list"
    )
    actions = manifest.add_subparsers(dest="action", required=True, metavar="ACTION")
    export = actions.add_parser(
        "export", help="write image ids and digests of the scans that a run would use, and nothing else about them"
    )
    export.add_argument("input", type=_path, metavar="INPUT", help=_INPUTS)
    export.add_argument("file", type=_path, metavar="FILE", help="manifest to write, .tsv")
    export.add_argument("--ids-only", action="store_true", help="no digests: images are not read")
    _add_manifest_option(export)
    _add_settings(export)
    rebuild = actions.add_parser(
        "import",
        help="find the images of a manifest in an input; the same as check with --manifest",
        description="Exit code 0 if all images of the manifest, and no others, are found unchanged, else 1.",
    )
    rebuild.add_argument("manifest", type=_path, metavar="FILE", help="manifest that someone has exported")
    rebuild.add_argument("input", type=_path, metavar="INPUT", help=_INPUTS)
    rebuild.add_argument("--out", type=_path, metavar="FOLDER", help="write scans.tsv and the comparison there")
    _add_settings(rebuild)
    _add_coming_run(rebuild)


def _add_pretrain(commands: Any) -> None:
    pretrain = commands.add_parser(
        "pretrain",
        help="train a backbone on scans without labels, for heatlas run --backbone",
        description="Register all scans and train a network to recognise two views of the same scan. Labels are not "
        "used; docs/pretraining.md.",
    )
    pretrain.add_argument("input", type=_path, metavar="INPUT", help=_INPUTS)
    pretrain.add_argument("out", type=_path, metavar="OUT", help="folder for the scans and OUT/models/backbone")
    _add_settings(pretrain)
    pretrain.add_argument(
        "--without", type=_path, metavar="RUN", help="leave out the participants of this run, which will use it"
    )
    _add_manifest_option(pretrain)
    _add_workers(pretrain)


def _add_apply(commands: Any) -> None:
    apply = commands.add_parser(
        "apply", help="the networks of a finished run on another cohort (external validation) or on one scan",
        description="Register scans as the run did, predict and explain them by the networks of all folds, compare "
        "with the controls that these were trained with, and write the report. With labels of both classes it "
        "compares both cohorts; without, as for one scan, it scores each person against the controls of the run. "
        "People of the run are left out. Nothing is trained but the baselines.",
    )  # fmt: skip
    apply.add_argument("run", type=_path, metavar="RUN", help="finished run, or folder of heatlas export; only read")
    apply.add_argument(
        "input", type=_path, metavar="NEW", help=f"one NIfTI or MGZ image, or as for heatlas run: {_INPUTS}"
    )
    apply.add_argument("out", type=_path, metavar="OUT", help="folder for the results")
    _add_table(apply)
    apply.add_argument("--include", metavar="RULE", help="who takes part (default: as in the run)")
    apply.add_argument(
        "--new-people", action="store_true",
        help="nobody is of the run, even where participant ids are the same (default: people of the run are left out)",
    )  # fmt: skip
    apply.add_argument(
        "--start-at", choices=("auto", "scan", "brain", "template"), default="auto",
        help="what images are: recognised individually (auto, default), scans, brains, or brains in template space",
    )  # fmt: skip
    apply.add_argument(
        "--participant-label", nargs="+", default=[], metavar="LABEL", help="only these, e.g. sub-01, 01 or 002_S_0295"
    )
    _add_run_options(apply)


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export", help="share the networks of a finished run without scans: a folder that heatlas apply takes",
        description="Write a folder in the layout of a MONAI bundle: networks, settings, the mean of training "
        "controls, their mean and spread by region, and a model card; no image of a single person, no name, no path.",
        epilog="What the folder holds, and what it does not hide: docs/export.md.",
    )  # fmt: skip
    export.add_argument("run", type=_path, metavar="RUN", help="finished run; only read")
    export.add_argument("folder", type=_path, metavar="FOLDER", help="new or empty folder")


def _add_explain(commands: Any) -> None:
    explain = commands.add_parser(
        "explain",
        help="heatmaps of chosen scans of a finished run, by any method",
        description="Explain scans of a finished run, each by a network not trained with its participant. Maps lie "
        "beside those of the run, which stay as they are; sums per region in OUT/explanations.",
        epilog="What each method answers, its settings and when not to use it: docs/attribution_methods.md.",
    )
    explain.add_argument("out", type=_path, metavar="OUT", help="run folder")
    explain.add_argument(
        "--method", nargs="+", action="extend", required=True, metavar="NAME", help="e.g. grad-cam occlusion rise"
    )
    explain.add_argument("--target", metavar="predicted|CLASS", help="class explained (default: that of the run)")
    explain.add_argument("--stage", metavar="N|LAYER", help="boundary: after N stages (0 is the input), or a layer")
    explain.add_argument(
        "--start",
        choices=("logit", "probability", "evidence"),
        help="value that is explained (default: that of the run for lrp and guided-backpropagation, the evidence for "
        "maps relative to controls, else the logit)",
    )
    explain.add_argument(
        "--participant-label",
        nargs="+",
        action="extend",
        default=[],
        metavar="LABEL",
        help="only these, e.g. sub-01, 01 or 002_S_0295",
    )
    explain.add_argument(
        "--scan", nargs="+", action="extend", default=[], metavar="ID", help="only these: scan_id, or sub-X_ses-Y"
    )
    explain.add_argument(
        "--setting", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help="of the methods, e.g. batch=4; of one of them: METHOD:KEY=VALUE",
    )  # fmt: skip
    _add_workers(explain)


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="judge every method on a finished run: nulls, planted truth, faithfulness, a verdict each",
        description="Train networks on labels that say nothing, draw parameters anew, and test whether each map can "
        "tell the difference; look for what was planted, if that is known; and write tables and a verdict per map to "
        "OUT/evaluation.",
        epilog="What the tables say: docs/evaluation.md. An interrupted evaluation is continued by the same command.",
    )
    evaluate.add_argument("out", type=_path, metavar="OUT", help="run folder")
    evaluate.add_argument(
        "--methods",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="instead of the usual ones, which docs/evaluation.md lists",
    )
    evaluate.add_argument(
        "--parts", nargs="+", action="extend", default=[], metavar="PART",
        help="of those that `heatlas evaluate --help` lists",
    )  # fmt: skip
    evaluate.late_help = {"parts": _parts_in_words}
    evaluate.add_argument(
        "--families", nargs="+", action="extend", default=[], metavar="NAME[:SETTING=VALUE]",
        help="for consensus: also networks of these families, as resnet10:width=0.25 (see `heatlas models`)",
    )  # fmt: skip
    evaluate.add_argument(
        "--draws", type=int, metavar="N",
        help="for retrain: draws of random regions (default: 19, with --quick 4; p is at least 1 / (N + 1))",
    )  # fmt: skip
    evaluate.add_argument(
        "--plant",
        action="store_true",
        help="also plant loss in copies of the run's controls, and train networks to tell them from untouched ones",
    )
    evaluate.add_argument(
        "--quick",
        action="store_true",
        help="one set of networks on shuffled labels, not three; fewer grids, draws and sets of networks",
    )
    evaluate.add_argument(
        "--config", type=_path, metavar="FILE", help="TOML with settings of [evaluation] that differ from the run's"
    )
    _add_workers(evaluate)


def _parts_in_words() -> str:
    from heatlas.pipeline.evaluation.parts import parts_in_words

    return parts_in_words()


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", default="default", help="named settings: default, patients, bohle2019, demo")
    _add_seed_and_config(parser)
    parser.add_argument(
        "--contrast",
        metavar="COLUMN=CLASS,CLASS",
        help="two or more classes to distinguish, the explained one last, e.g. diagnosis=CN,AD (default), "
        'age_group=young,old or diagnosis=CN,MCI,AD; by number: "cdr=0,>=0.5", "mmse>=27,<24"',
    )
    _add_table(parser)
    parser.add_argument("--target", metavar="COLUMN", help="predict a number, e.g. age, in all scans that have one")
    parser.add_argument(
        "--include", metavar="RULE", help='who takes part, e.g. "age >= 60 and cdr >= 0" (docs/inputs.md)'
    )
    parser.add_argument("--resolution", type=float, metavar="MM", help="voxel size in template space")
    parser.add_argument(
        "--participant-label", nargs="+", default=[], metavar="LABEL", help="only these, e.g. sub-01, 01 or 002_S_0295"
    )
    parser.add_argument(
        "--bids-filter-file",
        type=_path,
        metavar="FILE",
        help="which images, by entities of their names (docs/bids_app.md)",
    )
    parser.add_argument(
        "--start-at",
        choices=("auto", "scan", "brain", "template"),
        help="what images are: recognised individually (auto, default), scans, brains, or brains in template space",
    )
    parser.add_argument(
        "--anonymise", type=_path, metavar="KEY",
        help="shift the dates of each participant; KEY is a secret file, created if absent; keep it apart",
    )  # fmt: skip
    parser.add_argument("--pseudonymise", metavar="sites,ids", help="with --anonymise: rename sites, people and images")


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table", type=_path, metavar="FILE", help="for a folder of images of any names: CSV, TSV, .xlsx, .xls "
        "or .ods with the path of each, its participant, and what is known of them (docs/inputs.md)",
    )  # fmt: skip
    parser.add_argument(
        "--follow-links", action="store_true",
        help="read folders and images that are links out of INPUT too (default: they are left out and named)",
    )  # fmt: skip


def _add_seed_and_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, help="the seed of all random numbers (default 43)")
    parser.add_argument("--config", type=_path, metavar="FILE", help="TOML with settings that differ from the preset")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    _add_workers(parser)
    _add_stop_after(parser)


def _add_stop_after(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stop-after", choices=STAGES, default=STAGES[-1], metavar="STAGE", help=", ".join(STAGES))


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n-procs", type=_count, default=os.cpu_count() or 1, metavar="N", help="worker processes")
    parser.add_argument(
        "--executor", type=_executor, metavar="NAME",
        help="send the work to a cluster: slurm, pbs, lsf, kubernetes or local, with the settings [cluster] of "
        "--config, or a Python file with a Parsl config; see docs/cluster.md",
    )  # fmt: skip


def _path(text: str) -> Path:
    """A path that can be resolved; `argparse` names the option in errors."""
    try:
        str(Path(text).resolve()).encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r}: its name is not text in UTF-8; rename the folder") from None
    except FileNotFoundError:
        raise argparse.ArgumentTypeError(f"{text!r}: the current folder has been removed") from None
    except (OSError, RuntimeError):  # RuntimeError until Python 3.12
        raise argparse.ArgumentTypeError(f"{text!r}: its symbolic links form a loop") from None
    return Path(text)


def _executor(text: str) -> str:
    """The name of a provider, or a path."""
    _path(text)
    return text


def _count(text: str) -> int:
    """A number of processes; `argparse` names the option in errors."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= _MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_MOST_PROCESSES}")
    return number


def main(
    argv: Sequence[str] | None = None, begin: Callable[[], None] = lambda: None, side_by_side: bool = False
) -> int:
    """Run a command and return its exit code.

    `argv`: instead of those of the process; `begin`: called when everything is imported, before the work begins;
    `side_by_side`: of `heatlas run`, see `heatlas.workflows.adni.run_pipeline`.
    """
    arguments = build_parser().parse_args(argv, argparse.Namespace(side_by_side=side_by_side))
    try:
        limit = size_limit()
        if limit is not None and limit < FULL_BYTES and arguments.command not in _READING:
            raise UsageError(f"{too_large()} and run the same command again.")
        if arguments.command in _COMPUTING and arguments.executor is None:
            import_ahead(WORKER_MODULES)
        home = arguments.command if arguments.command in _HOMES else "adni"
        module = importlib.import_module(f"heatlas.workflows.{home}")
        begin()
        with redirect_stdout(cast(TextIO, PlainStream(sys.stdout))):
            return int(getattr(module, f"{arguments.command}_command")(arguments))
    except HeatlasError as error:
        return _report(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _report("interrupted; run the same command again to continue.", EXIT_INTERRUPTED)
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
