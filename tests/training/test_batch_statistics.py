import pytest
import torch
from torch import nn

from heatlas.pipeline.training.batch_statistics import prepare_step


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
