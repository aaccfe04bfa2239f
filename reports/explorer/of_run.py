"""The region explorer of a run, and its table on disk."""

from __future__ import annotations

import pandas as pd

from pipeline.run.cells import require_numbers, require_whole
from pipeline.run.errors import HeatlasError
from pipeline.run.layout.map_names import map_title
from pipeline.run.tables import read_table, write_table
from pipeline.statistics.groups.region_explorer import EXPLORER_COLUMNS, explorer_table, method_and_beta
from reports.analyses.verdicts import rows_where
from reports.explorer.component import Explored, explorer_component
from reports.figures.style import OUTCOME_NAMES
from reports.page.components import Component
from reports.page.material import Material
from reports.read.run_record import OUTCOMES, RunRecord
from reports.viewer.of_run import space_of
from reports.words.numbers import count

TABLE = "region_explorer.tsv"


def region_explorer(material: Material) -> Component | None:
    """The explorer; writes its table beside the figures.

    None where the run has no summary of regions yet, or its atlas is not at hand.
    """
    run, space = material.run, space_of(material)
    if space is None or not run.has("region_summary", "predictions", "relevance"):
        return None
    summary = run.tables["region_summary"]
    maps = [name for name in run.ordered_maps if name in set(summary["map"])]
    groups = [group for group in (*run.labels, *OUTCOMES) if run.group_sizes.get(group, (0, 0))[0]]
    if not maps or not groups:
        return None
    effects, measure = _effects(run)
    table = explorer_table(
        summary, effects, run.tables["relevance"], _relevance(material), run.tables["predictions"],
        space.atlas.regions, maps, run.labels, run.evidence_maps,
    )  # fmt: skip
    path = run.layout.figures / TABLE
    write_table(path, table, EXPLORER_COLUMNS)
    explored = Explored(
        table=path.read_bytes(),
        file=path.relative_to(run.layout.root).as_posix(),
        maps=[_described(name) for name in maps],
        scan_groups={group: _title(run, group) for group in groups},
        links={group: link for group in summary["group"].unique() if (link := material.links.region(group))},
        contrast=f"the {measure} of {run.positive} with that of {run.negative}",
    )
    return explorer_component(explored)


def _effects(run: RunRecord) -> tuple[pd.DataFrame | None, str]:
    """Tests between the classes, and of which measure: evidence; of other maps share, or density without it."""
    pair = f"{run.positive}/{run.negative}"
    shares, densities = (rows_where(run, "group_comparisons", comparison=pair, metric=m) for m in ("share", "density"))
    if len(shares):
        shares = shares[~shares["map"].isin(run.evidence_maps)]
        evidence = densities[densities["map"].isin(run.evidence_maps)] if len(densities) else densities
        measure = "evidence or, of maps without it, the share of the map" if len(evidence) else "share of the map"
        return pd.concat([evidence.assign(tested="evidence"), shares.assign(tested="share")]), measure
    effects = run.tables.get("region_effects")
    return None if effects is None else effects.assign(tested="density"), "density"


def _relevance(material: Material) -> pd.DataFrame | None:
    """Relevance of single regions; None where there is no table to read, and then only bilateral groups are shown."""
    path = material.run.layout.relevance
    if not path.is_file():
        return None
    columns = [
        "participant_id",
        "scan_id",
        "map",
        "region",
        "name",
        "hemisphere",
        "group",
        "n_voxels",
        "sum",
        "density",
    ]
    try:
        require_whole(path)
        table = read_table(path, columns, ("name", "group", "hemisphere", "map"))
        require_numbers(path, table, ["region", "n_voxels", "sum", "density"])
    except HeatlasError as error:
        file = path.relative_to(material.run.layout.root).as_posix()
        material.faults.add(f"Single regions are missing. {str(error).replace(str(path), file)}")
        return None
    return table


def _described(name: str) -> dict[str, str | float | None]:
    method, beta = method_and_beta(name)
    is_lrp = method == "lrp"
    title = "LRP" if is_lrp else map_title(name)
    return {"map": name, "method": method, "method_title": title, "beta": beta if is_lrp else None}


def _title(run: RunRecord, group: str) -> str:
    scans, people = run.group_sizes[group]
    name = OUTCOME_NAMES[group].capitalize() + "s" if group in OUTCOMES else group
    return f"{name}: {count(scans, 'scan')} of {count(people, 'person', 'people')}"
