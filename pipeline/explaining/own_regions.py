"""Maps summed over the regions of a person's own segmentation, beside those of the atlas.

Where the atlas lies on a person is as good as the registration; a segmentation of the scan itself (``aparc+aseg`` of
FreeSurfer or FastSurfer) follows their own sulci and ventricles. Its labels are taken forward to the grid of the maps,
by the transforms of the registration and nearest neighbour, and each voxel of a map is counted once: so the sums of all
regions and of the rest add up to the map, whatever the transform. Taking maps back to the scan would interpolate them,
which changes their sums where the scan is stretched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.atlases.spaces import template_grid
from heatlas.atlases.templates import span_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.segmented.images import names_of_regions, segmentation_of, table_beside
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.tables import declared
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.regions.region_sums import REST
from heatlas.pipeline.regions.stage import map_version
from heatlas.pipeline.regions.tables import REST_NAME, density
from heatlas.pipeline.registration.own_labels import INSIDE, labels_in_template, outside_brain, share_inside
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import shown_as
from heatlas.pipeline.run.work.jobs import Outcome, record_failures, run_jobs, run_step
from heatlas.pipeline.run.work.unit import Unit, keyed, keyed_file

STAGE = "own-regions"

OWN_REGIONS_TABLE = declared("relevance_own_regions")


class OwnRegions(Unit):
    """What the job of one scan needs; `version` is that of its maps."""

    maps: tuple[str, ...]
    files: ScanFiles = keyed("resolution_mm", inputs={"warp": "warp", "affine": "affine_transform"})
    scan: Scan = keyed("scan_id", "entry")
    labels: Path = keyed_file("labels")
    version: str = keyed(inputs=lambda version, _: {"maps": version})
    label_table: Path | None = keyed_file("label table", default=None)


def own_rows(
    maps: Mapping[str, NDArray[np.float32]],
    labels: NDArray[np.int32],
    volumes: Mapping[int, float],
    names: Mapping[int, tuple[str, str]],
) -> pd.DataFrame:
    """Rows of one scan, without its names: every map, the rest and every region of the segmentation.

    `maps`, `labels`: on one grid. `volumes`: in mm³ of every region of the segmentation as given, also of those that
    this grid does not hold. `names`: name and hemisphere of the numbers that have one.

    Examples
    --------
    >>> map_of = {"m": np.array([1.0, 2.0, 4.0, 8.0], np.float32)}
    >>> rows = own_rows(map_of, np.array([0, 17, 17, 0]), {17: 9.0, 53: 1.0}, {17: ("Caudate", ""), 53: ("Insula", "")})
    >>> rows[["region", "name", "n_voxels", "volume_mm3", "sum"]].values.tolist()[1:]
    [[17, 'Caudate', 2, 9.0, 6.0], [53, 'Insula', 0, 1.0, 0.0]]
    """
    numbers = np.array([REST, *sorted(set(volumes) - {REST})])
    place = np.searchsorted(numbers, labels.ravel(order="F"))
    known = {**names, REST: (REST_NAME, "")}
    named = [known.get(number, ("", "")) for number in numbers.tolist()]
    voxels = np.bincount(place, minlength=len(numbers))
    sizes = [volumes.get(number, np.nan) if number != REST else np.nan for number in numbers.tolist()]
    columns = {"name": [name or None for name, _ in named], "hemisphere": [side or None for _, side in named]}
    common = pd.DataFrame({"region": numbers, **columns, "n_voxels": voxels, "volume_mm3": sizes})
    blocks = []
    for name, values in maps.items():
        added = np.bincount(place, weights=values.ravel(order="F").astype(np.float64), minlength=len(numbers))
        sums = np.asarray(added, np.float64)
        blocks.append(common.assign(map=name, sum=sums, density=density(sums, voxels)))
    return pd.concat(blocks, ignore_index=True)


def sum_own_regions(outputs: dict[str, Path], task: OwnRegions) -> Mapping[str, float]:
    grid = template_grid(task.files.resolution_mm, span_of(task.files.template))
    placed = task.scan.entry == "template"
    with shown_as(task.labels, "the segmentation of the scan"):
        labels, volumes = labels_in_template(task.labels, task.files, grid, placed=placed)
    inside = share_inside(labels != REST, task.files.brain_mask, grid)
    if inside < INSIDE:
        outside = outside_brain("the segmentation of the scan", inside)
        raise BadInputError(f"{outside} Give one in the space of the image (docs/inputs.md).")
    maps = {name: read_map(task.files.relevance_map(name), grid) for name in task.maps}
    scan = task.scan
    rows = own_rows(maps, labels, volumes, names_of_regions(task.labels, task.label_table))
    rows = rows.assign(**{name: getattr(scan, name) for name in ("participant_id", "session_id", "scan_id")})
    OWN_REGIONS_TABLE.write(outputs["table"], rows[list(OWN_REGIONS_TABLE.meanings)])
    return {"regions": len(volumes)}


def add_own_regions(work: Work, scans: Sequence[Scan], map_names: Sequence[str]) -> list[Outcome]:
    """Write ``relevance_own_regions.tsv`` of all scans that have a segmentation; remove it where none has.

    `scans`: explained, with the paths of their images.
    """
    layout, input_root, config, digests = work.layout, work.input_root, work.config, work.digests
    kept = scans if config.attribution.keep_maps == "all" else []
    paths = ((scan.scan_id, segmentation_of(input_root, scan, config.regions.own_labels)) for scan in kept)
    found = {scan_id: path for scan_id, path in paths if path is not None}
    jobs = []
    for scan in (scan for scan in kept if scan.scan_id in found):
        files = work.files(scan)
        labels, version = found[scan.scan_id], map_version(work, scan, map_names)
        task = OwnRegions(tuple(map_names), files, scan, labels, version, table_beside(labels, input_root))
        outputs = {"table": files.own_region_table, "columns": files.own_region_table.with_suffix(".json")}
        jobs.append(task.job(STAGE, files.name, outputs, digests, sum_own_regions))
    if not jobs:
        OWN_REGIONS_TABLE.remove(layout)
        layout.receipt("steps", STAGE).unlink(missing_ok=True)
        record_failures(layout, [], [STAGE])
        return []
    outcomes = run_jobs(layout, jobs, work.executor, "own regions")
    tables = [outcome.job.outputs["table"] for outcome in outcomes if outcome.ok]

    def gather() -> list[Path]:
        rows = [OWN_REGIONS_TABLE.read(path) for path in tables]
        if not rows:
            OWN_REGIONS_TABLE.remove(layout)
            return []
        return [OWN_REGIONS_TABLE.write(layout, pd.concat(rows, ignore_index=True))]

    run_step(layout, STAGE, tables, list(map_names), [own_rows], gather, digests)
    digests.save()
    return outcomes
