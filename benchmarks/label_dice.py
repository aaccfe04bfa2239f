"""How well manual labels land on the atlas, and how well hippocampi are measured: our registration and plain ANTsPy.

    python benchmarks/label_dice.py ../shared/data/oasis20 WORK --page docs/benchmarks/registration.md

Both get the same scans (skull-stripped, as stored), the same template brain, the same seed and one thread. Plain is
what a user of ANTsPy would write. In place of repeat scans, which this dataset does not have, a scan is turned by 3
degrees, shifted by 2 mm, interpolated and made noisier, and registered again (`--retest N`): what this changes is the
least that a repeat scan would change.

Every registration is a folder in WORK, so a killed run goes on where it was; one made by other code, other settings or
another version of ANTsPy is made again. One person takes some three minutes at 2 mm and six at 1 mm; with
`--minutes N`, no new measurement begins after that time. `--minutes 0` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"

import ants
import nibabel as nib
import numpy as np
import pandas as pd
import scipy.ndimage
from harness import arguments_of, line, table, write_section
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
        "oasis work --page",
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
            rows.append({"resolution": resolution, "engine": engine, "person": person_of(image), **(row or {})})
            if row:
                print(resolution, person_of(image), engine, row["dice"], f"{row['seconds']:.0f} s", flush=True)
    for resolution, own in pd.DataFrame(rows).groupby("resolution", sort=False):
        text = "\n".join([*overlap(own), "", *volumes_of(own), "", *people(own)])
        print(text)
        if options.page:
            heading = "Registration: manual labels on the atlas"
            write_section(options.page, f"Template at {resolution:g} mm", text, heading)


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
        "dice": {
            f"mean of {len(dice)} regions": float(np.nanmean(list(dice.values()))),
            **{name: float(np.mean([dice[n] for n in numbers])) for name, numbers in STRUCTURES.items()},
        },
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


def by_engine(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    run = rows[rows["seconds"].notna()] if "seconds" in rows else rows.iloc[:0]
    return {engine: run[run["engine"] == engine].set_index("person") for engine in ENGINES}


def overlap(rows: pd.DataFrame) -> list[str]:
    """Mean Dice of the people with both engines who were not used to choose parameters."""
    found = by_engine(rows)
    both = [name for name in found[OURS].index if name in found[PLAIN].index and name not in CHOSEN_ON]
    if not both:
        return ["Not run."]
    lines = table([f"Dice (n = {len(both)})", "this pipeline", "plain", "ratio", "better in", "smallest ratio"])
    a, b = (pd.DataFrame(found[engine].loc[both, "dice"].tolist(), index=both) for engine in (OURS, PLAIN))
    for name in a:
        means = f"{a[name].mean():.4f}", f"{b[name].mean():.4f}", f"{a[name].mean() / b[name].mean():.3f}"
        better = f"{int((a[name] > b[name]).sum())} of {len(both)}"
        lines.append(line(name, *means, better, f"{(a[name] / b[name]).min():.3f}"))
    own, other = (found[engine].loc[both, "seconds"].mean() for engine in (OURS, PLAIN))
    return [*lines, f"| seconds per scan | {own:.0f} | {other:.0f} | {own / other:.2f} | | |"]


def volumes_of(rows: pd.DataFrame) -> list[str]:
    """Agreement of both hippocampi together with the manual volume, and with themselves in the moved scan."""
    found = by_engine(rows)
    columns = "people", "r with manual", "bias", "SD of the difference", "from", "to"
    lines = table(["volume of both hippocampi", *columns])
    for title, engine, column in (
        ("without fluid", OURS, "tissue_mm3"),
        ("whole label", OURS, "whole_mm3"),
        ("whole label, plain", PLAIN, "whole_mm3"),
    ):
        own = found[engine][~found[engine].index.isin(CHOSEN_ON)]
        if len(own) < 3:
            continue
        percent = 100 * (own[column] / own["manual_mm3"] - 1)
        r = np.corrcoef(own[column], own["manual_mm3"])[0, 1]
        ends = (f"{percent.agg(end):+.1f} %" for end in ("min", "max"))
        lines.append(line(title, len(own), f"{r:.3f}", f"{percent.mean():+.1f} %", f"{percent.std():.1f} %", *ends))
    lines = lines if len(lines) > 2 else ["Too few people for a correlation of volumes."]
    pairs = found[OURS].join(found[RETEST], rsuffix=" again", how="inner") if len(found[RETEST]) else found[RETEST]
    if len(pairs):
        first, second = pairs["tissue_mm3"], pairs["tissue_mm3 again"]
        percent = 200 * (first - second).abs() / (first + second)
        differ = f"differ by {percent.mean():.1f} % on average, {percent.max():.1f} % at most"
        lines += ["", f"Scan moved and registered again (n = {len(pairs)}): volumes without fluid {differ}."]
    return lines


def people(rows: pd.DataFrame) -> list[str]:
    """One row per person, and who was not run."""
    found = by_engine(rows)
    columns = [f"{name}, ours / plain" for name in ("mean Dice", *STRUCTURES)]
    lines = table(["person", *columns, "hippocampi mm³, ours", "manual", "s, ours / plain"])
    for person in rows["person"].unique():
        ours, plain = (found[engine].loc[person] if person in found[engine].index else None for engine in (OURS, PLAIN))
        if ours is None and plain is None:
            continue
        dice = [[f"{v:.3f}" for v in row["dice"].values()] if row is not None else ["–"] * len(columns)
                for row in (ours, plain)]  # fmt: skip
        volumes = ["–"] * 2 if ours is None else [f"{ours[c]:.0f}" for c in ("tissue_mm3", "manual_mm3")]
        seconds = " / ".join("–" if row is None else f"{row['seconds']:.0f}" for row in (ours, plain))
        lines.append(line(person, *map(" / ".join, zip(*dice, strict=True)), *volumes, seconds))
    missing = [f"{row.person} ({row.engine})" for row in rows.itertuples() if row.person not in found[row.engine].index]
    return [*lines, "", f"Not run: {', '.join(missing) or 'none'}."]


if __name__ == "__main__":
    main()
