"""Networks by name: exports for everyone, ``heatlas networks``, and a number's network on a scan without a label."""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import safetensors.torch
import torch

import heatlas
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models import named_networks
from heatlas.pipeline.models.contract import ensemble_of, members_of
from heatlas.pipeline.models.inputs import configured_input, read_network_volume
from heatlas.pipeline.models.named_networks import CARRIED, VARIABLE, network_folder, open_network
from heatlas.pipeline.models.named_networks import named_networks as known_networks
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.bundle_layout import Bundle, BundleLayout
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.training.given import members_to_apply
from heatlas.pipeline.training.prediction import number_of
from heatlas.workflows import export
from heatlas.workflows.command_line import main
from tests.workflows.template_cohort import write_config, write_template_cohort

SCAN = "sub-30"


def bundle(folder: Path, **summary: object) -> BundleLayout:
    """An export of two files."""
    made = BundleLayout(folder)
    for path in (made.metadata, made.people, made.card):
        path.parent.mkdir(parents=True)
    made.people.write_text("participant_id\n")
    made.card.write_text("# The card\n")
    files = {"models/people.tsv": file_digest(made.people)}
    facts = Bundle(made, "patients", (0,), 30, "0" * 64, files=files, summary=summary).facts
    made.metadata.write_text(json.dumps({"heatlas": facts}))
    return made


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "networks"
    monkeypatch.setenv(VARIABLE, str(folder))
    measured = {"measure": "mae", "estimate": 5.04, "ci_low": 4.51, "ci_high": 5.62}
    bundle(folder / "my-age", task="age predicted", people=279, licence="ours", **measured)
    return folder


def test_a_path_wins_over_a_name_and_a_name_over_nothing(own: Path, tmp_path: Path, monkeypatch) -> None:
    assert network_folder("my-age") == own / "my-age"
    assert open_network("my-age").layout.root == own / "my-age"
    monkeypatch.chdir(tmp_path)
    Path("my-age").mkdir()
    assert network_folder("my-age") == Path("my-age")
    with pytest.raises(UsageError, match=r"my-ages: no such folder, .*Did you mean my-age\?"):
        network_folder("my-ages")


def test_those_that_come_with_heatlas_win_over_the_users(own: Path, tmp_path: Path, monkeypatch) -> None:
    carried = tmp_path / "carried"
    bundle(carried / "my-age")
    monkeypatch.setattr(named_networks, "CARRIED", carried)
    assert known_networks()["my-age"] == carried / "my-age"


def test_a_folder_of_the_variable_that_is_not_there_is_refused(monkeypatch, capsys) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere")
    assert main(["networks"]) == 2
    assert "HEATLAS_NETWORKS: /nowhere is not a folder" in capsys.readouterr().err


def test_a_line_and_a_card_for_each(own: Path, capsys) -> None:
    assert main(["networks"]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("my-age"))
    assert "my-age: age predicted; 279 people; mean absolute error 5.0 [4.5 to 5.6]; 0.0 MB; ours; in " in line
    assert main(["networks", "my-age"]) == 0
    assert capsys.readouterr().out.startswith("# The card")


def refused(capsys, code: int, *words: object) -> str:
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    return said


def test_changed_and_newer_networks_are_refused_before_anything_is_written(own: Path, tmp_path: Path, capsys) -> None:
    made, out = BundleLayout(own / "my-age"), tmp_path / "out"
    scan = tmp_path / "scan.nii.gz"
    nib.save(nib.Nifti1Image(np.ones((4, 4, 4)), np.eye(4)), scan)
    made.people.write_text("participant_id\nsub-1\n")
    assert "people.tsv: missing, or not the one that was exported" in refused(capsys, 65, "networks", "my-age")
    with pytest.raises(BadInputError, match=r"people\.tsv: missing, or not the one"):
        heatlas.explain(str(scan), network="my-age")
    facts = json.loads(made.metadata.read_text())
    facts["heatlas"]["format"] += 1
    made.metadata.write_text(json.dumps(facts))
    assert "was exported by a newer Heatlas" in refused(capsys, 65, "apply", "my-age", scan, out)
    assert "Did you mean my-age?" in refused(capsys, 2, "apply", "my-agee", scan, out)
    assert not out.exists()


