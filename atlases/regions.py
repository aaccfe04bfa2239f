"""Region tables: what an atlas's label numbers stand for.

``tables/neuromorphometrics.tsv`` is this project's own table of SPM12's 136 Neuromorphometrics numbers; CAT12 uses the
same numbers for the same structures and leaves out the vessels (63, 64). Its 68 bilateral groups are those of the
founding study (Böhle et al. 2019), each number in exactly one: 60 left-right pairs, 5 midline structures, and the 3
pools that the study made, namely

- cerebellum: cortex and white matter of both sides (38-41),
- cerebellar vermis: its three lobule groups (71-73),
- lateral ventricle: body and inferior horn of both sides (49-52). The study's figures print this pool as "Inf. Lat.
  Ventricles", though two of its four numbers, and most of its volume, are the lateral ventricles proper; the inferior
  horn is part of the lateral ventricle, so the pool is right and its printed name was not.

Basal forebrain is the only pair numbered left first (75 left, 76 right), which the images confirm; CAT12's own table
contradicts itself there. The lobes follow the BrainCOLOR protocol that the labels were drawn by, with the insula apart
and the parietal operculum in the parietal lobe.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import MISSING, read_table

Hemisphere = Literal["left", "right", "both"]

HEMISPHERES: tuple[Hemisphere, ...] = ("left", "right", "both")
TISSUES = ("GM", "WM", "CSF", "vessel", "mixed", MISSING)
NEUROMORPHOMETRICS = Path(__file__).parent / "tables" / "neuromorphometrics.tsv"


@dataclass(frozen=True)
class Region:
    """One label of an atlas."""

    number: int  # in the label image
    name: str  # with its side
    hemisphere: Hemisphere  # the participant's own; ``both`` for midline structures
    lobe: str  # ``n/a`` where the atlas does not say
    tissue: str  # GM, WM, CSF, vessel, mixed or ``n/a``
    group: str  # bilateral group: the structure, without its side


COLUMNS = tuple(field.name for field in dataclasses.fields(Region))


@dataclass(frozen=True)
class RegionTable:
    """The regions of an atlas, in the order of their numbers.

    Raises BadInputError if a number or name occurs twice, a number is not positive, or a hemisphere or tissue is not a
    known word.

    Examples
    --------
    >>> table = neuromorphometrics()
    >>> len(table.regions), len(table.groups)
    (136, 68)
    >>> table.by_number(47).name, table.by_number(48).hemisphere
    ('Right hippocampus', 'left')
    >>> table.groups["Hippocampus"], table.groups["Lateral ventricle"]
    ((47, 48), (49, 50, 51, 52))
    """

    regions: tuple[Region, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "regions", tuple(sorted(self.regions, key=lambda region: region.number)))
        for what in ("number", "name"):
            count = Counter(getattr(region, what) for region in self.regions)
            twice = [str(value) for value, times in count.items() if times > 1]
            if twice:
                raise BadInputError(f"region table: {what} {', '.join(twice)} occurs more than once.")
        for region in self.regions:
            if region.number < 1:
                raise BadInputError(f"region table: number {region.number} ({region.name}) is not positive.")
            if region.hemisphere not in HEMISPHERES:
                raise BadInputError(
                    f"region table: {region.name}: hemisphere {region.hemisphere!r}; use left, right, both."
                )
            if region.tissue not in TISSUES:
                raise BadInputError(
                    f"region table: {region.name}: tissue {region.tissue!r}; use one of {', '.join(TISSUES)}."
                )

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(region.number for region in self.regions)

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """Numbers of each bilateral group, in the order of each group's smallest number."""
        groups: dict[str, tuple[int, ...]] = {}
        for region in self.regions:
            groups[region.group] = (*groups.get(region.group, ()), region.number)
        return groups

    def by_number(self, number: int) -> Region:
        """Region of a label number."""
        for region in self.regions:
            if region.number == number:
                return region
        raise BadInputError(f"region table: no region has the number {number}.")

    def only(self, numbers: Iterable[int]) -> RegionTable:
        """Table of some of the regions."""
        wanted = set(numbers)
        unknown = wanted - set(self.numbers)
        if unknown:
            raise BadInputError(f"region table: no region has the number {', '.join(map(str, sorted(unknown)))}.")
        return RegionTable(tuple(region for region in self.regions if region.number in wanted))

    def frame(self) -> pd.DataFrame:
        """One row per region, the columns of `Region`."""
        return pd.DataFrame([dataclasses.astuple(region) for region in self.regions], columns=list(COLUMNS))


@functools.cache
def neuromorphometrics() -> RegionTable:
    """Table of SPM12's 136 Neuromorphometrics labels, 68 bilateral groups."""
    return read_region_table(NEUROMORPHOMETRICS)


def read_region_table(path: Path) -> RegionTable:
    """Read a table with the columns of `Region`."""
    table = read_table(path, COLUMNS, COLUMNS[1:])
    return RegionTable(tuple(_region(row) for row in table.to_dict("records")))


def _region(row: Mapping[Hashable, Any]) -> Region:
    hemisphere = cast(Hemisphere, row["hemisphere"])  # an unknown word is refused by the table, by name
    return Region(int(row["number"]), row["name"], hemisphere, row["lobe"], row["tissue"], row["group"])
