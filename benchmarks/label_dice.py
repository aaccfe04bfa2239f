"""How well manual labels land on the atlas, and how well hippocampi are measured: our registration and plain ANTsPy.

    python benchmarks/label_dice.py ../shared/data/oasis20 WORK            # docs/benchmarks/registration.md

Both get the same scans (skull-stripped, as stored), the same template brain, the same seed and one thread. Plain is
what a user of ANTsPy would write. In place of repeat scans, which this dataset does not have, a scan is turned by 3
degrees, shifted by 2 mm, interpolated and made noisier, and registered again (`--retest N`): what this changes is the
least that a repeat scan would change.

WORK/people.tsv gets a row a person and engine at once, and what has one is not measured again, so a killed run goes on
where it was; other code, settings or another version of ANTsPy need another WORK. One person takes some three minutes
at 2 mm and six at 1 mm.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"

import ants
import nibabel as nib
import numpy as np
import pandas as pd
import scipy.ndimage
from harness import added, arguments_of, kept_rows
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
from heatlas.pipeline.registration.quality.measures import dice
from heatlas.pipeline.registration.scan import jacobian_determinant, log_jacobian, register_image
from heatlas.pipeline.registration.volumes import region_volumes, tissue_volumes
from heatlas.pipeline.run.config.settings import RegistrationConfig

SEED = 43
HIPPOCAMPI, VENTRICLES = (47, 48), (49, 50, 51, 52)
STRUCTURES = {
    "lateral ventricles": (51, 52),
    "inferior lateral ventricles": (49, 50),
    "amygdalae": (31, 32),
    "hippocampi": HIPPOCAMPI,
}
CHOSEN_ON = ("sub-1003", "sub-1004", "sub-1005", "sub-1014", "sub-1128")
"""People on whom the parameters were chosen, who are not asked."""
KEYS = ["resolution", "engine", "person"]
OURS, PLAIN, RETEST = "ours", "plain", "retest"


def main() -> None:
    options = arguments_of(
        __doc__,
        "oasis work",
        oasis={"type": Path, "help": "BIDS dataset with manual labels under derivatives/manual"},
        work={"type": Path, "help": "folder for people.tsv"},
        resolution=([2.0, 1.0], "of the template, mm"),
        people=(7, "measured"),
        retest=(2, "people registered twice"),
    )
    options.work.mkdir(parents=True, exist_ok=True)
    path = options.work / "people.tsv"
    every, images = kept_rows(path, KEYS), in_order(sorted(options.oasis.glob("sub-*/anat/*_T1w.nii.gz")))
    for resolution in options.resolution:
        template = load_template(resolution)
        atlas = load_atlas("neuromorphometrics-cat12", template.grid)
        for place, image in enumerate(images[: options.people]):
            for engine in (OURS, PLAIN, RETEST)[: 3 if place < options.retest else 2]:
                known = {"resolution": resolution, "engine": engine, "person": person_of(image)}
                if not (every[KEYS] == list(known.values())).all(axis=1).any():
                    row = known | measured(engine, image, options.oasis, template, atlas)
                    every = added(every, [row], path)
                    print(*row.values(), flush=True)
    for resolution, own in every.groupby("resolution", sort=False):
        found = {engine: own[own["engine"] == engine].set_index("person") for engine in ENGINES}
        tables = (one.round(4).to_string() for one in (overlap(found), volumes_of(found)))
        print(f"{resolution:g} mm", *tables, again_apart(found), sep="\n\n")


def in_order(images: list[Path]) -> list[Path]:
    """First and last in turn, the young and the old of this dataset."""
    asked = [image for image in images if person_of(image) not in CHOSEN_ON]
    return [asked[-1 - place // 2 if place % 2 else place // 2] for place in range(len(asked))]


def person_of(image: Path) -> str:
    return image.name.split("_")[0]


def measured(engine: str, image: Path, oasis: Path, template: Template, atlas: Atlas) -> dict[str, float]:
    """What one engine gives for one person: Dice of labels, volumes of both hippocampi, seconds."""
    person, reference = person_of(image), np.asarray(atlas.labels)
    manual = oasis / "derivatives/manual" / person / f"anat/{person}_atlas-Neuromorphometrics_dseg.nii.gz"
    labels = Volume(*load_labels(manual))
    with tempfile.TemporaryDirectory() as folder:
        prefix, started = Path(folder, "ants_"), time.process_time()
        change, t1w = ENGINES[engine](image, template, prefix)
        seconds = time.process_time() - started
        warped = resample(labels, files_of(prefix), template.grid.shape, template.grid.affine, "genericLabel")
    there = np.rint(warped).astype(np.int32)
    overlaps = {number: dice(there == number, reference == number) for number in atlas.regions.numbers}
    voxel = template.grid.voxel_volume_mm3
    return {
        "all regions": float(np.mean(list(overlaps.values()))),
        **{name: float(np.mean([overlaps[n] for n in numbers])) for name, numbers in STRUCTURES.items()},
        "tissue_mm3": sum(tissue_volumes(change, t1w, reference, HIPPOCAMPI, VENTRICLES, voxel).values()),
        "whole_mm3": sum(region_volumes(change, reference, HIPPOCAMPI, voxel).values()),
        "manual_mm3": float(np.isin(labels.data, HIPPOCAMPI).sum() * abs(np.linalg.det(labels.affine[:3, :3]))),
        "seconds": seconds,
    }


def files_of(prefix: Path) -> Transforms:
    names = ("0GenericAffine.mat", "1Warp.nii.gz", "1InverseWarp.nii.gz")
    return Transforms(*[prefix.with_name(prefix.name + name) for name in names])


def ours(image: Path, template: Template, prefix: Path, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    config = RegistrationConfig(resolution_mm=float(template.grid.affine[1, 1]))
    result = register_image(image, template, config, seed, prefix)
    return result.log_jacobian, result.t1w


def plain(image: Path, template: Template, prefix: Path) -> tuple[np.ndarray, np.ndarray]:
    """What a user of ANTsPy would write; the seed has to go through its settings."""
    ants.config.set_ants_deterministic(on=False, seed_value=SEED)
    fixed = to_ants(Volume(template.t1w, template.grid.affine))
    ants.registration(fixed, ants.image_read(str(image)), "antsRegistrationSyNQuick[s]", outprefix=str(prefix))
    ants.config.set_ants_deterministic(on=False, seed_value=None)
    transforms = files_of(prefix)
    determinant = jacobian_determinant(read_displacement(transforms.warp), template.grid.affine)
    scan = load_t1w(image)
    t1w = resample(Volume(scan.data, scan.affine), transforms, template.grid.shape, template.grid.affine)
    return log_jacobian(determinant, read_affine(transforms.affine)[:3, :3]), t1w


def again(image: Path, template: Template, prefix: Path) -> tuple[np.ndarray, np.ndarray]:
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
    noise = np.random.default_rng(SEED).normal(0, 0.02 * float(np.median(scan.data[brain])), moved.shape)
    values = np.where(inside, np.maximum(moved + noise, 1), 0).astype(np.float32)
    path = prefix.with_name("moved_T1w.nii.gz")
    nib.save(nib.Nifti1Image(values, scan.affine), path)
    return ours(path, template, prefix, SEED + 1)


ENGINES: dict[str, Callable[[Path, Template, Path], tuple[np.ndarray, np.ndarray]]] = {
    OURS: ours,
    PLAIN: plain,
    RETEST: again,
}


def overlap(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean Dice, and seconds, of the people with both engines."""
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
