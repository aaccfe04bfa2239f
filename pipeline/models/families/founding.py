"""The 3D CNN of the founding study (Böhle, Eitel, Weygandt & Ritter 2019), for any grid.

Four blocks of convolution (3x3x3, no padding, bias), batch normalisation, ReLU and max-pooling, then two linear
layers with dropout before each. At 193x229x193 the last block gives 64x4x5x4 = 5120 features and the network has
728,898 parameters, as published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.family import Architecture
from heatlas.pipeline.models.families.founding_family import KERNEL, FoundingConfig, output_shape


class Block(nn.Sequential):
    """Layers that end with ReLU and max-pooling. In training ReLU comes last, and has an eighth of the work.

    They commute: outputs and gradients are the same bits, in 70 % of the time of the first block.
    """

    def __iter__(self) -> Iterator[nn.Module]:
        layers = list(super().__iter__())
        if self.training and [type(layer) for layer in layers[-2:]] == [nn.ReLU, nn.MaxPool3d]:  # not so in a slice
            layers[-2:] = layers[:-3:-1]
        return iter(layers)


class FoundingCNN(StagedModel):
    """The founding CNN. Output: of two classes the logits, unit 0 the negative class and unit 1 the positive class.

    Stages: one per convolutional block (``Conv3d, BatchNorm3d, ReLU, MaxPool3d``), then ``Flatten, Dropout, Linear,
    ReLU``, then ``Dropout, Linear``. Settings are those of `FoundingConfig`; without `bias` the logits of ``c x`` are
    ``c`` times those of x. `outputs`: one per class, or one for a number. `images`: that enter, one channel each.

    >>> model = FoundingCNN((193, 229, 193))
    >>> model.features, sum(p.numel() for p in model.parameters())
    (5120, 728898)
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        channels: Sequence[int] = (8, 16, 32, 64),
        pools: Sequence[int] = (2, 3, 2, 3),
        hidden_units: int = 128,
        dropout: float = 0.4,
        bias: bool = True,
        outputs: int = 2,
        images: int = 1,
    ) -> None:
        if len(channels) != len(pools):
            raise ValueError(f"channels {tuple(channels)} and pools {tuple(pools)} must be equally long.")
        features = channels[-1] * math.prod(output_shape(input_shape, pools))
        blocks = [
            Block(
                nn.Conv3d(before, after, KERNEL, bias=bias),
                *((nn.BatchNorm3d(after),) if bias else ()),
                nn.ReLU(),
                nn.MaxPool3d(pool),
            )
            for before, after, pool in zip((images, *channels[:-1]), channels, pools, strict=True)
        ]
        hidden = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(features, hidden_units, bias), nn.ReLU())
        output = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden_units, outputs, bias))
        super().__init__([*blocks, hidden, output])
        if not bias:  # PyTorch's weights are small, and no normalisation makes up for that (He et al. 2015)
            for layer in self.modules():
                if isinstance(layer, nn.Conv3d | nn.Linear):
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        settings = FoundingConfig(
            channels=tuple(channels), pools=tuple(pools), hidden_units=hidden_units, dropout=dropout, bias=bias
        )
        self.architecture = Architecture(settings, input_shape)
        self.features = features
