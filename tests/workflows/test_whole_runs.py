"""Whole runs: of listed and other images, and while scans are registered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import scipy.io

from heatlas.atlases.spaces import write_template_image
from heatlas.atlases.templates import brain_box, load_template
from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.registration import scan_jobs
from heatlas.pipeline.registration.scan_jobs import SessionImage
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError, ResumableError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_json, write_table
from heatlas.pipeline.run.work import progress
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome
from heatlas.workflows.command_line import main
from heatlas.workflows.registration import register_and_finish
from tests.workflows.template_cohort import write_config, write_template_cohort

# A folder of images with a table through a run, its application to others, and its export.

OWN_WORDS = {"image", "diagnosis_source"}
"""Columns of the scan table that name files of the input."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The same scans as a BIDS dataset and as one folder with a table, and a run of each."""
    folder = tmp_path_factory.mktemp("listed")
    table = write_template_cohort(folder / "bids", participants=24)
    (folder / "flat").mkdir()
    for name in table["participant_id"]:
        original = folder / "bids" / name / "anat" / f"{name}_T1w.nii.gz"
        (folder / "flat" / original.name).hardlink_to(original)
    listed = table.assign(scan=table["participant_id"] + "_T1w.nii.gz").rename(columns={"participant_id": "Subject"})
    listed.to_csv(folder / "flat" / "people.csv", index=False)
    config = write_config(folder / "config.toml")
    config.write_text(config.read_text().replace("validation_fraction = 0.4", "validation_fraction = 0.1"))
    for name, options in (("bids", []), ("flat", ["--table", str(folder / "flat" / "people.csv")])):
        command = ["run", str(folder / name), str(folder / f"run-{name}"), "--config", str(config), "--n-procs", "1"]
        assert main([*command, "--stop-after", "regions", *options]) == 0
    return folder


@pytest.mark.slow
def test_tables_are_those_of_the_same_scans_as_bids(folder) -> None:
    bids, flat = folder / "run-bids", folder / "run-flat"
    tables = sorted(path.relative_to(bids) for path in bids.rglob("*.tsv") if "logs" not in path.parts)
    assert tables == sorted(path.relative_to(flat) for path in flat.rglob("*.tsv") if "logs" not in path.parts)
    assert len(tables) > 20, tables
    for one in tables:
        mine, theirs = (read_table(run / one) for run in (flat, bids))
        names = [name for name in mine.columns if name not in OWN_WORDS]
        pd.testing.assert_frame_equal(mine[names], theirs[names], obj=str(one))


@pytest.mark.slow
def test_others_with_a_table_of_their_own(folder) -> None:
    config = read_config(RunLayout(folder / "run-flat").config)
    assert config.cohort.table == str((folder / "flat" / "people.csv").resolve())
    new = folder / "new"
    new.mkdir()
    image = nib.load(folder / "flat" / "sub-03_T1w.nii.gz")  # another person: the same image would be refused
    nib.save(nib.Nifti1Image(2 * np.asarray(image.dataobj), image.affine), new / "x.nii.gz")
    (new / "list.tsv").write_text("t1w\tperson\tage\tsex\nx.nii.gz\tsomeone\t70\tF\n")
    command = ["apply", str(folder / "run-flat"), str(new), str(folder / "applied"), "--n-procs", "1"]
    command += ["--start-at", "template", "--stop-after", "regions"]
    assert main(command) == 65  # without a table these are files of any names
    assert main([*command, "--table", "list.tsv"]) == 0  # found in the folder
    (row,) = read_table(folder / "applied" / "group" / "predictions_applied.tsv").to_dict("records")
    assert row["participant_id"] == "sub-someone"
    assert main([*command[:2], str(new / "x.nii.gz"), *command[3:], "--table", "list.tsv"]) == 2


@pytest.mark.slow
def test_export_names_no_table(folder) -> None:
    assert main(["export", str(folder / "run-flat"), str(folder / "shared")]) == 0
    named = [path for path in (folder / "shared").rglob("*") if path.is_file() and b"people.csv" in path.read_bytes()]
    assert named == []


