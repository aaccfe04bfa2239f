"""What is explained: the output and its value.

All methods share this module, so that they explain the same thing. Relevance starts from the logit of the target
(default) or from its softmax probability, as in the founding study. LRP is linear in its start value: a negative logit,
as many controls have for the patient class, gives the negative of the map for a positive logit, and the map sums to the
negative logit.

Maps relative to a reference explain the *evidence*: the logit of the target minus the mean of the other logits. For two
classes it is the log odds, and does not change if a constant is added to all logits. For regression it is the output.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.work.host import on_host

StartValue = Literal["logit", "probability", "evidence"]


def start_values(logits: Tensor, target: int, start: StartValue) -> Tensor:
    """Explained value of the target, one per volume: (B,).

    Parameters
    ----------
    logits : Tensor
        (B, K).
    target : int
        Output unit, 0 to K - 1.
    start : {"logit", "probability", "evidence"}
        ``evidence`` is the logit minus the mean of all other logits; for a single output, the output itself.

    Raises
    ------
    UsageError
        If the target does not exist, `start` is unknown or a probability of one output, or the output is not one row of
        logits per volume.

    Examples
    --------
    >>> start_values(torch.tensor([[0.0, -2.0]]), 1, "logit").tolist()
    [-2.0]
    >>> start_values(torch.tensor([[3.0, 3.0]]), 1, "probability").tolist()
    [0.5]
    >>> start_values(torch.tensor([[1.0, 4.0], [2.0, 0.0]]), 1, "evidence").tolist()
    [3.0, -2.0]
    >>> start_values(torch.tensor([[1.0, 4.0, 2.0]]), 1, "evidence").tolist(), start_values(
    ...     torch.tensor([[71.5]]), 0, "evidence").tolist()
    ([2.5], [71.5])
    """
    if logits.dim() != 2:
        raise UsageError(f"the model must give (batch, classes) and gives {tuple(logits.shape)}.")
    if not 0 <= target < logits.shape[1]:
        raise UsageError(f"target {target} does not exist: the model has outputs 0 to {logits.shape[1] - 1}.")
    if start == "logit":
        return logits[:, target]
    if start == "probability":
        if logits.shape[1] == 1:
            raise UsageError("start = 'probability': the softmax of one output is always 1; take 'logit'.")
        return torch.softmax(logits, dim=1)[:, target]
    if start == "evidence":
        others = torch.cat([logits[:, :target], logits[:, target + 1 :]], dim=1)
        return logits[:, target] - others.mean(1) if others.shape[1] else logits[:, target]
    raise UsageError(f"start = {start!r}: allowed are 'logit', 'probability' and 'evidence'.")


def require_explainable(model: nn.Module, volumes: Tensor) -> None:
    """Refuse volumes that the model cannot take or that are not finite.

    Raises BadInputError for a wrong number of axes, a precision or device other than the model's, or values that are
    not finite.
    """
    if volumes.dim() != 5 or not len(volumes):
        raise BadInputError(f"volumes must be (batch, channel, D, H, W) and are {tuple(volumes.shape)}.")
    if volumes.dtype not in (torch.float32, torch.float64):
        raise BadInputError(f"volumes are {volumes.dtype}; attribution works in float32 or float64.")
    for name, weights in model.named_parameters():
        if weights.dtype != volumes.dtype or weights.device != volumes.device:
            raise BadInputError(
                f"volumes are {volumes.dtype} on {volumes.device}, but {name} is {weights.dtype} on {weights.device}; "
                "bring both to one precision and device."
            )
    broken = [index for index, volume in enumerate(volumes) if not bool(on_host(torch.isfinite(volume).all()))]
    if broken:
        raise BadInputError(f"volume {broken[0]} of the batch has values that are not finite (NaN or infinity).")
