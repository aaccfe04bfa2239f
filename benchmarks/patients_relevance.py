"""What Böhle et al. (2019) say of LRP and guided backpropagation, asked of finished runs of patients.

    python benchmarks/patients_relevance.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --numbers relevance
    python benchmarks/patients_relevance.py OUT/seed-43 OUT/seed-44 OUT/seed-45 --input INPUT --volumes VOLUMES

Runs are those of `benchmarks/patients.py` with the start value, batch norms and values of β of the source, and with one
scan a person; they are only read, but for guided backpropagation of the predicted class, which `heatlas explain` adds
where it is missing. The first line stores what networks said of each person, of which docs/claims is made. With
VOLUMES, a deformable registration of the patients of INPUT (made if it is not there), they have the volume of the
hippocampus as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from claim_numbers import NUMBERS, write_of_runs
from harness import arguments_of
from numpy.typing import NDArray
from patients import call

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.evaluation.claims.relevance import BETAS, GUIDED, INTENSITY, LRP, PREDICTED, VOLUME
from heatlas.pipeline.evaluation.scores.localisation import entropy, gini
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.data.values import of_scan

Floats = NDArray[np.float64]


def numbers_of(run: Path, volumes: pd.Series | None = None) -> pd.DataFrame:
    """Sums by region of each map, sparsity by β, intensity and volume of the hippocampus: person, measure and value."""
    people = pd.read_csv(run / "group" / "predictions.tsv", sep="\t").sort_values("scan_id")
    person = people.set_index("scan_id")["participant_id"].rename("person")
    sums = relevance(run).groupby(["scan_id", "map", "group"], as_index=False)["sum"].sum()
    rows = [
        sums.assign(measure=sums["map"] + ": " + sums["group"]).rename(columns={"sum": "value"}),
        *of_images(RunLayout(run.resolve()), people),
    ]
    if volumes is not None:
        rows.append(people.assign(measure=VOLUME, value=people["participant_id"].map(volumes)).dropna(subset="value"))
    return pd.concat(rows).join(person, on="scan_id")[["person", "measure", "value"]]


def relevance(run: Path) -> pd.DataFrame:
    """Relevance of the regions of the atlas, of all maps."""
    every = pd.concat([pd.read_csv(run / "group" / "relevance.tsv", sep="\t"), predicted(run).assign(map=PREDICTED)])
    return every[
        (every["region"] > 0) & (every["n_voxels"] > 0) & every["map"].isin([*BETAS.values(), GUIDED, PREDICTED])
    ]


def voxels_of(run: Path) -> dict[str, int]:
    """Voxels of each region that sums are of."""
    own = relevance(run)
    one = own[(own["map"] == LRP) & (own["scan_id"] == own["scan_id"].iloc[0])]
    return {str(name): int(n) for name, n in one.groupby("group")["n_voxels"].sum().items()}


def of_images(layout: RunLayout, people: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Gini index and entropy of the positive values of each map of LRP in the brain; intensity of the hippocampus."""
    config, found = read_run_config(layout), []
    atlas = PackedAtlas.of(load_atlas(config.regions.atlas, configured_grid(config.registration)))
    for participant in people["participant_id"]:
        files = layout.scan(participant, None, config.registration.resolution_mm)
        tissue = of_scan(files, configured_input(config), atlas).set_index("group")["intensity"]
        row = {INTENSITY: float(tissue["Hippocampus"])}
        for beta, name in BETAS.items():
            own = voxels(files.relevance_map(name))[voxels(files.brain_mask) > 0]
            row |= {f"Gini index at {beta:g}": gini(own), f"entropy at {beta:g}": entropy(own)}
        found.append(row)
    yield from (people.assign(measure=name, value=[row[name] for row in found]) for name in found[0])


def voxels(path: Path) -> Floats:
    return np.asarray(nib.load(path).dataobj, dtype=float)


def predicted(run: Path) -> pd.DataFrame:
    """Sums of guided backpropagation of the class that the network finds, as the code of the source makes it."""
    table = run / "explanations" / "desc-guidedBackpropagationTargetPredicted_regions.tsv"
    if not table.is_file():
        call("explain", str(run), "--method", "guided-backpropagation", "--target", "predicted", "--n-procs", "1")
    return pd.read_csv(table, sep="\t")


def warped(source: Path, run: Path) -> Path:
    """A run with the volumes of the patients, registered by deformation."""
    if not (run / "group" / "volumes.tsv").is_file():
        settings = run.with_suffix(".toml")
        settings.write_text('[registration]\nresolution_mm = 2.0\ntransform = "syn-quick"\n', encoding="utf-8")
        own = ["--config", settings, "--include", "cdr > 0"]
        call("run", source, run, "--preset", "patients", *own, "--stop-after", "registration", "--n-procs", 1)
    return run


def hippocampal(run: Path) -> pd.Series:
    """Volume of both hippocampi without fluid by person, of a run with a deformable registration."""
    rows = pd.read_csv(run / "group" / "volumes.tsv", sep="\t", na_values="n/a")
    rows = rows[(rows["group"] == "Hippocampus") & rows["tissue_mm3"].notna()]
    return rows.groupby("participant_id")["tissue_mm3"].sum()


def main() -> None:
    options = arguments_of(
        __doc__,
        "runs --input --volumes",
        input={"type": Path, "help": "scans of the runs, for VOLUMES"},
        volumes={"type": Path, "help": "run with a deformable registration, for the volume of the hippocampus"},
        numbers=("relevance", NUMBERS),
    )
    volumes = hippocampal(warped(options.input, options.volumes)) if options.volumes else None
    of = partial(numbers_of, volumes=volumes)
    print(write_of_runs(options.numbers, options.runs, of, voxels=voxels_of(options.runs[0])))


if __name__ == "__main__":
    main()
