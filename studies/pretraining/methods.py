"""Ways of learning without labels: telling views of scans from one another, following a copy, restoring patches.

Two views of the same scan are to have something in common. The target of a scan is the number of its participant. In
validation, where scans are not augmented, the second view is the mirror image. InfoNCE (van den Oord, Li & Vinyals
2018) is the cross-entropy of the question which of several embeddings is the other view of a scan, with similarities
divided by a temperature; NT-Xent (Chen et al. 2020) asks it for both views of every scan of a batch. Other scans of the
same participant are neither right nor wrong answers, and are left out.

In masked autoencoding a vision transformer sees some patches of a scan and restores the others (He et al. 2022).
MONAI's `MaskedAutoEncoderViT` does the same with blocks of its own, which need einops; here encoder and decoder are
made of the blocks of the family.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.families.family import Shape
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.vit import TransformerBlock
from heatlas.pipeline.run.config.networks import PretrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.training.objectives.records import Batch, Context, Logged, Measures, Objective
from heatlas.pipeline.training.volumes import LEFT_RIGHT
from heatlas.studies.pretraining.networks import Pretraining, momentum_of, temperature_of


def info_nce(scores: Tensor, positives: Tensor, temperature: float | Tensor, excluded: Tensor | None = None) -> Tensor:
    """Cross-entropy of finding the positive among the candidates of each anchor, (A,).

    ``-log( exp(s_p / τ) / sum_j exp(s_j / τ) )`` over the candidates j that are not excluded; 0 or more.

    `scores`: cosine similarities of anchors and candidates, (A, N). `positives`: place of the positive among the
    candidates, (A,). `temperature`: τ above 0: one, or one for each anchor. `excluded`: candidates that are left out,
    (A, N); never the positive.

    Examples
    --------
    >>> info_nce(torch.zeros(1, 4), torch.tensor([2]), 0.5).exp().round().tolist()  # log 4
    [4.0]
    """
    wide = scores if scores.dtype == torch.float64 else scores.float()  # 1 / 0.07 overflows sums of half precision
    taus = torch.as_tensor(temperature, dtype=wide.dtype)  # one number is looked at here, with no need to wait
    if not bool(on_host((taus > 0).all())):
        raise UsageError("the temperature of a contrastive loss must be above 0.")
    logits = wide / taus.to(wide.device).reshape(-1, 1)
    if excluded is not None:
        logits = logits.masked_fill(excluded, -torch.inf)
    return logits.logsumexp(1) - logits.gather(1, positives[:, None])[:, 0]


def views_of_scans(count: int, people: Tensor) -> tuple[Tensor, Tensor]:
    """Place of the other view of each of 2B embeddings, (2B,), and which are excluded, (2B, 2B).

    The first B are one view of each scan, the others the second. Excluded are an embedding itself and other scans of
    its participant.

    `people`: participant of each of B scans.

    Examples
    --------
    >>> places, excluded = views_of_scans(2, torch.tensor([7, 8]))
    >>> places.tolist(), excluded.int().tolist()[0]
    ([2, 3, 0, 1], [1, 0, 0, 0])
    """
    both = people.repeat(2)
    places = torch.arange(2 * count, device=people.device).roll(count)
    excluded = both[:, None] == both
    excluded[torch.arange(2 * count, device=people.device), places] = False
    return places, excluded


def nt_xent(embeddings: Tensor, people: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each of 2B anchors, (2B,), and whether its most similar candidate is its other view.

    `embeddings`: (2B, d), of norm 1; see `views_of_scans`. `people`: (B,).
    """
    if bool(on_host((people == people[0]).all())):
        raise UsageError(
            "pretraining: a batch has no negatives: all its scans are of one participant. Raise training.batch_size "
            "or add participants."
        )
    places, excluded = views_of_scans(len(people), people)
    scores = embeddings @ embeddings.T
    return info_nce(scores, places, temperature, excluded), found(scores, places, excluded)