@pytest.mark.slow
def test_check_describes_it(folder, capsys) -> None:
    assert main(["check", str(folder / "flat"), "--table", str(folder / "flat" / "people.csv"), "--config",
                 str(folder / "config.toml"), "--stop-after", "registration"]) == 0  # fmt: skip
    said = capsys.readouterr().out
    assert "flat: images with a table" in said
    assert "24 scans found of 24 participants; 24 kept of 24 participants" in said
    assert "columns of people.csv that are used: scan for the path, Subject for the participant" in said


# Whole runs on images of other kinds, in template space.


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


# What a run shows of finished scans while others are registered, and that the end is the same whatever was shown.

TEMPLATE = load_template(4.0)
BOX = brain_box(TEMPLATE).grid(TEMPLATE.grid)
QUALITY = dict(brain_extraction="stripped", brain_mm3=1.4e6, orientation="sform", correlation=0.7)
QUALITY |= dict(normalised_mutual_information=1.06, dice=0.98, min_jacobian=0.4, nonpositive_jacobian_share=0.0)
QUALITY |= dict(affine_residual_mm=2.0, rotation_degrees=3.0, scale=0.9, scale_x=0.9, scale_y=0.9, scale_z=0.9)
QUALITY |= dict(dark_ml=0.5)
WAITED_FOR: list[Path] = []
"""Files that the last scan waits for before it is done."""


def registered(outputs: dict[str, Path], images: Sequence[SessionImage], *rest: Any) -> dict[str, Any]:
    """Instead of ANTs: the template with noise of its own, unmoved; the last scan waits, a bad one fails."""
    image = images[0].path
    if image.read_text() == "bad":
        raise BadInputError(f"{image.name}: no brain.")
    number = int(image.stem[-1])
    deadline = time.monotonic() + 60
    while number == 3 and not all(path.is_file() for path in WAITED_FOR):
        assert time.monotonic() < deadline, [str(path) for path in WAITED_FOR if not path.is_file()]
        time.sleep(0.02)
    noise = np.random.default_rng(number).normal(0, 5, TEMPLATE.grid.shape).astype(np.float32)
    write_template_image(outputs["T1w"], np.where(TEMPLATE.brain_mask, TEMPLATE.t1w + noise, 0), TEMPLATE.grid)
    write_template_image(outputs["brain_mask"], TEMPLATE.brain_mask, TEMPLATE.grid)
    write_template_image(outputs["log_jacobian"], np.full(TEMPLATE.grid.shape, 0.1, np.float32), TEMPLATE.grid)
    for name in ("warp", "inverse_warp"):
        nib.Nifti1Image(np.zeros((*BOX.shape, 1, 3), np.float32), BOX.affine).to_filename(outputs[name])
    identity = np.concatenate([np.eye(3).ravel(), np.zeros(3)])[:, None]
    scipy.io.savemat(
        outputs["affine_transform"], {"AffineTransform_double_3_3": identity, "fixed": np.zeros((3, 1))}, format="4"
    )
    for name in ("T1w_sidecar", "log_jacobian_sidecar", "quality"):
        write_json(outputs[name], {})
    return QUALITY


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Scan]:
    monkeypatch.setattr(scan_jobs, "register_one", registered)
    WAITED_FOR.clear()
    (tmp_path / "in").mkdir()
    for number in (1, 2, 3):
        (tmp_path / "in" / f"{number}.nii").write_text(str(number))
    return [Scan(f"sub-{number}", None, f"I{number}", f"{number}.nii", age=60.0) for number in (1, 2, 3)]


def progress_run(
    out: Path, scans: list[Scan], seed: int = 1, flagged: str = "keep"
) -> tuple[list[Outcome], list[Outcome]]:
    layout = RunLayout(out)
    ScanTable(tuple(scans)).write(layout.root / "scans.tsv")
    config = Config(registration=RegistrationConfig(4.0, flagged=flagged, seed=seed))
    with ThreadPoolExecutor(1) as executor:
        return register_and_finish(
            Work(layout, out.parent / "in", config, tuple(scans), Split(()), executor, DigestCache(layout.digests)),
            scans,
        )


