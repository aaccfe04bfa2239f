"""Names of FreeSurfer's labels: those of ``aparc+aseg`` with the atlas of Desikan and Killiany.

From FreeSurferColorLUT.txt of FreeSurfer, whose other thousand labels this segmentation does not hold.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path

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
