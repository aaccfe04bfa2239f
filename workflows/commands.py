"""The commands of ``heatlas``, a record each: its fields are its options, with their help and defaults.

The command line (`command_line`), the library and the BIDS App are three ways to fill a record; the function that
`Command.does` names then does what it says. Other distributions add theirs by entry points (docs/plugins.md). Nothing
heavy is imported here, so that ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from heatlas.pipeline.run.plugins import plugged_in

STAGES = ("cohort", "registration", "training", "attribution", "regions", "statistics", "report")
Entry = Literal["auto", "scan", "brain", "template"]
FIGURE_FORMATS = ("svg", "pdf", "png")
_MOST_PROCESSES = 1024
_OLDEST = 120
INPUTS = "ADNI or OASIS download, BIDS or CAPS dataset, FreeSurfer subjects, or images with --table; only read"


def path(text: str) -> Path:
    try:
        str(Path(text).resolve()).encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r}: its name is not text in UTF-8; rename the folder") from None
    except FileNotFoundError:
        raise argparse.ArgumentTypeError(f"{text!r}: the current folder has been removed") from None
    except (OSError, RuntimeError):  # RuntimeError until Python 3.12
        raise argparse.ArgumentTypeError(f"{text!r}: its symbolic links form a loop") from None
    return Path(text)


def provider(text: str) -> str:
    path(text)
    return text


def processes(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= _MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_MOST_PROCESSES}")
    return number


def place(metavar: str, meaning: str, **how: Any) -> Any:
    """A path that a command needs, by its place; `how` as for `argparse`."""
    return field(metadata={"metavar": metavar, "help": meaning, "type": path, **how})


def years(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= _OLDEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age in years from 0 to {_OLDEST}")
    return number


def option(meaning: str | Callable[[], str], default: Any = None, first: bool = False, **how: Any) -> Any:
    """An option of a command; `how` as for `argparse`.

    `meaning`: its help, or a function that gathers it where that takes time. `first`: shown before inherited ones.
    """
    return field(default=default, metadata={"help": meaning, "first": first, **how})


def path_option(metavar: str, meaning: str, **how: Any) -> Any:
    return option(meaning, metavar=metavar, type=path, **how)


def flag(meaning: str) -> Any:
    return option(meaning, default=False, action="store_true")


def several(metavar: str, meaning: str | Callable[[], str], default: tuple[str, ...] = (), **how: Any) -> Any:
    return option(meaning, default=default, metavar=metavar, nargs="+", **how)


_SEED = partial(option, "the seed of all random numbers (default 43)", type=int)
_CONFIG = partial(path_option, "FILE", "TOML with settings that differ from the preset")
manifest_option = partial(path_option, "FILE", "use only the images of this manifest, if they are the same")
_TABLE = partial(
    path_option, "FILE", "for a folder of images of any names: CSV, TSV, .xlsx, .xls or .ods with the path of each, "
    "its participant, and what is known of them (docs/inputs.md)",
)  # fmt: skip
_FOLLOW_LINKS = partial(
    flag, "read folders and images that are links out of INPUT too (default: they are left out and named)"
)
_LABELS = partial(several, "LABEL", "only these, e.g. sub-01, 01 or 002_S_0295", action="extend")
_START_AT = partial(
    option, "what images are: recognised individually (auto, default), scans, brains, or brains in template space",
    choices=("auto", "scan", "brain", "template"),
)  # fmt: skip
_STOP_AFTER = partial(option, ", ".join(STAGES), STAGES[-1], choices=STAGES, metavar="STAGE")
executor_option = partial(
    option, "send the work to a cluster: slurm, pbs, lsf, kubernetes or local, with the settings [cluster] of "
    "--config, or a Python file with a Parsl config; see docs/cluster.md", metavar="NAME", type=provider,
)  # fmt: skip
_LATER_EXECUTOR = partial(option, "the run will use one; workers may have a GPU", metavar="NAME", type=provider)


def processes_option() -> Any:
    how = {"help": "worker processes", "metavar": "N", "type": processes}
    return field(default_factory=lambda: os.cpu_count() or 1, metadata=how)


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a command is given, and the function that takes the record. The docstring is the help."""

    name: ClassVar[str]
    does: ClassVar[str]
    """Module beside that of the record, and its function; imported when the command is known."""
    epilog: ClassVar[str | None] = None
    computes: ClassVar[bool] = False
    """Whether its workers need networks and ANTs."""
    only_reads: ClassVar[bool] = False
    """Whether it writes no large file."""