def results(out: Path) -> dict[str, bytes]:
    """Everything a run writes but receipts and the log."""
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*"))
            if path.is_file() and path.relative_to(out).parts[0] != "logs" and "receipts" not in str(path)}  # fmt: skip


def files_of(out: Path, scan: Scan) -> list[Path]:
    files = RunLayout(out).scan(scan.participant_id, None, 4.0)
    return [files.overview, files.volumes, files.region_quality]


@pytest.mark.ci
def test_what_follows_a_scan_is_there_before_the_next_one_is_done(tmp_path: Path, scans: list[Scan]) -> None:
    """One worker, and the others were handed in before: the third scan waits for files of the first two."""
    WAITED_FOR.extend([*files_of(tmp_path / "out", scans[0]), *files_of(tmp_path / "out", scans[1])])
    registrations, later = progress_run(tmp_path / "out", scans)
    assert [outcome.status for outcome in registrations] == ["done"] * 3
    assert {outcome.status for outcome in later} == {"unchanged"}


def test_tables_of_the_group_grow_while_scans_are_registered(
    tmp_path: Path, scans: list[Scan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(progress, "LARGEST_SHARE", 1e9)
    layout = RunLayout(tmp_path / "out")
    WAITED_FOR.extend(
        [layout.group / "registration.tsv", layout.group / "region_quality.tsv", layout.group / "volumes.tsv"]
    )
    seen = []

    def seen_at_first(path: Path, frame: pd.DataFrame) -> None:
        if path.name == "registration.tsv":
            seen.append((path.name, frame["participant_id"].unique().tolist()))
        write_table(path, frame)

    monkeypatch.setattr("heatlas.pipeline.run.declared.write_table", seen_at_first)
    progress_run(tmp_path / "out", scans)
    assert seen[0] == ("registration.tsv", ["sub-1"])
    assert seen[-1] == ("registration.tsv", ["sub-1", "sub-2", "sub-3"])
    table = read_table(layout.group / "region_quality.tsv")
    assert table["participant_id"].value_counts().tolist() == [134] * 3
    assert (table["inverse_error_max_mm"].dropna() == 0).all()
    assert np.allclose(table["jacobian_p01"].dropna(), np.exp(0.1), atol=1e-3)
    assert table["correlation"].dropna().between(0.3, 1).all()
    worst = read_table(layout.group / "registration.tsv")["worst_regions"][0]
    lowest = table[table["participant_id"] == "sub-1"].sort_values(["correlation", "region"]).iloc[0]
    assert worst.startswith(f"{lowest['name']} ({lowest['correlation']:.2f})")


@pytest.mark.ci
@pytest.mark.parametrize("continued", [False, True])
def test_the_end_is_the_same_whatever_was_shown_on_the_way(
    tmp_path: Path, scans: list[Scan], monkeypatch: pytest.MonkeyPatch, continued: bool
) -> None:
    progress_run(tmp_path / "silent", scans)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0.0)
    if continued:
        (tmp_path / "in/2.nii").write_text("bad")
        registrations, _ = progress_run(tmp_path / "shown", scans)
        assert [outcome.ok for outcome in registrations] == [True, False, True]
        (tmp_path / "in/2.nii").write_text("2")
    progress_run(tmp_path / "shown", scans)
    assert results(tmp_path / "shown") == results(tmp_path / "silent")


@pytest.mark.ci
def test_decisions_survive_tables_that_are_not_complete_yet(
    tmp_path: Path, scans: list[Scan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three are children; everything is registered again, and each table before the last lacks some of them."""
    children = [Scan(s.participant_id, None, s.scan_id, s.image, age=9.0) for s in scans]
    with pytest.raises(ResumableError, match="3 of 3 doubtful registrations have no decision"):
        progress_run(tmp_path / "out", children, flagged="ask")
    flagged = RunLayout(tmp_path / "out").root / "flagged.tsv"
    flagged.write_text(flagged.read_text().replace("n/a\n", "keep\n"))
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0.0)
    registrations, _ = progress_run(tmp_path / "out", children, seed=2, flagged="ask")
    assert [outcome.status for outcome in registrations] == ["done"] * 3
    assert read_table(RunLayout(tmp_path / "out").group / "registration.tsv")["decision"].tolist() == ["keep"] * 3
