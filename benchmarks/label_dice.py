"""How well manual labels land on the atlas: our registration and plain ANTsPy, side by side in one run.

    python benchmarks/label_dice.py ../shared/data/oasis20 WORK --page docs/benchmarks/registration.md
    python benchmarks/label_dice.py ../shared/data/oasis20 WORK --resolution 2

Both engines get the same scans (skull-stripped, as stored), the same template brain, the same parameter set
(`--transform`), the same seed and one thread. Plain is the call that a user of ANTsPy would write, on the whole
template grid; ours adds what this pipeline does: N4, one order of axes, the box of the brain, a margin. `--plain N`
asks for plain ANTsPy in the first N people only; the two are then compared in those.

The manual labels of each person travel to template space through the transforms found, and are compared with the
atlas there (Dice of its 134 regions). Volumes of the hippocampi from the Jacobian determinant are correlated with the
manual ones over people.

Every result is a file in WORK, so that a killed run goes on where it was: start the same command again. A result made
by other code, other settings or another version of ANTsPy is made again. One person at 1 mm takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"

import ants
import numpy as np
import pandas as pd

from atlases.labels import Atlas, load_atlas
from atlases.spaces import Grid
from atlases.templates import Template, load_template
from pipeline.registration.ants_transform import (
    Transforms,
    Volume,
    read_affine,
    read_displacement,
    resample,
    run_ants,
    to_ants,
)
from pipeline.registration.images import load_labels, load_t1w
from pipeline.registration.jacobian import jacobian_determinant, log_jacobian
from pipeline.registration.label_overlap import dice_per_label
from pipeline.registration.scan import register_image
from pipeline.registration.volumes import region_volumes
from pipeline.run.config import RegistrationConfig
from pipeline.run.digests import code_digest
from pipeline.run.tables import write_json, write_text

HIPPOCAMPI = (47, 48)
CODE = tuple(
    f"pipeline.registration.{name}"
    for name in ("ants_transform", "bias_field", "jacobian", "resolution", "scan", "volumes")
)
"""Code whose change makes results stale."""


def main() -> None:
    options = arguments()
    template = load_template(options.resolution)
    atlas = load_atlas("neuromorphometrics-cat12", template.grid)
    rows = []
    images = sorted(options.oasis.glob("sub-*/anat/*_T1w.nii.gz"))[: options.scans]
    for image in images:
        for engine in ENGINES if image in images[: options.plain] else ("ours",):
            row = measured(engine, image, template, atlas, options)
            rows.append(row)
            print(f"{row['participant_id']} {engine:5} mean Dice {row['mean_dice']:.4f}  {row['seconds']:.0f} s",
                  flush=True)  # fmt: skip
    text = page(pd.DataFrame(rows), options)
    print(text)
    if options.page:
        write_text(options.page, text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("oasis", type=Path, help="BIDS dataset with manual labels under derivatives/manual")
    parser.add_argument("work", type=Path, help="folder for the result of each person and engine")
    parser.add_argument("--resolution", type=float, default=1.0, metavar="MM", help="of the template (default 1)")
    parser.add_argument("--scans", type=int, metavar="N", help="only the first N people")
    parser.add_argument("--plain", type=int, metavar="N", help="plain ANTsPy in the first N people only")
    parser.add_argument("--transform", default=RegistrationConfig().transform, help="parameters (default %(default)s)")
    parser.add_argument("--seed", type=int, default=43)
    parser.add_argument("--page", type=Path, help="Markdown file to write")
    return parser.parse_args()


def measured(engine: str, image: Path, template: Template, atlas: Atlas, options: argparse.Namespace) -> dict[str, Any]:
    """Result of one engine for one person, from its file if there is a valid one."""
    person = image.name.split("_")[0]
    settings = {"engine": engine, "resolution_mm": options.resolution, "seed": options.seed,
                "transform": options.transform, "ants": ants.__version__, "code": code_digest(*CODE)}  # fmt: skip
    file = options.work / f"{person}_res-{options.resolution:g}_{engine}.json"
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["settings"] == settings:
            return dict(known["result"])
    options.work.mkdir(parents=True, exist_ok=True)
    manual = options.oasis / "derivatives/manual" / person / f"anat/{person}_atlas-Neuromorphometrics_dseg.nii.gz"
    labels = Volume(*load_labels(manual))
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        started = time.process_time()
        transforms, grid, change = ENGINES[engine](image, template, options, Path(folder) / "ants_")
        seconds = time.process_time() - started
        warped = np.rint(resample(labels, transforms, grid.shape, grid.affine, "genericLabel")).astype(np.int32)
    dice = dice_per_label(warped, np.asarray(atlas.labels), atlas.regions.numbers)
    volumes = region_volumes(change, np.asarray(atlas.labels), HIPPOCAMPI, grid.voxel_volume_mm3)
    voxel = abs(float(np.linalg.det(labels.affine[:3, :3])))
    row = {
        "participant_id": person,
        "engine": engine,
        "mean_dice": float(np.nanmean(list(dice.values()))),
        "hippocampus_dice": float(np.mean([dice[number] for number in HIPPOCAMPI])),
        "regions": len(dice),
        "jacobian_mm3": sum(volumes.values()),
        "manual_mm3": float(np.isin(labels.data, HIPPOCAMPI).sum() * voxel),
        "brain_mm3": float((np.asarray(load_t1w(image).data) > 0).sum() * voxel),
        "seconds": seconds,
    }
    write_json(file, {"settings": settings, "result": row})
    return row


def ours(
    image: Path, template: Template, options: argparse.Namespace, prefix: Path
) -> tuple[Transforms, Grid, np.ndarray]:
    """This pipeline, its default settings but for the parameter set."""
    config = RegistrationConfig(resolution_mm=options.resolution, transform=options.transform)
    result = register_image(image, template, config, options.seed, prefix)
    return result.transforms, template.grid, result.log_jacobian


def plain(
    image: Path, template: Template, options: argparse.Namespace, prefix: Path
) -> tuple[Transforms, Grid, np.ndarray]:
    """What a user of ANTsPy would write; the seed has to go through its settings."""
    ants.config.set_ants_deterministic(on=False, seed_value=options.seed)
    try:
        fixed = to_ants(Volume(template.t1w, template.grid.affine))
        run_ants(fixed, ants.image_read(str(image)), options.transform, str(prefix))
    finally:
        ants.config.set_ants_deterministic(on=False, seed_value=None)
    names = ("0GenericAffine.mat", "1Warp.nii.gz", "1InverseWarp.nii.gz")
    transforms = Transforms(*[prefix.with_name(prefix.name + name) for name in names])
    determinant = jacobian_determinant(read_displacement(transforms.warp), template.grid.affine)
    return transforms, template.grid, log_jacobian(determinant, read_affine(transforms.affine)[:3, :3])


Engine = Callable[[Path, Template, argparse.Namespace, Path], tuple[Transforms, Grid, np.ndarray]]
ENGINES: dict[str, Engine] = {"ours": ours, "plain": plain}


def page(rows: pd.DataFrame, options: argparse.Namespace) -> str:
    """What was found, as Markdown."""
    ours_rows = rows[rows["engine"] == "ours"].set_index("participant_id")
    plain_rows = rows[rows["engine"] == "plain"].set_index("participant_id")
    paired = ours_rows.loc[plain_rows.index]
    better = int((paired["mean_dice"] > plain_rows["mean_dice"]).sum())
    command = f"python benchmarks/label_dice.py {shlex.join(sys.argv[1:])}"
    lines = [
        "# Registration: manual labels on the atlas",
        "",
        f"`{command}`",
        "",
        f"{len(ours_rows)} people of OASIS-20, template at {options.resolution:g} mm, `{options.transform}`, seed "
        f"{options.seed}, one thread, ANTsPy {ants.__version__}. Plain ANTsPy is the bare call on the same scans, the "
        f"same template brain and the same parameters, in the same run, for {len(plain_rows)} people. Seconds are "
        "those of the processor.",
        "",
        f"| | this pipeline, all {len(ours_rows)} | this pipeline, the {len(paired)} with both | plain ANTsPy, these | "
        "ratio |",
        "|---|---|---|---|---|",
    ]
    shown = (
        ("mean Dice over 134 regions", "mean_dice", 4),
        ("Dice of the hippocampi", "hippocampus_dice", 4),
        ("seconds per scan, all steps", "seconds", 0),
    )
    for title, name, digits in shown:
        every, a, b = (frame[name].mean() for frame in (ours_rows, paired, plain_rows))
        lines.append(f"| {title} | {every:.{digits}f} | {a:.{digits}f} | {b:.{digits}f} | {a / b:.4f} |")
    r = [np.corrcoef(frame["jacobian_mm3"], frame["manual_mm3"])[0, 1] for frame in (ours_rows, paired, plain_rows)]
    lines += [
        f"| r of Jacobian with manual hippocampal volumes | {r[0]:.3f} | {r[1]:.3f} | {r[2]:.3f} | |",
        "",
        f"Mean Dice is better than plain in {better} of {len(paired)} people.",
        "",
        "| person | mean Dice, ours | plain | hippocampi, ours | plain | Jacobian mm³ | manual mm³ | s, ours | plain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    plain_rows = plain_rows.reindex(ours_rows.index)
    for person in ours_rows.index:
        cells = [
            "–" if np.isnan(value) else f"{value:.{digits}f}"
            for pair, digits in (
                ((ours_rows["mean_dice"], plain_rows["mean_dice"]), 4),
                ((ours_rows["hippocampus_dice"], plain_rows["hippocampus_dice"]), 4),
                ((ours_rows["jacobian_mm3"], ours_rows["manual_mm3"]), 0),
                ((ours_rows["seconds"], plain_rows["seconds"]), 0),
            )
            for value in (column[person] for column in pair)
        ]
        lines.append(f"| {person} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
