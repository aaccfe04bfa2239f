"""Read a run in a notebook: ``heatlas.open("demo/run").evidence("Hippocampus")``; see docs/notebook.md.

The rooms `heatlas.pipeline`, `heatlas.atlases`, `heatlas.reports` and `heatlas.workflows` are the folders of these
names at the top of the repository. What is named in ``__all__`` is loaded when it is first used, so that importing
``heatlas`` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heatlas.reports.read.open_run import OpenRun
    from heatlas.reports.read.open_run import open_run as open

__all__ = ["OpenRun", "open"]

_PLACES = {
    "open": ("heatlas.reports.read.open_run", "open_run"),
    "OpenRun": ("heatlas.reports.read.open_run", "OpenRun"),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("heatlas")
    if name not in _PLACES:
        raise AttributeError(f"module 'heatlas' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
