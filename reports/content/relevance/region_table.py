"""Every region and map: the explorer, or a table where the explorer cannot be made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heatlas.reports.analyses.catalogue import REGION_MEANS
from heatlas.reports.explorer.of_run import region_explorer
from heatlas.reports.frame.material import Material


def build(material: Material) -> Mapping[str, Any]:
    """The explorer; without an atlas at hand, or with more than two classes, the table of means."""
    explorer = region_explorer(material)
    if explorer is None:
        return {"components": [], **REGION_MEANS.build(material)}
    lead = (
        "Means over participants (each person's scans averaged first); gain is that of each scan against "
        f"{material.run.negative} of the same test fold. The table has all maps and groups of scans, and each side."
    )
    return {"lead": lead, "components": [explorer]}
