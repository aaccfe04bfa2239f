"""A marker that goes with the diagnosis in training and not in testing, and what networks make of it.

Four groups: diagnosis by marker. People to train and to select with have one copy of their scan, and the marker nearly
always goes with the diagnosis; people to test have both copies, so that there the marker says nothing. A network that
uses it fails in two of the groups (Sagawa et al. 2020; as in Waterbirds-100, Petryk et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.scores.localisation import HALF, energy_share, intersection_over_union, positive
from heatlas.pipeline.run.work.seeds import generator

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
TIED = 0.95
"""Share of the people of a class whose marker goes with it in training."""
DIAGNOSIS, REVERSED = "diagnosis", "marker"
"""What networks learn."""
GROUPS = ("negative_plain", "negative_marked", "positive_plain", "positive_marked")
"""Diagnosis and marker; in training nearly everybody is in the first or the last."""


def tied_marks(of_class: Bools, seed: int, share: float = TIED) -> Bools:
    """Who has the marker when training: the positive class, but for a share of either class drawn by a seed.

    `of_class`: (people,), whether a person is of the positive class.

    Examples
    --------
    >>> marks = tied_marks(np.arange(40) >= 20, seed=1)
    >>> int(marks[:20].sum()), int(marks[20:].sum())
    (1, 19)
    """
    marks = of_class.copy()
    for label in (False, True):
        own = np.flatnonzero(of_class == label)
        order = generator(seed, "marker-exceptions", int(label)).permutation(len(own))
        exceptions = own[order[: round((1 - share) * len(own))]]
        marks[exceptions] = ~marks[exceptions]
    return marks


@dataclass(frozen=True, eq=False)
class GroupAnswers:
    """People with both copies of their scan.

    `plain`, `marked`: (people,), 1 where the copy is classified correctly, else 0. `of_class`: (people,), whether the
    person is of the positive class.
    """

    plain: Floats
    marked: Floats
    of_class: Bools

    @property
    def accuracies(self) -> Mapping[str, float]:
        """Share classified correctly in each of `GROUPS`; NaN for a group of nobody.

        Examples
        --------
        >>> tested = GroupAnswers(np.array([1.0, 1.0, 0.0]), np.array([0.0, 1.0, 1.0]), np.array([False, False, True]))
        >>> list(tested.accuracies.values()), tested.worst, tested.as_in_training
        ([1.0, 0.5, 0.0, 1.0], 0.0, 1.0)
        """
        parts = [copies[self.of_class == label] for label in (False, True) for copies in (self.plain, self.marked)]
        means = [float(own.mean()) if len(own) else float("nan") for own in parts]
        return dict(zip(GROUPS, means, strict=True))

    @property
    def worst(self) -> float:
        """Accuracy of the worst group; NaN if any group has nobody."""
        return float(np.min(list(self.accuracies.values())))

    @property
    def mean_accuracy(self) -> float:
        """Mean accuracy of the four groups."""
        return float(np.mean(list(self.accuracies.values())))

    @property
    def as_in_training(self) -> float:
        """Mean accuracy of the two groups that training knows: the marker goes with the diagnosis."""
        found = self.accuracies
        return (found[GROUPS[0]] + found[GROUPS[-1]]) / 2

    @property
    def against_training(self) -> float:
        """Mean accuracy of the other two groups, in which a network that goes by the marker is wrong."""
        found = self.accuracies
        return (found[GROUPS[1]] + found[GROUPS[2]]) / 2

    @property
    def per_person(self) -> Mapping[str, Floats]:
        """Values of people, (people,), whose mean over the two classes is the property of that name."""
        return {
            "mean_accuracy": (self.plain + self.marked) / 2,
            "as_in_training": np.where(self.of_class, self.marked, self.plain),
            "against_training": np.where(self.of_class, self.plain, self.marked),
        }


@dataclass(frozen=True, eq=False)
class MarkerMasks:
    """Where a map should be, and where not.

    `mask`: (D, H, W), as meant: before any dilation. `boxes`: (D, H, W), bounding boxes of its parts. `marker`: (D, H,
    W).
    """

    mask: Bools
    boxes: Bools
    marker: Bools


def map_measures(values: NDArray[np.floating], places: MarkerMasks, threshold: float = HALF) -> Mapping[str, float]:
    """How well a map keeps to a mask; NaN where nothing is positive.

    ``epg``: share of the positive attribution inside it; ``iou``: of the mask and the voxels above a share of the
    maximum, which is chosen on the maps of other people (`pipeline.evaluation.scores.localisation.best_threshold`);
    ``on_object_epg``: share inside the mask of what lies in its bounding boxes, whatever lies elsewhere; NaN of
    nothing; ``on_marker``: share on the marker.

    Source: Rao et al. 2023, sec. 4.

    Examples
    --------
    >>> line = lambda *found: np.array([[[bool(one) for one in found]]])
    >>> places = MarkerMasks(line(1, 0, 0, 0), line(1, 1, 0, 0), line(0, 0, 0, 1))
    >>> list(map_measures(np.array([[[3.0, 1.0, -5.0, 4.0]]]), places).values())
    [0.375, 0.5, 0.75, 0.5]
    """
    inside = positive(values)[places.boxes]
    total = inside.sum()
    return {
        "epg": energy_share(values, places.mask),
        "iou": intersection_over_union(values, places.mask, threshold),
        "on_object_epg": float(inside[places.mask[places.boxes]].sum() / total) if total > 0 else float("nan"),
        "on_marker": energy_share(values, places.marker),
    }
