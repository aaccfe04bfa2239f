"""Studies on patients: what tables of a run say of planted relations, and which verdict a difference gets."""

from __future__ import annotations

import grid_directions
import numpy as np
import pandas as pd
import patients_relevance
import pytest


def run_with(folder, tissue):
    """A run whose LRP falls with the tissue and whose guided maps rise with it, on the scale of each fold."""
    (folder / "group").mkdir(parents=True)
    (folder / "explanations").mkdir()
    n = len(tissue)
    scans, fold = [f"s{k:02d}" for k in range(n)], np.arange(n) % 2
    # The last two are a false negative and a control: their values would break the relation.
    people = pd.DataFrame({"scan_id": scans, "fold": fold, "target": 1, "probability": 0.9})
    people.loc[n - 2, "probability"], people.loc[n - 1, "target"] = 0.1, 0
    people.to_csv(folder / "group" / "predictions.tsv", sep="\t", index=False)
    pd.DataFrame({"scan_id": scans, "group": "Hippocampus", "intensity": tissue}).to_csv(
        folder / "group" / "image_regions.tsv", sep="\t", index=False
    )
    own = np.append(tissue[:-2], [99.0, -99.0])
    scale = np.where(fold == 1, 1000.0, 1.0)
    maps = {name: (3 - own) * scale for name in patients_relevance.BETAS.values()}
    maps |= {"lrpB100": (3 + own) * scale, patients_relevance.GUIDED: (3 + own) * scale}
    frames = [
        pd.DataFrame({"scan_id": scans, "map": name, "group": "Hippocampus", "sum": half / 2})
        for name, half in maps.items()
        for _ in ("left", "right")
    ]
    pd.concat(frames).to_csv(folder / "group" / "relevance.tsv", sep="\t", index=False)
    pd.concat(frames[-2:]).to_csv(
        folder / "explanations" / "desc-guidedBackpropagationTargetPredicted_regions.tsv", sep="\t", index=False
    )
    return folder


def test_relevance_beside_tissue_is_of_true_positives_on_the_scale_of_their_fold(tmp_path):
    half = np.linspace(-1, 1, 9)
    tissue = np.append(np.repeat(half, 2), [0.5, -0.5])  # both folds hold the same tissue
    runs = [run_with(tmp_path / f"seed-{seed}", tissue) for seed in (1, 2)]
    found = patients_relevance.beside_tissue(runs[0])
    assert len(found) == 18
    assert found.corr()["tissue"]["lrpB000"] == pytest.approx(-1)
    text = patients_relevance.hippocampus(runs)
    assert "| L1, L3: LRP β = 0 | -1.00, -1.00 | -1.00 |" in text
    assert "| L3: LRP β = 1 less β = 0 | 2.00, 2.00 | 2.00 |" in text
    assert "| L2: guided backpropagation of the predicted class | 1.00, 1.00 | 1.00 |" in text


@pytest.mark.parametrize(
    ("each", "low", "high", "near", "said"),
    [
        ([0.2, 0.1], 0.05, 0.3, False, "holds"),
        ([0.2, -0.1], 0.05, 0.3, False, "open"),  # a seed disagrees
        ([0.2, 0.1], -0.05, 0.3, False, "open"),
        ([-0.2, -0.1], -0.3, -0.05, False, "does not"),
        ([0.02, -0.05], -0.06, 0.04, True, "holds"),
        ([0.02, -0.12], -0.06, 0.04, True, "open"),
        ([0.3, 0.2], 0.15, 0.4, True, "does not"),
    ],
)
def test_a_verdict_needs_the_interval_and_every_seed(each, low, high, near, said):
    assert grid_directions.verdict(each, low, high, near) == said
