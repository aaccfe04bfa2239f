from __future__ import annotations

from pathlib import Path

import pytest

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import PathIn


@pytest.mark.parametrize("group", ["AD", "CN/SMC", "../up", "≥65", "a b"])
def test_mean_map_of_any_label_lies_in_its_folder(group):
    layout = RunLayout(Path("/run"))
    path = layout.group_map(group, "gb")
    assert path.parent == layout.group / "maps"
    assert path.name.isascii()


def test_names_of_groups_stay_apart_and_plain_ones_as_they_are():
    layout = RunLayout(Path("/run"))
    assert layout.group_map("AD", "gb").name == "group-AD_space-MNI152NLin2009cAsym_desc-gb_relevance.nii.gz"
    assert len({layout.group_map(group, "gb") for group in ("a/b", "a%2Fb", "a_b", "ab")}) == 4


def test_no_path_of_a_run_hides_another() -> None:
    own = [name for name, value in vars(RunLayout).items() if isinstance(value, (property, PathIn))]
    assert not [name for name in own for parent in RunLayout.__mro__[1:] if name in vars(parent)]
