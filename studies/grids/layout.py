"""A grid of scans: one large volume made of cells, each of which holds one scan; and which scans stand in which cell.

Words: a *cell* is one place of the grid; cells are numbered along the last axis first, as numpy counts. The *share* of
a cell is the positive attribution in it as part of all of it (Rao, Böhle & Schiele 2022).

With two or three classes, "each class once", as in the literature, is impossible for more cells. The kinds are:
*needle*, one scan of the target class among scans of other classes, at a random place; *pair*, the same with two cells;
*corner*, in which the last cell repeats the class of the first, where the target is: it exposes methods that mark a
class wherever it stands, although the network sees one cell only.

A participant is never twice in a grid. Only scans that the network recognises with confidence take part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heatlas.pipeline.evaluation.scores.localisation import is_undefined
from heatlas.pipeline.run.errors import BadInputError, UsageError

Shape = tuple[int, int, int]
EMPTY = 1e-7
"""Positive attribution below this, relative to the largest absolute value, counts as none."""


@dataclass(frozen=True)
class Layout:
    """How many cells lie along each axis.

    Examples
    --------
    >>> layout = Layout((2, 2, 1))
    >>> layout.cells, layout.place(3), layout.box(3, (4, 5, 6))
    (4, (1, 1, 0), (slice(4, 8, None), slice(5, 10, None), slice(0, 6, None)))
    """

    counts: Shape

    def __post_init__(self) -> None:
        if len(self.counts) != 3 or any(type(n) is not int or n < 1 for n in self.counts) or self.cells < 2:
            raise UsageError(f"grid {self.counts}: give three whole numbers with two cells or more, such as (2, 2, 1).")

    @property
    def cells(self) -> int:
        return math.prod(self.counts)

    def place(self, cell: int) -> Shape:
        _, b, c = self.counts
        return cell // (b * c), cell // c % b, cell % c

    def box(self, cell: int, shape: Shape) -> tuple[slice, slice, slice]:
        a, b, c = (slice(n * side, (n + 1) * side) for n, side in zip(self.place(cell), shape, strict=True))
        return a, b, c

    def shape(self, cell: Shape) -> Shape:
        a, b, c = (n * side for n, side in zip(self.counts, cell, strict=True))
        return a, b, c

    def compose(self, cells: Tensor) -> Tensor:
        """Put cells (n, C, d, h, w) together to one grid (1, C, ...)."""
        if len(cells) != self.cells:
            raise BadInputError(f"a grid of {self.counts} needs {self.cells} cells and gets {len(cells)}.")
        return self.join([cell[None] for cell in cells])

    def join(self, cells: Sequence[Tensor]) -> Tensor:
        """Put a batch (B, C, d, h, w) for each cell together to grids (B, C, ...); differentiable."""
        a, b, c = self.counts
        rows = [torch.cat(list(cells[n : n + c]), dim=4) for n in range(0, a * b * c, c)]
        planes = [torch.cat(rows[n : n + b], dim=3) for n in range(0, a * b, b)]
        return torch.cat(planes, dim=2)

    def cell(self, whole: Tensor, number: int) -> Tensor:
        box = self.box(number, self.cell_shape(whole))
        return whole[:, :, *box]

    def split(self, whole: Tensor) -> Tensor:
        return torch.cat([self.cell(whole, number) for number in range(self.cells)])

    def cell_shape(self, whole: Tensor) -> Shape:
        sides = tuple(whole.shape[-3:])
        if any(side % n for side, n in zip(sides, self.counts, strict=True)):
            raise BadInputError(f"a volume of {sides} voxels cannot be cut into {self.counts} equal cells.")
        a, b, c = (side // n for side, n in zip(sides, self.counts, strict=True))
        return a, b, c

    def shares(self, values: Tensor, largest: float = 1.0) -> Tensor:
        """Share of each cell, (n,), of a map (D, H, W), in float64.

        All 0 where nothing is positive; NaN for a map that is undefined (NaN, infinity, or zero everywhere).

        `largest`: part of all voxels of the grid that count, those of largest value; others that are equal to the least
        of them count too.

        Examples
        --------
        >>> Layout((2, 1, 1)).shares(torch.tensor([3.0, 1.0]).view(2, 1, 1)).tolist()
        [0.75, 0.25]
        >>> Layout((2, 1, 1)).shares(torch.tensor([3.0, 1.0, 2.0, 2.0]).view(4, 1, 1), largest=0.5).tolist()
        [0.42857142857142855, 0.5714285714285714]
        """
        if is_undefined(values.detach().cpu().numpy()):
            return torch.full((self.cells,), math.nan, dtype=torch.float64)
        part = values.detach().double().clamp(min=0)
        if largest < 1:
            least = part.flatten().topk(math.ceil(largest * part.numel())).values[-1]
            part = torch.where(part >= least, part, torch.zeros_like(part))
        sums = self.split(part[None, None]).sum((1, 2, 3, 4)).cpu()
        total = sums.sum()
        return sums / total if total > EMPTY * float(values.detach().abs().max()) else torch.zeros_like(sums)


Kind = Literal["needle", "pair", "corner"]
ATTEMPTS = 100
"""Orders that are tried before a grid without a repeated participant is given up."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Scans that may stand in a grid, by their places in the table of scans, with the probability of their class."""

    scans: NDArray[np.int64]
    labels: NDArray[np.int64]
    participants: tuple[str, ...]
    confidence: NDArray[np.float64]

    def of(self, label: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.labels == label)


