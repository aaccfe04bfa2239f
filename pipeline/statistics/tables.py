"""The tables of the statistics, as ``tables.toml`` beside this module declares them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from heatlas.pipeline.run.declared import Table, declared_in

declared = partial(declared_in, Path(__file__).with_name("tables.toml"))


def declared_tables(*names: str) -> tuple[Table, ...]:
    """The tables of these names."""
    return tuple(map(declared, names))