def against_keys(
    queries: Tensor, keys: Tensor, people: Tensor, queue: Tensor, queued: Tensor, temperature: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Loss of B queries whose candidates are the keys of the batch and of a queue (He et al. 2020), (B,), and hits.

    The other keys of the batch are candidates too, so that there are some before the queue is filled.

    `queries`, `keys`: (B, d), of norm 1: two views of the same scans. `queue`: earlier keys, (K, d). `queued`: their
    participants, (K,); -1 where there is no key yet.
    """
    scores = queries @ torch.cat([keys, queue]).T
    places = torch.arange(len(queries), device=queries.device)
    excluded = people[:, None] == torch.cat([people, queued])
    excluded[:, len(keys) :] |= queued < 0
    excluded[places, places] = False
    return info_nce(scores, places, temperature, excluded), found(scores, places, excluded)


def found(scores: Tensor, positives: Tensor, excluded: Tensor) -> Tensor:
    """Whether the positive is the most similar candidate of each anchor, (A,), as 0 or 1."""
    return (scores.detach().masked_fill(excluded, -torch.inf).argmax(1) == positives).float()


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
    `embeddings`: (n, 2B, d); first views before second ones.
    """
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    sent: list[Any] = [None] * ranks
    views = embeddings.unflatten(1, (2, -1))  # type: ignore[no-untyped-call]
    torch.distributed.all_gather_object(sent, (on_host(views), on_host(people)))
    parts = [views if place == rank else part.to(views) for place, (part, _) in enumerate(sent)]
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
    return losses.unflatten(0, (2, -1)).mean(0), right.unflatten(0, (2, -1)).mean(0)  # type: ignore[no-untyped-call]


_METHODS: dict[str, Callable[[Pretraining, Tensor, Tensor, Tensor, Temperature], Answer]] = {
    "simclr": _simclr, "moco": _moco, "byol": _byol, "dino": _dino,
}  # fmt: skip


TINY = 1e-6
"""Added to the variance of a patch, so that background is 0."""


class MaskedAutoencoder(nn.Module):
    """A network that restores hidden patches; voxels beyond the last whole patch are left out.

    `stages`: tokens, blocks and norm of the family ``vit``; they are not copied. `shape`: voxels of its input.
    """

    def __init__(self, stages: Sequence[nn.Module], shape: Shape, model: ViTConfig, masking_ratio: float) -> None:
        super().__init__()
        self.patch = model.patch
        patches = math.prod(side // model.patch for side in shape)
        self.seen = min(max(1, round((1 - masking_ratio) * patches)), patches - 1)
        self.tokens, self.blocks = stages[0], nn.Sequential(*stages[1:])
        self.mask = nn.Parameter(0.02 * torch.randn(model.dim))
        self.positions = nn.Parameter(0.02 * torch.randn(patches, model.dim))
        self.decoder = nn.Sequential(
            TransformerBlock(model.dim, model.heads, model.dropout),
            nn.LayerNorm(model.dim),
            nn.Linear(model.dim, model.patch**3),
        )

    def forward(self, volumes: Tensor) -> tuple[Tensor, Tensor]:
        """Restored patches (B, N, patch ** 3) of volumes (B, 1, D, H, W), and which were hidden, (B, N).

        Which are hidden is drawn by PyTorch's generator of the CPU.
        """
        tokens = self.tokens(volumes).flatten(2)  # (B, C, N)
        places = torch.rand(len(tokens), tokens.shape[2]).argsort(1)[:, : self.seen].to(tokens.device)
        index = places[:, None].expand(-1, tokens.shape[1], -1)
        encoded = self.blocks(tokens.gather(2, index)[..., None, None]).flatten(2)
        everywhere = self.mask[:, None].expand_as(tokens).to(encoded.dtype).scatter(2, index, encoded)
        restored: Tensor = self.decoder(everywhere.transpose(1, 2) + self.positions)
        return restored, torch.ones_like(tokens[:, 0]).scatter(1, places, 0.0)


def standardised_patches(volumes: Tensor, patch: int) -> Tensor:
    """The voxels of each patch less their mean, over their standard deviation, (B, N, patch ** 3)."""
    patches = volumes[:, 0]
    for axis in (1, 2, 3):
        patches = patches.unfold(axis, patch, patch)
    patches = patches.flatten(4).flatten(1, 3)
    variance, mean = torch.var_mean(patches, 2, keepdim=True, unbiased=False)
    return (patches - mean) / (variance + TINY).sqrt()


def masked_autoencoding(settings: PretrainingConfig, seed: int) -> Objective:
    """Mean squared error of hidden patches, each standardised.

    The score is the share of their variance that is restored. In validation the same patches are hidden at each epoch.
    """

    def loss(model: nn.Module, batch: Batch, context: Context) -> tuple[Tensor, Logged]:
        network = model if isinstance(model, MaskedAutoencoder) else model.module
        assert isinstance(network, MaskedAutoencoder)
        with torch.random.fork_rng(devices=[], enabled=not network.training):
            if not network.training:
                torch.manual_seed(seed)
            restored, hidden = model(batch.volumes)
        wanted = standardised_patches(batch.volumes, network.patch)
        errors = ((restored.float() - wanted) ** 2).mean(2) * hidden
        variance = (wanted.square().mean(2) * hidden).sum(1)
        losses = errors.sum(1) / hidden.sum(1)
        return losses.mean(), {"loss": losses.detach(), "error": errors.sum(1).detach(), "variance": variance}

    def measures(logged: Logged) -> Measures:
        share = 1 - float(logged["error"].sum()) / max(float(logged["variance"].sum()), TINY)
        return Measures(float(logged["loss"].mean()), share)

    return Objective("masked", loss, measures, "retrieval", 1, {"pretraining": dataclasses.asdict(settings)})
