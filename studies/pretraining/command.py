"""``heatlas pretrain``: the command and its stage, as records that Heatlas finds by an entry point.

Nothing heavy is imported before the command is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from heatlas.workflows.commands import (
    INPUTS,
    AddedCommand,
    Settings,
    executor_option,
    manifest_option,
    path_option,
    place,
    processes_option,
    run_of,
)

if TYPE_CHECKING:
    from heatlas.pipeline.cohort.work import Work
    from heatlas.pipeline.run.config.settings import Config
    from heatlas.workflows.stages import Result


@dataclass(frozen=True, kw_only=True)
class Pretrain(Settings):
    """Train a backbone on scans without labels, for heatlas run --backbone.

    Register all scans and train a network to recognise two views of the same scan. Labels are not used;
    docs/pretraining.md.
    """

    name = "pretrain"
    does = "command.pretrain_command"
    computes = True
    input: Path = place("INPUT", INPUTS)
    out: Path = place("OUT", "folder for the scans and OUT/models/backbone")
    without: Path | None = path_option("RUN", "leave out the participants of this run, which will use it")
    manifest: Path | None = manifest_option()
    n_procs: int = processes_option()
    executor: str | None = executor_option()


PRETRAIN = AddedCommand(Pretrain, after="run")


def pretrain_command(options: Pretrain) -> int:
    from heatlas.pipeline.run.layout.folder import RunInput
    from heatlas.studies.pretraining.stage import parts_of
    from heatlas.workflows.adni import run_pipeline
    from heatlas.workflows.preflight import settings_of
    from heatlas.workflows.stages import Stage

    run = run_of(options, preset=f"{options.preset}+pretraining")
    config = settings_of(run)
    if options.without is not None:
        config = replace(config, pretraining=replace(config.pretraining, without=str(options.without.resolve())))
    last = Stage("pretraining", _pretrain, require_settings, parts_of)
    return run_pipeline(RunInput(run.input, run.preset), run.out, config, run, ("cohort", "registration"), last)


def require_settings(config: Config, elsewhere: bool) -> None:
    """Refuse settings that no backbone can be trained with; `elsewhere` as of `require_settings`."""
    from heatlas.pipeline.run.errors import UsageError
    from heatlas.workflows.preflight import require_network

    if config.cohort.further_suffixes:
        raise UsageError(
            "cohort.further_suffixes: a backbone is trained on images of one kind. Take the setting out for heatlas "
            "pretrain."
        )
    require_network(config, elsewhere)


def _pretrain(work: Work) -> Result:
    from heatlas.studies.pretraining.stage import pretrain
    from heatlas.workflows.stages import Result

    return Result(pretrain(work.layout, work.registered(), work.config, work.executor, work.digests))
