"""How much relevance lies in each kind of image, where networks see several."""

from __future__ import annotations

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.channels import RELEVANCE_CHANNELS_TABLE, shares_of_kinds
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.words.numbers import percent, signed


def kinds_table(material: Material) -> PageTable | None:
    """The share of each kind of image by map and class; None where networks see one."""
    run = material.run
    if not run.config.cohort.further_suffixes or not RELEVANCE_CHANNELS_TABLE.path(run.layout).is_file():
        return None
    scans = run.region_values.drop_duplicates("scan_id").set_index("scan_id")
    labels = {str(scan): str(label) for scan, label in scans["label"].dropna().items()}
    found = shares_of_kinds(RELEVANCE_CHANNELS_TABLE.read(run.layout), labels)
    found = found.assign(title=found["map"].map(map_title))
    columns = (
        Column("title", "Map"), Column("image", "Image"), Column("label", "Class"), numeric("n", "Participants"),
        numeric("share", "Share of relevance", lambda x: percent(x, 1)), numeric("sum", "Sum", signed),
    )  # fmt: skip
    return page_table(
        found,
        columns,
        "How much relevance lies in each kind of image. Share: the absolute sums of all regions by one kind, divided "
        "by those of all kinds; mean over participants. A kind whose voxels vary more can have more relevance without "
        f"telling more: compare with a network of each kind alone. By region: {RELEVANCE_CHANNELS_TABLE.file}.",
    )
