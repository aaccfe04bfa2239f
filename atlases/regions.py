"""Region tables: what an atlas's label numbers stand for, in our table and in those of others.

``tables/neuromorphometrics.tsv`` is this project's table of SPM12's 136 Neuromorphometrics numbers; CAT12 uses the
same numbers for the same structures and leaves out the vessels (63, 64). Its 68 bilateral groups are those of the
founding study (Böhle et al. 2019), each number in exactly one: 60 left-right pairs, 5 midline structures, and the 3
pools that the study made, namely

- cerebellum: cortex and white matter of both sides (38-41),
- cerebellar vermis: its three lobule groups (71-73),
- lateral ventricle: body and inferior horn of both sides (49-52). The study's figures print this pool as "Inf. Lat.
  Ventricles", though two of its four numbers, and most of its volume, are the lateral ventricles proper; the inferior
  horn is part of the lateral ventricle, so the pool is right and its printed name was not.

Basal forebrain is the only pair numbered left first (75 left, 76 right), which the images confirm; the table of CAT12
contradicts itself there. The lobes follow the BrainCOLOR protocol that the labels were drawn by, with the insula apart
and the parietal operculum in the parietal lobe.

Tables written by others, CAT12's (in ``deepmriprep``) and those of BIDS (``*_dseg.tsv``), give a number and a name; the
side is part of the name, in one of a few habits. It is read here, and checked against the image where the labels are
loaded (`atlases.labels`). The names of FreeSurfer's labels are those of ``aparc+aseg`` with the atlas of Desikan and
Killiany, from FreeSurferColorLUT.txt, whose other thousand labels this segmentation does not hold.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
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
    hemisphere: Hemisphere  # the participant's; ``both`` for midline structures
    lobe: str  # ``n/a`` where the atlas does not say
    tissue: str  # GM, WM, CSF, vessel, mixed or ``n/a``
    group: str  # bilateral group: the structure, without its side


COLUMNS = tuple(field.name for field in dataclasses.fields(Region))


@dataclass(frozen=True)
class RegionTable:
    """The regions of an atlas, in the order of their numbers.

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
        for region in self.regions:
            if region.number == number:
                return region
        raise BadInputError(f"region table: no region has the number {number}.")

    def only(self, numbers: Iterable[int]) -> RegionTable:
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
    table = read_table(path, COLUMNS, COLUMNS[1:])
    rows = table[list(COLUMNS)].itertuples(index=False)
    return RegionTable(tuple(Region(int(number), *texts) for number, *texts in rows))


_SIDES: dict[str, Hemisphere] = {
    **dict.fromkeys(("left", "lh", "l"), "left"),
    **dict.fromkeys(("right", "rh", "r"), "right"),
    **dict.fromkeys(("both", "bothside", "b"), "both"),
}
_SIDE_FIRST = re.compile(r"^(?:ctx[-_])?(left|right|lh|rh|bothside)[\s_.-]+(?=\S)", re.IGNORECASE)
_SIDE_LAST = re.compile(r"(?<=\S)[\s_.-]+(left|right|lh|rh|(?-i:[LR]))$", re.IGNORECASE)
_SCHAEFER = re.compile(r"^\d+Networks_(LH|RH)_")


def split_side(name: str) -> tuple[Hemisphere, str]:
    """Take the side (left, right or both) out of a region's name; the rest names the bilateral group.

    Schaefer's parcels keep their whole name: number 3 on the left is not the counterpart of number 3 on the right.

    >>> split_side("Left Precentral gyrus"), split_side("TL amygdala R")
    (('left', 'Precentral gyrus'), ('right', 'TL amygdala'))
    >>> split_side("Bothside Brain Stem"), split_side("Third ventricle")
    (('both', 'Brain Stem'), ('both', 'Third ventricle'))
    >>> split_side("17Networks_RH_VisCent_ExStr_1")
    ('right', '17Networks_RH_VisCent_ExStr_1')
    """
    name = " ".join(name.split())
    schaefer = _SCHAEFER.match(name)
    if schaefer:
        return _SIDES[schaefer[1].lower()], name
    for pattern in (_SIDE_FIRST, _SIDE_LAST):
        match = pattern.search(name)
        if match:
            structure = name[: match.start()] + name[match.end() :]
            return _SIDES[match[1].lower()], structure[0].upper() + structure[1:]
    return "both", name[0].upper() + name[1:]


def read_cat12_table(path: Path) -> RegionTable:
    """Read a semicolon table of CAT12: ``ROIid``, ``ROIname``, and tissue shares where given."""
    blank = {column: [""] for column in ("Vgm", "Vwm", "Vcsf")}  # elsewhere "NA" may be a name
    table = pd.read_csv(path, sep=";", dtype={"ROIname": str}, keep_default_na=False, na_values=blank)
    return RegionTable(tuple(_cat12_region(row) for row in table.to_dict("records")))


def read_dseg_table(path: Path) -> RegionTable:
    """Read the label table of a BIDS segmentation, tab-separated: ``index`` and ``name`` are required.

    ``hemi`` (L, R, B or words), ``group``, ``lobe`` and ``tissue`` are used if present. Index 0 is the background and
    is skipped.
    """
    table = read_table(path, ["index", "name"], ["name", "hemi", "group", "lobe", "tissue"])
    table = table[table["index"] != 0]
    if table.empty:
        raise BadInputError(f"{path}: names no label.")
    try:
        return RegionTable(tuple(_dseg_region(row) for row in table.to_dict("records")))
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from error


def _cat12_region(row: dict[Any, Any]) -> Region:
    name = " ".join(str(row["ROIname"]).split())
    hemisphere, group = split_side(name)
    shares = {"GM": row.get("Vgm"), "WM": row.get("Vwm"), "CSF": row.get("Vcsf")}
    tissues = [tissue for tissue, share in shares.items() if share is not None and not pd.isna(share) and share > 0]
    tissue = "mixed" if len(tissues) > 1 else (tissues or [MISSING])[0]
    return Region(int(row["ROIid"]), name, hemisphere, MISSING, tissue, group)


def _dseg_region(row: dict[Any, Any]) -> Region:
    number, name = row["index"], _text(row, "name")
    if not isinstance(number, int | float) or number != number or int(number) != number:
        raise BadInputError(f"column index: {number!r} is not a whole number.")
    if name == MISSING:
        raise BadInputError(f"column name: label {int(number)} has none.")
    hemisphere, group = split_side(name)
    declared = _text(row, "hemi")
    if declared != MISSING:
        # An unknown word goes on as it is: the region table refuses it by name.
        hemisphere = _SIDES.get(declared.lower(), cast(Hemisphere, declared))
    if _text(row, "group") != MISSING:
        group = _text(row, "group")
    return Region(int(number), name, hemisphere, _text(row, "lobe"), _text(row, "tissue"), group)


def _text(row: dict[Any, Any], column: str) -> str:
    value = row.get(column)
    return MISSING if value is None or pd.isna(value) or not str(value).strip() else str(value).strip()


NAMES = Path(__file__).parent / "tables" / "freesurfer.tsv"


@functools.cache
def freesurfer_names() -> Mapping[int, tuple[str, str]]:
    """Name and hemisphere (left, right, both) by number.

    >>> freesurfer_names()[17], freesurfer_names()[2035], freesurfer_names()[16]
    (('Left-Hippocampus', 'left'), ('ctx-rh-insula', 'right'), ('Brain-Stem', 'both'))
    """
    with NAMES.open(encoding="utf-8", newline="") as handle:
        rows = csv.DictReader(handle, delimiter="\t")
        return {int(row["number"]): (row["name"], row["hemisphere"]) for row in rows}
