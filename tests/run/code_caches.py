"""Code is read once per process; tests that write code forget what was read."""

from __future__ import annotations

import importlib

from heatlas.pipeline.run.work import digests


def forget_code() -> None:
    importlib.invalidate_caches()
    for cached in (digests.source_of, digests._root_of, digests.imported_modules):
        cached.cache_clear()
    digests._modules_digest.cache_clear()
    digests._module_code.cache_clear()
