import numpy as np
import pytest

from heatlas.pipeline.training.metrics import balanced_accuracy, outcome, positive_probability, predicted_class


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
