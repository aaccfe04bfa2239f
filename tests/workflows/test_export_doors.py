"""What keeps names inside and altered numbers outside, without a whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.workflows.export import require_nameless


def given(folder: Path, title: str) -> tuple[Path, RunLayout]:
    """An export whose settings have this title, and its run of four people."""
    run, path = RunLayout(folder / "run"), folder / "given" / "configs" / "config.toml"
    people = ("sub-ADNI990S9003", "sub-01", "sub-1", "sub-test")
    ScanTable(tuple(Scan(name, None, f"i{place}", f"{place}.nii") for place, name in enumerate(people))).write(run)
    path.parent.mkdir(parents=True)
    path.write_text(f'[report]\ntitle = "{title}"\nfolds = 1\n', encoding="utf-8")
    return path.parents[1], run


@pytest.mark.parametrize(
    "title",
    ["990_S_9003", "990-S-9003", "ADNI990S9003", "of adni990s9003.", "990s9003", "SUB_ADNI_990_S_9003", "sub 01",
     "Sub1", "990\u2013S\u20139003", "990\\u2013S\\u20139003", "\uff19\uff19\uff10S9003"],
)  # fmt: skip
def test_a_participant_in_any_spelling_is_refused(tmp_path: Path, title: str) -> None:
    with pytest.raises(BadInputError, match=r"configs/config\.toml would name sub-"):
        require_nameless(*given(tmp_path, f"Study {title}"))


@pytest.mark.parametrize("title", ["1 of 01, a test", "990 S 90031", "9003", "990 people, S 9003 s", "a990b S9003"])
def test_short_numbers_and_other_ids_are_no_names(tmp_path: Path, title: str) -> None:
    require_nameless(*given(tmp_path, title))
