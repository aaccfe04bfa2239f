"""``shift_curve.tsv``: whether maps move with a scan, by how far it is moved (``[evaluation] shifts``).

A map of a network that does not depend on where the scan lies has 1 at every shift; that of a transformer falls between
multiples of its patch. Registration is not exact. The curve says how much a map changes if it errs by some voxels.
No map is compared with that of a scan of which more than `LOST` of the brain leaves the volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from heatlas.pipeline.evaluation.bench.judging import CohortMaps
from heatlas.pipeline.evaluation.bench.scan_job import SHIFTED
from heatlas.pipeline.evaluation.cohorts import JudgedCohort
from heatlas.pipeline.evaluation.nulls import REAL
from heatlas.pipeline.evaluation.scores.faithfulness import LOST
from heatlas.pipeline.evaluation.scores.intervals import DRAWS, participant_interval
from heatlas.pipeline.run.columns import Form, described
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.work.jobs import Outcome

if TYPE_CHECKING:
    from heatlas.pipeline.evaluation.bench.stage import Bench

SHIFT_CURVE_TABLE = Table(
    "shift_curve",
    {
        **described("cohort"),
        "map": "Map, named as in file names",
        **described("method"),
        "shift": "Voxels by which the scan is moved along each axis, forward and back",
        **{
            name: meaning
            for measure, text in SHIFTED.items()
            for name, meaning in (
                (measure, f"{text}. Mean of both directions and over participants; see note"),
                (f"{measure}_low", f"Lower bound of the 95 % bootstrap interval of {measure} over participants"),
                (f"{measure}_high", "Upper bound"),
            )
        },
        "n_participants": "Participants whose maps were all finite and not even, and whose brain stays in the volume",
        "lost": "Share of the voxels of the brain that leave the volume when the scan is moved, forward or back, "
        "whichever is more. Mean over participants",
        "note": f"How many participants have no value because more than {100 * LOST:g} % of their brain leaves the "
        "volume; n/a if none",
    },
    "map and shift", "Do maps move with a scan that is moved?", stage="evaluation",
    filled=("cohort", "map", "shift", "n_participants"),
    forms={"map": Form.CODE},  # methods may be named on the command line, which the settings of the run do not know
)  # fmt: skip


def shift_curve(cohort: JudgedCohort, rows: CohortMaps) -> pd.DataFrame:
    """A row per map of the true network and shift; scans of a participant are averaged."""
    person = {scan.scan_id: scan.participant_id for scan in cohort.scans}
    made: list[list[object]] = []
    for name, own in rows.scores[rows.scores["network"] == REAL].groupby("map", sort=False):
        for shift in sorted(cohort.config.evaluation.shifts):
            columns, gone = [f"{measure}_{shift}" for measure in SHIFTED], f"lost_{shift}"
            if not {*columns, gone} <= {*own.columns}:
                continue
            asked, known = own.dropna(subset=[gone]), own.dropna(subset=columns)
            lost = asked.groupby(asked["scan_id"].map(person))[gone].agg(["mean", "min"])
            if not len(lost):
                continue
            means = known.groupby(known["scan_id"].map(person))[columns].mean()
            cells: list[object] = []
            for column in columns if len(means) else ():
                values = means[column].to_numpy(float)
                cells += [values.mean(), *participant_interval((values,), np.mean, DRAWS, cohort.config.seed)]
            cells = cells or [np.nan] * (3 * len(columns))
            cells += [len(means), lost["mean"].mean(), _note(int((lost["min"] > LOST).sum()), len(lost))]
            made.append([cohort.name, name, rows.methods.get(str(name)), shift, *cells])
    return SHIFT_CURVE_TABLE.frame(made)


def _note(out: int, of: int) -> str | None:
    """Why people have no value.

    Examples
    --------
    >>> _note(2, 12)
    '2 of 12 participants have no value: more than 0.1 % of the brain leaves the volume'
    """
    return (
        f"{out} of {of} participants have no value: more than {100 * LOST:g} % of the brain leaves the volume"
        if out
        else None
    )


def write_shift_curve(bench: Bench, cohort: JudgedCohort, rows: CohortMaps) -> list[Outcome]:
    """Write the table, or remove that of an earlier call where no shifts are asked for."""
    if cohort.config.evaluation.shifts:
        SHIFT_CURVE_TABLE.write(bench.layout, shift_curve(cohort, rows))
    else:
        SHIFT_CURVE_TABLE.remove(bench.layout)
    return []
