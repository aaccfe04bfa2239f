"""Settings of the networks, one record per family; chosen by ``[model] architecture``.

`pipeline.models.families` builds the families. A new family adds a record here and one there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args, get_type_hints

from heatlas.pipeline.run.config.networks.base import SHARED, ModelConfig
from heatlas.pipeline.run.config.networks.bcos import (
    BcosConfig,
    BcosConvNeXtConfig,
    BcosDenseNetConfig,
    BcosResNetConfig,
    BcosResNeXtConfig,
    BcosSimpleConfig,
    BcosVggConfig,
    BcosViTConfig,
)
from heatlas.pipeline.run.config.networks.coda import (
    CodaConfig,
    CodaSConfig,
    CodaSWbConfig,
)
from heatlas.pipeline.run.config.networks.conventional import (
    Conv5FC3Config,
    DenseNetConfig,
    EfficientNetConfig,
    FoundingConfig,
    LinearConfig,
    ResNetConfig,
    SEResNetConfig,
    SFCNConfig,
    ViTConfig,
)
from heatlas.pipeline.run.config.networks.probe import ProbeConfig

NETWORKS: Mapping[str, type[ModelConfig]] = {
    name: record
    for record in (
        FoundingConfig,
        LinearConfig,
        SFCNConfig,
        Conv5FC3Config,
        ResNetConfig,
        DenseNetConfig,
        SEResNetConfig,
        EfficientNetConfig,
        ViTConfig,
        BcosSimpleConfig,
        BcosResNetConfig,
        BcosResNeXtConfig,
        BcosDenseNetConfig,
        BcosConvNeXtConfig,
        BcosVggConfig,
        BcosViTConfig,
        CodaSConfig,
        CodaSWbConfig,
        ProbeConfig,
    )
    for name in get_args(get_type_hints(record)["architecture"])
}
"""The record of settings of every family, by the name in ``[model] architecture``."""

__all__ = [
    "NETWORKS",
    "SHARED",
    "BcosConfig",
    "BcosConvNeXtConfig",
    "BcosDenseNetConfig",
    "BcosResNeXtConfig",
    "BcosResNetConfig",
    "BcosSimpleConfig",
    "BcosVggConfig",
    "BcosViTConfig",
    "CodaConfig",
    "CodaSConfig",
    "CodaSWbConfig",
    "Conv5FC3Config",
    "DenseNetConfig",
    "EfficientNetConfig",
    "FoundingConfig",
    "LinearConfig",
    "ModelConfig",
    "ProbeConfig",
    "ResNetConfig",
    "SEResNetConfig",
    "SFCNConfig",
    "ViTConfig",
]
