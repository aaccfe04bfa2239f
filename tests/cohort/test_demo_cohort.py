from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.cohort.demo import cohort as demo_cohort
from heatlas.pipeline.cohort.demo.cohort import SEVERITY_TABLE, write_demo_cohort
from heatlas.pipeline.cohort.demo.people import EFFECTS, PLANTED_GROUPS
from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.run.config.settings import CohortConfig
from heatlas.pipeline.run.errors import ResumableError, UsageError
from heatlas.pipeline.run.tables import read_table

SEED, PEOPLE, RESOLUTION = 7, 6, 4.0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_cohort(tmp_path_factory.mktemp("demo") / "cohort", SEED, PEOPLE, RESOLUTION)


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_tree_is_that_of_an_adni_download(written: Path) -> None:
    assert sorted(path.name for path in written.iterdir()) == ["ADNI", "ADNIMERGE_11Nov2025.csv", "README.txt", "truth"]
    images = [path.relative_to(written).as_posix() for path in written.rglob("*.nii*") if "truth" not in path.parts]
    pattern = re.compile(
        r"ADNI/(\d{3}_S_\d{4})/[\w-]+/\d{4}-\d\d-\d\d_\d\d_\d\d_\d\d\.0/(I\d+)/ADNI_\1_MR_[\w-]+_S\d+_\2\.nii(\.gz)?"
    )
    assert [name for name in images if not pattern.fullmatch(name)] == []
    assert {Path(name).suffix for name in images} == {".nii", ".gz"}
    assert "SYNTHETIC" in (written / "README.txt").read_text()


def test_the_reader_finds_everyone_and_drops_the_dirt(written: Path) -> None:
    table = read_cohort(written, CohortConfig(), SEED).table.frame()
    truth = SEVERITY_TABLE.read(written / SEVERITY_TABLE.file)
    both = table.merge(truth, on="scan_id", suffixes=("", "_true"), validate="one_to_one")
    assert len(both) == len(table) == len(truth) == 7 + 2
    kept = both[both["kept"]]
    assert kept["label"].value_counts().to_dict() == {"AD": 3, "CN": 4}
    assert set(kept.loc[kept["label"].isna(), "progression"]) <= {"pMCI", "sMCI"}
    assert kept.loc[kept["label"].isna(), "diagnosis"].tolist() == ["MCI"]
    assert (kept["diagnosis"] == kept["diagnosis_true"]).all()
    assert (kept["participant_id"] == kept["participant_id_true"]).all()
    assert (kept["session_id"] == kept["session_id_true"]).all()
    dropped = both[~both["kept"]]
    assert len(dropped) == 1
    assert dropped["reason"].notna().all()


def test_the_table_measures_what_was_planted(written: Path) -> None:
    table = read_cohort(written, CohortConfig(), SEED).table.frame()
    truth = read_table(written / "truth" / "severity.tsv")
    both = table[table["hippocampus_mm3"].notna()].merge(truth, on="scan_id")
    assert len(both) >= 7
    error = both["hippocampus_mm3"] / both["true_hippocampus_mm3"] - 1
    assert 0.005 < error.abs().max() < 0.2
    assert (both["tiv_mm3"] - both["true_intracranial_mm3"]).abs().max() <= 0.56
    assert both["hippocampus_source"].str.contains("SYNTHETIC").all()
    for _, visits in truth.groupby("participant_id"):
        first, *later = (row for _, row in visits.sort_values("session_id").iterrows())
        for row in later:  # disease goes on, the skull stays
            assert row["severity_hippocampus"] > first["severity_hippocampus"]
            assert row["true_intracranial_mm3"] == pytest.approx(first["true_intracranial_mm3"], rel=0.005)


