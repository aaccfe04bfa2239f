"""Tables of the shortcut audit, as the statistics stage asks for them."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.shortcuts.compartments import SHORTCUT_COLUMNS, shortcut_table
from pipeline.statistics.shortcuts.site_prediction import SITE_COLUMNS, site_prediction_table

Tables = Mapping[str, tuple[pd.DataFrame, Mapping[str, str]]]


def shortcuts_tables(inputs: StatisticsInputs) -> Tables:
    """Where relevance gathers: ``shortcuts``.

    Raises
    ------
    BadInputError
        If the run has no ``group/relevance_audit.tsv``.
    """
    return {"shortcuts": (shortcut_table(inputs), SHORTCUT_COLUMNS)}


def site_prediction_tables(inputs: StatisticsInputs) -> Tables:
    """Site and field strength from relevance: ``site_prediction``."""
    return {"site_prediction": (site_prediction_table(inputs), SITE_COLUMNS)}
