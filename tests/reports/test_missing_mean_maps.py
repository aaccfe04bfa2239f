"""A mean map that is gone is named; no other takes its place."""

from __future__ import annotations

import pandas as pd
import pytest

from pipeline.run.config import Config
from pipeline.run.errors import BadInputError
from pipeline.run.folder import RunInput
from pipeline.run.layout import RunLayout
from pipeline.run.tables import write_json
from reports.figures.gallery import Gallery
from reports.material import Material
from reports.run_record import RunRecord


@pytest.mark.parametrize("group", ["AD", "CN", "TP", "TN"])
def test_a_mean_map_that_was_made_and_is_gone_is_named(tmp_path, group):
    layout = RunLayout(tmp_path)
    predictions = pd.DataFrame(
        {"scan_id": ["a", "b"], "participant_id": ["a", "b"], "label": ["AD", "CN"], "outcome": ["TP", "TN"]}
    )
    source = RunInput(tmp_path, "default")
    run = RunRecord(layout, Config(), source, {"predictions": predictions}, {}, {}, {}, {})
    material = Material(run, Gallery(tmp_path, False))
    assert material.group_views == {}, "before the maps are made"
    gone = layout.group_map(group, "gb")
    receipt = {"key": "k", "outputs": {gone.relative_to(tmp_path).as_posix(): []}, "result": {}}
    write_json(layout.receipt("group-maps", "gb"), receipt)
    with pytest.raises(BadInputError, match=rf"group-{group}_.*desc-gb_relevance.nii.gz: this mean map is missing"):
        material.group_view(group, "gb")
    assert material.group_view("FP", "gb") is None, "a group without scans has none"
