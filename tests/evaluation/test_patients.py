"""Studies on patients."""

from __future__ import annotations

import types
from pathlib import Path
from types import SimpleNamespace

import grid_directions
import harness
import numpy as np
import pandas as pd
import patients_cams
import patients_evidence as study
import patients_halves
import patients_measures
import patients_network_studies
import patients_networks
import patients_planted
import patients_relevance
import patients_stream
import pytest
import torch
from inherent_runs import Recipe, recipes_of
from patients_halves import PRESET, Half, Study
from patients_halves import Recipe as OutsideRecipe
from patients_network_studies import STUDIES
from patients_outside import in_short, summary
from scipy.special import logit
from torch import nn

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople
from heatlas.pipeline.evaluation.scores.map_scores import BOX_COLUMNS, ScanMasks
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.training.baselines import ridge
from heatlas.studies.representations.points import points_of
from tests.attribution.inherent_toys import SHAPE as REMOVAL_SHAPE
from tests.attribution.inherent_toys import bcos, coda, scans

# Studies on patients: what tables of a run say of planted relations, and which verdict a difference gets.


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


# Studies of CAM methods, streams, probes and gradients on patients: what their tables say of answers known by hand.

SHAPE = (8, 8, 8)


class Bright(nn.Module):
    """The second class is the more likely the more of a corner of 2 × 2 × 2 voxels is seen: logit 2 for all of it."""

    def forward(self, volumes):
        logit = 2 * volumes[:, 0, :2, :2, :2].mean((1, 2, 3))
        return torch.stack([torch.zeros_like(logit), logit], 1)


def test_fake_cam_hides_the_first_voxel_of_the_brain_in_place_of_a_corner():
    scan = torch.zeros(SHAPE)
    scan[1, 0, 2], scan[1, 1, 0] = 0.5, 1.0
    assert torch.nonzero(patients_cams.all_but_one(scan) == 0).tolist() == [[1, 0, 2]]


def copied():
    truth = np.zeros(SHAPE, dtype=bool)
    truth[:2, :2, :2] = True
    nothing, whole = np.zeros(SHAPE, dtype=bool), np.ones(SHAPE, dtype=bool)
    places = ScanMasks(whole, truth, nothing, nothing)
    return patients_planted.Copied(types.SimpleNamespace(model=Bright()), torch.ones(1, 1, *SHAPE), 1, places)


def test_a_map_of_the_truth_and_one_that_is_even_get_what_they_should():
    copy = copied()
    perfect = copy.row(torch.from_numpy(copy.truth).float())
    p = 1 / (1 + np.exp(-2))
    assert {name: perfect[name] for name in ("le", "om", "f1", "sp", "sp, ties", "ep", "ad", "ag", "ai")} == (
        pytest.approx({"le": 0, "om": 0, "f1": 100, "sp": 100, "sp, ties": 100, "ep": 100, "ad": 0, "ag": 0, "ai": 0})
    )
    assert perfect["sm"] == pytest.approx(np.log(0.05) - np.log(p))  # 8 of 512 voxels are below the least share
    assert perfect["ad_outside"] == pytest.approx(100 * (p - 0.5) / p)
    assert perfect["ad_inside"] == 0
    even = copy.row(copy.map(patients_planted.BOXES))
    assert even["chance"] == even["sp"] == even["ep"] == pytest.approx(100 * 8 / 512)
    assert even["sp, ties"] == 100
    assert even["le"] == pytest.approx(100 * (1 - 8 / 512))


