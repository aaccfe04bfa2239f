"""Which epoch is kept: metrics of an epoch, the best by rule, and when training stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.training.answers import balanced_accuracy, outcome, positive_probability, predicted_class
from heatlas.pipeline.training.progress import BestEpoch


def test_balanced_accuracy_by_hand():
    targets = np.array([0, 0, 0, 0, 1, 1])
    logits = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [1, 0]], float)
    # Specificity 3/4, sensitivity 1/2.
    assert balanced_accuracy(targets, logits) == pytest.approx(0.625)


def test_equal_logits_are_negative():
    np.testing.assert_array_equal(predicted_class(np.array([[2.0, 2.0], [1.0, 1.5]])), [0, 1])


def test_probability_is_softmax_without_overflow():
    logits = np.array([[0.3, -1.2], [0.0, 0.0], [-2000.0, 2000.0], [2000.0, -2000.0]], np.float32)
    probability = positive_probability(logits)
    z = logits[:2].astype(float)
    np.testing.assert_allclose(probability[:2], np.exp(z[:, 1]) / np.exp(z).sum(1), rtol=1e-14)
    assert probability[1] == 0.5
    np.testing.assert_array_equal(probability[2:], [1, 0])
    np.testing.assert_allclose(positive_probability(-logits), 1 - probability, atol=1e-15)


@pytest.mark.parametrize(("target", "predicted", "cell"), [(1, 1, "TP"), (1, 0, "FN"), (0, 1, "FP"), (0, 0, "TN")])
def test_outcome(target, predicted, cell):
    assert outcome(target, predicted) == cell


def run(losses, accuracies, **settings):
    """Feed epochs until the training ends; returns the last state and the epochs used."""
    config = TrainingConfig(**settings)
    state = BestEpoch()
    for loss, accuracy in zip(losses, accuracies, strict=True):
        if state.finished(config):
            break
        state = state.after(loss, accuracy, config)
    return state, config


def test_stops_after_patience_epochs_without_a_lower_loss():
    losses = [5, 4, 3, 2, 2.5, 2.1, 2.0, 1.0]
    state, config = run(losses, [0.5] * 8, min_epochs=2, max_epochs=50, patience=3)
    # Epochs 3 and 4 lower the loss; 5, 6 and 7 (an equal loss) do not.
    assert state.epoch == 7
    assert state.stopped_early(config)
    assert (state.lowest_loss, state.best_epoch) == (2, 4)


def test_early_epochs_do_not_count():
    losses = [0.1, 0.2, 9, 8, 7, 6]
    state, config = run(losses, [1.0, 0.9, 0.5, 0.5, 0.5, 0.5], min_epochs=2, max_epochs=6, patience=2)
    assert state.epoch == 6
    assert not state.stopped_early(config)
    assert state.finished(config)
    assert (state.lowest_loss, state.best_epoch, state.best_score) == (6, 6, 0.5)


def test_best_epoch_by_accuracy_then_loss_then_first():
    losses = [9, 3.0, 2.0, 4.0, 2.0, 1.0]
    accuracies = [1, 0.7, 0.8, 0.8, 0.8, 0.7]
    state, _ = run(losses, accuracies, min_epochs=1, max_epochs=6, patience=10)
    assert (state.best_epoch, state.best_score, state.best_loss) == (3, 0.8, 2.0)


def test_an_accuracy_peak_is_kept_though_the_loss_goes_on_falling():
    state, _ = run([5, 4, 3, 2], [0.5, 0.9, 0.6, 0.6], min_epochs=1, max_epochs=4, patience=2)
    assert state.best_epoch == 2


def test_the_last_epoch_counts_even_if_it_is_an_early_one():
    state, _ = run([3, 2], [0.6, 0.5], min_epochs=2, max_epochs=2, patience=1)
    assert (state.epoch, state.best_epoch) == (2, 2)


def test_earliest_possible_stop_of_the_founding_settings():
    state, config = run([1.0] * 100, [0.5] * 100)
    # The first epoch that counts (16) sets the mark; the 8 after it do not lower it.
    assert (state.epoch, state.stopped_early(config), state.best_epoch) == (24, True, 16)


@given(
    numbers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=30, max_size=30),
    min_epochs=st.integers(1, 10),
    extra=st.integers(0, 15),
    patience=st.integers(1, 6),
)
def test_against_a_definition_over_the_whole_history(numbers, min_epochs, extra, patience):
    max_epochs = min_epochs + extra
    losses, accuracies = [a / 5 for a, _ in numbers], [b / 5 for _, b in numbers]
    state, _ = run(losses, accuracies, min_epochs=min_epochs, max_epochs=max_epochs, patience=patience)

    counted = [e for e in range(1, max_epochs + 1) if e > min_epochs or e == max_epochs]
    end = max_epochs
    for epoch in counted:
        window = [e for e in counted if e <= epoch]
        lowest = min(losses[e - 1] for e in window)
        first = next(e for e in window if losses[e - 1] == lowest)
        if epoch - first >= patience:
            end = epoch
            break
    used = [e for e in counted if e <= end]
    best = min(used, key=lambda e: (-accuracies[e - 1], losses[e - 1], e))
    assert (state.epoch, state.best_epoch) == (end, best)
    assert (state.best_score, state.best_loss) == (accuracies[best - 1], losses[best - 1])
    assert state.lowest_loss == pytest.approx(min(losses[e - 1] for e in used), abs=0)
