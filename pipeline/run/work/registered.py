"""Registered images as registration wrote them: another image under their name is refused, as other weights are."""

from __future__ import annotations

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import read_receipt, same_content, stamp_of

STAGE = "registration"


def require_registered(files: ScanFiles) -> None:
    """Refuse an image or brain mask that is not the one in the receipt of its registration; without one, none is.

    A file whose size and times are those of the receipt is not read.
    """
    receipt = read_receipt(RunLayout(files.root).receipt(STAGE, files.name))
    if receipt is None:
        return
    for path in files.seen:
        written = receipt.outputs.get(path.relative_to(files.root).as_posix())
        stamp = stamp_of(path, written)
        if stamp is not None and written is not None and not same_content(stamp, written):
            raise BadInputError(
                f"{path}: not the file that registration wrote there (SHA-256 differs). Restore it, or repeat "
                "`heatlas run`, which registers the scan again."
            )