def _presets_in_words() -> str:
    from heatlas.pipeline.run.config.files import preset_names

    return f"named settings: {', '.join(preset_names())}; below 500 people, patients"


@dataclass(frozen=True, kw_only=True)
class Settings(Command):
    """A command with an input and settings of a run."""

    preset: str = option(_presets_in_words, "default")
    seed: int | None = _SEED()
    config: Path | Mapping[str, Any] | None = _CONFIG()  # the library gives settings by section instead of a file
    contrast: str | None = option(
        "two or more classes to distinguish, the explained one last, e.g. diagnosis=CN,AD (default), "
        'age_group=young,old or diagnosis=CN,MCI,AD; by number: "cdr=0,>=0.5", "mmse>=27,<24"',
        metavar="COLUMN=CLASS,CLASS",
    )
    table: Path | None = _TABLE()
    follow_links: bool = _FOLLOW_LINKS()
    target: str | None = option("predict a number, e.g. age, in all scans that have one", metavar="COLUMN")
    include: str | None = option('who takes part, e.g. "age >= 60 and cdr >= 0" (docs/inputs.md)', metavar="RULE")
    resolution: float | None = option("voxel size in template space", metavar="MM", type=float)
    participant_label: tuple[str, ...] = _LABELS()
    bids_filter_file: Path | None = path_option("FILE", "which images, by entities of their names (docs/bids_app.md)")
    start_at: Entry | None = _START_AT()
    anonymise: Path | None = path_option(
        "KEY", "shift the dates of each participant; KEY is a secret file, created if absent; keep it apart"
    )
    pseudonymise: str | None = option("with --anonymise: rename sites, people and images", metavar="sites,ids")


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Make the synthetic demo cohort and run everything on it."""

    name = "demo"
    does = "adni.demo_command"
    computes = True
    out: Path = place("OUT", "folder for the cohort (OUT/cohort) and the run (OUT/run)")
    seed: int | None = _SEED()
    config: Path | None = _CONFIG()
    n_procs: int = processes_option()
    executor: str | None = executor_option()
    stop_after: str = _STOP_AFTER()
    marker: bool = flag(
        "then plant a scanner marker that goes with the diagnosis in training only, and train with and without "
        "guidance (as heatlas evaluate OUT/run --parts marker)"
    )
    longitudinal: bool = flag(
        "60 people with three scans each, a year apart, of whom a third have MCI: for the pages on change, "
        "conversion and prognosis; takes about five times as long"
    )


@dataclass(frozen=True, kw_only=True)
class Check(Settings):
    """Say what would be used, dropped and missing, and stop."""

    name = "check"
    does = "check.check_command"
    only_reads = True
    input: Path = place("INPUT", INPUTS)
    out: Path | None = path_option("FOLDER", "write scans.tsv and a summary there as well", first=True)
    network: Path | None = path_option(
        "FILE", "instead, feed these scans in many ways to the network of a description file, and compare its answers "
        "with a known column (docs/howto/feed_a_public_network.md)", first=True,
    )  # fmt: skip
    manifest: Path | None = manifest_option(first=True)
    executor: str | None = _LATER_EXECUTOR()
    stop_after: str = _STOP_AFTER()


@dataclass(frozen=True, kw_only=True)
class ManifestExport(Settings):
    """Write image ids and digests of the scans that a run would use, and nothing else about them."""

    name = "manifest export"
    does = "check.manifest_command"
    input: Path = place("INPUT", INPUTS)
    file: Path = place("FILE", "manifest to write, .tsv")
    ids_only: bool = option("no digests: images are not read", False, first=True, action="store_true")
    manifest: Path | None = manifest_option(first=True)


@dataclass(frozen=True, kw_only=True)
class ManifestImport(Settings):
    """Find the images of a manifest in an input; the same as check with --manifest.

    Exit code 0 if all images of the manifest, and no others, are found unchanged, else 1.
    """

    name = "manifest import"
    does = "check.check_command"
    manifest: Path = place("FILE", "manifest that someone has exported")
    input: Path = place("INPUT", INPUTS)
    out: Path | None = path_option("FOLDER", "write scans.tsv and the comparison there", first=True)
    executor: str | None = _LATER_EXECUTOR()
    stop_after: str = _STOP_AFTER()


@dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """End to end: cohort, registration, training, heatmaps, statistics, report."""

    name = "run"
    does = "adni.run_command"
    computes = True
    input: Path = place("INPUT", INPUTS)
    out: Path = place("OUT", "run folder; an unfinished run there is continued")
    backbone: Path | None = path_option(
        "FOLDER",
        "train a probe on the network of heatlas pretrain, or on those of a finished run (docs/pretraining.md)",
    )
    manifest: Path | None = manifest_option()
    n_procs: int = processes_option()
    executor: str | None = executor_option()
    stop_after: str = _STOP_AFTER()
    side_by_side: bool = False  # no option: other jobs may register other people in the same folder meanwhile


@dataclass(frozen=True, kw_only=True)
class Apply(Command):
    """The networks of a finished run on another cohort (external validation) or on one scan.

    Register scans as the run did, predict and explain them by the networks of all folds, compare with the
    controls that these were trained with, and write the report. With labels of both classes it compares both
    cohorts; without, as for one scan, it scores each person against the controls of the run. People of the run
    are left out. Nothing is trained but the baselines.
    """

    name = "apply"
    does = "adni.apply_command"
    computes = True
    run: Path = place("RUN", "finished run, folder of heatlas export, or a name of heatlas networks; only read")
    input: Path = place("NEW", f"one NIfTI or MGZ image, or as for heatlas run: {INPUTS}")
    out: Path = place("OUT", "folder for the results")
    table: Path | None = _TABLE()
    follow_links: bool = _FOLLOW_LINKS()
    age: float | None = option("of the person of the one image, for the norm of this age", metavar="YEARS", type=years)
    sex: Literal["F", "M"] | None = option("of the person of the one image", choices=("F", "M"))
    include: str | None = option("who takes part (default: as in the run, but for its ids)", metavar="RULE")
    new_people: bool = flag(
        "nobody is of the run, even where participant ids are the same (default: people of the run are left out)"
    )
    start_at: Entry = _START_AT("auto")
    code: str | None = option(
        "code that makes a network of your own, where RUN is its export: FILE.py:NAME or MODULE:NAME; it is run",
        metavar="CODE",
    )
    plant: tuple[str, ...] = several(
        "REGION", "also take a tenth of these regions out of each scan, and say whether answer and map respond; of one "
        "scan alone one hippocampus always", action="extend",
    )  # fmt: skip
    participant_label: tuple[str, ...] = _LABELS()
    n_procs: int = processes_option()
    executor: str | None = executor_option()
    stop_after: str = _STOP_AFTER()


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Share the networks of a finished run without scans: a folder that heatlas apply takes.

    Write a folder in the layout of a MONAI bundle: networks, settings, the mean of training controls, their
    norms by region and of the answer, and a model card; no image of a single person, no name, no path.
    """

    name = "export"
    does = "export.export_command"
    epilog = "What the folder holds, and what it does not hide: docs/export.md."
    run: Path = place("RUN", "finished run; only read")
    folder: Path = place("FOLDER", "new or empty folder")
    public: bool = flag(
        "to give to everyone: the mean is of all training controls, 30 or more, and weights take half the bytes where "
        "no answer changes by more than 0.001"
    )


