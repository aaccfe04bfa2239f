"""Registered images as registration wrote them: another image under their name is refused, as other weights are."""

from __future__ import annotations

from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.layout.scan_files import ScanFiles
from pipeline.run.work.digests import DigestCache

STAGE = "registration"
REMEDY = "Restore the file, or repeat `heatlas run`, which registers the scan again."


def registered_digests(files: ScanFiles, digests: DigestCache) -> tuple[str, str]:
    """Digests of the image and the brain mask of a registered scan; "unreadable" where a file cannot be read.

    Raises
    ------
    BadInputError
        If one is not the file that registration wrote, by its receipt. Without a receipt nothing is known.
    """
    receipt = RunLayout(files.root).receipt(STAGE, files.name)
    image, mask = digests.recorded((files.t1w, files.brain_mask), files.root, receipt, REMEDY)
    return image, mask
