"""A network of several inputs as one of its volume alone: the others are held fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from heatlas.pipeline.run.errors import UsageError

Others = Sequence[Any] | Mapping[str, Any]
"""Further inputs of a network in the order it takes them after the volume, or by name."""


@fx.wrap
def _repeated(value: Tensor, volumes: int) -> Tensor:
    """One row for each volume of a batch; a single operation when a network is traced."""
    return value.expand(volumes, *value.shape[1:])


class WithOthers(nn.Module):
    """A network with all inputs but the volume given.

    `others`: each (1, ...); every volume of a batch gets the same. `by_name`: whether they are passed by name, not by
    place.
    """

    def __init__(self, network: nn.Module, others: Mapping[str, Tensor], by_name: bool) -> None:
        super().__init__()
        self.network, self._names, self._by_name = network, tuple(others), by_name
        for name, value in others.items():
            self.register_buffer(f"other_{name}", value)

    def forward(self, x: Tensor) -> Any:
        each = [_repeated(getattr(self, f"other_{name}"), x.size(0)) for name in self._names]
        return self.network(x, **dict(zip(self._names, each, strict=True))) if self._by_name else self.network(x, *each)


def fixed_inputs(others: Others, like: Tensor) -> dict[str, Tensor]:
    """Further inputs as tensors by name or place, those of floats in the precision and on the device of `like`.

    Raises UsageError for one that is no number, array or tensor of one row.

    Examples
    --------
    >>> fixed_inputs((71,), torch.zeros(()))
    {'0': tensor([[71.]])}
    """
    if isinstance(others, str | bytes) or not isinstance(others, Mapping | Sequence):
        raise UsageError("others: give a list of inputs, as others=[age], or inputs by name, as others={'age': age}.")
    named = others if isinstance(others, Mapping) else {str(place): value for place, value in enumerate(others)}
    found = {}
    for name, value in named.items():
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"others[{name}]: no number, array or tensor ({error}).") from error
        if tensor.dim() == 0:
            tensor = tensor.reshape(1, 1).to(like.dtype)
        if len(tensor) != 1:
            raise UsageError(
                f"others[{name}]: has the shape {tuple(tensor.shape)}; its first axis is the batch, of one image."
            )
        found[name] = tensor.to(like.device, like.dtype if tensor.is_floating_point() else None)
    return found
