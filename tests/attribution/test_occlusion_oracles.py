"""Occlusion beside captum's, which divides by coverage but not by the size of the boxes.

Where captum is not installed, maps that it gave of a float64 network stand in for it. To make them again:
``python tests/attribution/test_occlusion_oracles.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from perturbation_toys import GRID, random_volumes

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.perturbation.masking import Masking, Occlusion, RegionLabels, RegionOcclusion, boxes

FROZEN = Path(__file__).parent / "data" / "captum_occlusion.npz"
ROUNDED = 1.2e-7
"""captum works in the precision of the model, but brings the finished map to float32."""

SETTINGS = {
    "overlapping": ((3, 2, 4), (2, 2, 3), 0.0),  # every box whole: 7 = 3 + 2·2, 8 = 2 + 3·2, 10 = 4 + 2·3
    "tiles": ((3, 4, 3), (3, 4, 3), 0.5),  # the last boxes of two axes are cut
}


def network() -> torch.nn.Sequential:
    """Fixed by a formula, not by a random generator whose numbers may change with torch."""
    net = torch.nn.Sequential(
        torch.nn.Conv3d(1, 3, 3), torch.nn.ReLU(), torch.nn.MaxPool3d(2, 1), torch.nn.Flatten(), torch.nn.Linear(420, 2)
    )
    for number, weights in enumerate(net.parameters(), start=1):
        waves = torch.sin(0.7 * number + 1.3 * torch.arange(weights.numel(), dtype=torch.float64))
        weights.data = (waves / weights[0].numel() ** 0.5).view(weights.shape)
    return net.double().eval()


def volumes() -> torch.Tensor:
    count = 2 * GRID[0] * GRID[1] * GRID[2]
    return torch.cos(2.1 * torch.arange(count, dtype=torch.float64)).abs().view(2, 1, *GRID)


def by_captum(size, stride, baseline: float) -> np.ndarray:
    captum = pytest.importorskip("captum.attr")
    found = captum.Occlusion(network()).attribute(
        volumes(), target=1, sliding_window_shapes=(1, *size), strides=(1, *stride), baselines=baseline
    )
    return found.detach().numpy()


def in_captums_units(size, stride, baseline: float) -> np.ndarray:
    """Times the size of the box: one number where all boxes are whole, that of a voxel's only box where they tile."""
    found = attribute(network(), volumes(), 1, Occlusion(size, stride, Masking(baseline))).values
    voxels = torch.zeros(GRID, dtype=torch.float64)
    for box in boxes(GRID, size, stride):
        voxels[box] = voxels[box].numel()
    return (found * voxels).numpy()


@pytest.mark.parametrize("case", SETTINGS)
def test_frozen_maps_of_captum(case):
    with np.load(FROZEN) as frozen:
        np.testing.assert_allclose(in_captums_units(*SETTINGS[case]), frozen[case], rtol=ROUNDED, atol=1e-15)
        assert np.abs(frozen[case]).max() > 0.01


@pytest.mark.oracle
@pytest.mark.parametrize("case", SETTINGS)
def test_captum(case):
    np.testing.assert_allclose(in_captums_units(*SETTINGS[case]), by_captum(*SETTINGS[case]), rtol=ROUNDED, atol=1e-15)


@pytest.mark.oracle
def test_captum_feature_ablation_gives_the_region_drops():
    captum = pytest.importorskip("captum.attr")
    labels = (torch.arange(560).view(GRID) // 90).int()
    x = random_volumes()
    expected = captum.FeatureAblation(network()).attribute(x, target=1, feature_mask=labels[None, None].long())
    found = attribute(network(), x, 1, RegionOcclusion(RegionLabels("sevenths", labels))).values
    voxels = torch.bincount(labels.flatten())[labels.long()]
    inside = labels > 0
    torch.testing.assert_close((found * voxels)[:, 0, inside], expected[:, 0, inside], rtol=0, atol=1e-12)


if __name__ == "__main__":
    np.savez_compressed(FROZEN, **{case: by_captum(*setting) for case, setting in SETTINGS.items()})
