"""Whole runs on images of other kinds, in template space."""

from __future__ import annotations

from pathlib import Path

import pytest

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main
from tests.workflows.template_cohort import write_config, write_template_cohort


def run(cohort: Path, out: Path, config: Path, *options: str) -> RunLayout:
    assert main(["run", str(cohort), str(out), "--config", str(config), "--n-procs", "1", *options]) == 0
    return RunLayout(out)


def config_of(path: Path, suffix: str, **settings: float) -> Path:
    write_config(path, **settings)
    path.write_text(path.read_text().replace("[cohort]\n", f'[cohort]\nsuffix = "{suffix}"\n'))
    return path


@pytest.mark.slow
def test_the_same_images_under_another_name_give_the_same_tables(tmp_path: Path) -> None:
    """Only the names, and the correlation with the template, which is none of another contrast, differ."""
    made = {}
    for suffix in ("T1w", "FLAIR"):
        cohort = tmp_path / suffix / "bids"
        cohort.parent.mkdir()
        write_template_cohort(cohort, 12)
        for path in cohort.rglob("*_T1w.nii.gz"):
            path.rename(path.with_name(path.name.replace("T1w", suffix)))
        made[suffix] = run(cohort, tmp_path / suffix / "out", config_of(tmp_path / f"{suffix}.toml", suffix))
    old, new = made["T1w"], made["FLAIR"]
    names = sorted(path.relative_to(old.root).as_posix() for path in old.root.glob("group/**/*.tsv"))
    assert "group/relevance.tsv" in names
    assert "group/predictions.tsv" in names
    assert names == sorted(path.relative_to(new.root).as_posix() for path in new.root.glob("group/**/*.tsv"))
    for name in ["scans.tsv", *names]:
        first, second = read_table(old.root / name), read_table(new.root / name)
        if name == "group/registration.tsv":
            assert first["correlation"].notna().all()
            assert second["correlation"].isna().all()
            first, second = (table.drop(columns=["correlation", "flags", "decision"]) for table in (first, second))
        renamed = second.map(lambda cell: cell.replace("FLAIR", "T1w") if isinstance(cell, str) else cell)
        assert renamed.to_csv() == first.to_csv(), name
    assert len(list(new.root.glob("sub-*/anat/*_desc-preproc_FLAIR.nii.gz"))) == 12
    assert not list(new.root.glob("sub-*/**/*T1w*"))
    page = new.report.read_text(encoding="utf-8")
    assert "FLAIR brain MRI" in page
    assert "T1-weighted" not in page
    assert "12 FLAIR scans of 12 participants were found" in new.methods_text.read_text(encoding="utf-8")
