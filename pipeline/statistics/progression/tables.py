"""Tables of progression, as the statistics stage asks for them."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.progression.conversion import conversions
from pipeline.statistics.progression.cox import cox_table
from pipeline.statistics.progression.prediction import progression_table


def progression_tables(inputs: StatisticsInputs) -> Mapping[str, pd.DataFrame]:
    """Conversion from MCI to AD: ``cox`` and ``progression``.

    Raises
    ------
    BadInputError
        If nobody with MCI was seen by the networks, or nothing is known of conversion.
    """
    cohort, settings = conversions(inputs.applied), inputs.config.statistics
    return {
        "cox": cox_table(cohort, settings, inputs.seed),
        "progression": progression_table(cohort, settings, inputs.seed, inputs.config.cohort.mci_horizon_months),
    }
