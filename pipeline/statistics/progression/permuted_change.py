"""Change over visits tested by permutation, beside the mixed model, which needs normal errors and a fit that converges.

- *Does a group change?* Visits change places within participants (`Exchangeability.within_participants`): against no
  change in anybody. Where people change by chance in either direction, it rejects more often than the mixed model.
- *Do groups change differently?* Participants change groups, each with all their visits: the least-squares slope of
  each is one value, with one variance per group (Welch's t or F), as patients differ more in change than controls. A
  short series counts as much as a long one: weights by the length of a series would tie variance to leverage where
  people differ in change, and p would come out too small (8 to 9 % false positives at 5 % in a simulation).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.run.errors import BadInputError
from pipeline.statistics.linear.design import Design
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.freedman_lane import freedman_lane
from pipeline.statistics.values import participant_means

Floats = NDArray[np.float64]

SAME_TIME = 1e-9
"""Sum of squared years about their mean below which someone's visits are at one time."""


def p_of_change(
    values: Floats, years: Floats, participant: NDArray[np.intp], group: NDArray[np.intp], m: int,
    rng: np.random.Generator,
) -> Floats:  # fmt: skip
    """Two-sided p of change over years in one group, or of a difference in change between several.

    Parameters
    ----------
    values : array, shape (scans, columns)
    years : array, shape (scans,)
    participant, group : array of int, shape (scans,)
        The group is the same for all scans of a participant.
    m : int
        Permutations.
    rng : numpy.random.Generator

    Returns
    -------
    array, shape (columns,)
        NaN where there is no test.
    """
    try:
        if np.ptp(group) == 0:
            design = _design(years[:, None], np.ones((len(years), 1)))
            return freedman_lane(values, design, Exchangeability.within_participants(participant.tolist()), m, rng).p
        slopes, of_group = own_slopes(values, years, participant, group)
        design = _design(of_group[:, None] == np.unique(group)[1:], np.ones((len(slopes), 1)))
        exchange = Exchangeability.free(len(slopes))
        return freedman_lane(slopes, design, exchange, m, rng, variance_groups=of_group.tolist()).p
    except BadInputError:  # nobody has several visits, or a group too few people for a variance
        return np.full(values.shape[1], np.nan)


def own_slopes(
    values: Floats, years: Floats, participant: NDArray[np.intp], group: NDArray[np.intp]
) -> tuple[Floats, NDArray[np.intp]]:
    """Least-squares slopes (participants, columns) and groups of the participants whose time varies."""
    codes, first = np.unique(participant, return_inverse=True)[1], np.unique(participant, return_index=True)[1]
    own = participant_means(np.column_stack([years, values]), codes)[codes]
    time = years - own[:, 0]
    products, squares = np.zeros((len(first), values.shape[1])), np.bincount(codes, weights=time**2)
    np.add.at(products, codes, time[:, None] * (values - own[:, 1:]))
    varies = squares > SAME_TIME
    return products[varies] / squares[varies, None], group[first][varies]


def _design(tested: Floats, nuisance: Floats) -> Design:
    names = (*(f"change {i}" for i in range(tested.shape[1])), "level")
    return Design(tested.astype(float), nuisance, np.arange(len(tested), dtype=np.intp), {}, names, {})
