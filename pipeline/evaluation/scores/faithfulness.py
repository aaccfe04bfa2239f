"""One map against the network itself, where no truth is known: every faithfulness score, in one row.

Max-sensitivity and infidelity (Yeh et al. 2019) stand here: how far a map moves when the scan is changed a little, and
how far the sums of a map are from what the score does when the parts they stand for are replaced. Neither asks whether
the place is right. The scores of masked scans are in `pipeline.evaluation.scores.masking`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from heatlas.pipeline.attribution.perturbation.masking import AIR, mixed
from heatlas.pipeline.evaluation.scores.localisation import entropy, gini, is_undefined
from heatlas.pipeline.evaluation.scores.masking import (
    SMALLEST,
    Score,
    adcc,
    average_drop,
    average_gain,
    average_increase,
    coherency,
    mask_of,
    part_numbers,
    removal_curve,
)
from heatlas.pipeline.run.errors import BadInputError
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

    As `captum.metrics.sensitivity_max`, in voxels (D, H, W) of `inside` alone: air keeps its value. The noise is drawn
    on the CPU in float32, so that every device meets the same. NaN where a map of a changed scan is not finite.
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


def shift_likeness(explain: Explain, volume: Tensor, values: Tensor, inside: Tensor, shift: int) -> tuple[float, float]:
    """How like a map is to that of the scan moved along the diagonal, moved back: correlation, and cosine.

    1 if maps move with scans. Mean of both directions. What leaves the grid is lost, and air comes in from the other
    side; nothing is compared if that is more than `LOST` of the brain. A value below 1 need not be of the network's
    places: at a face of the grid it also loses what layers compute beyond the brain. The source (Parchami-Araghi et al.
    2024, figure of ViTs) has the cosine.

    `inside`: (D, H, W), bool: voxels that are compared, where both maps have them. `shift`: voxels along each axis. NaN
    where more than `LOST` of the brain leaves the grid, or a map of a moved scan is not finite, or is even everywhere
    (correlation) or 0 (cosine).
    """
    if lost_share(inside, shift) > LOST:
        return math.nan, math.nan
    found = []
    for step in (shift, -shift):
        back = shifted(explain(shifted(volume, step)), -step)
        both = inside & shifted(shifted(torch.ones_like(inside), step), -step)
        if not bool(torch.isfinite(back[both]).all()) or not bool(both.any()):
            return math.nan, math.nan
        correlation = coherency(values[both].cpu().numpy(), back[both].cpu().numpy())
        found.append((correlation, _cosine(values[both], back[both])))
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

    `chosen`: (samples, P), bool. `parts`: (D, H, W), see `pipeline.evaluation.scores.masking.part_numbers`. `drops`:
    (samples,), float64: the score of the scan minus its score with the set replaced.
    """

    chosen: Tensor
    parts: Tensor
    drops: Tensor

    def sums(self, values: Tensor) -> Tensor:
        inside = self.parts >= 0
        total = torch.zeros(self.chosen.shape[1], dtype=torch.float64, device=self.parts.device)
        total.index_add_(0, self.parts[inside], values[inside].double())
        return self.chosen.double() @ total


def random_sets(
    score: Score, volume: Tensor, replacement: Tensor, parts: Tensor, samples: int = 32, batch: int = 8, seed: int = 0
) -> RandomSets:
    """Draw sets, each part with probability 1/2, and ask what the score loses without them."""
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


FAITHFULNESS_SCORES: Mapping[str, str] = {
    "undefined": "1 where the map holds NaN or infinity or is zero everywhere: it has no scores, and counts as such",
    "insertion": "Area under the score while voxels are shown, those of largest value first; larger is better",
    "deletion": "Area under the score while voxels are replaced, those of largest value first; smaller is better",
    "insertion_regions": "As insertion, region by region (by mean value)",
    "deletion_regions": "As deletion, region by region (by mean value)",
    "aopc": "Mean fall of the score over the first ten steps of the deletion by region; larger is better",
    "ad": "Average drop: per cent of the probability lost where the scan is seen through the map; smaller is better",
    "ag": "Average gain: per cent of what could be gained that is gained; larger is better",
    "ai": "100 if the scan is recognised better through the map, else 0 (average increase); larger is better",
    "ag_clamped": "1 where the probability was too near 1 for a gain, and the denominator was held at 1e-6",
    "adcc": "Harmonic mean of coherency (r, a correlation), 1 - complexity and 1 - average drop; larger is better",
    "adcc_rescaled": "As adcc, which is 0 where r is not above 0, with (1 + r) / 2 in place of r",
    "max_sensitivity": "Largest relative change of the map when the scan changes a little; smaller is better",
    "infidelity": "Mean squared difference of the map's sums and the fall of the score, in its unit; smaller is better",
    "infidelity_scaled": "The same at the best scale, as share of the squared fall, 0 to 1; smaller is better",
    "gini": "Gini index of positive values (sparseness): 0 for an even map, near 1 for a single voxel",
    "entropy": "Entropy of positive values in bits: log2 of the voxels for an even map, 0 for a single voxel",
}
"""Columns of one row of faithfulness scores, and what they mean."""

