"""Every range of every setting of a run: refused just outside by table and key, accepted at its ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from range_ends import ends

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.networks import NETWORKS, ModelConfig
from heatlas.pipeline.run.config.ranges import (
    ODD,
    RISING,
    Count,
    above,
    at_least,
    between,
    kinds_of,
    matching,
    misfits,
    naming,
    problems,
    split_kind,
    unmet,
)
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.config.statistics import MOST_REPEATS
from heatlas.pipeline.run.errors import UsageError


def bounded(record: Any, where: str) -> Iterator[tuple[str, Any, str, Any, bool]]:
    """Section, record, setting, value and whether it is allowed, for every end of every range."""
    for name, kind in kinds_of(type(record)).items():
        default = getattr(record, name)
        if kind is ModelConfig:
            for family, network in NETWORKS.items():
                yield from bounded(network(family), "model")
        elif is_dataclass(kind):
            yield from bounded(default, f"{where}.{name}".strip("."))
        for value, allowed in ends(kind, default):
            yield where, record, name, value, allowed


ENDS = list(bounded(Config(), ""))
OF_SETTING = {
    setting: [one for one in ENDS if f"{one[0]}.{one[2]}" == setting]
    for setting in dict.fromkeys(f"{where}.{name}" for where, _, name, _, _ in ENDS)
}


def test_every_kind_of_setting_is_among_them() -> None:
    assert len(ENDS) > 250
    for name in (
        ".seed", "cohort.folds", "model.width", "model.channels", "training.augmentation.gamma", "objective.weight",
        "statistics.confidence", "statistics.subgroups.mmse_bands", "evaluation.grids.layout", "cluster.gpus",
    ):  # fmt: skip
        assert name in OF_SETTING


@pytest.mark.parametrize("setting", OF_SETTING)
def test_the_ends_of_ranges(setting: str) -> None:
    for where, record, name, value, allowed in OF_SETTING[setting]:
        changed = copy(record)
        object.__setattr__(changed, name, value)
        assert [misfit for misfit, _, _ in misfits(changed)] == ([] if allowed else [name]), value
        if allowed:
            continue
        settings: Any = {name: value, **({"architecture": record.architecture} if where == "model" else {})}
        for section in reversed(where.split(".") if where else []):
            settings = {section: settings}
        with pytest.raises(UsageError) as refused:
            load_config(overrides=settings)
        words = f"{where}.{name}".strip(".")
        assert f"{words} must " in str(refused.value) or f"{words} = " in str(refused.value)


@pytest.mark.parametrize(
    ("section", "name", "allowed", "refused", "sentence"),
    [
        ("statistics.voxelwise", "permutations", (0, 99, MOST_REPEATS), (-1, 1, 98, MOST_REPEATS + 1), "0, or between"),
        ("objective", "weight", ("usual", 0, 1e6), (-0.1, 1e6 + 1), "between 0 and 1,000,000, or be 'usual'"),
        ("objective", "stage", ("usual", -1, 0, 7), (-2,), "must be -1 or more, or be 'usual'"),
        ("training.augmentation", "gamma", ([0.5, 10.0],), ([1.0, 1.0], [2.0, 1.0]), "in rising order, each above 0"),
        ("statistics.subgroups", "mmse_bands", ([], [24, 30]), ([27, 24], [24, 24]), "must be in rising order"),
        ("statistics.main_effects", "variables", ([], ["a", "b"]), (["a", "a"],), "must name each column once"),
        ("statistics.group_comparisons", "comparisons", (["TP/FN"],), (["TP/TP"], ["TP"], ["a/TP"]), "each be a pair"),
        ("statistics.group_comparisons", "metrics", (["sum"],), ([], ["sum", "sum"]), "at least one metric, each once"),
        ("statistics.primary", "biomarker", ("volume of A",), ("own volume/tiv", " "), "one number per scan: name"),
        ("statistics.primary", "region", ("a b",), ("", " "), "must not be empty"),
        ("attribution", "betas", ([0.29, 9.99],), ([0.001], [1, 1.0]), "each once, each in [0, 10), each of at most"),
    ],
)
def test_other_limits(section: str, name: str, allowed: tuple, refused: tuple, sentence: str) -> None:
    def loaded(value: object) -> Config:
        settings: Any = {name: value}
        for part in reversed(section.split(".")):
            settings = {part: settings}
        return load_config(overrides=settings)

    for value in allowed:
        loaded(value)
    for value in refused:
        with pytest.raises(UsageError) as error:
            loaded(value)
        assert str(error.value).startswith(f"configuration: {section}.{name} must ")
        assert sentence in str(error.value)


@given(st.floats(), st.floats(-10, 10), st.floats(0, 10))
def test_ranges_hold_what_their_sentences_say(value: float, low: float, width: float) -> None:
    high = low + width
    assert between(low, high).holds(value) == (low <= value <= high)
    assert at_least(low).holds(value) == (low <= value < math.inf)
    assert at_least(low, below=high).holds(value) == (low <= value < high)
    assert above(low).holds(value) == (low < value < math.inf)
    assert above(low, up_to=high).holds(value) == (low < value <= high)
    assert above(low, below=high).holds(value) == (low < value < high)


def test_a_range_of_a_list_is_one_of_each_element_and_names_what_is_wrong() -> None:
    assert unmet([between(0, 1)], (0.5, 2.0)) == "must each lie between 0 and 1"
    assert unmet([naming(1, "block"), ODD], (3, 4)) == "must name at least one block, each odd"
    assert unmet([RISING, above(0)], ()) == ""
    assert unmet([matching("a+", "be of a")], "aab") == "must be of a"
    assert split_kind(Count) == (int, (at_least(1),))


def test_values_of_another_type_are_refused_in_records_too() -> None:
    with pytest.raises(UsageError, match=r"configuration: seed must be a whole number"):
        replace(Config(), seed=True)
    assert problems(replace(Config().cohort, split="thirds"), "cohort.") == [
        "cohort.split must be one of 'folds', 'single'"
    ]
