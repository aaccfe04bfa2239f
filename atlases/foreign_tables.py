"""Region tables written by others: CAT12's (in ``deepmriprep``) and those of BIDS (``*_dseg.tsv``).

Such tables give a number and a name; the side is part of the name, in one of a few habits. It is read here, and
checked against the image where the labels are loaded (`atlases.labels`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pandas as pd

from heatlas.atlases.regions import Hemisphere, Region, RegionTable
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import MISSING, read_table

_SIDES: dict[str, Hemisphere] = {
    "left": "left", "lh": "left", "l": "left",
    "right": "right", "rh": "right", "r": "right",
    "both": "both", "bothside": "both", "b": "both",
}  # fmt: skip
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
        found = pattern.search(name)
        if found:
            structure = name[: found.start()] + name[found.end() :]
            return _SIDES[found[1].lower()], structure[0].upper() + structure[1:]
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
    return Region(int(row["ROIid"]), name, hemisphere, MISSING, _cat12_tissue(row), group)


def _cat12_tissue(row: dict[Any, Any]) -> str:
    shares = {"GM": row.get("Vgm"), "WM": row.get("Vwm"), "CSF": row.get("Vcsf")}
    tissues = [tissue for tissue, share in shares.items() if share is not None and not pd.isna(share) and share > 0]
    return {0: MISSING, 1: tissues[0] if tissues else MISSING}.get(len(tissues), "mixed")


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
    declared_group = _text(row, "group")
    return Region(
        int(number),
        name,
        hemisphere,
        _text(row, "lobe"),
        _text(row, "tissue"),
        group if declared_group == MISSING else declared_group,
    )


def _text(row: dict[Any, Any], column: str) -> str:
    value = row.get(column)
    return MISSING if value is None or pd.isna(value) or not str(value).strip() else str(value).strip()
