"""The trainer: steps, batch statistics, seeds, and what is written of a training."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import kept_memory
from heatlas.pipeline.training.answers import balanced_accuracy
from heatlas.pipeline.training.objectives.of_task import class_weights, classification
from heatlas.pipeline.training.objectives.records import Context
from heatlas.pipeline.training.progress import read_checkpoint
from heatlas.pipeline.training.steps import prepare_step, repeatable
from heatlas.pipeline.training.trainer import Resumption, batches, channels_last, parameter_groups, train
from heatlas.studies.bcos.networks import LayerScale
from tests.training.planted import QUICK, planted_volumes, small_network


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
