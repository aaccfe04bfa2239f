"""Contrastive losses, which ask which of several embeddings is another view of the same scan.

InfoNCE (van den Oord, Li & Vinyals 2018) is the cross-entropy of that question, with similarities divided by a
temperature; NT-Xent (Chen et al. 2020) asks it for both views of every scan of a batch. Other scans of the same
participant are neither right nor wrong answers, and are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.work.host import on_host


def info_nce(scores: Tensor, positives: Tensor, temperature: float | Tensor, excluded: Tensor | None = None) -> Tensor:
    """Cross-entropy of finding the positive among the candidates of each anchor, (A,).

    ``-log( exp(s_p / τ) / sum_j exp(s_j / τ) )`` over the candidates j that are not excluded; 0 or more.

    `scores`: cosine similarities of anchors and candidates, (A, N). `positives`: place of the positive among the
    candidates, (A,). `temperature`: τ above 0: one, or one for each anchor, (A,). `excluded`: candidates that are left
    out, (A, N); never the positive. Raises UsageError for a temperature of 0 or less.

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

    `count`: B. `people`: participant of each scan, (B,).

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

    `embeddings`: (2B, d), of norm 1; see `views_of_scans`. `people`: (B,). `temperature`: one, or one for each anchor.
    Raises UsageError if all scans are of one participant, so that there is no wrong answer.
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

    `queries`, `keys`: (B, d), of norm 1: two views of the same scans. `people`: (B,). `queue`: earlier keys, (K, d).
    `queued`: their participants, (K,); -1 where there is no key yet.
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
