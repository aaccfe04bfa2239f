"""Inherent maps: what each voxel contributes by the one linear map that a dynamic linear network is for a scan.

B-cos and CoDA networks compute ``logit - b = W(x) x``. The contribution of a value is its own summand, and the
contribution of a voxel the sum over its pair [v, 1 - v]. Nothing is estimated, and nothing of the network is left
out; see Böhle, Fritz & Schiele 2021, 2022. Relative to controls a map is that of the scan less the mean of theirs: it
adds up to the evidence of the scan less the mean evidence of the controls.

The ledger of a map: a value is what voxels contribute plus what each layer adds by itself. For a bias-free network the
only constant is the logit bias, and vision transformers add positions. Networks with biases or running means, and
hybrids on a conventional stem, have more; they are listed by layer, so that nothing is hidden in a rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.entry import Entry, RunContext
from heatlas.pipeline.attribution.gradient.gradients import channel_sum
from heatlas.pipeline.attribution.method_settings import CheckedSettings
from heatlas.pipeline.attribution.network_view import NetworkView
from heatlas.pipeline.attribution.records import Ledger, LedgerEntry
from heatlas.pipeline.attribution.reference.references import Reference, features_of, fitting, mean_value
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import Value, dynamic_layers, dynamic_weights, explanation_mode
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.bcos.networks import Positions
from heatlas.studies.coda.network import require_voxel_level
from heatlas.studies.dynamic import InputEncoding
from heatlas.studies.probes.network import Backbone, conventional_stem


@dataclass(frozen=True)
class InherentLedger:
    """Where a value comes from; every number is float64 of shape (B,).

    `positive`, `negative`: sums of the contributions above and below 0. `shares`: what the constants of each layer add
    to the value, by name of the layer, from the input on.
    """

    value: Tensor
    positive: Tensor
    negative: Tensor
    shares: Mapping[str, Tensor]

    @property
    def constants(self) -> Mapping[str, Tensor]:
        """Shares of the layers that add something."""
        return {name: share for name, share in self.shares.items() if bool((share != 0).any())}

    @property
    def contributions(self) -> Tensor:
        return self.positive + self.negative

    @property
    def residual(self) -> Tensor:
        """Value less contributions and constants: rounding, or constants that no layer owns."""
        return self.value - self.contributions - sum(self.constants.values(), torch.zeros_like(self.value))


def inherent_ledger(model: nn.Module, value: Value, features: Tensor) -> InherentLedger:
    """Contributions of features, and of the constants of every layer, to a value.

    With dynamic factors held, a network is a sum over paths from its input and from the constants of its layers. The
    constant of a layer is its answer to nothing, and what it adds is this times the gradient behind the layer.

    `model`: in evaluation mode; holds all modules that `value` runs through. `value`: what is explained, (B,).
    """
    passed: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
            passed[name] = (module, given[0], answer)

        return hook

    with torch.inference_mode(False), torch.enable_grad(), explanation_mode(model), ExitStack() as hooks:
        for name, module in model.named_modules():
            if _may_add(module):
                hooks.callback(module.register_forward_hook(watch(name)).remove)
        leaf = features.detach().clone().requires_grad_()
        answer = value(leaf)
        behind = [answer_of for _, _, answer_of in passed.values()]
        slopes = torch.autograd.grad(answer.sum(), [leaf, *behind], allow_unused=True)
        with torch.no_grad():
            shares = {
                name: _per_volume(module.forward(torch.zeros_like(given)) * slope)
                for (name, (module, given, _)), slope in zip(passed.items(), slopes[1:], strict=True)
                if slope is not None
            }
    contributions = (slopes[0] * features).detach().double().flatten(1)
    return InherentLedger(
        answer.detach().double(), contributions.clamp(min=0).sum(1), contributions.clamp(max=0).sum(1), shares
    )


def balances(found: InherentLedger) -> Ledger:
    """The ledger as balances of layers, output first, as LRP has them: the value loses the share of each on its way.

    Rounding is the residual of the last.
    """
    left, entries = found.value, []
    nothing = torch.zeros_like(left)
    for name, share in reversed(list(found.shares.items())):
        entries.append(LedgerEntry(name, left, left - share, share, nothing, nothing))
        left = left - share
    if entries:
        entries[-1] = replace(entries[-1], relevance_out=found.contributions)
    return Ledger(found.value, found.contributions, tuple(entries))


def _may_add(module: nn.Module) -> bool:
    """Whether a module is a layer that keeps numbers of its own, or adds positions."""
    if isinstance(module, Positions):
        return True
    has_numbers = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    return has_numbers and not any(True for _ in module.children())


def _per_volume(values: Tensor) -> Tensor:
    return values.double().flatten(1).sum(1)


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
        return {"reference": surroundings.reference}

    @staticmethod
    def needs_later_stage(network: StagedModel) -> bool:
        """Whether the network is a hybrid: dynamic linear layers on a conventional backbone."""
        return conventional_stem(network) is not None

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
        contributed = _of(view, view.features)
        if self.compare == "nothing":
            return contributed
        reference = fitting(self.reference, view.volumes, self.name)
        version = sum(weight._version for weight in view.model.parameters())  # changes with weights changed in place
        question = (self.name, view.target, view.start, view.stage)
        return contributed - reference.remembered(question, (view.model, version), lambda: _mean_map(reference, view))

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
    of_controls = [_of(view, one) for one in torch.split(features_of(reference.volumes, view), 1)]
    return torch.cat(of_controls).mean(0, keepdim=True)


def _of(view: NetworkView, features: Tensor) -> Tensor:
    return channel_sum(contributions(view.model, *_from_pairs(view, features)))


def _from_pairs(view: NetworkView, features: Tensor) -> tuple[Value, Tensor]:
    """The value of a view, and what it is a function of: its features, of volumes their encoding."""
    if not view.after or not isinstance(view.after[0][1], InputEncoding):
        return view.score, features
    encoding, rest = view.after[0][1], replace(view, after=view.after[1:])
    with torch.no_grad():
        return rest.score, encoding(features)


INHERENT = Entry(
    Inherent,
    "contributions of a network that is one linear map for each scan, less those of controls; exact, in logits",
    usual_start="evidence",
)
