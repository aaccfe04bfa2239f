"""Conversion from MCI to AD: one row per participant, from their first scan with MCI.

The networks were trained to distinguish AD from CN without these participants, so their predictions are out of sample.
Time runs from the scan to the visit with the first diagnosis of AD (an event), or to the last visit (censored).
Participants with a withdrawn AD diagnosis have neither; they are left out and counted
(`pipeline.cohort.people.progression`, which also defines pMCI: the same conversions within the horizon). The conversion
lies somewhere before that visit; with visits every 6 to 12 months this is the usual approximation.

A dementia of another cause is a competing event and censors follow-up, so hazards are cause-specific for AD among
people without any dementia yet, and not a risk by a certain time. Deaths are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import AppliedScans
from heatlas.pipeline.statistics.data.members import (
    CONVERTED,
    FOLLOWED,
    OTHER_DEMENTIA,
    TO_CONVERSION,
    first_visits,
    log_odds,
    networks_of,
)
from heatlas.pipeline.statistics.data.notes import joined

MODEL = "model"
COMPARATORS = ("hippocampus/tiv", "mmse", "age")
"""Predictors that the network is compared with, used without fitting."""
AT_ANY_TIME = "AD at any visit after the scan"
"""Definition of an event in analyses over time, which includes conversions after the horizon of pMCI and sMCI."""
SOONER_WHEN_LOWER = frozenset({"hippocampus/tiv", "mmse"})


@dataclass(frozen=True, eq=False)
class Conversions:
    """First MCI scans and follow-up, one row per participant; relevance (participants, maps, groups) holds sums.

    `frame` has the facts of the scan, ``time`` (months), ``event``, and ``competing`` (censored by a dementia of
    another cause; NaN where unknown). `left_out` counts participants without a time, by reason.
    """

    frame: pd.DataFrame
    relevance: Floats
    maps: tuple[str, ...]
    groups: tuple[str, ...]
    left_out: Mapping[str, int]

    @property
    def time(self) -> Floats:
        return self.frame["time"].to_numpy(float)

    @property
    def event(self) -> NDArray[np.bool_]:
        return self.frame["event"].to_numpy(bool)

    @property
    def competing(self) -> Floats:
        return self.frame["competing"].to_numpy(float)

    def scalar(self, predictor: str) -> Floats:
        """Value of the model's log odds or of a comparator; NaN where unknown or infinite."""
        if predictor == MODEL:
            values = log_odds(self.frame)
        elif predictor == "hippocampus/tiv":
            values = (self.frame["hippocampus_mm3"] / self.frame["tiv_mm3"]).to_numpy(float)
        else:
            values = self.frame[predictor].to_numpy(float)
        return np.where(np.isfinite(values), values, np.nan)

    @property
    def network(self) -> NDArray[np.intp]:
        """Integer code of the set of networks applied to each participant."""
        return pd.factorize(networks_of(self.frame))[0].astype(np.intp)

    @property
    def note(self) -> str | None:
        """Participants left out, by reason; None if there are none."""
        return joined(*(f"{counted(n, 'participant')} left out: {why}" for why, n in self.left_out.items() if n))


def conversions(applied: AppliedScans | None) -> Conversions:
    """First MCI scan of each participant, with the months from it.

    BadInputError if the networks were not applied to a scan with MCI, or the clinical table has no times.
    """
    if applied is None:
        raise BadInputError(
            "predictions_applied.tsv: missing, so the networks were not applied to anyone with MCI. Add scans "
            "with the diagnosis MCI to the input, and leave cohort.apply_outside_contrast on."
        )
    frame = applied.frame.assign(_row=np.arange(len(applied.frame)))
    mci = frame[frame["diagnosis"] == "MCI"]
    if mci.empty:
        raise BadInputError("scans.tsv: column diagnosis: no scan that the networks were applied to has MCI.")
    missing = [name for name in (CONVERTED, FOLLOWED) if name not in frame.columns]
    if missing:
        raise BadInputError(
            f"clinical.tsv: column {', '.join(missing)} is missing, so conversion is unknown. It comes from the "
            "input's visits table (ADNIMERGE, DXSUM), or sessions.tsv in a BIDS dataset."
        )
    first = first_visits(mci)
    later = [TO_CONVERSION, OTHER_DEMENTIA]  # missing if no one converted, or from some inputs
    first = first.reindex(columns=first.columns.union(later, sort=False))
    event = first[CONVERTED].astype(float) == 1
    time = first[TO_CONVERSION].astype(float).where(event, first[FOLLOWED].astype(float))
    time = time.where(first[CONVERTED].notna())
    unknown, late = time.isna(), time <= 0
    usable = ~(unknown | late)
    competing = first[OTHER_DEMENTIA].astype(float)
    kept = first.assign(time=time, event=event, competing=competing)[usable]
    left_out = {
        "neither conversion nor follow-up known": int(unknown.sum()),
        "no time between scan and last visit, or converted at or before the scan": int(late.sum()),
    }
    rows = kept["_row"].to_numpy(int)
    values = applied.values
    return Conversions(kept.drop(columns="_row"), values.sums[rows], values.maps, values.groups, left_out)


def number_of(flags: Floats) -> int | None:
    """Number of true flags; None if all are unknown."""
    return None if np.isnan(flags).all() else int(np.nansum(flags))
