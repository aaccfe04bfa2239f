"""Someone under two names has one fingerprint, shown on the pages of both."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.reports.read.people import ParticipantRecords


def test_both_names_of_a_person_find_their_fingerprint() -> None:
    first, second, other = "sub-ADNI002S0295", "sub-ADNI131S0295", "sub-ADNI002S0296"
    scans = pd.DataFrame({"participant_id": [first, second, other], "scan_id": ["I1", "I2", "I3"], "kept": True})
    # The first name has no relevance here, so the statistics know the person by the second.
    prints = pd.DataFrame(
        {"source": "gb", "participant_id": [second, other], "group": "Hippocampus", "w": [2.0, 3.0]}
    ).assign(z=1.0)
    tables = {"scans": scans, "w_fingerprints": prints}
    run = SimpleNamespace(tables=tables, has=tables.__contains__, main_maps=["gb"], task=task_of(CohortConfig()))
    people = ParticipantRecords(run)  # type: ignore[arg-type]
    found = {name: people.scores("gb", name)["w"].get("Hippocampus") for name in (first, second, other)}
    assert found == {first: 2.0, second: 2.0, other: 3.0}
    assert people.scores("lrpB000", first).empty
