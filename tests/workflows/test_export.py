"""``heatlas export``, and ``heatlas apply`` with the exported folder in place of the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from monai.bundle import ConfigParser

from heatlas.pipeline.cohort.people.persons import hidden_name
from heatlas.pipeline.evaluation.bench.table import EVALUATION_TABLE
from heatlas.pipeline.evaluation.bench.verdicts import UNKNOWN, VERDICTS_TABLE
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.layout.bundle_layout import BundleLayout
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.workflows.command_line import main
from tests.workflows.template_cohort import write_config, write_template_cohort

pytestmark = pytest.mark.ci

METHODS = ["deeplift", "expected-gradients"]
OF_MEAN = "deeplift"
TRAINED, EVERYONE = 24, 36
CONTROLS = 6
"""In some training part; the other two of the class are in none."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write_template_cohort(folder / "input", participants=EVERYONE)
    config = write_config(folder / "config.toml")
    text = config.read_text().replace("betas = [0.0]", f"betas = [0.0]\nmethods = {METHODS}")
    config.write_text(text.replace("validation_fraction = 0.4", "validation_fraction = 0.1"))
    people = [f"{number:02d}" for number in range(TRAINED)]
    command = ["run", str(folder / "input"), str(folder / "run"), "--config", str(config), "--n-procs", "1"]
    assert main([*command, "--stop-after", "regions", "--participant-label", *people]) == 0
    return folder


@pytest.fixture(scope="module")
def exported(folder) -> BundleLayout:
    assert main(["export", str(folder / "run"), str(folder / "given")]) == 0
    return BundleLayout(folder / "given")


def apply(folder: Path, what: Path, out: str) -> RunLayout:
    command = ["apply", str(what), str(folder / "input"), str(folder / out), "--n-procs", "1"]
    assert main([*command, "--stop-after", "attribution", "--start-at", "template"]) == 0
    return RunLayout(folder / out)


