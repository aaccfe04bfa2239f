"""Removal of faces from heads converted from DICOM.

A run keeps the NIfTI images that it makes from DICOM series, and a face can be reconstructed from a head. If faces are
to be removed, the brain is found right after conversion, and voxels farther than `MARGIN_MM` from it are set to 0
before the image reaches the run folder. The brain mask is kept, so that registration uses the same brain without the
head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import scipy.ndimage

from heatlas.pipeline.cohort.images.conversion import convert_one
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.images.brain_extraction import BRAIN_LITRES, find_brain, mask_path
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.plain_text import shown_as
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job

MARGIN_MM = 10.0
"""Registration uses voxels up to this distance from the brain. Skin, nose, mouth and most of the eyes are farther."""


def without_face(
    job: Job, scan: Scan, files: ScanFiles, input_root: Path, config: RegistrationConfig, digests: DigestCache
) -> Job:
    """Replace the conversion of a series (`pipeline.cohort.images.conversion`) by one that removes the face."""
    mask = mask_path(input_root, scan, config.mask_pattern)
    method = "none" if scan.entry == "brain" else config.brain_extraction
    inputs = {"conversion": job.key}
    if mask.is_file():
        inputs["mask"] = digests.digest(mask)
    if config.brain_extraction == "synthstrip":
        inputs["synthstrip"] = digests.digest(Path(config.synthstrip_model))
    return dataclasses.replace(
        job,
        key=unit_key(inputs, [method, MARGIN_MM], convert_without_face),
        outputs={**job.outputs, "brain_mask": files.converted_brain},
        function=convert_without_face,
        arguments=(*job.arguments, method, mask, config.synthstrip_model),
    )


def convert_without_face(
    outputs: dict[str, Path],
    root: Path,
    file: str,
    source: str,
    max_voxel_mm: float,
    method: str,
    mask: Path,
    model: str,
) -> Mapping[str, Any]:
    """Job: convert one series and keep only voxels near its brain; nothing is kept if no brain is found.

    `outputs` are image, sidecar and brain_mask; `mask` may exist or not, and `model` (SynthStrip's weights) may be
    empty.
    """
    result = convert_one(outputs, root, file, source, max_voxel_mm)
    path = outputs["image"]
    with shown_as(path, source):
        head = load_t1w(path)
        brain = find_brain(head, method, mask, Path(model) if model else None)
        if brain.litres > BRAIN_LITRES[1]:
            raise BadInputError(
                f"{path}: the brain found in it is too large ({brain.litres:.2f} litres), so the face is not removed. "
                'Choose another registration.brain_extraction, or set privacy.faces to "keep".'
            )
    sides = np.linalg.norm(head.affine[:3, :3], axis=0)
    image: Any = nib.load(path)
    stored = np.asanyarray(image.dataobj).copy()
    stored[~voxels_near(brain.mask, sides, MARGIN_MM).reshape(stored.shape)] = 0
    nib.Nifti1Image(stored, image.affine, image.header).to_filename(path)  # type: ignore[no-untyped-call]
    voxels: Any = nib.Nifti1Image(brain.mask.astype(np.uint8), head.affine)  # type: ignore[no-untyped-call]
    voxels.to_filename(outputs["brain_mask"])
    sidecar = read_json(outputs["sidecar"], "Run registration again.")
    sidecar["SkullStripped"] = brain.source == "stripped"
    sidecar["FaceRemoved"] = f"voxels farther than {MARGIN_MM:g} mm from the brain ({brain.source}) are 0"
    write_json(outputs["sidecar"], sidecar)
    return {**result, "face": "removed"}


def voxels_near(mask: np.ndarray, sides_mm: np.ndarray, distance_mm: float) -> np.ndarray:
    """Voxels of a mask (I, J, K), and those within a distance of it, for voxels of these sides."""
    return np.asarray(scipy.ndimage.distance_transform_edt(~mask, sampling=sides_mm) <= distance_mm)
