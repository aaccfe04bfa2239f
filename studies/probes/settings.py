"""Settings of probes: a small head on the features of a network that was trained before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.pipeline.run.config.ranges import between
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
    first_attended: Annotated[int, between(0, 63)] = 0
    """Stage of the backbone, from 0, at which the query of a CA-Stream begins."""
    projections: bool = False
    """Of a CA-Stream: linear maps of the keys and the values of each stage."""
    class_queries: bool = False
    """Of a CA-Stream: a query for each class, whose logit reads what it pools; its maps differ from class to class."""
    b: Annotated[float, between(1, 8)] = 2.0
    """Exponent of B-cos heads."""
    hidden_channels: Annotated[int, between(0, 4096)] = 0
    """Channels of the hidden layers; 0 for as many as the backbone has."""
    stages: Annotated[int, between(0, 64)] = 0
    """Stages of the backbone that are kept; 0 for all that have voxels."""
    logit_bias: bool = False
    """Add log(1 / (C - 1)) to each of the C logits, so that with binary cross-entropy a scan without evidence gives
    each class the probability 1 / C. Nothing changes for two classes."""
    train_backbone: bool = False
    """Train the backbone on (fine-tuning) instead of keeping it as it is."""

    def checks(self) -> list[tuple[bool, str]]:
        readable = not self.body or _is_object(self.body)
        streams = self.head == "ca-stream"
        return [
            (readable, "model.body must be the JSON object of a network's settings"),
            *(
                (streams or not chosen, f'model.{name} is of a CA-Stream: set model.head = "ca-stream", or take it out')
                for name, chosen in (("projections", self.projections), ("class_queries", self.class_queries))
            ),
        ]

    @property
    def needs_classes(self) -> str:
        return "model.class_queries" if self.class_queries else ""


def _is_object(text: str) -> bool:
    try:
        return bool(json_object(text))
    except ValueError:
        return False
