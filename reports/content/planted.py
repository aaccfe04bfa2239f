"""On a cohort with planted atrophy: whether it is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.material import Material
from reports.run_record import RunRecord
from reports.tables import table_as_written


def recovery_sentence(run: RunRecord) -> str:
    return ""


def build(material: Material) -> Mapping[str, Any]:
    """The recovery table as the evaluation wrote it."""
    run = material.run
    frame = run.tables["planted_recovery"]
    table = table_as_written(frame, run.descriptions("planted_recovery"), "Recovery of planted regions.", 200)
    return {"lead": recovery_sentence(run), "table": table}
