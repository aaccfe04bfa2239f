"""Two networks that compute the same and are explained differently: the construction of appendix A.8 of the thesis.

Between features and logits a layer is put that hands on the connected features and adds two units, plus and minus the
sum of all disconnected ones, which cancel. No logit changes, and neither does any gradient. The z+ rule sees the
positive one of the two units only, and sends relevance to features that cannot change the logit.

Source: Böhle 2024, appendix A.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.targets import StartValue
from heatlas.pipeline.evaluation.grids.grid_scores import GridMethod
from heatlas.pipeline.run.errors import BadInputError, UsageError

INVARIANCE_ROW = ("method", "logit_difference", "share_plain", "share_cancelling", "note")


@dataclass(frozen=True)
class EquivalentNetworks:
    """Two networks with the same logits: `plain`, and `cancelling` with the two units that cancel."""

    plain: nn.Sequential
    cancelling: nn.Sequential


def cancelling_pair(weight: Tensor, bias: Tensor, connected: Tensor) -> EquivalentNetworks:
    """Linear heads on a map of features.

    Parameters
    ----------
    weight : Tensor
        (K, F): of the connected features; those of the others are set to 0.
    bias : Tensor
        (K,).
    connected : Tensor
        (F,), bool: features of the map, flattened, that the head reads.

    Raises
    ------
    BadInputError
        If all features are connected, or none.
    """
    if bool(connected.all()) or not bool(connected.any()):
        raise BadInputError("the head must read some features and not others; a cell of a grid does.")
    classes, count = weight.shape
    plain = nn.Linear(count, classes, dtype=weight.dtype)
    plain.weight.data = weight.detach() * connected
    plain.bias.data = bias.detach().clone()
    places = connected.nonzero()[:, 0]
    first = nn.Linear(count, len(places) + 2, bias=False, dtype=weight.dtype)
    first.weight.data.zero_()
    first.weight.data[torch.arange(len(places)), places] = 1
    first.weight.data[-2, ~connected], first.weight.data[-1, ~connected] = 1, -1
    second = nn.Linear(len(places) + 2, classes, dtype=weight.dtype)
    second.weight.data = torch.cat([weight.detach()[:, places], weight.new_ones(classes, 2)], dim=1)
    second.bias.data = bias.detach().clone()
    return EquivalentNetworks(
        nn.Sequential(nn.Flatten(), plain).eval(), nn.Sequential(nn.Flatten(), first, second).eval()
    )


def share_on_disconnected(
    network: nn.Module, features: Tensor, connected: Tensor, target: int, method: Method, start: StartValue = "logit"
) -> float:
    """Share of absolute attribution on features that cannot change the logit; NaN for a map of zeros.

    Parameters
    ----------
    network : nn.Module
        One of `EquivalentNetworks`.
    features : Tensor
        (1, 1, d, h, w).
    connected : Tensor
        (F,), bool.
    target : int
    method : Method
    start : {"logit", "probability", "evidence"}
    """
    size = attribute(network, features, target, method, 0, start).values.flatten().double().abs()
    total = size.sum()
    return float(size[~connected].sum() / total) if total > 0 else float("nan")


def invariance_rows(
    features: Tensor, slopes: Tensor, connected: Tensor, target: int, asked: Sequence[GridMethod]
) -> list[dict[str, object]]:
    """What methods make of `EquivalentNetworks` on given features, a row per map: `INVARIANCE_ROW`.

    Parameters
    ----------
    features : Tensor
        (1, 1, d, h, w).
    slopes : Tensor
        (K, F), weights of the head.
    connected : Tensor
        (F,), bool: features that the head reads.
    target : int
    asked : sequence of GridMethod
        Their controls, if any, are features too.
    """
    pair = cancelling_pair(slopes, slopes.new_zeros(len(slopes)), connected)
    networks = (pair.plain, pair.cancelling)
    with torch.no_grad():
        logits = [network(features) for network in networks]
    difference = float((logits[0] - logits[1]).abs().max() / logits[0].abs().max())
    rows = []
    for one in asked:
        row: dict[str, object] = {"method": one.name, "logit_difference": difference}
        try:
            shares = [
                share_on_disconnected(net, features, connected, target, one.method, one.start) for net in networks
            ]
            row |= {"share_plain": shares[0], "share_cancelling": shares[1], "note": None}
        except (BadInputError, UsageError) as error:
            row |= {"share_plain": float("nan"), "share_cancelling": float("nan"), "note": str(error)}
        rows.append(row)
    return rows
