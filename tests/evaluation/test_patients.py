"""Studies on patients."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from types import SimpleNamespace

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
import patients_runs
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
from heatlas.pipeline.evaluation.scores.accuracy import HeldOutPeople, auc
from heatlas.pipeline.evaluation.scores.map_scores import ScanMasks
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import LoadedModel
from heatlas.pipeline.training.baselines import ridge
from heatlas.studies.representations.points import points_of
from tests.attribution.inherent_toys import SHAPE as REMOVAL_SHAPE
from tests.attribution.inherent_toys import bcos, coda, scans

# Studies on patients: what tables of a run say of planted relations, and which verdict a difference gets.


def scores_of(shares, kind="needle"):
    """Scores of grids: a person each, shares by method and stage."""
    n = len(next(iter(shares.values())))
    return pd.concat([
        pd.DataFrame({"setting": "GridPG", "kind": kind, "method": name, "stage": stage, "grid": np.arange(n),
                      "scan": np.arange(n), "share": values})
        for (name, stage), values in shares.items()
    ])  # fmt: skip


def test_shares_of_a_person_are_means_of_grids_and_a_copy_is_less_an_even_map(monkeypatch, tmp_path):
    one = scores_of({("grad-cam", 2): np.full(6, 0.45), ("rise", 0): np.arange(6.0)}, kind="corner")
    one = one.assign(setting="DiFull", chance=0.25, class_share=0.85, scan=np.tile([0, 1, 1, 1, 1, 1], 2))
    monkeypatch.setattr(patients_runs, "read_grids", lambda run: (one, {0: "a", 1: "b"}))
    found = patients_runs.shares(tmp_path).set_index("person")
    assert found["DiFull corner: rise at 0"].to_dict() == {"a": 0, "b": 3}
    assert found["DiFull corner: grad-cam at 2, in the copy, less an even map"].to_dict() == pytest.approx(
        {"a": 0.15, "b": 0.15}
    )
    (name, ask), *_ = patients_runs.grids_of_nine(SimpleNamespace(run=tmp_path), 1)
    assert name == "nine cells"
    assert list(ask().columns) == ["person", *(f"nine cells, {one}" for one in found.columns)]


def test_shares_of_own_maps_are_in_per_cent_and_named_by_setting_map_and_depth(monkeypatch):
    made = scores_of({("inherent", 0): np.array([0.2, 0.4, 0.9])}).assign(depth=0.0, top_share=0.5)
    made = pd.concat([made, made.assign(setting="DiPart", depth=1.0), made.assign(grid=np.nan)])
    monkeypatch.setattr(patients_networks, "evaluate_grids", lambda *_: [])
    monkeypatch.setattr(patients_networks, "read_scores", lambda _: made.assign(scan=made["scan"].clip(upper=1)))
    explaining = SimpleNamespace(config=None, scans=[SimpleNamespace(participant_id=name) for name in "ab"])
    recipe = SimpleNamespace(explanations=lambda _: ())
    found = patients_networks.shares(
        None, SimpleNamespace(explaining=lambda _: explaining), recipe, SimpleNamespace(executor=None, digests=None)
    ).set_index("person")
    assert found["share: inherent at 0"].to_dict() == pytest.approx({"a": 20, "b": 65})
    assert found["DiPart share: inherent at 1"].to_dict() == pytest.approx({"a": 20, "b": 65})
    assert found["DiPart top: inherent at 1"].to_dict() == {"a": 50, "b": 50}


@pytest.fixture
def toy_study(monkeypatch, tmp_path):
    """A study of a finished run of two people; `asked` holds the units that were asked."""
    known = pd.DataFrame({"participant_id": ["a", "b"], "target": [0, 1], "fold": 0, "probability": [0.2, 0.7]})
    (tmp_path / "seed-7" / "group").mkdir(parents=True)
    known.to_csv(tmp_path / "seed-7" / "group" / "predictions.tsv", sep="\t", index=False)
    answers = {"x": [{"person": "a", "AD: x": 1.0}, {"person": "b", "AD: x": 2.0, "AG: x": 3.0}]}
    asked = []

    def units(work, seed):
        for name, rows in answers.items():
            yield name, lambda name=name, rows=rows: asked.append((name, seed)) or rows

    monkeypatch.setattr(
        patients_networks, "STUDIES", {"toy": patients_network_studies.Study(units=units, of_runs=True)}
    )
    monkeypatch.setattr("sys.argv", ["patients_networks.py", "toy", str(tmp_path / "seed-7"), str(tmp_path / "out")])
    return SimpleNamespace(answers=answers, asked=asked, table=tmp_path / "out" / "people.tsv")


def test_a_study_of_runs_keeps_what_each_unit_says_and_asks_what_is_missing(toy_study):
    patients_networks.main()
    rows = pd.read_csv(toy_study.table, sep="\t")
    assert set(rows["seed"]) == {7}
    assert rows.set_index(["recipe", "person", "measure"])["value"].to_dict() == {
        ("probability", "a", "probability"): 0.2, ("probability", "b", "probability"): 0.7,
        ("x", "a", "AD: x"): 1, ("x", "b", "AD: x"): 2, ("x", "b", "AG: x"): 3,
    }  # fmt: skip
    assert rows.groupby("person")["class"].first().to_dict() == {"a": 0, "b": 1}
    toy_study.answers["y"] = [{"person": "a", "AD: y": 5.0}]
    patients_networks.main()
    assert toy_study.asked == [("x", 7), ("y", 7)]
    assert pd.read_csv(toy_study.table, sep="\t")["value"].sum() == pytest.approx(11.9)


def test_stored_measures_of_recipes_begin_with_their_names(toy_study, monkeypatch):
    stored = []
    keep = lambda name, rows, run, **about: stored.append({*rows["measure"]})  # noqa: E731
    monkeypatch.setattr(patients_networks, "write_of_study", keep)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--numbers", "toy"])
    patients_networks.main()
    studies, numbers = patients_networks.STUDIES, lambda rows: rows[rows["recipe"] == "x"]
    monkeypatch.setitem(studies, "toy", dataclasses.replace(studies["toy"], numbers=numbers))
    patients_networks.main()
    assert stored == [{"probability", "AD: x", "AG: x"}, {"x, AD: x", "x, AG: x"}]


def test_somebody_without_a_prediction_is_named(toy_study):
    toy_study.answers["x"].append({"person": "c", "AD: x": 1.0})
    with pytest.raises(SystemExit, match=r"seed-7: no prediction of c in"):
        patients_networks.main()


def test_units_are_asked_for_by_name_or_pattern(toy_study, monkeypatch):
    toy_study.answers |= {"kd+maps": [{"person": "a", "y": 1.0}], "x, 2": [{"person": "a", "z": 1.0}]}
    monkeypatch.setattr("sys.argv", [*sys.argv, "--only", "kd+maps", "x, .*"])
    patients_networks.main()
    assert toy_study.asked == [("kd+maps", 7), ("x, 2", 7)]


def test_what_a_head_answers_is_stored_once_under_its_name(monkeypatch, tmp_path):
    heads = {"GAP": torch.tensor([[0.0, 1.0]]), "CA-Stream": torch.tensor([[0.0, 2.0]])}
    volume = torch.arange(8.0).reshape(1, 1, 2, 2, 2)
    maps = {"GAP": volume[0, 0], "CA-Stream": -volume[0, 0]}
    head_of = lambda logits: next(name for name, one in heads.items() if one is logits)  # noqa: E731
    for name, replacement in {
        "Split": SimpleNamespace(read=lambda _: SimpleNamespace(folds=[Fold(0, (), (), ("a",))])),
        "classes_of": lambda _: {"a": 1},
        "scan_of": lambda *_: volume,
        "learned": lambda _, fold, head: SimpleNamespace(input=None, model=lambda _: heads[head]),
        "map_and_scores": lambda model, *_: (maps[head_of(model(0))], {"AG": 6.0}),
        "mapped": lambda model, *_: maps[head_of(model(0))][None],
    }.items():
        monkeypatch.setattr(patients_stream, name, replacement)
    units = patients_stream.units(SimpleNamespace(run=tmp_path, folds=0), 1, ("GAP", "CA-Stream"), 0)
    (plain,), (row,) = (list(ask()) for _, ask in units)
    assert plain.pop("GAP, logit") == 1
    assert row["CA-Stream, logit"] == 2
    for cam in patients_stream.CAMS:
        assert plain[f"AG: {cam}, GAP"] == row[f"AG: {cam}, CA-Stream"] == 6
        assert row[f"likeness: {cam}, CA-Stream"] == pytest.approx(-1)
        assert row[f"accuracy: {cam}, CA-Stream"] == 100
        assert f"likeness: {cam}, GAP" not in plain


def test_words_of_a_section_stay_when_its_tables_are_made_again(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# H\n\n## A\n\nSaid before.\n\nAll:\n\n| a |\n|---|\n| 1 |\n\nB:\n\n| 2 |\n\n## B\n\nKept.\n")
    new = "All:\n\n| a |\n|---|\n| 3 |"
    harness.show(new, page, "A", "H")
    assert page.read_text() == f"# H\n\n## A\n\nSaid before.\n\n{new}\n\n## B\n\nKept.\n"
    harness.show(new, page, "C", "H")
    assert page.read_text().endswith(f"Kept.\n\n## C\n\n{new}\n")


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


def test_tables_are_of_the_people_whom_all_networks_explain_and_of_regions_that_say_something(
    people, monkeypatch, tmp_path
):
    monkeypatch.setattr(study, "DRAWS", 20)
    regions = [study.REGION if k == WANTED else f"region {k}" for k in range(REGIONS)]
    known = {"person": people.participant, "class": people.positive.astype(int), "fold": people.fold}
    rows = []
    for seed, name in enumerate([*(one.name for one in study.RECIPES[:4]), study.RIDGE]):
        own = network(people, name, "", 3.0 * (seed == 0), seed)
        wide = pd.DataFrame({**known, f"{name}, logit": own.margin, f"{name}, even": 0.0})
        wide = wide.assign(**{f"{name}, {one}": own.densities[:, k] for k, one in enumerate(regions)})
        wide = wide[int(seed == 1) :]  # one network does not explain the first
        rows.append(wide.melt(list(known), var_name="measure").assign(recipe=name, seed=43))
    seen = pd.DataFrame({"participant_id": people.participant}).merge(pd.DataFrame({"group": regions}), how="cross")
    (tmp_path / "group").mkdir()
    seen = seen.assign(intensity=np.random.default_rng(0).normal(size=len(seen)))
    seen.to_csv(tmp_path / "group" / "image_regions.tsv", sep="\t", index=False)
    study.write_tables(tmp_path, tmp_path, pd.concat(rows))
    networks = pd.read_csv(tmp_path / "evidence.tsv", sep="\t").set_index("name")
    assert networks["whole"].to_dict() == {one.name: study.is_whole(one) for one in study.RECIPES[:4]} | {
        study.RIDGE: False
    }
    assert networks["area"].is_monotonic_decreasing
    own = network(people, "", "", 3.0, 0)
    held = HeldOutPeople(people.participant[1:], people.fold[1:], people.positive[1:])
    expected = auc(own.margin[1:], held, np.ones((1, N - 1)))[0]
    assert networks.loc[study.RECIPES[0].name, "area"] == pytest.approx(expected, abs=1e-3)
    relations = pd.read_csv(tmp_path / "relations.tsv", sep="\t")
    assert set(relations.loc[relations["networks"] == "all", "n"]) == {4}


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
    assert 0 <= found["like the trained map: most of all steps"] < 0.9
    monkeypatch.setattr(patients_measures, "randomised", lambda same, *_: same)
    assert list(patients_measures.cascade(network, scan, 1).values()) == pytest.approx([1, 1])


def test_constants_are_nothing_without_biases_and_the_whole_margin_where_they_are_huge():
    scan = scans(1)
    unbiased = loaded(bcos(outputs=2))
    assert patients_measures.constants(unbiased, scan, 0)["constants: more than half"] == 0
    owed = patients_measures.owed_and_margin(unbiased, scan)[0]
    assert owed == pytest.approx(0, abs=1e-9)  # what is left is rounding, and its sign anything
    model, biased = bcos(outputs=2), nn.Linear(2, 2).double()
    with torch.no_grad():
        biased.weight.copy_(torch.eye(2))
        margin = float(model(scan) @ torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
        for factor, half, second in ((3, 100, 0), (-0.5, 0, 100), (0.5, 0, 0)):
            biased.bias.copy_(torch.tensor([0, factor * margin]))
            network = loaded(StagedModel([*model.stages, biased]).eval())
            assert patients_measures.owed_and_margin(network, scan)[0] == pytest.approx(factor * margin)
            found = patients_measures.constants(network, scan, 0)
            assert (found["constants: more than half"], found["constants: for the second"]) == (half, second)


def test_air_contributes_where_it_is_seen():
    scan = scans(1)
    outside = 100 * float((scan == 0).double().mean())
    found = patients_measures.drawn(loaded(bcos(outputs=2)), scan, 1)
    assert found["even map: outside"] == pytest.approx(outside)
    assert found["class: positive outside"] == found["less the mean: positive outside"] == 0
    found = patients_measures.drawn(loaded(bcos(outputs=2, background="dark")), scan, 1)
    assert 0 < found["class: positive outside"] < 100


def test_every_measure_is_of_a_recipe_that_is_made():
    made = {one.name for one in recipes_of("tests")}
    study = patients_network_studies.STUDIES["tests"]
    assert set(study.measures) <= made
    network, dark = loaded(coda(outputs=2)), loaded(bcos(outputs=2, background="dark"))
    known = {
        name: {key for one in own for key in one(dark if name.startswith("B-cos") else network, scans(1), 1)}
        for name, own in study.measures.items()
    }
    assert all(known.values())


def test_recipes_of_a_larger_b():
    made: dict[str, Recipe] = {one.name: one for one in recipes_of("own-further")}
    assert [made[name].settings["model"]["b"] for name in ("B-cos, B 2", "B-cos, B 2.5")] == [2, 2.5]


def test_recipes_differ_from_the_usual_network_by_what_their_name_says():
    recipes: dict[str, Recipe] = {one.name: one for one in recipes_of("tests")}
    model = {name: one.settings["model"] for name, one in recipes.items()}
    assert model["CoDA-S, T 10"]["initial_logits"] == 0.05
    assert [model[f"B-cos, B {b:g}"]["b"] for b in (1, 1.5, 2, 2.5)] == [1, 1.5, 2, 2.5]
    assert model["B-cos, dark"] | {"background": "null"} == model["B-cos, B 1.5"] | {"background": "null"}
    assert recipes["B-cos, dark, off-targets"].settings["training"]["loss"] == "off-target"