@dataclass(frozen=True, kw_only=True)
class Networks(Command):
    """The networks that can be applied by name, or the model card of one.

    Those that come with Heatlas, and every folder of heatlas export in the folder that the variable
    HEATLAS_NETWORKS names.
    """

    name = "networks"
    does = "networks.networks_command"
    epilog = "How to apply one to a scan: docs/howto/one_scan.md."
    only_reads = True
    network: str | None = field(
        default=None, metadata={"metavar": "NAME", "help": "print the card of this network", "nargs": "?"}
    )


@dataclass(frozen=True, kw_only=True)
class Explain(Command):
    """Heatmaps of chosen scans of a finished run, by any method.

    Explain scans of a finished run, each by a network not trained with its participant. Maps lie beside those
    of the run, which stay as they are; sums per region in OUT/explanations.
    """

    name = "explain"
    does = "evaluate.explain_command"
    epilog = "What each method answers, its settings and when not to use it: docs/attribution_methods.md."
    computes = True
    out: Path = place("OUT", "run folder")
    method: tuple[str, ...] = several("NAME", "e.g. grad-cam occlusion rise", action="extend", required=True)
    target: str | None = option("class explained (default: that of the run)", metavar="predicted|CLASS")
    stage: str | None = option("boundary: after N stages (0 is the input), or a layer", metavar="N|LAYER")
    start: Literal["logit", "probability", "evidence"] | None = option(
        "value that is explained (default: that of the run for lrp and guided-backpropagation, the evidence for "
        "maps relative to controls, else the logit)",
        choices=("logit", "probability", "evidence"),
    )
    participant_label: tuple[str, ...] = _LABELS()
    scan: tuple[str, ...] = several("ID", "only these: scan_id, or sub-X_ses-Y", action="extend")
    setting: tuple[str, ...] = several(
        "KEY=VALUE", "of the methods, e.g. batch=4; of one of them: METHOD:KEY=VALUE", action="extend"
    )
    n_procs: int = processes_option()
    executor: str | None = executor_option()


