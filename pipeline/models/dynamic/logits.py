"""From pooled evidence to logits: ``logits = x / T + b``, with a temperature T and a bias b that are not trained.

A dynamic linear network without biases gives 0 to an empty input. The bias says what probability that is: with
``b = log(1 / (C - 1))`` each of C classes has the probability 1 / C where nothing speaks for or against it. The
temperature lowers the bound of the logits, so that a network has to align its weights with the input to be sure.

Contributions add up to ``logit - b``. After training, b may become one constant for each class, fitted to scans
(`pipeline.training.exact`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heatlas.pipeline.run.errors import UsageError


def bias_of_chance(outputs: int, prior: float | None = None) -> float:
    """Logit bias of a network with so many outputs.

    Parameters
    ----------
    outputs : int
        C classes: ``log(1 / (C - 1))``, which for two classes is 0.
    prior : float, optional
        Needed for a single class: ``logit(prior)``, its probability where nothing speaks for or against it.

    Raises
    ------
    UsageError
        For a single class without a prior between 0 and 1.

    Examples
    --------
    >>> bias_of_chance(2), round(bias_of_chance(10), 4), bias_of_chance(1, prior=0.5)
    (0.0, -2.1972, 0.0)
    """
    if outputs > 1:
        return math.log(1 / (outputs - 1))
    if prior is None or not 0 < prior < 1:
        raise UsageError("a single logit has no chance level of its own: give the prior probability of its class.")
    return math.log(prior) - math.log1p(-prior)


class LogitLayer(nn.Module):
    """``x / temperature + bias``; both are buffers, so that they are stored with the weights.

    `temperature`: above 0. `bias`: from `bias_of_chance` for classes; 0 for a number. `initial_size`: root mean square
    that ``x / temperature`` is to have before training: the temperature is then set from data by
    `studies.dynamic.calibration`. None: it stays as given.

    Examples
    --------
    >>> LogitLayer(4.0, bias=1.0)(torch.tensor([[8.0, 0.0]])).tolist()
    [[3.0, 1.0]]
    """

    temperature: Tensor
    bias: Tensor

    def __init__(self, temperature: float = 1.0, bias: float = 0.0, initial_size: float | None = None) -> None:
        super().__init__()
        self.initial_size = initial_size
        if not 0 < temperature < math.inf:
            raise UsageError(f"temperature = {temperature!r}: it must be above 0.")
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_buffer("bias", torch.tensor(float(bias)))

    def forward(self, x: Tensor) -> Tensor:
        return x / self.temperature + self.bias

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *others: Any) -> None:
        """Take one bias, or one for each class, as it was stored."""
        stored = state_dict.get(f"{prefix}bias")
        if stored is not None and stored.dim() <= 1:
            self.bias = self.bias.new_empty(stored.shape)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        biases = ", ".join(f"{one:g}" for one in self.bias.reshape(-1).tolist())
        return f"temperature={float(self.temperature):g}, bias={biases}"
