"""A run as large as the founding study's, 344 participants and 969 scans at 1 mm, written without an image of a scan.

The tables have every row that a real run has; the statistics are made by the stage that makes them, with few
permutations. Mean maps are noise of realistic tails over the whole brain, which compresses worse than relevance does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from scipy import ndimage

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.explaining.stage import CONSERVATION_TABLE
from heatlas.pipeline.regions.ranking import BETA_OVERLAP_TABLE, FINGERPRINTS_TABLE, fingerprint_table, overlap_table
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, RELEVANCE_TABLE, bilateral_rows
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import lrp_map_name
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.statistics.stage import analyse

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "reports"))
from run_factory import RunPlan, make_run

PEOPLE, SCANS = 344, 969
THREE_VISITS = SCANS - 2 * PEOPLE
RESOLUTION = 1.0
PLANTED = ("Hippocampus", "Amygdala", "Entorhinal area")


def write_large_run(folder: Path) -> RunLayout:
    """Write the run; minutes, nearly all for statistics and mean maps."""
    visits = (3,) * THREE_VISITS + (2,) * (PEOPLE - THREE_VISITS)
    overrides = {"registration": {"resolution_mm": RESOLUTION}, "attribution": {"keep_maps": "group"}}
    plan = RunPlan(until="training", people=PEOPLE // 2, folds=5, visits=visits, overrides=overrides)
    layout = make_run(folder, plan)
    config = read_config(layout.config)
    predictions = read_table(layout.group / "predictions.tsv")
    names = [*(lrp_map_name(beta) for beta in sorted(config.attribution.betas)), "gb"]
    rng = np.random.default_rng(0)
    _write_relevance(layout, predictions, names, rng)
    _write_mean_maps(layout, predictions, names, rng)
    scans = [
        scan for scan in ScanTable.read(layout.root / "scans.tsv").scans if scan.scan_id in set(predictions["scan_id"])
    ]
    analyse(layout, scans, predictions, config)
    return layout


def _write_relevance(layout: RunLayout, predictions: pd.DataFrame, names: list[str], rng: np.random.Generator) -> None:
    atlas = load_atlas("neuromorphometrics-cat12", load_template(RESOLUTION).grid)
    described = atlas.regions.frame()[["number", "name", "hemisphere", "group"]].rename(columns={"number": "region"})
    voxels = np.bincount(atlas.labels.ravel())
    described["n_voxels"] = voxels[described["region"]]
    rest = {"region": 0, "name": "unlabelled rest", "hemisphere": None, "group": None, "n_voxels": voxels[0]}
    described = pd.concat([pd.DataFrame([rest]), described], ignore_index=True)
    keys = predictions[["participant_id", "session_id", "scan_id", "target"]]
    table = keys.merge(pd.DataFrame({"map": names}), how="cross").merge(described, how="cross")
    strength = np.where(table["group"].isin(PLANTED), 3.0, 1.0) * np.where(table["target"] == 1, 1.5, 1.0)
    table["density"] = 1e-6 * strength * rng.lognormal(0, 0.4, len(table))
    table["sum"], table["evidence"], table["standard_error"] = table["density"] * table["n_voxels"], np.nan, np.nan
    relevance = table[[name for name in RELEVANCE_TABLE.meanings if name in table]]
    RELEVANCE_TABLE.write(layout, relevance)
    bilateral = bilateral_rows(relevance, predictions, "participants")
    written = bilateral[[name for name in RELEVANCE_BILATERAL_TABLE.meanings if name in bilateral]]
    RELEVANCE_BILATERAL_TABLE.write(layout, written)
    FINGERPRINTS_TABLE.write(layout.statistics("fingerprints"), fingerprint_table(bilateral, names))
    BETA_OVERLAP_TABLE.write(layout.statistics("beta_overlap"), overlap_table(bilateral, names[:-1]))
    ledger = keys.drop(columns="target").merge(pd.DataFrame({"map": names[:-1]}), how="cross")
    losses = {"absorbed_by_bias": 0.15, "lost_no_contribution": 0.05, "stabiliser": 0.0, "residual": 0.0}
    CONSERVATION_TABLE.write(layout.group / "conservation.tsv", ledger.assign(start_value=2.0, map_sum=1.8, **losses))


def _write_mean_maps(layout: RunLayout, predictions: pd.DataFrame, names: list[str], rng: np.random.Generator) -> None:
    template = load_template(RESOLUTION)
    inside = template.brain_mask
    smooth = ndimage.gaussian_filter(rng.normal(size=inside.shape).astype(np.float32), 4)[inside]
    smooth /= smooth.std()
    groups = [*predictions["label"].unique(), *predictions["outcome"].unique()]
    for place, (name, group) in enumerate((name, group) for name in names for group in groups):
        values = np.zeros(inside.shape, np.float32)
        noise = rng.normal(size=smooth.size).astype(np.float32)
        values[inside] = 1e-6 * np.exp(smooth + 0.7 * noise) * (1 if place % 3 else np.sign(noise))
        path = layout.group_map(str(group), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(values, template.grid.affine), path)