@pytest.fixture(scope="module")
def applied(folder, exported) -> tuple[RunLayout, RunLayout]:
    """Of the run, and of what was exported; the run is out of the way when the latter is used."""
    of_run = apply(folder, folder / "run", "by_run")
    (folder / "run").rename(folder / "away")
    try:
        return of_run, apply(folder, exported.root, "by_export")
    finally:
        (folder / "away").rename(folder / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_names_a_person_a_scan_or_a_folder(folder, exported) -> None:
    scans = read_table(folder / "run" / "scans.tsv")
    names = {*scans["participant_id"], *scans["scan_id"], str(folder)}
    assert len(names) > EVERYONE
    for path, content in contents(exported.root).items():
        assert [name for name in names if name.encode() in content] == [], path


def test_two_exports_have_the_same_bytes_and_nothing_else(folder, exported) -> None:
    assert main(["export", str(folder / "run"), str(folder / "again")]) == 0
    first = contents(exported.root)
    assert contents(folder / "again") == first
    assert sorted(first) == [
        "configs/config.toml", "configs/inference.json", "configs/metadata.json", "docs/README.md",
        "models/fold-0/model.json", "models/fold-0/model.safetensors", "models/fold-1/model.json",
        "models/fold-1/model.safetensors", "models/people.json", "models/people.tsv", "reference/mean_controls.nii.gz",
        "reference/norms.json", "reference/norms.tsv",
    ]  # fmt: skip
    assert sum(len(one) for name, one in first.items() if not name.endswith("safetensors")) <= 5e6


def test_the_reference_is_the_mean_of_the_controls_that_were_trained_with(folder, exported) -> None:
    run = RunLayout(folder / "run")
    loaded = load_model(run.fold(0))
    scans = read_table(run.root / "scans.tsv")
    splits = read_table(run.root / "splits.tsv")
    trained = splits[splits["part"] == "train"]["participant_id"]
    controls = scans[(scans["label"] == "CN") & scans["participant_id"].isin(trained)]
    assert len(controls) == CONTROLS
    seen = [read_network_volume(run.scan(one, None, 4.0), loaded.input) for one in controls["participant_id"]]
    written = nib.load(exported.mean_controls)
    np.testing.assert_allclose(loaded.input.box.crop(written.get_fdata()), np.mean(seen, 0), atol=2**-16)
    np.testing.assert_array_equal(written.affine, loaded.input.template_grid.affine)
    assert json.loads(exported.metadata.read_text())["heatlas"]["reference"]["controls"] == CONTROLS


def test_norms_are_of_controls_alone(folder, exported) -> None:
    own = read_table(folder / "run" / "group" / "relevance_bilateral.tsv")
    scans = read_table(folder / "run" / "scans.tsv").set_index("participant_id")
    norms = read_table(exported.norms)
    one = norms[(norms["map"] == OF_MEAN) & (norms["group"] == "Hippocampus")].iloc[0]
    values = own[(own["map"] == OF_MEAN) & (own["group"] == "Hippocampus")]
    values = values[values["participant_id"].map(scans["label"]) == "CN"]["density"]
    assert (one["n_controls"], len(values)) == (8, 8)
    np.testing.assert_allclose([one["mean"], one["sd"]], [values.mean(), values.std(ddof=1)], rtol=1e-6)


def test_monai_builds_the_network(folder, exported) -> None:
    import torch

    parser = ConfigParser()
    parser.read_config(exported.inference)
    parser.read_meta(exported.metadata)
    parser["bundle_root"] = str(exported.root)
    network = parser.get_parsed_content("network_def")
    shape = parser["_meta_#network_data_format#inputs#image#spatial_shape"]
    volume = torch.rand(1, 1, *shape, generator=torch.Generator().manual_seed(1))
    run = RunLayout(folder / "run")
    with torch.no_grad():
        wanted = sum(load_model(run.fold(index)).model(volume) for index in (0, 1)) / 2
        torch.testing.assert_close(network(volume), wanted)
    assert parser["_meta_#network_data_format#outputs#pred#channel_def"] == {"0": "CN", "1": "AD"}


@pytest.mark.slow
def test_an_export_predicts_as_the_run_does(applied) -> None:
    of_run, of_export = applied
    assert (of_export.group / "predictions.tsv").read_bytes() == (of_run.group / "predictions.tsv").read_bytes()


@pytest.mark.slow
def test_people_who_were_trained_with_are_recognised_and_left_out(folder, applied) -> None:
    splits = read_table(folder / "run" / "splits.tsv")
    scans = read_table(applied[1].root / "scans.tsv")
    assert set(scans[~scans["kept"]]["participant_id"]) == set(splits["participant_id"])
    assert set(scans[~scans["kept"]]["reason"]) == {"named in people.tsv (cohort.without)"}


def evidence(layout: RunLayout) -> pd.DataFrame:
    return read_table(layout.group / "evidence.tsv").set_index(["map", "scan_id"]).sort_index()


@pytest.mark.slow
def test_methods_that_compare_with_the_mean_give_the_same_evidence(applied) -> None:
    ours, theirs = (evidence(one).loc[OF_MEAN] for one in applied)
    assert len(ours) == 8
    distance = (ours["evidence"] - ours["reference_evidence"]).abs()
    assert distance.min() > 0
    np.testing.assert_allclose(theirs["map_sum"], ours["map_sum"], atol=1e-4)
    assert set(theirs["n_reference"]) == {CONTROLS}


@pytest.mark.slow
def test_expected_gradients_use_the_mean_and_say_so(applied) -> None:
    layout = applied[1]
    found = evidence(layout)
    ours, mean = found.loc["expectedGradients"], found.loc[OF_MEAN]
    np.testing.assert_allclose(ours["reference_evidence"], mean["reference_evidence"], atol=1e-5)
    sidecars = sorted(layout.root.glob("sub-*/**/*expectedGradients*.json"))
    assert json.loads(sidecars[0].read_text())["ReferenceParticipants"] == [f"mean of {CONTROLS} controls"]
    assert f"mean image of {CONTROLS} controls" in layout.log.read_text()


def refused(capsys, *words: object) -> str:
    assert main([str(word) for word in words]) != 0
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    return said


def test_bad_folders_are_refused_before_any_work(folder, exported, tmp_path, capsys) -> None:
    def answer(damage) -> str:
        copy, out = tmp_path / "copy", tmp_path / "out"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(exported.root, copy)
        damage(BundleLayout(copy))
        said = refused(capsys, "apply", copy, folder / "input", out)
        assert not out.exists()
        return said

    def newer(one: BundleLayout) -> None:
        facts = json.loads(one.metadata.read_text())
        facts["heatlas"]["format"] += 1
        one.metadata.write_text(json.dumps(facts))

    def altered(one: BundleLayout) -> None:
        content = bytearray(one.fold(1).weights.read_bytes())
        content[-1] ^= 1
        one.fold(1).weights.write_bytes(content)

    assert "newer Heatlas (format 2; this one reads 1)" in answer(newer)
    assert "SHA-256 differs" in answer(altered)
    assert "mean_controls.nii.gz: missing" in answer(lambda one: one.mean_controls.unlink())
    assert "not one of heatlas export" in answer(lambda one: one.metadata.write_text("{}"))
    assert "neither a finished run nor a folder of heatlas export" in answer(lambda one: one.metadata.unlink())


def test_what_cannot_be_exported_is_refused(folder, tmp_path, capsys) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "run", copy)
    (copy / "models" / "fold-1" / "model.json").unlink()
    assert "not finished (fold 1 has no network)" in refused(capsys, "export", copy, tmp_path / "given")
    assert "not a Heatlas run" in refused(capsys, "export", folder / "input", tmp_path / "given")
    assert "is not empty" in refused(capsys, "export", folder / "run", folder / "input")
    assert not (tmp_path / "given").exists()


