"""Values of all scans as arrays: relevance, and what images hold without any network; with the text of a note.

Over scans explained by one network, sum, density and gain of a region differ only by a factor, so they have the same
correlations and t. The share of the map measures where relevance lies, whatever its amount. Mean intensity and local
volume change of each region come from the images: the one step of the statistics that reads images of scans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.atlases.regions import RegionTable
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, read_network_volume
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.declared import TEXTS, Form, Table, declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.jobs import run_step
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices
from heatlas.pipeline.training.baselines.images import standardised

OUTCOMES = ("TP", "FP", "TN", "FN")


@dataclass(frozen=True, eq=False)
class RelevanceValues:
    """Region relevance of all scans, one row of `scans` (its prediction) each.

    `sums`, `densities`, `gains`: (scans, maps, groups), NaN where missing. `evidence`: maps that are evidence relative
    to controls, so that their sums are in logits.
    """

    scans: pd.DataFrame
    maps: tuple[str, ...]
    groups: tuple[str, ...]
    sums: Floats
    densities: Floats
    gains: Floats
    evidence: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, relevance: pd.DataFrame, predictions: pd.DataFrame, predicted_in: str = "predictions.tsv"
    ) -> RelevanceValues:
        """Arrays of ``relevance_bilateral.tsv`` (or ``relevance_applied_bilateral.tsv``).

        BadInputError if a scan has no prediction, or a scan, map and group have two rows.
        """
        relevance_in = predicted_in.replace("predictions", "relevance").replace(".tsv", "_bilateral.tsv")
        for table, keys, frame in (
            (relevance_in, ["scan_id", "map", "group"], relevance),
            (predicted_in, ["scan_id"], predictions),
        ):
            repeated = frame["scan_id"][frame.duplicated(keys)]
            if len(repeated):
                raise BadInputError(f"{table}: scan {repeated.iloc[0]} is listed twice. Run its stage again.")
        scan, scan_ids = pd.factorize(relevance["scan_id"])
        map_, maps = pd.factorize(relevance["map"])
        group, groups = pd.factorize(relevance["group"])
        lacking = sorted(set(scan_ids) - set(predictions["scan_id"]))
        if lacking:
            raise BadInputError(f"{predicted_in}: scan {lacking[0]} of {relevance_in} has no row. Run training again.")

        def spread(column: str) -> Floats:
            values = np.full((len(scan_ids), len(maps), len(groups)), np.nan)
            values[scan, map_, group] = relevance[column].to_numpy(float)
            return values

        scans = predictions.set_index("scan_id").loc[list(scan_ids)].reset_index()
        signed = set(relevance.loc[relevance["evidence"].notna(), "map"]) if "evidence" in relevance else set()
        evidence = tuple(name for name in maps if name in signed)
        return cls(scans, tuple(maps), tuple(groups), spread("sum"), spread("density"), spread("gain"), evidence)

    def above(self, more: RelevanceValues) -> RelevanceValues:
        """These scans followed by others, in the maps and groups of these; NaN where the others lack one."""
        maps, groups = (
            pd.Index(more.maps).get_indexer(pd.Index(self.maps)),
            pd.Index(more.groups).get_indexer(pd.Index(self.groups)),
        )
        absent = (maps[:, None] < 0) | (groups < 0)

        def both(ours: Floats, theirs: Floats) -> Floats:
            return np.concatenate([ours, np.where(absent, np.nan, theirs[:, maps][:, :, groups])])

        scans = pd.concat([self.scans, more.scans], ignore_index=True)
        sums, densities, gains = (
            both(getattr(self, name), getattr(more, name)) for name in ("sums", "densities", "gains")
        )
        return RelevanceValues(scans, self.maps, self.groups, sums, densities, gains, self.evidence)

    def members(self, scan_group: str, negative: str, positive: str) -> Flags:
        """Mask of the scans of a class (by label) or outcome (TP, FP, TN, FN)."""
        if scan_group in OUTCOMES:
            belongs = self.scans["outcome"] == scan_group
        else:
            belongs = self.scans["target"] == {negative: 0, positive: 1}[scan_group]
        return belongs.to_numpy(bool)


def participant_codes(participants: Sequence[str]) -> tuple[Indices, list[str]]:
    """Integer code of each row's participant, and the participants in order of appearance."""
    codes, names = pd.factorize(pd.Series(participants, dtype=object))
    return codes.astype(np.intp), [str(name) for name in names]


