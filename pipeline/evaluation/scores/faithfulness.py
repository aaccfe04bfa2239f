"""One map against the network itself, where no truth is known: every faithfulness score, in one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heatlas.pipeline.attribution.perturbation.masking import AIR, mixed
from heatlas.pipeline.evaluation.scores.hits import is_undefined
from heatlas.pipeline.evaluation.scores.masked_recognition import (
    SMALLEST,
    adcc,
    average_drop,
    average_gain,
    average_increase,
    coherency,
    mask_of,
)
from heatlas.pipeline.evaluation.scores.overlap import entropy, gini
from heatlas.pipeline.evaluation.scores.removal import Score, part_numbers, removal_curve
from heatlas.pipeline.evaluation.scores.stability import Explain, RandomSets, infidelity, max_sensitivity, random_sets
from heatlas.pipeline.run.errors import BadInputError

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
    "adcc": "Harmonic mean of coherency, 1 - complexity and 1 - average drop; larger is better",
    "max_sensitivity": "Largest relative change of the map when the scan changes a little; smaller is better",
    "infidelity": "Mean squared difference of the map's sums and the fall of the score, in its unit; smaller is better",
    "infidelity_scaled": "The same at the best scale, as share of the squared fall, 0 to 1; smaller is better",
    "gini": "Gini index of positive values (sparseness): 0 for an even map, near 1 for a single voxel",
    "entropy": "Entropy of positive values in bits: log2 of the voxels for an even map, 0 for a single voxel",
}
"""Columns of one row of faithfulness scores, and what they mean."""

AOPC_STEPS = 10
MASKED = ("ad", "ag", "ai", "ag_clamped")
"""Scores of a scan seen through its map that need no second map."""


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """How maps of one scan are scored; what does not depend on the map is computed once.

    Parameters
    ----------
    score : callable
        Volumes (B, 1, D, H, W) to the probability (B,) of the class that the maps explain.
    volume : Tensor
        The scan as the network sees it, (D, H, W).
    regions : Tensor
        (D, H, W), whole numbers: an atlas; 0 for voxels of no region, which count as one more part.
    replacement : Tensor or float
        What is put in place of what is taken away: tissue of controls, (D, H, W), or the value of air.
    steps : int
        Steps of the curves; by region at most as many as there are regions.
    seed : int
    logit : callable, optional
        As `score`, in the unit of the map, for infidelity; `score` without it.
    samples : int
        Slightly changed scans of max-sensitivity, a map of each.
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
        """The scan with all replaced that may be."""
        return torch.where(self._changing, self._other, self.volume)

    @cached_property
    def _sets(self) -> RandomSets:
        parts = part_numbers(self._changing, self.regions)
        return random_sets(self.logit or self.score, self.volume, self._end, parts, seed=self.seed)

    def scores(self, values: Tensor, explain: Explain | None = None) -> dict[str, float]:
        """All of `FAITHFULNESS_SCORES` of one map; about ``4 (steps + 1)`` forward passes, once 33 more.

        Parameters
        ----------
        values : Tensor
            The map, (D, H, W); positive speaks for the class.
        explain : callable, optional
            Makes the map of another volume. Without it ADCC and max-sensitivity are NaN.

        Raises
        ------
        BadInputError
            For grids that differ, or a replacement that is the scan itself.
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

        Parameters
        ----------
        values : Tensor
        within : Tensor, optional
            Flags (D, H, W): what lies elsewhere is hidden, whatever the map says of it.
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
        "adcc": float("nan"),
    }
    if explain is not None:
        again = coherency(values[inside].cpu().numpy(), explain(masked)[inside].detach().cpu().numpy())
        found["adcc"] = adcc(again, float(share[inside].mean()), drop / 100)
    return found