def _parts_in_words() -> str:
    from heatlas.pipeline.evaluation.parts import parts_in_words

    return parts_in_words()


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Judge every method on a finished run: nulls, planted truth, faithfulness, a verdict each.

    Train networks on labels that say nothing, draw parameters anew, and test whether each map can tell the
    difference; look for what was planted, if that is known; and write tables and a verdict per map to
    OUT/evaluation.
    """

    name = "evaluate"
    does = "evaluate.evaluate_command"
    epilog = "What the tables say: docs/evaluation.md. An interrupted evaluation is continued by the same command."
    computes = True
    out: Path = place("OUT", "run folder")
    methods: tuple[str, ...] = several(
        "NAME", "instead of the usual ones, which docs/evaluation.md lists", action="extend"
    )
    parts: tuple[str, ...] = several("PART", _parts_in_words, action="extend")
    families: tuple[str, ...] = several(
        "NAME[:SETTING=VALUE]",
        "for consensus: also networks of these families, as resnet10:width=0.25 (see `heatlas models`)",
        action="extend",
    )
    draws: int | None = option(
        "for retrain: draws of random regions (default: 19, with --quick 4; p is at least 1 / (N + 1))",
        metavar="N", type=int,
    )  # fmt: skip
    plant: bool = flag(
        "also plant loss in copies of the run's controls, and train networks to tell them from untouched ones"
    )
    quick: bool = flag("one set of networks on shuffled labels, not three; fewer grids, draws and sets of networks")
    config: Path | None = path_option("FILE", "TOML with settings of [evaluation] that differ from the run's")
    n_procs: int = processes_option()
    executor: str | None = executor_option()


@dataclass(frozen=True, kw_only=True)
class Claims(Command):
    """Ask a finished run what the literature claims: what holds in its people, as said by rule.

    Say which claims can be asked, which cannot and why, and how long each takes; then answer from the tables and maps
    of the run. Of a claim that needs other networks, the command that asks it is named. Nothing is trained without
    --train.
    """

    name = "claims"
    does = "claims.claims_command"
    epilog = "What the answers say: docs/howto/ask_claims.md."
    out: Path = place("OUT", "run folder")
    claims: Path | None = path_option("FILE", "TOML with claims of your own instead")
    train: int | None = option(
        "train the run's recipe again with the next N seeds, and judge over people and all trainings; the cost is said "
        "first, and what is finished is kept",
        metavar="N", type=int,
    )  # fmt: skip
    n_procs: int = processes_option()
    executor: str | None = executor_option()


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Compare runs of one cohort: accuracy, what maps find, rankings of regions, cost.

    Exact McNemar tests between runs (seeds, settings, models, control runs), one vote per participant,
    agreement of their region rankings, scores of their maps, and cost. Scans that some run did not predict are
    left out and counted.
    """

    name = "compare"
    does = "finished_runs.compare_command"
    outs: tuple[Path, ...] = place("OUT", "run folders, two or more; only read", nargs="+")
    to: Path = place("FOLDER", "for the page comparison.html and its tables", required=True)


