"""What the images of a run hold in each region, without any network: mean intensity, and local volume change.

The one step of the statistics that reads images of scans, so that the tests need only its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.atlases.regions import RegionTable
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, read_network_volume
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.columns import Form, described
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.steps import run_step
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.training.baselines.images import standardised

INTENSITY, LOG_JACOBIAN = "intensity", "log_jacobian"
MEASURES = (INTENSITY, LOG_JACOBIAN)
"""What is measured in an image, as columns of the table and codes of others."""
NO_CHANGE = 1e-6
"""Standard deviation of a log-Jacobian below which the registration was affine."""

COLUMNS = {
    **described("participant_id", "session_id", "scan_id", "group"),
    "n_voxels": "Voxels of the region that the network sees",
    INTENSITY: "Mean over the region of the image that the network sees, less its mean over the brain, in its standard "
    "deviations over the brain",
    LOG_JACOBIAN: "Mean over the region of the natural log of the Jacobian determinant, less its mean over the brain: "
    "above 0 where the scan is larger than the template, the size of the brain left out. n/a after an affine "
    "registration, which changes all regions alike",
}
IMAGE_REGIONS_TABLE = Table(
    "image_regions", COLUMNS, "scan and bilateral group", "What do the images hold in each region?",
    file="group/image_regions.tsv", forms={INTENSITY: Form.VALUE, LOG_JACOBIAN: Form.VALUE}, on_pages=False,
    finite=True, filled=("participant_id", "scan_id", "group", "n_voxels"),
)  # fmt: skip


def measure_images(
    layout: RunLayout, scans: Sequence[Scan], config: Config, atlas: PackedAtlas, executor: Executor,
    digests: DigestCache,
) -> bool:  # fmt: skip
    """Write ``group/image_regions.tsv``, one row per scan and bilateral group.

    BadInputError if a scan cannot be read.

    `scans`: registered, those with heatmaps.

    Gives whether anything was done.
    """
    spec = configured_input(config)
    files = [layout.scan(one.participant_id, one.session_id, config.registration.resolution_mm) for one in scans]

    def write() -> list[Path]:
        n = len(scans)
        found = executor.map(of_scan, files, [spec] * n, [atlas] * n)
        names = ["participant_id", "session_id", "scan_id"]
        tables = [
            table.assign(**{name: getattr(one, name) for name in names})
            for one, table in zip(scans, found, strict=True)
        ]
        rows = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS))
        return [IMAGE_REGIONS_TABLE.write(layout, rows)]

    read = [path for one in files for path in (one.image, one.brain_mask, one.log_jacobian)]
    parameters = [atlas.version, spec.box, spec.normalisation, [one.scan_id for one in scans]]
    return run_step(layout, "image-regions", read, parameters, [of_scan], write, digests)


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
    """Log-Jacobian in the part that the network sees, less its mean over the brain; None without one of a warp.

    BadInputError if the file is there and cannot be read.
    """
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


def group_means(
    volume: NDArray[np.float32], labels: NDArray[np.int64], regions: RegionTable
) -> tuple[Floats, NDArray[np.intp]]:
    """Mean over each bilateral group, NaN for one without a voxel, and its voxels; in the order of the groups."""
    size = max(*regions.numbers, int(labels.max())) + 1
    counts = np.bincount(labels.ravel(), minlength=size)
    sums = np.bincount(labels.ravel(), volume.ravel().astype(np.float64), minlength=size)
    n = np.array([counts[list(numbers)].sum() for numbers in regions.groups.values()], dtype=np.intp)
    total = np.array([sums[list(numbers)].sum() for numbers in regions.groups.values()])
    return np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0), n
