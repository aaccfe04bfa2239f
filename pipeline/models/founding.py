"""The 3D CNN of the founding study (Böhle, Eitel, Weygandt & Ritter 2019), for any grid.

Four blocks of convolution (3x3x3, no padding, bias), batch normalisation, ReLU and max-pooling, then two linear
layers with dropout before each. At 193x229x193 the last block gives 64x4x5x4 = 5120 features and the network has
728,898 parameters, as published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from pipeline.models.contract import StagedModel
from pipeline.run.errors import BadInputError

KERNEL = 3
CLASSES = 2


class FoundingCNN(StagedModel):
    """The founding CNN. Output: logits, unit 0 the negative class and unit 1 the positive class.

    Stages: one per convolutional block (``Conv3d, BatchNorm3d, ReLU, MaxPool3d``), then
    ``Flatten, Dropout, Linear, ReLU``, then ``Dropout, Linear``.

    Parameters
    ----------
    input_shape : tuple of int
        Voxels of the network's input along (left-right, posterior-anterior, inferior-superior).
    channels : sequence of int
        Filters of each block.
    pools : sequence of int
        Edge (= stride) of the max-pooling window of each block.
    hidden_units : int
        Width of the first linear layer.
    dropout : float
        Probability of dropping a unit before each linear layer.

    Raises
    ------
    BadInputError
        If the grid is too small for the blocks.

    Examples
    --------
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
    ) -> None:
        if len(channels) != len(pools):
            raise ValueError(f"channels {tuple(channels)} and pools {tuple(pools)} must be equally long.")
        features = channels[-1] * math.prod(output_shape(input_shape, pools))
        blocks = [
            nn.Sequential(nn.Conv3d(before, after, KERNEL), nn.BatchNorm3d(after), nn.ReLU(), nn.MaxPool3d(pool))
            for before, after, pool in zip((1, *channels[:-1]), channels, pools, strict=True)
        ]
        hidden = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(features, hidden_units), nn.ReLU())
        output = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden_units, CLASSES))
        super().__init__([*blocks, hidden, output])
        self.input_shape = tuple(input_shape)
        self.channels = tuple(channels)
        self.pools = tuple(pools)
        self.hidden_units = hidden_units
        self.dropout = dropout
        self.features = features


def output_shape(input_shape: Sequence[int], pools: Sequence[int]) -> tuple[int, ...]:
    """Voxels per axis after the blocks: each takes ``KERNEL - 1`` voxels, then divides by its pool, rounding down.

    Raises
    ------
    BadInputError
        If nothing is left along an axis.

    Examples
    --------
    >>> output_shape((193, 229, 193), (2, 3, 2, 3))
    (4, 5, 4)
    """
    shape = tuple(input_shape)
    for number, pool in enumerate(pools, start=1):
        reduced = tuple((side - KERNEL + 1) // pool for side in shape)
        if min(reduced) < 1:
            raise BadInputError(
                f"model: a grid of {_times(input_shape)} voxels is too small for pools {tuple(pools)}: block {number} "
                f"receives {_times(shape)} and would give {_times([max(side, 0) for side in reduced])}. Each side must "
                f"have at least {smallest_side(pools)} voxels; choose a finer resolution or smaller model.pools."
            )
        shape = reduced
    return shape


def seen_shape(input_shape: Sequence[int], pools: Sequence[int]) -> tuple[int, ...]:
    """Voxels per axis, counted from the first, that reach a feature.

    Pooling rounds down, so the last voxels of an axis may fall beside every window: 7 of 193 on the founding grid.

    Examples
    --------
    >>> seen_shape((193, 229, 193), (2, 3, 2, 3))
    (186, 222, 186)
    """
    return tuple(seen_side(side, pools) for side in input_shape)


def seen_side(side: int, pools: Sequence[int]) -> int:
    """Voxels of an axis of `side` voxels, counted from the first, that reach a feature; see `seen_shape`."""
    return _receptive_side(output_shape((side,), pools)[0], pools)


def smallest_side(pools: Sequence[int]) -> int:
    """Fewest voxels per axis that leave one voxel after the last block.

    Examples
    --------
    >>> smallest_side((2, 3, 2, 3))
    78
    """
    return _receptive_side(1, pools)


def covering_side(side: int, pools: Sequence[int]) -> int:
    """Fewest voxels, at least `side`, of which every one reaches a feature.

    Examples
    --------
    >>> covering_side(180, (2, 3, 2, 3)), covering_side(186, (2, 3, 2, 3))
    (186, 186)
    """
    features = 1
    while _receptive_side(features, pools) < side:
        features += 1
    return _receptive_side(features, pools)


def _receptive_side(side: int, pools: Sequence[int]) -> int:
    """Voxels of the input below `side` voxels after the last block."""
    for pool in reversed(pools):
        side = side * pool + KERNEL - 1
    return side


def _times(shape: Sequence[int]) -> str:
    return "x".join(str(side) for side in shape)