def test_the_severity_map_lies_in_the_planted_groups(written: Path) -> None:
    image = nib.load(written / "truth" / "severity_map.nii.gz")
    grid = template_grid(2.0)
    assert image.shape == grid.shape
    np.testing.assert_allclose(image.affine, grid.affine)
    severity = image.get_fdata()
    planted = json.loads((written / "truth" / "planted.json").read_text())
    assert planted == {"synthetic": True, "planted": list(PLANTED_GROUPS)}
    effects = json.loads((written / "truth" / "effects.json").read_text())
    assert [one["effect"] for one in effects["effects"]] == [effect.effect for effect in EFFECTS]
    atlas = load_atlas("neuromorphometrics-cat12", grid)
    means = {name: severity[np.isin(atlas.labels, numbers)].mean() for name, numbers in atlas.regions.groups.items()}
    ranked = sorted(means, key=lambda name: -means[name])
    assert set(ranked[:5]) == set(PLANTED_GROUPS)
    # Hippocampus: a third of -log(.73) as contraction, the rest as loss.
    assert means["Hippocampus"] == pytest.approx(-np.log(0.73), rel=0.15)
    assert means["Cuneus"] < 0.01
    assert severity[np.asarray(atlas.labels) == 0].min() >= 0


@pytest.mark.ci
def test_equal_seeds_give_equal_bytes_in_any_number_of_workers(written: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        again = write_demo_cohort(tmp_path / "again", SEED, PEOPLE, RESOLUTION, executor)
    assert contents(again) == contents(written)


def test_a_whole_cohort_is_left_alone(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / ".DS_Store").write_text("left by a file browser")
    monkeypatch.setattr(demo_cohort, "make_person", None)  # would fail if called
    assert write_demo_cohort(copy, SEED, PEOPLE, RESOLUTION) == copy


@pytest.mark.ci
def test_an_interrupted_cohort_is_made_whole(copy: Path, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next(path for path in copy.rglob("*.nii") if "truth" not in path.parts).unlink()
    made = []

    def stop_after_one(*arguments: object) -> None:
        made.append(arguments)
        if len(made) > 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(demo_cohort, "make_person", stop_after_one)
        with pytest.raises(KeyboardInterrupt):
            write_demo_cohort(copy, SEED, PEOPLE, RESOLUTION)
    assert contents(write_demo_cohort(copy, SEED, PEOPLE, RESOLUTION)) == contents(written)


@pytest.mark.parametrize("settings", [(8, PEOPLE, RESOLUTION), (SEED, 8, RESOLUTION), (SEED, PEOPLE, 3.0)])
def test_a_cohort_of_other_settings_is_not_overwritten(copy: Path, settings: tuple[int, int, float]) -> None:
    before = contents(copy)
    with pytest.raises(UsageError, match="other settings"):
        write_demo_cohort(copy, *settings)
    assert contents(copy) == before


def test_a_folder_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not empty"):
        write_demo_cohort(tmp_path, SEED, PEOPLE, RESOLUTION)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="not empty"):
        write_demo_cohort(tmp_path / "thesis.txt", SEED, PEOPLE, RESOLUTION)
    (tmp_path / "broken" / "truth").mkdir(parents=True)
    (tmp_path / "broken" / "truth" / "cohort.json").write_text("{")
    with pytest.raises(UsageError, match="not a readable JSON object"):
        write_demo_cohort(tmp_path / "broken", SEED, PEOPLE, RESOLUTION)


@pytest.mark.parametrize(("participants", "resolution"), [(3, 2.0), (10, 0.5), (10, 8.0)])
def test_senseless_settings_are_refused_before_work(tmp_path: Path, participants: int, resolution: float) -> None:
    with pytest.raises(UsageError, match="demo cohort"):
        write_demo_cohort(tmp_path / "new", SEED, participants, resolution)
    assert not (tmp_path / "new").exists()


def test_a_full_disk_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo_cohort, "make_person", no_space)
    with pytest.raises(ResumableError, match="no space left"):
        write_demo_cohort(tmp_path / "new", SEED, PEOPLE, RESOLUTION)


def test_missing_values_are_empty_fields(written: Path) -> None:
    frame = pd.read_csv(written / "ADNIMERGE_11Nov2025.csv", dtype=str, keep_default_na=False)
    assert not frame.isin(["nan", "<NA>", "None", "NaN"]).any().any()
    assert (frame["Hippocampus"] == "").any()
    assert (frame["APOE4"] == "").any()
