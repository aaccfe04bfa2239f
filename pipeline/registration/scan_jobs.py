"""The unit of work of one scan: register it, or copy it if it is in template space, and write its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heatlas.atlases.images import write_template_image
from heatlas.atlases.templates import configured_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.entry_points import PlacedScan, place_in_template
from heatlas.pipeline.registration.images.brain_extraction import find_brain, sidecar_of
from heatlas.pipeline.registration.images.given_masks import mask_path
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.scan import RegisteredScan, register_image
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.layout.private_paths import shown_as
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.template_name import template_name
from heatlas.pipeline.run.work.digests import DigestCache, unit_key
from heatlas.pipeline.run.work.jobs import Job
from heatlas.pipeline.run.work.provenance import package_versions
from heatlas.pipeline.run.work.seeds import derived_seed

STAGE = "registration"


def registration_job(
    layout: RunLayout,
    input_root: Path,
    scan: Scan,
    config: RegistrationConfig,
    seed: int,
    digests: DigestCache,
    template_digest: str,
) -> Job:
    """Unit of work of one scan, by `register_one` or, for an image in template space, `place_one`."""
    files = layout.scan(scan.participant_id, scan.session_id, config.resolution_mm)
    source = scan.image or ""
    image = input_root / scan.file
    scan_seed = derived_seed(seed, STAGE, files.name)
    inputs = {"image": digests.digest(image), "template": template_digest}
    if sidecar_of(image).is_file():
        inputs["sidecar"] = digests.digest(sidecar_of(image))
    mask = mask_path(input_root, scan, config.mask_pattern)
    if mask.is_file():
        inputs["mask"] = digests.digest(mask)
    if config.brain_extraction == "synthstrip":
        inputs["synthstrip"] = digests.digest(Path(config.synthstrip_model))
    outputs = {
        "t1w": files.t1w,
        "t1w_sidecar": sidecar_of(files.t1w),
        "brain_mask": files.brain_mask,
        "log_jacobian": files.log_jacobian,
        "log_jacobian_sidecar": sidecar_of(files.log_jacobian),
        "affine_transform": files.affine_transform,
        "warp": files.warp,
        "inverse_warp": files.inverse_warp,
        "quality": files.quality,
    }
    key = unit_key(inputs, [source, _what_matters(config), scan_seed, scan.entry], register_one)
    if scan.entry == "template":
        placed = {name: outputs[name] for name in ("t1w", "t1w_sidecar", "brain_mask", "quality")}
        return Job(STAGE, files.name, key, placed, place_one, (image, source, config, mask))
    return Job(STAGE, files.name, key, outputs, register_one, (image, source, config, scan_seed, scan.entry, mask))


def _what_matters(config: RegistrationConfig) -> RegistrationConfig:
    """The settings that a registration depends on; files enter its key by their digests."""
    return dataclasses.replace(
        config, seed=-1, template="", flagged="keep", hippocampus_source="auto", mask_pattern="", synthstrip_model=""
    )


def register_one(
    outputs: dict[str, Path],
    image: Path,
    source: str,
    config: RegistrationConfig,
    seed: int,
    entry: str = "scan",
    mask: Path | None = None,
) -> Mapping[str, Any]:
    """Job: register one scan and write its files; gives its row of ``registration.tsv``.

    `source` is the path of the scan relative to the input folder, for the sidecar; `mask` may exist or not.
    """
    prefix = outputs["t1w"].with_name("ants_")
    with shown_as(image, source):
        result = register_image(image, configured_template(config), config, seed, prefix, entry, mask)
    write_template_image(outputs["t1w"], result.t1w, result.grid)
    write_template_image(outputs["brain_mask"], result.brain_mask, result.grid)
    write_template_image(outputs["log_jacobian"], result.log_jacobian, result.grid)
    result.transforms.affine.replace(outputs["affine_transform"])
    result.transforms.warp.replace(outputs["warp"])
    result.transforms.inverse_warp.replace(outputs["inverse_warp"])
    write_json(outputs["t1w_sidecar"], _sidecar(result, source, config, seed))
    write_json(outputs["log_jacobian_sidecar"], _jacobian_sidecar(source, config))
    numbers = {
        "brain_extraction": result.brain.source,
        "brain_mm3": round(result.brain.litres * 1e6, 1),
        "orientation": result.orientation,
        **result.quality,
    }
    write_json(outputs["quality"], numbers)
    return numbers


def place_one(
    outputs: dict[str, Path], image: Path, source: str, config: RegistrationConfig, mask: Path | None = None
) -> Mapping[str, Any]:
    """Job: copy a scan that came in template space; gives its row of ``registration.tsv``.

    There is no transform, so no volume change either.
    """
    model = Path(config.synthstrip_model) if config.synthstrip_model else None
    with shown_as(image, source):
        scan = load_t1w(image)
        brain = find_brain(scan, config.brain_extraction, mask, model)
        result = place_in_template(scan, brain, configured_template(config), config.brain_extraction == "template-mask")
    write_template_image(outputs["t1w"], result.t1w, result.grid)
    write_template_image(outputs["brain_mask"], result.brain_mask, result.grid)
    write_json(outputs["t1w_sidecar"], _placed_sidecar(result, source, config))
    numbers = {
        "brain_extraction": result.brain.source,
        "orientation": scan.orientation,
        "correlation": result.correlation,
        "dice": result.dice,
        "outside_share": result.outside_share,
    }
    write_json(outputs["quality"], numbers)
    return numbers


def _sidecar(result: RegisteredScan, source: str, config: RegistrationConfig, seed: int) -> dict[str, Any]:
    """BIDS sidecar of the image in template space."""
    versions = package_versions()  # deepbet may be absent: stripped images do not need it
    return {
        "Sources": [f"bids:raw:{source}"],
        "SkullStripped": True,
        "Resolution": f"{config.resolution_mm:g} mm isotropic, grid of {template_name(config.template)}",
        "BrainExtraction": result.brain.source,
        "BiasFieldCorrection": "N4" if config.bias_correction else "none",
        "Orientation": result.orientation,
        "Registration": config.transform,
        "Interpolation": "linear",
        "RandomSeed": seed,
        "PackageVersions": {name: versions[name] for name in ("antspyx", "deepbet", "nibabel")},
    }


def _placed_sidecar(result: PlacedScan, source: str, config: RegistrationConfig) -> dict[str, Any]:
    return {
        "Sources": [f"bids:raw:{source}"],
        "SkullStripped": True,
        "Resolution": f"{config.resolution_mm:g} mm isotropic, grid of {template_name(config.template)}",
        "BrainExtraction": result.brain.source,
        "Registration": f"none here: the image was given in the space of {template_name(config.template)}",
        "Interpolation": f"linear, from {result.source_grid}" if result.resampled else "none",
    }


def _jacobian_sidecar(source: str, config: RegistrationConfig) -> dict[str, Any]:
    return {
        "Description": "Natural logarithm of the Jacobian determinant of the whole map from template to scan, affine "
        "part included; > 0 where the scan is larger than the template.",
        "Sources": [f"bids:raw:{source}"],
        "SkullStripped": True,
        "Resolution": f"{config.resolution_mm:g} mm isotropic, grid of {template_name(config.template)}",
    }
