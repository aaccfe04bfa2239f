"""Sum, density and gain of the leading regions (figures 3 to 5 of the founding study)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.regions.ranking import METRICS
from pipeline.regions.tables import ALL
from pipeline.run.layout.map_names import map_title
from reports.cautions.headline import leaders, ranking, rule
from reports.content.relevance.leading_regions import leading_table
from reports.figures.gallery import Picture
from reports.figures.regions import draw_regions
from reports.page.material import Material
from reports.read.run_record import RunRecord
from reports.words.numbers import count, listing

TOP = 25
FOUNDING_NUMBER = {"sum": 3, "density": 4, "gain": 5}

MEANING = {
    "share": "Share of the map: sum divided by the absolute sums of all regions. It does not depend on the strength of "
    "the whole map, so people and classes can be compared.",
    "sum": "Sum: all relevance inside a region. Large regions have large sums.",
    "density": "Density: sum divided by the number of voxels. It shows where relevance is concentrated.",
    "gain": "Gain: sum divided by the mean sum of {negative} scans of the same test fold. 1 means as much "
    "as in {negative}. Maps differ in strength, so compare the gains of regions with each other.",
}


def build(material: Material) -> Mapping[str, Any]:
    """One figure per metric and leading map, and the leading regions in numbers."""
    run = material.run
    blocks = []
    for metric in ("sum", "density") if run.task.is_number else METRICS:
        pictures, notes = [], []
        for name in run.main_maps:
            picture = _figure(material, name, metric)
            if picture is None:
                notes.append(f"{map_title(name)}: no region has a known {metric}.")
            else:
                pictures.append(picture)
        meaning = MEANING[metric].format(positive=run.positive, negative=run.negative)
        blocks.append({"metric": metric.capitalize(), "meaning": meaning, "figures": pictures, "notes": notes})
    titles = [map_title(name) for name in run.main_maps]
    undefined = "Gain compares with a class and is not defined where a number is predicted." * run.task.is_number
    return {
        "blocks": blocks, "maps": listing(titles), "rule": rule(run), "table": leading_table(material),
        "undefined": undefined,
    }  # fmt: skip


def _figure(material: Material, map_name: str, metric: str) -> Picture | None:
    run = material.run
    means, ranked_in = ranking(run, map_name, metric)
    if means.empty:
        return None
    found = leaders(run, means, map_name, metric, TOP)
    regions = found.regions
    values = run.region_values
    values = values[values["map"] == map_name]
    labels = (ALL,) if run.task.is_number else tuple(reversed(run.task.outputs))
    figure, hidden = draw_regions(values, metric, regions, labels, axis_title(map_name, metric, run))
    title = map_title(map_name)
    scans, people = values["scan_id"].nunique(), values["participant_id"].nunique()
    outside = f" {count(hidden, 'extreme value')} outside the axis." if hidden else ""
    return material.gallery.add(
        figure,
        f"bohle2019-0{FOUNDING_NUMBER[metric]}_region-{metric}_{map_name}",
        f"{title}, {metric} in {count(len(regions), 'region')}. Highest: {listing(regions[:5])}.",
        f"{title}: {metric} in the {len(regions)} leading bilateral groups, ranked by the mean over participants "
        f"({ranked_in}). Boxes are quartiles over scans, whiskers reach 1.5 times their range. "
        f"{count(scans, 'scan')} of {count(people, 'participant')} in all.{outside}{found.sentence}",
    )


def axis_title(map_name: str, metric: str, run: RunRecord) -> str:
    """Name of a metric with its unit."""
    quantity = "susceptibility" if map_name == "gb" else "relevance"
    return {
        "share": f"share of {quantity}",
        "sum": f"{quantity} sum",
        "density": f"{quantity} per voxel",
        "gain": f"sum ÷ mean sum of {run.negative}",
    }[metric]
