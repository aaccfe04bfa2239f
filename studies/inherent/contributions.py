"""Inherent maps: what each voxel contributes by the one linear map that a dynamic linear network is for a scan.

B-cos and CoDA networks compute ``logit - b = W(x) x``. The contribution of a value is its own summand, and the
contribution of a voxel the sum over its pair [v, 1 - v]. Nothing is estimated, and nothing of the network is left
out; see Böhle, Fritz & Schiele 2021, 2022. Relative to controls a map is that of the scan less the mean of theirs: it
adds up to the evidence of the scan less the mean evidence of the controls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.gradient.gradients import channel_sum
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.records import Ledger
from heatlas.pipeline.attribution.reference.references import Reference, features_of, fitting, mean_value
from heatlas.pipeline.models.dynamic.explanation_mode import dynamic_layers
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.coda.embedding import require_voxel_level
from heatlas.studies.dynamic.encoding import InputEncoding
from heatlas.studies.dynamic.linear_map import Value, dynamic_weights
from heatlas.studies.inherent.ledger import balances, inherent_ledger
from heatlas.studies.probes.backbone import Backbone


def contributions(model: nn.Module, value: Value, features: Tensor) -> Tensor:
    """``W(a) * a`` (B, C, d, h, w), which sums to the value less what it owes to constants.

    Parameters
    ----------
    model : nn.Module
        Holds all modules that `value` runs through.
    value : callable
        What is explained, (B,), of features (B, C, d, h, w).
    features : Tensor
    """
    return dynamic_weights(model, value, features) * features.detach()


def contrast(first: int, second: int) -> Callable[[Tensor], Tensor]:
    """The difference of two logits, as a value: its contributions say what speaks for one class and not the other.

    Examples
    --------
    >>> contrast(1, 0)(torch.tensor([[1.0, 4.0]])).tolist()
    [3.0]
    """
    return lambda logits: logits[:, first] - logits[:, second]


@dataclass(frozen=True)
class Inherent(CheckedSettings):
    """Contributions by W(x), signed, summed over channels.

    `reference`: given by the run. `compare`: less the mean map of the controls, or the contributions of the scan alone.
    """

    name: ClassVar[str] = "inherent"
    has_ledger: ClassVar[bool] = True

    reference: Reference | None = None
    compare: Literal["controls", "nothing"] = "controls"

    @staticmethod
    def from_run(surroundings: RunContext) -> dict[str, Reference | None]:
        """The controls of the network."""
        return {"reference": surroundings.reference}

    def require(self, view: NetworkView) -> None:
        """Refuse a network that is no dynamic linear one, and a value that is not linear in the logits."""
        require_dynamic(view.model, view.at_input)
        if view.start == "probability":
            raise UsageError(
                "inherent explains logits, which add up, and no probability. Ask for the logit or evidence."
            )

    def maps(self, view: NetworkView) -> Tensor:
        """Maps (B, 1, d, h, w) that sum to the value less that of the reference, or less the logit bias."""
        self.require(view)
        found = _of(view, view.features)
        if self.compare == "nothing":
            return found
        reference = fitting(self.reference, view.volumes, self.name)
        version = sum(weight._version for weight in view.model.parameters())  # changes with weights changed in place
        question = (self.name, view.target, view.start, view.stage)
        return found - reference.remembered(question, (view.model, version), lambda: _mean_map(reference, view))

    def ledger(self, view: NetworkView) -> Ledger:
        """Contributions of the scan alone and constants of every layer, which add up to its value."""
        score, features = _from_pairs(view, view.features)
        return balances(inherent_ledger(view.model, score, features))

    def reference_value(self, view: NetworkView) -> Tensor | None:
        """Mean value of the reference volumes, (B,); None for a scan alone."""
        if self.compare == "nothing":
            return None
        return mean_value(fitting(self.reference, view.volumes, self.name), view)


def require_dynamic(model: nn.Module, at_input: bool) -> None:
    """Refuse a network that is not one linear map of its features, or at the input of its voxels."""
    if not dynamic_layers(model):
        raise UsageError(
            "inherent explains networks that are one linear map for each input (B-cos, CoDA), and this one is not. "
            "Use expected-gradients, or train such a network (heatlas models lists them)."
        )
    if at_input:
        require_voxel_level(model)
        _require_dynamic_backbone(model)


def _require_dynamic_backbone(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Backbone) and not module.is_dynamic:
            raise UsageError(
                "inherent: the backbone of this probe is conventional: contributions are exact from its features on. "
                "Ask for them with heatlas explain --method inherent --stage 1."
            )


def _mean_map(reference: Reference, view: NetworkView) -> Tensor:
    """Mean over the controls of their contributions, (1, 1, d, h, w)."""
    return torch.cat([_of(view, one) for one in torch.split(features_of(reference.volumes, view), 1)]).mean(
        0, keepdim=True
    )


def _of(view: NetworkView, features: Tensor) -> Tensor:
    """Contributions of the features of a view, summed over channels."""
    return channel_sum(contributions(view.model, *_from_pairs(view, features)))


def _from_pairs(view: NetworkView, features: Tensor) -> tuple[Value, Tensor]:
    """The value of a view, and what it is a function of: its features, of volumes their encoding."""
    if not view.after or not isinstance(view.after[0][1], InputEncoding):
        return view.score, features
    encoding, rest = view.after[0][1], replace(view, after=view.after[1:])
    with torch.no_grad():
        return rest.score, encoding(features)
