"""Studies on patients: what tables of a run say of planted relations, and which verdict a difference gets."""

from __future__ import annotations

from pathlib import Path

import grid_directions
import harness
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


@pytest.mark.ci
def test_relevance_beside_volume_and_intensity_is_of_true_positives_on_the_scale_of_their_fold(tmp_path):
    half = np.linspace(-1, 1, 9)
    tissue = np.append(np.repeat(half, 2), [0.5, -0.5])  # both folds hold the same tissue
    runs = [run_with(tmp_path / f"seed-{seed}", tissue) for seed in (1, 2)]
    (tmp_path / "warped" / "group").mkdir(parents=True)
    sides = [
        {"scan_id": f"s{k:02d}", "group": group, "tissue_mm3": size}
        for k, value in enumerate(tissue)
        for group, size in (("Hippocampus", 3000 - 500 * value), ("Hippocampus", 2000), ("Amygdala", 7 + k % 3))
    ]
    pd.DataFrame(sides).to_csv(tmp_path / "warped" / "group" / "volumes.tsv", sep="\t", index=False)
    known = pd.DataFrame({"scan_id": [f"s{k:02d}" for k in range(20)], "mmse": -tissue, "nwbv": tissue})
    known.to_csv(tmp_path / "warped" / "scans.tsv", sep="\t", index=False)
    known.to_csv(tmp_path / "warped" / "clinical.tsv", sep="\t", index=False)
    volumes = patients_relevance.hippocampal(tmp_path / "warped")
    assert volumes["volume"]["s00"] == pytest.approx(5500)
    found = patients_relevance.beside_tissue(runs[0], volumes["volume"])
    assert len(found) == 18
    assert found.corr()["intensity"]["lrpB000"] == pytest.approx(-1)
    text = patients_relevance.hippocampus(runs, volumes)
    assert "| L1, L3: LRP β = 0 and intensity | -1.00, -1.00 | -1.00 |" in text
    assert "| L1, L3: LRP β = 0 and volume | 1.00, 1.00 | 1.00 |" in text
    assert "| L3: volume, LRP β = 1 less β = 0 | -2.00, -2.00 | -2.00 |" in text
    assert "| L2: guided backpropagation of the predicted class and intensity | 1.00, 1.00 | 1.00 |" in text
    assert "| volume and MMSE, 20 patients | 1.00 | 1.00 | 1.00 to 1.00 |" in text
    assert "| volume and nWBV, 20 patients | -1.00 | -1.00 | -1.00 to -1.00 |" in text
    with pytest.raises(SystemExit, match="1 true positives have no hippocampal volume, such as s03"):
        patients_relevance.hippocampus(runs, volumes.drop("s03"))


def scores_of(shares, kind="needle"):
    """Scores of grids: a person each, shares by method and stage."""
    n = len(next(iter(shares.values())))
    return pd.concat([
        pd.DataFrame({"setting": "GridPG", "kind": kind, "method": name, "stage": stage, "grid": np.arange(n),
                      "scan": np.arange(n), "share": values})
        for (name, stage), values in shares.items()
    ])  # fmt: skip


@pytest.mark.ci
def test_agreement_with_grad_cam_grows_with_a_kernel_that_makes_it_so():
    cam = np.linspace(0, 1, 12)
    smooth = "smooth-integrated-gradients kernel="
    one = scores_of({
        ("integrated-gradients", 0): -cam, (f"{smooth}3", 0): np.tile([0.2, 0.4], 6), (f"{smooth}5", 0): cam**3,
        (f"{smooth}9", 0): np.roll(cam, 1), ("grad-cam", 2): cam, ("grad-cam", 0): -cam,
    })  # fmt: skip
    rows = {row.split(" | ")[0]: row for row in grid_directions.agreement([one, one], {k: str(k) for k in range(12)})}
    assert "| 12 | -1.00, -1.00 | -1.00 (-1.00 to -1.00) |" in rows["| A21: none"]
    assert "| 1.00, 1.00 | 1.00 (1.00 to 1.00) |" in rows["| A21: K = 5"]
    assert "| 2.00, 2.00 | 2.00 (2.00 to 2.00) |" in rows["| A21: last but one less none"]
    rolled = np.corrcoef(np.roll(np.arange(12), 1), np.arange(12))[0, 1]
    assert f"| {rolled:.2f}, {rolled:.2f} | {rolled:.2f} (" in rows["| A21: K = 9"]


def test_a_copy_that_is_marked_as_the_class_is_has_its_share():
    one = scores_of({("grad-cam", 2): np.full(6, 0.45), ("grad-cam", 0): np.zeros(6)}, kind="corner")
    one = one.assign(setting="DiFull", chance=0.25, class_share=0.85)
    row = grid_directions.in_the_copy([one, one], {k: str(k) for k in range(6)})
    assert row == "| A7: Grad-CAM in the copy, less an even map | 6 | 0.150, 0.150 | 0.150 (of everybody) |"


def test_a_layer_cam_below_chance_is_below_0_and_only_the_input_counts():
    one = scores_of({("layer-cam", 0): np.full(6, 0.2), ("layer-cam", 4): np.ones(6), ("grad-cam", 0): np.ones(6)})
    row = grid_directions.below_chance([one.assign(chance=0.25)] * 2, {k: str(k) for k in range(6)}, "norms")
    assert row == "| A12: LayerCAM at the input less chance, norms | 6 | -0.050, -0.050 | -0.050 (of everybody) |"


def test_shares_fall_in_nine_cells_by_what_was_planted():
    rng = np.random.default_rng(0)
    four = scores_of({("gradient", 0): 0.25 + rng.uniform(0, 0.1, 8), ("rise", 0): rng.uniform(0, 1, 8)})
    nine = four.assign(share=four["share"] - 0.14)
    (row, _) = grid_directions.fallen([four], [nine], {k: str(k) for k in range(8)})
    assert row.endswith(f"| A20: gradient at stage 0, {nine['share'].iloc[:8].mean():.2f} in nine cells | 8 | 0.140 "
                        "| 0.140 (of everybody) |")  # fmt: skip


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


def test_words_of_a_section_stay_when_its_tables_are_made_again(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# H\n\n## A\n\nSaid before.\n\nAll:\n\n| a |\n|---|\n| 1 |\n\nB:\n\n| 2 |\n\n## B\n\nKept.\n")
    new = "All:\n\n| a |\n|---|\n| 3 |"
    harness.show(new, page, "A", "H")
    assert page.read_text() == f"# H\n\n## A\n\nSaid before.\n\n{new}\n\n## B\n\nKept.\n"
    harness.show(new, page, "C", "H")
    assert page.read_text().endswith(f"Kept.\n\n## C\n\n{new}\n")


def test_a_page_of_patients_is_unchanged_by_tables_that_are_the_same(tmp_path):
    told = Path(__file__).parents[2] / "docs" / "benchmarks" / "patients_claims.md"
    page = tmp_path / "page.md"
    page.write_text(told.read_text(encoding="utf-8"), encoding="utf-8")
    section = page.read_text(encoding="utf-8").partition("## Probes\n")[2].partition("\n## ")[0]
    harness.write_tables(page, "Probes", section[section.index("| recipe") :], "Claims asked of patients")
    assert page.read_text(encoding="utf-8") == told.read_text(encoding="utf-8")


def test_a_difference_is_the_mean_over_people_of_their_means_over_seeds():
    index = pd.MultiIndex.from_tuples([(seed, person) for seed in (1, 2) for person in "vwxyz"])
    assert harness.across(pd.Series([1.0] * 5 + [2.0] * 5, index), "+.1f") == "5 | +1.0, +2.0 | +1.5"
