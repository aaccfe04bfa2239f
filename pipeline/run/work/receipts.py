"""Receipts: what a finished unit of work or step over the group wrote, and from what. A damaged one counts as none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.documents import known_json


@dataclass(frozen=True)
class Receipt:
    """Content of a receipt.

    `key`: digest of inputs, parameters and code. `outputs`: by path from the run folder: the stamp of a file
    (`pipeline.run.work.digests.Stamp`), of a step its digest. `result`: what the unit returned. `content`: all of it.
    """

    key: str
    outputs: Mapping[str, Any]
    result: Mapping[str, Any]
    content: Mapping[str, Any]


def read_receipt(path: Path) -> Receipt | None:
    """The receipt in a file; None where there is none that can be read."""
    content = known_json(path)
    key, outputs, result = content.get("key"), content.get("outputs"), content.get("result", {})
    if not isinstance(key, str) or not isinstance(outputs, dict) or not isinstance(result, dict):
        return None
    return Receipt(key, outputs, result, content)
