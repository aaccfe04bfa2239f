"""What the network says of a scan when parts of it are hidden by its map: AD, AG, AI, ADCC, insertion, deletion, AOPC.

*Recognition through the map*: ``p`` is the probability of the class on the scan and ``o`` on the scan masked by
`mask_of` its map. AD and AG are one pair: at most one of them is not 0 for a scan. AI counts only. A map of ones hides
nothing and gets 0, 0, 0; a map that is empty but for a few voxels can do badly by AD and still be right. ADCC's third
term, coherency, is a correlation and may be negative; it is rescaled to (1 + r) / 2 here, so that the harmonic mean is
defined.

*Insertion, deletion and AOPC*: how the score changes when what a map points at is shown or taken away. Parts (voxels,
or whole atlas regions) are ordered by the map, largest first; a region counts by its mean per voxel. Ties are put in
random order, so that a map that is even everywhere gets what a random order gets. A part that is taken away becomes the
replacement: tissue of controls, or air. Deleting with a replacement in the reverse order passes through the same
volumes as inserting into it, backwards. So the area of "least important first" deletion (HTP) is that of insertion, and
needs no curve of its own.

Sources: Chattopadhay et al. 2018 (AD, AI); Zhang et al. 2024 (AG); Poppi et al. 2021 (ADCC); Petsiuk et al. 2018
(insertion, deletion); Samek et al. 2017 (AOPC).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.pipeline.attribution.perturbation.masking import mixed
from heatlas.pipeline.evaluation.scores.accuracy import Floats
from heatlas.pipeline.evaluation.scores.localisation import positive
from heatlas.pipeline.run.work.seeds import generator

ROUNDINGS = 64
"""A map whose range is at most this many rounding units is even."""
SMALLEST = 1e-6
"""Smallest denominator of AD and AG."""


def mask_of(values: NDArray[np.floating]) -> Floats:
    """The positive part of a map, from its least value to its largest scaled to [0, 1], as CAM methods are.

    Of a map without negative values, which CAM mixtures, RISE and ViT-CX make, the least value hides all. One that is
    even hides nothing, one without positive values everything.

    Examples
    --------
    >>> mask_of(np.array([2.0, 3.0, 6.0])).tolist(), mask_of(np.array([-2.0, 1.0, 4.0])).tolist()
    ([0.0, 0.25, 1.0], [0.0, 0.25, 1.0])
    >>> mask_of(np.array([7.0, 7.0])).tolist(), mask_of(np.array([-7.0, 0.0])).tolist()
    ([1.0, 1.0], [0.0, 0.0])
    """
    part = positive(values)
    low, high = part.min(), part.max()
    if high - low <= ROUNDINGS * np.finfo(np.asarray(values).dtype).eps * high:  # even, but for rounding
        return np.full_like(part, float(high > 0))
    mask: Floats = (part - low) / (high - low)
    return mask


def average_drop(p: float, o: float) -> float:
    """``100 max(p - o, 0) / p``: per cent of the probability that is lost; smaller is better.

    Examples
    --------
    >>> average_drop(0.8, 0.6), average_drop(0.8, 0.9)
    (25.0, 0.0)
    """
    return round(100 * max(p - o, 0.0) / max(p, SMALLEST), 12)


def average_gain(p: float, o: float) -> float:
    """``100 max(o - p, 0) / (1 - p)``: per cent of what could be gained; larger is better.

    Examples
    --------
    >>> average_gain(0.5, 0.75), average_gain(0.5, 0.25)
    (50.0, 0.0)
    """
    return min(100.0, round(100 * max(o - p, 0.0) / max(1 - p, SMALLEST), 12))


def average_increase(p: float, o: float) -> float:
    """100 where the masked scan is recognised better, else 0; the mean is the percentage of scans."""
    return 100.0 if o > p else 0.0


def coherency(values: NDArray[np.floating], of_masked: NDArray[np.floating]) -> float:
    """Pearson correlation of a map with the map of the scan masked by it; NaN where either is even everywhere."""
    a, b = (np.asarray(one, dtype=np.float64).ravel() for one in (values, of_masked))
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(np.clip(a @ b / size, -1, 1)) if size > 0 else math.nan


def adcc(coherent: float, complexity: float, drop: float) -> float:
    """Harmonic mean of coherency, 1 - complexity and 1 - average drop; 0 if any is not above 0; larger is better.

    `coherent`: the correlation r of `coherency` (Torres Figueroa 2024, eq. 1.14), or (1 + r) / 2, with which maps that
    contradict each other are not all 0. `complexity`: mean of the scaled map, in [0, 1]. `drop`: average drop as a
    fraction.

    Examples
    --------
    >>> adcc(1.0, 0.0, 0.0), adcc(1.0, 1.0, 0.0), adcc(0.5, 0.5, 0.5), adcc(-0.5, 0.5, 0.5)
    (1.0, 0.0, 0.5, 0.0)
    """
    terms = (coherent, 1 - complexity, 1 - drop)
    if any(math.isnan(term) for term in terms):
        return math.nan
    if min(terms) <= 0:
        return 0.0
    return 3 / sum(1 / term for term in terms)


Score = Callable[[Tensor], Tensor]
"""Value (B,) of volumes (B, 1, D, H, W); volumes of a batch do not influence each other."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Scores (steps + 1,) while more and more of the voxels is changed: `fractions` (steps + 1,), 0 to 1."""

    fractions: Floats
    scores: Floats

    @property
    def area(self) -> float:
        """Area under the curve, by the trapezoid rule; a score that never changes gives that score."""
        return float(np.trapezoid(self.scores, self.fractions) / (self.fractions[-1] - self.fractions[0]))

    def aopc(self, steps: int) -> float:
        """``1 / (L + 1) sum over k = 0 to L of (f(x_0) - f(x_k))`` of the first L steps (or all there are).

        Examples
        --------
        >>> Curve(np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.4, 0.0])).aopc(1)
        0.3
        """
        first = self.scores[: steps + 1]
        return float((first[0] - first).mean())


