"""Model guidance: a network learns its task, and to have its map where a mask says it should be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Objective
from heatlas.studies.objectives.guidance_losses import LOSSES
from heatlas.studies.objectives.maps_in_training import explained_batch


@dataclass(frozen=True)
class Guidance:
    """How maps are guided.

    `loss`: one of `LOSSES`. `map`: as of `studies.objectives.maps_in_training.explained_batch`. `stage`:
    boundary of the network at which the map is made; 0 the input, -1 the last stage with voxels. `weight`: of the mean
    guidance loss, relative to that of the task. 0 trains as without guidance, to the bit. `classes`: classes whose maps
    are guided; those of other people are not.
    """

    loss: str = "energy"
    map: str = "input-x-gradient"
    stage: int = 0
    weight: float = 1.0
    classes: tuple[int, ...] = (0, 1)


def guided(task: Objective, guidance: Guidance) -> Objective:
    """The objective of a task, plus ``weight`` times the mean guidance loss over the annotated scans of a batch.

    The map of a scan is that of its own class (of a number, of the output). ``context.masks`` are the masks, (1 or N,
    D, H, W), and ``context.annotated``, (N,), says which scans of the part count; a batch without any has the task's
    loss alone. Validation has the task's loss and score, so that no network is selected for its maps alone.

    Source: Rao et al. 2023, eq. 1, whose sum over a batch is a mean here, so that `weight` does not depend on its size.
    """

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        if guidance.weight == 0 or not torch.is_grad_enabled():
            return task.loss(model, batch, context)
        own = on_host(_annotated(batch, context, guidance))
        if not own.any():
            return task.loss(model, batch, context)
        targets = batch.targets if batch.targets.dtype == torch.int64 else torch.zeros_like(batch.scans)
        explained = explained_batch(
            model, batch.volumes, targets, guidance.map, guidance.stage, reference=context.reference
        )
        of_task, logged = task.loss(KnownOutput(explained.logits), batch, context)
        maps, masks = explained.maps, masks_of(batch, context)
        if not own.all():  # to take all of them would be a copy
            places = own.nonzero()[:, 0].to(maps.device)
            maps, masks = maps[places], masks[places]
        distances = LOSSES[guidance.loss](maps, masks)
        return of_task + guidance.weight * distances.mean(), logged

    facts = {**task.facts, "guidance": vars(guidance)}
    return replace(task, name=f"{task.name} guided by {guidance.loss}", loss=loss, facts=facts)


class KnownOutput(nn.Module):
    """A network whose output is known already, so that an objective need not compute it again."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, volumes: Tensor) -> Tensor:
        """The output, (B, K), whatever the volumes."""
        return self._output


def masks_of(batch: Batch, context: Context) -> Tensor:
    """Masks (B, D, H, W) of a batch: those that came with its volumes, moved as they were, or of its scans."""
    if batch.masks is not None:
        return batch.masks
    assert context.masks is not None
    return context.masks[batch.scans] if len(context.masks) > 1 else context.masks.expand(len(batch.scans), -1, -1, -1)


def _annotated(batch: Batch, context: Context, guidance: Guidance) -> Tensor:
    """Which scans of a batch have a mask that counts, (B,)."""
    if context.masks is None:
        return torch.zeros_like(batch.scans, dtype=torch.bool)
    known = (
        torch.ones_like(batch.scans, dtype=torch.bool) if context.annotated is None else context.annotated[batch.scans]
    )
    if batch.targets.dtype != torch.int64:
        return known
    wanted = torch.as_tensor(guidance.classes, device=batch.targets.device)
    return known & torch.isin(batch.targets, wanted)
