"""Hippocampal and intracranial volumes as a record: mm³, with their source, checked for plausibility.

A number in another unit (ml), of another structure or of a failed segmentation would mislead: volumes outside the
ranges of `pipeline.cohort.cells.ranges` are left out and named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heatlas.pipeline.cohort.cells.ranges import RANGES


@dataclass(frozen=True)
class Volumes:
    """Volumes of one scan in mm³; None where unknown."""

    total: float | None = None  # of the hippocampi; the total is left and right together
    left: float | None = None
    right: float | None = None
    source: str | None = None  # of the hippocampi
    intracranial: float | None = None
    intracranial_source: str | None = None
    problems: tuple[str, ...] = ()  # volumes left out, with reasons


def checked(
    left: float | None, right: float | None, total: float | None, intracranial: float | None, source: str
) -> Volumes:
    """Volumes (mm³) from one source, without the implausible ones; a missing total is left plus right."""
    problems: list[str] = []

    def plausible(value: float | None, column: str, what: str) -> float | None:
        if value is None or RANGES[column].holds(value):
            return value
        problems.append(f"{what} of {value:g} mm3 ({source}) is outside {RANGES[column]}")
        return None

    left = plausible(left, "hippocampus_left_mm3", "left hippocampus")
    right = plausible(right, "hippocampus_right_mm3", "right hippocampus")
    total = plausible(total, "hippocampus_mm3", "hippocampus")
    intracranial = plausible(intracranial, "tiv_mm3", "intracranial volume")
    if total is None and left is not None and right is not None:
        total = round(left + right, 4)
    return Volumes(
        total,
        left,
        right,
        source if {total, left, right} != {None} else None,
        intracranial,
        source if intracranial is not None else None,
        tuple(problems),
    )


def joined(first: Volumes, second: Volumes) -> Volumes:
    """Volumes of the first source, completed by the second without mixing two segmentations.

    Left and right of the second are used only if they add up to the total of the first (within 1 %), that is, if they
    come from the same segmentation; otherwise all three come from one source.
    """
    problems = first.problems + second.problems
    if first.total is None and first.left is None:
        hippocampus = second
    elif first.total is not None and first.left is None and _adds_up(second, first.total):
        hippocampus = replace(second, total=first.total, source=f"{first.source}; left and right: {second.source}")
    else:
        hippocampus = first
    head = first if first.intracranial is not None else second
    return Volumes(
        hippocampus.total,
        hippocampus.left,
        hippocampus.right,
        hippocampus.source,
        head.intracranial,
        head.intracranial_source,
        problems,
    )


def _adds_up(halves: Volumes, total: float) -> bool:
    return (
        halves.left is not None and halves.right is not None and abs(halves.left + halves.right - total) <= 0.01 * total
    )
