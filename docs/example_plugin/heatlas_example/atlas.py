"""An atlas: labels.nii.gz in the space of the template, and labels.tsv with index and name, lie beside this file."""

from pathlib import Path

from heatlas.atlases.catalogue import PluggedAtlas

ATLAS = PluggedAtlas(
    "halves", Path(__file__).with_name("labels.nii.gz"), "Halves", "Halves of the template, free for any use."
)
