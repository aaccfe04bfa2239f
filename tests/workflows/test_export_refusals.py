"""What keeps names inside an export, and altered numbers and another run outside, without a whole run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.explaining.controls import NORMS_TABLE, read_norms
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.bundle_layout import Bundle, BundleLayout, open_bundle
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.statistics.stage import norms_of_run
from heatlas.workflows.command_line import main
from heatlas.workflows.commands import Apply
from heatlas.workflows.export import require_nameless
from heatlas.workflows.library import filled


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


def bundle(folder: Path, with_digest: bool = True) -> BundleLayout:
    """The description and norms of an earlier export: 20 controls of mean 5 and SD 2 in one group."""
    made = BundleLayout(folder)
    made.metadata.parent.mkdir(parents=True)
    made.norms.parent.mkdir(parents=True)
    NORMS_TABLE.write(made.norms, pd.DataFrame([("lrp", "Amygdala", 20, 5.0, 2.0)], columns=list(NORMS_TABLE.required)))
    digest = file_digest(made.norms) if with_digest else ""
    facts = Bundle(made, "standard", (0,), 20, "0" * 64, digest).facts
    made.metadata.write_text(json.dumps({"heatlas": facts}))
    return made


def alter(made: BundleLayout, old: str, new: str) -> None:
    text = made.norms.read_text()
    assert old in text
    made.norms.write_text(text.replace(old, new))


@pytest.mark.parametrize("with_digest", [True, False])
def test_norms_of_older_exports_are_read_and_know_neither_age_nor_sex(tmp_path: Path, with_digest: bool) -> None:
    bundle(tmp_path, with_digest)
    (norms,) = norms_of_run(tmp_path)
    norm, covariates, note = norms.for_scan(pd.DataFrame({"age": [70.0], "sex": ["F"]}))
    w, _ = norm.scores(np.array([[9.0]]), covariates)
    assert w[0, 0] == 2.0
    assert "mean and spread alone" in note


def test_altered_and_missing_norms_are_refused(tmp_path: Path) -> None:
    made = bundle(tmp_path)
    alter(made, "5", "50")
    with pytest.raises(BadInputError, match=r"norms\.tsv: missing, or not the one that was exported"):
        read_norms(open_bundle(tmp_path))
    made.norms.unlink()
    with pytest.raises(BadInputError, match=r"norms\.tsv: missing, or not the one that was exported"):
        read_norms(open_bundle(tmp_path))


@pytest.mark.parametrize(
    ("new", "said"),
    [("", "has no row"), ("lrp\tAmygdala\t20\tmany\t2.0\n", "line 2, column mean: 'many' is not a number"),
     ("lrp\tAmygdala\t20.5\t5.0\t2.0\n", "'20.5' is not a whole number|20.5.* is not a whole number"),
     ("lrp\tAmygdala\t20\t5.0\tn/a\n", "column sd: n/a is missing")],
)  # fmt: skip
def test_cells_of_older_norms_are_checked(tmp_path: Path, new: str, said: str) -> None:
    made = bundle(tmp_path, with_digest=False)
    made.norms.write_text(made.norms.read_text().splitlines(keepends=True)[0] + new)
    with pytest.raises(BadInputError, match=said):
        read_norms(open_bundle(tmp_path))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--age", "-1", "is not an age in years from 0 to 120"), ("--age", "121", "is not an age in years"),
     ("--age", "old", "is not an age in years"), ("--age", "nan", "is not an age in years"), ("--sex", "X", "F, M")],
)  # fmt: skip
def test_ages_and_sexes_that_nobody_has_are_refused(capsys, option: str, value: str, said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["apply", "run", "scan.nii.gz", "out", option, value])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    with pytest.raises(UsageError, match=said):
        filled(Apply, {"run": "run", "input": "scan.nii.gz", "out": "out", option.strip("-"): value})


@pytest.mark.parametrize("out", ["run", "run/x", ".", "run/../run/models"])
def test_the_folder_of_apply_is_apart_from_the_run(tmp_path: Path, capsys, out: str) -> None:
    (tmp_path / "run").mkdir()
    assert main(["apply", str(tmp_path / "run"), str(tmp_path / "new"), str(tmp_path / out)]) == 2
    said = capsys.readouterr().err.strip()
    assert "is, holds or lies in" in said
    assert len(said.splitlines()) == 1
    assert list((tmp_path / "run").iterdir()) == []
