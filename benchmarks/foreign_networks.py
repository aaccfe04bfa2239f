"""Which methods explain which networks of the field: twenty networks with drawn weights, on one drawn volume.

``python benchmarks/foreign_networks.py > docs/benchmarks/foreign_networks.md``. Maps that add up are checked: a number
is what a map misses of the difference of the logits, relative to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from monai.networks import nets
from torch import Tensor, nn

from heatlas.pipeline.explaining.any_network import Explained, explain
from heatlas.pipeline.run.errors import HeatlasError

SHAPE = (64, 72, 64)
THREE_D = {"spatial_dims": 3, "in_channels": 1}
METHODS = {
    "expected-gradients": {"alphas": 2}, "deeplift": {}, "lrp": {"batch_norm": "identity"},
    "guided-backpropagation": {}, "input-x-gradient": {}, "grad-cam": {},
}  # fmt: skip


class Pooled(nn.Module):
    """An encoder, global average pooling and one linear layer."""

    def __init__(self, encoder: nn.Module, channels: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(channels, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool3d(self.encoder(x), 1).flatten(1))


class Sfcn(nn.Module):
    """Peng et al. 2021: log-probabilities of bins of age."""

    def __init__(self) -> None:
        super().__init__()
        sides = (1, 8, 16, 32, 32)
        self.features = nn.Sequential(
            *[
                nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.BatchNorm3d(b), nn.MaxPool3d(2), nn.ReLU(inplace=True))
                for a, b in pairwise(sides)
            ]
        )
        self.last = nn.Conv3d(32, 40, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool3d(self.features(x), (4, 4, 4))
        return F.log_softmax(self.last(x), dim=1)


class Transformer(nn.Module):
    """A vision transformer of torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv3d(1, 32, 16, 16)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def plain(norm: type[nn.Module] | None, activation: Callable[[], nn.Module], *, pads: bool = False) -> nn.Module:
    """Four blocks of convolution, normalisation, activation and max-pooling, as in many papers."""
    layers: list[nn.Module] = []
    for a, b in ((1, 8), (8, 16), (16, 32), (32, 32)):
        layers += [nn.ConstantPad3d(1, 0.0), nn.Conv3d(a, b, 3)] if pads else [nn.Conv3d(a, b, 3, padding=1)]
        layers += [] if norm is None else [nn.GroupNorm(4, b) if norm is nn.GroupNorm else norm(b)]
        layers += [activation(), nn.MaxPool3d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 2))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "MONAI ResNet-10": lambda: nets.resnet10(spatial_dims=3, n_input_channels=1, num_classes=2, widen_factor=0.25),
    "MONAI ResNet-18": lambda: nets.resnet18(spatial_dims=3, n_input_channels=1, num_classes=2, widen_factor=0.25),
    "MONAI ResNet-34": lambda: nets.resnet34(spatial_dims=3, n_input_channels=1, num_classes=2, widen_factor=0.25),
    "MONAI ResNet-50": lambda: nets.resnet50(spatial_dims=3, n_input_channels=1, num_classes=2, widen_factor=0.125),
    "MONAI DenseNet (small)": lambda: nets.DenseNet(3, 1, 2, init_features=16, growth_rate=8, block_config=(3, 3, 3)),
    "MONAI DenseNet-121": lambda: nets.DenseNet121(3, 1, 2),
    "MONAI SE-ResNet-50": lambda: nets.SEResNet50(**THREE_D, num_classes=2),
    "MONAI SE-ResNeXt-50": lambda: nets.SEResNext50(**THREE_D, num_classes=2),
    "MONAI EfficientNet-B0": lambda: nets.EfficientNetBN("efficientnet-b0", pretrained=False, **THREE_D, num_classes=2),
    "MONAI Classifier": lambda: nets.Classifier((1, *SHAPE), 2, (8, 16, 32), (2, 2, 2)),
    "MONAI Regressor": lambda: nets.Regressor((1, *SHAPE), (2,), (8, 16, 32), (2, 2, 2)),
    "MONAI UNet encoder": lambda: Pooled(nets.UNet(3, 1, 8, (8, 16, 32), (2, 2), num_res_units=1), 8),
    "MONAI SegResNet encoder": lambda: Pooled(nets.SegResNet(3, 8, 1, 8, blocks_down=(1, 1), blocks_up=(1,)), 8),
    "SFCN (bins of age)": Sfcn,
    "VGG-like": lambda: plain(None, nn.ReLU),
    "VGG-like, batch norm": lambda: plain(nn.BatchNorm3d, lambda: nn.ReLU(inplace=True)),
    "VGG-like, instance norm, LeakyReLU": lambda: plain(nn.InstanceNorm3d, lambda: nn.LeakyReLU(0.01)),
    "VGG-like, group norm, SiLU": lambda: plain(nn.GroupNorm, nn.SiLU),
    "Conv5 with padding (Wen et al.)": lambda: plain(nn.BatchNorm3d, nn.ReLU, pads=True),
    "Vision transformer of torch": Transformer,
}


def cell(found: Explained) -> str:
    if found.missing is None or found.reference_value is None:
        return "yes"
    return f"yes ({abs(found.missing) / max(abs(found.value - found.reference_value), 1e-12):.0e})"


def row(name: str) -> str:
    """What each method says to a network."""
    torch.manual_seed(7)
    network, draws = NETWORKS[name](), torch.Generator().manual_seed(8)
    volume, controls = torch.rand(SHAPE, generator=draws), [torch.rand(SHAPE, generator=draws) for _ in range(2)]
    bins = tuple(42.5 + k for k in range(40)) if name.startswith("SFCN") else ()
    cells = []
    for method, settings in METHODS.items():
        try:
            cells.append(cell(explain(network, volume, method, reference=controls, settings=settings, bins=bins)))
        except HeatlasError as error:
            cells.append("no: " + str(error).split(";")[0].split(" is not")[0].replace("|", "/")[:60])
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print("# Which network, which method\n")
    print(
        "Twenty networks with drawn weights as `heatlas.explain` takes them, without any change to their code. In "
        "brackets: by how much the map\nmisses the difference of the logits, relative to it. Refusals name the layer. "
        "`python benchmarks/foreign_networks.py` makes this table.\n"
    )
    print(f"| network | {' | '.join(METHODS)} |\n|{'---|' * (len(METHODS) + 1)}")
    for name in NETWORKS if len(sys.argv) == 1 else sys.argv[1:]:
        print(row(name), flush=True)