@dataclass(frozen=True, kw_only=True)
class Models(Command):
    """The families of networks: size, settings, which methods explain them."""

    name = "models"
    does = "estimates.models_command"
    only_reads = True
    resolution: float | None = option("voxel size in template space (default: 1 and 2)", metavar="MM", type=float)


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Rebuild the report of a run from its tables and maps."""

    name = "report"
    does = "adni.report_command"
    out: Path = place("OUT", "run folder")
    n_procs: int = processes_option()
    executor: str | None = executor_option()


@dataclass(frozen=True, kw_only=True)
class Figures(Command):
    """Publication figures of a finished run, at 300 dpi.

    Write every figure of the report, and every mean map on the cortical surface, in a glass brain and on
    slices.
    """

    name = "figures"
    does = "finished_runs.figures_command"
    out: Path = place("OUT", "run folder")
    to: Path | None = path_option("FOLDER", "default: OUT/figures/publication")
    format: tuple[str, ...] = several(
        "FORMAT", f"one or more of {', '.join(FIGURE_FORMATS)} (default: all)", FIGURE_FORMATS, choices=FIGURE_FORMATS
    )
    map: tuple[str, ...] = several(
        "MAP", "only mean maps of these, e.g. expectedGradients (default: all maps and charts)"
    )
    n_procs: int = processes_option()
    executor: str | None = executor_option()


def run_of(command: Command, **changes: Any) -> Run:
    """The run of scans that another command does, with the options that both have."""
    shared = {one.name: getattr(command, one.name) for one in fields(Run) if hasattr(command, one.name)}
    return Run(**shared | changes)


COMMANDS: tuple[type[Command], ...] = (
    Demo, Check, ManifestExport, ManifestImport, Run, Apply, Networks, Export, Explain, Evaluate, Claims, Compare,
    Models, Report, Figures,
)  # fmt: skip
"""Those of the core; a name of two words is an action of a command of several."""
SEVERAL = {"manifest": "share which images a cohort holds, or rebuild one from such a list"}
"""Commands of several actions, and their help."""


@dataclass(frozen=True)
class AddedCommand:
    """A command from an entry point of the group ``heatlas.commands``.

    `after`: name of the command below which ``heatlas --help`` lists it.
    """

    record: type[Command]
    after: str = "figures"

    @property
    def name(self) -> str:
        return self.record.name


@cache
def all_commands() -> tuple[type[Command], ...]:
    """Those of the core and of other distributions, in the order of ``heatlas --help``."""
    records = list(COMMANDS)
    for added in plugged_in("commands", AddedCommand, [record.name for record in COMMANDS]):
        names = [record.name for record in records]
        records.insert(names.index(added.after) + 1 if added.after in names else len(names), added.record)
    return tuple(records)


def options_of(record: type[Command]) -> list[Field[Any]]:
    """The options of a command, in the order of its help: places, those said to be first, then the others."""
    options = [one for one in fields(record) if one.metadata]
    return sorted(options, key=lambda one: (not is_place(one), not one.metadata.get("first")))


def is_place(one: Field[Any]) -> bool:
    """Whether a field is told by its place on the command line, not by the name of an option."""
    needed = one.default is MISSING and one.default_factory is MISSING and "required" not in one.metadata
    return needed or one.metadata.get("nargs") == "?"
