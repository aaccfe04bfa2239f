from __future__ import annotations

import pytest
import torch

from heatlas.pipeline.models.device import chosen_device
from heatlas.pipeline.run.config.settings import TrainingConfig


@pytest.mark.parametrize(
    ("setting", "gpu", "expected"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", False, "cuda")],
)
def test_device_is_the_one_asked_for_and_auto_takes_a_gpu(monkeypatch, setting, gpu, expected):
    """``cuda`` without a GPU stays ``cuda``: to fail says more than to be a hundred times slower."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert chosen_device(TrainingConfig(device=setting)) == torch.device(expected)