def of_three_seeds(methods, value):
    """Rows of six people in each of three seeds; values of a score, and of IoUs with true boxes."""
    rows = [
        {"seed": seed, "participant_id": f"p{person}", "method": name, "om": value(name, seed, person), "right": 90.0,
         **dict.fromkeys(BOX_COLUMNS, methods[name])}
        for name in methods for seed in (1, 2, 3) for person in range(6)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.ci
def test_differences_are_over_people_and_box_accuracy_is_that_of_a_set():
    rows = of_three_seeds({"a": 0.6, "b": 0.4}, lambda name, seed, person: (name == "a") * seed + person)
    assert patients_planted.difference(rows, "om", "a", "b") == "| OM: a less b | 6 | +1.00, +2.00, +3.00 | +2.00 |"
    # An IoU of .6 is right for two of the three, one of .4 for one.
    assert patients_planted.difference(rows, "ba", "a", "b") == "| BA: a less b | 6 | +33.3, +33.3, +33.3 | +33.3 |"
    assert patients_planted.means(rows, ("om", "ba"), ("a",))[2] == "| a | 3.50, 4.50, 5.50 | 66.7, 66.7, 66.7 |"


def test_only_people_who_have_all_maps_in_every_seed_are_compared():
    rows = of_three_seeds({"a": 0.6, "b": 0.4}, lambda *_: 1.0)
    missing = (rows["seed"] == 2) & (rows["participant_id"] == "p0") & (rows["method"] == "b")
    found = patients_planted.with_all(rows[~missing], ("a", "b")).groupby("seed")["participant_id"].unique()
    assert [list(people) for people in found] == [[f"p{person}" for person in range(first, 6)] for first in (0, 1, 0)]


def test_inside_less_outside_is_of_one_map():
    rows = of_three_seeds({"a": 0.6}, lambda *_: 1.0).assign(ad_inside=70.0, ad_outside=40.0)
    assert patients_planted.inside_less_outside(rows, "ad", "a") == (
        "| AD: a, inside less outside | 6 | +30.0, +30.0, +30.0 | +30.0 |"
    )


def test_later_starts_of_a_stream_are_less_all_earlier_ones(tmp_path):
    for name, heads in (("seed-1", {"CA-Stream": 20.0, "from stage 1": 19.0, "from stage 3": 14.0}),):
        run = tmp_path / name
        run.mkdir()
        rows = [
            {"participant_id": f"p{person}", "method": f"{cam}, {head}", "AG": value + person}
            for cam in patients_stream.CAMS for head, value in heads.items() for person in range(5)
        ]  # fmt: skip
        pd.DataFrame(rows).to_csv(run / "cams.tsv", sep="\t", index=False)
    assert patients_stream.HEADS["from stage 3"].first_attended == 3
    text = patients_stream.starts([tmp_path / "seed-1"], ["from stage 1", "from stage 3"])
    assert "| AG: grad-cam, from stage 1 less grad-cam, CA-Stream | 5 | -1.0 | -1.0 |" in text
    assert "| AG: grad-cam++, from stage 3 less grad-cam++, from stage 1 | 5 | -5.0 | -5.0 |" in text


def test_likeness_of_a_stream_is_less_that_of_a_second_head_of_average_pooling(tmp_path):
    likeness = {"CA-Stream": 0.4, patients_stream.AGAIN: 0.9}
    rows = [
        {"participant_id": f"p{person}", "method": f"grad-cam, {head}", "likeness": value - person * (value > 0.5) / 10}
        for head, value in likeness.items()
        for person in range(5)
    ]
    for name in ("seed-1", "seed-2"):
        (tmp_path / name).mkdir()
        pd.DataFrame(rows).to_csv(tmp_path / name / "cams.tsv", sep="\t", index=False)
    row = patients_stream.less_alike(patients_stream.likeness([tmp_path / "seed-1", tmp_path / "seed-2"]), "grad-cam")
    start = "| likeness: grad-cam, CA-Stream less grad-cam, GAP again | 5 | -0.30, -0.30 | -0.30 ("
    assert row.startswith(start)


def test_differences_of_maps_that_the_tables_leave_out_are_shown():
    share, smooth = "share: inherent at 0", "share: smooth-input-x-gradient kernel=3 at 0"
    rows = pd.DataFrame(
        {"recipe": "B-cos, B 2", "seed": seed, "person": f"p{person}", "measure": measure, "value": value + person}
        for seed in (1, 2) for person in range(5) for measure, value in ((share, 30.0), (smooth, 26.0))
    )  # fmt: skip
    text = patients_networks.section(rows, STUDIES["own-further"], pd.DataFrame())
    assert f"| B-cos, B 2 | {smooth} |" not in text
    assert f"| B8, smoothed | B-cos, B 2, {share} less B-cos, B 2, {smooth} | 5 | +4.00, +4.00 | +4.00 |" in text


def test_people_are_recognised_by_those_a_fold_trains_on_alone():
    people = [f"{kind}{number}" for kind in "ac" for number in range(8)]
    class_of = {name: "AD" if name[0] == "a" else "CN" for name in people}
    random = np.random.default_rng(0)
    sides = np.array([[1.0, 0.1] if name[0] == "a" else [0.1, 1.0] for name in people])
    values = sides + 0.01 * random.standard_normal(sides.shape)
    values[people.index("a7")] = [0.1, 1.0]  # a patient who looks like a control
    fold = Fold(0, tuple(name for name in people if name[1] < "6"), (), ("a6", "a7", "c6", "c7"))
    found = patients_measures.recognised(points_of(values, people), fold, class_of, 1)
    assert set(found) == set(fold.test)
    for measure in ("nearest 1", "nearest 10", "few-shot probe"):
        assert {name: row[measure] for name, row in found.items()} == {"a6": 100, "a7": 0, "c6": 100, "c7": 100}
    swapped = {name: {"AD": "CN", "CN": "AD"}[kind] if name in fold.train else kind for name, kind in class_of.items()}
    turned = patients_measures.recognised(points_of(values, people), fold, swapped, 1)
    assert {name: row["few-shot probe"] for name, row in turned.items()} == {"a6": 0, "a7": 100, "c6": 0, "c7": 0}


def test_backbones_need_a_registered_run_of_younger_people(tmp_path):
    work = types.SimpleNamespace(out=tmp_path)
    with pytest.raises(SystemExit, match="no registered run of younger people"):
        patients_measures.learned(work, "SimCLR", 43)


def test_deeper_heads_are_compared_with_linear_ones_of_their_loss():
    names = [f"founding, {head}, {loss}" for head in ("linear", "mlp-3", "bcos-3") for loss in ("CE", "BCE")]
    measures = ("correct", "share: grad-cam at 1", "gini: x")
    rows = pd.DataFrame([{"recipe": name, "measure": measure} for name in names[1:] for measure in measures])
    found = list(STUDIES["depth"].pairs(rows))
    assert ("P11", "founding, mlp-3, BCE", "correct", "founding, linear, BCE", "correct") in found
    assert {pair[0] for pair in found if "grad-cam" in pair[2]} == {"P12"}
    assert len(found) == 4  # none of cross-entropy, whose linear head is missing


def test_lime_is_asked_of_linear_heads_by_themselves(monkeypatch):
    def plain(_, __):
        return [
            Recipe(name, {"attribution": {}}, ("grad-cam",)) for name in ("founding, linear, CE", "founding, mlp-3, CE")
        ]

    monkeypatch.setattr(patients_network_studies, "probe_recipes", plain)
    found = {one.name: one for one in STUDIES["losses"].recipes(None, 43)}
    assert list(found) == ["founding, linear, CE", "LIME of founding, linear, CE"]
    assert "score-cam" in found["founding, linear, CE"].methods
    assert found["LIME of founding, linear, CE"].methods == ("lime",)


def test_what_is_left_is_also_a_share_of_the_answer_to_the_whole_scan():
    volume = torch.ones(1, 1, *SHAPE)
    least = torch.zeros(SHAPE)
    least[:2, :2, :2] = 1  # the class stays as likely as it was until the last
    found = patients_networks.shape(Bright(), volume, 1, least)
    assert found["least first"] == pytest.approx(found["least first, of the whole"] * 1 / (1 + np.exp(-2)), rel=1e-5)
    assert 95 < found["least first, of the whole"] <= 100
    assert "least first, of the whole" not in patients_networks.shape(Bright(), volume, 0, least)  # not recognised


def test_a_loss_that_is_no_longer_finite_is_shown_as_such():
    losses = pd.DataFrame({"recipe": ["a"] * 4 + ["b"], "seed": [1, 1, 2, 2, 1], "epoch": [1, 2, 1, 2, np.nan]}).assign(
        train_loss=[0.7, 0.1, 0.8, 0.9, np.nan]
    )
    found = patients_networks.losses_table(losses)
    assert found[3] == "| a | 0.700, 0.800 | 0.100, 0.900 | 0.700, 0.900 |"
    assert found[4] == "| b | nan | nan | nan |"


# Whether accuracy and evidence go together over networks: measures of planted networks, and the baseline's parts.

N, REGIONS = 80, 12
WANTED = 3


@pytest.fixture(scope="module")
def people():
    fold = np.arange(N) % 4
    return HeldOutPeople(np.array([f"p{k:02d}" for k in range(N)]), fold, np.arange(N) // 4 % 2 == 1)


def network(people, name, family, size, seed, whole=True):
    """A network whose logit and evidence in one region rise with `size`; the others hold noise, scaled by the fold."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(N, REGIONS))
    values[:, WANTED] += size * people.positive
    return study.Evidence(name, family, whole, values[:, WANTED] + 5 * people.fold, values * (1 + people.fold)[:, None])


def test_measures_of_planted_networks(people):
    strong = [network(people, f"strong {k}", "abc"[k], 3.0, k) for k in range(3)]
    weak = network(people, "weak", "d", 0.0, 9)
    tissue = -np.abs(strong[0].densities)  # darker where the first network marks more, whatever the class
    tissue[:, WANTED] -= 9 * people.positive
    found = study.measures_of([*strong, weak], [*strong, weak], tissue, people, np.ones(N), WANTED)
    assert (found["area"][:3] > 0.9).all()
    assert abs(found.loc["weak", "area"] - 0.5) < 0.15
    assert found["place"][:3].tolist() == [1, 1, 1]
    assert (found["g"][:3] > 1).all()
    assert abs(found.loc["weak", "g"]) < 0.6
    table = found.assign(name=0)
    assert study.better(table, "place").tolist() == (-found["place"]).tolist()
    # who is drawn twice counts twice
    twice = study.measures_of(strong, strong, tissue, people, np.full(N, 2.0), WANTED)
    assert twice["area"].to_numpy() == pytest.approx(found["area"][:3].to_numpy())


def test_families_count_once_and_the_own_one_not_at_all():
    g = {name: np.array(values, float) for name, values in
         {"a": [3, 2, 1], "b1": [1, 2, 3], "b2": [1, 2, 3], "c": [2, 3, 1]}.items()}  # fmt: skip
    known = [study.Evidence(name, name[0], True, g[name], g[name]) for name in g]
    assert study.other_families(known, "a", g).tolist() == [2.5, 1.5, 2.0]  # b: 3, 2, 1; c: 2, 1, 3
    assert study.other_families(known, "b", g).tolist() == [1.5, 1.5, 3.0]


@pytest.mark.ci
def test_the_interval_is_over_networks_and_people():
    names = list("abcdefgh")
    base = np.arange(8.0)
    same = [pd.DataFrame({"area": base, "place": -base, "g": base}, index=names)] * 200
    assert study.correlations(same, names, "place", 0) == (pytest.approx(1), pytest.approx(1))
    random = np.random.default_rng(0)
    loose = [one.assign(g=random.permutation(base)) for one in same]
    low, high = study.correlations(loose, names, "g", 0)
    assert low < -0.4 < 0.4 < high


@pytest.mark.sample(1)
@pytest.mark.parametrize("columns", [6, 90])
def test_the_baseline_is_that_of_runs_and_its_parts_add_up(columns):
    random = np.random.default_rng(1)
    ill = np.arange(60) % 2 == 1
    train, test = random.normal(size=(60, columns)), random.normal(size=(10, columns))
    train[:, 0] += ill
    names = [f"p{k}" for k in range(60)]
    said, parts = study.ridge_parts(train, ill, names, test, 5)
    known = ridge.predicted(train, ill.astype(float), names, test, 2, 5)[:, 1]
    assert said == pytest.approx(logit(known), abs=1e-6)
    control = study.ridge_parts(train, ill, names, train[~ill].mean(0, keepdims=True), 5)[0]
    assert parts.sum(1) == pytest.approx(said - control, abs=1e-9)


def test_recipes_differ_and_say_what_was_taken_away():
    known = {one.name: one for one in study.RECIPES}
    assert len(known) == len(study.RECIPES) >= 12
    assert len({study.family_of(one) for one in study.RECIPES}) >= 6
    assert {name for name, one in known.items() if not study.is_whole(one)} == {
        "founding, 2 epochs", "founding, 4 epochs", "founding, 8 epochs",
        "founding, half of the people", "founding, a quarter of the people",
    }  # fmt: skip


# Choices in halves of the patients: the rule, the halves, exact evidence of a stack, the page of the answers.

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "benchmarks" / "patients_outside.tsv"


def half(study: object = None) -> Half:
    return Half(study, 0, Path())


@pytest.mark.parametrize(
    ("better", "expected"),
    [
        (lambda recipe: recipe.intensities == "percentiles", OutsideRecipe(intensities="percentiles")),
        (lambda recipe: recipe.registration == "common", OutsideRecipe(registration="common")),
        # Only together with percentiles, which were not taken alone: choices are made one by one.
        (lambda recipe: recipe.intensities == "percentiles" and recipe.weight_decay == 1e-2, OutsideRecipe()),
        (lambda recipe: 0, OutsideRecipe()),  # at a tie the first value stays
    ],
)
def test_a_value_is_chosen_where_it_is_better_than_the_first(monkeypatch, better, expected) -> None:
    monkeypatch.setattr(patients_halves, "area", lambda rows: 0.5 + 0.1 * rows)
    monkeypatch.setattr(Half, "cross_validated", lambda _, recipe: better(recipe))
    assert half().chosen == expected


def test_halves_are_apart_and_alike_in_severity() -> None:
    severity = [0.0] * 13 + [0.5] * 8 + [1.0] * 3 + [2.0] * 2
    study = Study(Path(), Path())
    study.__dict__["scans"] = [SimpleNamespace(cdr=one) for one in severity]
    for number in range(3):
        first, second = study.halves(number)
        assert sorted([*first, *second]) == list(range(26))
        for part, counts in ((first, [7, 4, 3]), (second, [6, 4, 2])):
            assert np.unique(np.minimum(np.array(severity)[part], 1), return_counts=True)[1].tolist() == counts
    assert set(study.halves(0)[0]) != set(study.halves(1)[0])


def test_what_a_stack_adds_up_to_is_what_its_parts_add_up_to(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    logits, evidence = rng.normal(size=(2, 5)), rng.normal(size=(2, 5, 4))
    evidence[:, :, 3] += logits - evidence.sum(axis=2)
    own = half()
    own.__dict__.update({"stacked": (0.3, 0.6), "parts": (None, None)})
    monkeypatch.setattr(Half, "applied", lambda *_: logits[0])
    monkeypatch.setattr(Half, "evidence", lambda *_: evidence[0])
    monkeypatch.setattr(Half, "ridge", lambda *_: (logits[1], evidence[1]))
    said, parts, _ = own.together()
    np.testing.assert_allclose(said, 0.3 * logits[0] + 0.6 * logits[1])
    np.testing.assert_allclose(parts.sum(axis=1), said)


def test_the_page_has_the_table_of_the_kept_answers() -> None:
    page = (ROOT / "docs" / "benchmarks" / "patients_search.md").read_text(encoding="utf-8")
    rows = pd.read_csv(KEPT, sep="\t")
    assert summary(rows) in page
    assert in_short(rows) in (ROOT / "docs" / "patients.md").read_text(encoding="utf-8").splitlines()
    assert PRESET.config.training.max_epochs == 20
    assert not rows.astype(str).apply(lambda column: column.str.contains("OAS|sub-")).to_numpy().any()


# Tests of own maps: removal, layers drawn anew, constants and air, of networks whose answers are known.


class _Shaped(NetworkInput):
    shape = REMOVAL_SHAPE  # type: ignore[assignment]


def loaded(model: nn.Module) -> LoadedModel:
    return LoadedModel(model, _Shaped(4.0, None), ("CN", "AD"), {})  # type: ignore[arg-type]


def test_the_largest_go_first_and_up_to_a_quarter_of_the_brain():
    volume = torch.zeros(1, 1, 4, 4, 10)
    volume[0, 0, :, :, :5] = torch.arange(1.0, 81).reshape(4, 4, 5)  # 80 of 160 voxels are brain
    share = lambda volumes: (volumes > 0).sum((1, 2, 3, 4)) / 80  # noqa: E731
    assert patients_measures.while_removed(share, volume, volume[0, 0]) == pytest.approx(100 * (1 - 0.25 / 2))
    last = lambda volumes: (volumes == 80).sum((1, 2, 3, 4)).float()  # noqa: E731
    assert patients_measures.while_removed(last, volume, volume[0, 0]) == pytest.approx(100 / 11)  # gone after a step
    assert patients_measures.while_removed(last, volume, -volume[0, 0]) == pytest.approx(100)


def test_of_a_linear_network_the_own_map_is_the_best_order():
    found = patients_measures.removal(loaded(coda(outputs=2)), scans(1), 1)
    assert found["most first: own"] < min(found["before"], found["random order"], found["most first: gradient"])
    assert found["least first: own"] > max(found["before"], found["random order"])


def test_layers_drawn_anew_change_the_map_and_the_same_layers_do_not(monkeypatch):
    network, scan = loaded(coda(outputs=2)), scans(1)
    found = patients_measures.cascade(network, scan, 1)
    assert 0 <= found["like the trained map: all layers"] < 0.9
    monkeypatch.setattr(patients_measures, "randomised", lambda same, *_: same)
    assert list(patients_measures.cascade(network, scan, 1).values()) == pytest.approx([1, 1, 1, 1])


def test_constants_are_nothing_without_biases_and_the_whole_margin_where_they_are_huge():
    scan = scans(1)
    found = patients_measures.constants(loaded(bcos(outputs=2)), scan, 0)
    assert found["constants: more than half"] == 0
    assert found["constants: size"] == pytest.approx(0, abs=1e-9)  # what is left is rounding, and its sign anything
    model, biased = bcos(outputs=2), nn.Linear(2, 2).double()
    with torch.no_grad():
        biased.weight.copy_(torch.eye(2))
        margin = float(model(scan) @ torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
        for factor, half, second in ((3, 100, 0), (-0.5, 0, 100), (0.5, 0, 0)):
            biased.bias.copy_(torch.tensor([0, factor * margin]))
            found = patients_measures.constants(loaded(StagedModel([*model.stages, biased]).eval()), scan, 0)
            assert found["constants: size"] == pytest.approx(abs(factor * margin))
            assert (found["constants: more than half"], found["constants: for the second"]) == (half, second)


def test_air_contributes_where_it_is_seen():
    scan = scans(1)
    outside = 100 * float((scan == 0).double().mean())
    found = patients_measures.drawn(loaded(bcos(outputs=2)), scan, 1)
    assert found["even map: outside"] == pytest.approx(outside)
    assert found["class: positive outside"] == found["less the mean: positive outside"] == 0
    found = patients_measures.drawn(loaded(bcos(outputs=2, background="dark")), scan, 1)
    assert 0 < found["class: positive outside"] < 100


def test_a_difference_from_a_number_is_of_those_who_have_it():
    frame = pd.DataFrame({"recipe": "a", "seed": [1] * 5 + [2] * 5, "person": list("vwxyz") * 2}).assign(
        measure="m", value=[60.0, 70, 80, 90, 100, 60, 60, 60, 60, 60]
    )
    line = patients_networks.difference(frame, ("B17", "a", "m", "", "50"))
    assert line is not None
    assert line.startswith("| B17 | a, m less 50 | 5 | +30.00, +10.00 | +20.00 (")
    assert "less chance | 5 | +55.00, +35.00 | +45.00" in str(
        patients_networks.difference(frame, ("A", "a", "m", "", ""))
    )
    assert patients_networks.difference(frame[frame["person"] != "z"], ("B17", "a", "m", "", "50")) is None


def test_every_difference_is_of_recipes_and_measures_that_are_made():
    made = {one.name for one in recipes_of("tests")}
    study = patients_network_studies.STUDIES["tests"]
    assert set(study.measures) <= made
    network, dark = loaded(coda(outputs=2)), loaded(bcos(outputs=2, background="dark"))
    known = {
        name: {key for one in own for key in one(dark if name.startswith("B-cos") else network, scans(1), 1)}
        for name, own in study.measures.items()
    }
    for claim, *sides in study.pairs(pd.DataFrame()):
        for recipe, measure in (sides[:2], sides[2:]):
            if recipe:
                assert recipe in made, claim
                assert measure == "correct" or "share: " in measure or measure in known[recipe], claim
            else:
                float(measure or 0)


def test_own_maps_of_a_larger_b_are_compared_with_maps_that_are_made():
    made: dict[str, Recipe] = {one.name: one for one in recipes_of("own-further")}
    assert [made[name].settings["model"]["b"] for name in ("B-cos, B 2", "B-cos, B 2.5")] == [2, 2.5]
    for claim, *sides in patients_network_studies.STUDIES["own-further"].pairs(pd.DataFrame()):
        for recipe, measure in (sides[:2], sides[2:]):
            if recipe and measure != "correct":
                method = measure.split(": ")[1].split()[0]  # grids smooth the maps of a method themselves
                assert method.removeprefix("smooth-") in made[recipe].methods, claim


def test_recipes_differ_from_the_usual_network_by_what_their_name_says():
    recipes: dict[str, Recipe] = {one.name: one for one in recipes_of("tests")}
    model = {name: one.settings["model"] for name, one in recipes.items()}
    assert model["CoDA-S, T 10"]["initial_logits"] == 0.05
    assert [model[f"B-cos, B {b:g}"]["b"] for b in (1, 1.5, 2, 2.5)] == [1, 1.5, 2, 2.5]
    assert model["B-cos, dark"] | {"background": "null"} == model["B-cos, B 1.5"] | {"background": "null"}
    assert recipes["B-cos, dark, off-targets"].settings["training"]["loss"] == "off-target"
