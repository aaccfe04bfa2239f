"""How well the scans lie on the template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from reports.figures.registration import draw_registration
from reports.material import Material
from reports.numbers import count, fixed, percent
from reports.run_record import RunRecord
from reports.tables import Column, numeric, page_table

_COLUMNS = (
    Column("participant_id", "Participant"),
    Column("session_id", "Session"),
    Column("status", "Status"),
    Column("look", "Look at it"),
    numeric("correlation", "Correlation", lambda x: fixed(x, 3), "with the template brain, inside its mask"),
    numeric("dice", "Dice", lambda x: fixed(x, 3), "overlap of brain masks"),
    numeric("min_jacobian", "Smallest Jacobian", lambda x: fixed(x, 3), "of the warp inside the mask; ≤ 0 is folding"),
    numeric("nonpositive_jacobian_share", "Folded share", lambda x: percent(x, 2)),
    numeric("rotation_degrees", "Rotation, °", lambda x: fixed(x, 1)),
    numeric("scale", "Scale", lambda x: fixed(x, 3)),
    Column("brain_extraction", "Brain extraction"),
)
_SUMMARY = ("correlation", "dice", "min_jacobian")
_MADS = 3.5
_SMALLEST_SPREAD = 0.005


def outlying_scans(quality: pd.DataFrame) -> pd.Series:
    """Scans to be looked at: folded warps, and those far below the others.

    Far below is more than 3.5 robust standard deviations (1.4826 x median absolute deviation, at least 0.005) under
    the median of correlation or Dice.
    """
    flagged = pd.Series(False, index=quality.index)
    for name in ("correlation", "dice"):
        values = quality[name].astype(float)
        spread = max(1.4826 * float((values - values.median()).abs().median()), _SMALLEST_SPREAD)
        flagged |= values < values.median() - _MADS * spread
    return flagged | (quality["nonpositive_jacobian_share"] > 0)


def registered(run: RunRecord) -> pd.DataFrame:
    """Rows of registration that succeeded."""
    quality = run.tables["registration"]
    return quality[quality["status"] == "registered"]


def build(material: Material) -> Mapping[str, Any]:
    """Medians, a small plot and the table, worst scans first."""
    quality = material.run.tables["registration"].copy()
    good = registered(material.run)
    outlying = outlying_scans(good)
    quality["look"] = quality.index.isin(good.index[outlying]) | (quality["status"] != "registered")
    ordered = quality.sort_values(["look", "correlation"], ascending=[False, True])
    picture = None
    if len(good):
        picture = material.gallery.add(
            draw_registration(good, outlying),
            "registration_quality",
            f"Overlap and correlation with the template of {count(len(good), 'registered scan')}.",
            f"Each point is one of {count(len(good), 'registered scan')}. Scans in the lower left corner are worth "
            "opening in a viewer before their relevance is believed.",
        )
    return {
        "n": len(good),
        "failed": int((quality["status"] != "registered").sum()),
        "outlying": int(outlying.sum()),
        "medians": {name: fixed(good[name].median(), 3) for name in _SUMMARY} if len(good) else {},
        "figure": picture,
        "table": page_table(ordered, _COLUMNS, "Registration, scans to be looked at first.", 500),
    }
