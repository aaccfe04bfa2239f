"""Images as the run wrote them, by the receipts of its units: another person's map in place of one is refused."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path

from heatlas.pipeline.regions.stage import MAPS_STAGE
from heatlas.pipeline.run.cells import REMEDY
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import same_content, stamp_of
from heatlas.pipeline.run.work.receipts import read_receipt

_OF_SCAN = re.compile(r"sub-[^_]+(_ses-[^_]+)?")
"""Beginning of the files of a scan, which names its units of work."""


def not_as_written(layout: RunLayout, path: Path) -> str:
    """That a map of a scan or a group is not the one that the run wrote, in a sentence; empty if it is, or is unknown.

    A file whose size and times are those of its receipt is not read. Of a map without a receipt nothing is known.
    """
    file = path.relative_to(layout.root).as_posix()
    known = [one.outputs[file] for one in map(read_receipt, _receipts(layout, path)) if one and file in one.outputs]
    if not known or any(same_content(stamp_of(path, stamp), stamp) for stamp in known):
        return ""
    return f"{file}: not the map that the run wrote there (SHA-256 differs). {REMEDY}"


def _receipts(layout: RunLayout, path: Path) -> Iterable[Path]:
    """Receipts of the units that may have written a map."""
    of_scan = _OF_SCAN.match(path.name)
    pattern = f"*/{glob.escape(of_scan[0])}.json" if of_scan else f"{MAPS_STAGE}/*.json"
    return sorted(layout.receipt("any", "any").parents[1].glob(pattern))
