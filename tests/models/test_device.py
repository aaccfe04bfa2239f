"""Where networks run, and what is said where they cannot; no GPU is needed to see it."""

from __future__ import annotations

import warnings

import pytest
import torch

from heatlas.pipeline.models.device import chosen_device, require_device
from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.run.errors import UsageError

OLD_DRIVER = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
"""What PyTorch 2.13 warns of, and then finds no GPU."""


@pytest.mark.parametrize(
    ("setting", "gpu", "expected"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", False, "cuda")],
)
def test_device_is_the_one_asked_for_and_auto_takes_a_gpu(monkeypatch, setting, gpu, expected):
    """``cuda`` without a GPU stays ``cuda``: to fail says more than to be a hundred times slower."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert chosen_device(TrainingConfig(device=setting)) == torch.device(expected)


@pytest.mark.parametrize(
    ("built", "warning", "said"),
    [
        (None, "", r"this PyTorch was built without CUDA\. Install requirements-cuda\.lock"),
        (
            "13.0",
            OLD_DRIVER,
            r"The NVIDIA driver on your system is too old \(found version 11040\)\. Update the NVIDIA driver to one "
            r"for CUDA 13\.0",
        ),
        ("13.0", "", r"no usable GPU on this machine\. Set"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(monkeypatch, built, warning, said):
    def is_available() -> bool:
        if warning:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", built)
    with pytest.raises(UsageError, match=rf'^training\.device = "cuda": {said}') as caught:
        require_device(TrainingConfig(device="cuda"))
    assert str(caught.value).endswith('"auto" or "cpu", or give the --executor whose workers have a GPU.')
    assert "\n" not in str(caught.value)
    require_device(TrainingConfig(device="auto"))
    require_device(TrainingConfig(device="cpu"))


def test_a_gpu_that_is_there_is_taken_without_a_word(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_device(TrainingConfig(device="cuda"))
