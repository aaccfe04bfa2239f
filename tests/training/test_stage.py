"""Training of a run, and the trainer."""

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
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

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
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.training import progress
from heatlas.pipeline.training.answers import balanced_accuracy, control_of
from heatlas.pipeline.training.objectives.of_task import class_weights, classification
from heatlas.pipeline.training.objectives.records import Context
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE, SPREAD, predict_test_part
from heatlas.pipeline.training.progress import EpochRecord, TensorBoardEvents, read_checkpoint
from heatlas.pipeline.training.stage import HISTORIES_TABLE
from heatlas.pipeline.training.steps import prepare_step, repeatable
from heatlas.pipeline.training.trainer import Resumption, batches, channels_last, parameter_groups, train
from heatlas.studies.bcos.networks import LayerScale
from heatlas.studies.bcos.records import BcosSimpleConfig
from tests.training.planted import QUICK, planted_volumes, small_network
from tests.training.run_of_folds import CONFIG, SPLIT, labelled_scans, train_all, write_registered

# Training of a run: every fold, its files and tables, events for TensorBoard, and control runs.

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
    assert list(table.columns) == [name for name in PREDICTIONS_TABLE.meanings if name != SPREAD]
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
        history = read_table(files.history, list(HISTORIES_TABLE.meanings))
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


# The trainer: steps, batch statistics, seeds, and what is written of a training.


def balanced(training):
    return classification(class_weights(training.targets, balance=True))


def run(folder, training, validation, config=QUICK, seed=43):
    model = small_network(seed)
    with repeatable(torch.device("cpu"), seed, 1):
        trained = train(
            model, training, validation, balanced(training), config, seed, Resumption(folder / "c.safetensors", "key")
        )
    model.load_state_dict(trained.weights)
    return trained, model.eval()


@torch.no_grad()
def held_out_accuracy(model, data):
    return balanced_accuracy(data.targets.numpy(), model(data.volumes.float()).numpy())


def test_a_planted_blob_is_learned_and_shuffled_labels_are_not(tmp_path):
    test = planted_volumes(40, 9)
    _, model = run(tmp_path, planted_volumes(24, 1), planted_volumes(10, 2))
    assert held_out_accuracy(model, test) >= 0.9
    scores = []
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        shuffled = planted_volumes(24, seed, shuffled=True), planted_volumes(10, 50 + seed, shuffled=True)
        _, model = run(tmp_path / str(seed), *shuffled, dataclasses.replace(QUICK, max_epochs=6), seed)
        # Labels of the test scans are shuffled as well: no rule, not even "bright blob", can beat chance on them.
        scores.append(held_out_accuracy(model, planted_volumes(60, 99 + seed, shuffled=True)))
    # Standard error of balanced accuracy at chance with 4 x 60 scans: 0.032.
    assert np.mean(scores) == pytest.approx(0.5, abs=0.11)


def test_two_runs_give_identical_weights_and_another_seed_does_not(tmp_path):
    data = planted_volumes(10, 1), planted_volumes(6, 2)
    config = dataclasses.replace(QUICK, max_epochs=2)
    results = []
    for name, seed in (("a", 43), ("b", 43), ("c", 44)):
        (tmp_path / name).mkdir()
        torch.rand(len(results) + 1)  # the state of the global generator must not matter
        results.append(run(tmp_path / name, *data, config, seed)[0])
    one, two, other = results
    assert one.history == two.history
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
    assert one.history != other.history


def test_history_is_what_the_kept_weights_give(tmp_path):
    validation = planted_volumes(9, 2)
    config = dataclasses.replace(QUICK, max_epochs=4)
    trained, model = run(tmp_path, planted_volumes(15, 1), validation, config)
    record = trained.history[trained.selection.best_epoch - 1]
    assert [r.epoch for r in trained.history] == [1, 2, 3, 4]
    with torch.no_grad():
        logits = model(validation.volumes.float())
    # Training part: 7 negative, 8 positive; validation 4 and 5.
    weight = torch.tensor([15 / 14, 15 / 16])
    expected = functional.cross_entropy(logits, validation.targets, weight)
    assert record.validation_loss == pytest.approx(expected.item(), rel=1e-5)
    assert record.validation_score == balanced_accuracy(validation.targets.numpy(), logits.numpy())