AOPC_STEPS = 10
ADCC = ("adcc", "adcc_rescaled")
MASKED = ("ad", "ag", "ai", "ag_clamped")
"""Scores of a scan seen through its map that need no second map."""


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """How maps of one scan are scored; what does not depend on the map is computed once.

    `score`: volumes (B, 1, D, H, W) to the probability (B,) of the class that the maps explain. `volume`: the scan as
    the network sees it, (D, H, W). `regions`: (D, H, W), an atlas; voxels of no region (0) count as one more part.
    `replacement`: what is put in place of what is taken away: tissue of controls, (D, H, W), or the value of air.
    `steps`: of the curves; by region at most as many as there are regions. `logit`: as `score`, in the unit of the map,
    for infidelity. `samples`: slightly changed scans of max-sensitivity.
    """

    score: Score
    volume: Tensor
    regions: Tensor
    replacement: Tensor | float = AIR
    steps: int = 20
    seed: int = 0
    logit: Score | None = None
    samples: int = 10

    @cached_property
    def _other(self) -> Tensor:
        volume = self.volume
        return torch.as_tensor(self.replacement, dtype=volume.dtype, device=volume.device).expand_as(volume)

    @cached_property
    def _changing(self) -> Tensor:
        """Voxels that may be replaced: those in which scan and replacement differ."""
        return self.volume != self._other

    @cached_property
    def _end(self) -> Tensor:
        return torch.where(self._changing, self._other, self.volume)

    @cached_property
    def _sets(self) -> RandomSets:
        parts = part_numbers(self._changing, self.regions)
        return random_sets(self.logit or self.score, self.volume, self._end, parts, seed=self.seed)

    def scores(self, values: Tensor, explain: Explain | None = None) -> dict[str, float]:
        """All of `FAITHFULNESS_SCORES` of one map (D, H, W); about ``4 (steps + 1)`` forward passes, once 33 more.

        `explain`: makes the map of another volume; without it ADCC and max-sensitivity are NaN.
        """
        score, volume, seed = self.score, self.volume, self.seed
        inside = self._changing
        _require_one_grid(volume, values, self.regions, inside)
        known = values[inside].detach().cpu().numpy()
        if is_undefined(known):
            return {name: 1.0 if name == "undefined" else float("nan") for name in FAITHFULNESS_SCORES}
        voxels, parts = part_numbers(inside), part_numbers(inside, self.regions)
        end = self._end
        curve = {
            f"{name}{suffix}": removal_curve(score, *ends, places, values, self.steps, seed=seed)
            for suffix, places in (("", voxels), ("_regions", parts))
            for name, ends in (("insertion", (end, volume)), ("deletion", (volume, end)))
        }
        raw, relative = infidelity(self._sets.sums(values), self._sets.drops)
        scores = {
            "undefined": 0.0,
            **{name: one.area for name, one in curve.items()},
            "aopc": curve["deletion_regions"].aopc(AOPC_STEPS),
            **_masked(score, volume, values, end, inside, explain),
            "max_sensitivity": float("nan"),
            "infidelity": raw,
            "infidelity_scaled": relative,
            "gini": gini(known),
            "entropy": entropy(known),
        }
        if explain is not None:
            scores["max_sensitivity"] = max_sensitivity(explain, volume, values, inside, self.samples, seed=seed)
        return {name: scores[name] for name in FAITHFULNESS_SCORES}

    def masked(self, values: Tensor, within: Tensor | None = None) -> dict[str, float]:
        """AD, AG, AI and ``ag_clamped`` of one map, by two forward passes; NaN where the map is undefined.

        `within`: flags (D, H, W): what lies elsewhere is hidden, whatever the map says of it.
        """
        _require_one_grid(self.volume, values, self.regions, self._changing)
        if is_undefined(values[self._changing].detach().cpu().numpy()):
            return dict.fromkeys(MASKED, float("nan"))
        found = _masked(self.score, self.volume, values, self._end, self._changing, None, within)
        return {name: found[name] for name in MASKED}


def _require_one_grid(volume: Tensor, values: Tensor, regions: Tensor, inside: Tensor) -> None:
    grids = {"scan": volume, "map": values, "regions": regions, "brain": inside}
    for name, one in grids.items():
        if one.dim() != 3 or one.shape != volume.shape:
            raise BadInputError(
                f"{name} has the grid {tuple(one.shape)} and the scan {tuple(volume.shape)}; bring all to one grid of "
                "three axes."
            )
    if not bool(inside.any()):
        raise BadInputError("the replacement is the scan itself: nothing can be taken away. Give another replacement.")


def _masked(
    score: Score,
    volume: Tensor,
    values: Tensor,
    end: Tensor,
    inside: Tensor,
    explain: Explain | None,
    within: Tensor | None = None,
) -> dict[str, float]:
    """AD, AG, AI and ADCC: the scan seen through `mask_of` its map."""
    share = torch.zeros_like(volume)
    share[inside] = torch.as_tensor(mask_of(values[inside].detach().cpu().numpy())).to(volume)
    if within is not None:
        share = share * within
    masked = mixed(volume, share, end)
    with torch.no_grad():
        p, o = (float(one) for one in score(torch.stack([volume, masked])[:, None]))
    drop = average_drop(p, o)
    found = {
        "ad": drop,
        "ag": average_gain(p, o),
        "ai": average_increase(p, o),
        "ag_clamped": float(1 - p < SMALLEST),
        **dict.fromkeys(ADCC, float("nan")),
    }
    if explain is not None:
        r = coherency(values[inside].cpu().numpy(), explain(masked)[inside].detach().cpu().numpy())
        complexity = float(share[inside].mean())
        found |= {name: adcc(one, complexity, drop / 100) for name, one in zip(ADCC, (r, (1 + r) / 2), strict=True)}
    return found
