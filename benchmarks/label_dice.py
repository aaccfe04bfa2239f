"""How well manual labels land on the atlas: Dice of a finished run's registrations, per person and label.

    python benchmarks/label_dice.py RUN LABELS TABLE

RUN is a run folder, LABELS a folder with ``sub-*_atlas-Neuromorphometrics_dseg.nii.gz`` files in scan space (such as
the BIDS derivatives of OASIS-20), TABLE the TSV to write.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS", "1")

import numpy as np
import pandas as pd

from atlases.labels import load_atlas
from atlases.spaces import template_grid
from pipeline.cohort.records import ScanTable
from pipeline.registration.label_overlap import dice_per_label
from pipeline.registration.stage import warp_labels
from pipeline.run.config import read_config
from pipeline.run.layout import RunLayout
from pipeline.run.tables import write_table

HIPPOCAMPI = (47, 48)


def main(run: Path, labels: Path, table: Path) -> None:
    layout = RunLayout(run)
    resolution = read_config(layout.config).registration.resolution_mm
    grid = template_grid(resolution)
    atlas = load_atlas("neuromorphometrics-cat12", grid)
    rows = []
    for scan in ScanTable.read(layout.scans).kept:
        path = next(labels.rglob(f"{scan.name}_atlas-Neuromorphometrics_dseg.nii.gz"))
        warped = warp_labels(path, layout.scan(scan.participant_id, scan.session_id, resolution), grid)
        dice = dice_per_label(warped, np.asarray(atlas.labels), atlas.regions.numbers)
        rows.append(
            {
                "participant_id": scan.participant_id,
                "hippocampus_dice": float(np.mean([dice[number] for number in HIPPOCAMPI])),
                "mean_dice": float(np.nanmean(list(dice.values()))),
                "labels": len(dice),
            }
        )
    frame = pd.DataFrame(rows)
    write_table(table, frame)
    print(frame.to_string(index=False))
    median, mean = frame["hippocampus_dice"].median(), frame["mean_dice"].mean()
    print(f"median Dice of the hippocampi {median:.3f}, mean over all regions {mean:.3f}, n = {len(frame)}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
