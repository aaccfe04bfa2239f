"""Which methods explain which networks of the field, with drawn weights, on one drawn volume; and at what cost.

``python benchmarks/foreign_networks.py`` prints the tables of docs/benchmarks/foreign_networks.md. Maps that add up are
checked: a number is what a map misses of the difference of the logits, relative to it. MONAI's ViT needs einops.
``--speed`` makes the table of times alone, names of networks their rows alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from statistics import median

import torch
import torch.nn.functional as F
from harness import arguments_of, line, table
from monai.networks import nets
from monai.networks.nets.swin_unetr import SwinTransformer
from timed import in_turns
from torch import Tensor, nn

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.method_settings import read_settings
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import find_method
from heatlas.pipeline.explaining.any_network import explain, prepare
from heatlas.pipeline.explaining.explained_image import Explained
from heatlas.pipeline.run.errors import HeatlasError

SHAPE = (64, 72, 64)
VIT = {"hidden_size": 48, "mlp_dim": 96, "num_layers": 2, "num_heads": 4, "classification": True}
VIT |= {"num_classes": 2, "post_activation": ""}
THREE_D = {"spatial_dims": 3, "in_channels": 1}
METHODS = {"expected-gradients": {"alphas": 2}, "deeplift": {}, "lrp": {}}
METHODS |= {"guided-backpropagation": {}, "input-x-gradient": {}, "grad-cam": {}}


class Pooled(nn.Module):
    """An encoder, global average pooling and one linear layer."""

    def __init__(self, encoder: nn.Module, channels: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(channels, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool3d(self.encoder(x), 1).flatten(1))


class Last(Pooled):
    """The deepest of several features, pooled."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool3d(self.encoder(x)[-1], 1).flatten(1))


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
    "MONAI ViT": lambda: nets.ViT(1, SHAPE, (16, 24, 16), **VIT),
    "MONAI Swin encoder": lambda: Last(
        SwinTransformer(1, 12, (4, 4, 4), (2, 2, 2), (2, 2, 2, 2), (2, 2, 4, 4), spatial_dims=3), 192
    ),
}
ITEMS = {"MONAI ViT": "0"}
"""Which entry is the answer of networks that give several."""


def cell(found: Explained) -> str:
    if found.missing is None or found.reference_value is None:
        return "yes"
    return f"yes ({abs(found.missing) / max(abs(found.value - found.reference_value), 1e-12):.0e})"


def row(name: str) -> str:
    torch.manual_seed(7)
    network, draws = NETWORKS[name](), torch.Generator().manual_seed(8)
    volume, controls = torch.rand(SHAPE, generator=draws), [torch.rand(SHAPE, generator=draws) for _ in range(2)]
    bins = tuple(42.5 + k for k in range(40)) if name.startswith("SFCN") else ()
    cells = []
    for method, settings in METHODS.items():
        try:
            options = {"reference": controls, "settings": settings, "bins": bins, "output_item": ITEMS.get(name, "")}
            cells.append(cell(explain(network, volume, method, **options)))
        except HeatlasError as error:
            cells.append("no: " + str(error).split(";")[0].split(" is not")[0].replace("|", "/")[:60])
    return line(name, *cells)


FINE = (97, 115, 97)
"""The template at 2 mm."""
TIMED = {"lrp": {}, "deeplift": {}, "expected-gradients": {"alphas": 2}}
TIMED["expected-gradients, 16 points"] = {"alphas": 8}
FIRST = """
import time
start = time.perf_counter()
import heatlas
imported = time.perf_counter() - start
import torch
from torch import nn
torch.set_num_threads(1)
start = time.perf_counter()
network = nn.Sequential(nn.Conv3d(1, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 2))
heatlas.explain(network, torch.rand(97, 115, 97), "deeplift", reference=[torch.rand(97, 115, 97)])
print(imported, time.perf_counter() - start + imported)
"""


def speed() -> None:
    """Times of `explain` beside those of the engine alone, and of a fresh process; one thread, medians of five."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    network, draws = NETWORKS["VGG-like, batch norm"]().eval(), torch.Generator().manual_seed(8)
    volume, *controls = (torch.rand((1, 1, *FINE), generator=draws) for _ in range(3))
    model = prepare(network, volume)
    takers = {"whole": network, "prepared": model}
    columns = ["method", "engine alone, s", "`explain`, s (times as long)", "of a prepared network, s"]
    print(*table(columns), sep="\n")
    for name, settings in TIMED.items():
        entry = find_method(name.split(",")[0], "method")
        context = RunContext(None, None, Reference(torch.cat(controls), ("a", "b")))  # type: ignore[arg-type]
        texts = [f"{key}={value}" for key, value in settings.items()]
        method = entry.build(read_settings(entry.name, entry.record, texts), context)
        start = "evidence" if entry.usual_start == "evidence" else "logit"
        given = {"target": 1, "reference": controls, "settings": settings}
        arms = {"alone": partial(attribute, model, volume, 1, method, 0, start)}
        arms |= {arm: partial(explain, taken, volume, entry.name, **given) for arm, taken in takers.items()}
        own, first, later = (median(seconds) for seconds in in_turns(arms, 5, time.perf_counter).values())
        beside = (f"{seconds:.2f} ({seconds / own:.2f})" for seconds in (first, later))
        print(line(name, f"{own:.2f}", *beside), flush=True)
    runs = [subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True) for _ in range(5)]
    imports, firsts = zip(*(map(float, run.stdout.split()) for run in runs), strict=True)
    print(f"\n`import heatlas`: {median(imports):.2f} s. First map in a fresh process: {median(firsts):.1f} s.")


def main() -> None:
    options = arguments_of(
        __doc__,
        "networks",
        networks={"nargs": "*", "help": "rows of these alone"},
        speed=(False, "the table of times alone"),
    )
    if not options.speed:
        print(*table(["network", *METHODS]), sep="\n")
        for name in options.networks or NETWORKS:
            print(row(name), flush=True)
        print()
    if not options.networks:
        speed()


if __name__ == "__main__":
    main()