def participant_means(values: Floats, codes: Indices) -> Floats:
    """Mean of values (rows, ...) over each participant's rows (codes 0..P-1), without NaN rows; NaN if there are none.

    >>> participant_means(np.array([1.0, 3.0, 10.0]), np.array([0, 0, 1])).tolist()
    [2.0, 10.0]
    """
    n_participants = int(codes.max()) + 1 if len(codes) else 0
    sums = np.zeros((n_participants, *values.shape[1:]))
    counts = np.zeros_like(sums)
    present = ~np.isnan(values)
    np.add.at(sums, codes, np.where(present, values, 0.0))
    np.add.at(counts, codes, present.astype(float))
    means = np.full_like(sums, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


METRIC_MEANINGS: Mapping[str, str] = {
    "density": "relevance per voxel",
    "sum": "relevance of the region",
    "gain": "sum relative to the mean sum of the negative class in the same test fold",
    "share": "sum divided by the sum of all regions' absolute sums in the scan's map",
}


@dataclass(frozen=True, eq=False)
class RelevanceColumns:
    """Columns of relevance (scans, columns), NaN where missing, and the ``map``, ``group``, ``metric`` of each."""

    table: pd.DataFrame
    values: Floats

    @classmethod
    def of(cls, values: RelevanceValues, metrics: Sequence[str]) -> RelevanceColumns:
        """Columns ordered by metric, then by map; BadInputError for an unknown metric."""
        unknown = [name for name in metrics if name not in METRIC_MEANINGS]
        if unknown:
            raise BadInputError(f"metric {unknown[0]} is unknown. Available: {', '.join(METRIC_MEANINGS)}.")
        arrays = {"density": values.densities, "sum": values.sums, "gain": values.gains, "share": shares(values.sums)}
        names = [(m, group, metric) for metric in metrics for m in values.maps for group in values.groups]
        table = pd.DataFrame(names, columns=["map", "group", "metric"])
        columns = [
            arrays[metric].reshape(len(values.scans), len(values.maps) * len(values.groups)) for metric in metrics
        ]
        return cls(table, np.concatenate(columns, axis=1))


def kinds_of(columns: pd.DataFrame) -> list[str]:
    """What has a scale of its own in each network, one per column: its map and metric."""
    return (columns["map"].astype(str) + " " + columns["metric"].astype(str)).tolist()


def with_shares(relevance: pd.DataFrame) -> pd.DataFrame:
    """Add ``share`` (see `shares`) to a table of all groups of each scan and map; NaN for groups without a voxel.

    >>> table = pd.DataFrame({"scan_id": "s", "map": "gb", "sum": [3.0, -1.0, 0.0], "n_voxels": [9, 9, 0]})
    >>> with_shares(table)["share"].tolist()
    [0.75, -0.25, nan]
    """
    total = map_totals(relevance)
    return relevance.assign(share=(relevance["sum"] / total).where((total > 0) & (relevance["n_voxels"] > 0)))


def map_totals(relevance: pd.DataFrame) -> pd.Series:
    """Denominator of the shares: the sum over groups of absolute sums of a scan's map, on each of its rows."""
    return relevance["sum"].abs().groupby([relevance["scan_id"], relevance["map"]]).transform("sum")


def shares(sums: Floats) -> Floats:
    """Share of each region in a map: its sum divided by the sum of all regions' absolute sums; signed, from -1 to 1.

    Absolute, since positive and negative relevance would cancel for beta > 0. `sums` (..., groups): NaN without a
    voxel.

    >>> shares(np.array([3.0, -1.0, np.nan])).tolist()
    [0.75, -0.25, nan]
    """
    total = np.nansum(np.abs(sums), axis=-1, keepdims=True)
    result: Floats = np.divide(sums, total, out=np.full(sums.shape, np.nan), where=total > 0)
    return result


INTENSITY, LOG_JACOBIAN = "intensity", "log_jacobian"
MEASURES = (INTENSITY, LOG_JACOBIAN)
"""What is measured in an image, as columns of the table and codes of others."""
NO_CHANGE = 1e-6
"""Standard deviation of a log-Jacobian below which the registration was affine."""

IMAGE_REGIONS_TABLE = declared("image_regions", __file__)


def measure_images(work: Work, scans: Sequence[Scan], atlas: PackedAtlas) -> bool:
    """Write ``group/image_regions.tsv``, a row per registered scan and bilateral group; whether anything was done."""
    spec = configured_input(work.config)
    files = [work.files(scan) for scan in scans]

    def write() -> list[Path]:
        n = len(scans)
        measured = work.executor.map(of_scan, files, [spec] * n, [atlas] * n)
        tables = [
            table.assign(participant_id=scan.participant_id, session_id=scan.session_id, scan_id=scan.scan_id)
            for scan, table in zip(scans, measured, strict=True)
        ]
        return [IMAGE_REGIONS_TABLE.write(work.layout, stacked(IMAGE_REGIONS_TABLE, tables))]

    read = [path for scan in files for path in (scan.image, scan.brain_mask, scan.log_jacobian)]
    parameters = [atlas.version, spec.box, spec.normalisation, [scan.scan_id for scan in scans]]
    return run_step(work.layout, "image-regions", read, parameters, [of_scan], write, work.digests)


def of_scan(files: ScanFiles, spec: NetworkInput, atlas: PackedAtlas) -> pd.DataFrame:
    """The measures of one scan, a row per bilateral group."""
    labels = atlas.labels_in(spec.box)
    intensity, counts = group_means(standardised(read_network_volume(files, spec)), labels, atlas.regions)
    change = volume_change(files, spec)
    jacobian = np.full(len(counts), np.nan) if change is None else group_means(change, labels, atlas.regions)[0]
    return pd.DataFrame(
        {"group": list(atlas.regions.groups), "n_voxels": counts, INTENSITY: intensity, LOG_JACOBIAN: jacobian}
    )


def volume_change(files: ScanFiles, spec: NetworkInput) -> NDArray[np.float32] | None:
    """Log-Jacobian in the part that the network sees, less its mean over the brain; None without one of a warp."""
    if not files.log_jacobian.is_file():
        return None
    try:
        volume, brain = (
            np.asarray(nib.nifti1.Nifti1Image.from_filename(path).dataobj)
            for path in (files.log_jacobian, files.brain_mask)
        )
    except (OSError, EOFError, ValueError, nib.filebasedimages.ImageFileError) as error:
        raise BadInputError(f"{files.log_jacobian}: cannot be read ({error}); run the registration again.") from error
    seen = volume if spec.box is None else spec.box.crop(volume)
    inside = seen[(brain if spec.box is None else spec.box.crop(brain)) > 0].astype(np.float64)
    if not inside.size or inside.std() < NO_CHANGE:
        return None
    return np.asarray(seen - inside.mean(), np.float32)


def group_means(volume: NDArray[np.float32], labels: NDArray[np.int64], regions: RegionTable) -> tuple[Floats, Indices]:
    """Mean over each bilateral group, in order, NaN for one without a voxel; and its voxels."""
    size = max(*regions.numbers, int(labels.max())) + 1
    counts = np.bincount(labels.ravel(), minlength=size)
    sums = np.bincount(labels.ravel(), volume.ravel().astype(np.float64), minlength=size)
    n = np.array([counts[list(numbers)].sum() for numbers in regions.groups.values()], dtype=np.intp)
    total = np.array([sums[list(numbers)].sum() for numbers in regions.groups.values()])
    return np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0), n


