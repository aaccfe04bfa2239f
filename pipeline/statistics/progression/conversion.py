"""Who converted from MCI to AD, and when: one row per participant, from their first scan with MCI.

The networks told AD from CN and never saw these participants, so what they say here is out of sample. Time runs from
the scan to the visit with the first diagnosis of AD (an event), or to the last visit (censored); where AD was
diagnosed and withdrawn there is neither, and they are left out and counted (`pipeline.cohort.people.progression`,
which also
says who is pMCI: the same conversions, by the horizon). The conversion lies somewhere before that visit; with visits
every 6 to 12 months this is the usual approximation.

A dementia of another cause ends follow-up: a competing event, censored there. So hazards are those of AD among people
without any dementia yet (cause-specific), and no risk by a certain time. Nothing is known of deaths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.inputs import AppliedScans
from pipeline.statistics.data.visits import (
    CONVERTED,
    FOLLOWED,
    OTHER_DEMENTIA,
    TO_CONVERSION,
    first_visits,
    log_odds,
    networks_of,
)

MODEL = "model"
COMPARATORS = ("hippocampus/tiv", "mmse", "age")
"""What the network is compared with; each as it is, not fitted to anything."""
AT_ANY_TIME = "AD at any visit after the scan"
"""What counts as an event where time does: also one after the horizon of pMCI and sMCI."""
SOONER_WHEN_LOWER = frozenset({"hippocampus/tiv", "mmse"})


@dataclass(frozen=True, eq=False)
class Conversions:
    """First MCI scans and what followed.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per participant: facts of the scan, ``time`` (months), ``event``, ``competing`` (censored by a dementia
        of another cause; NaN where the clinical table does not tell).
    relevance : array, shape (participants, maps, groups)
        Sums.
    maps, groups : tuple of str
    left_out : mapping of str to int
        Participants without a time, by reason.
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
        """Value of the model's logit or of a comparator; NaN where unknown."""
        if predictor == MODEL:
            return log_odds(self.frame)
        if predictor == "hippocampus/tiv":
            return (self.frame["hippocampus_mm3"] / self.frame["tiv_mm3"]).to_numpy(float)
        return self.frame[predictor].to_numpy(float)

    @property
    def network(self) -> NDArray[np.intp]:
        """Number of the set of networks that answered for each participant."""
        return pd.factorize(networks_of(self.frame))[0].astype(np.intp)

    @property
    def note(self) -> str | None:
        """Who is left out and why; None if nobody is."""
        return "; ".join(f"{count} left out: {why}" for why, count in self.left_out.items() if count) or None


def conversions(applied: AppliedScans | None) -> Conversions:
    """Take the first MCI scan of each participant and count the months from it.

    Raises
    ------
    BadInputError
        If the networks were not asked about any scan with MCI, or the clinical table has no times.
    """
    if applied is None:
        raise BadInputError(
            "predictions_applied.tsv: there is none, so the networks were not asked about anyone with MCI. Add scans "
            "with the diagnosis MCI to the input, and leave cohort.apply_outside_contrast on."
        )
    frame = applied.frame.assign(_row=np.arange(len(applied.frame)))
    mci = frame[frame["diagnosis"] == "MCI"]
    if mci.empty:
        raise BadInputError("scans.tsv: column diagnosis: no scan that the networks were applied to has MCI.")
    missing = [name for name in (CONVERTED, FOLLOWED) if name not in frame.columns]
    if missing:
        raise BadInputError(
            f"clinical.tsv: column {', '.join(missing)} is missing, so nothing is known of conversion. The input's "
            "visits table (ADNIMERGE, DXSUM) gives it; a BIDS dataset may have it in sessions.tsv."
        )
    first = first_visits(mci)
    later = [TO_CONVERSION, OTHER_DEMENTIA]  # not there if nobody converted, or in tables that do not tell
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


def counted(flags: Floats) -> int | None:
    """How many are true; None where it is known of nobody."""
    return None if np.isnan(flags).all() else int(np.nansum(flags))
