"""What the report says of where an answer stands among those to controls of the same age and sex."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.statistics.normative.shared_norms import MEANS_ALONE
from heatlas.reports.questions.predictions import APPLIED, beside_controls

AD, AGE, SCORE = CohortConfig(), CohortConfig(target="age"), CohortConfig(target="mmse")


def run_of(cohort: CohortConfig, age: float | None, sex: str | None, **answer: Any) -> Any:
    """One scan with this answer, and what controls got."""
    task = task_of(cohort)
    row = {"scan_id": "scan", "answer": 74.2, "mean": 70.5, "sd": 6.5, "n_controls": 40, "covariates": "age, sex"}
    row |= {"note": None} | answer
    row["w"] = (row["answer"] - row["mean"]) / row["sd"] if row["sd"] else None
    tables = {
        "w_answers": pd.DataFrame([row]),
        "scans": pd.DataFrame([{"scan_id": "scan", "age": age, "sex": sex}]),
    }
    of_number = {"participant_id": "sub-1", "prediction": row["answer"], "prediction_sd": 2.0, "n_networks": 5}
    return SimpleNamespace(
        tables=tables, has=lambda name: name in tables, task=task, negative="CN", positive="AD",
        applied=pd.DataFrame([of_number]),
    )  # fmt: skip


def test_a_predicted_age_stands_beside_what_is_expected_at_that_age() -> None:
    run = run_of(AGE, 72.0, "M")
    said = (
        "For men of 72 years these networks predict 70.5 ± 6.5, in people whom they had not seen; this prediction is "
        "3.7 years above that (0.6 SD)."
    )
    assert beside_controls(run) == said
    text = APPLIED.headline.answer(run).text
    assert text == f"The predicted age is 74.2, with a standard deviation over the networks of 2.0. {said}"
    assert "women of 89 years or more" in beside_controls(run_of(AGE, 89.0, "F"))


def test_a_probability_stands_beside_those_of_controls_one_standard_deviation_of_the_logit_to_either_side() -> None:
    run = run_of(AD, 72.0, "F", answer=-4.5, mean=-2.0, sd=1.25)
    assert beside_controls(run) == (  # expit of -2, -3.25 and -0.75
        "Controls (CN) of this age and sex got 0.12 (0.037 to 0.32 at one standard deviation of the logit), by the "
        "network that had not seen them; this scan lies 2.0 SD below."
    )


def test_without_age_and_sex_all_controls_are_named_and_how_to_give_them() -> None:
    note = "norm without age and sex (age is n/a; sex is n/a)"
    run = run_of(SCORE, None, None, covariates=None, note=note)
    assert beside_controls(run) == (
        "All 40 people whom the networks learned from got 70.5 ± 6.5, by the network that had not seen them; this scan "
        "lies 0.6 SD above. Give --age YEARS and --sex F or M to compare it with controls of this age and sex."
    )
    assert APPLIED.headline.answer(run).text.endswith("cannot be said: there is no label.")
    run = run_of(SCORE, 72.0, None, covariates=None, note=note)
    assert " Give --sex F or M to compare it with controls of this age and sex." in beside_controls(run)
    few = beside_controls(run_of(AD, 72.0, "F", covariates=None, note=MEANS_ALONE, n_controls=8))
    assert few.startswith("All 8 controls (CN) got ")
    assert few.endswith("No norm of one age and sex is known of them.")


@pytest.mark.parametrize("cohort", [AD, AGE])
def test_outside_the_ages_of_controls_the_report_says_so_and_gives_no_norm(cohort: CohortConfig) -> None:
    note = "age 20 is outside those of the controls, 60 to 88"
    run = run_of(cohort, 20.0, "F", mean=None, sd=None, note=note)
    assert beside_controls(run) == f"It has no norm: {note}."


def test_of_several_scans_and_of_earlier_exports_nothing_is_said() -> None:
    run = run_of(AGE, 72.0, "M")
    run.tables["w_answers"] = pd.concat([run.tables["w_answers"]] * 2)
    assert beside_controls(run) == ""
    del run.tables["w_answers"]
    assert beside_controls(run) == ""