def test_one_step_is_adam_on_the_weighted_cross_entropy(tmp_path):
    data = planted_volumes(3, 1)
    config = dataclasses.replace(
        QUICK, max_epochs=1, min_epochs=1, flip_probability=0.0, max_shift_voxels=0, weight_decay=1e-2
    )
    model = small_network()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    reference = {name: value.clone().double() for name, value in model.state_dict().items()}
    double = small_network().double()
    double.load_state_dict(reference)
    for module in double.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    logits = double.train()(data.volumes.double())
    # One negative and two positive scans: weights 3/2 and 3/4, mean over scans.
    losses = functional.cross_entropy(logits, data.targets, reduction="none") * torch.tensor([1.5, 0.75, 0.75])
    losses.mean().backward()
    with repeatable(torch.device("cpu"), 1, 1):
        train(model, data, data, balanced(data), config, 1, Resumption(tmp_path / "c", "key"))
    for (name, after), parameter in zip(model.named_parameters(), double.parameters(), strict=True):
        gradient = parameter.grad + config.weight_decay * parameter.detach()
        expected = reference[name] - config.learning_rate * gradient / (gradient.abs() + 1e-8)
        clear = gradient.abs() > 1e-5  # Adam's first step is the sign of the gradient; near 0 rounding decides
        torch.testing.assert_close(after.double()[clear], expected[clear], rtol=0, atol=2e-6)


@pytest.mark.parametrize("channels", [None, 2])
def test_maps_of_a_frozen_teacher_move_as_their_scans_with_each_channel(tmp_path, channels):
    data, seen = planted_volumes(4, 1), []
    own = data.volumes[:, 0].float()
    maps = own if channels is None else torch.stack([own, 2 * own], 1)
    usual = balanced(data)

    def loss(model, batch, context):
        if batch.masks is not None:
            seen.append((batch.scans, batch.volumes[:, 0], batch.masks))
        return usual.loss(model, batch, context)

    config = dataclasses.replace(QUICK, max_epochs=1, min_epochs=1, flip_probability=0.5, max_shift_voxels=2)
    with repeatable(torch.device("cpu"), 1, 1):
        train(
            small_network(), data, data, dataclasses.replace(usual, loss=loss), config, 1,
            Resumption(tmp_path / "c", "key"), Context(masks=maps),
        )  # fmt: skip
    assert any(not torch.equal(volumes, own[scans]) for scans, volumes, _ in seen)
    for _, volumes, masks in seen:
        wanted = volumes if channels is None else torch.stack([volumes, 2 * volumes], 1)
        torch.testing.assert_close(masks, wanted, rtol=0, atol=1e-3)


