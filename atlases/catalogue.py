"""Which atlases can be had by name, and where each one's labels, table and credit come from.

The list is ``tables/catalogue.tsv``. The labels themselves are never part of this repository: their licences
(CC BY-NC for Neuromorphometrics) leave that to the packages that carry them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from heatlas.atlases.regions import RegionTable, neuromorphometrics, read_cat12_table, read_dseg_table
from heatlas.atlases.templates import locate
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.plain_text import did_you_mean, nearest
from heatlas.pipeline.run.plugins import plugged_in
from heatlas.pipeline.run.tables import MISSING, read_table
from heatlas.pipeline.run.work.digests import file_digest, text_digest

CATALOGUE = Path(__file__).parent / "tables" / "catalogue.tsv"


@dataclass(frozen=True)
class AtlasSource:
    """An atlas as its files give it."""

    name: str
    title: str
    credit: str
    note: str  # what a reader must know about its placement; may be empty
    image: Path  # label image
    read_table: Callable[[], RegionTable]  # reads its region table
    # Whether it comes from the catalogue (labels in or near template space, to be masked by the template brain) rather
    # than from the user
    carried: bool
    digest: str  # SHA-256 over the digests of label image and region table


@dataclass(frozen=True)
class PluggedAtlas:
    """An atlas of a plug-in, in the space of the template.

    `name`: in settings; lower case. `image`: label image (.nii or .nii.gz) with its table beside it: same name,
    ``.tsv``, columns ``index`` and ``name``. `title`, `credit`: for the report: what it is, whose work, and under which
    licence.
    """

    name: str
    image: Path
    title: str
    credit: str


def atlas_names() -> tuple[str, ...]:
    return (*_catalogue(), *_plugged())


@functools.cache
def _plugged() -> dict[str, PluggedAtlas]:
    return {atlas.name: atlas for atlas in plugged_in("atlases", PluggedAtlas, _catalogue())}


def find_atlas(name: str) -> AtlasSource:
    """Find an atlas by a name of `atlas_names`, or by the path of its label image with a table beside it.

    The table has the same name, ``.tsv``, and the columns ``index`` and ``name``.
    """
    entry = _catalogue().get(name.lower())
    if entry is not None:
        return _carried_atlas(name.lower(), entry)
    if (plugged := _plugged().get(name.lower())) is not None:
        return replace(_atlas_at(plugged.image), name=plugged.name, title=plugged.title, credit=plugged.credit)
    if name.endswith((".nii", ".nii.gz")):
        return _atlas_at(Path(name))
    raise UsageError(
        f"atlas {name!r}: unknown.{did_you_mean(nearest(str(name), atlas_names()))} Known are "
        f"{', '.join(atlas_names())}; or give the path of a label image "
        "(.nii.gz) with a table (.tsv, columns index and name) beside it."
    )


@functools.cache
def _catalogue() -> dict[str, dict[str, str]]:
    table = read_table(CATALOGUE, ["name", "title", "package", "image", "regions", "credit", "note"]).fillna(MISSING)
    return {str(row["name"]): {str(key): str(value) for key, value in row.items()} for row in table.to_dict("records")}


def _carried_atlas(name: str, entry: dict[str, str]) -> AtlasSource:
    image, record = locate(entry["package"], entry["image"])
    digests = [record.sha256]
    reader: Callable[[], RegionTable] = neuromorphometrics
    if entry["regions"] != MISSING:
        table, table_record = locate(entry["package"], entry["regions"])
        digests.append(table_record.sha256)
        reader = functools.partial(read_cat12_table, table)
    note = "" if entry["note"] == MISSING else entry["note"]
    return AtlasSource(name, entry["title"], entry["credit"], note, image, reader, True, text_digest(" ".join(digests)))


def _atlas_at(image: Path) -> AtlasSource:
    stem = image.name.removesuffix(".gz").removesuffix(".nii")
    table = image.with_name(f"{stem}.tsv")
    for path, what in ((image, "label image"), (table, "table of its labels (columns index and name)")):
        if not path.is_file():
            raise UsageError(f"atlas {image}: {path} does not exist; it should be the {what}.")
    digest = text_digest(f"{file_digest(image)} {file_digest(table)}")
    credit = f"Atlas {stem}, given by the user; credit and licence are those of its authors."
    return AtlasSource(stem, stem, credit, "", image, functools.partial(read_dseg_table, table), False, digest)
