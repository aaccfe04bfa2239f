"""What is asked of finished runs of patients: what Böhle et al. (2019) say of LRP, and shares of maps in grids.

Of the first, runs have the start value, batch norms and values of β of the source, and one scan a person; guided
backpropagation of the predicted class is added to them by `heatlas explain` where it is missing. If OUT/volumes is
there, a run of the patients with a deformable registration, they have the volume of the hippocampus as well. `heatlas
evaluate RUN --parts grids` has judged the grids.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from inherent_runs import Ask, Workplace
from numpy.typing import NDArray
from patients import call

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.evaluation.claims.relevance import BETAS, GUIDED, INTENSITY, LRP, PREDICTED, VOLUME
from heatlas.pipeline.evaluation.scores.localisation import entropy, gini
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, RunLayout
from heatlas.pipeline.statistics.data.values import of_scan
from heatlas.studies.grids.directions import by_participant
from heatlas.studies.grids.stage import read_scores

Floats = NDArray[np.float64]
PLACES = ["setting", "kind", "method", "stage"]
IN_THE_COPY = "in the copy, less an even map"
"""Of the share in cells of the class that the head cannot see."""


def by_region(work: Workplace, _: int) -> Iterator[tuple[str, Ask]]:
    yield "relevance", partial(sums, work.run)
    yield "images of the scans", partial(of_images, RunLayout(work.run.resolve()))
    if (volumes := work.out / "volumes" / "group" / "volumes.tsv").is_file():
        yield VOLUME, partial(hippocampal, volumes)


def sums(run: Path) -> pd.DataFrame:
    """Sums by region of each map, "MAP: REGION"."""
    wide = relevance(run).pivot_table("sum", "participant_id", ["map", "group"], aggfunc="sum")
    wide.columns = [f"{name}: {group}" for name, group in wide.columns]
    return wide.rename_axis("person").reset_index()


def relevance(run: Path) -> pd.DataFrame:
    """Relevance of the regions of the atlas, of all maps."""
    every = pd.concat([pd.read_csv(run / "group" / "relevance.tsv", sep="\t"), predicted(run).assign(map=PREDICTED)])
    return every[
        (every["region"] > 0) & (every["n_voxels"] > 0) & every["map"].isin([*BETAS.values(), GUIDED, PREDICTED])
    ]


def voxels_of(run: Path) -> dict[str, dict[str, int]]:
    """Voxels of each region that sums are of."""
    own = relevance(run)
    one = own[(own["map"] == LRP) & (own["scan_id"] == own["scan_id"].iloc[0])]
    return {"voxels": {str(name): int(n) for name, n in one.groupby("group")["n_voxels"].sum().items()}}


def of_images(layout: RunLayout) -> Iterator[dict[str, object]]:
    """Gini index and entropy of the positive values of each map of LRP in the brain; intensity of the hippocampus."""
    config = read_run_config(layout)
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
    for person in pd.read_csv(layout.group / "predictions.tsv", sep="\t")["participant_id"]:
        files = layout.scan(person, None, config.registration.resolution_mm)
        tissue = of_scan(files, configured_input(config), atlas).set_index("group")["intensity"]
        row: dict[str, object] = {"person": person, INTENSITY: float(tissue["Hippocampus"])}
        for beta, name in BETAS.items():
            own = voxels(files.relevance_map(name))[voxels(files.brain_mask) > 0]
            row |= {f"Gini index at {beta:g}": gini(own), f"entropy at {beta:g}": entropy(own)}
        yield row


def voxels(path: Path) -> Floats:
    return np.asarray(nib.load(path).dataobj, dtype=float)


def predicted(run: Path) -> pd.DataFrame:
    """Sums of guided backpropagation of the class that the network finds, as the code of the source makes it."""
    table = run / "explanations" / "desc-guidedBackpropagationTargetPredicted_regions.tsv"
    if not table.is_file():
        call("explain", str(run), "--method", "guided-backpropagation", "--target", "predicted", "--n-procs", "1")
    return pd.read_csv(table, sep="\t")


def hippocampal(table: Path) -> pd.DataFrame:
    """Volume of both hippocampi without fluid."""
    rows = pd.read_csv(table, sep="\t", na_values="n/a")
    rows = rows[(rows["group"] == "Hippocampus") & rows["tissue_mm3"].notna()]
    return rows.groupby("participant_id")["tissue_mm3"].sum().rename(VOLUME).rename_axis("person").reset_index()


def grids(work: Workplace, _: int) -> Iterator[tuple[str, Ask]]:
    yield "grids", partial(shares, work.run)


def grids_of_nine(work: Workplace, _: int) -> Iterator[tuple[str, Ask]]:
    """The same of a run that was judged in grids of nine cells."""
    yield "nine cells", partial(shares, work.run, "nine cells, ")


def shares(run: Path, before: str = "") -> pd.DataFrame:
    """Of each person the mean share by place, as "SETTING KIND: METHOD at STAGE"."""
    scores, people = read_grids(run)
    scores = scores.assign(copy=(scores["class_share"] - scores["share"]).fillna(0) - scores["chance"])
    columns = {}
    for (setting, kind, method, stage), own in scores.groupby(PLACES, sort=False):
        name = f"{before}{setting} {kind}: {method} at {stage:g}"
        columns[name] = by_participant(own, people, "share")
        if setting == "DiFull":
            columns[f"{name}, {IN_THE_COPY}"] = by_participant(own, people, "copy")
    return pd.DataFrame(columns).rename_axis("person").reset_index()


def read_grids(run: Path) -> tuple[pd.DataFrame, dict[int, str]]:
    """Scores of the grids of a run, and the person of each scan."""
    scores = read_scores(sorted((EvaluationLayout(run.resolve()).evaluation / "grids").glob("*_scores.tsv")))
    people = {place: scan.participant_id for place, scan in enumerate(ScanTable.read(run / "scans.tsv").kept)}
    return scores[scores["grid"].notna()], people
