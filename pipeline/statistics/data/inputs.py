"""Input of every analysis of the statistics stage: the tables of a run, read and checked once.

The facts of each scan are one table: scans of the contrast, then scans that the networks were only applied to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.cohort.people.splits import PARTS, SPLITS_TABLE, Fold, Split
from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.cohort.records import CLINICAL_TABLE, SCANS_TABLE, Scan, ScanTable
from heatlas.pipeline.regions.audit import RELEVANCE_AUDIT_TABLE
from heatlas.pipeline.regions.stage import RELEVANCE_APPLIED_BILATERAL_TABLE
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, with_outcomes
from heatlas.pipeline.registration.volumes import VOLUMES_TABLE
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.plain_text import listed
from heatlas.pipeline.run.tables import read_table, require_filled, require_known, require_numbers, require_whole
from heatlas.pipeline.statistics.arrays import Flags
from heatlas.pipeline.statistics.data.values import IMAGE_REGIONS_TABLE, OUTCOMES, RelevanceValues
from heatlas.pipeline.training.application import PREDICTIONS_APPLIED_TABLE, applied_tables
from heatlas.pipeline.training.baselines.stage import PREDICTIONS_BASELINES_TABLE
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.pipeline.training.stage import PREDICTIONS_REPEATS_TABLE

NOT_FACTS = frozenset({"image", "entry", "kept", "reason", "location"})
"""Fields of a scan that do not describe the person or the visit."""
TEST_COLUMNS = ("fold", "target")
"""Columns that only out-of-fold predictions have; their names have other meanings in other tables."""
_VOLUMES = ("tiv_mm3", "hippocampus_mm3", "hippocampus_left_mm3", "hippocampus_right_mm3")
_NUMBERS = ("age", "field_strength", "apoe4", "mmse", "cdr", *_VOLUMES)


@dataclass(frozen=True, eq=False)
class AllScans:
    """All scans with relevance: those of the contrast, followed by those outside it (MCI).

    `frame` holds facts of each scan, with `TEST_COLUMNS` NaN outside the contrast; `values` has the maps and groups of
    the contrast's table, NaN where the other table lacks them.
    """

    frame: pd.DataFrame
    labelled: Flags
    values: RelevanceValues

    @classmethod
    def of(
        cls, frame: pd.DataFrame, values: RelevanceValues, more: tuple[pd.DataFrame, RelevanceValues] | None
    ) -> AllScans:
        labelled = np.arange(len(frame) + (0 if more is None else len(more[0]))) < len(frame)
        if more is None:
            return cls(frame, labelled, values)
        applied = more[0].drop(columns=list(TEST_COLUMNS), errors="ignore")
        return cls(pd.concat([frame, applied], ignore_index=True), labelled, values.above(more[1]))


def with_facts(frame: pd.DataFrame, scans: Sequence[Scan], clinical: pd.DataFrame) -> pd.DataFrame:
    """Add columns of the scan table and of the clinical table (by ``scan_id``); on equal names the first table wins."""
    names = [name for name in Scan.__dataclass_fields__ if name not in NOT_FACTS]
    facts = pd.DataFrame([[getattr(scan, name) for name in names] for scan in scans], columns=names)
    facts = facts.set_index("scan_id").astype(dict.fromkeys(_NUMBERS, float))
    for more in (facts, clinical):
        new = more[[name for name in more.columns if name not in frame.columns]]
        frame = frame.join(new, on="scan_id")
    return frame


PREDICTION_COLUMNS = ("participant_id", "session_id", "scan_id", "fold", "target", "probability", "outcome")
NUMBER_COLUMNS = ("participant_id", "session_id", "scan_id", "fold", "target", "prediction", "gap", "corrected_gap")
APPLIED_COLUMNS = ("participant_id", "session_id", "scan_id")
BASELINE_COLUMNS = ("scan_id", "baseline", "prediction")
RELEVANCE_COLUMNS = ("scan_id", "map", "group", "sum", "density", "gain")
IMAGE_COLUMNS = ("scan_id", "group", "intensity", "log_jacobian")
VOLUME_COLUMNS = ("scan_id", "name", "hemisphere", "group", "volume_mm3")


@dataclass(frozen=True, eq=False)
class AppliedScans:
    """Kept scans outside the contrast (MCI), predicted by networks that were not trained on their participants.

    `predictions` is ``predictions_applied.tsv``; `values` are in the order of ``relevance_applied_bilateral.tsv``.
    """

    scans: tuple[Scan, ...]
    predictions: pd.DataFrame
    values: RelevanceValues
    clinical: pd.DataFrame

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Like `StatisticsInputs.frame`, for the rows of `values`."""
        return with_facts(self.values.scans, self.scans, self.clinical)

    def volumes(self, layout: RunLayout) -> pd.DataFrame:
        """``group/volumes.tsv`` of a run; empty if it registered no scan."""
        return _read_checked(VOLUMES_TABLE, layout, VOLUME_COLUMNS)


