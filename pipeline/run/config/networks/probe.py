"""Settings of probes: a small head on the features of a network that was trained before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from heatlas.pipeline.run.config.networks.base import ModelConfig
from heatlas.pipeline.run.documents import json_object

Head = Literal["linear", "mlp-2", "mlp-3", "bcos-1", "bcos-2", "bcos-3", "coda", "ca-stream"]


@dataclass(frozen=True)
class ProbeConfig(ModelConfig):
    """A probe on a backbone (``heatlas run --backbone``)."""

    architecture: Literal["probe"] = "probe"
    backbone: str = ""
    """Folder of `heatlas pretrain`, or of a finished run of the same people and folds, whose networks are the backbone;
    or a file of weights (safetensors, or a state_dict of PyTorch) of the network in `body`."""
    body: str = ""
    """Architecture and settings of the backbone, as JSON; read from `backbone` where it is empty."""
    head: Head = "linear"
    """What is trained: one linear layer after global average pooling, layers of 1×1×1 convolutions before it (MLP,
    B-cos), dynamic alignment units (CoDA), or one linear layer after pooling by attention (CA-Stream)."""
    first_attended: int = 0
    """Stage of the backbone, from 0, at which the query of a CA-Stream begins."""
    b: float = 2.0
    """Exponent of B-cos heads."""
    hidden_channels: int = 0
    """Of the hidden layers; 0 for as many as the backbone has."""
    stages: int = 0
    """Stages of the backbone that are kept; 0 for all that have voxels."""
    logit_bias: bool = False
    """Add log(1 / (C - 1)) to each of the C logits, so that with binary cross-entropy a scan without evidence gives
    each class the probability 1 / C. Nothing changes for two classes."""
    train_backbone: bool = False
    """Train the backbone on (fine-tuning) instead of keeping it as it is."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (not self.body or _is_object(self.body), "model.body must be the JSON object of a network's settings"),
            (1 <= self.b <= 8, "model.b must lie between 1 and 8"),
            (0 <= self.hidden_channels <= 4096, "model.hidden_channels must lie between 0 and 4,096"),
            (0 <= self.first_attended <= 63, "model.first_attended must lie between 0 and 63"),
            (0 <= self.stages <= 64, "model.stages must lie between 0 and 64"),
        ]


def _is_object(text: str) -> bool:
    try:
        return bool(json_object(text))
    except ValueError:
        return False
