"""Networks of the field, small and with one channel, for `test_field_networks.py`.

Those that MONAI builds are records; the others are written as their authors write them: control flow on shapes,
functions in place, tokens and scans by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from monai.networks import nets
from monai.networks.nets.swin_unetr import SwinTransformer
from torch import Tensor, nn

SHAPE = (32, 64, 32)
Build = Callable[[], nn.Module]


def normed(inputs: int, outputs: int, *sizes: Any, **options: Any) -> nn.Sequential:
    """A convolution with batch normalisation."""
    return nn.Sequential(nn.Conv3d(inputs, outputs, *sizes, **options), nn.BatchNorm3d(outputs))


class Pooled(nn.Module):
    """An encoder, global average pooling and one linear layer; `item`: which of several features."""

    def __init__(self, encoder: nn.Module, channels: int, item: int | None = None) -> None:
        super().__init__()
        self.encoder, self.item, self.head = encoder, item, nn.Linear(channels, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x) if self.item is None else self.encoder(x)[self.item]
        return self.head(F.adaptive_avg_pool3d(x, 1).flatten(1))


class Sfcn(nn.Module):
    """Peng et al. 2021: log-probabilities of bins of age."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in pairwise((1, 8, 16, 32, 32)):
            layers += [normed(a, b, 3, padding=1), nn.MaxPool3d(2), nn.ReLU(inplace=True)]
        self.features, self.last = nn.Sequential(*layers), nn.Conv3d(32, 40, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.last(F.avg_pool3d(self.features(x), (2, 4, 2))), dim=1)


class Transformer(nn.Module):
    """A vision transformer of torch's own layers; `masked`: a token sees those before it."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.patches, self.masked = nn.Conv3d(1, 32, 16, 16), masked
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1)) if self.masked else None
        return self.head(self.blocks(x, mask).mean(1))


def plain(norm: type[nn.Module] | None, activation: Build, *, pads: bool = False) -> nn.Module:
    """Four blocks of convolution, normalisation, activation and max-pooling, as in many papers."""
    layers: list[nn.Module] = []
    for a, b in ((1, 8), (8, 16), (16, 32), (32, 32)):
        layers += [nn.ConstantPad3d(1, 0.0), nn.Conv3d(a, b, 3)] if pads else [nn.Conv3d(a, b, 3, padding=1)]
        layers += [] if norm is None else [nn.GroupNorm(4, b) if norm is nn.GroupNorm else norm(b)]
        layers += [activation(), nn.MaxPool3d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 2))


class Video(nn.Module):
    """ResNets of video (Tran et al. 2018): R3D, MC3 and R(2+1)D by what their convolutions are."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self.stem, sides = normed(1, 8, (3, 7, 7), (1, 2, 2), (1, 3, 3)), pairwise((8, 8, 16, 32, 32))
        self.blocks = nn.ModuleList(_VideoBlock(a, b, kind) for (a, b), kind in zip(sides, kinds, strict=True))
        self.fc = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x), inplace=True)
        for block in self.blocks:
            x = block(x)
        return self.fc(F.adaptive_avg_pool3d(x, (1, 1, 1)).flatten(1))


class _VideoBlock(nn.Module):
    def __init__(self, a: int, b: int, kind: str) -> None:
        super().__init__()
        s = 1 if a == b else 2
        whole, plane = 3 * 9 * a * b // (9 * a + 3 * b), ((1, 3, 3), (1, s, s), (0, 1, 1))
        self.first = {
            "3d": normed(a, b, 3, s, 1),
            "2d": normed(a, b, *plane),
            "2+1d": nn.Sequential(
                normed(a, whole, *plane), nn.ReLU(inplace=True), normed(whole, b, (3, 1, 1), (s, 1, 1), (1, 0, 0))
            ),
        }[kind]
        self.second = normed(b, b, 3, padding=1)
        self.down = None if s == 1 else normed(a, b, 1, (1, s, s) if kind == "2d" else s)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(F.relu_(self.first(x)))
        out += x if self.down is None else self.down(x)
        return F.relu_(out)


