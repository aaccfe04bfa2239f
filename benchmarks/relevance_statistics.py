"""Statistics of `heatlas.pipeline.evaluation.claims.relevance`, of the stored numbers of patients."""

from __future__ import annotations

import numpy as np
from claim_numbers import Numbers

from heatlas.pipeline.evaluation.claims import relevance
from heatlas.pipeline.evaluation.claims.rule import Statistic


def relevance_of(numbers: Numbers) -> relevance.Relevance:
    voxels = numbers.about["voxels"]
    maps = {
        name: np.stack([numbers.of(f"{name}: {region}") for region in voxels], axis=2).swapaxes(0, 1)
        for name in {one.partition(": ")[0] for one in numbers.wide if ": " in one}
    }
    return relevance.Relevance(maps, voxels, numbers.classes, numbers.folds, numbers.of)


def statistics(numbers: Numbers) -> dict[str, Statistic]:
    found = relevance.statistics(relevance_of(numbers))
    unknown = tuple(tissue for tissue in (relevance.INTENSITY, relevance.VOLUME) if tissue not in numbers.wide)
    return {name: one for name, one in found.items() if not name.startswith(unknown)}