@pytest.mark.parametrize("name", sorted(path.name for path in CARRIED.glob("*") if path.is_dir()))
def test_networks_that_come_with_heatlas_are_whole_small_and_nameless(name: str) -> None:
    made, folder = open_network(name), CARRIED / name
    assert made.layout.root == folder
    assert made.controls >= export.FEWEST_OF_PUBLIC
    assert set(made.files) == set(made.layout.digested())
    files = [path for path in folder.rglob("*") if path.is_file()]
    packed = sum(len(zlib.compress(path.read_bytes())) for path in files)
    assert packed <= 8e6, "in the wheel, which is packed file by file"
    assert [path.name for path in files if path.name.endswith(".nii.gz")] == ["mean_controls.nii.gz"]
    for path in files:
        content = path.read_bytes()
        assert b"sub-OAS" not in content, path
        assert b"OAS1_" not in content, path
    card = made.layout.card.read_text(encoding="utf-8")
    for said in ("Principal Investigators", "pass these terms on", "Not for a diagnosis", "## Beside baselines"):
        assert said in card
    assert {"people", "estimate", "ci_low", "ci_high", "seed", "commit", "licence"} <= set(made.summary)
    for files in made.networks:
        loaded = load_model(files)
        assert loaded.model(torch.zeros(1, 1, *loaded.input.shape)).isfinite().all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("number")
    write_template_cohort(folder / "input", participants=32)
    description = {"Name": "toy", "BIDSVersion": "1.9.0", "License": "ours <b>", "HowToAcknowledge": "Thank us"}
    (folder / "input" / "dataset_description.json").write_text(json.dumps(description))
    config = write_config(folder / "config.toml", epochs=10, rate=1e-2)
    config.write_text(config.read_text().replace("betas = [0.0]", 'betas = [0.0]\nmethods = ["deeplift", "lrp"]'))
    people = [f"{number:02d}" for number in range(26)]
    command = ["run", str(folder / "input"), str(folder / "run"), "--config", str(config), "--n-procs", "1"]
    options = ["--target", "age", "--stop-after", "statistics", "--participant-label", *people]
    assert main([*command, *options]) == 0
    shutil.copyfile(folder / "input" / SCAN / "anat" / f"{SCAN}_T1w.nii.gz", folder / "scan.nii.gz")
    return folder


@pytest.fixture(scope="module")
def public(folder) -> BundleLayout:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "FEWEST_OF_PUBLIC", 10)
        patch.setattr(export, "ROUNDED_FROM", 50)
        assert main(["export", str(folder / "run"), str(folder / "networks" / "toy-age"), "--public"]) == 0
    return BundleLayout(folder / "networks" / "toy-age")


@pytest.mark.ci
def test_a_mean_of_few_is_not_given_to_everyone(folder, tmp_path, capsys) -> None:
    assert "fewer than 30 shows too much" in refused(capsys, 65, "export", folder / "run", tmp_path / "x", "--public")
    assert not (tmp_path / "x").exists()


@pytest.mark.ci
def test_rounded_weights_answer_alike_and_the_mean_is_of_everyone(folder, public) -> None:
    run, made = RunLayout(folder / "run"), open_network(public.root)
    people = read_table(run.root / "splits.tsv")
    trained = sorted(set(people[people["part"] == "train"]["participant_id"]))
    assert made.controls == len(trained)
    for index in (0, 1):
        stored = safetensors.torch.load_file(public.fold(index).weights)
        assert {value.dtype for value in stored.values() if value.numel() >= 50} == {torch.float16}
        ours, theirs = (load_model(one.fold(index)) for one in (run, public))
        assert {value.dtype for value in theirs.model.state_dict().values()} <= {torch.float32, torch.int64}
        fold = people[(people["fold"] == index) & (people["part"] == "train")]
        for person in fold["participant_id"]:
            volume = torch.from_numpy(read_network_volume(run.scan(person, None, 4.0), ours.input))[None, None]
            with torch.no_grad():
                assert (ours.model(volume) - theirs.model(volume)).abs().max() <= 1e-3
    assert made.summary["people"] == 26
    card = public.card.read_text()
    assert "- Licence of the data: ours &lt;b>\n- Acknowledge: Thank us" in card
    assert made.summary["weights"] in card