class MedicalNet(nn.Module):
    """Chen et al. 2019: a ResNet whose last layers are dilated, with shortcuts of type A, padded with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = normed(1, 8, 7, 2, 3, bias=False), nn.ModuleList()
        for a, b, stride, dilation in ((8, 8, 1, 1), (8, 16, 2, 1), (16, 32, 1, 2), (32, 32, 1, 4)):
            self.layers.append(normed(a, b, 3, stride, dilation, dilation, bias=False))
        self.fc = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.first(x)), 3, 2, 1)
        for layer in self.layers:
            out, short = layer(x), x
            if out.shape != x.shape:
                short = F.avg_pool3d(x, kernel_size=1, stride=layer[0].stride)
                zeros = torch.zeros(short.size(0), out.size(1) - short.size(1), *short.shape[2:]).to(x)
                short = torch.cat([short.data, zeros], dim=1)
            x = F.relu(out + short)
        return self.fc(x.mean(dim=(-3, -2, -1)))


class ConvNeXt(nn.Module):
    """Liu et al. 2022 in 3D: depthwise convolutions, channels last, layer scale; `second`: V2 (Woo et al. 2023)."""

    def __init__(self, second: bool = False) -> None:
        super().__init__()
        self.stem, self.second = nn.Conv3d(1, 16, 4, 4), second
        self.blocks = nn.ModuleList()
        for _ in range(2):
            spatial = nn.Conv3d(16, 16, 7, padding=3, groups=16), nn.LayerNorm(16, eps=1e-6)
            self.blocks.append(nn.ModuleList([*spatial, nn.Linear(16, 64), nn.Linear(64, 16)]))
        self.scale = nn.Parameter(0.5 * torch.ones(16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for depthwise, norm, up, down in self.blocks:
            out = F.gelu(up(norm(depthwise(x).permute(0, 2, 3, 4, 1))))
            if self.second:
                spread = torch.norm(out, p=2, dim=(1, 2, 3), keepdim=True)
                out = out * (spread / (spread.mean(dim=-1, keepdim=True) + 1e-6)) + out
            x = x + (self.scale * down(out)).permute(0, 4, 1, 2, 3)
        return self.head(self.norm(x.mean([-3, -2, -1])))


class Tokens(nn.Module):
    """Attention by hand: a class token, positions, `einsum`, and a loop over the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv3d(1, 24, 16, 16), nn.Parameter(torch.randn(1, 1, 24))
        self.places = nn.Parameter(torch.randn(1, 17, 24))
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(24), nn.Linear(24, 72), nn.Linear(24, 24)]) for _ in range(2)
        )
        self.head = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = x + self.places[:, : x.shape[1]]
        for norm, qkv, out in self.layers:
            q, k, v = qkv(norm(x)).reshape(x.shape[0], x.shape[1], 3, 4, 6).permute(2, 0, 3, 1, 4)
            weights = (torch.einsum("bhid,bhjd->bhij", q, k) * 6**-0.5).softmax(dim=-1)
            x = x + out(torch.einsum("bhij,bhjd->bihd", weights, v).reshape(x.shape))
        return self.head(x[:, 0])


class Scan(nn.Module):
    """A selective scan over patches (Gu & Dao 2023), step by step in PyTorch."""

    def __init__(self, channels: int = 16, states: int = 4) -> None:
        super().__init__()
        self.patches, self.into = nn.Conv3d(1, channels, 16, 16), nn.Linear(channels, 2 * channels)
        self.conv = nn.Conv1d(channels, channels, 3, padding=2, groups=channels)
        self.step, self.bc = nn.Linear(channels, channels), nn.Linear(channels, 2 * states)
        self.a_log = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(channels, 1))
        self.d, self.norm, self.out = nn.Parameter(torch.ones(channels)), nn.LayerNorm(channels), nn.Linear(channels, 2)

    def forward(self, x: Tensor) -> Tensor:
        x, z = self.into(self.patches(x).flatten(2).transpose(1, 2)).chunk(2, dim=-1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        delta, (b, c) = F.softplus(self.step(x)), self.bc(x).chunk(2, dim=-1)
        decay = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.a_log))
        h, ys = x.new_zeros(len(x), *self.a_log.shape), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + (delta[:, t] * x[:, t]).unsqueeze(-1) * b[:, t, None, :]
            ys.append((h * c[:, t, None, :]).sum(-1))
        y = (torch.stack(ys, dim=1) + x * self.d) * F.silu(z)
        return self.out(self.norm(y).mean(1))


