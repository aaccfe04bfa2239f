"""Statistics of stored numbers beside the means of their measures, by study."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from claim_numbers import Numbers

from heatlas.pipeline.evaluation.claims import relevance
from heatlas.pipeline.evaluation.claims.rule import Floats, Statistic

CAM = "GridPG needle: grad-cam at 4"
INTEGRATED, SMOOTH = "GridPG needle: integrated-gradients at 0", "GridPG needle: smooth-integrated-gradients kernel="


def rank_correlation(first: Floats, second: Floats) -> Statistic:
    """Of values (people, seeds) over people, each as often as it is drawn; undefined maps have a share of 0."""

    def ranks(values: Floats, weights: Floats) -> Floats:
        return weights @ ((values[:, None] < values) + 0.5 * (values[:, None] == values))

    def statistic(seed: int, weights: Floats) -> Floats:
        there = np.isfinite(first[:, seed]) & np.isfinite(second[:, seed])
        own = weights[:, there]
        found = [ranks(one[there, seed], own) for one in (first, second)]
        a, b = (one - (own * one).sum(axis=1, keepdims=True) / own.sum(axis=1, keepdims=True) for one in found)
        return (own * a * b).sum(axis=1) / np.sqrt((own * a**2).sum(axis=1) * (own * b**2).sum(axis=1))

    return statistic


def of_grids(numbers: Numbers) -> dict[str, Statistic]:
    """How the shares of integrated gradients go with those of Grad-CAM (A21), by the kernel of smoothing."""
    kernels = {"not smoothed": INTEGRATED}
    kernels |= {f"K = {one.removeprefix(SMOOTH)[:-5]}": one for one in numbers.wide if one.startswith(SMOOTH)}
    cam = numbers.of(CAM)
    return {f"with Grad-CAM, {name}": rank_correlation(numbers.of(one), cam) for name, one in kernels.items()}


def relevance_of(numbers: Numbers) -> relevance.Relevance:
    voxels = numbers.about["voxels"]
    maps = {
        name: np.stack([numbers.of(f"{name}: {region}") for region in voxels], axis=2).swapaxes(0, 1)
        for name in {one.partition(": ")[0] for one in numbers.wide if ": " in one}
    }
    return relevance.Relevance(maps, voxels, numbers.classes, numbers.folds, numbers.of)


def of_relevance(numbers: Numbers) -> dict[str, Statistic]:
    found = relevance.statistics(relevance_of(numbers))
    unknown = tuple(tissue for tissue in (relevance.INTENSITY, relevance.VOLUME) if tissue not in numbers.wide)
    return {name: one for name, one in found.items() if not name.startswith(unknown)}


STUDIES: Mapping[str, Callable[[Numbers], dict[str, Statistic]]] = {
    "relevance": of_relevance,
    **dict.fromkeys(("grids", "grids-unnormed"), of_grids),
}