@dataclass(frozen=True, eq=False)
class StatisticsInputs:
    """Everything known about the scans of a run; a table that the run lacks is empty.

    `scans` are those with a prediction and heatmaps; `predictions` every out-of-fold prediction, also of a scan whose
    heatmaps failed; `values` are in the order of ``relevance_bilateral.tsv``; `clinical` is indexed by scan_id.
    ``participant_id`` has one name per person (`one_name_per_person`), since the participant is the unit of inference;
    `names_in_input` gives, by scan_id, the name in the input where it differs. `contradictions`: contradictory facts
    found in the tables, and how they were handled.
    """

    layout: RunLayout
    scans: tuple[Scan, ...]
    predictions: pd.DataFrame
    values: RelevanceValues
    clinical: pd.DataFrame
    volumes: pd.DataFrame
    split: Split
    applied: AppliedScans | None
    config: Config
    baselines: pd.DataFrame = field(default_factory=pd.DataFrame)
    image_regions: pd.DataFrame = field(default_factory=pd.DataFrame)
    contradictions: tuple[str, ...] = ()
    names_in_input: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.config.seed

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per scan of `values`, in its order: prediction, facts of the scan and clinical columns."""
        return with_facts(self.values.scans, self.scans, self.clinical)

    @cached_property
    def all_scans(self) -> AllScans:
        more = None if self.applied is None else (self.applied.frame, self.applied.values)
        return AllScans.of(self.frame, self.values, more)

    def as_named(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table with one row per scan (and map, group ...), with participants named as in the input."""
        names = table["scan_id"].map(dict(self.names_in_input))
        return table.assign(participant_id=names.where(names.notna(), table["participant_id"]))


def one_name_per_person(inputs: StatisticsInputs) -> StatisticsInputs:
    """The inputs with one participant_id per person (`pipeline.cohort.people.persons`)."""
    applied = inputs.applied
    predicted = [inputs.predictions] if applied is None else [inputs.predictions, applied.predictions]
    scans = pd.concat([table[["scan_id", "participant_id"]] for table in predicted], ignore_index=True)
    tested = [name for fold in inputs.split.folds for part in PARTS for name in getattr(fold, part)]
    first = name_of_person([*scans["participant_id"], *tested])
    others = [name for name, person in first.items() if name != person]
    if not others:
        return inputs
    if applied is not None:
        applied = dataclasses.replace(
            applied,
            scans=tuple(_renamed_scan(scan, first) for scan in applied.scans),
            predictions=renamed(applied.predictions, first),
            values=dataclasses.replace(applied.values, scans=renamed(applied.values.scans, first)),
        )
    folds = [
        Fold(fold.index, *(tuple(sorted({first.get(name, name) for name in getattr(fold, part)})) for part in PARTS))
        for fold in inputs.split.folds
    ]
    note = (
        f"{listed((f'{name} is {first[name]}' for name in others), 3)}: names with the same RID are analysed as one "
        "participant. Tables with a row per scan keep the names of the input."
    )
    other = scans[scans["participant_id"].isin(others)]
    return dataclasses.replace(
        inputs,
        scans=tuple(_renamed_scan(scan, first) for scan in inputs.scans),
        predictions=renamed(inputs.predictions, first),
        values=dataclasses.replace(inputs.values, scans=renamed(inputs.values.scans, first)),
        split=Split(tuple(folds)),
        applied=applied,
        contradictions=(*inputs.contradictions, note),
        names_in_input=dict(zip(other["scan_id"], other["participant_id"], strict=True)),
    )