@pytest.mark.ci
def test_a_network_that_rounding_changes_keeps_its_weights(folder, tmp_path, monkeypatch, capsys) -> None:
    for name, value in (("FEWEST_OF_PUBLIC", 10), ("ROUNDED_FROM", 50), ("LARGEST_CHANGE", 0.0)):
        monkeypatch.setattr(export, name, value)
    assert main(["export", str(folder / "run"), str(tmp_path / "x"), "--public"]) == 0
    assert "Weights are in single precision" in capsys.readouterr().out
    ours, theirs = (one.fold(0).weights for one in (RunLayout(folder / "run"), BundleLayout(tmp_path / "x")))
    assert theirs.read_bytes() == ours.read_bytes()


@pytest.fixture(scope="module")
def applied(folder, public) -> RunLayout:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "networks"))
        command = ["apply", "toy-age", str(folder / "scan.nii.gz"), str(folder / "one"), "--n-procs", "1"]
        assert main([*command, "--start-at", "template"]) == 0
    return RunLayout(folder / "one")


@pytest.mark.ci
def test_a_number_is_answered_without_a_label(folder, public, applied) -> None:
    (row,) = read_table(applied.group / "predictions_applied.tsv").to_dict("records")
    loaded = [load_model(public.fold(index)) for index in (0, 1)]
    volume = torch.from_numpy(read_network_volume(applied.scan("sub-scan", None, 4.0), loaded[0].input))[None, None]
    with torch.no_grad():
        outputs = [float(one.model(volume)) for one in loaded]
    scales = [one.description["objective"] for one in loaded]
    years = [out * one["target_sd"] + one["target_mean"] for out, one in zip(outputs, scales, strict=True)]
    assert row["prediction"] == pytest.approx(np.mean(years), abs=1e-4)
    assert row["prediction_sd"] == pytest.approx(np.std(years, ddof=1), abs=1e-4)
    assert row["n_networks"] == 2
    scores = read_table(applied.group / "statistics" / "w_scores.tsv")
    assert set(scores["source"]) == {"deeplift", "lrpB000"}
    assert scores["w"].notna().any()
    page = applied.report.read_text(encoding="utf-8")
    assert f"The predicted age is {row['prediction']:.1f}, with a standard deviation over the networks of" in page
    assert "Probability of" not in page


def test_networks_of_a_number_answer_in_its_unit_where_people_have_labels() -> None:
    bundle = open_network("oasis1-age")
    config = read_config(bundle.layout.config)
    config = replace(config, training=replace(config.training, networks_of=str(bundle.layout.root)))
    used, _ = members_to_apply(config, task_of(config.cohort), configured_input(config))
    loaded = [load_model(files) for files in bundle.networks]
    volume = torch.rand(1, 1, *loaded[0].input.shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        years = [number_of(member(volume).numpy(), one) for one in loaded for member in members_of(one.model)]
        np.testing.assert_allclose([float(member(volume)) for member in used], years, atol=1e-3)
    assert 5 < min(years) < max(years) < 120  # no standard deviations


@pytest.mark.ci
def test_people_with_too_few_numbers_are_answered_all_the_same(folder, public, tmp_path) -> None:
    new = tmp_path / "new"
    shutil.copytree(folder / "input", new)
    table = (new / "participants.tsv").read_text().splitlines()
    column = table[0].split("\t").index("age")
    rows = [line.split("\t") for line in table[1:]]
    text = "\n".join(["\t".join("n/a" if at == column else cell for at, cell in enumerate(row)) for row in rows])
    (new / "participants.tsv").write_text(f"{table[0]}\n{text}\n")
    command = ["apply", str(public.root), str(new), str(tmp_path / "out"), "--n-procs", "1", "--start-at", "template"]
    assert main([*command, "--stop-after", "training"]) == 0
    found = read_table(tmp_path / "out" / "group" / "predictions_applied.tsv")
    assert len(found) == 6
    assert found["prediction"].notna().all()


@pytest.mark.ci
def test_explain_takes_a_name(folder, public, applied, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, str(folder / "networks"))
    found = heatlas.explain(str(folder / "scan.nii.gz"), network="toy-age", start_at="template")
    (row,) = read_table(applied.group / "predictions_applied.tsv").to_dict("records")
    assert found.method == "deeplift"
    assert found.value == pytest.approx(row["prediction"], abs=1e-3)
    assert abs(found.missing) < 1e-3
    assert len(found.regions()) > 100
    whole = ensemble_of([one for index in (0, 1) for one in members_of(load_model(public.fold(index)).model)])
    assert found.map.shape == tuple(whole.architecture.input_shape)