@dataclass(frozen=True)
class Grid:
    """One grid and the question asked of it.

    `scans`: scan in each cell, by its place in the table of scans. `target`: the class explained. `cell`: where it is.
    """

    kind: Kind
    scans: tuple[int, ...]
    labels: tuple[int, ...]
    target: int
    cell: int

    @property
    def same_class(self) -> tuple[int, ...]:
        return tuple(number for number, label in enumerate(self.labels) if label == self.target)


def confident(
    labels: Sequence[int], participants: Sequence[str], probabilities: NDArray[np.floating], top: float = 0.5,
    fewest: int = 1,
) -> Candidates:  # fmt: skip
    """Scans that are recognised, and of those of each class the most confident share.

    The literature takes a confidence of 0.99 and more, which networks of this kind rarely have; so a share is taken and
    the threshold it gives is kept. Rescaling the probabilities (temperature) would choose the same scans.

    `probabilities`: (scans, classes). `top`: share of the recognised scans of each class, above 0 to 1. `fewest`: of
    each class taken at least, as far as they are recognised: a grid needs several.

    Examples
    --------
    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]])
    >>> found = confident([0, 0, 1, 1], ["a", "b", "c", "d"], probabilities)
    >>> found.scans.tolist(), found.confidence.tolist()
    ([0, 2], [0.9, 0.8])
    """
    truth = np.asarray(labels, dtype=np.int64)
    confidence = np.asarray(probabilities, dtype=np.float64)[np.arange(len(truth)), truth]
    right = np.asarray(probabilities).argmax(axis=1) == truth
    classes = range(np.asarray(probabilities).shape[1])
    missing = [label for label in classes if not (right & (truth == label)).any()]
    if missing:
        raise BadInputError(
            f"grids: no scan of class {', '.join(map(str, missing))} is recognised, so none can stand in a grid. Use a "
            "better network, or a contrast whose classes it can tell apart."
        )
    chosen = []
    for label in classes:
        rows = np.flatnonzero(right & (truth == label))
        chosen.append(rows[np.argsort(-confidence[rows], kind="stable")][: max(fewest, round(top * len(rows)))])
    scans = np.sort(np.concatenate(chosen))
    return Candidates(scans, truth[scans], tuple(participants[n] for n in scans), confidence[scans])


def draw_grids(
    candidates: Candidates, layout: Layout, kind: Kind, target: int, count: int, seed: np.random.Generator
) -> tuple[Grid, ...]:
    """Grids with a scan of the target class in one cell: first the most confident scan, then the next, then again.

    `count`: grids. `seed`: draws the place of the target and the other scans.
    """
    classes = sorted(set(candidates.labels.tolist()))
    grids = []
    of_target = candidates.of(target)
    of_target = of_target[np.argsort(-candidates.confidence[of_target], kind="stable")]
    for number in range(count):
        explained = int(of_target[number % len(of_target)])
        cell = 0 if kind == "corner" else int(seed.integers(layout.cells))
        for _ in range(ATTEMPTS):
            wanted = _classes(kind, layout, target, cell, classes, seed)
            rows = _rows(candidates, wanted, cell, explained, seed)
            if rows is not None:
                break
        else:
            raise BadInputError(
                f"grids: {layout.cells} cells need as many participants, of class {target} and of others, and the "
                f"confident scans are {_counts(candidates)}. Grids of two cells need one of each class; for larger "
                "ones make fewer folds (cohort.folds), so that more people are tested in each, or train a better "
                "network."
            )
        labels = tuple(int(candidates.labels[row]) for row in rows)
        grids.append(Grid(kind, tuple(int(candidates.scans[row]) for row in rows), labels, target, cell))
    return tuple(grids)


def _classes(
    kind: Kind, layout: Layout, target: int, cell: int, classes: Sequence[int], seed: np.random.Generator
) -> list[int]:
    others = [label for label in classes if label != target]
    wanted = [int(label) for label in seed.choice(others, layout.cells - 1)]
    wanted.insert(cell, target)
    if kind == "corner":
        wanted[-1] = target
    return wanted


def _rows(
    candidates: Candidates, wanted: Sequence[int], cell: int, explained: int, seed: np.random.Generator
) -> list[int] | None:
    """A candidate of each class beside the one explained, no participant twice; None where the draw finds none."""
    rows: list[int] = []
    seen = {candidates.participants[explained]}
    for number, label in enumerate(wanted):
        if number == cell:
            rows.append(explained)
            continue
        free = [row for row in candidates.of(label).tolist() if candidates.participants[row] not in seen]
        if not free:
            return None
        rows.append(int(seed.choice(free)))
        seen.add(candidates.participants[rows[-1]])
    return rows


def _counts(candidates: Candidates) -> str:
    found = []
    for label in np.unique(candidates.labels).tolist():
        rows = candidates.of(label)
        people = len({candidates.participants[row] for row in rows})
        found.append(f"{len(rows)} of class {label} (of {people} participants)")
    return ", ".join(found)
