"""Small calibrated B-cos networks in float64 with volumes that have a background, for tests of inherent maps."""

from __future__ import annotations

import torch
from torch import Tensor

from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import calibrate
from heatlas.pipeline.models.families.registry import build_network
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.coda.records import CodaSConfig

SHAPE = (6, 8, 7)


def scans(count: int, seed: int = 1) -> Tensor:
    v = torch.rand(count, 1, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    v[:, :, :2] = 0
    return v


def bcos(outputs: int = 3, norm: str = "position", **settings: object) -> StagedModel:
    torch.manual_seed(11)
    config = BcosSimpleConfig(channels=(4, 5), strides=(2, 1), norm=norm, **settings)  # type: ignore[arg-type]
    model = build_network(config, SHAPE, outputs).double()
    calibrate(model, scans(4, seed=9))
    return model.eval()


def coda(outputs: int = 3) -> StagedModel:
    torch.manual_seed(12)
    config = CodaSConfig(units=(3, 4), ranks=(2, 2, 3), kernels=(3, 3, 1), strides=(2, 1, 1))
    model = build_network(config, SHAPE, outputs).double()
    calibrate(model, scans(4, seed=9))
    return model.eval()


def healthy(count: int = 3) -> Reference:
    return Reference(scans(count, seed=5), tuple(f"sub-{place}" for place in range(count)))