def _renamed_scan(scan: Scan, names: Mapping[str, str]) -> Scan:
    return dataclasses.replace(scan, participant_id=names.get(scan.participant_id, scan.participant_id))


def renamed(table: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """The table with one name for each person who has two (`pipeline.cohort.people.persons`)."""
    return table.assign(participant_id=[names.get(name, name) for name in table["participant_id"]])


def without_contradictions(scans: Sequence[Scan]) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    """Scans without contradictory facts, and a note for each change: who is recorded with both sexes gets none."""
    sexes: dict[str, set[str]] = {}
    person = name_of_person(scan.participant_id for scan in scans)
    for scan in scans:
        if scan.sex is not None:
            sexes.setdefault(person[scan.participant_id], set()).add(scan.sex)
    doubtful = {name for name, recorded in sexes.items() if len(recorded) > 1}
    settled = tuple(dataclasses.replace(s, sex=None) if person[s.participant_id] in doubtful else s for s in scans)
    note = (
        "scans.tsv: {} is recorded with both sexes and analysed as of unknown sex. Correct the source, or drop a scan."
    )
    return settled, tuple(note.format(person) for person in sorted(doubtful))


def files_read(layout: RunLayout) -> list[Path]:
    """Files that the statistics depend on; not all of them exist in every run."""
    of_cohort = (SCANS_TABLE, CLINICAL_TABLE, SPLITS_TABLE, VOLUMES_TABLE)
    predictions = (PREDICTIONS_TABLE, PREDICTIONS_REPEATS_TABLE, PREDICTIONS_BASELINES_TABLE)
    of_regions = (RELEVANCE_BILATERAL_TABLE, RELEVANCE_AUDIT_TABLE, IMAGE_REGIONS_TABLE)
    applied = (PREDICTIONS_APPLIED_TABLE, RELEVANCE_APPLIED_BILATERAL_TABLE)
    return [table.path(layout) for table in (*of_cohort, *predictions, *of_regions, *applied)]


def read_inputs(
    layout: RunLayout, scans: Sequence[Scan], predictions: pd.DataFrame, config: Config
) -> StatisticsInputs:
    """Read the tables of a run; `scans` are those with a prediction and heatmaps.

    BadInputError if a table lacks a column or lists a scan twice, or a scan of the relevance table has no prediction.
    """
    predictions = predictions_of_task(PREDICTIONS_TABLE.path(layout), predictions, task_of(config.cohort))
    clinical = _clinical(layout)
    settled, contradictions = without_contradictions(scans)
    inputs = StatisticsInputs(
        layout=layout,
        scans=settled,
        predictions=predictions,
        values=RelevanceValues.of(read_relevance(RELEVANCE_BILATERAL_TABLE.path(layout)), predictions),
        clinical=clinical,
        volumes=_read_checked(VOLUMES_TABLE, layout, VOLUME_COLUMNS),
        split=Split.read(layout) if SPLITS_TABLE.path(layout).is_file() else Split(()),
        applied=read_applied(layout, task_of(config.cohort)),
        config=config,
        baselines=_read_checked(
            PREDICTIONS_BASELINES_TABLE, layout, BASELINE_COLUMNS, BASELINE_COLUMNS, ["prediction"]
        ),
        image_regions=_image_regions(layout),
        contradictions=contradictions,
    )
    return one_name_per_person(inputs)


def inputs_of_run(run: RunLayout) -> StatisticsInputs:
    """What the statistics of a finished run were made from; BadInputError if a table is missing or invalid."""
    predictions = PREDICTIONS_TABLE.read(run, ["scan_id"])
    predicted = set(predictions["scan_id"])
    scans = [scan for scan in ScanTable.read(run).labelled if scan.scan_id in predicted]
    return read_inputs(run, scans, predictions, read_run_config(run))


def predictions_of_task(path: Path, predictions: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Checked predictions with the columns that analyses read; raises like `require_predictions`."""
    if task.classes:
        predictions = with_outcomes(predictions)
        require_predictions(path, predictions, (0, 1) if len(task.outputs) == 2 else (0, 1, -1))
        return predictions
    _require_columns(path, predictions, NUMBER_COLUMNS)
    require_filled(path, predictions, ["participant_id", "scan_id", "fold", "target", "prediction"])
    require_numbers(path, predictions, ["target", "prediction", "gap", "corrected_gap"])
    return with_outcomes(predictions).assign(target=predictions["target"])


def require_predictions(path: Path, predictions: pd.DataFrame, targets: Sequence[int] = (0, 1)) -> None:
    """Refuse a table of predictions without its columns or with invalid values."""
    _require_columns(path, predictions, PREDICTION_COLUMNS)
    require_filled(path, predictions, ["participant_id", "scan_id", "fold", "target", "probability", "outcome"])
    require_numbers(path, predictions, ["fold", "target"], whole=True)
    require_numbers(path, predictions, ["probability"])
    require_known(path, predictions, "target", targets)
    require_known(path, predictions, "outcome", OUTCOMES)


def _require_columns(path: Path, predictions: pd.DataFrame, columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in predictions.columns]
    if missing:
        raise BadInputError(f"{path}: column {', '.join(missing)} is missing. Run training again.")


def read_relevance(path: Path) -> pd.DataFrame:
    """A table of relevance per bilateral group; BadInputError if it lacks a column or has an invalid value."""
    table = read_table(path, RELEVANCE_COLUMNS, ("map", "group"))
    require_whole(path)
    require_filled(path, table, ["scan_id", "map", "group"])
    require_numbers(path, table, ["sum", "density", "gain"])
    return table


def _clinical(layout: RunLayout) -> pd.DataFrame:
    path = CLINICAL_TABLE.path(layout)
    if not path.is_file():
        return pd.DataFrame(index=pd.Index([], name="scan_id", dtype=object))
    table = CLINICAL_TABLE.read(layout, ["scan_id"])
    repeated = table["scan_id"][table["scan_id"].duplicated()]
    if len(repeated):
        raise BadInputError(f"{path}: scan {repeated.iloc[0]} is listed twice. Remove one of the rows.")
    return table.set_index("scan_id")


def _read_checked(
    table: Table, layout: RunLayout, columns: Sequence[str], filled: Sequence[str] = (), numbers: Sequence[str] = ()
) -> pd.DataFrame:
    """A checked table, empty where the run has none."""
    path = table.path(layout)
    if not path.is_file():
        return pd.DataFrame(columns=list(columns))
    rows = table.read(layout, columns)
    require_filled(path, rows, filled)
    require_numbers(path, rows, numbers)
    return rows


def _image_regions(layout: RunLayout) -> pd.DataFrame:
    table = _read_checked(IMAGE_REGIONS_TABLE, layout, IMAGE_COLUMNS, ["scan_id", "group"], IMAGE_COLUMNS[2:])
    if table.duplicated(["scan_id", "group"]).any():
        path = IMAGE_REGIONS_TABLE.path(layout)
        raise BadInputError(f"{path}: a scan and group are listed twice. Repeat the command.")
    return table


def read_applied(layout: RunLayout, task: Task) -> AppliedScans | None:
    """The scans without a label that networks were applied to; None if there are none. Raises as `read_inputs`."""
    clinical, table = _clinical(layout), applied_tables(task)[1]
    path = RELEVANCE_APPLIED_BILATERAL_TABLE.path(layout)
    if not (table.path(layout).is_file() and path.is_file()):
        return None
    columns = [*APPLIED_COLUMNS, "prediction" if task.is_number else "probability"]
    predictions, relevance = table.read(layout, columns), read_relevance(path)
    if not len(relevance):
        return None
    values = RelevanceValues.of(relevance, predictions, "predictions_applied.tsv")
    scan_ids = set(values.scans["scan_id"])
    scans = tuple(scan for scan in ScanTable.read(layout).kept if scan.scan_id in scan_ids)
    return AppliedScans(scans, predictions, values, clinical)
