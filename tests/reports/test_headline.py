"""The headline follows the evidence: whether the networks learned, only then where, only then with what it agrees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_factory import PLANTED, WITH_EVIDENCE, make_run

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.statistics.performance.baselines import ALIKE, BETTER, WORSE
from heatlas.reports.content.run.summary import WHERE, summarise
from heatlas.reports.page import sections
from heatlas.reports.page.sections import find_cautions
from heatlas.reports.questions.predictions import (
    LEARNED,
    NO_MORE,
    UNCLEAR,
    judge_learning,
    learning_in_words,
    learning_of,
)
from heatlas.reports.questions.question import Answer
from heatlas.reports.read.run_record import RunRecord, read_run
from heatlas.reports.words.numbers import fixed

GOOD, AGREES, PRIMARY = "How good is the prediction?", "Does relevance follow atrophy?", "The primary outcome"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> RunRecord:
    return read_run(make_run(tmp_path_factory.mktemp("headline") / "run", WITH_EVIDENCE))


def performing(record: RunRecord, low: float, estimate: float = 0.76) -> RunRecord:
    """The run with this balanced accuracy, with this lower end of its interval."""
    rows = pd.DataFrame({"fold": ["all", "all", "all"], "metric": ["balanced_accuracy", "auc", "auc_within_folds"]})
    rows = rows.assign(estimate=[estimate, 0.75, 0.76], ci_low=low, ci_high=0.9, n_participants=14, n_scans=18)
    return replace(record, tables={**record.tables, "performance": rows})


def against_simple(record: RunRecord, verdict: str) -> RunRecord:
    """The run with one simple predictor, which its networks are better or no better than."""
    row = {"baseline": "volumes", "metric": "auc_within_folds", "estimate": 0.79, "network": 0.76, "verdict": verdict}
    row |= {"difference": -0.03, "difference_low": -0.1, "difference_high": 0.1, "p": 0.4}
    return replace(record, tables={**record.tables, "baselines": pd.DataFrame([row])})


def cards(record: RunRecord) -> Mapping[str, Answer]:
    return {one.question: one for one in summarise(record).answers}


def none_differs(record: RunRecord) -> RunRecord:
    table = record.tables["group_comparisons"].assign(p_fwe=1.0)
    return replace(record, tables={**record.tables, "group_comparisons": table})


@pytest.mark.parametrize(
    ("low", "against", "verdict"),
    [
        (0.51, "", LEARNED), (0.51, BETTER, LEARNED), (0.51, ALIKE, NO_MORE), (0.51, WORSE, NO_MORE),
        (0.5, BETTER, UNCLEAR), (0.31, ALIKE, UNCLEAR), (np.nan, BETTER, UNCLEAR),
    ],
)  # fmt: skip
def test_an_interval_that_touches_chance_shows_nothing(low, against, verdict):
    assert judge_learning(low, 0.5, against) == verdict


@pytest.mark.parametrize(
    ("low", "verdict", "begins"),
    [
        (0.6, BETTER, "Networks told AD from CN in people they had not seen (balanced accuracy 0.76, 95 % interval "
         "0.60 to 0.90; chance 0.50), and better than ridge regression on "),
        (0.6, ALIKE, "Networks told AD from CN in people they had not seen (balanced accuracy 0.76, 95 % interval "
         "0.60 to 0.90; chance 0.50), but no better than ridge regression on "),
        (0.31, ALIKE, "Networks did not reliably tell AD from CN in people they had not seen (balanced accuracy 0.76, "
         "95 % interval 0.31 to 0.90; chance 0.50). Their maps therefore say nothing."),
    ],
)  # fmt: skip
def test_one_of_three_sentences_is_chosen(record, low, verdict, begins):
    found = summarise(against_simple(performing(record, low), verdict)).found
    assert found.startswith(begins)
    assert ("differ" in found) == (low > 0.5)


@pytest.mark.parametrize("low", [0.31, 0.5])
def test_networks_that_guess_are_never_announced_as_a_finding(record, low):
    summary = summarise(performing(record, low))
    found = {one.question: one for one in summary.answers}
    assert found[GOOD].figure == "Not above chance"
    assert {one.figure for one in summary.answers if one.question != GOOD} == {"No finding"}
    for group in PLANTED:
        assert group.lower() not in (summary.found + found[WHERE].text + found[WHERE].figure_caption).lower()
        assert group.lower() in found[WHERE].more.lower()


def test_no_region_stands_in_large_type_where_none_differs(record):
    found = none_differs(performing(record, 0.6))
    card = cards(found)[WHERE]
    assert card.figure == "No region"
    assert re.fullmatch(r"No region of \d+ differs between AD and CN after correction\.", card.text)
    assert card.text in summarise(found).found


def test_a_correlation_that_is_not_clear_has_no_large_number(record):
    for p, figure in ((0.2, "No clear correlation"), (0.01, "r = ")):
        primary = record.tables["primary"].assign(p=p)
        card = cards(replace(performing(record, 0.6), tables={**performing(record, 0.6).tables, "primary": primary}))
        assert card[PRIMARY].figure.startswith(figure)
        assert f"r = {fixed(primary['r'].iloc[0])}" in card[PRIMARY].figure + card[PRIMARY].figure_caption


def test_the_number_in_the_card_is_that_of_the_sentence(record):
    found = against_simple(performing(record, 0.6), ALIKE)
    card, sentence = cards(found)[GOOD], learning_in_words(found)
    assert card.figure == "0.76"
    assert f"balanced accuracy {card.figure}, 95 % interval 0.60 to 0.90" in card.figure_caption
    assert f"balanced accuracy {card.figure}, 95 % interval 0.60 to 0.90" in sentence
    assert "area under the curve, within folds 0.76" in card.more
    assert "(area under the curve, within folds: 0.76 against 0.79)" in sentence
    assert "0.75" not in card.more + sentence  # the area of all folds pooled is another measure


def test_the_cards_ask_how_good_then_where_then_with_what_it_agrees(record):
    asked = list(cards(performing(record, 0.6)))
    assert [one for one in asked if one != AGREES] == [GOOD, WHERE, PRIMARY]


def test_one_class_in_a_fold_leaves_the_measure_of_all_folds(record):
    """A fold with one class has no balanced accuracy of its own, and does not count for the headline."""
    found = performing(record, 0.6)
    fold = {"fold": "0", "metric": "balanced_accuracy", "estimate": np.nan, "ci_low": np.nan, "n_participants": 3}
    rows = pd.concat([pd.DataFrame([fold]), found.tables["performance"]], ignore_index=True)
    changed = replace(found, tables={**found.tables, "performance": rows})
    assert learning_of(changed).verdict == LEARNED
    only: dict[str, Any] = {**found.tables, "performance": pd.DataFrame([fold])}
    assert learning_of(replace(found, tables=only)) is None
    assert cards(replace(found, tables=only))[GOOD].text.startswith("There are predictions, but no balanced accuracy")


OTHER_TASKS = {"number": {"target": "age"}, "classes": {"classes": ["CN", "MCI", "AD"], "positive": "AD"}}
OTHER_TASKS["numbers"] = {"contrast_column": "cdr", "classes": ["0", "0.5", "1"], "negative": "0", "positive": "1"}


@pytest.mark.parametrize(
    ("task", "metric", "low", "sentence"),
    [
        ("number", "r2", 0.1, "Networks predicted age of people they had not seen (R² 0.40, 95 % interval 0.10 to "
         "0.60; predicting the mean of all gives 0)."),
        ("number", "r2", -0.1, "Networks did not reliably predict age of people they had not seen (R² 0.40, 95 % "
         "interval −0.10 to 0.60; predicting the mean of all gives 0)."),
        ("classes", "balanced_accuracy", 0.34, "Networks told AD, MCI and CN apart in people they had not seen "
         "(balanced accuracy 0.40, 95 % interval 0.34 to 0.60; chance 0.33)."),
        ("classes", "balanced_accuracy", 0.33, "Networks did not reliably tell AD, MCI and CN apart in people they "
         "had not seen (balanced accuracy 0.40, 95 % interval 0.33 to 0.60; chance 0.33)."),
        ("numbers", "balanced_accuracy", 0.34, "Networks told cdr 1, cdr 0.5 and cdr 0 apart in people they had not "
         "seen (balanced accuracy 0.40, 95 % interval 0.34 to 0.60; chance 0.33)."),
    ],
)  # fmt: skip
def test_a_number_and_several_classes_are_judged_alike(record, task, metric, low, sentence):
    rows = pd.DataFrame({"fold": "all", "metric": [metric, "mae", "mae_of_mean", "r"], "n_participants": 14})
    rows = rows.assign(estimate=[0.4, 3.1, 5.2, 0.7], ci_low=low, ci_high=0.6)
    config = load_config(overrides={"cohort": OTHER_TASKS[task], "attribution": {"betas": [0.0]}})
    found = replace(
        record,
        config=config,
        tables={"scans": record.tables["scans"], f"performance_{'number' if task == 'number' else 'classes'}": rows},
    )
    assert learning_in_words(found) == sentence
    card = cards(found)[GOOD]
    assert card.figure == ("Not above chance" if "reliably" in sentence else "0.40")
    assert ("Mean absolute error 3.10; of predicting the mean of all, 5.20." in card.more) == (task == "number")


def test_a_number_whose_order_is_predicted_is_no_guess_though_few_errors_decide_r2(record):
    rows = pd.DataFrame({"fold": "all", "metric": ["r2", "r", "mae", "mae_of_mean"], "n_participants": 20})
    rows = rows.assign(
        estimate=[0.89, 0.97, 6.1, 19.1], ci_low=[-0.11, 0.84, 4.3, 11.9], ci_high=[0.99, 0.99, 8.7, 30.7]
    )
    config = load_config(overrides={"cohort": OTHER_TASKS["number"], "attribution": {"betas": [0.0]}})
    found = replace(record, config=config, tables={"scans": record.tables["scans"], "performance_number": rows})
    assert learning_in_words(found) == (
        "Networks predicted age of people they had not seen (predicted and true values correlate with r = 0.97, 95 % "
        "interval 0.84 to 0.99; chance 0)."
    )
    assert cards(found)[GOOD].figure == "0.97"


def applied(record: RunRecord, networks_of: object) -> RunRecord:
    """The networks of a run, on people of whom none has a label."""
    training = replace(record.config.training, networks_of=str(networks_of))
    scans = record.tables["scans"].assign(label=np.nan)
    return replace(record, config=replace(record.config, training=training), tables={"scans": scans})


def test_the_page_of_apply_says_whether_its_networks_learned(record, tmp_path, monkeypatch):
    here = applied(record, record.layout.root)
    assert learning_in_words(record)
    assert summarise(here).trust.startswith(f"{learning_in_words(record)} That was measured in the run that they are")
    for low, title in (
        (0.6, "These scans cannot show how good the networks are."),
        (0.5, "The networks may be guessing."),
    ):
        monkeypatch.setattr(sections, "run_of_networks", lambda run, low=low: performing(record, low))
        caution = next(one for one in find_cautions(here) if one.title == title)
        assert (learning_in_words(performing(record, low)) in caution.text) == (low == 0.5)


def test_networks_whose_run_is_not_here_are_not_judged(record, tmp_path):
    assert "which is not here" in summarise(applied(record, tmp_path)).trust
