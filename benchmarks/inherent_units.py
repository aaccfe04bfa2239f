"""What one unit learns: how far a B-cos unit points at what it must answer to, and whether a DAU finds templates."""

from __future__ import annotations

import math

import pandas as pd
import torch
from torch.nn import functional

from heatlas.pipeline.models.families.coda.dau import CodaConv3d


def angle() -> pd.DataFrame:
    """Best direction of one unit that must answer at 60 degrees, for distractors at 20 and at 100 degrees."""
    angles = torch.linspace(-math.pi, math.pi, 7201, dtype=torch.float64)
    rows = []
    for b in (1, 1.5, 2, 2.5, 4, 8, 16, 64):
        best = []
        for elsewhere in (20.0, 100.0):
            cosines = [torch.cos(angles - math.radians(place)) for place in (60.0, elsewhere)]
            wanted, unwanted = (c.sign() * c.abs() ** b for c in cosines)
            loss = functional.softplus(-wanted) + 0.5 * functional.softplus(unwanted)
            best.append(float(torch.rad2deg(angles[loss.argmin()])))
        gap = abs(best[0] - best[1])
        rows.append({"B": b, "distractors at 20": best[0], "distractors at 100": best[1], "gap": gap})
    return pd.DataFrame(rows)


def templates(seed: int) -> pd.DataFrame:
    """Smallest principal cosine between what a unit of rank 3 learns and three templates, or their three components."""
    rows = []
    draw = torch.Generator().manual_seed(seed)
    truth = functional.normalize(torch.randn(3, 125, generator=draw), dim=1) * math.sqrt(125) / 2
    x = truth[torch.randint(3, (3072,), generator=draw)] + 0.5 * torch.randn(3072, 125, generator=draw)
    principal = torch.linalg.svd(x, full_matrices=False).Vh[:3].T
    for bound in ("l2", "sq", "wb"):
        torch.manual_seed(seed)
        one = CodaConv3d(125, 1, 1, rank=3, bound=bound, vote=False)
        optimiser = torch.optim.Adam(one.parameters(), 0.01)
        for _step in range(400):
            optimiser.zero_grad()
            (-one(x.view(-1, 125, 1, 1, 1)).mean()).backward()
            optimiser.step()
        span = torch.linalg.qr(one.expand_weight.flatten(1).T.detach()).Q
        rows.append({"bound": bound} | {
            name: float(torch.linalg.svdvals(span.T @ torch.linalg.qr(basis).Q).min())
            for name, basis in (("templates", truth.T), ("principal components", principal))
        })  # fmt: skip
    return pd.DataFrame(rows)
