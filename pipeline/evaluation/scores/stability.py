"""Max-sensitivity and infidelity (Yeh et al. 2019).

Max-sensitivity: how far a map moves when the scan is changed a little. Infidelity: how far the sums of a map are from
what the score does when the parts they stand for are replaced. Neither asks whether the place is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from heatlas.pipeline.attribution.perturbation.masking import mixed
from heatlas.pipeline.evaluation.scores.masked_recognition import coherency
from heatlas.pipeline.evaluation.scores.removal import Score
from heatlas.pipeline.run.work.seeds import derived_seed

Explain = Callable[[Tensor], Tensor]
"""The map (D, H, W) of a volume (D, H, W), made as the first one was."""

RADIUS = 0.02
"""Largest change of a voxel, in volumes scaled to [0, 1] (captum's default)."""
LOST = 0.001
"""Share of the brain that a shift may push out of the volume. Above it maps differ because the network sees a cut
brain, whatever it knows of places, and nothing is compared."""


def max_sensitivity(
    explain: Explain, volume: Tensor, values: Tensor, inside: Tensor, samples: int = 10, radius: float = RADIUS,
    seed: int = 0,
) -> float:  # fmt: skip
    """``max over samples of |map(x + r) - map(x)| / |map(x)|``, r uniform within ``radius``; smaller is better.

    As `captum.metrics.sensitivity_max`. Air keeps its value: only voxels of `inside` change.

    Parameters
    ----------
    explain : callable
    volume, values : Tensor
        The scan and its map, (D, H, W).
    inside : Tensor
        (D, H, W), bool.
    samples : int
    radius : float
    seed : int
        The noise is drawn on the CPU in float32, so that every device meets the same.

    Returns
    -------
    float
        NaN where a map of a changed scan is not finite.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, "max-sensitivity"))
    norm, largest = torch.linalg.vector_norm(values.double()), 0.0
    for _ in range(samples):
        noise = (torch.rand(volume.shape, generator=generator) * 2 - 1).to(volume) * radius
        moved = torch.linalg.vector_norm((explain(volume + noise * inside) - values).double())
        if not bool(torch.isfinite(moved)):
            return math.nan
        largest = max(largest, float(moved / norm))
    return largest


def shift_correlation(explain: Explain, volume: Tensor, values: Tensor, inside: Tensor, shift: int) -> float:
    """The correlation of `shift_likeness`."""
    return shift_likeness(explain, volume, values, inside, shift)[0]


def shift_likeness(
    explain: Explain, volume: Tensor, values: Tensor, inside: Tensor, shift: int
) -> tuple[float, float]:  # fmt: skip
    """How like a map is to that of the scan moved along the diagonal, moved back: correlation, and cosine.

    1 if maps move with scans. Mean of both directions. What leaves the grid is lost, and air comes in from the other
    side; nothing is compared if that is more than `LOST` of the brain. A value below 1 need not be of the network's
    places: at a face of the grid it also loses what layers compute beyond the brain. The source (Parchami-Araghi et al.
    2024, figure of ViTs) has the cosine.

    Parameters
    ----------
    explain : callable
    volume, values : Tensor
        The scan and its map, (D, H, W).
    inside : Tensor
        (D, H, W), bool: voxels that are compared, where both maps have them.
    shift : int
        Voxels along each axis.

    Returns
    -------
    tuple of float
        NaN where more than `LOST` of the brain leaves the grid, or a map of a moved scan is not finite, or is even
        everywhere (correlation) or 0 (cosine).
    """
    if lost_share(inside, shift) > LOST:
        return math.nan, math.nan
    found = []
    for step in (shift, -shift):
        back = shifted(explain(shifted(volume, step)), -step)
        both = inside & shifted(shifted(torch.ones_like(inside), step), -step)
        if not bool(torch.isfinite(back[both]).all()) or not bool(both.any()):
            return math.nan, math.nan
        found.append(
            (coherency(values[both].cpu().numpy(), back[both].cpu().numpy()), _cosine(values[both], back[both]))
        )
    return sum(one for one, _ in found) / 2, sum(one for _, one in found) / 2


def lost_share(inside: Tensor, shift: int) -> float:
    """Share of the voxels of `inside` that leave the volume when it is moved along the diagonal.

    Forward or back, whichever is more; NaN if nothing is inside.

    Examples
    --------
    >>> brain = torch.tensor([False, True, True, True, True, False, False])
    >>> [lost_share(brain, shift) for shift in (0, 1, 2, 7)]
    [0.0, 0.0, 0.25, 1.0]
    """
    whole = int(inside.sum())
    stays = min(int(shifted(inside, step).sum()) for step in (shift, -shift))
    return 1 - stays / whole if whole else math.nan


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    size = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return float(a @ b) / size if size > 0 else math.nan


def shifted(volume: Tensor, step: int) -> Tensor:
    """A volume moved by `step` voxels along each axis, with 0 where nothing was.

    Examples
    --------
    >>> shifted(torch.tensor([[1, 2, 3], [4, 5, 6]]), 1).tolist(), shifted(torch.tensor([1, 2, 3]), -2).tolist()
    ([[0, 0, 0], [0, 1, 2]], [3, 0, 0])
    """
    if abs(step) >= min(volume.shape):  # nothing is left, which pad refuses
        return torch.zeros_like(volume)
    return functional.pad(volume, (step, -step) * volume.dim())


def infidelity(sums: Tensor, drops: Tensor) -> tuple[float, float]:
    """Mean squared difference of sums of a map and drops of the score, as they are and after the best scaling.

    Parameters
    ----------
    sums, drops : Tensor
        (samples,): of random sets of parts, the sum of the map over the set, and the score of the scan minus its score
        with the set replaced.

    Returns
    -------
    float, float
        ``mean((sum - drop)^2)``, in squared units of the score (0 for a linear score and input times gradient); and
        ``min over b of mean((b sum - drop)^2) / mean(drop^2)``, in [0, 1], for maps of any unit. NaN if nothing drops.

    Examples
    --------
    >>> infidelity(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    (2.5, 0.0)
    """
    sums, drops = sums.double(), drops.double()
    power, size = float((drops**2).mean()), float((sums**2).mean())
    raw = float(((sums - drops) ** 2).mean())
    if power == 0:
        return raw, math.nan
    if size == 0:
        return raw, 1.0
    return raw, max(0.0, 1 - float((sums * drops).mean()) ** 2 / (size * power))


@dataclass(frozen=True, eq=False)
class RandomSets:
    """Random sets of parts, and what the score loses without each; for `infidelity`.

    Parameters
    ----------
    chosen : Tensor
        (samples, P), bool.
    parts : Tensor
        (D, H, W), 0 to P - 1, -1 for what never changes; see `pipeline.evaluation.scores.removal.part_numbers`.
    drops : Tensor
        (samples,), float64: the score of the scan minus its score with the set replaced.
    """

    chosen: Tensor
    parts: Tensor
    drops: Tensor

    def sums(self, values: Tensor) -> Tensor:
        """Sums of a map (D, H, W) over the sets, (samples,), float64."""
        inside = self.parts >= 0
        total = torch.zeros(self.chosen.shape[1], dtype=torch.float64, device=self.parts.device)
        total.index_add_(0, self.parts[inside], values[inside].double())
        return self.chosen.double() @ total


def random_sets(
    score: Score, volume: Tensor, replacement: Tensor, parts: Tensor, samples: int = 32, batch: int = 8, seed: int = 0
) -> RandomSets:
    """Draw sets, each part with probability 1/2, and ask what the score loses without them.

    Parameters
    ----------
    score : callable
    volume, replacement : Tensor
        (D, H, W).
    parts : Tensor
        See `RandomSets`.
    samples : int
        Sets.
    batch, seed : int
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, "infidelity"))
    chosen = torch.rand(samples, int(parts.max()) + 1, generator=generator).to(parts.device) < 0.5
    inside = parts >= 0
    scores = []
    with torch.no_grad():
        whole = score(volume[None, None]).double()
        for some in torch.split(chosen, batch):
            keep = (~(some[:, parts.clamp(min=0)] & inside)).to(volume.dtype)
            scores.append(score(mixed(volume[None], keep, replacement[None])[:, None]).double())
    return RandomSets(chosen, parts, whole - torch.cat(scores))
