"""The ledger of an inherent map: a value is what voxels contribute plus what each layer adds by itself.

For a bias-free network the only constant is the logit bias, and vision transformers add positions. Networks with biases
or running means, and hybrids on a conventional stem, have more; they are listed by layer, so that nothing is hidden in
a rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.records import Ledger, LedgerEntry
from heatlas.pipeline.models.dynamic.explanation_mode import explanation_mode
from heatlas.studies.bcos.vit import Positions
from heatlas.studies.dynamic.linear_map import Value


@dataclass(frozen=True)
class InherentLedger:
    """Where a value comes from; every number is float64 of shape (B,).

    `value`: what is explained. `positive`, `negative`: sums of the contributions above and below 0. `shares`: what the
    constants of each layer add to the value, by name of the layer, from the input on.
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

    `model`: in evaluation mode; holds all modules that `value` runs through. `value`: what is explained, (B,), of
    features (B, ...).
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
        answer.detach().double(),
        contributions.clamp(min=0).sum(1),
        contributions.clamp(max=0).sum(1),
        shares,
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
    own = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    return own and not any(True for _ in module.children())


def _per_volume(values: Tensor) -> Tensor:
    return values.double().flatten(1).sum(1)
