"""The unit of work of one scan: register it, or copy it if it is in template space, and write its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatlas.atlases.spaces import write_template_image
from heatlas.atlases.templates import configured_template
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.registration.ants_transform import AFFINE_TORCH, engine_of
from heatlas.pipeline.registration.entry_points import place_beside, place_in_template, placed_brain
from heatlas.pipeline.registration.images.brain_extraction import mask_path, sidecar_of
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.registration.quality.measures import mutual_information
from heatlas.pipeline.registration.scan import RegisteredScan, register_image
from heatlas.pipeline.run.config.images import KINDS, T1W, ImageKind, template_name
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.plain_text import shown_as
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.digests import unit_key
from heatlas.pipeline.run.work.jobs import Job
from heatlas.pipeline.run.work.progress import package_versions
from heatlas.pipeline.run.work.seeds import derived_seed

STAGE = "registration"


@dataclass(frozen=True)
class SessionImage:
    """One image of a session."""

    path: Path
    source: str  # its path relative to the input folder; empty where outputs may not name it
    kind: ImageKind

    @property
    def shown(self) -> str:
        return self.source or f"the {self.kind.suffix} image of the session"


def registration_job(work: Work, scan: Scan, template_digest: str) -> Job:
    """Unit of work of one scan, by `register_one` or, for an image in template space, `place_one`.

    The seed of the scan is derived from that of the registration and the name of the scan.
    """
    input_root, digests, files = work.input_root, work.digests, work.files(scan)
    config = work.config.registration
    if scan.entry != "template" and engine_of(config.transform) == AFFINE_TORCH:  # the key names what registers here
        config = dataclasses.replace(config, transform=AFFINE_TORCH)
    source, kind = scan.image or "", KINDS[files.suffix]
    first = SessionImage(input_root / scan.file, source, kind)
    others = [
        SessionImage(input_root / path, path if scan.location is None else "", KINDS[suffix])
        for path, suffix in zip((scan.t1w, *scan.further), (T1W.suffix, *files.further), strict=True)
        if path is not None
    ]
    scan_seed = derived_seed(config.seed, STAGE, files.name)
    inputs = {"image": digests.digest(first.path), "template": template_digest}
    if sidecar_of(first.path).is_file():
        inputs["sidecar"] = digests.digest(sidecar_of(first.path))
    for image in others:
        name, sidecar = image.kind.suffix, sidecar_of(image.path)
        inputs[name] = digests.digest(image.path)
        inputs |= {f"{name}_sidecar": digests.digest(sidecar)} if sidecar.is_file() else {}
    mask = mask_path(input_root, scan, config.mask_pattern)
    if mask.is_file():
        inputs["mask"] = digests.digest(mask)
    if config.brain_extraction == "synthstrip":
        inputs["synthstrip"] = digests.digest(Path(config.synthstrip_model))
    images = [first, *others]
    outputs = {"brain_mask": files.brain_mask, "quality": files.quality}
    for image in images:
        sidecar = files.image_of(image.kind.suffix)
        outputs |= {image.kind.suffix: sidecar, f"{image.kind.suffix}_sidecar": sidecar_of(sidecar)}
    kinds = [image.kind.suffix for image in images]
    key = unit_key(inputs, [source, _what_matters(config), scan_seed, scan.entry, *kinds], register_one)
    if scan.entry == "template":
        return Job(STAGE, files.name, key, outputs, place_one, (tuple(images), config, mask))
    outputs |= {
        "log_jacobian": files.log_jacobian,
        "log_jacobian_sidecar": sidecar_of(files.log_jacobian),
        "affine_transform": files.affine_transform,
        "warp": files.warp,
        "inverse_warp": files.inverse_warp,
        **{f"{name}_rigid": files.rigid_transform_of(name) for name in kinds if name != T1W.suffix},
    }
    entry = scan.entry if kind == T1W else "scan"
    return Job(STAGE, files.name, key, outputs, register_one, (tuple(images), config, scan_seed, entry, mask))


def _what_matters(config: RegistrationConfig) -> RegistrationConfig:
    """The settings that a registration depends on; files enter its key by their digests."""
    return dataclasses.replace(
        config, seed=-1, template="", flagged="keep", hippocampus_source="auto", mask_pattern="", synthstrip_model=""
    )


def register_one(
    outputs: dict[str, Path],
    images: Sequence[SessionImage],
    config: RegistrationConfig,
    seed: int,
    entry: str = "scan",
    mask: Path | None = None,
) -> Mapping[str, Any]:
    """Job: register the images of a session and write their files; gives its row of ``registration.tsv``.

    One of them is T1-weighted, and all others are registered through it. `mask` may exist or not.
    """
    prefix, template = outputs["brain_mask"].with_name("ants_"), configured_template(config)
    anatomy = next(image for image in images if image.kind == T1W)
    others = [image for image in images if image is not anatomy]
    with ExitStack() as shown:
        for image in images:
            shown.enter_context(shown_as(image.path, image.shown))
        to_carry = [(image.path, image.kind) for image in others]
        result = register_image(anatomy.path, template, config, seed, prefix, entry, mask, to_carry)
    sidecar = _sidecar(result, anatomy.source, config, seed)
    write_template_image(outputs[T1W.suffix], result.t1w, result.grid)
    write_json(outputs[f"{T1W.suffix}_sidecar"], sidecar)
    for image, carried in zip(others, result.carried, strict=True):
        name = image.kind.suffix
        write_template_image(outputs[name], carried.values, result.grid)
        differences = {
            "Orientation": carried.orientation,
            "Sources": _sources(image.source, anatomy.source),
            "BiasFieldCorrection": "N4" if config.bias_correction and image.kind.uneven else "none",
            "Registration": "rigid map to the T1-weighted image of the session (mutual information), then the "
            f"transform of that image: {config.transform}",
        }
        write_json(outputs[f"{name}_sidecar"], sidecar | differences)
        carried.rigid.replace(outputs[f"{name}_rigid"])
    write_template_image(outputs["brain_mask"], result.brain_mask, result.grid)
    write_template_image(outputs["log_jacobian"], result.log_jacobian, result.grid)
    result.transforms.affine.replace(outputs["affine_transform"])
    result.transforms.warp.replace(outputs["warp"])
    result.transforms.inverse_warp.replace(outputs["inverse_warp"])
    about = {
        "Description": "Natural logarithm of the Jacobian determinant of the whole map from template to scan, affine "
        "part included; > 0 where the scan is larger than the template.",
    }
    write_json(outputs["log_jacobian_sidecar"], about | _placed_facts(config, anatomy.source))
    numbers = {
        "brain_extraction": result.brain.source,
        "brain_mm3": round(result.brain.litres * 1e6, 1),
        "orientation": result.orientation if images[0] is anatomy else result.carried[0].orientation,
        **result.quality,
    }
    write_json(outputs["quality"], numbers)
    return numbers


def place_one(
    outputs: dict[str, Path], images: Sequence[SessionImage], config: RegistrationConfig, mask: Path | None = None
) -> Mapping[str, Any]:
    """Job: copy images that came in template space; gives their row of ``registration.tsv``.

    All have one brain mask: that of the first, where no stripped image is 0. There is no transform, so no volume change
    either.
    """
    template, cut = configured_template(config), config.brain_extraction == "template-mask"
    first, *others = images
    with shown_as(first.path, first.shown):
        scan = load_t1w(first.path)
        brain = placed_brain(scan, first.kind, template, config, mask)
        result = place_in_template(scan, brain, template, cut, first.kind)
    placed = [result]
    for image in others:
        with shown_as(image.path, image.shown):
            placed.append(place_beside(load_t1w(image.path), result, template, image.kind))
    inside = np.logical_and.reduce([image.brain_mask for image in placed])
    for image, placed_image in zip(images, placed, strict=True):
        write_template_image(
            outputs[image.kind.suffix], np.where(inside, placed_image.t1w, np.float32(0)), placed_image.grid
        )
        resampling = f"linear, from {placed_image.source_grid}" if placed_image.resampled else "none"
        facts = {
            "BrainExtraction": placed_image.brain.source,
            "Registration": f"none here: the image was given in the space of {template_name(config.template)}",
            "Interpolation": resampling,
        }
        write_json(outputs[f"{image.kind.suffix}_sidecar"], _placed_facts(config, image.source) | facts)
    write_template_image(outputs["brain_mask"], inside, result.grid)
    alike = [mutual_information(image.t1w[inside], result.t1w[inside]) for image in placed[1:]]
    numbers = {
        "brain_extraction": result.brain.source,
        "orientation": scan.orientation,
        "correlation": result.correlation,
        "dice": result.dice,
        "outside_share": result.outside_share,
        **({"t1w_mutual_information": min(alike)} if alike else {}),
    }
    write_json(outputs["quality"], numbers)
    return numbers


def _sources(*paths: str) -> list[str]:
    """Images of the input as BIDS names them; one that outputs may not name is left out."""
    return [f"bids:raw:{path}" for path in paths if path]


def _placed_facts(config: RegistrationConfig, source: str) -> dict[str, Any]:
    """What BIDS sidecars of all images in template space say."""
    return {
        "Sources": _sources(source),
        "SkullStripped": True,
        "Resolution": f"{config.resolution_mm:g} mm isotropic, grid of {template_name(config.template)}",
    }


def _sidecar(result: RegisteredScan, source: str, config: RegistrationConfig, seed: int) -> dict[str, Any]:
    versions = package_versions()  # deepbet may be absent: stripped images do not need it
    by = {"torch" if config.transform == AFFINE_TORCH else "antspyx", *(["antspyx"] * config.bias_correction)}
    return {
        **_placed_facts(config, source),
        "BrainExtraction": result.brain.source,
        "BiasFieldCorrection": "N4" if config.bias_correction else "none",
        "Orientation": result.orientation,
        "Registration": config.transform,
        "Interpolation": "linear",
        "RandomSeed": seed,
        "PackageVersions": {name: versions[name] for name in (*sorted(by), "deepbet", "nibabel")},
    }
