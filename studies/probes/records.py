"""The family of probes; without torch, see `pipeline.models.families.family`.

Unlike other families it depends on its settings: what a probe takes in, and which methods explain it, follows from its
backbone and head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from heatlas.pipeline.models.families.family import Family, OnBackbone, Shape
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.studies.probes.body import body_of, files_of, on_shuffled_labels, placed, require_backbone, with_body
from heatlas.studies.probes.kept_backbone import keep_backbone, on_kept_backbone
from heatlas.studies.probes.settings import ProbeConfig

if TYPE_CHECKING:
    from torch import Tensor

    from heatlas.pipeline.cohort.people.splits import Fold
    from heatlas.pipeline.models.contract import StagedModel
    from heatlas.pipeline.models.inputs import NetworkInput

RULES = (
    "its rules are defined for ReLU networks, and the head of this probe has dynamic linear layers, which no rule "
    "covers. Use expected-gradients"
)
DEEP_HEAD = (
    "CAM needs global average pooling and one linear layer after the backbone, and this head is another. Use grad-cam"
)
SIGNED = "the hidden features of this head may be negative, and the formula needs amounts. Use grad-cam"
ONE_LINEAR = "its rules begin with the mean of tokens and one linear layer, and this head is another. Use rollout"
NOT_AVERAGED = (
    "CAM needs global average pooling and one linear layer after the backbone, and this head pools by attention. Use "
    "grad-cam"
)
ATTENTION = (
    "its rules are not defined for the attention by which this head pools. Use expected-gradients, or the head linear"
)
DYNAMIC_HEAD: Mapping[str, str] = {"lrp": RULES, "guided-backpropagation": RULES, "deeplift": RULES, "cam": DEEP_HEAD}
HEADS = {
    "linear": "one linear layer", "mlp-2": "two layers of 1×1×1 convolutions",
    "mlp-3": "three layers of 1×1×1 convolutions", "bcos-1": "one B-cos layer", "bcos-2": "two B-cos layers",
    "bcos-3": "three B-cos layers", "coda": "two layers of dynamic alignment units [@coda]",
    "ca-stream": "one linear layer after pooling by a stream of attention [@castream]",
}  # fmt: skip


def refused_by(settings: ProbeConfig, body: Family) -> Mapping[str, str]:
    """Methods that are not defined for a head on a backbone of a family."""
    found = dict(body.refused)
    found.pop("cam", None)  # which depends on the head alone
    if settings.head == "linear":
        return found
    if settings.head == "ca-stream":
        found.pop("raw-attention", None)  # which is that of the pooling
        unruled = dict.fromkeys(("lrp", "deeplift", "inherent"), ATTENTION)
        return {"rollout": ATTENTION, "cgw1": ATTENTION, **found, "cam": NOT_AVERAGED, **unruled}
    found = {"cgw1": ONE_LINEAR, **found}
    if settings.head.startswith("mlp"):
        return {**found, "cam": DEEP_HEAD}
    if body.encoding != "pair":  # the head is explained from the features of the backbone on
        found.pop("inherent", None)
    found = {**found, **DYNAMIC_HEAD}
    hidden = () if settings.head == "bcos-1" else ("grad-cam++", "xgrad-cam", "opti-cam")
    return {**dict.fromkeys(hidden, SIGNED), **found}


def _family_of(settings: ModelConfig) -> Family:
    from heatlas.pipeline.models.families.registry import family_of  # which loads this module

    return family_of(settings)


def _body(settings: ProbeConfig) -> tuple[Family, ModelConfig]:
    """The family of a backbone, and its settings."""
    body = body_of(settings)
    return _family_of(body), body


def _resolved(settings: ProbeConfig) -> Family:
    family, _ = _body(settings)
    return dataclasses.replace(
        PROBE, encoding=family.encoding, needs=family.needs, refused=refused_by(settings, family)
    )


def _build(shape: Shape, settings: ProbeConfig, outputs: int) -> StagedModel:
    from heatlas.studies.probes.network import build

    settings = with_body(settings)
    family, body = _body(settings)
    family.require_fits(shape, body)
    return build(family.build(shape, body, outputs), shape, settings, family.encoding == "pair", outputs)


def _described(settings: ProbeConfig) -> str:
    family, body = _body(settings)
    kept = "trained further" if settings.train_backbone else "kept as it was"
    text = family.described(body).removeprefix("was ")
    head = HEADS[settings.head]
    head += ", with linear maps of keys and values" * settings.projections
    head += ", with a query for each class" * settings.class_queries
    return f"was a probe [@probing], {head}, on a backbone that was {kept}: {text}"


def _smallest(settings: ProbeConfig) -> int:
    family, body = _body(settings)
    return family.smallest_side(body)


def _require_fits(shape: Shape, settings: ProbeConfig) -> None:
    family, body = _body(settings)
    family.require_fits(shape, body)


def _covering(side: int, settings: ProbeConfig) -> int:
    family, body = _body(settings)
    return family.covering_side(side, body)


def _seen(side: int, settings: ProbeConfig) -> int:
    family, body = _body(settings)
    return family.seen_side(side, body)


def _weights(settings: ProbeConfig, spec: NetworkInput, fold: Fold, shuffled: bool) -> Mapping[str, Tensor] | None:
    from heatlas.studies.probes.body import knows_labels
    from heatlas.studies.probes.start import backbone_weights

    return None if shuffled and knows_labels(settings) else backbone_weights(settings, spec, fold)


PROBE = Family(
    "probe", ProbeConfig, _build, _smallest, _require_fits, _described, _covering, _seen,
    resolve=_resolved,
    backbone=OnBackbone(
        body_of, with_body, placed, require_backbone, on_shuffled_labels, files_of, _weights, keep_backbone,
        on_kept_backbone,
    ),
)  # fmt: skip
