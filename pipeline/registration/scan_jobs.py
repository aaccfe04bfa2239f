"""The unit of work of one scan: register it, or copy it if it is in template space, and write its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatlas.atlases.images import write_template_image
from heatlas.atlases.templates import configured_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.entry_points import PlacedScan, place_in_template, placed_brain
from heatlas.pipeline.registration.images.brain_extraction import sidecar_of
from heatlas.pipeline.registration.images.given_masks import mask_path
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.scan import RegisteredScan, register_image
from heatlas.pipeline.run.config.image_kinds import KINDS, T1W, ImageKind
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
    kind = KINDS[files.suffix]
    source = scan.image or ""
    image, t1w = input_root / scan.file, input_root / scan.t1w if scan.t1w else None
    scan_seed = derived_seed(seed, STAGE, files.name)
    inputs = {"image": digests.digest(image), "template": template_digest}
    if sidecar_of(image).is_file():
        inputs["sidecar"] = digests.digest(sidecar_of(image))
    if t1w is not None:
        inputs["t1w"] = digests.digest(t1w)
        inputs |= {"t1w_sidecar": digests.digest(sidecar_of(t1w))} if sidecar_of(t1w).is_file() else {}
    mask = mask_path(input_root, scan, config.mask_pattern)
    if mask.is_file():
        inputs["mask"] = digests.digest(mask)
    if config.brain_extraction == "synthstrip":
        inputs["synthstrip"] = digests.digest(Path(config.synthstrip_model))
    outputs = {
        "image": files.image,
        "sidecar": sidecar_of(files.image),
        "brain_mask": files.brain_mask,
        "log_jacobian": files.log_jacobian,
        "log_jacobian_sidecar": sidecar_of(files.log_jacobian),
        "affine_transform": files.affine_transform,
        "warp": files.warp,
        "inverse_warp": files.inverse_warp,
        "quality": files.quality,
    }
    key = unit_key(inputs, [source, _what_matters(config), scan_seed, scan.entry, kind.suffix], register_one)
    if scan.entry == "template":
        placed = {name: outputs[name] for name in ("image", "sidecar", "brain_mask", "quality")}
        return Job(STAGE, files.name, key, placed, place_one, (image, source, config, mask, kind.suffix))
    through = None
    if t1w is not None:
        through = Through(t1w, scan.t1w or "" if scan.location is None else "", kind)
        outputs |= {"t1w": files.t1w, "t1w_sidecar": sidecar_of(files.t1w), "rigid_transform": files.rigid_transform}
    arguments = (image, source, config, scan_seed, scan.entry, mask, through)
    return Job(STAGE, files.name, key, outputs, register_one, arguments)


@dataclass(frozen=True)
class Through:
    """The T1-weighted image that an image of another kind is registered through."""

    t1w: Path
    source: str  # its path relative to the input folder; empty where outputs may not name it
    kind: ImageKind  # of the other image

    @property
    def shown(self) -> str:
        """What messages call it."""
        return self.source or "the T1w image of the session"


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
    through: Through | None = None,
) -> Mapping[str, Any]:
    """Job: register one scan and write its files; gives its row of ``registration.tsv``.

    `source` is the path of the scan relative to the input folder, for the sidecar; `mask` may exist or not. With
    `through` the scan is registered through a T1-weighted image, which is written too.
    """
    prefix, template = outputs["image"].with_name("ants_"), configured_template(config)
    own: dict[str, Any] = {}
    if through is None:
        with shown_as(image, source):
            result = register_image(image, template, config, seed, prefix, entry, mask)
    else:
        with shown_as(image, source), shown_as(through.t1w, through.shown):
            other = (image, through.kind)
            result = register_image(through.t1w, template, config, seed, prefix, mask_path=mask, other=other)
        own = _through_sidecar(through, source, config)
        write_template_image(outputs["t1w"], result.t1w, result.grid)
        write_json(outputs["t1w_sidecar"], _sidecar(result, through.source, config, seed))
    values = result.t1w
    if result.carried is not None:
        values = result.carried.values
        result.carried.rigid.replace(outputs["rigid_transform"])
    write_template_image(outputs["image"], values, result.grid)
    write_template_image(outputs["brain_mask"], result.brain_mask, result.grid)
    write_template_image(outputs["log_jacobian"], result.log_jacobian, result.grid)
    result.transforms.affine.replace(outputs["affine_transform"])
    result.transforms.warp.replace(outputs["warp"])
    result.transforms.inverse_warp.replace(outputs["inverse_warp"])
    write_json(outputs["sidecar"], _sidecar(result, source, config, seed) | own)
    write_json(
        outputs["log_jacobian_sidecar"], _jacobian_sidecar(source if through is None else through.source, config)
    )
    numbers = {
        "brain_extraction": result.brain.source,
        "brain_mm3": round(result.brain.litres * 1e6, 1),
        "orientation": result.orientation,
        **result.quality,
    }
    write_json(outputs["quality"], numbers)
    return numbers


def place_one(
    outputs: dict[str, Path],
    image: Path,
    source: str,
    config: RegistrationConfig,
    mask: Path | None = None,
    suffix: str = T1W.suffix,
) -> Mapping[str, Any]:
    """Job: copy a scan that came in template space; gives its row of ``registration.tsv``.

    There is no transform, so no volume change either.
    """
    kind, template = KINDS[suffix], configured_template(config)
    with shown_as(image, source):
        scan = load_t1w(image)
        brain = placed_brain(scan, kind, template, config, mask)
        result = place_in_template(scan, brain, template, config.brain_extraction == "template-mask", kind)
    write_template_image(outputs["image"], result.t1w, result.grid)
    write_template_image(outputs["brain_mask"], result.brain_mask, result.grid)
    write_json(outputs["sidecar"], _placed_sidecar(result, source, config))
    numbers = {
        "brain_extraction": result.brain.source,
        "orientation": scan.orientation,
        "correlation": result.correlation,
        "dice": result.dice,
        "outside_share": result.outside_share,
    }
    write_json(outputs["quality"], numbers)
    return numbers


def _sources(*paths: str) -> list[str]:
    """Images of the input as BIDS names them; one that outputs may not name is left out."""
    return [f"bids:raw:{path}" for path in paths if path]


def _sidecar(result: RegisteredScan, source: str, config: RegistrationConfig, seed: int) -> dict[str, Any]:
    """BIDS sidecar of the image in template space."""
    versions = package_versions()  # deepbet may be absent: stripped images do not need it
    return {
        "Sources": _sources(source),
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


def _through_sidecar(through: Through, source: str, config: RegistrationConfig) -> dict[str, Any]:
    """What differs in the sidecar of an image that was registered through a T1-weighted one."""
    return {
        "Sources": _sources(source, through.source),
        "BiasFieldCorrection": "N4" if config.bias_correction and through.kind.uneven else "none",
        "Registration": "rigid map to the T1-weighted image of the session (mutual information), then the transform of "
        f"that image: {config.transform}",
    }


def _placed_sidecar(result: PlacedScan, source: str, config: RegistrationConfig) -> dict[str, Any]:
    return {
        "Sources": _sources(source),
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
        "Sources": _sources(source),
        "SkullStripped": True,
        "Resolution": f"{config.resolution_mm:g} mm isotropic, grid of {template_name(config.template)}",
    }