class MobileNetV3(nn.Module):
    """Howard et al. 2019 in 3D: inverted bottlenecks, squeeze and excitation, hard activations as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = normed(1, 8, 3, 2, 1, bias=False), nn.ModuleList()
        for _ in range(2):
            wide = normed(8, 24, 1), normed(24, 24, 5, 1, 2, groups=24)
            gate = nn.Conv3d(24, 8, 1), nn.Conv3d(8, 24, 1)
            self.blocks.append(nn.ModuleList([*wide, *gate, normed(24, 8, 1)]))
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.stem(x), inplace=True)
        for up, depthwise, squeeze, excite, down in self.blocks:
            out = F.hardswish(depthwise(F.hardswish(up(x))))
            out = out * F.hardsigmoid(excite(F.relu(squeeze(out.mean((2, 3, 4), keepdim=True)))))
            x = x + down(out)
        return self.fc(torch.flatten(F.adaptive_avg_pool3d(x, 1), 1))


class Gated(nn.Module):
    """CBAM (Woo et al. 2018): gates of channels and of places, from means and maxima; then features by `maximum`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mlp = nn.Conv3d(1, 8, 5, 2, 2), nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
        self.place, self.last, self.fc = nn.Conv3d(2, 1, 7, padding=3), nn.Conv3d(8, 16, 3, 2, 1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.stem(x))
        assert x.ndim == len(x.shape) == 5
        gate = torch.sigmoid(self.mlp(x.mean((2, 3, 4))) + self.mlp(x.amax((2, 3, 4))))
        x = x * gate[:, :, None, None, None]
        both = torch.cat([x.mean(1, keepdim=True), x.max(dim=1, keepdim=True)[0]], dim=1)
        a, b = torch.split(self.last(x * self.place(both).sigmoid()), 8, dim=1)
        return self.fc(torch.maximum(a, b).amax(dim=(-1, -2, -3)))


