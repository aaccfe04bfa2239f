"""Which scans of OASIS-1 registration calls doubtful or mirrored, against what is known about each image.

    python benchmarks/registration_quality.py FOLDER OUT [--output docs/benchmarks/registration_choices.md]

FOLDER holds ``older``, ``younger`` and their ``*_quality.tsv`` (gross failures and mirrored images, which the pipeline
never reads). Every scan is registered as in the preset for patients; so are mirrored copies of the scans that were
mirrored in the source and of every sixth other one. Two questions are asked of each cohort:

- of its scans as they are: are the gross failures flagged, and how many of the others?
- with the copies in the place of their originals, and with one copy at a time: are they named as mirrored, and is any
  other scan?

Runs are kept in OUT and continued.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
from harness import arguments_of, show, table

from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.registration.quality.outliers import flag_reasons, region_distances, region_reasons
from heatlas.pipeline.registration.quality.sides import compare_sides
from heatlas.pipeline.registration.stage import register_scans
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.executors import open_executor

GROSS = ("misregistered", "misregistered_skull")
EVERY = 6
MIRRORED = "mirrored"
"""Ends the session of a mirrored copy."""


def quality_of(folder: Path, cohort: str) -> pd.DataFrame:
    return pd.read_csv(folder / f"{cohort}_quality.tsv", sep="\t").set_index("participant_id")


def scans_of(folder: Path, cohort: str, copies: Path, entry: str) -> list[Scan]:
    """All scans of a cohort, and mirrored copies of some, which are written to `copies`; paths are absolute."""
    truth = quality_of(folder, cohort)
    scans, good = [], itertools.count()
    for image in sorted((folder / cohort).glob("sub-*/**/*_T1w.nii.gz")):
        parts = image.name.split("_")
        session = next((part for part in parts if part.startswith("ses-")), None)
        scan = Scan(parts[0], session, image.name.removesuffix(".nii.gz"), str(image), entry=entry)
        scans.append(scan)
        row = truth.loc[scan.participant_id]
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


def registered(
    folder: Path, out: Path, cohort: str, entry: str, config: RegistrationConfig
) -> tuple[RunLayout, list[Scan]]:
    name = "-".join(
        (cohort, entry, *([config.transform] if entry != "template" else []), f"{config.resolution_mm:g}mm")
    )
    layout = RunLayout(out / name)
    scans = scans_of(folder, cohort, out / "mirrored", entry)
    with open_executor(1) as executor:
        settings = Config(registration=dataclasses.replace(config, seed=43))
        work = Work(layout, folder, settings, tuple(scans), Split(()), executor, DigestCache(layout.digests))
        register_scans(work, scans)
    return layout, scans


def flagged(quality: pd.DataFrame, regions: pd.DataFrame) -> np.ndarray:
    """Which scans of a cohort are in doubt but for their sides, among each other alone."""
    regions = regions[regions["scan_id"].isin(quality["scan_id"])].reset_index(drop=True)
    count = regions["region"].nunique()
    distances = region_distances(regions["correlation"].to_numpy(float).reshape(-1, count)).ravel()
    local = region_reasons(regions.assign(distance=distances))
    whole = flag_reasons(quality.reset_index(drop=True))
    return np.array([bool(found) or name in local for found, name in zip(whole, quality["scan_id"], strict=True)])


def cells_of(
    quality: pd.DataFrame, regions: pd.DataFrame, sides: Mapping[str, np.ndarray], truth: pd.DataFrame
) -> list[str]:
    """Row of the page for one cohort: `sides` are the asymmetries by ``scan_id``, `truth` what is known."""
    copy = quality["scan_id"].str.endswith(f"_{MIRRORED}").to_numpy()
    own, copies = quality[~copy], quality[copy]
    gross = truth.loc[own["participant_id"], "qc"].isin(GROSS).to_numpy()
    found = flagged(own, regions)
    names = list(own["scan_id"])
    as_given = compare_sides([sides[name] for name in names])
    hits = {}
    for name in copies["scan_id"]:
        original = name.removesuffix(f"_{MIRRORED}")
        swapped = [sides[name] if one == original else sides[one] for one in names]
        hits[name] = bool(compare_sides(swapped).mirrored[names.index(original)])
    together = [sides.get(f"{name}_{MIRRORED}", sides[name]) for name in names]
    planted = np.array([f"{name}_{MIRRORED}" in sides for name in names])
    at_once = compare_sides(together)
    return [
        f"{found[gross].sum()} of {gross.sum()}",
        f"{found[~gross].sum()} of {(~gross).sum()} ({found[~gross].mean():.1%})",
        f"{as_given.mirrored[~gross].sum()} of {(~gross).sum()}",
        f"{sum(hits.values())} of {len(hits)}",
        f"{at_once.mirrored[planted].sum()} of {planted.sum()}" + (f" ({at_once.unknown})" if at_once.unknown else ""),
        f"{at_once.mirrored[~planted & ~gross].sum()} of {(~planted & ~gross).sum()}",
    ]


COLUMNS = (
    "scans, way", "gross failures flagged", "others flagged", "called mirrored as given",
    "mirrored copy named, one at a time", "all copies at once", "others then called mirrored",
)  # fmt: skip


def main() -> None:
    given = arguments_of(
        __doc__,
        "folder out --output",
        cohorts=["older", "younger"],
        ways=(["template", "affine", "syn-quick"], "template, or a transform"),
        voxel=4.0,
    )
    rows = []
    for way, cohort in itertools.product(given.ways, given.cohorts):
        entry, transform = ("template", "affine") if way == "template" else ("brain", way)
        config = RegistrationConfig(given.voxel, "template-mask", False, transform)
        layout, scans = registered(given.folder.resolve(), given.out.resolve(), cohort, entry, config)
        quality = read_table(layout.group / "registration.tsv")
        quality = quality[quality["status"] == "registered"]
        files = {
            scan.scan_id: layout.scan(scan.participant_id, scan.session_id, given.voxel).asymmetry for scan in scans
        }
        sides = {name: np.load(files[name]) for name in quality["scan_id"]}
        known_here = quality_of(given.folder, cohort)
        rows.append(
            [f"{cohort}, {way}", *cells_of(quality, read_table(layout.group / "region_quality.tsv"), sides, known_here)]
        )
        print(*rows[-1], sep=" | ", flush=True)
    body = "\n".join(table(COLUMNS, rows, "---:"))
    show(body, given.output, "Doubtful and mirrored scans of OASIS-1", "Registration")


if __name__ == "__main__":
    main()
