"""Steps over the whole group, such as statistics, repeated only if their inputs change.

A step reads tables and maps of the run and writes tables, each atomically. Like a unit of work it has a receipt; an
interrupted step has none and is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.digests import Code, DigestCache, file_digest, log_remade, read_receipt, unit_key


def run_step(
    layout: RunLayout,
    name: str,
    inputs: Iterable[Path],
    parameters: Any,
    code: Iterable[Code],
    function: Callable[[], Iterable[Path]],
    digests: DigestCache,
) -> bool:
    """Do a step unless its receipt shows that nothing it depends on has changed.

    `name`: names the receipt. `inputs`: files the step reads; a missing file is part of the key, too. `parameters`:
    settings the step depends on (records, numbers, text). `code`: code that the step depends on, with all that it
    imports. `function`: does the work and returns the files it wrote. Returns True if the step was done, False if it
    was still valid.
    """
    key = unit_key({_path_in_run(layout, path): digests.digest(path) for path in inputs}, parameters, *code)
    receipt = layout.receipt("steps", name)
    if _is_valid(layout, receipt, key, digests):
        return False
    started = time.monotonic()
    outputs = {path.relative_to(layout.root).as_posix(): file_digest(path) for path in function()}
    write_json(receipt, {"key": key, "outputs": outputs, "seconds": round(time.monotonic() - started, 3)})
    return True


def step_outputs(layout: RunLayout) -> list[Path]:
    """Files that the steps of a run have written, by their receipts, without those of the report."""
    paths: list[Path] = []
    for receipt in sorted(layout.receipt("steps", "any").parent.glob("*.json")):
        done = read_receipt(receipt)  # without a readable one the step is done again
        paths += [layout.root / name for name in done.outputs] if done else []
    return [path for path in paths if path.is_relative_to(layout.group)]


def _path_in_run(layout: RunLayout, path: Path) -> str:
    """Path of a file relative to the run folder, which may be moved, or absolute if it is elsewhere."""
    return path.relative_to(layout.root).as_posix() if path.is_relative_to(layout.root) else str(path)


def _is_valid(layout: RunLayout, receipt: Path, key: str, digests: DigestCache) -> bool:
    done = read_receipt(receipt)
    if done is None or done.key != key:
        return False
    for name, digest in done.outputs.items():
        stamp = digests.stamp(layout.root / name)
        if stamp is None or stamp[0] != digest:
            log_remade(name, stamp)
            return False
    return True
