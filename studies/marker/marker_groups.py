"""``marker_groups.tsv``: what networks make of a marker that goes with the diagnosis in training and not in testing.

Four groups: diagnosis by marker. People to train with have one copy of their scan, and the marker nearly always goes
with the diagnosis; people to test have both copies, so that there the marker says nothing. A network that uses it fails
in two of the groups (Sagawa et al. 2020; as in Waterbirds-100, Petryk et al. 2022).

The least of several accuracies of few people lies below each of them, so chance is not one half, and its bootstrap is
biased once more: with 15 people in a group, 95 % intervals of the difference of two worst groups held the truth in 7 to
74 % of simulations, and Welch's t intervals of the difference of mean accuracies in 94 to 97 %. So the worst group has
the interval of its groups, and differences have those of mean accuracies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, participant_interval
from heatlas.pipeline.evaluation.scores.localisation import HALF, energy_share, intersection_over_union, positive
from heatlas.pipeline.run.work.seeds import generator
from heatlas.studies.tables import declared

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
        members = np.flatnonzero(of_class == label)
        order = generator(seed, "marker-exceptions", int(label)).permutation(len(members))
        exceptions = members[order[: round((1 - share) * len(members))]]
        marks[exceptions] = ~marks[exceptions]
    return marks


@dataclass(frozen=True, eq=False)
class GroupAnswers:
    """People with both copies of their scan, (people,).

    `plain`, `marked`: 1 where the copy is classified correctly, else 0. `of_class`: whether of the positive class.
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
        means = [float(part.mean()) if len(part) else float("nan") for part in parts]
        return dict(zip(GROUPS, means, strict=True))

    @property
    def worst(self) -> float:
        return float(np.min(list(self.accuracies.values())))

    @property
    def mean_accuracy(self) -> float:
        return float(np.mean(list(self.accuracies.values())))

    @property
    def as_in_training(self) -> float:
        """Mean accuracy of the two groups that training knows: the marker goes with the diagnosis."""
        return (self.accuracies[GROUPS[0]] + self.accuracies[GROUPS[-1]]) / 2

    @property
    def against_training(self) -> float:
        """Mean accuracy of the other two groups, in which a network that goes by the marker is wrong."""
        return (self.accuracies[GROUPS[1]] + self.accuracies[GROUPS[2]]) / 2

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
    """Where a map should be, and where not, all (D, H, W); `mask`: before any dilation; `boxes`: around its parts."""

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


@dataclass(frozen=True)
class Chance:
    """Expected accuracy of the worst group, and its central 95 % range."""

    expected: float
    low: float
    high: float


