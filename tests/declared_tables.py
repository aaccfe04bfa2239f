"""What every table of a run must be like, wherever the run comes from."""

from __future__ import annotations

import json

import pandas as pd

from heatlas.pipeline.cohort.people.tasks import TWO_CLASSES, KindName, task_of
from heatlas.pipeline.cohort.sharing import MANIFEST_COMPARISON_TABLE
from heatlas.pipeline.evaluation.parts import BENCH_TABLES
from heatlas.pipeline.explaining.likeness import LIKENESS_TABLE
from heatlas.pipeline.explaining.own_regions import OWN_REGIONS_TABLE
from heatlas.pipeline.explaining.planted_in_scan import PLANTED_IN_SCAN_TABLE
from heatlas.pipeline.regions.maps import PARTIAL_TABLE
from heatlas.pipeline.regions.packed_atlas import RELEVANCE_CHANNELS_TABLE
from heatlas.pipeline.regions.tables import SPREADS
from heatlas.pipeline.registration.quality.doubt import FLAGGED_TABLE
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.declared import Form, Table
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.statistics.comparison.external import EXTERNAL_CALIBRATION_TABLE, EXTERNAL_TABLE
from heatlas.pipeline.statistics.normative.shared_norms import W_ANSWERS_TABLE
from heatlas.pipeline.statistics.performance.conventions import CONVENTIONS_TABLE
from heatlas.pipeline.statistics.stage import ANALYSES
from heatlas.pipeline.training.baselines.stage import baselines_table
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE, SPREAD, prediction_columns
from heatlas.pipeline.training.stage import PREDICTIONS_REPEATS_TABLE, REPEAT_COLUMN
from heatlas.reports.read.run_files import DECLARED, TABLES, bad_cell, tables_of
from heatlas.studies.pretraining.stage import PRETRAINING_TABLE

REPEATS = {"predictions_repeats", "performance_repeats"}


def tables_of_run(kind: KindName = TWO_CLASSES, repeats: bool = False) -> list[Table]:
    """All tables that a run with this kind of task writes."""
    elsewhere = (TABLES.keys() - tables_of(kind).keys()) | (set() if repeats else REPEATS)
    others = (  # if asked for
        *BENCH_TABLES, PRETRAINING_TABLE, FLAGGED_TABLE, PARTIAL_TABLE, MANIFEST_COMPARISON_TABLE, EXTERNAL_TABLE,
        CONVENTIONS_TABLE, EXTERNAL_CALIBRATION_TABLE, LIKENESS_TABLE, OWN_REGIONS_TABLE, PLANTED_IN_SCAN_TABLE,
        RELEVANCE_CHANNELS_TABLE, W_ANSWERS_TABLE,
    )  # fmt: skip
    elsewhere |= {table.name for table in others}
    elsewhere |= {table.name for one in ANALYSES if kind not in one.tasks for table in one.tables}
    return [table for table in DECLARED if table.name not in elsewhere]


def require_as_declared(layout: RunLayout, table: Table) -> None:
    """Columns, types, ranges and data dictionary are those of the declaration."""
    path = table.path(layout)
    dictionary = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    frame, config = read_table(path, text_columns=table.texts), read_config(layout.config)
    meanings = table.dictionary
    if table.name.startswith("predictions_") and table.file in (PREDICTIONS_TABLE.file, PREDICTIONS_REPEATS_TABLE.file):
        first = REPEAT_COLUMN if table.file == PREDICTIONS_REPEATS_TABLE.file else {}
        meanings = {**first, **prediction_columns(task_of(config.cohort))}
    if table.name == "predictions_baselines":
        meanings = baselines_table(task_of(config.cohort)).meanings
    if config.training.ensemble == 1:  # spreads over the members of ensembles
        meanings = {name: meaning for name, meaning in meanings.items() if name not in {SPREAD, *SPREADS}}
    if meanings:
        assert dictionary == {name: {"Description": meaning} for name, meaning in meanings.items()}
        assert list(frame.columns) == list(meanings)
    if table.name in TABLES:
        assert bad_cell(table.name, path.name, frame, config) == ""
    for name, column in ((name, column) for name, column in table.columns.items() if name in frame):
        known = frame[name].dropna()
        if column.form is Form.FLAG:
            assert set(known) <= {True, False}, name
        elif not column.is_text and len(known):
            assert pd.api.types.is_numeric_dtype(known), name
            assert column.form is not Form.SHARE or known.between(-1e-9, 1 + 1e-9).all(), name
