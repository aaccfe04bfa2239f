"""Training of a run: every fold, its files and tables, events for TensorBoard, and control runs."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from heatlas.atlases.spaces import Box
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, read_network_volume, to_network
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.training import progress
from heatlas.pipeline.training.answers import control_of
from heatlas.pipeline.training.prediction import PREDICTION_COLUMNS, predict_test_part
from heatlas.pipeline.training.progress import EpochRecord, TensorBoardEvents
from heatlas.pipeline.training.stage import HISTORY_COLUMNS
from heatlas.studies.bcos.records import BcosSimpleConfig
from tests.training.run_of_folds import CONFIG, SPLIT, labelled_scans, train_all, write_registered

REPOSITORY = Path(__file__).parents[2]
FOLD_FILES = {"model.safetensors", "model.json", "history.tsv", "history.json", "predictions.tsv", "predictions.json"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    layout = RunLayout(tmp_path_factory.mktemp("finished"))
    write_registered(layout)
    return layout, train_all(layout)


@pytest.fixture
def copy(finished, tmp_path):
    """A run of its own that is already trained."""
    shutil.copytree(finished[0].root, tmp_path / "run")
    return RunLayout(tmp_path / "run")


def content(layout):
    """Bytes of everything that training leaves behind for others."""
    files = [*sorted((layout.root / "models").rglob("*")), layout.group / "predictions.tsv"]
    return {path.relative_to(layout.root).as_posix(): path.read_bytes() for path in files if path.is_file()}


def test_every_tested_scan_is_predicted_once_by_the_fold_that_tests_it(finished):
    layout, outcomes = finished
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    table = read_table(layout.group / "predictions.tsv")
    assert list(table.columns) == list(PREDICTION_COLUMNS)
    names = table[["participant_id", "fold", "label", "target"]].values.tolist()
    assert names == [
        ["sub-1", 0, "CN", 0],
        ["sub-2", 0, "AD", 1],
        ["sub-2", 0, "AD", 1],
        ["sub-3", 1, "CN", 0],
        ["sub-4", 1, "AD", 1],
    ]
    assert table["session_id"].fillna("none").tolist() == ["none", "ses-M00", "ses-M12", "ses-M00", "ses-M00"]
    assert ((layout.group / "predictions.tsv").with_suffix(".json")).is_file()
    assert not layout.kept_volumes.exists()


def test_predictions_are_those_of_the_stored_model_on_the_unrounded_volume(finished):
    layout, _ = finished
    for row in read_table(layout.group / "predictions.tsv").itertuples():
        loaded = load_model(layout.fold(row.fold))
        session = row.session_id if isinstance(row.session_id, str) else None
        volume = read_network_volume(layout.scan(row.participant_id, session, 4.0), loaded.input)
        with torch.no_grad():
            negative, positive = loaded.model(torch.from_numpy(volume)[None, None])[0].double().tolist()
        assert (row.logit_negative, row.logit_positive) == pytest.approx((negative, positive), rel=1e-5, abs=1e-6)
        assert row.probability == pytest.approx(1 / (1 + np.exp(row.logit_negative - row.logit_positive)), rel=1e-12)
        assert row.predicted == ("AD" if row.logit_positive > row.logit_negative else "CN")
        assert row.outcome == ("T" if row.predicted == row.label else "F") + ("P" if row.predicted == "AD" else "N")


def test_what_a_fold_leaves_behind(finished):
    layout, _ = finished
    for fold in SPLIT.folds:
        files = layout.fold(fold.index)
        assert {path.name for path in files.folder.iterdir()} == FOLD_FILES
        history = read_table(files.history, list(HISTORY_COLUMNS))
        text = json.loads(files.description.read_text())
        assert history["epoch"].tolist() == list(range(1, text["epochs"] + 1))
        assert history.loc[history["best"], "epoch"].tolist() == [text["best_epoch"]]
        assert text["participants"] == {p: list(getattr(fold, p)) for p in ("train", "validation", "test")}
        assert text["classes"] == ["CN", "AD"]
        assert text["converged"] == (text["ended_by"] == "early stopping")
        assert (text["seed"], text["input"]["resolution_mm"]) == (5, 4.0)
    assert text["scans"]["train"] == ["sub-1", "sub-2_ses-M00", "sub-7_ses-M00", "sub-8_ses-M00", "sub-2_ses-M12"]
    assert text["objective"]["class_weights"] == pytest.approx([5 / 4, 5 / 6])


def test_folds_start_from_different_weights_and_the_seed_decides(finished, tmp_path):
    layout, _ = finished
    seeds = {json.loads(layout.fold(n).description.read_text())["fold_seed"] for n in (0, 1)}
    assert len(seeds) == 2
    other = RunLayout(tmp_path)
    write_registered(other)
    train_all(other, config=dataclasses.replace(CONFIG, seed=6))
    assert content(other)["models/fold-0/history.tsv"] != content(layout)["models/fold-0/history.tsv"]


@pytest.mark.ci
@pytest.mark.parametrize("deadly_batch", [pytest.param(4, marks=pytest.mark.slow), 8])
def test_a_run_killed_in_training_ends_as_an_unbroken_one(finished, tmp_path, deadly_batch):
    layout = RunLayout(tmp_path / "killed")
    write_registered(layout)
    command = [sys.executable, "-m", "tests.training.run_of_folds", str(layout.root), str(deadly_batch)]
    assert subprocess.run(command, cwd=REPOSITORY, timeout=120).returncode == -signal.SIGKILL
    assert list(layout.root.glob("models/fold-*/checkpoint.safetensors"))
    assert not (layout.group / "predictions.tsv").exists()
    train_all(layout)
    assert content(layout) == content(finished[0])


def test_a_second_run_does_nothing(copy):
    before = {path: path.stat().st_mtime_ns for path in (copy.root / "models").rglob("*") if path.is_file()}
    assert [outcome.status for outcome in train_all(copy)] == ["unchanged", "unchanged"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_only_folds_that_depend_on_a_change_are_trained_again(copy):
    scans = [s for s in labelled_scans() if s.scan_id != "I22"]
    assert [o.status for o in train_all(copy, scans)] == ["done", "done"]  # tested in one, trained in the other
    narrower = Split((SPLIT.folds[0], dataclasses.replace(SPLIT.folds[1], test=("sub-3",))))
    assert [o.status for o in train_all(copy, scans, narrower)] == ["unchanged", "done"]
    assert read_table(copy.group / "predictions.tsv")["participant_id"].tolist() == ["sub-1", "sub-2", "sub-3"]


def test_a_fold_that_cannot_be_trained_is_a_failure_and_the_other_goes_on(copy):
    scans = [s for s in labelled_scans() if s.participant_id != "sub-8"]  # fold 0 validates AD on sub-8 alone
    outcomes = train_all(copy, scans)
    assert [o.status for o in outcomes] == ["failed", "done"]
    assert "fold 0: the validation part has no usable scan of AD" in outcomes[0].message
    assert read_table(copy.failures)["unit"].tolist() == ["fold-0"]
    assert read_table(copy.group / "predictions.tsv")["fold"].unique().tolist() == [1]


def test_a_scan_that_cannot_be_read_is_named(copy):
    files = copy.scan("sub-7", "ses-M00", 4.0)
    files.t1w.write_bytes(b"not an image")
    outcomes = train_all(copy)
    assert all(o.status == "failed" and files.t1w.name in o.message for o in outcomes)
    assert not (copy.group / "predictions.tsv").exists()


def test_offsets_of_classes_are_all_that_centred_logits_add_and_they_are_described(copy):
    tiny = dataclasses.replace(CONFIG, model=BcosSimpleConfig(channels=(2,), strides=(3,)))
    split, found = Split(SPLIT.folds[:1]), {}
    for part in ("none", "training", "validation"):
        train_all(copy, split=split, config=dataclasses.replace(
            tiny, training=dataclasses.replace(CONFIG.training, max_epochs=1, centre_logits=part)))  # fmt: skip
        loaded = load_model(copy.fold(0))
        found[part] = loaded.model.state_dict(), loaded.description.get("logit_offsets")
    usual, described = found.pop("none")
    assert described is None
    for part, (weights, described) in found.items():
        (offsets,) = described["networks"]
        assert described["fitted_to"] == part
        assert sum(offsets) == pytest.approx(0, abs=1e-6)
        assert abs(offsets[0]) > 1e-4
        (changed,) = [name for name in usual if not torch.equal(usual[name], weights[name])]
        torch.testing.assert_close(weights[changed], usual[changed] + torch.tensor(offsets))
    assert found["training"][1]["networks"] != found["validation"][1]["networks"]


def test_a_grid_too_small_is_refused_before_any_work(tmp_path):
    config = dataclasses.replace(CONFIG, model=FoundingConfig(field_of_view="template"))
    with pytest.raises(BadInputError, match="49x58x49"):
        train_all(RunLayout(tmp_path), config=config)
    assert not list(tmp_path.iterdir())


def test_a_label_outside_the_contrast_is_refused(tmp_path):
    scans = [*labelled_scans()[:-1], dataclasses.replace(labelled_scans()[-1], label="MCI")]
    with pytest.raises(BadInputError, match=r"sub-2_ses-M12: label 'MCI'"):
        train_all(RunLayout(tmp_path), scans)


def test_predicting_a_participant_the_model_was_trained_with_is_refused(finished):
    layout, _ = finished
    loaded = load_model(FoldFiles(layout.fold(0).folder))
    leaking = Fold(0, train=("sub-4",), validation=("sub-7",), test=("sub-1", "sub-3"))
    with pytest.raises(BadInputError, match="network was trained or selected with sub-3"):
        predict_test_part(layout, loaded, task_of(CONFIG.cohort), leaking, labelled_scans(), torch.device("cpu"))
    both = Fold(0, train=("sub-1",), validation=("sub-7",), test=("sub-1",))
    with pytest.raises(BadInputError, match="sub-1"):
        predict_test_part(layout, loaded, task_of(CONFIG.cohort), both, labelled_scans(), torch.device("cpu"))


@pytest.fixture
def written(monkeypatch) -> list[tuple]:
    """What a writer of TensorBoard is asked to do."""
    calls: list[tuple] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            self.folder = Path(folder)
            calls.append(("open", self.folder, purge_step))

        def add_scalar(self, name: str, value: float, epoch: int) -> None:
            calls.append((self.folder, name, value, epoch))

        def flush(self) -> None:
            calls.append(("flush",))

        def close(self) -> None:
            calls.append(("close", self.folder))

    monkeypatch.setattr(progress, "find_spec", lambda name: name == "tensorboard")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    return calls


def test_every_epoch_of_every_fold_is_written_as_in_its_history(written, tmp_path):
    layout = RunLayout(tmp_path)
    write_registered(layout)
    train_all(layout)
    for fold in (0, 1):
        folder = layout.fold(fold).folder / "events" / "network-1"
        history = read_table(layout.fold(fold).history)
        for name, column in (
            ("loss/training", "train_loss"),
            ("loss/validation", "validation_loss"),
            ("score/training", next(one for one in history if one.startswith("train_") and one != "train_loss")),
            ("score/validation", next(one for one in history if one.startswith("validation_") and "loss" not in one)),
        ):
            own = {call[3]: call[2] for call in written if call[:2] == (folder, name)}
            assert list(own) == history["epoch"].tolist()
            assert list(own.values()) == pytest.approx(history[column].tolist(), abs=1e-6)
        assert written.count(("open", folder, 1)) == 1
        assert written.count(("close", folder)) == 1
    assert written.count(("flush",)) == sum(len(read_table(layout.fold(fold).history)) for fold in (0, 1))


def test_a_training_that_goes_on_hides_what_was_written_of_later_epochs(written, tmp_path):
    with TensorBoardEvents(tmp_path) as report:
        report(EpochRecord(4, 0.5, 0.6, 0.7, 0.8))
    assert written[0] == ("open", tmp_path, 4)


def test_without_tensorboard_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with TensorBoardEvents(tmp_path / "events") as report:
        report(EpochRecord(1, 0.5, 0.6, 0.7, 0.8))
    assert not list(tmp_path.iterdir())


BINARISED = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, control="binarised"))
SPEC = NetworkInput(4.0, Box((3, 8, 5), (31, 40, 33)), "binary-brain")


def test_binarised_network_sees_the_mask_and_nothing_of_the_image():
    random = np.random.default_rng(0)
    shape = SPEC.template_grid.shape
    mask = random.random(shape) < 0.7
    one, other = (to_network(random.normal(60, 9, shape), mask.astype(float), SPEC) for _ in range(2))
    np.testing.assert_array_equal(one, mask[3:34, 8:48, 5:38])
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, other)


def test_binarised_refuses_the_scans_that_the_real_run_refuses():
    shape = SPEC.template_grid.shape
    with pytest.raises(BadInputError, match="mask is empty"):
        to_network(np.ones(shape), np.zeros(shape), SPEC)


def test_the_setting_reaches_the_network_and_unknown_ones_are_refused():
    assert configured_input(BINARISED).normalisation == "binary-brain"
    assert configured_input(CONFIG).normalisation == "minmax-brain"
    with pytest.raises(UsageError, match=r"training\.control = 'binarized'"):
        load_config(overrides={"training": {"control": "binarized"}})


def test_a_control_run_says_so_in_its_models_and_predictions_and_is_no_continuation(tmp_path):
    layout = RunLayout(tmp_path)
    write_registered(layout)
    train_all(layout)
    real = read_table(layout.group / "predictions.tsv")
    assert set(real["control"]) == {"none"}
    assert real.groupby("fold")["logit_positive"].nunique().tolist() == [3, 2]

    assert {outcome.status for outcome in train_all(layout, config=BINARISED)} == {"done"}
    control = read_table(layout.group / "predictions.tsv")
    assert set(control["control"]) == {"binarised"}
    assert control.groupby("fold")["logit_positive"].nunique().tolist() == [1, 1]  # all made with one mask
    files = layout.fold(0)
    assert json.loads(files.description.read_text())["control"] == "binarised"
    assert load_model(files).input.normalisation == "binary-brain"

    shuffled = dataclasses.replace(CONFIG, cohort=dataclasses.replace(CONFIG.cohort, shuffle_labels=True))
    assert {outcome.status for outcome in train_all(layout, config=shuffled)} == {"done"}
    assert set(read_table(layout.group / "predictions.tsv")["control"]) == {control_of(shuffled)} == {"shuffled labels"}