def part_numbers(inside: Tensor, labels: Tensor | None = None) -> Tensor:
    """The part that each voxel (D, H, W) belongs to, 0 to P - 1; -1 outside `inside`.

    `labels`: (D, H, W), whole numbers: each is a part, 0 (no region) among them; without labels each voxel is one.
    """
    parts = torch.full(inside.shape, -1, dtype=torch.long, device=inside.device)
    if labels is None:
        parts[inside] = torch.arange(int(inside.sum()), device=inside.device)
    else:
        parts[inside] = torch.unique(labels[inside], return_inverse=True)[1]
    return parts


def part_order(values: Tensor, parts: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Parts by the mean of a map (D, H, W), largest first: place of each part (P,), and sizes in that order (P,)."""
    inside = parts >= 0
    count = torch.bincount(parts[inside])
    total = torch.zeros(len(count), dtype=torch.float64, device=parts.device)
    total.index_add_(0, parts[inside], values[inside].double())
    mean = (total / count).cpu().numpy()
    shuffled = generator(seed, "order of ties").permutation(len(mean))
    order = np.lexsort((shuffled, -mean))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return torch.from_numpy(place).to(parts.device), count[torch.from_numpy(order).to(parts.device)]


def removal_curve(
    score: Score, start: Tensor, end: Tensor, parts: Tensor, values: Tensor, steps: int, batch: int = 8, seed: int = 0
) -> Curve:
    """Scores on the way from one volume to another, changing first the parts that a map puts first.

    Deletion goes from the scan to the replacement, insertion from the replacement to the scan.

    Parameters
    ----------
    score : callable
    start, end : Tensor
        (D, H, W).
    parts : Tensor
        (D, H, W); see `part_numbers`.
    values : Tensor
        The map, (D, H, W).
    steps : int
        As many as there are parts at most; each changes about as many parts as the others.
    batch : int
        Volumes evaluated at once.
    seed : int
        Seed of the order of ties.
    """
    place, voxels = part_order(values, parts, seed)
    steps = min(steps, len(place))
    edges = np.round(np.linspace(0, len(place), steps + 1)).astype(int)
    changed = np.concatenate([[0], np.cumsum(voxels.cpu().numpy())])
    when = torch.where(parts >= 0, place[parts.clamp(min=0)], len(place))
    scores = []
    with torch.no_grad():
        for limits in torch.split(torch.as_tensor(edges, device=when.device)[:, None, None, None], batch):
            kept = (when[None] >= limits).to(start.dtype)  # the first `limit` parts have changed
            scores.append(score(mixed(start[None], kept, end[None])[:, None]))
    return Curve(changed[edges] / changed[-1], torch.cat(scores).double().cpu().numpy())
