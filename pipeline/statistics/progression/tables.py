"""Tables of progression, as the statistics stage asks for them."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.progression.conversion import conversions
from pipeline.statistics.progression.cox import COX_COLUMNS, cox_table
from pipeline.statistics.progression.prediction import PROGRESSION_COLUMNS, progression_table
from pipeline.statistics.progression.trajectories import TRAJECTORY_COLUMNS, trajectory_table

Tables = Mapping[str, tuple[pd.DataFrame, Mapping[str, str]]]


def progression_tables(inputs: StatisticsInputs) -> Tables:
    """Conversion from MCI to AD: ``cox`` and ``progression``.

    Raises
    ------
    BadInputError
        If nobody with MCI was seen by the networks, or nothing is known of conversion.
    """
    cohort, settings = conversions(inputs.applied), inputs.config.statistics
    return {
        "cox": (cox_table(cohort, settings, inputs.seed), COX_COLUMNS),
        "progression": (
            progression_table(cohort, settings, inputs.seed, inputs.config.cohort.mci_horizon_months),
            PROGRESSION_COLUMNS,
        ),
    }


def trajectories_tables(inputs: StatisticsInputs) -> Tables:
    """Change over visits: ``trajectories``."""
    return {"trajectories": (trajectory_table(inputs), TRAJECTORY_COLUMNS)}
