"""Families of tests, told apart by one column or several."""

from __future__ import annotations

import pandas as pd
import pytest

from heatlas.pipeline.statistics.linear.permutations import add_false_discovery_rate


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("apart", "names"),
    [(["map"], {"2 tests: gb", "1 tests: lrp"}), (["map", "n"], {"2 tests: gb, 1", "1 tests: lrp, 2"})],
)
def test_each_family_is_adjusted_by_itself(apart: list[str], names: set[str]) -> None:
    table = pd.DataFrame({"map": ["gb", "lrp", "gb"], "n": [1, 2, 1], "p": [0.01, 0.02, 0.04]})
    adjusted = add_false_discovery_rate(table, apart, "tests")
    assert adjusted["p_fdr"].tolist() == [0.02, 0.02, 0.04]
    assert set(adjusted["family"]) == names
