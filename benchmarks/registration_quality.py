"""Which scans of OASIS-1 registration calls doubtful or mirrored, against what is known about each image.

    python benchmarks/registration_quality.py FOLDER OUT [--output docs/registration.md]

FOLDER holds ``older``, ``younger`` and their ``*_quality.tsv`` (gross failures and mirrored images, which the pipeline
never reads). Every scan is registered as in the preset for patients; so are mirrored copies of the scans that were
mirrored in the source and of every sixth other one. Two questions are asked of each cohort:

- of its scans as they are: are the gross failures flagged, and how many of the others?
- with the copies in the place of their originals, and with one copy at a time: are they named as mirrored, and is any
  other scan?

Runs are kept in OUT and continued.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd

from pipeline.cohort.records import Scan
from pipeline.registration.stage import register_scans
from pipeline.run.config.settings import RegistrationConfig
from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.work.digests import DigestCache
from pipeline.run.work.executors import open_executor

GROSS = ("misregistered", "misregistered_skull")
EVERY = 6
MIRRORED = "mirrored"
"""Ends the session of a mirrored copy."""


def known(folder: Path, cohort: str) -> pd.DataFrame:
    return pd.read_csv(folder / f"{cohort}_quality.tsv", sep="\t").set_index("participant_id")


def scans_of(folder: Path, cohort: str, copies: Path, entry: str) -> list[Scan]:
    """All scans of a cohort, and mirrored copies of some, which are written to `copies`; paths are absolute."""
    table = known(folder, cohort)
    scans, good = [], itertools.count()
    for image in sorted((folder / cohort).glob("sub-*/**/*_T1w.nii.gz")):
        parts = image.name.split("_")
        session = next((part for part in parts if part.startswith("ses-")), None)
        scan = Scan(parts[0], session, image.name.removesuffix(".nii.gz"), str(image), entry=entry)
        scans.append(scan)
        row = table.loc[scan.participant_id]
        if row["qc"] in GROSS:
            continue
        if row["lr_flipped_in_source"] == "yes" or next(good) % EVERY == 0:
            copy = copies / f"{scan.name}_{MIRRORED}.nii.gz"
            if not copy.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                write_mirrored(image, copy)
            session = f"{session or 'ses-'}{MIRRORED}"
            scans.append(Scan(scan.participant_id, session, f"{scan.scan_id}_{MIRRORED}", str(copy), entry=entry))
    return scans


def write_mirrored(image: Path, copy: Path) -> None:
    """Exchange left and right: world x becomes -x, the header stays."""
    whole: Any = nib.load(image)
    axis = int(np.argmax(np.abs(whole.affine[0, :3])))
    data = np.flip(np.asarray(whole.dataobj), axis)
    nib.save(nib.Nifti1Image(data, whole.affine, whole.header), copy)  # type: ignore[no-untyped-call]


def registered(folder: Path, out: Path, cohort: str, entry: str, config: RegistrationConfig) -> tuple[RunLayout, list[Scan]]:
    name = "-".join((cohort, entry, *([config.transform] if entry != "template" else []), f"{config.resolution_mm:g}mm"))
    layout = RunLayout(out / name)
    scans = scans_of(folder, cohort, out / "mirrored", entry)
    with open_executor(1) as executor:
        register_scans(layout, folder, scans, config, 43, executor, DigestCache(layout.digests))
    return layout, scans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cohorts", nargs="+", default=["older", "younger"])
    parser.add_argument("--ways", nargs="+", default=["template", "affine", "syn-quick"], help="template, or a transform")
    parser.add_argument("--voxel", type=float, default=4.0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    for way, cohort in itertools.product(given.ways, given.cohorts):
        entry, transform = ("template", "affine") if way == "template" else ("brain", way)
        config = RegistrationConfig(given.voxel, "template-mask", False, transform)
        registered(given.folder.resolve(), given.out.resolve(), cohort, entry, config)


if __name__ == "__main__":
    main()