def numbers_of(table: Table) -> list[str]:
    """Columns of a table that hold neither text nor a count or flag."""
    others = (*TEXTS, Form.COUNT, Form.FLAG)
    return [name for name, column in table.columns.items() if column.form not in others]


def untested(table: Table, **known: object) -> pd.DataFrame:
    """One row of a table where nothing could be tested: no number, nobody tested, no interval, no family, but `known`.

    >>> table = Table("made", {"variable": "", "estimate": "", "n_scans": "", "exact": "", "interval": ""}, "row", "")
    >>> untested(table, variable="age").iloc[0].to_dict()
    {'variable': 'age', 'estimate': nan, 'n_scans': 0, 'exact': False, 'interval': 'none'}
    """
    row: dict[str, object] = dict.fromkeys(table.meanings)
    row |= dict.fromkeys(numbers_of(table), np.nan)
    for name, column in table.columns.items():
        if column.form is Form.FLAG:
            row[name] = False
        elif name in ("n_participants", "n_scans", "n_permutations"):
            row[name] = 0
        elif name == "family" or name.endswith("interval"):
            row[name] = "none"
    return pd.DataFrame([row | known])


def stacked(table: Table, blocks: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Blocks of rows below each other, with the columns of a table in order; no rows without a block."""
    return (pd.concat(blocks, ignore_index=True) if blocks else table.frame())[list(table.meanings)]


def family_of(p: Floats | pd.Series, tests: str) -> str:
    """Name of a family: how many tests of these have a p; ``none`` without one."""
    n_tests = int(np.isfinite(np.asarray(p, float)).sum())
    return f"{n_tests} {tests}" if n_tests else "none"


def joined(*parts: object) -> str | None:
    """Join remarks by semicolons, without None, NaN and repetitions; None if there are none.

    >>> joined("two scans left out", None, float("nan"), "one site")
    'two scans left out; one site'
    >>> joined(None) is None
    True
    """
    return "; ".join(dict.fromkeys(part for part in parts if isinstance(part, str) and part)) or None
