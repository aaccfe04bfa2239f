"""Objectives of pre-training: what two views of the same scans are to have in common.

The target of a scan is the number of its participant. In validation, where scans are not augmented, the second view is
the mirror image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heatlas.pipeline.run.config.pretraining import PretrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective
from heatlas.pipeline.training.volumes import LEFT_RIGHT
from heatlas.studies.pretraining.contrast import against_keys, found, nt_xent, views_of_scans
from heatlas.studies.pretraining.networks import Pretraining
from heatlas.studies.pretraining.temperatures import momentum_of, temperature_of

SHARP, SOFT = 0.04, 0.1
"""Temperatures of teacher and student of dino, and the share of a batch in its centre (Caron et al. 2021)."""
CENTRE = 0.1

Answer = tuple[Tensor, Tensor]
"""Losses of single scans, (B,), and whether their views were found, (B,)."""
Temperature = float | Tensor
"""One, or one of each scan, (B,)."""


def pretraining(settings: PretrainingConfig, epochs: int, seed: int, tail: Sequence[bool] = ()) -> Objective:
    """The objective of a method.

    `epochs`: of the whole training, which schedules are spread over. `seed`: of a random schedule. `tail`: of each
    participant, by number: whether the temperature is the lowest, or else the highest; for a schedule by class.
    """
    method = _METHODS[settings.method]
    of_people = torch.tensor([settings.temperature if rare else settings.highest_temperature for rare in tail])

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        network = model if isinstance(model, Pretraining) else model.module
        if not isinstance(network, Pretraining):
            raise UsageError("pretraining: this objective trains a network of its own, `Pretraining`.")
        count, volumes = len(batch.scans), batch.volumes
        if len(volumes) == count:
            volumes = torch.cat([volumes, volumes.flip(1 + LEFT_RIGHT)])
        epoch = max(batch.epoch, 1)
        if settings.momentum_schedule != "fixed":
            network.momentum = momentum_of(settings, epoch, epochs)
        learning, copied = model(volumes)
        together = network.training and torch.distributed.is_initialized()  # validation parts are whole everywhere
        of_batch = torch.stack([learning, copied]), batch.targets
        everyone, people, mine = gathered(*of_batch) if together else (*of_batch, slice(0, count))
        temperature: Temperature = temperature_of(settings, epoch, epochs, seed)
        if tail:
            temperature = of_people.to(people.device)[people]
        losses, right = method(network, everyone[0], everyone[1].detach(), people, temperature)
        share = len(people) / count  # gradients of the shares are averaged, and weighted by their sizes
        return losses.mean() * share, {"loss": losses.detach()[mine], "right": right[mine]}

    def measures(logged: Logged) -> Measures:
        return Measures(float(logged["loss"].mean()), float(logged["right"].mean()))

    return Objective(
        settings.method, loss, measures, "retrieval", 1, {"pretraining": dataclasses.asdict(settings)}, views=2
    )


def gathered(embeddings: Tensor, people: Tensor) -> tuple[Tensor, Tensor, slice]:
    """Embeddings and participants of all processes in the order of the batch, and which are those of this one.

    Only those of this process have gradients; every process computes the whole loss, and leads its own share back.

    `embeddings`: (n, 2B, d); first views before second ones. `people`: (B,).
    """
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    sent: list[Any] = [None] * ranks
    own = embeddings.unflatten(1, (2, -1))  # type: ignore[no-untyped-call]
    torch.distributed.all_gather_object(sent, (on_host(own), on_host(people)))
    parts = [own if place == rank else part.to(own) for place, (part, _) in enumerate(sent)]
    places = torch.cat([torch.arange(len(names)) * ranks + place for place, (_, names) in enumerate(sent)])
    order = places.argsort().to(people.device)
    together = torch.cat(parts, 2)[:, :, order]
    names = torch.cat([names for _, names in sent]).to(people)[order]
    return together.flatten(1, 2), names, slice(rank, None, ranks)


def _simclr(_: Pretraining, learning: Tensor, __: Tensor, people: Tensor, temperature: Temperature) -> Answer:
    both = temperature.repeat(2) if isinstance(temperature, Tensor) else temperature
    return _of_scans(*nt_xent(learning, people, both))


def _moco(network: Pretraining, learning: Tensor, keys: Tensor, people: Tensor, temperature: Temperature) -> Answer:
    """Each view asks for the key of the other; the keys of the second views are then queued."""
    (one, two), (key_one, key_two) = learning.chunk(2), keys.chunk(2)
    queue = network.queue.clone(), network.queued.clone()
    first = against_keys(one, key_two, people, *queue, temperature)
    second = against_keys(two, key_one, people, *queue, temperature)
    if network.training:
        network.enqueue(key_two, people)
    return _of_scans(torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]))


def _byol(_: Pretraining, learning: Tensor, copied: Tensor, people: Tensor, __: Temperature) -> Answer:
    """``2 - 2 cos`` of the prediction from one view and the copy's embedding of the other (Grill et al. 2020)."""
    places, excluded = views_of_scans(len(people), people)
    return _of_scans(2 - 2 * (learning * copied[places]).sum(1), found(learning @ copied.T, places, excluded))


def _dino(network: Pretraining, learning: Tensor, copied: Tensor, people: Tensor, _: Temperature) -> Answer:
    """Cross-entropy of the student's answer to one view with the centred and sharpened answer of the copy to the other.

    Source: Caron et al. 2021.
    """
    places, excluded = views_of_scans(len(people), people)
    wanted = ((copied - network.centre) / SHARP).softmax(1)[places]
    losses = -(wanted * (learning / SOFT).log_softmax(1)).sum(1)
    if network.training:
        network.centre.lerp_(copied.mean(0), CENTRE)
    return _of_scans(losses, found(learning @ copied.T, places, excluded))


def _of_scans(losses: Tensor, right: Tensor) -> Answer:
    """Means over the two views of each scan."""
    return losses.unflatten(0, (2, -1)).mean(0), right.unflatten(0, (2, -1)).mean(0)  # type: ignore[no-untyped-call]


_METHODS: dict[str, Callable[[Pretraining, Tensor, Tensor, Tensor, Temperature], Answer]] = {
    "simclr": _simclr, "moco": _moco, "byol": _byol, "dino": _dino,
}  # fmt: skip
