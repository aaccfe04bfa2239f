"""What ``[statistics]`` asks for by name: biomarkers, and the check that a run will have what is named.

Columns, regions and maps are checked as soon as the cohort is read, since a misspelt name would otherwise show hours
later, in a row of a table. A clinical column that the program knows but this cohort lacks is not an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.cohort.people.inclusion import IDENTITY, MEASURES, TIMES, Clinical
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE, NOT_MEASURED
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.config.statistics import PrimaryConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import map_names
from heatlas.pipeline.run.plain_text import did_you_mean, nearest
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.features import VOLUME, CovariateColumns, refuse_class, region_features
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs, with_facts
from heatlas.pipeline.statistics.data.members import COURSE
from heatlas.pipeline.statistics.data.values import joined

SHORT_NAMES = {"hippocampus": "hippocampus_mm3", "tiv": "tiv_mm3"}
OWN_VOLUME = "own volume"
VOLUME_OF = "volume of "


@dataclass(frozen=True, eq=False)
class Biomarker:
    """One number per scan (scans,), or per scan and bilateral group (scans, groups) for relevance of the same group."""

    name: str
    values: Floats

    @property
    def per_group(self) -> bool:
        return self.values.ndim == 2


def biomarker_of(name: str, inputs: StatisticsInputs) -> Biomarker:
    """Look up a biomarker: a column, ``a/b``, ``own volume`` or ``volume of GROUP``.

    BadInputError if a column is missing, holds text or has no values.
    """
    part, divisor = parts_of(name, inputs.frame)
    values = _part(part, inputs)
    if divisor:
        below = column_of(divisor, inputs.frame)
        below = np.where(below > 0, below, np.nan)
        values = values / (below if values.ndim == 1 else below[:, None])
    if np.isnan(values).all():
        raise BadInputError(f"{joined(f'{name}: no scan has a value', own_volume_note(name, inputs.frame))}.")
    return Biomarker(name, values)


def parts_of(name: str, frame: pd.DataFrame) -> tuple[str, str]:
    """Numerator and denominator; the denominator is empty for a plain name."""
    part, _, divisor = name.partition("/") if name not in frame else (name, "", "")
    return part.strip(), divisor.strip()


def own_volume_note(name: str, frame: pd.DataFrame) -> str | None:
    """Source of a hippocampal volume measured by this run, or why it is missing; None for other biomarkers."""
    if SHORT_NAMES["hippocampus"] not in {SHORT_NAMES.get(part.strip(), part.strip()) for part in name.split("/")}:
        return None
    sources = sorted(set(frame["hippocampus_source"].dropna())) if "hippocampus_source" in frame else []
    return joined(*[source for source in sources if source.startswith((JACOBIAN_SOURCE, NOT_MEASURED))])


def _part(name: str, inputs: StatisticsInputs) -> Floats:
    if name == OWN_VOLUME:
        return group_volumes(inputs)
    if name.startswith(VOLUME_OF):
        group = name.removeprefix(VOLUME_OF)
        if group not in inputs.values.groups:
            raise BadInputError(f"{name}: the atlas has no bilateral group named {group}.")
        of_group: Floats = group_volumes(inputs)[:, inputs.values.groups.index(group)]
        return of_group
    return column_of(name, inputs.frame)


def column_of(name: str, frame: pd.DataFrame) -> Floats:
    """A numeric column; ``hippocampus`` and ``tiv`` need no ``_mm3``.

    BadInputError if the column is missing or holds text.
    """
    column = SHORT_NAMES.get(name, name)
    if column not in frame:
        raise BadInputError(f"{name}: no such column in scans.tsv or clinical.tsv.")
    try:
        return frame[column].to_numpy(float, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise BadInputError(
            f"{name}: not a numeric column, so no correlation can be computed. Use it as a subgroup variable."
        ) from error


def group_volumes(inputs: StatisticsInputs) -> Floats:
    """Volume of each bilateral group (both sides) in mm³, shape (scans, groups).

    BadInputError if the run has no volumes, as when the input was already in template space.
    """
    sources = {source.source: source for source in region_features(inputs.values, inputs.volumes)}
    if VOLUME not in sources:
        raise BadInputError(
            "group/volumes.tsv: missing or empty. Volumes are measured only in scans that the run registered."
        )
    measured = pd.DataFrame(sources[VOLUME].values, columns=list(sources[VOLUME].groups))
    return measured.reindex(columns=list(inputs.values.groups)).to_numpy(float)


_NUMBERS = ("target", "logit_negative", "logit_positive", "probability")
_WORDS = ("fold", "predicted", "outcome", "control")
"""Columns of ``predictions.tsv`` that a formula may name; their values are not known yet."""


def require_names(config: Config, scans: Sequence[Scan], clinical: Clinical | None, groups: Collection[str]) -> None:
    """Refuse settings that name a column, site, region or map that the run will not have, or an unusable formula."""
    settings, frame = config.statistics, _frame(scans, clinical)
    columns = {*map(str, frame.columns), *MEASURES, *TIMES}
    _require_formulas(config, frame)
    for name in settings.associations.biomarkers:
        _require_biomarker("statistics.associations.biomarkers", name, frame, columns, groups)
    primary, maps = settings.primary, set(map_names(config.attribution))
    if primary.biomarker != PrimaryConfig.biomarker:  # the default takes what is there
        _require_biomarker("statistics.primary.biomarker", primary.biomarker, frame, columns, groups)
    # An atlas without the region of the default gives a row with the reason.
    region = () if primary.region == PrimaryConfig.region else (primary.region,)
    for setting, names, choice in (
        ("subgroups.variables", settings.subgroups.variables, columns | {COURSE}),
        ("main_effects.variables", settings.main_effects.variables, columns),
        ("harmonisation.site_column", (settings.harmonisation.site_column,), columns),
        ("progression.trajectory_maps", settings.progression.trajectory_maps, maps),
        ("primary.region", region, groups),
        ("primary.map", (primary.map,) if primary.map else (), maps),
    ):
        for name in names:
            if name not in choice:
                raise _unknown(f"statistics.{setting}", name, choice)
    reference, column = settings.harmonisation.reference_site, settings.harmonisation.site_column
    sites = {code_text(site) for site in frame[column].dropna()} if column in frame else set()
    if reference and reference not in sites:
        raise _unknown("statistics.harmonisation.reference_site", reference, sites)


def _frame(scans: Sequence[Scan], clinical: Clinical | None) -> pd.DataFrame:
    """One row per scan with the columns that analyses will see; predictions are placeholders."""
    frame = pd.DataFrame({"scan_id": [scan.scan_id for scan in scans]})
    turns = np.arange(len(frame)) % 2
    frame = frame.assign(**{name: 0.25 + 0.5 * turns for name in _NUMBERS})
    frame = frame.assign(**{name: turns.astype(str).astype(object) for name in _WORDS})
    more = pd.DataFrame({"scan_id": []}) if clinical is None else clinical.frame
    others = [name for name in IDENTITY if name != "scan_id"]
    return with_facts(frame, scans, more.drop(columns=others, errors="ignore").set_index("scan_id"))


def _require_formulas(config: Config, frame: pd.DataFrame) -> None:
    settings, columns = config.statistics, list(map(str, frame.columns))
    blind = {
        f"statistics.{section}.{name}": getattr(getattr(settings, section), name)
        for section in ("harmonisation", "normative")
        for name in ("relevance_covariates", "volume_covariates")
    }
    others = {
        "statistics.covariates": settings.covariates,
        "statistics.harmonisation.training_covariates": settings.harmonisation.training_covariates,
        "statistics.progression.further_covariates": settings.progression.further_covariates,
    }
    for setting, formula in {**others, **blind}.items():
        try:
            CovariateColumns.of(formula, frame)
            if setting in blind:
                refuse_class(formula, config.cohort.contrast_column, columns, setting)
        except BadInputError as error:
            message = str(error)
            raise BadInputError(message if message.startswith(setting) else f"{setting}: {message}") from error


def _require_biomarker(
    setting: str, name: str, frame: pd.DataFrame, columns: Collection[str], groups: Collection[str]
) -> None:
    for part in filter(None, parts_of(name, frame)):
        if part.startswith(VOLUME_OF):
            if part.removeprefix(VOLUME_OF) not in groups:
                raise _unknown(setting, name, [VOLUME_OF + group for group in groups])
        elif part != OWN_VOLUME and SHORT_NAMES.get(part, part) not in columns:
            raise _unknown(setting, name, [*columns, *SHORT_NAMES, OWN_VOLUME], part)
        elif SHORT_NAMES.get(part, part) in frame:
            try:
                column_of(part, frame)
            except BadInputError as error:
                raise BadInputError(f"{setting}: {error}") from error


def _unknown(setting: str, name: str, names: Collection[str], part: str = "") -> BadInputError:
    part = part or name
    listed = ", ".join(sorted(names)) or "none"
    of = "" if part == name else f" ({part})"
    return BadInputError(f"{setting}: {name!r}{of} is not known.{did_you_mean(nearest(part, names))} Known: {listed}.")
