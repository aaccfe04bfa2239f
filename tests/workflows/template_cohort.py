"""A BIDS dataset of synthetic brains that lie in template space: a whole run on it takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd

from heatlas.atlases.templates import load_template
from heatlas.pipeline.run.config.images import DEFAULT_TEMPLATE

CLASSES = ("CN", "MCI", "AD")
SPAN = slice(12, 26), slice(18, 34), slice(14, 26)
"""Voxels at 4 mm that are the brighter the older someone is, and the further the disease."""
CONFIG = """
seed = 5
[cohort]
folds = {folds}
validation_fraction = 0.4
start_at = "template"
[registration]
resolution_mm = 4.0
hippocampus_source = "table"
[model]
channels = {channels}
pools = [3, 4]
hidden_units = 8
dropout = 0.0
[training]
learning_rate = {rate}
learning_rate_schedule = "cosine"
max_epochs = {epochs}
min_epochs = 2
patience = {epochs}
repeats = {repeats}
[attribution]
betas = [0.0]
[statistics]
permutations = 99
bootstrap_samples = 100
[statistics.voxelwise]
permutations = 99
"""


def write_config(
    path: Path, folds: int = 2, epochs: int = 2, repeats: int = 1, rate: float = 1e-3, width: int = 4
) -> Path:
    channels = [width, 2 * width]
    path.write_text(CONFIG.format(folds=folds, epochs=epochs, repeats=repeats, rate=rate, channels=channels))
    return path


def write_template_cohort(
    folder: Path, participants: int = 12, noise: float = 6.0, setting: str = DEFAULT_TEMPLATE, entities: str = ""
) -> pd.DataFrame:
    """Write the dataset; returns ``participants.tsv``: ages from 55 to 85, diagnoses in turn.

    `setting`: of the template. `entities`: of BIDS, in the names of the images.
    """
    template = load_template(4.0, setting)
    values = np.asarray(template.t1w, np.float32)
    folder.mkdir(parents=True)
    (folder / "dataset_description.json").write_text(json.dumps({"Name": "synthetic", "BIDSVersion": "1.9.0"}))
    random = np.random.default_rng(3)
    ages = np.round(np.linspace(55, 85, participants), 1)
    rows = []
    for number, age in enumerate(random.permutation(ages)):
        name, stage = f"sub-{number:02d}", number % len(CLASSES)
        volume = values + random.normal(0, noise, values.shape).astype(np.float32) * (values > 0)
        volume[SPAN] *= 1 + 0.02 * (age - 70) + 0.1 * stage
        path = folder / name / "anat" / f"{name}{entities}_T1w.nii.gz"
        path.parent.mkdir(parents=True)
        nib.save(nib.Nifti1Image(np.clip(volume, 0, None) * (values > 0), template.grid.affine), path)
        rows.append((name, age, "MF"[number % 2], CLASSES[stage], f"word{number}", 20 + number % 5))
    table = pd.DataFrame(rows, columns=["participant_id", "age", "sex", "diagnosis", "remark", "score"])
    table.to_csv(folder / "participants.tsv", sep="\t", index=False)
    return table
