"""The step that tests images, volume change and the leading map voxel by voxel, and writes maps and tables.

People are the units; a map of networks is tested within test folds brought to one spread, images are not. Each scan is
a column of voxels, smoothed, on a grid coarse enough to lose nothing by it: a volume smoothed to 8 mm holds next to
nothing finer than 4 mm, so tests cost the same memory and time for 1 mm as for 4 mm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from heatlas.atlases.spaces import Grid, write_template_image
from heatlas.atlases.templates import template_on
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, read_network_volume
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles, sidecar
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.jobs import run_step
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs, files_read, read_inputs
from heatlas.pipeline.statistics.data.members import CLASSES, TwoGroups
from heatlas.pipeline.statistics.data.values import INTENSITY, LOG_JACOBIAN, joined, volume_change
from heatlas.pipeline.statistics.images.differences import Adjusted, class_model
from heatlas.pipeline.statistics.images.voxel_test import VoxelTest, cluster_table, voxel_test
from heatlas.pipeline.statistics.resampling.means import OF_FAMILY, caveat_of_size
from heatlas.pipeline.training.baselines.images import standardised

FWHM_PER_SD = float(np.sqrt(8 * np.log(2)))


@dataclass(frozen=True, eq=False)
class Voxels:
    """Which voxels are tested, and how values come to them.

    `fwhm_mm`: smoothing, 0 for none. Every `step`-th voxel of the template grid is taken; `grid` and `mask` (the brain
    of the template, as far as the network sees it) are of these.
    """

    spec: NetworkInput
    fwhm_mm: float
    step: int
    grid: Grid
    mask: Flags

    @classmethod
    def of(cls, spec: NetworkInput, fwhm_mm: float, template: str = DEFAULT_TEMPLATE) -> Voxels:
        fine, step = spec.template_grid, max(round(fwhm_mm / 2 / spec.resolution_mm), 1)
        seen = np.ones(spec.shape, bool)
        brain = template_on(spec.template_grid, template).brain_mask.astype(bool) & _whole(seen, spec).astype(bool)
        mask = np.ascontiguousarray(brain[::step, ::step, ::step])
        affine = fine.affine.copy()
        affine[:3, :3] *= step
        return cls(spec, fwhm_mm, step, Grid((mask.shape[0], mask.shape[1], mask.shape[2]), affine), mask)

    def sampled(self, volume: NDArray[np.float32]) -> NDArray[np.float32]:
        """Smoothed values of a volume on the template grid in the mask, shape (voxels,)."""
        sd = self.fwhm_mm / FWHM_PER_SD / self.spec.resolution_mm
        wide = gaussian_filter(volume.astype(np.float32), sd, mode="constant") if sd > 0 else volume
        return np.asarray(wide[:: self.step, :: self.step, :: self.step][self.mask], np.float32)


def voxels_of_scan(files: ScanFiles, source: str, voxels: Voxels) -> NDArray[np.float32] | None:
    """Intensity, log-Jacobian or a map of a scan, by its name; None for a log-Jacobian that there is not."""
    spec = voxels.spec
    if source == INTENSITY:
        return voxels.sampled(_whole(standardised(read_network_volume(files, spec)), spec))
    if source == LOG_JACOBIAN:
        change = volume_change(files, spec)
        return None if change is None else voxels.sampled(_whole(change, spec))
    return voxels.sampled(np.asarray(read_map(files.relevance_map(source), spec.template_grid), np.float32))


def _whole(values: NDArray[np.generic], spec: NetworkInput) -> NDArray[np.float32]:
    pasted = values if spec.box is None else spec.box.paste(values, spec.template_grid.shape)
    return np.asarray(pasted, np.float32)


Singles = NDArray[np.float32]
CLEAR = 0.05
STATISTICS: Mapping[str, str] = {
    "t": "t of the positive less the negative class, one residual variance per class",
    "tThresholded": f"The same, 0 where the family-wise p of threshold-free cluster enhancement is {CLEAR:g} or more",
    "oneMinusPFwe": "1 - p, family-wise by the largest |t| of each permutation",
    "oneMinusPTfce": "1 - p, family-wise by the largest |TFCE| of each permutation",
}
"""Maps that are written, and what they hold."""
VOXEL_TESTS_TABLE = declared("voxel_tests", __file__)
VOXEL_CLUSTERS_TABLE = declared("voxel_clusters", __file__)
VOXELWISE_TABLES = (VOXEL_TESTS_TABLE, VOXEL_CLUSTERS_TABLE)


def compare_voxelwise(work: Work, scans: Sequence[Scan], predictions: pd.DataFrame, atlas: PackedAtlas) -> bool:
    """Write the tables `VOXELWISE_TABLES` and the maps of every source; nothing where the settings leave them out.

    BadInputError if an image or map cannot be read. Data that allow no test are rows with a note.

    `scans`: those with a prediction and heatmaps.

    Gives whether anything was done.
    """
    layout, config = work.layout, work.config
    if not config.statistics.voxelwise.permutations:
        _remove(layout, ())
        return False
    files = [work.files(scan) for scan in scans]
    map_files = [path for scan in files for path in scan.maps_of_the_run()]
    images = [path for scan in files for path in (scan.image, scan.brain_mask, scan.log_jacobian)]

    def write() -> list[Path]:
        return _write(layout, read_inputs(layout, scans, predictions, config), atlas, work.executor)

    parameters = [config.statistics, config.cohort, config.attribution, config.seed, atlas.version]
    inputs = [*files_read(layout), *images, *map_files]
    return run_step(layout, "voxelwise", inputs, parameters, [_write], write, work.digests)


def sources_of(inputs: StatisticsInputs) -> list[str]:
    """What is tested: both measures of the images, and the map of the primary outcome, where maps are kept."""
    values, config = inputs.values, inputs.config
    name = config.statistics.primary.map or next(iter((*values.evidence, *values.maps)))
    return [INTENSITY, LOG_JACOBIAN, *([name] if config.attribution.keep_maps == "all" else [])]


def _write(layout: RunLayout, inputs: StatisticsInputs, atlas: PackedAtlas, executor: Executor) -> list[Path]:
    config = inputs.config
    voxels = Voxels.of(configured_input(config), config.statistics.voxelwise.fwhm_mm, config.registration.template)
    tests, clusters, written = [], [], []
    read = {source: _values(inputs, source, voxels, executor) for source in sources_of(inputs)}
    jobs = {source: (rows, values) for source, (rows, values) in read.items() if len(rows)}
    results = executor.map(partial(_test, inputs, atlas, voxels), list(jobs), list(jobs.values()))
    for source, (row, of_source, maps) in zip(jobs, results, strict=True):
        tests.append(row | {"source": source})
        clusters.append(of_source.assign(source=source))
        for name, volume in maps.items():
            path = layout.voxel_map(source, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_template_image(path, volume, voxels.grid, f"{source}: {STATISTICS[name]}")
            write_json(sidecar(path), _facts(inputs, source, name, row))
            written += [path, sidecar(path)]
    tables = (VOXEL_TESTS_TABLE.frame(tests), pd.concat(clusters, ignore_index=True))
    for table, rows in zip(VOXELWISE_TABLES, tables, strict=True):
        table.write(layout, rows.reindex(columns=list(table.meanings)))
        written += table.files(layout)
    _remove(layout, written)
    return written


def _values(inputs: StatisticsInputs, source: str, voxels: Voxels, executor: Executor) -> tuple[Indices, Singles]:
    """Positions of the scans that have the source, and their values (scans, voxels)."""
    rows = TwoGroups.of(inputs, *CLASSES).rows
    resolution = inputs.config.registration.resolution_mm
    by_id = {scan.scan_id: scan for scan in inputs.scans}
    named = inputs.as_named(inputs.values.scans.iloc[rows])
    files: list[ScanFiles] = [
        inputs.layout.scan(person, by_id[scan_id].session_id, resolution)
        for person, scan_id in zip(named["participant_id"], named["scan_id"], strict=True)
    ]
    n = len(files)
    voxels_of_scans = list(executor.map(voxels_of_scan, files, [source] * n, [voxels] * n))
    there = np.array([of_scan is not None for of_scan in voxels_of_scans], bool)
    rows_read = [of_scan for of_scan in voxels_of_scans if of_scan is not None]
    return rows[there], np.stack(rows_read) if rows_read else np.zeros((0, int(voxels.mask.sum())), np.float32)


def _test(
    inputs: StatisticsInputs, atlas: PackedAtlas, voxels: Voxels, source: str, values: tuple[Indices, Singles]
) -> tuple[dict[str, Any], pd.DataFrame, Mapping[str, Floats]]:
    """Rows of both tables for one source, and its maps by the names of `STATISTICS`."""
    settings, (rows, columns) = inputs.config.statistics, values
    row = dict.fromkeys(VOXEL_TESTS_TABLE.meanings, None) | {"n_voxels": columns.shape[1], "n_permutations": 0}
    row |= {"voxel_mm": float(min(voxels.grid.voxel_sizes_mm)), "fwhm_mm": settings.voxelwise.fwhm_mm}
    try:
        model, first = class_model(inputs, rows, source not in (INTENSITY, LOG_JACOBIAN))
        people = Adjusted.of(columns.astype(np.float64), model, first.tolist())
        count, rng = settings.voxelwise.permutations, generator(inputs.seed, "statistics", "voxelwise")
        permutations = people.exchange.permutations(count, rng, people.model.alike.tolist())
        test = voxel_test(people.values, people.model, permutations, voxels.mask, CLEAR)
    except BadInputError as error:
        return row | {"note": str(error)}, VOXEL_CLUSTERS_TABLE.frame(), {}
    significant = test.p_fwe_tfce < CLEAR
    of_class = people.exchange.groups_of_units(first[model.design.rows].tolist())
    caveat = caveat_of_size(of_class, OF_FAMILY) if model.held else None  # images without folds keep their level
    lost = None if len(rows) == len(TwoGroups.of(inputs, *CLASSES).rows) else "scans without this measure left out"
    row |= {"t": float(test.t[np.abs(test.t).argmax()]), "critical_t": test.critical}
    row |= {"p_fwe": float(test.p_fwe.min()), "p_fwe_tfce": float(test.p_fwe_tfce.min())}
    row |= {"n_higher": int((significant & (test.t > 0)).sum()), "n_lower": int((significant & (test.t < 0)).sum())}
    row |= {"n_positive": int((of_class == 1).sum()), "n_negative": int((of_class == 0).sum())}
    row |= {"covariates": ", ".join(model.covariates) or None, "n_permutations": test.n_permutations}
    row["note"] = joined(model.design.note, lost, caveat)
    maps = _maps(test, voxels.mask)
    labels = atlas.labels_in(None)[:: voxels.step, :: voxels.step, :: voxels.step]
    groups = {number: name for name, numbers in atlas.regions.groups.items() for number in numbers}
    clusters = cluster_table(maps["t"], maps["tThresholded"] != 0, voxels.grid, labels, groups)
    back = np.linalg.inv(voxels.grid.affine)
    for column, statistic in (("p_fwe", "oneMinusPFwe"), ("p_fwe_tfce", "oneMinusPTfce")):
        places = (clusters[["x_mm", "y_mm", "z_mm"]].to_numpy(float) @ back[:3, :3].T + back[:3, 3]).round().astype(int)
        clusters[column] = 1 - maps[statistic][tuple(places.T)]
    return row, clusters, maps


def _maps(test: VoxelTest, mask: Flags) -> dict[str, Floats]:
    values = {"t": test.t, "tThresholded": np.where(test.p_fwe_tfce < CLEAR, test.t, 0.0)}
    values |= {"oneMinusPFwe": 1 - test.p_fwe, "oneMinusPTfce": 1 - test.p_fwe_tfce}
    maps = {name: np.zeros(mask.shape) for name in values}
    for name, map_values in values.items():
        maps[name][mask] = map_values
    return maps


def _facts(inputs: StatisticsInputs, source: str, name: str, test: Mapping[str, Any]) -> dict[str, Any]:
    cohort = inputs.config.cohort
    return {
        "Description": f"{STATISTICS[name]} ({cohort.positive} less {cohort.negative}); {source}",
        "NumberOfParticipants": [test["n_positive"], test["n_negative"]],
        "NumberOfPermutations": test["n_permutations"],
        "SmoothingFwhmMm": test["fwhm_mm"],
        "Covariates": test["covariates"],
    }


def _remove(layout: RunLayout, written: Sequence[Path]) -> None:
    """Remove tables and maps that this state of the run does not have."""
    tables = [path for table in VOXELWISE_TABLES for path in table.files(layout)]
    for path in (*tables, *layout.voxel_map("any", "t").parent.glob("*_statmap.*")):
        if path not in written:
            path.unlink(missing_ok=True)
