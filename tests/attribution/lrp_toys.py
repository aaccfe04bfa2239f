"""Small networks and volumes with everything that makes LRP hard, on grids with unequal sides."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from heatlas.pipeline.attribution.graph.planner import BatchNormMode
from heatlas.pipeline.attribution.lrp.relevance import lrp
from heatlas.pipeline.attribution.lrp.rules import Composite, Rule, founding
from heatlas.pipeline.attribution.network_view import StartValue
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.models.contract import StagedModel

SHAPE = (9, 13, 11)

CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "stride": {"kernel_size": (3, 2, 3), "stride": (2, 1, 3)},
    "padding": {"kernel_size": 3, "padding": (1, 2, 0)},
    "dilation": {"kernel_size": (2, 3, 2), "dilation": (3, 1, 2)},
    "groups": {"kernel_size": 2, "groups": 2},
    "everything": {
        "kernel_size": (3, 2, 2),
        "stride": (2, 2, 1),
        "padding": (1, 1, 0),
        "dilation": (1, 2, 2),
        "groups": 2,
    },
}
"""Every geometry of a convolution that a rule has to get right."""


def toy_network(seed: int = 0, negative_gamma: bool = True, one_signed: bool = True) -> nn.Sequential:
    """Two blocks and two linear layers, float64, evaluation mode; the first pooling overlaps, the second conv is odd.

    With `one_signed`, units of the second convolution have only positive or only negative contributions.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv3d(1, 4, 3),
        nn.BatchNorm3d(4),
        nn.ReLU(),
        nn.MaxPool3d(3, stride=2),
        nn.Conv3d(4, 6, (2, 3, 1), stride=(1, 2, 1), padding=(1, 0, 1), groups=2),
        nn.BatchNorm3d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool3d((2, 1, 2)),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(6 * 2 * 2 * 3, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).double()
    with torch.no_grad():
        for norm in (net[1], net[5]):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0.2, 0.3)
            norm.running_mean.normal_(std=0.2)
            norm.running_var.uniform_(0.5, 2)
        if negative_gamma:
            net[1].weight[1] *= -1
            net[5].weight[2] *= -1
        if one_signed:
            net[4].weight[0].abs_()
            net[4].weight[3] = -net[4].weight[3].abs()
            net[5].bias[3] = 2
    return net.eval()


def plain_network() -> nn.Sequential:
    """A network that other LRP engines explain without losing relevance, on (11, 14, 8) voxels; not seeded.

    Its normalisations have next to no eps, because zennit 0.5.1 leaves it in the ones it has merged.
    """
    return nn.Sequential(
        nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4, eps=1e-12), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(4, 6, 3, padding=1), nn.BatchNorm3d(6, eps=1e-12), nn.ReLU(), nn.MaxPool3d(2),
        nn.Flatten(), nn.Linear(36, 7), nn.ReLU(), nn.Linear(7, 2),
    ).double().eval()  # fmt: skip


def toy_volumes(count: int = 2, seed: int = 1, signed: bool = False) -> torch.Tensor:
    """Volumes (count, 1, 9, 13, 11), float64, with a background of zeros on three sides."""
    volumes = torch.rand(count, 1, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if signed:
        volumes = volumes - 0.4
    volumes[:, :, :, :5] = 0
    volumes[:, :, 7:] = 0
    volumes[:, :, :, :, :2] = 0
    return volumes


def staged(net: nn.Sequential) -> StagedModel:
    """The same network as stages."""
    modules = list(net)
    modules[6] = nn.ReLU()
    return StagedModel([nn.Sequential(*modules[:4]), nn.Sequential(*modules[4:8]), nn.Sequential(*modules[8:])]).eval()


def lrp_beta(
    model: nn.Module,
    volumes: torch.Tensor,
    target: int,
    betas: Sequence[float],
    start: StartValue = "logit",
    batch_norm: BatchNormMode = "fold",
) -> dict[float, Attribution]:
    """The β-rule for several β in one pass, by β."""
    rules = [founding(beta) for beta in betas]
    answers = lrp(model, volumes, target, rules, start, batch_norm)
    return dict(zip(betas, answers, strict=True))


def everywhere(rule: Rule) -> Composite:
    """One rule at every layer."""
    return Composite("everywhere", rule, rule, rule, rule)