def test_a_name_in_the_settings_is_refused(folder, tmp_path, capsys) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "run", copy)
    for path in (copy / "config.toml", copy / "logs" / "settings.toml"):
        path.write_text(path.read_text().replace('title = "', 'title = "sub-03 ', 1))
    said = refused(capsys, "export", copy, tmp_path / "given")
    assert "would name sub-03" in said
    assert not (tmp_path / "given").exists()


def test_people_are_digests_of_the_run(exported) -> None:
    description = json.loads(exported.fold(0).description.read_text())
    named = [name for part in description["participants"].values() for name in part]
    salt = named[0].split(":")[1]
    assert hidden_name("sub-00", salt) in named
    assert sorted(named) == read_table(exported.people)["participant_id"].tolist()
    assert set(description["scans"]) == {"train", "validation", "test"}
    assert sum(description["scans"].values()) == len(named)


@pytest.mark.slow
def test_networks_used_as_they_are_are_not_trained_on_shuffled_labels(applied, capsys) -> None:
    own = EvaluationLayout(applied[0].root)
    for part in ("plant", "retrain", "consensus", "marker"):
        assert main(["evaluate", str(own.root), "--parts", part]) == 2
        assert "trains networks with the recipe of the run" in capsys.readouterr().err
    asked = ["--quick", "--parts", "nulls", "--methods", "gradient", "--n-procs", "1"]
    assert main(["evaluate", str(own.root), *asked]) == 0
    networks = set(EVALUATION_TABLE.read(own)["network"])
    assert {"real", "untrained", "cascade-1"} <= networks
    assert not any(name.startswith("shuffled") for name in networks)
    verdict = VERDICTS_TABLE.read(own).set_index("map").loc["gradient"]
    assert verdict["tells_labels"] == UNKNOWN
    assert pd.isna(verdict["passed"])
    assert "shuffled" not in verdict["verdict"] + verdict["numbers"]