def test_the_average_of_the_weights_is_kept_and_resumed(tmp_path):
    """Of steps with weights w: a = w after the first, then a' = 0.75 a + 0.25 w; here one step is an epoch."""
    data = planted_volumes(3, 1), planted_volumes(4, 2)
    config = dataclasses.replace(QUICK, max_epochs=4, min_epochs=4, batch_size=3)
    states = []
    for epochs in (1, 2, 3, 4):
        folder = tmp_path / f"{epochs}"
        folder.mkdir()
        run(folder, *data, dataclasses.replace(config, max_epochs=epochs, min_epochs=epochs))
        states.append(read_checkpoint(folder / "c.safetensors", "key").weights)
    expected, averages = states[0], []
    for state in states:
        averages.append({name: 0.75 * expected[name] + 0.25 * value for name, value in state.items()})
        expected = averages[-1]
    averaged = dataclasses.replace(config, weight_average=0.75)
    (tmp_path / "mean").mkdir()
    run(tmp_path / "mean", *data, dataclasses.replace(averaged, max_epochs=2, min_epochs=2))
    trained, model = run(tmp_path / "mean", *data, averaged)  # continues after two epochs
    found = read_checkpoint(tmp_path / "mean" / "c.safetensors", "key")
    kept = averages[trained.selection.best_epoch - 1]
    for name, value in expected.items():
        if states[0][name].is_floating_point():
            torch.testing.assert_close(found.average[f"module.{name}"], value, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.weights[name], states[3][name], rtol=0, atol=0)
            torch.testing.assert_close(trained.weights[name], kept[name], rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        logits = model(data[1].volumes.float())
    loss = functional.cross_entropy(logits, data[1].targets, class_weights(data[0].targets, balance=True))
    assert trained.history[trained.selection.best_epoch - 1].validation_loss == pytest.approx(loss.item(), rel=1e-4)


def test_a_step_of_the_head_is_scaled_by_its_factor_and_no_other_weight_knows(tmp_path):
    data = planted_volumes(3, 1), planted_volumes(4, 2)
    once = dataclasses.replace(QUICK, max_epochs=1, min_epochs=1, batch_size=3)
    before, states = small_network(43).state_dict(), []
    for factor in (1.0, 0.25):
        (tmp_path / f"{factor}").mkdir()
        run(tmp_path / f"{factor}", *data, dataclasses.replace(once, head_learning_rate_factor=factor))
        states.append(read_checkpoint(tmp_path / f"{factor}" / "c.safetensors", "key").weights)
    usual, slow = states
    assert {name for name in usual if not torch.equal(usual[name], slow[name])} == {
        "_stages.4.1.weight",
        "_stages.4.1.bias",
    }
    for name in ("_stages.4.1.weight", "_stages.4.1.bias"):
        assert bool((usual[name] != before[name]).any())
        torch.testing.assert_close(slow[name] - before[name], 0.25 * (usual[name] - before[name]), rtol=0, atol=1e-7)


def test_a_factor_of_the_head_needs_a_head():
    with pytest.raises(UsageError, match="no weights that are learned"):
        parameter_groups(torch.nn.Linear(2, 2), 0.1)
    network = small_network()
    (every,) = parameter_groups(network, 1.0)
    assert every["params"] == list(network.parameters())
    rest, head = parameter_groups(network, 0.1)
    assert [*rest["params"], *head["params"]] == every["params"]
    assert (rest["factor"], head["factor"], len(head["params"])) == (1.0, 0.1, 2)


def test_average_and_factor_of_the_head_survive_an_interruption_bit_for_bit(tmp_path):
    data = planted_volumes(5, 1), planted_volumes(4, 2)
    config = dataclasses.replace(QUICK, max_epochs=4, min_epochs=4, weight_average=0.6, head_learning_rate_factor=0.1)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, _ = run(tmp_path / "whole", *data, config)
    run(tmp_path / "parts", *data, dataclasses.replace(config, max_epochs=2, min_epochs=2))
    parts, _ = run(tmp_path / "parts", *data, config)
    assert parts.history == whole.history
    one, other = (read_checkpoint(tmp_path / name / "c.safetensors", "key") for name in ("whole", "parts"))
    for kept in ("weights", "best_weights", "average"):
        ours, theirs = getattr(one, kept), getattr(other, kept)
        assert ours
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for place, values in one.moments.items():
        assert all(torch.equal(value, other.moments[place][name]) for name, value in values.items())


def test_a_loss_that_explodes_is_named(tmp_path):
    data = planted_volumes(8, 1)
    data.volumes[2, 0, 3, 4, 5] = float("nan")
    with pytest.raises(UsageError, match=r"epoch 1.*learning_rate"):
        run(tmp_path, data, planted_volumes(6, 2))


def test_weights_of_four_axes_can_be_trained():
    """Those of the layer scale of ConvNeXt; only filters of volumes are laid out anew."""
    model = torch.nn.Sequential(torch.nn.Conv3d(2, 3, (2, 3, 4)), LayerScale(3))
    before = [weight.detach().clone() for weight in model.parameters()]
    channels_last(model)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert model[1].weight.shape == (3, 1, 1, 1)
    assert all(torch.equal(one, weight) for one, weight in zip(before, model.parameters(), strict=True))
    for settings in ((1, 8, 3), (8, 4, 1)):  # whose layout is ambiguous, and decides the kernels used
        ours, theirs = torch.nn.Conv3d(*settings), torch.nn.Conv3d(*settings)
        channels_last(ours)
        assert ours.weight.stride() == theirs.to(memory_format=torch.channels_last_3d).weight.stride()


def test_class_weights():
    targets = torch.tensor([0] * 30 + [1] * 10)
    weights = class_weights(targets, balance=True)
    assert weights.tolist() == pytest.approx([2 / 3, 2.0])
    assert weights[targets].mean().item() == pytest.approx(1)
    assert class_weights(targets, balance=False).tolist() == [1, 1]


@given(count=st.integers(1, 60), size=st.integers(1, 9))
def test_batches_hold_every_scan_once_in_order_and_differ_by_one_at_most(count, size):
    order = np.random.default_rng(count).permutation(count)
    cut = batches(order, size)
    np.testing.assert_array_equal(np.concatenate(cut), order)
    lengths = [len(batch) for batch in cut]
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1
    assert len(cut) == -(-count // size)


def test_contexts_leave_no_trace():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    with kept_memory(), repeatable(torch.device("cpu"), 8, 2):
        assert torch.get_num_threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
        torch.rand(5)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before
    assert torch.equal(torch.rand(2), expected)


def test_running_mean_is_the_plain_mean_of_the_first_batches_then_exponential():
    layer = nn.BatchNorm3d(1)
    expected = 0.0
    for step in range(1, 15):
        prepare_step(layer)
        layer(torch.full((2, 1, 2, 2, 2), float(step**2)))
        share = 1 / step if step < 10 else 0.1
        expected += share * (step**2 - expected)
        if step == 3:
            assert layer.running_mean.item() == pytest.approx((1 + 4 + 9) / 3)
        assert layer.running_mean.item() == pytest.approx(expected, rel=1e-6)


def test_the_initial_variance_of_one_is_forgotten_at_the_first_step():
    layer = nn.BatchNorm3d(1)
    prepare_step(layer)
    layer(torch.tensor([0.0, 0.01]).reshape(2, 1, 1, 1, 1))
    assert layer.running_var.item() == pytest.approx(0.01**2 / 2, rel=1e-5)