class Slices(nn.Module):
    """Slices as a bag: a 2D network for each, and attention over these (Ilse et al. 2018), as MONAI's MILModel."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        backbone = nn.Sequential(*layers, nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.bag = nets.MILModel(2, mode, False, backbone, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.bag(x.transpose(1, 2))


THREE_D = {"spatial_dims": 3, "in_channels": 1}
VIT: dict[str, Any] = {"hidden_size": 48, "mlp_dim": 96, "num_layers": 2, "num_heads": 4}
CLASSIFIES: dict[str, Any] = {"classification": True, "num_classes": 2, "post_activation": ""}
RESNET: dict[str, Any] = {"spatial_dims": 3, "n_input_channels": 1, "num_classes": 2, "widen_factor": 0.25}
SWIN: dict[str, Any] = {"depths": (2, 2, 2, 2), "num_heads": (2, 2, 4, 4), "feature_size": 12}
NETWORKS: Mapping[str, Build] = {
    "MONAI ResNet-10": partial(nets.resnet10, **RESNET),
    "MONAI ResNet-18": partial(nets.resnet18, **RESNET),
    "MONAI ResNet-34": partial(nets.resnet34, **RESNET),
    "MONAI ResNet-50": partial(nets.resnet50, **{**RESNET, "widen_factor": 0.125}),
    "MONAI DenseNet (small)": lambda: nets.DenseNet(3, 1, 2, init_features=16, growth_rate=8, block_config=(3, 3, 3)),
    "MONAI DenseNet-121": lambda: nets.DenseNet121(3, 1, 2),
    "MONAI SE-ResNet-50": lambda: nets.SEResNet50(**THREE_D, num_classes=2),
    "MONAI SE-ResNeXt-50": lambda: nets.SEResNext50(**THREE_D, num_classes=2),
    "MONAI EfficientNet-B0": lambda: nets.EfficientNetBN("efficientnet-b0", pretrained=False, **THREE_D, num_classes=2),
    "MONAI Classifier": lambda: nets.Classifier((1, *SHAPE), 2, (8, 16, 32), (2, 2, 2)),
    "MONAI Regressor": lambda: nets.Regressor((1, *SHAPE), (2,), (8, 16, 32), (2, 2, 2)),
    "MONAI UNet encoder": lambda: Pooled(nets.UNet(3, 1, 8, (8, 16, 32), (2, 2), num_res_units=1), 8),
    "MONAI BasicUNet": lambda: Pooled(nets.BasicUNet(3, 1, 8, (8, 8, 16, 16, 32, 8)), 8),
    "MONAI AttentionUnet": lambda: Pooled(nets.AttentionUnet(3, 1, 8, (8, 16, 32), (2, 2)), 8),
    "MONAI DynUNet": lambda: Pooled(nets.DynUNet(3, 1, 8, (3, 3, 3), (1, 2, 2), (2, 2)), 8),
    "MONAI SegResNet encoder": lambda: Pooled(nets.SegResNet(3, 8, 1, 8, blocks_down=(1, 1), blocks_up=(1,)), 8),
    "MONAI VNet": lambda: Pooled(nets.VNet(3, 1, 8), 8),
    "MONAI HighResNet": lambda: Pooled(nets.HighResNet(3, 1, 8), 8),
    "MONAI MedNeXt": lambda: Pooled(nets.MedNeXt(3, 8, 1, 8, 2, 2, 2, 3, blocks_down=(1,) * 4, blocks_up=(1,) * 4), 8),
    "MONAI MILModel, attention": lambda: Slices("att"),
    "MONAI MILModel, transformer": lambda: Slices("att_trans"),
    "MONAI ViT": lambda: nets.ViT(1, SHAPE, (16, 16, 16), **VIT, **CLASSIFIES),
    "MONAI ViTAutoEnc": lambda: Pooled(nets.ViTAutoEnc(1, SHAPE, 16, 8, **VIT), 8, item=0),
    "MONAI UNETR": lambda: Pooled(nets.UNETR(1, 8, SHAPE, 8, 48, 96, 4), 8),
    "MONAI Swin encoder": lambda: Pooled(
        SwinTransformer(1, 12, (4, 4, 4), (2, 2, 2), (2, 2, 2, 2), (2, 2, 4, 4), spatial_dims=3), 192, item=-1
    ),
    "MONAI SwinUNETR": lambda: Pooled(nets.SwinUNETR(1, 8, **SWIN), 8),
    "SFCN (bins of age)": Sfcn,
    "VGG-like": lambda: plain(None, nn.ReLU),
    "VGG-like, batch norm": lambda: plain(nn.BatchNorm3d, lambda: nn.ReLU(inplace=True)),
    "VGG-like, instance norm, LeakyReLU": lambda: plain(nn.InstanceNorm3d, lambda: nn.LeakyReLU(0.01)),
    "VGG-like, group norm, SiLU": lambda: plain(nn.GroupNorm, nn.SiLU),
    "Conv5 with padding (Wen et al.)": lambda: plain(nn.BatchNorm3d, nn.ReLU, pads=True),
    "R3D": lambda: Video(("3d", "3d", "3d", "3d")),
    "MC3": lambda: Video(("3d", "2d", "2d", "2d")),
    "R(2+1)D": lambda: Video(("2+1d", "2+1d", "2+1d", "2+1d")),
    "MedicalNet": MedicalNet,
    "MobileNetV3 in 3D": MobileNetV3,
    "CBAM and maxima": Gated,
    "ConvNeXt in 3D": ConvNeXt,
    "ConvNeXt V2 in 3D": partial(ConvNeXt, second=True),
    "Vision transformer of torch": Transformer,
    "Vision transformer of torch, masked": partial(Transformer, masked=True),
    "Tokens by hand": Tokens,
    "Scan (Mamba)": Scan,
}
ITEMS = {"MONAI ViT": "0"}
"""Which entry is the answer of networks that give several."""
