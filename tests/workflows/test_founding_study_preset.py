"""The preset of the founding study on real brains at 1 mm: all that it sets, but one epoch and tiny parts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from heatlas.atlases.templates import load_template
from heatlas.pipeline.run.config.files import load_config, read_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table

PEOPLE = {"young": ("1003", "1005", "1007"), "middle": ("1110",), "old": ("1116", "1119", "1122")}
FORCED = {
    "cohort": {"test_participants_per_class": 1, "validation_participants_per_class": 1},
    "training": {"max_epochs": 1, "min_epochs": 1},
}
"""What so few people and so little time force; all else is the preset."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """The finished run: some twenty minutes of one core."""
    folder = tmp_path_factory.mktemp("founding-study")
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()) for name, keys in FORCED.items()
    ]
    (folder / "few.toml").write_text("".join(lines))
    layout = RunLayout(folder / "out")
    command = [sys.executable, "-m", "heatlas.workflows.adni", "run", str(real_data / "oasis20"), str(layout.root),
               "--preset", "bohle2019", "--config", str(folder / "few.toml"), "--contrast", "age_group=young,old",
               "--participant-label", *sum(PEOPLE.values(), ()), "--n-procs", "2"]  # fmt: skip
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return layout


def test_only_what_few_people_force_differs_from_the_preset(finished: RunLayout) -> None:
    preset = load_config("bohle2019")
    contrast = {"contrast_column": "age_group", "negative": "young", "positive": "old"}
    assert read_config(finished.config) == dataclasses.replace(
        preset,
        cohort=dataclasses.replace(preset.cohort, **FORCED["cohort"], **contrast),
        registration=dataclasses.replace(preset.registration, seed=preset.seed),
        training=dataclasses.replace(preset.training, **FORCED["training"]),
    )


def test_nothing_fails_and_who_is_outside_the_contrast_takes_no_part(finished: RunLayout) -> None:
    assert read_table(finished.failures).empty
    scans = read_table(finished.root / "scans.tsv").set_index("participant_id")
    assert "middle in age_group" in scans.loc["sub-1110", "reason"]
    assert not (finished.root / "sub-1110").exists()
    quality = read_table(finished.group / "registration.tsv")
    assert sorted(quality["participant_id"]) == [f"sub-{one}" for one in (*PEOPLE["young"], *PEOPLE["old"])]
    assert set(quality["status"]) == {"registered"}


def test_every_scan_keeps_what_lies_under_the_mask_of_the_template(finished: RunLayout) -> None:
    template = load_template(1.0)
    assert template.grid.shape == (193, 229, 193)
    for one in (*PEOPLE["young"], *PEOPLE["old"]):
        files = finished.scan(f"sub-{one}", None, 1.0)
        mask = np.asarray(nib.load(files.brain_mask).dataobj) > 0
        np.testing.assert_array_equal(mask, template.brain_mask)
        values = np.asarray(nib.load(files.t1w).dataobj)
        assert not values[~mask].any()
        assert (values[mask] > 0).mean() > 0.8


def test_relevance_starts_from_the_probability_and_is_accounted_for(finished: RunLayout) -> None:
    table = read_table(finished.group / "conservation.tsv")
    assert sorted(set(table["map"])) == ["lrpB000", "lrpB025", "lrpB050", "lrpB075", "lrpB100"]
    predictions = read_table(finished.group / "predictions.tsv").set_index("scan_id")
    assert sorted(predictions["label"]) == ["old", "young"]
    np.testing.assert_allclose(table["start_value"], predictions.loc[table["scan_id"], "probability"], rtol=1e-5)
    lost = table[["absorbed_by_bias", "lost_no_contribution", "stabiliser"]].sum(axis=1)
    np.testing.assert_allclose(table["map_sum"] + lost, table["start_value"], rtol=1e-5)
    assert not table["absorbed_by_bias"].any()


def test_regions_are_those_of_the_study_and_add_up_to_the_map(finished: RunLayout) -> None:
    regions, groups = (
        read_table(finished.group / "relevance.tsv"),
        read_table(finished.group / "relevance_bilateral.tsv"),
    )
    assert regions.groupby(["scan_id", "map"]).size().unique().tolist() == [137]  # 136 labels and the rest
    assert groups.groupby(["scan_id", "map"]).size().unique().tolist() == [68]
    sums = regions.groupby(["scan_id", "map"])["sum"].sum()
    maps = read_table(finished.group / "conservation.tsv").set_index(["scan_id", "map"])["map_sum"]
    np.testing.assert_allclose(sums[maps.index], maps, rtol=1e-4)
    assert (regions.loc[regions["map"].isin(["lrpB000", "gb"]), "sum"] >= 0).all()


def test_gain_of_the_only_control_is_one_and_the_patients_is_a_ratio_to_them(finished: RunLayout) -> None:
    labels = read_table(finished.group / "predictions.tsv").set_index("scan_id")["label"]
    groups = read_table(finished.group / "relevance_bilateral.tsv")
    groups = groups.assign(label=groups["scan_id"].map(labels)).pivot_table(
        ["sum", "gain"], ["map", "group"], "label", dropna=False
    )
    positive = groups["sum", "young"] > 0
    assert positive.mean() > 0.5
    np.testing.assert_allclose(groups.loc[positive, ("gain", "young")], 1, rtol=1e-6)
    ratio = groups["sum", "old"] / groups["sum", "young"]
    np.testing.assert_allclose(groups.loc[positive, ("gain", "old")], ratio[positive], rtol=1e-6)
    assert pd.isna(groups.loc[~positive, ("gain", "old")]).all()


def test_the_report_has_a_page_for_each_person_of_the_test_part(finished: RunLayout) -> None:
    tested = read_table(finished.group / "predictions.tsv")["participant_id"]
    index = finished.report.read_text(encoding="utf-8")
    assert all(f"{person}.html" in index and (finished.root / f"{person}.html").is_file() for person in tested)
