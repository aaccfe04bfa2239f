"""Settings and selections of a command line, as records."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatlas.pipeline.cohort.reading import ScanSelection, read_filter
from heatlas.pipeline.cohort.sharing import Manifest, open_disguise
from heatlas.pipeline.models.families.probes.body import with_body
from heatlas.pipeline.models.families.probes.settings import ProbeConfig
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError


def settings_of(arguments: argparse.Namespace) -> Config:
    """Settings of a command line: preset, then file, then single options."""
    overrides: dict[str, Any] = seed_of(arguments)
    cohort: dict[str, Any] = {}
    if arguments.contrast:
        column, values = _parted(arguments.contrast)
        classes = values.split(",") if len(values.split(",")) > 2 else values.split(",", 1)
        if not column or len(classes) < 2 or not all(classes):
            raise UsageError(
                f"--contrast {arguments.contrast}: write COLUMN=CLASS,CLASS, such as diagnosis=CN,AD, or more "
                "classes, such as diagnosis=CN,MCI,AD; the last is the one that is explained. Numbers are compared: "
                '"cdr=0,>=0.5" or "mmse>=27,<24".'
            )
        several = classes if len(classes) > 2 else []
        cohort |= {"contrast_column": column, "negative": classes[0], "positive": classes[-1], "classes": several}
    if arguments.target:
        if arguments.contrast:
            raise UsageError("--target predicts a number and --contrast classes; give only one of them.")
        cohort |= {"target": arguments.target, "classes": []}
    table = None if arguments.table is None else table_setting(arguments.table)
    single = {"include": arguments.include, "start_at": arguments.start_at, "table": table}
    cohort |= {name: value for name, value in single.items() if value is not None}
    if cohort:
        overrides["cohort"] = cohort
    if arguments.resolution is not None:
        overrides["registration"] = {"resolution_mm": arguments.resolution}
    if arguments.anonymise is not None:
        overrides["privacy"] = {"shift_dates": True}
    if arguments.pseudonymise:
        names = [name for name in arguments.pseudonymise.split(",") if name]
        overrides["privacy"] = {**overrides.get("privacy", {}), "pseudonyms": names}
    if getattr(arguments, "backbone", None) is not None:
        overrides["model"] = {"architecture": "probe", "backbone": str(arguments.backbone)}
    return with_backbone(load_config(arguments.preset, arguments.config, overrides))


def _parted(contrast: str) -> tuple[str, str]:
    """Column and classes of ``--contrast``; the first class may begin with its sign.

    Examples
    --------
    >>> _parted("diagnosis=CN,AD"), _parted("cdr=0,>=0.5"), _parted("mmse>=27,<24"), _parted("mmse=>=27,<24")
    (('diagnosis', 'CN,AD'), ('cdr', '0,>=0.5'), ('mmse', '>=27,<24'), ('mmse', '>=27,<24'))
    """
    column = re.split("[=<>]", contrast, maxsplit=1)[0]
    return column.strip(), contrast[len(column) :].removeprefix("=")


def table_setting(table: Path) -> str:
    """A table of people as a setting that holds from any folder; one that is not here may be in the input folder."""
    return str(table.resolve() if table.is_file() else table)


def with_backbone(config: Config) -> Config:
    """The settings with the backbone of a probe written out, so that what is trained does not need its folder later.

    UsageError or BadInputError if there is no backbone, or it cannot be read.
    """
    if not isinstance(config.model, ProbeConfig) or not config.model.backbone:
        return config
    found = replace(with_body(config.model), backbone=str(Path(config.model.backbone).resolve()))
    return replace(config, model=found)


def seed_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.seed is None else {"seed": arguments.seed}


def selection_of(arguments: argparse.Namespace, config: Config, folders: Sequence[Path]) -> ScanSelection:
    """Scans selected by a command line, and how they are anonymised; the key must not lie in one of `folders`."""
    manifest = getattr(arguments, "manifest", None)
    if manifest is not None and "ids" in config.privacy.pseudonyms:
        raise UsageError("--pseudonymise ids: a manifest and its comparison contain image ids. Leave one out.")
    return ScanSelection(
        participants=tuple(arguments.participant_label),
        follow_links=getattr(arguments, "follow_links", False),
        template=config.registration.template,
        entities=read_filter(filtered, config.cohort.kind)
        if (filtered := getattr(arguments, "bids_filter_file", None))
        else {},
        manifest=None if manifest is None else Manifest.read(manifest),
        disguise=open_disguise(getattr(arguments, "anonymise", None), config.privacy, folders),
    )
