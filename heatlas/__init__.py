"""Heatlas as a library: explain any network, read a run, or start one from Python; see docs/library.md.

The rooms `heatlas.pipeline`, `heatlas.atlases`, `heatlas.reports`, `heatlas.workflows` and `heatlas.studies` are the
folders of these names at the top of the repository. What is named in ``__all__`` is public (docs/library.md says what
that promises), and is loaded when it is first used, so that importing ``heatlas`` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heatlas.pipeline.explaining.any_network import (
        deeplift,
        expected_gradients,
        lrp,
        methods,
        networks,
        prepare,
    )
    from heatlas.pipeline.explaining.explained_image import Explained, regions
    from heatlas.reports.read.open_run import OpenRun
    from heatlas.reports.read.open_run import open_run as open
    from heatlas.workflows.any_image import explain
    from heatlas.workflows.library import apply, evaluate, export, run

__all__ = [
    "Explained", "OpenRun", "apply", "deeplift", "evaluate", "expected_gradients", "explain", "export", "lrp",
    "methods", "networks", "open", "prepare", "regions", "run",
]  # fmt: skip

_PLACES = {
    "open": ("heatlas.reports.read.open_run", "open_run"),
    "OpenRun": ("heatlas.reports.read.open_run", "OpenRun"),
    "explain": ("heatlas.workflows.any_image", "explain"),
    "Explained": ("heatlas.pipeline.explaining.explained_image", "Explained"),
    "regions": ("heatlas.pipeline.explaining.explained_image", "regions"),
    "methods": ("heatlas.pipeline.explaining.any_network", "methods"),
    "networks": ("heatlas.pipeline.explaining.any_network", "networks"),
    "lrp": ("heatlas.pipeline.explaining.any_network", "lrp"),
    "deeplift": ("heatlas.pipeline.explaining.any_network", "deeplift"),
    "expected_gradients": ("heatlas.pipeline.explaining.any_network", "expected_gradients"),
    "prepare": ("heatlas.pipeline.explaining.any_network", "prepare"),
    "run": ("heatlas.workflows.library", "run"),
    "apply": ("heatlas.workflows.library", "apply"),
    "evaluate": ("heatlas.workflows.library", "evaluate"),
    "export": ("heatlas.workflows.library", "export"),
}
_OF_RUNS = ("heatlas.reports.read.open_run", "heatlas.workflows.library")


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("heatlas")
    if name not in _PLACES:
        raise AttributeError(f"module 'heatlas' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    if module in _OF_RUNS:
        from heatlas.pipeline.run.errors import MissingDataError
        from heatlas.pipeline.run.extras import require_study

        try:
            require_study(f"heatlas.{name}")
        except MissingDataError as error:  # what hasattr and help expect
            raise AttributeError(error) from error
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
