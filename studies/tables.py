"""The tables of the studies, as ``tables.toml`` beside this module declares them."""

from functools import partial
from pathlib import Path

from heatlas.pipeline.run.declared import declared_in

declared = partial(declared_in, Path(__file__).with_name("tables.toml"))