def chance_of_worst(people: Sequence[int], seeds: int = 1, opposite: bool = False) -> Chance:
    """The worst group of a network that tosses a coin for each person, whatever their disease and marker; exact.

    NaN if a class has nobody. `people`: in each class; each has two copies, which the coin answers alike. `seeds`:
    networks over which the worst group is averaged, each with coins of its own. `opposite`: whether one of a person's
    copies is then right and the other wrong, as where the marker is to be recognised; otherwise both are right or both
    are wrong.

    Examples
    --------
    With one person in each class, both are right in one case of four.

    >>> chance_of_worst((1, 1)).expected, chance_of_worst((1, 1), opposite=True).expected
    (0.25, 0.0)
    """
    if not all(people):
        return Chance(math.nan, math.nan, math.nan)
    unit = math.lcm(*people)  # shares are whole numbers of 1 / unit
    shares = np.unique(np.concatenate([np.arange(count + 1) * (unit // count) for count in people]))
    beyond = np.ones(len(shares))  # P(worst group >= share)
    for count in people:
        least = -(-shares * count // unit)  # right answers that make up a share
        above = stats.binom.sf(least - 1, count, 0.5)
        beyond *= np.clip(2 * above - 1, 0, 1) if opposite else above
    of_one = beyond - np.append(beyond[1:], 0.0)
    sums, found = shares, of_one
    for _ in range(seeds - 1):
        sums, places = np.unique(np.add.outer(sums, shares), return_inverse=True)
        found = np.bincount(places.ravel(), np.multiply.outer(found, of_one).ravel())
    low, high = (sums[np.searchsorted(found.cumsum(), level)] / (unit * seeds) for level in (0.025, 0.975))
    return Chance(float(found @ sums) / (unit * seeds), float(low), float(high))


def worst_interval(right: Sequence[int], people: Sequence[int], level: float = 0.05) -> tuple[float, float]:
    """Interval of the least of several shares, which holds it in 95 % or more, and its estimate always.

    The least lower bound of all groups, and the least upper bound at a level divided by their number (Clopper-Pearson
    bounds of each `right` of `people`). Groups may share people. NaN if a group has nobody.

    Examples
    --------
    >>> [round(bound, 3) for bound in worst_interval((8, 15), (15, 15))]
    [0.266, 0.813]
    """
    if not all(people):
        return math.nan, math.nan
    pairs = list(zip(right, people, strict=True))
    low = [stats.beta.ppf(level / 2, k, n - k + 1) if k else 0.0 for k, n in pairs]
    high = [stats.beta.ppf(1 - level / 2 / len(pairs), k + 1, n - k) if k < n else 1.0 for k, n in pairs]
    return float(min(low)), float(min(high))


def mean_of_classes(values: Floats, of_class: NDArray[np.bool_], level: float = 0.05) -> tuple[float, float, float]:
    """Mean over two classes of the means of their people (people,), with the bounds of its Welch's t interval.

    No bounds (NaN) for fewer than two people in a class, and where nobody differs from the others of the class: an
    interval without width would claim certainty.
    """
    parts = [values[of_class == label] for label in (False, True)]
    if not all(map(len, parts)):
        return math.nan, math.nan, math.nan
    middle = float(np.mean([part.mean() for part in parts]))
    errors = [float(part.var(ddof=1)) / len(part) if len(part) > 1 else math.nan for part in parts]
    if not sum(errors) > 0:
        return middle, math.nan, math.nan
    freedom = sum(errors) ** 2 / sum(error**2 / (len(part) - 1) for error, part in zip(errors, parts, strict=True))
    half = float(stats.t.ppf(1 - level / 2, freedom)) * math.sqrt(sum(errors)) / 2
    return middle, middle - half, middle + half


IN_MASK = {
    "epg": "Share of the positive attribution inside the mask (energy pointing game)",
    "iou": "Overlap of the mask with the voxels above a share of the largest attribution, the share that is best for "
    "the same network's maps of its validation people (intersection over union)",
    "on_object_epg": "Share inside the mask of the positive attribution in the bounding boxes of its parts",
}
"""How well a map keeps to a mask, in the words of all tables that say so."""
_MAPS = {**IN_MASK, "on_marker": "Share of the positive attribution on the marker"}
MEASURES_TABLE, MARKER_TABLE = declared("marker_measures", **IN_MASK), declared("marker_groups", **IN_MASK)


def read_answers(paths: Sequence[Path]) -> pd.DataFrame:
    found = [MEASURES_TABLE.read(path) for path in paths]
    return pd.concat(found, ignore_index=True) if found else MEASURES_TABLE.frame()


def answers_of(answers: pd.DataFrame, positive: Mapping[str, bool], measure: str = "correct") -> GroupAnswers:
    """Whether answers are right, or (``agrees``) the teacher's, of each participant in the order of their names."""
    known = answers.sort_values("participant_id")
    plain, marked = (known[known["marked"].astype(bool) == copy] for copy in (False, True))
    of_class = np.array([positive[str(name)] for name in plain["participant_id"]], dtype=bool)
    return GroupAnswers(plain[measure].to_numpy(float), marked[measure].to_numpy(float), of_class)


def marker_row(
    task: str, training: str, answers: pd.DataFrame, control: pd.DataFrame, weight: float, positive: Mapping[str, bool]
) -> dict[str, object]:
    """One row of the table; `answers`, `control`: `MEASURES_TABLE` of this training and of the control."""
    tested = answers_of(answers, positive)
    means = answers.groupby("participant_id")[list(_MAPS)].mean()
    on_marker = answers[answers["marked"].astype(bool)].groupby("participant_id")["on_marker"].mean()
    groups = [copies[tested.of_class == label] for label in (False, True) for copies in (tested.plain, tested.marked)]
    people = [len(group) for group in groups]
    low, high = worst_interval([int(group.sum()) for group in groups], people)
    chance = chance_of_worst(people[::2], opposite=task == REVERSED)
    row: dict[str, object] = {"task": task, "training": training, "weight": weight, "n_participants": len(means)}
    row |= {f"accuracy_{name}": value for name, value in tested.accuracies.items()}
    row |= {"worst_group": tested.worst, "worst_group_low": low, "worst_group_high": high}
    row |= {"chance": chance.expected, "chance_low": chance.low, "chance_high": chance.high}
    row |= {name: getattr(tested, name) for name in ("mean_accuracy", "as_in_training", "against_training")}
    agreed = answers_of(answers, positive, "agrees")
    row |= {f"agreement_{name}": getattr(agreed, name) for name in ("as_in_training", "against_training")}
    row |= {name: float(means[name].mean()) for name in _MAPS} | {"on_marker": float(on_marker.mean())}
    row["n_no_positive"] = int(answers["epg"].isna().sum())
    if training == "control" or not len(control):
        return row
    return row | changes(answers, control, positive)


def changes(answers: pd.DataFrame, control: pd.DataFrame, positive: Mapping[str, bool]) -> dict[str, float]:
    """Differences from the control over the participants that both tested."""
    both = set(answers["participant_id"]) & set(control["participant_id"])
    sides = [frame[frame["participant_id"].isin(both)] for frame in (answers, control)]
    epg = [frame.groupby("participant_id")["epg"].mean().to_numpy(float) for frame in sides]
    first, second = (answers_of(frame, positive) for frame in sides)
    risen = epg[0] - epg[1]
    risen = risen[np.isfinite(risen)]
    change = float(np.mean(risen)) if len(risen) else np.nan
    named = {"epg": (change, participant_interval((risen,), np.mean, DRAWS, 0))}
    for name, values in first.per_person.items():
        change, low, high = mean_of_classes(values - second.per_person[name], first.of_class)
        named[name] = change, (low, high)
    agreed = [answers_of(frame, positive, "agrees").per_person for frame in sides]
    for name in ("as_in_training", "against_training"):
        change, low, high = mean_of_classes(agreed[0][name] - agreed[1][name], first.of_class)
        named[f"agreement_{name}"] = change, (low, high)
    return {"worst_group_change": first.worst - second.worst} | {
        f"{name}_change{end}": value
        for name, (change, (low, high)) in named.items()
        for end, value in (("", change), ("_low", low), ("_high", high))
    }
