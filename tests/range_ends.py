"""Values at and just outside the ends of the ranges that settings declare."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from heatlas.pipeline.run.config.ranges import Bounds, split_kind


def ends(kind: Any, default: Any) -> Iterator[tuple[Any, bool]]:
    """Values of a setting at and just outside of its ends, and whether they are allowed."""
    plain, limits = split_kind(kind)
    for limit in limits:
        if isinstance(limit, Bounds):
            for end, end_in, outwards in ((limit.low, limit.low_in, -1), (limit.high, limit.high_in, 1)):
                if math.isfinite(end):
                    end = int(end) if "int" in str(plain) else float(end)
                    yield _placed(default, end, outwards), end_in
                    if end_in:
                        beyond = end + outwards if isinstance(end, int) else math.nextafter(end, outwards * math.inf)
                        yield _placed(default, beyond, outwards), False


def _placed(default: Any, value: float, outwards: int) -> Any:
    """The value, or the list of a default with it in place of its last element, or of its first for a lower end."""
    if not isinstance(default, tuple):
        return value
    return (*default[:-1], value) if outwards > 0 else (value, *default[1:])
