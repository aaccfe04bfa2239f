"""How well manual labels land on the atlas, and how well hippocampi are measured: our registration and plain ANTsPy.

    python benchmarks/label_dice.py ../shared/data/oasis20 WORK            # docs/benchmarks/registration.md

Both get the same scans (skull-stripped, as stored), the same template brain, the same seed and one thread. Plain is
what a user of ANTsPy would write. In place of repeat scans, which this dataset does not have, a scan is turned by 3
degrees, shifted by 2 mm, interpolated and made noisier, and registered again (`--retest N`): what this changes is the
least that a repeat scan would change.

Every registration is a folder in WORK, so a killed run goes on where it was; one made by other code, other settings or
another version of ANTsPy is made again. One person takes some three minutes at 2 mm and six at 1 mm; with
`--minutes N`, no new measurement begins after that time. WORK/people.tsv has a row a person and engine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"

import ants
import nibabel as nib
import numpy as np
import pandas as pd
import scipy.ndimage
from harness import arguments_of
from scipy.spatial.transform import Rotation

from heatlas.atlases.labels import Atlas, load_atlas
from heatlas.atlases.templates import Template, load_template
from heatlas.pipeline.registration.ants_transform import (
    Transforms,
    Volume,
    read_affine,
    read_displacement,
    resample,
    to_ants,
)
from heatlas.pipeline.registration.images.t1w import load_labels, load_t1w
from heatlas.pipeline.registration.scan import jacobian_determinant, log_jacobian, register_image
from heatlas.pipeline.registration.settled import COARSEST_MM
from heatlas.pipeline.registration.volumes import region_volumes, tissue_volumes
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.tables import write_json
from heatlas.pipeline.run.work.digests import code_digest

HIPPOCAMPI, VENTRICLES = (47, 48), (49, 50, 51, 52)
STRUCTURES = {
    "lateral ventricles": (51, 52),
    "inferior lateral ventricles": (49, 50),
    "amygdalae": (31, 32),
    "hippocampi": HIPPOCAMPI,
}
CHOSEN_ON = ("sub-1003", "sub-1004", "sub-1005", "sub-1014", "sub-1128")
"""People on whom the parameters were chosen; they come last, and no mean in the tables counts them."""
CODE = tuple(
    f"heatlas.pipeline.registration.{name}"
    for name in ("ants_transform", "bias_field", "jacobian", "resolution", "scan")
)
"""Code whose change makes registrations stale."""
OURS, PLAIN, RETEST = "ours", "plain", "retest"
PLAIN_CALL = "antsRegistrationSyNQuick[s]"


def main() -> None:
    options = arguments_of(
        __doc__,
        "oasis work",
        oasis={"type": Path, "help": "BIDS dataset with manual labels under derivatives/manual"},
        work={"type": Path, "help": "folder for the result of each person and engine"},
        resolution=([2.0, 1.0], "of the template, mm"),
        retest=(4, "people registered twice where hippocampi are measured"),
        minutes=(float("inf"), "begin nothing after that"),
        seed=43,
    )
    end = time.monotonic() + 60 * options.minutes
    images = in_order(sorted(options.oasis.glob("sub-*/anat/*_T1w.nii.gz")))
    rows = []
    for resolution in options.resolution:
        template = load_template(resolution)
        atlas = load_atlas("neuromorphometrics-cat12", template.grid)
        for engine, image in planned(images, options.retest if resolution <= COARSEST_MM else 0):
            row = measured(engine, image, template, atlas, options, time.monotonic() < end)
            if row:
                rows.append({"resolution": resolution, "engine": engine, "person": person_of(image), **row})
                print(*rows[-1].values(), flush=True)
    if not rows:
        raise SystemExit("label_dice: nothing measured yet. Give it more --minutes.")
    every = pd.DataFrame(rows)
    every.to_csv(options.work / "people.tsv", sep="\t", index=False, float_format="%.4f")
    for resolution, own in every[~every["person"].isin(CHOSEN_ON)].groupby("resolution", sort=False):
        found = {engine: own[own["engine"] == engine].set_index("person") for engine in ENGINES}
        tables = (one.round(4).to_string() for one in (overlap(found), volumes_of(found)))
        print(f"{resolution:g} mm", *tables, again_apart(found), sep="\n\n")


def in_order(images: list[Path]) -> list[Path]:
    """First and last in turn, the young and the old of this dataset; those used to choose parameters at the end."""
    others = [image for image in images if person_of(image) not in CHOSEN_ON]
    half = (len(others) + 1) // 2
    turns = [image for pair in zip_longest(others[:half], others[: half - 1 : -1]) for image in pair if image]
    return turns + [image for image in images if person_of(image) in CHOSEN_ON]


def planned(images: list[Path], retest: int) -> Iterator[tuple[str, Path]]:
    """Measurements in the order in which they are made: a person with both engines, then the repeat of the first."""
    for position, image in enumerate(images):
        yield OURS, image
        yield PLAIN, image
        if position < retest:
            yield RETEST, image


def person_of(image: Path) -> str:
    return image.name.split("_")[0]


def measured(
    engine: str, image: Path, template: Template, atlas: Atlas, options: argparse.Namespace, begin: bool
) -> dict[str, Any] | None:
    """What one engine gives for one person; None if there is no valid registration and none may `begin`."""
    person, resolution = person_of(image), float(template.grid.affine[1, 1])
    settings = {"engine": engine, "resolution_mm": resolution, "seed": options.seed}
    settings["transform"] = PLAIN_CALL if engine == PLAIN else RegistrationConfig().transform
    settings |= {"ants": ants.__version__, "code": code_digest(*CODE)}
    folder = options.work / f"{person}_res-{resolution:g}_{engine}"
    record, prefix = folder / "settings.json", folder / "ants_"
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if known.get("settings") != settings:
        if not begin:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        started = time.process_time()
        images = ENGINES[engine](image, template, options.seed, prefix)
        known = {"settings": settings, "seconds": time.process_time() - started}
        np.savez_compressed(folder / "images.npz", **dict(zip(("change", "t1w"), images, strict=True)))
        write_json(record, known)
    manual = options.oasis / "derivatives/manual" / person / f"anat/{person}_atlas-Neuromorphometrics_dseg.nii.gz"
    labels = Volume(*load_labels(manual))
    with np.load(folder / "images.npz") as stored:
        change, t1w = stored["change"], stored["t1w"]
    reference = np.asarray(atlas.labels)
    warped = resample(labels, files_of(prefix), template.grid.shape, template.grid.affine, "genericLabel")
    dice = dice_per_label(np.rint(warped).astype(np.int32), reference, atlas.regions.numbers)
    voxel = template.grid.voxel_volume_mm3
    tissue = tissue_volumes(change, t1w, reference, HIPPOCAMPI, VENTRICLES, voxel)
    return {
        "all regions": float(np.nanmean(list(dice.values()))),
        **{name: float(np.mean([dice[n] for n in numbers])) for name, numbers in STRUCTURES.items()},
        "tissue_mm3": sum(tissue.values()),
        "whole_mm3": sum(region_volumes(change, reference, HIPPOCAMPI, voxel).values()),
        "manual_mm3": float(np.isin(labels.data, HIPPOCAMPI).sum() * abs(np.linalg.det(labels.affine[:3, :3]))),
        "seconds": known["seconds"],
    }


def files_of(prefix: Path) -> Transforms:
    names = ("0GenericAffine.mat", "1Warp.nii.gz", "1InverseWarp.nii.gz")
    return Transforms(*[prefix.with_name(prefix.name + name) for name in names])


def ours(image: Path, template: Template, seed: int, prefix: Path) -> tuple[np.ndarray, np.ndarray]:
    config = RegistrationConfig(resolution_mm=float(template.grid.affine[1, 1]))
    result = register_image(image, template, config, seed, prefix)
    return result.log_jacobian, result.t1w


def plain(image: Path, template: Template, seed: int, prefix: Path) -> tuple[np.ndarray, np.ndarray]:
    """What a user of ANTsPy would write; the seed has to go through its settings."""
    ants.config.set_ants_deterministic(on=False, seed_value=seed)
    try:
        fixed = to_ants(Volume(template.t1w, template.grid.affine))
        ants.registration(fixed, ants.image_read(str(image)), PLAIN_CALL, outprefix=str(prefix))
    finally:
        ants.config.set_ants_deterministic(on=False, seed_value=None)
    transforms = files_of(prefix)
    determinant = jacobian_determinant(read_displacement(transforms.warp), template.grid.affine)
    scan = load_t1w(image)
    t1w = resample(Volume(scan.data, scan.affine), transforms, template.grid.shape, template.grid.affine)
    return log_jacobian(determinant, read_affine(transforms.affine)[:3, :3]), t1w


def again(image: Path, template: Template, seed: int, prefix: Path) -> tuple[np.ndarray, np.ndarray]:
    """This pipeline on the scan as it might come a second time: turned, shifted, interpolated, noisier."""
    scan = load_t1w(image)
    brain = scan.data > 0
    turn = np.eye(4)
    turn[:3, :3] = Rotation.from_euler("xyz", [3.0, -3.0, 3.0], degrees=True).as_matrix()
    centre = scan.affine @ np.append((np.array(brain.shape) - 1) / 2, 1)
    turn[:3, 3] = centre[:3] - turn[:3, :3] @ centre[:3] + 2.0
    to_voxels = np.linalg.inv(scan.affine) @ turn @ scan.affine
    moved = scipy.ndimage.affine_transform(scan.data, to_voxels[:3, :3], to_voxels[:3, 3], order=1)
    inside = scipy.ndimage.affine_transform(brain, to_voxels[:3, :3], to_voxels[:3, 3], order=0)
    noise = np.random.default_rng(seed).normal(0, 0.02 * float(np.median(scan.data[brain])), moved.shape)
    values = np.where(inside, np.maximum(moved + noise, 1), 0).astype(np.float32)
    path = prefix.with_name("moved_T1w.nii.gz")
    nib.save(nib.Nifti1Image(values, scan.affine), path)
    return ours(path, template, seed + 1, prefix)


Engine = Callable[[Path, Template, int, Path], tuple[np.ndarray, np.ndarray]]
ENGINES: dict[str, Engine] = {OURS: ours, PLAIN: plain, RETEST: again}


def dice_per_label(first: np.ndarray, second: np.ndarray, labels: Iterable[int]) -> dict[int, float]:
    """Dice coefficient 2 |A and B| / (|A| + |B|) of each label (Dice 1945, doi:10.2307/1932409).

    Of whole numbers >= 0 on the same grid; NaN where a label occurs in neither image.

    >>> dice_per_label(np.array([1, 1, 2, 0]), np.array([1, 2, 2, 0]), [1, 2, 3])
    {1: 0.6666666666666666, 2: 0.6666666666666666, 3: nan}
    """
    wanted = [int(label) for label in labels]
    size = max([0, *wanted, int(first.max(initial=0)), int(second.max(initial=0))]) + 1
    counts = [np.bincount(part.ravel(), minlength=size) for part in (first, second, first[first == second])]
    total = {label: counts[0][label] + counts[1][label] for label in wanted}
    return {label: float(2 * counts[2][label] / n) if n else float("nan") for label, n in total.items()}


def overlap(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean Dice, and seconds, of the people with both engines who were not used to choose parameters."""
    both = found[OURS].index.intersection(found[PLAIN].index)
    own, plain = (found[engine].loc[both, ["all regions", *STRUCTURES, "seconds"]] for engine in (OURS, PLAIN))
    means = {"this pipeline": own.mean(), "plain": plain.mean(), "ratio": own.mean() / plain.mean()}
    return pd.DataFrame({**means, f"more in, of {len(both)}": (own > plain).sum(), "least ratio": (own / plain).min()})


def volumes_of(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Agreement of both hippocampi together with the manual volume, without fluid and as whole labels."""
    rows = {}
    for engine, column in ((OURS, "tissue_mm3"), (OURS, "whole_mm3"), (PLAIN, "whole_mm3")):
        own = found[engine]
        percent = 100 * (own[column] / own["manual_mm3"] - 1)
        r = own[column].corr(own["manual_mm3"])
        ends = {"from, %": percent.min(), "to, %": percent.max()}
        known = {"people": len(own), "r with manual": r, "bias, %": percent.mean(), "SD, %": percent.std()}
        rows[f"{engine}, {column}"] = known | ends
    return pd.DataFrame(rows).T


def again_apart(found: Mapping[str, pd.DataFrame]) -> str:
    """How far volumes without fluid are from themselves in the moved scan."""
    first, second = (found[engine]["tissue_mm3"] for engine in (OURS, RETEST))
    percent = (200 * (first - second).abs() / (first + second)).dropna()
    return f"{len(percent)} scans moved and registered again: {percent.mean():.1f} %, at most {percent.max():.1f} %"


if __name__ == "__main__":
    main()
