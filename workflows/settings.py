"""Settings and selections of a command, as records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatlas.pipeline.cohort.bids.filters import read_filter
from heatlas.pipeline.cohort.reading import ScanSelection
from heatlas.pipeline.cohort.sharing.anonymise import open_disguise
from heatlas.pipeline.cohort.sharing.manifest import Manifest
from heatlas.pipeline.models.families.probes.body import with_body
from heatlas.pipeline.models.families.probes.settings import ProbeConfig
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.workflows.commands import Check, ManifestExport, ManifestImport, Run, Settings


def settings_of(options: Settings, backbone: Path | None = None) -> Config:
    """Settings of a command: preset, then file, then single options.

    `backbone`: of the probe that is then trained.
    """
    overrides: dict[str, Any] = {} if options.seed is None else {"seed": options.seed}
    cohort: dict[str, Any] = {}
    if options.contrast:
        column, values = _parted(options.contrast)
        classes = values.split(",") if len(values.split(",")) > 2 else values.split(",", 1)
        if not column or len(classes) < 2 or not all(classes):
            raise UsageError(
                f"--contrast {options.contrast}: write COLUMN=CLASS,CLASS, such as diagnosis=CN,AD, or more "
                "classes, such as diagnosis=CN,MCI,AD; the last is the one that is explained. Numbers are compared: "
                '"cdr=0,>=0.5" or "mmse>=27,<24".'
            )
        several = classes if len(classes) > 2 else []
        cohort |= {"contrast_column": column, "negative": classes[0], "positive": classes[-1], "classes": several}
    if options.target:
        if options.contrast:
            raise UsageError("--target predicts a number and --contrast classes; give only one of them.")
        cohort |= {"target": options.target, "classes": []}
    table = None if options.table is None else table_setting(options.table)
    single = {"include": options.include, "start_at": options.start_at, "table": table}
    cohort |= {name: value for name, value in single.items() if value is not None}
    if cohort:
        overrides["cohort"] = cohort
    if options.resolution is not None:
        overrides["registration"] = {"resolution_mm": options.resolution}
    if options.anonymise is not None:
        overrides["privacy"] = {"shift_dates": True}
    if options.pseudonymise:
        names = [name for name in options.pseudonymise.split(",") if name]
        overrides["privacy"] = {**overrides.get("privacy", {}), "pseudonyms": names}
    if backbone is not None:
        overrides["model"] = {"architecture": "probe", "backbone": str(backbone)}
    return with_backbone(load_config(options.preset, options.config, overrides))


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


def selection_of(
    options: Check | ManifestExport | ManifestImport | Run, config: Config, folders: Sequence[Path]
) -> ScanSelection:
    """Scans that a command selects, and how they are anonymised; the key must not lie in one of `folders`."""
    if options.manifest is not None and "ids" in config.privacy.pseudonyms:
        raise UsageError("--pseudonymise ids: a manifest and its comparison contain image ids. Leave one out.")
    return ScanSelection(
        participants=options.participant_label,
        follow_links=options.follow_links,
        template=config.registration.template,
        entities=read_filter(filtered, config.cohort.kind) if (filtered := options.bids_filter_file) else {},
        manifest=None if options.manifest is None else Manifest.read(options.manifest),
        disguise=open_disguise(options.anonymise, config.privacy, folders),
    )
