"""Maps of torchcam and captum, and the small network they are compared on.

Run as a script, it freezes torchcam's maps in float64 for the default suite:
``python tests/attribution/cam_oracle.py`` (pip install --no-deps torchcam==0.5.0).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FROZEN = Path(__file__).parent / "data" / "torchcam_maps.npz"
SHAPE = (5, 4, 6)
LAYER = "1"
TARGET = 1


def oracle_network() -> nn.Sequential:
    """Features (B, 4, 5, 4, 6) after layer 1, on the grid of the input, and a head that looks at places."""
    torch.manual_seed(11)
    net = nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 3, 2, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(3 * 2 * 2 * 3, 2),
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        net[0].weight.mul_(3)
    return net


def oracle_volumes() -> Tensor:
    return torch.rand(2, 1, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(12))


def torchcam_map(method: str, net: nn.Sequential, x: Tensor, target: int) -> Tensor:
    """Map (B, 1, d, h, w) after `LAYER` by torchcam's class of that name, not normalised."""
    import torchcam.methods

    kind: Any = getattr(torchcam.methods, method)
    settings = {"batch_size": 3} if method == "ScoreCAM" else {}
    with kind(net, target_layer=LAYER, input_shape=(1, *SHAPE), **settings) as extractor:
        scores = net(x.clone().requires_grad_())
        (found,) = extractor(target, scores, normalized=False)
    return found.detach()[:, None]


TORCHCAM = ("GradCAM", "XGradCAM", "LayerCAM", "ScoreCAM")


def freeze() -> None:
    net, x = oracle_network(), oracle_volumes()
    weights = {f"weights_{name}": value.numpy() for name, value in net.state_dict().items()}
    maps = {method: torchcam_map(method, net, x, TARGET).numpy() for method in TORCHCAM}
    np.savez_compressed(FROZEN, volumes=x.numpy(), **weights, **maps)


if __name__ == "__main__":
    freeze()
