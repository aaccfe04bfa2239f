"""What an effect found in nearly every region is worth."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.layout.folder import RunInput
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.reports.questions.trust import PLANTED_EFFECTS
from heatlas.reports.read.run_record import RunRecord

FOLDER = Path("nowhere")


@pytest.mark.parametrize(("passing", "said"), [(9, True), (8, False)])
def test_found_nearly_everywhere_is_no_evidence_of_place(passing, said):
    answers = pd.DataFrame(
        dict(effect=["disease", "severity_mmse", "null_education"], result=["found"] * 2 + ["not"])
        | dict(verdict="as planted", analysis=["group_comparisons.tsv", "associations.tsv", "main_effects.tsv"])
    )
    p = [0.001] * passing + [0.5] * (10 - passing)
    between = pd.DataFrame({"map": "lrpB000", "metric": "density", "comparison": "AD/CN", "p_fwe": p})
    scores = dict(map="lrpB000", metric="density", biomarker="mmse", estimator="pearson")
    scores = pd.DataFrame(scores | dict(scan_group=["all"] * 3 + ["AD"] * 2, p_fwe=[0.01, 0.5, 0.5, 0.2, 0.3]))
    tables = {"planted_effects": answers, "group_comparisons": between, "associations": scores}
    config = load_config(overrides={})
    run = RunRecord(RunLayout(FOLDER), config, RunInput(FOLDER, "default"), tables, {}, {}, {}, {})
    found = PLANTED_EFFECTS.answered(run)
    assert (found is not None) == said
    if found is not None:
        assert found.answer == "3 of 3 answers are as planted, but 1 of them is no evidence of place."
        assert "nearly every region passes: disease in 9 of 10 regions. Within AD, 0 of 2 correlations" in found.grounds
