"""Facts of each scan as a table: scans of the contrast, then scans that the networks were only applied to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.statistics.data.values import RelevanceValues

NOT_FACTS = frozenset({"image", "entry", "kept", "reason", "location"})
"""Fields of a scan that do not describe the person or the visit."""
TEST_COLUMNS = ("fold", "target")
"""Columns that only out-of-fold predictions have; their names have other meanings in other tables."""
_NUMBERS = (
    "age", "field_strength", "apoe4", "mmse", "cdr", "tiv_mm3", "hippocampus_mm3", "hippocampus_left_mm3",
    "hippocampus_right_mm3",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class AllScans:
    """All scans with relevance: those of the contrast, followed by those outside it (MCI).

    `frame` holds facts of each scan, with `TEST_COLUMNS` NaN for scans outside the contrast; `labelled` (scans,) marks
    scans of the contrast; `values` has the maps and groups of the contrast's table, NaN where the other table lacks
    them.
    """

    frame: pd.DataFrame
    labelled: NDArray[np.bool_]
    values: RelevanceValues

    @classmethod
    def of(
        cls, frame: pd.DataFrame, values: RelevanceValues, more: tuple[pd.DataFrame, RelevanceValues] | None
    ) -> AllScans:
        """Stack the scans of the contrast and any others."""
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
