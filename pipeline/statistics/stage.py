"""The statistics stage: tables of inference from tables of relevance.

Everything is computed from the scan table, the predictions and ``relevance_bilateral.tsv``; no image is read. Each
analysis is one function from records to a table; this module only hands them on and writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from pipeline.cohort.records import Scan
from pipeline.run.config import Config
from pipeline.run.errors import BadInputError
from pipeline.run.layout import RunLayout
from pipeline.run.tables import read_table, write_table
from pipeline.statistics.demographics import DEMOGRAPHICS_COLUMNS, demographics
from pipeline.statistics.performance import PERFORMANCE_COLUMNS, ROC_COLUMNS, performance_table, roc_table
from pipeline.statistics.region_effects import EFFECT_COLUMNS, region_effects
from pipeline.statistics.region_summary import SUMMARY_COLUMNS, region_summary
from pipeline.statistics.values import RelevanceValues
from pipeline.statistics.volume_association import (
    ASSOCIATION_COLUMNS,
    POINT_COLUMNS,
    REGION,
    volume_association,
    volume_points,
)

PREDICTION_COLUMNS = ("participant_id", "session_id", "scan_id", "fold", "target", "probability", "outcome")
RELEVANCE_COLUMNS = ("scan_id", "map", "group", "sum", "density", "gain")


def analyse(layout: RunLayout, scans: Sequence[Scan], predictions: pd.DataFrame, config: Config) -> list[Path]:
    """Write all statistics tables of a run, each with its data dictionary.

    Parameters
    ----------
    layout : RunLayout
    scans : sequence of Scan
        Those with a prediction and heatmaps.
    predictions : pandas.DataFrame
        ``predictions.tsv``; performance is over all of it.
    config : Config

    Returns
    -------
    list of Path
        The tables written.

    Raises
    ------
    BadInputError
        If a table lacks a column or a scan of the relevance table has no prediction. Data that do not allow an
        analysis (one class, too few participants, no volumes) are no error: its rows say why.
    """
    missing = [name for name in PREDICTION_COLUMNS if name not in predictions.columns]
    if missing:
        raise BadInputError(f"{layout.predictions}: column {', '.join(missing)} is missing. Run training again.")
    relevance = read_table(layout.relevance_bilateral, RELEVANCE_COLUMNS, ("map", "group"))
    values = RelevanceValues.of(relevance, predictions)
    written = []
    for name, (table, columns) in _tables(values, scans, predictions, config).items():
        write_table(layout.statistics(name), table, columns)
        written.append(layout.statistics(name))
    return written


def _tables(
    values: RelevanceValues, scans: Sequence[Scan], predictions: pd.DataFrame, config: Config
) -> Mapping[str, tuple[pd.DataFrame, Mapping[str, str]]]:
    cohort, settings, seed = config.cohort, config.statistics, config.seed
    points = volume_points(values, scans)
    association = volume_association(points, values.maps, REGION in values.groups, settings, seed)
    return {
        "demographics": (demographics(scans, cohort), DEMOGRAPHICS_COLUMNS),
        "performance": (performance_table(predictions, settings, seed), PERFORMANCE_COLUMNS),
        "roc": (roc_table(predictions), ROC_COLUMNS),
        "region_summary": (region_summary(values, cohort, settings, seed), SUMMARY_COLUMNS),
        "region_effects": (region_effects(values, cohort, settings, seed), EFFECT_COLUMNS),
        "volume_points": (points, POINT_COLUMNS),
        "volume_association": (association, ASSOCIATION_COLUMNS),
    }
