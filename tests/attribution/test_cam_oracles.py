"""CAM methods against independent libraries: torchcam and captum live, and torchcam's maps frozen in float64.

Grad-CAM++ is not among them: torchcam and MONAI put other sums into eq. 19 (see `test_cam`), and disagree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cam_oracle import FROZEN, LAYER, TARGET, TORCHCAM, oracle_network, oracle_volumes, torchcam_map
from cam_toys import STAGE, network, volumes
from torch import Tensor

from heatlas.pipeline.attribution.cam.masked_volumes import ScoreCam
from heatlas.pipeline.attribution.cam.weighted_maps import GradCam, LayerCam, XGradCam
from heatlas.pipeline.attribution.methods import attribute

OURS: dict[str, Any] = {"GradCAM": GradCam(), "XGradCAM": XGradCam(), "LayerCAM": LayerCam(), "ScoreCAM": ScoreCam()}
GUARDED = ("XGradCAM", "ScoreCAM")
"""Here torchcam adds 1e-8 to what it divides by."""


def close(ours: Tensor, theirs: Tensor, relative: float) -> None:
    assert float(theirs.max()) > 1e-4
    torch.testing.assert_close(ours, theirs, rtol=0, atol=relative * float(theirs.abs().max()))


@pytest.mark.parametrize("method", TORCHCAM)
def test_equals_frozen_torchcam(method: str) -> None:
    with np.load(FROZEN, allow_pickle=False) as frozen:
        arrays = {name: torch.from_numpy(frozen[name]) for name in frozen.files}
    net = oracle_network()
    net.load_state_dict({name: arrays[f"weights_{name}"] for name in net.state_dict()})
    ours = attribute(net, arrays["volumes"], TARGET, OURS[method], LAYER)
    close(ours.values, arrays[method], 1e-7 if method in GUARDED else 1e-12)


def test_frozen_methods_are_different_maps() -> None:
    with np.load(FROZEN, allow_pickle=False) as frozen:
        maps = [frozen[method] / frozen[method].max() for method in TORCHCAM]
    assert min(np.abs(a - b).max() for i, a in enumerate(maps) for b in maps[:i]) > 0.05


@pytest.mark.oracle
@pytest.mark.parametrize("method", TORCHCAM)
@pytest.mark.parametrize("target", [0, 1])
def test_equals_torchcam(method: str, target: int) -> None:
    pytest.importorskip("torchcam", reason="pip install --no-deps torchcam==0.5.0")
    net, x = oracle_network(), oracle_volumes()
    ours = attribute(net, x, target, OURS[method], LAYER).values
    close(ours, torchcam_map(method, net, x, target), 1e-7 if method in GUARDED else 1e-12)


@pytest.mark.oracle
@pytest.mark.parametrize("head", ["gap", "mlp", "attention", "dense"])
@pytest.mark.parametrize("target", [0, 1, 2])
def test_grad_cam_equals_captum_for_every_head(head: str, target: int) -> None:
    captum = pytest.importorskip("captum.attr", reason="pip install --no-deps captum")
    net, x = network(head), volumes()
    theirs = captum.LayerGradCam(net, net[STAGE - 1]).attribute(x, target, relu_attributions=True).detach()
    ours = attribute(net, x, target, GradCam(), STAGE, at_input_grid=False).values
    close(ours, theirs, 1e-12)
