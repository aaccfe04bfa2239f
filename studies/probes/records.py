"""The family of probes; without torch, see `pipeline.models.families.family`.

Unlike other families it depends on its settings: what a probe takes in, and which methods explain it, follows from its
backbone and head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from heatlas.pipeline.models.families.family import Family, Shape
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.studies.probes.body import body_of, with_body
from heatlas.studies.probes.settings import ProbeConfig

if TYPE_CHECKING:
    from heatlas.pipeline.models.contract import StagedModel

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

Find = Callable[[ModelConfig], Family]
"""The family of a backbone."""


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


def probe_family(settings: ProbeConfig, find: Find) -> Family:
    """The family of probes as the settings make it.

    `find`: the family of the backbone's settings.
    """
    body = find(body_of(settings))
    return dataclasses.replace(
        _probes(find), encoding=body.encoding, needs=body.needs, refused=refused_by(settings, body)
    )


def _probes(find: Find) -> Family:
    def build(shape: Shape, settings: ProbeConfig, outputs: int) -> StagedModel:
        from heatlas.studies.probes.network import build

        settings = with_body(settings)
        body, family = body_of(settings), find(body_of(settings))
        family.require_fits(shape, body)
        return build(family.build(shape, body, outputs), shape, settings, family.encoding == "pair", outputs)

    def described(settings: ProbeConfig) -> str:
        body = body_of(settings)
        kept = "trained further" if settings.train_backbone else "kept as it was"
        text = find(body).described(body).removeprefix("was ")
        head = HEADS[settings.head]
        head += ", with linear maps of keys and values" * settings.projections
        head += ", with a query for each class" * settings.class_queries
        return f"was a probe [@probing], {head}, on a backbone that was {kept}: {text}"

    return Family(
        "probe", ProbeConfig, build,
        smallest_side=lambda settings: find(body_of(settings)).smallest_side(body_of(settings)),
        require_fits=lambda shape, settings: find(body_of(settings)).require_fits(shape, body_of(settings)),
        described=described,
        covering_side=lambda side, settings: find(body_of(settings)).covering_side(side, body_of(settings)),
        seen_side=lambda side, settings: find(body_of(settings)).seen_side(side, body_of(settings)),
    )  # fmt: skip


def usual_probe(find: Find) -> Family:
    """The family with default settings, for lists of all families."""
    return probe_family(ProbeConfig(), find)
