"""How far a map lies from where it should be: losses of model guidance, differentiable in the map.

Of Rao, Böhle, Parchami-Araghi & Schiele 2023 (*Studying how to efficiently and effectively guide models with
explanations*) for maps A (B, D, H, W) and masks M (B, D, H, W) of 0 and 1. All are means over voxels, so that their
weight does not depend on the size of volumes: RRR* was a sum over voxels there, which is ours times the voxels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

LEAST = 1e-7
"""Sum of positive attribution below which the share inside the mask is not defined."""
FLOOR = 1e-30
"""Least value whose logarithm PPCE takes; below it there is no gradient."""


def energy_share(maps: Tensor, masks: Tensor) -> Tensor:
    """Share of the positive attribution that lies inside the mask (energy pointing game), (B,).

    Where there is none, the sum inside the mask is taken itself, whose gradient still leads to some.

    Examples
    --------
    >>> maps, mask = torch.tensor([[[[3.0, 1.0, -2.0]]]]), torch.tensor([[[[1.0, 0.0, 1.0]]]])
    >>> energy_share(maps, mask).tolist()
    [0.75]
    """
    positive = maps.relu()
    inside, whole = (positive * masks).flatten(1).sum(1), positive.flatten(1).sum(1)
    return torch.where(whole < LEAST, inside, inside / whole.clamp(min=LEAST))


def energy_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """1 - `energy_share`, (B,): raises what is inside, lowers what is outside, wants no even map."""
    return 1 - energy_share(maps, masks)


def l1_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """Mean distance of the positive map, scaled to a maximum of 1, from the mask, (B,): wants it filled evenly."""
    return (masks - _scaled(maps.relu())).abs().flatten(1).mean(1)


def ppce_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """Per-pixel cross-entropy of the scaled positive map inside the mask, (B,): raises what is inside, no more."""
    logs = _scaled(maps.relu()).clamp(min=FLOOR).log()
    return -(masks * logs).flatten(1).sum(1) / masks.flatten(1).sum(1).clamp(min=1)


def rrr_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """Mean square of the scaled signed map outside the mask, (B,): lowers what is outside, no more."""
    return ((1 - masks) * _scaled(maps) ** 2).flatten(1).mean(1)


def _scaled(maps: Tensor) -> Tensor:
    """Maps divided by their largest magnitude, through which gradients pass; a map of zeros stays one."""
    largest = maps.abs().flatten(1).amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    return maps / largest.view(-1, *[1] * (maps.dim() - 1))


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "energy": energy_loss, "l1": l1_loss, "ppce": ppce_loss, "rrr": rrr_loss,
}  # fmt: skip
"""By the name in ``[objective] loss``."""


def dilated(masks: Tensor, voxels: int) -> Tensor:
    """Masks (B, D, H, W) grown by a cube of so many voxels on each side, clipped at the border.

    Examples
    --------
    >>> dilated(torch.tensor([[[[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]]]), 1).tolist()
    [[[[0.0, 1.0, 1.0, 1.0, 0.0, 0.0]]]]
    """
    if voxels == 0:
        return masks
    width = 2 * voxels + 1
    return functional.max_pool3d(masks[:, None], width, stride=1, padding=voxels)[:, 0]


def explanation_distance(of_student: Tensor, of_teacher: Tensor, within: Tensor | None = None) -> Tensor:
    """1 - cosine of two maps of the same shape (B, ...), (B,): 0 if they are proportional, 2 if opposite.

    0, without a gradient, where either is zero everywhere: no direction can be taught (a Grad-CAM of dead units).
    Source: Parchami-Araghi, Böhle, Rao & Schiele 2024, eq. 3.

    Parameters
    ----------
    of_student, of_teacher : Tensor
    within : Tensor or None
        1 where the maps are compared, of their shape or one that is broadcast to it; None for everywhere.

    Examples
    --------
    >>> explanation_distance(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])).tolist()
    [0.0, 0.0]
    """
    student, teacher = (maps if within is None else maps * within for maps in (of_student, of_teacher))
    student, teacher = student.flatten(1), teacher.flatten(1)
    known = (student.detach().norm(dim=1) > LEAST) & (teacher.norm(dim=1) > LEAST)
    safe = torch.where(known[:, None], student, torch.ones_like(student))
    return torch.where(known, 1 - functional.cosine_similarity(safe, teacher, dim=1, eps=LEAST), safe.new_zeros(()))


def attention_distance(of_student: Tensor, of_teacher: Tensor, within: Tensor | None = None) -> Tensor:
    """Squared distance of two maps that are divided by their lengths, (B,): twice `explanation_distance`.

    The loss of attention transfer (Zagoruyko & Komodakis 2017, eq. 2, squared as in their code: the distance itself has
    no gradient where maps agree).

    Examples
    --------
    >>> attention_distance(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]])).tolist()
    [2.0]
    """
    return 2 * explanation_distance(of_student, of_teacher, within)
