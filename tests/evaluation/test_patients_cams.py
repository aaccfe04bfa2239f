"""Studies of CAM methods, streams, probes and gradients on patients: what their tables say of answers known by hand."""

from __future__ import annotations

import types

import numpy as np
import pandas as pd
import patients_backbones
import patients_cams
import patients_network_studies
import patients_networks
import patients_planted
import patients_stream
import pytest
import torch
from inherent_runs import Recipe
from patients_network_studies import STUDIES
from torch import nn

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.evaluation.scores.map_scores import BOX_COLUMNS, ScanMasks
from heatlas.studies.representations.points import points_of

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
    row = patients_stream.less_alike([tmp_path / "seed-1", tmp_path / "seed-2"], "grad-cam")
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
    found = patients_backbones.recognised(points_of(values, people), fold, class_of, 1)
    assert set(found) == set(fold.test)
    for measure in ("nearest 1", "nearest 10", "few-shot probe"):
        assert {name: row[measure] for name, row in found.items()} == {"a6": 100, "a7": 0, "c6": 100, "c7": 100}
    swapped = {name: {"AD": "CN", "CN": "AD"}[kind] if name in fold.train else kind for name, kind in class_of.items()}
    turned = patients_backbones.recognised(points_of(values, people), fold, swapped, 1)
    assert {name: row["few-shot probe"] for name, row in turned.items()} == {"a6": 0, "a7": 100, "c6": 0, "c7": 0}


def test_backbones_need_a_registered_run_of_younger_people(tmp_path):
    work = types.SimpleNamespace(out=tmp_path)
    with pytest.raises(SystemExit, match="no registered run of younger people"):
        patients_backbones.learned(work, "SimCLR", 43)


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
