"""How far affine registration by torch lies from that of ANTs: displacement in the template's brain.

    python benchmarks/affine_registration.py ../shared/data/oasis20 --page docs/benchmarks/registration.md

Scans are registered as in the preset ``patients``, by ANTs with two seeds and by torch. The seeds say how far ANTs lies
from itself; ANTs at a template of 2 mm (`--finer N` people), whose finest level has half the voxels, is a better guess
of the truth than ANTs at 4 mm.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from pathlib import Path

os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"

import numpy as np
import pandas as pd
import torch
from harness import arguments_of, table, write_section

from heatlas.atlases.templates import configured_template
from heatlas.pipeline.registration.ants_transform import AFFINE, AFFINE_TORCH, read_affine
from heatlas.pipeline.registration.scan import register_image
from heatlas.pipeline.run.config.files import load_config

HEADING, SECTION = "Registration: manual labels on the atlas", "Affine registration without ANTs"
SETTINGS = load_config("patients").registration
LIMIT_MM = SETTINGS.resolution_mm / 2


def found(path: Path, transform: str, seed: int, resolution_mm: float = SETTINGS.resolution_mm) -> np.ndarray:
    """The map from template to scan."""
    settings = dataclasses.replace(SETTINGS, transform=transform, resolution_mm=resolution_mm)
    with tempfile.TemporaryDirectory() as folder:
        result = register_image(path, configured_template(settings), settings, seed, Path(folder) / "of_")
        return read_affine(result.transforms.affine)


def apart(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Mean and largest distance, over the template's brain, between the places in the scan that two maps name."""
    template = configured_template(SETTINGS)
    points = template.grid.to_world(np.argwhere(template.brain_mask))
    distances = np.linalg.norm(points @ (first - second)[:3, :3].T + (first - second)[:3, 3], axis=1)
    return float(distances.mean()), float(distances.max())


def main() -> None:
    options = arguments_of(
        __doc__,
        "oasis --page",
        oasis={"type": Path, "help": "BIDS dataset"},
        finer=(0, "people for whom ANTs is asked at 2 mm too"),
    )
    torch.set_num_threads(1)
    rows = []
    for number, path in enumerate(sorted(options.oasis.glob("sub-*/anat/*_T1w.nii.gz"))):
        began = time.process_time()
        by_torch = found(path, AFFINE_TORCH, 43)
        seconds = time.process_time() - began
        began = time.process_time()
        by_ants = found(path, AFFINE, 43)
        seconds_ants = time.process_time() - began
        fine = found(path, AFFINE, 43, 2.0) if number < options.finer else None
        pairs = [(by_torch, by_ants), (found(path, AFFINE, 44), by_ants)]
        pairs += [] if fine is None else [(by_torch, fine), (by_ants, fine)]
        numbers = [value for pair in pairs for value in apart(*pair)]
        rows.append([path.name.split("_")[0], *numbers, *[np.nan] * (8 - len(numbers)), seconds, seconds_ants])
        print(*rows[-1], flush=True)
    names = ["person", "mean", "largest", "seed_mean", "seed_largest", "fine_mean", "fine_largest", "ants_fine_mean",
             "ants_fine_largest", "s", "s_ants"]  # fmt: skip
    frame = pd.DataFrame(rows, columns=names).set_index("person")
    if options.page is not None:
        write_section(options.page, SECTION, "\n".join(lines(frame, options.finer)), HEADING)


def lines(frame: pd.DataFrame, finer: int) -> list[str]:
    compared = {
        "torch and ANTs": "",
        "ANTs with two seeds": "seed_",
        f"torch and ANTs at 2 mm ({finer} people)": "fine_",
        f"ANTs and ANTs at 2 mm ({finer} people)": "ants_fine_",
    }
    summary = []
    for name, prefix in compared.items():
        mean, largest = frame[f"{prefix}mean"], frame[f"{prefix}largest"]
        if mean.notna().any():
            numbers = (mean.mean(), mean.max(), largest.mean(), largest.max())
            summary.append([name, *(f"{number:.2f}" for number in numbers)])
    columns = ["mean", "largest", "seed_mean", "seed_largest"]
    people = [[str(person), *(f"{row[name]:.2f}" for name in columns)] for person, row in frame.iterrows()]
    within = int((frame["mean"] <= LIMIT_MM).sum())
    return [
        f"`python benchmarks/affine_registration.py ../shared/data/oasis20 --finer {finer} --page "
        "docs/benchmarks/registration.md`",
        "",
        f"Displacement in mm between two maps over the template's brain, {len(frame)} people of OASIS-20, settings of "
        f"the preset `patients` (voxels of {SETTINGS.resolution_mm:g} mm). The mean is within half a voxel, "
        f"{LIMIT_MM:g} mm, in {within}, and within 1 mm in {int((frame['mean'] <= 1).sum())}. One scan took "
        f"{frame['s'].median():.1f} s of a core by torch and {frame['s_ants'].median():.1f} s by ANTs (medians, with "
        "reading and resampling).",
        "",
        *table(["compared", "mean over people of the mean", "largest mean", "mean of the largest", "largest"], summary),
        "",
        *table(["person", "torch: mean", "largest", "ANTs, other seed: mean", "largest"], people),
    ]


if __name__ == "__main__":
    main()
