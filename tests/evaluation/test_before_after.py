"""What training with maps changed: both networks of a fold, the guidance study, worst groups, and the Pareto choice."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import patients_guidance
import pytest
import torch
from inherent_runs import Workplace
from patients_guidance import CONDITIONS, Cohort, Trainings, enlarged, numbers_of, parts_of, weights_chosen
from torch import nn

from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.evaluation.scores.localisation import energy_share
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.regions.maps import read_map
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.config.statistics import EvaluationConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.before_after.measures import (
    AFTER,
    BEFORE,
    BEFORE_AFTER_TABLE,
    MEASURED_TABLE,
    TEST,
    VALIDATION,
    before_after_table,
    measured,
)
from heatlas.studies.before_after.stage import (
    OBJECTIVE_WEIGHTS_TABLE,
    before_and_after,
    chosen,
    measures_of_weights,
    objective_weights_table,
    pareto_front,
    require_maps,
    trained_weights,
)
from heatlas.studies.marker.marked import MeanEnergyMap, write_pooled
from heatlas.studies.marker.marker_groups import (
    Chance,
    GroupAnswers,
    MarkerMasks,
    chance_of_worst,
    mean_of_classes,
    worst_interval,
)
from heatlas.studies.objectives.maps_in_training import BatchMaps, MapSettings, explained_batch
from tests.evaluation.block_run import CONFIG, block_cohort, split, train_run
from tests.training.run_of_folds import Inline

# What training with maps changed: measures of both networks of a fold, and their table.

GUIDED = dataclasses.replace(CONFIG, objective=ObjectiveConfig(kind="guided", regions=("Hippocampus",), weight=5.0))


def linear(weights: torch.Tensor) -> StagedModel:
    """Logits of two classes that are linear in the voxels, after a ReLU that changes nothing of positive input."""
    layer = nn.Linear(weights.shape[1], 2, bias=False)
    layer.weight.data = weights
    return StagedModel([nn.Sequential(nn.ReLU(), nn.Flatten(), layer)]).eval()


def test_measures_of_a_linear_network_by_hand() -> None:
    volume = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 1, 3)
    model = linear(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]]))
    line = lambda *found: np.array([[[bool(one) for one in found]]])  # noqa: E731
    places = MarkerMasks(line(1, 0, 0), line(1, 1, 0), line(0, 0, 1))
    input_x_gradient = MapSettings(1.0, "input-x-gradient", 0)
    values, found = measured(model, volume, 0, "guided", input_x_gradient, places, None)
    assert values.ravel().tolist() == [1.0, -2.0, 3.0]  # evidence w_0 - w_1 = (1, -1, 1), times the input
    assert found == {"correct": 1.0, "epg": 0.25, "iou": 0.0, "on_object_epg": 1.0}
    teacher = linear(torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
    values, found = measured(model, volume, 1, "distilled", input_x_gradient, None, teacher)
    assert found["correct"] == 0.0
    assert found["agrees"] == 1.0  # both find the first class
    assert found["teacher_cosine"] == pytest.approx((4 + 9) / np.sqrt((1 + 4 + 9) * (4 + 9)))
    blind = linear(torch.zeros(2, 3))  # its maps are 0, so there is no share and no angle
    for network, other in ((model, blind), (blind, model)):
        alike = measured(network, volume, 1, "distilled", input_x_gradient, None, other)[1]["teacher_cosine"]
        assert np.isnan(alike)
    _, nothing = measured(blind, volume, 0, "guided", input_x_gradient, places, None)
    assert all(np.isnan(nothing[name]) for name in ("epg", "iou", "on_object_epg"))
    _, lower = measured(model, volume, 0, "guided", input_x_gradient, places, None, threshold=0.2)
    assert lower["iou"] == 0.5  # 1 and 3 are at least a fifth of the maximum, and the first is in the mask
    values, found = measured(model, volume, 0, "readable-gradients", input_x_gradient, None, None)
    assert found["guided_cosine"] == pytest.approx(1 / np.sqrt(3))  # of -(1, -1, 1), the ReLU passes the second alone
    assert values.ravel() / values.ravel()[0] == pytest.approx([1, 1, 1])


def test_of_weights_the_cosine_is_of_both_channels_and_contributions_are_shown() -> None:
    torch.manual_seed(0)
    networks = [build_network(BcosSimpleConfig(channels=(2,), strides=(1,)), (4, 5, 3), 2).eval() for _ in range(2)]
    volume = torch.rand(1, 1, 4, 5, 3)
    asked = networks[1](volume).argmax(1)
    weights, teacher_s = (explained_batch(one, volume, asked, "dynamic-weights", 0).maps.detach() for one in networks)
    maps = MapSettings(1.0, "dynamic-weights", 0)
    values, found = measured(networks[0], volume, 1, "distilled", maps, None, networks[1])
    pair = torch.cat([volume, 1 - volume], 1)
    np.testing.assert_allclose(values, (pair * weights).sum(1)[0], atol=1e-6)
    cosine = (weights * teacher_s).sum() / (weights.norm() * teacher_s.norm())
    assert found["teacher_cosine"] == pytest.approx(cosine.item(), abs=1e-6)


def test_changes_are_paired_and_measures_without_values_left_out() -> None:
    def frame(epg: dict[str, tuple[float, float]]) -> pd.DataFrame:
        rows = [[who, TEST, training, "epg", value] for who, pair in epg.items()
                for training, value in zip((BEFORE, AFTER), pair, strict=True)]  # fmt: skip
        rows += [["e", VALIDATION, training, "epg", 1.0] for training in (BEFORE, AFTER)]
        return MEASURED_TABLE.frame(rows)

    folds = [frame({"a": (0.1, 0.3), "b": (0.2, 0.6)}), frame({"c": (0.3, 0.2), "d": (np.nan, 0.9)})]
    table = before_after_table("guided", folds)
    assert table["measure"].tolist() == ["epg"]
    row = table.iloc[0]
    assert (row["before"], row["after"], row["n_participants"]) == (pytest.approx(0.2), pytest.approx(1.1 / 3), 3)
    assert row["change"] == pytest.approx(0.5 / 3)
    assert row["change_low"] < row["change"] < row["change_high"]


def test_the_sum_of_a_mean_map_over_a_mask_is_the_mean_epg(tmp_path) -> None:
    spec, random = configured_input(CONFIG), np.random.default_rng(0)
    mask, shares, folds = random.random(spec.shape) < 0.3, [], []
    for fold, count in enumerate((3, 1)):
        mean = MeanEnergyMap(spec)
        for _ in range(count):
            values = random.normal(size=spec.shape)
            mean.add(values)
            shares.append(energy_share(values, mask))
        mean.write(tmp_path / f"{fold}.nii.gz", "fold")
        folds.append((tmp_path / f"{fold}.nii.gz", count))
    write_pooled(tmp_path / "all" / "mean.nii.gz", folds, spec, "all")
    pooled = read_map(tmp_path / "all" / "mean.nii.gz", template_grid(4.0))
    assert pooled[mask].sum(dtype=np.float64) == pytest.approx(np.mean(shares), rel=1e-5)
    assert pooled.sum(dtype=np.float64) == pytest.approx(1, rel=1e-5)


def test_a_run_without_maps_in_training_is_refused() -> None:
    require_maps(GUIDED)
    for objective in (ObjectiveConfig(), ObjectiveConfig(kind="guided", weight=0.0)):
        with pytest.raises(UsageError, match="this run used none"):
            require_maps(dataclasses.replace(CONFIG, objective=objective))


def test_weights_of_networks_that_learn_by_guided_gradients_alone_are_refused() -> None:
    alone = dataclasses.replace(CONFIG, objective=ObjectiveConfig(kind="readable-gradients", guided_alone=True))
    require_maps(alone)
    with pytest.raises(UsageError, match=r"objective_weights: .* have no weight of maps"):
        require_maps(dataclasses.replace(alone, evaluation=EvaluationConfig(objective_weights=(1.0,))))


def test_the_weight_is_chosen_by_validation_people_alone() -> None:
    labels = dict(zip("abcdefgh", ["CN"] * 6 + ["AD"] * 2, strict=True))

    def frame(training: str, right: str, epg: float, tested: float) -> pd.DataFrame:
        rows = [[who, VALIDATION, training, "correct", float(who in right)] for who in "abcdefgh"]
        rows += [[who, VALIDATION, training, name, value] for who in "abcdefgh"
                 for name, value in (("epg", np.nan if who == "h" else epg), ("iou", 0.1))]  # fmt: skip
        rows += [["c", TEST, training, "correct", 1.0], ["g", TEST, training, "correct", 0.0]]
        rows += [["c", TEST, training, name, tested] for name in ("epg", "iou")]
        return MEASURED_TABLE.frame(rows)

    control = pd.concat([frame(BEFORE, "abcdeg", 0.2, 0.9), frame(AFTER, "abcdefg", 0.3, 0.5)], ignore_index=True)
    further = {0.5: frame("0.5", "abcdef", 0.9, 0.2), 9.0: frame("9.0", "abcdg", 0.4, 0.1)}
    measured = {0.0: [control[:20], control[20:]]} | {weight: [own] for weight, own in further.items()}
    table = objective_weights_table("guided", measures_of_weights(measured, of_run=3.0), labels).set_index("weight")
    assert table.index.tolist() == [0.0, 0.5, 3.0, 9.0]
    assert table["of_run"].tolist() == [False, False, True, False]
    assert table["validation_balanced_accuracy"].tolist() == pytest.approx([2 / 3, 0.5, 0.75, 7 / 12])
    assert table["validation_epg"].tolist() == pytest.approx([0.2, 0.9, 0.3, 0.4])  # h has none
    assert table["in_pareto_set"].tolist() == [False, True, True, True]
    assert table.index[table["chosen"]].tolist() == [3.0]  # 0.5 finds one class alone, though 6 of 8 people; 9 costs 8
    assert table["test_epg"].tolist() == pytest.approx([0.9, 0.2, 0.5, 0.1])
    assert (table["test_balanced_accuracy"] == 0.5).all()
    assert (table[["n_validation", "n_participants"]].to_numpy() == [8, 2]).all()
    assert table["validation_agrees"].isna().all()  # of distillation


def test_weights_of_the_run_are_trained_once() -> None:
    def trained(*weights: float) -> list[float]:
        return trained_weights(dataclasses.replace(GUIDED, evaluation=EvaluationConfig(objective_weights=weights)))

    assert trained() == [0.0]
    assert trained(50.0, 5.0, 0.0, 0.5) == [0.0, 0.5, 50.0]  # 5 is that of the run


@pytest.mark.slow
def test_controls_and_a_further_weight_are_trained_and_guidance_raises_epg(tmp_path) -> None:
    cohort = block_cohort(EvaluationLayout(tmp_path), GUIDED)
    train_run(cohort)
    digests = DigestCache(cohort.layout.digests)
    assert all(one.ok for one in before_and_after(cohort, Inline(), digests))
    table = BEFORE_AFTER_TABLE.read(cohort.layout).set_index("measure")
    assert list(table.index) == ["correct", "epg", "iou", "on_object_epg"]
    assert table.loc["epg", "change"] > 0
    assert (table["n_participants"] == sum(len(fold.test) for fold in split().folds)).all()
    for training in (BEFORE, AFTER):
        found = read_map(cohort.layout.compared_map("objective", training), template_grid(4.0))
        assert found.sum(dtype=np.float64) == pytest.approx(1, rel=1e-4)
    assert not OBJECTIVE_WEIGHTS_TABLE.path(cohort.layout).exists()
    swept = dataclasses.replace(GUIDED, evaluation=EvaluationConfig(objective_weights=(50.0, 5.0)))
    cohort = dataclasses.replace(cohort, config=swept)
    folds = len(split().folds)
    asked = [one.status for one in before_and_after(cohort, Inline(), digests)]
    assert asked == ["unchanged"] * folds + ["done"] * folds
    weights = OBJECTIVE_WEIGHTS_TABLE.read(cohort.layout)
    assert weights["weight"].tolist() == [0.0, 5.0, 50.0]
    assert weights["test_epg"].tolist()[:2] == pytest.approx(table.loc["epg", ["before", "after"]].tolist())
    assert weights["validation_epg"].nunique() == 3
    assert (weights[["n_validation", "n_participants"]].to_numpy() == [4 * folds, 24]).all()
    assert weights["chosen"].sum() == 1
    assert {one.status for one in before_and_after(cohort, Inline(), digests)} == {"unchanged"}
    before_and_after(dataclasses.replace(cohort, config=GUIDED), Inline(), digests)
    assert not OBJECTIVE_WEIGHTS_TABLE.path(cohort.layout).exists()  # which is of weights that are no longer asked for


# The further conditions of the guidance study: what is trained, and tables whose values are known.

SHAPE = (26, 26, 26)


@pytest.mark.parametrize("section", CONDITIONS)
def test_teachers_and_networks_that_go_on_come_before(section) -> None:
    names = list(CONDITIONS[section])
    for one in CONDITIONS[section].values():
        for earlier in filter(None, (one.teacher, one.begins)):
            assert names.index(earlier) < names.index(one.name)


@pytest.mark.parametrize(("share", "more"), [(0.0, 0), (0.1, 1), (0.25, 2), (0.5, 4)])
def test_each_box_grows_on_either_side_by_a_share_of_its_width(share, more) -> None:
    mask = torch.zeros(20, 20, 20, dtype=torch.bool)
    mask[6:14, 6, 6] = mask[6, 6:14, 6] = mask[6, 6, 6:14] = True  # one part, whose box is a cube of 8
    grown = enlarged(mask, share)
    wanted = torch.zeros_like(mask)
    wanted[(slice(6 - more, 14 + more),) * 3] = True
    assert torch.equal(grown, wanted)
    assert enlarged(mask, 2.0).all()  # clipped at the border


@pytest.fixture
def cohort(monkeypatch) -> Cohort:
    """24 people; patients have a bright block, and copies with the marker are no numbers; an epoch each.

    Voxels: brain 4,069 of a box of 4,096; regions 20, in two parts; their boxes 216 and 6; marker 64.
    """
    random = np.random.default_rng(7)
    positive = np.arange(24) >= 12
    plain = torch.from_numpy(random.uniform(0.2, 0.6, (24, *SHAPE)).astype(np.float32))
    plain[torch.from_numpy(positive), 8:14, 8:14, 8:14] += 0.4
    brain, regions, marker = torch.zeros(3, *SHAPE, dtype=torch.bool)
    brain[5:21, 5:21, 5:21] = marker[:4, :4, :4] = True
    brain[5:8, 5:8, 5:8] = False
    regions[8:14, 8, 8] = regions[8, 8:14, 8] = regions[8, 8, 8:14] = True
    regions[16:19, 16, 16] = regions[16, 16:18, 16] = True
    masks = {"brain": brain, "regions": regions, "sides": enlarged(regions, 0.0), "outside": ~brain}
    volumes = torch.stack([plain, torch.full_like(plain, float("nan"))], 1)
    found = Cohort([f"p{n}" for n in range(24)], volumes, positive, masks, marker, torch.zeros(0, *SHAPE))
    monkeypatch.setattr(patients_guidance, "load", lambda _: found)
    take_epochs(monkeypatch, 1)
    return found


def take_epochs(monkeypatch, epochs: int) -> None:
    short = replace(patients_guidance.RECIPE, max_epochs=epochs, min_epochs=epochs)
    monkeypatch.setattr(patients_guidance, "RECIPE", short)


def trainings(folder, section: str = "further") -> Trainings:
    return Trainings(Workplace(folder, folder, None, folds=1), section, 3)


def test_nobody_has_a_marker_in_training_or_testing(cohort, tmp_path) -> None:
    rows = trainings(tmp_path, "swept").judged(CONDITIONS["swept"]["plain"])
    (weights,) = (tmp_path / "swept").iterdir()
    assert all(bool(torch.isfinite(value).all()) for value in torch.load(weights, weights_only=True).values())
    _, selecting, testing = parts_of(cohort.positive, 0, 3)
    tested, known = rows[rows["correct"].notna()], rows[rows["validation: correct"].notna()]
    assert sorted(tested["person"]) == sorted(cohort.names[place] for place in testing)
    assert sorted(known["person"]) == sorted(cohort.names[place] for place in selecting)
    assert tested["EPG"].between(0, 1).sum() == len(testing)
    assert "correct, as in training" not in rows


def test_a_frozen_teacher_is_asked_once_for_each_scan_and_one_that_is_not_in_every_epoch(
    cohort, tmp_path, monkeypatch
) -> None:
    study = trainings(tmp_path)
    teacher = study.network("bcos-plain", 0)
    seen: list[int] = []
    teacher.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    own = Trainings.network
    monkeypatch.setattr(
        Trainings, "network", lambda self, name, fold: teacher if name == "bcos-plain" else own(self, name, fold)
    )
    learning = len(parts_of(cohort.positive, 0, 3)[0])
    take_epochs(monkeypatch, 3)
    for name, times in (("kd-bcos-frozen", 1), ("kd-bcos", 3)):
        seen.clear()
        study.network(name, 0)
        assert sum(seen) == times * learning


def test_few_people_learn_for_as_many_steps() -> None:
    """A quarter of the people for four times as many epochs."""
    few = [one for one in CONDITIONS["further"].values() if one.people < 1]
    assert len(few) == 4
    assert all(one.people * one.longer == 1 for one in few)


def test_answers_of_both_copies_count_as_much_and_groups_are_apart(cohort, tmp_path, monkeypatch) -> None:
    """The network goes by the marker alone: it finds the disease in every copy with it, and nothing in the others."""
    logits = {0: torch.tensor([1.0, 0.0]), 1: torch.tensor([0.0, 2.0])}
    maps = {copy: np.where(cohort.masks["brain"], 1.0, float(copy)) for copy in (0, 1)}
    monkeypatch.setattr(Trainings, "network", lambda *_: None)
    monkeypatch.setattr(Trainings, "explained", lambda _, one, model, person, copy: (logits[copy], maps[copy]))
    found = trainings(tmp_path, "first").judged(CONDITIONS["first"]["control"]).set_index("person")
    assert (found["class"] == [int(cohort.positive[cohort.names.index(one)]) for one in found.index]).all()
    assert found["logit"].tolist() == pytest.approx(np.where(found["class"], 2, -1))  # of the copy as in training
    wanted = {"correct": 0.5, "correct, as in training": 1, "correct, against training": 0}
    share = 4069 / 26**3  # of the mask in an even map
    wanted |= {"EPG": (1 + share) / 2, "IoU": (1 + share) / 2}
    wanted |= {"on-object EPG": (1 + 4069 / 4096) / 2, "on marker": 64 / 26**3 / 2}
    for measure, value in wanted.items():
        assert found[measure].to_numpy() == pytest.approx(value), measure
    assert set(found.columns) == {"class", "fold", "logit", *wanted}


def test_held_out_maps_are_judged_in_boxes_at_the_threshold_of_the_validation_part(
    cohort, tmp_path, monkeypatch
) -> None:
    """Maps are 1 in regions, .5 in the rest of their boxes; beside them .3, of tested people .45: too much for .4.

    At the last stage they are even.
    """
    _, selecting, testing = parts_of(cohort.positive, 0, 3)
    beside = lambda person: 0.3 if person in selecting else 0.45  # noqa: E731

    def explained(_, one, model, person, copy, at=0):
        values = np.where(cohort.masks["regions"], 1.0, np.where(cohort.masks["sides"], 0.5, beside(person)))
        return torch.zeros(2), np.ones(SHAPE) if at else values

    monkeypatch.setattr(Trainings, "network", lambda *_: None)
    monkeypatch.setattr(Trainings, "explained", explained)
    found = trainings(tmp_path, "swept").judged(CONDITIONS["swept"]["plain"])
    assert found["validation: IoU"].dropna().tolist() == pytest.approx([1.0] * len(selecting))
    selected, total = (121 + beside * (26**3 - 222) for beside in (0.3, 0.45))
    assert found["validation: EPG"].dropna().tolist() == pytest.approx([121 / selected] * len(selecting))
    wanted = {"IoU": 222 / 26**3, "EPG": 121 / total, "on-object EPG": 20 / 121, "on marker": 0.45 * 64 / total}
    for measure, value in (wanted | {"EPG, last stage": 222 / 26**3}).items():
        assert found[measure].dropna().tolist() == pytest.approx([value] * len(testing)), measure


@dataclasses.dataclass(frozen=True)
class Known:
    """A network by its answer to a copy of a scan, and by its map of a class in a copy, by kind and stage."""

    answer: Callable[[int], int]
    map_of: Callable[[int, int, tuple[str, int]], torch.Tensor]

    def __call__(self, volume: torch.Tensor) -> torch.Tensor:
        return torch.eye(2)[[self.answer(copy_of(volume))]]


def copy_of(volume: torch.Tensor) -> int:
    return int(volume.isnan().any())


@pytest.fixture
def networks(monkeypatch) -> dict[str, Known]:
    """Those of `Known` by condition; each is asked in place of a trained one."""
    found: dict[str, Known] = {}

    def explained(model, volume, targets, kind, stage, learning):
        assert not learning
        values = model.map_of(int(targets), copy_of(volume), (kind, stage))
        return BatchMaps(model(volume), values[None].float())

    monkeypatch.setattr(Trainings, "network", lambda _, name, fold: found[name])
    monkeypatch.setattr(patients_guidance, "explained_batch", explained)
    return found


def test_a_student_is_compared_with_its_teacher_in_answers_and_in_what_the_brain_shows(
    cohort, tmp_path, networks
) -> None:
    """It goes by the marker, its teacher finds the disease in every copy.

    Their Grad-CAM of that answer is the same in copies with the marker; in others the student has the left half alone.
    Beside the brain they differ, and so do maps of the other answer.
    """
    brain, left = cohort.masks["brain"], torch.zeros(SHAPE, dtype=torch.bool)
    left[:13] = True

    def cam(target: int, own: torch.Tensor, beside: float) -> torch.Tensor:
        return torch.where(brain, own if target == 1 else own * beside, torch.tensor(beside))

    def of_student(target, copy, how):
        if how == ("input-x-gradient", 0):
            return brain.float()
        assert how == ("grad-cam", -1)
        return cam(target, (left | bool(copy)).float(), -9.0)

    networks["kd"] = Known(lambda copy: copy, of_student)
    networks["energy-brain"] = Known(lambda copy: 1, lambda target, copy, how: cam(target, torch.ones(SHAPE), 5.0))
    found = trainings(tmp_path, "first").judged(CONDITIONS["first"]["kd"])
    assert len(found) == 8
    assert found["agreement"].tolist() == [0.5] * 8
    assert found["agreement, as in training"].tolist() == found["class"].tolist()
    assert found["agreement, against training"].tolist() == (1 - found["class"]).tolist()
    assert found["cosine"].tolist() == pytest.approx([((2021 / 4069) ** 0.5 + 1) / 2] * 8)  # of 8 by 16 by 16, less 27


def test_in_the_reversed_task_the_marker_is_the_class_that_is_learned_answered_and_explained(
    cohort, tmp_path, monkeypatch, networks
) -> None:
    """The network finds a marker in every copy; a map lies beside the brain if it is of what the copy has."""
    outside = cohort.masks["outside"]
    networks["reversed"] = Known(lambda copy: 1, lambda target, copy, _: outside if target == copy else ~outside)
    found = trainings(tmp_path).judged(CONDITIONS["further"]["reversed"])
    assert found["correct"].tolist() == [0.5] * 8
    assert found["correct, as in training"].tolist() == found["class"].tolist()
    assert found["correct, against training"].tolist() == (1 - found["class"]).tolist()
    assert found["EPG"].tolist() == [1] * 8
    assert "logit" not in found
    monkeypatch.setattr(patients_guidance, "learn", lambda model, training, *_: training)
    training = trainings(tmp_path).trained(None, CONDITIONS["further"]["reversed"], 0)
    assert training.targets.tolist() == [copy_of(one) for one in training.volumes]


@pytest.mark.parametrize(
    ("section", "name", "voxels"),
    [
        ("first", "energy-brain", 4069),
        ("further", "reversed-energy", 26**3 - 4069),
        ("swept", "bcos-energy-1", 222),
        ("swept", "bcos-energy-1+50%", 12**3 + 7 * 4 - 6),  # 6 by 6 by 6 and 3 by 2 by 1, which then meet
    ],
)
def test_guidance_is_by_the_mask_of_its_condition(cohort, tmp_path, monkeypatch, section, name, voxels) -> None:
    monkeypatch.setattr(patients_guidance, "learn", lambda *given: given[-1])
    one = CONDITIONS[section][name]
    masks = trainings(tmp_path, section).trained(None, one, 0).masks[0].bool()
    assert int(masks.sum()) == voxels
    assert masks[cohort.masks[one.mask]].all()


def test_a_network_goes_on_from_the_weights_of_another(cohort, tmp_path, monkeypatch) -> None:
    """That one is trained first where it is not there; what learns here adds 1 to every number."""
    begun, recipes = [], []

    def learn(model, training, selecting, objective, recipe, *_):
        begun.append(deepcopy(model.state_dict()))
        recipes.append((recipe.learning_rate, recipe.max_epochs, recipe.min_epochs))
        for value in model.state_dict().values():
            value += 1
        return model

    monkeypatch.setattr(patients_guidance, "learn", learn)
    take_epochs(monkeypatch, 30)
    trainings(tmp_path, "swept").network("bcos-on", 0)
    plain = torch.load(tmp_path / "swept" / "bcos-plain_seed-3_fold-0.pt", weights_only=True)
    fresh, kept = begun
    assert recipes == [(3e-3, 30, 30), (1e-3, 10, 10)]
    assert plain.keys() == kept.keys()
    assert all(torch.equal(kept[name], value) for name, value in plain.items())
    assert not any(torch.equal(fresh[name], value) for name, value in plain.items())


def test_a_stop_while_a_network_is_written_leaves_none(cohort, tmp_path, monkeypatch) -> None:
    def stopped(weights, file) -> None:
        (file.write_bytes if isinstance(file, Path) else file.write)(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", stopped)
    monkeypatch.setattr(patients_guidance, "learn", lambda model, *_: model)
    with pytest.raises(KeyboardInterrupt):
        trainings(tmp_path, "swept").network("plain", 0)
    assert not list(tmp_path.rglob("*.pt"))


def test_nobody_helps_to_choose_the_weight_of_a_network_that_is_tested_on_them(capsys) -> None:
    """Weight 3 has more EPG and is as accurate for all but p0, whose answers speak against it."""
    networks = {"bcos-on": (0.1, 1.0), "bcos-energy-1": (0.2, 1.0), "bcos-energy-3": (0.3, 0.0)}
    rows = []
    for recipe, (epg, right) in networks.items():
        for fold, person in ((0, "p1"), (1, "p0")):
            values = {"EPG": epg, "correct": right if person == "p0" else 1.0, "IoU": 0.5}
            for part, at in (("validation: ", fold), ("", 1 - fold)):
                one = {"recipe": recipe, "seed": 1, "person": person, "class": 0, "fold": at}
                rows += [one | {"measure": part + measure, "value": value} for measure, value in values.items()]
    rows += [rows[0] | {"recipe": "plain", "fold": 2, "measure": "EPG"}]  # where no weight is tested, none is chosen
    found = numbers_of(pd.DataFrame(rows), "swept").set_index(["recipe", "measure", "fold"])["value"].sort_index()
    assert found["bcos-energy by EPG", "EPG"].to_dict() == {0: 0.3, 1: 0.2}  # fold 0 tests p0
    assert found["bcos-energy by IoU", "EPG"].to_dict() == {0: 0.2, 1: 0.2}
    assert found["bcos-energy-3", "correct"].to_dict() == {0: 0.0, 1: 1.0}
    names = set(found.index.get_level_values("recipe"))
    assert names == {*networks, "plain", "bcos-energy by EPG", "bcos-energy by IoU"}
    said = capsys.readouterr().out.splitlines()
    assert "bcos-energy by EPG, seed 1, fold 0: weight 3" in said
    assert len(said) == 4


@pytest.mark.parametrize(
    ("accuracies", "wanted"), [((0.6, 0.6, 0.6), "10"), ((0.56, 0.55, 0.5), "3"), ((0.5,) * 3, "1")]
)
def test_a_weight_is_chosen_by_its_maps_among_those_that_cost_little(accuracies, wanted) -> None:
    names = ("bcos-on", "bcos-energy-1", "bcos-energy-3", "bcos-energy-10", "bcos-energy-3-1%", "bcos-energy-1-last")
    values = {"correct": (0.6, *accuracies, 0.9, 0.9), "EPG": (0.1, 0.2, 0.3, 0.4, 0.9, 0.9)}
    found = weights_chosen(pd.DataFrame(values, index=names), CONDITIONS["swept"].values(), "EPG")
    assert {name: one.name for name, one in found.items()} == {"bcos-energy": f"bcos-energy-{wanted}"}


def test_conditions_among_which_a_weight_is_chosen() -> None:
    """Of each that has the largest EPG alone, what it is chosen for."""
    names, found = list(CONDITIONS["swept"]), {}
    for best in names:
        known = pd.DataFrame({"correct": 0.6, "EPG": [float(name == best) for name in names]}, index=names)
        for name, one in weights_chosen(known, CONDITIONS["swept"].values(), "EPG").items():
            if one.name == best:
                found.setdefault(name, []).append(one.weight)
    wanted = {f"{network}-energy": [1, 3, 10] for network in ("bcos", "plain", "x-dnn")}
    wanted |= {"bcos-l1": [1, 10, 100], "bcos-ppce": [0.1, 1, 10], "bcos-rrr": [10, 100, 1000]}
    assert found == wanted


# The worst group: what chance gives, by brute force; bounds, and how often they hold.


def tossed(people: tuple[int, ...], opposite: bool) -> dict[float, float]:
    """Probability of each worst group, over every way in which the coins of all people can fall."""
    found: dict[float, float] = {}
    for falls in itertools.product((0, 1), repeat=sum(people)):
        one = np.array(falls, dtype=float)
        of_class = np.repeat([False, True], people)
        worst = GroupAnswers(one, 1 - one if opposite else one, of_class).worst
        found[worst] = found.get(worst, 0) + 0.5 ** sum(people)
    return found


@pytest.mark.parametrize("people", [(1, 1), (3, 3), (2, 5), (4, 7)])
@pytest.mark.parametrize("opposite", [False, True])
def test_chance_is_that_of_all_ways_in_which_coins_fall(people: tuple[int, int], opposite: bool) -> None:
    wanted = tossed(people, opposite)
    found = chance_of_worst(people, opposite=opposite)
    assert found.expected == pytest.approx(sum(value * share for value, share in wanted.items()), abs=1e-12)
    for bound, level in ((found.low, 0.025), (found.high, 0.975)):
        assert sum(share for value, share in wanted.items() if value <= bound + 1e-12) >= level
        assert sum(share for value, share in wanted.items() if value < bound - 1e-12) < level


def test_chance_of_four_groups_that_are_tossed_apart_is_the_least_of_four_binomials() -> None:
    one = [comb(6, k) / 64 for k in range(7)]
    ways = itertools.product(range(7), repeat=4)
    wanted = sum(np.prod([one[k] for k in falls]) * min(falls) / 6 for falls in ways)
    assert chance_of_worst((6, 6, 6, 6)).expected == pytest.approx(wanted, abs=1e-12)


def test_chance_of_the_mean_of_seeds_is_that_of_every_triple() -> None:
    own = tossed((2, 3), opposite=False)
    means: dict[float, float] = {}
    for falls in itertools.product(own.items(), repeat=3):
        mean = sum(value for value, _ in falls) / 3
        means[mean] = means.get(mean, 0) + float(np.prod([share for _, share in falls]))
    found = chance_of_worst((2, 3), seeds=3)
    assert found.expected == pytest.approx(sum(value * share for value, share in means.items()))
    assert sum(share for value, share in means.items() if value <= found.low + 1e-9) >= 0.025
    assert sum(share for value, share in means.items() if value < found.high - 1e-9) < 0.975


def test_chance_in_the_study_of_fifteen_people_a_group_as_an_auditor_simulated_it() -> None:
    found = chance_of_worst((15, 15), seeds=3)
    assert [round(value, 2) for value in (found.expected, found.low, found.high)] == [0.43, 0.31, 0.56]
    apart = chance_of_worst((15, 15, 15, 15), seeds=3)
    assert [round(value, 2) for value in (apart.expected, apart.low, apart.high)] == [0.37, 0.27, 0.47]
    assert np.isnan([*vars(chance_of_worst((0, 3))).values()]).all()
    assert isinstance(found, Chance)


@pytest.mark.ci
def test_the_interval_of_the_worst_group_holds_it_in_95_of_100_and_the_estimate_always() -> None:
    random = np.random.default_rng(1)
    for shares in ((0.5, 0.5, 0.5, 0.5), (0.97, 0.05, 0.05, 0.97), (0.9, 0.2, 0.3, 0.9), (0.8, 0.7, 0.75, 0.8)):
        right = random.binomial(15, shares, size=(400, 4))
        bounds = [worst_interval(one, (15,) * 4) for one in right.tolist()]
        assert all(low <= one.min() / 15 <= high for (low, high), one in zip(bounds, right, strict=True))
        held = np.mean([low <= min(shares) <= high for low, high in bounds])
        assert held >= 0.93  # 95 % less two standard errors of 400
    assert worst_interval((0, 3), (3, 3))[0] == 0
    assert np.isnan(worst_interval((0, 0), (0, 3))).all()


@pytest.mark.ci
def test_an_interval_of_a_difference_holds_its_estimate_and_the_truth_where_that_of_a_least_value_does_not() -> None:
    """A network that follows the marker against a coin, three seeds, 15 people of each class, people in common."""
    random, held, of_class = np.random.default_rng(2), [], np.repeat([False, True], 15)
    percentile = []
    for _ in range(300):
        control, coin = random.random((3, 2, 30)) < 0.03, random.random((3, 2, 30)) < 0.5
        control[:, 0, ~of_class] = random.random((3, 15)) < 0.97
        control[:, 1, of_class] = random.random((3, 15)) < 0.97
        values = [
            np.mean([GroupAnswers(plain.astype(float), marked.astype(float), of_class).per_person["against_training"]
                     for plain, marked in seeds], axis=0)
            for seeds in (control, coin)
        ]  # fmt: skip
        middle, low, high = mean_of_classes(values[1] - values[0], of_class)
        assert low <= middle <= high
        held.append(low <= 0.47 <= high)
        drawn = np.stack([random.integers(0, 15, (200, 15)), random.integers(15, 30, (200, 15))], 1)
        worst = [seeds[:, :, drawn].mean(-1).min((1, 3)).mean(0) for seeds in (control, coin)]
        ends = np.quantile(worst[1] - worst[0], (0.025, 0.975))
        percentile.append(ends[0] <= 0.47 <= ends[1])
    assert np.mean(held) >= 0.92
    assert np.mean(percentile) < 0.5


def test_nobody_who_differs_gives_no_interval() -> None:
    of_class = np.array([False, False, True, True])
    assert mean_of_classes(np.zeros(4), of_class) == pytest.approx((0, np.nan, np.nan), nan_ok=True)
    assert mean_of_classes(np.array([1.0, 0.0, 1.0]), np.array([False, False, True]))[0] == 0.75
    assert np.isnan(mean_of_classes(np.ones(2), np.array([True, True]))).all()


# The Pareto choice among trainings.


def test_no_member_dominates_another_and_every_other_candidate_is_dominated() -> None:
    values = np.random.default_rng(0).integers(0, 6, (40, 3)).astype(float)  # with ties
    front = pareto_front(values)

    def dominated(place: int, by: int) -> bool:
        return bool((values[by] >= values[place]).all() and (values[by] > values[place]).any())

    for place in range(len(values)):
        assert front[place] != any(dominated(place, by) for by in range(len(values)))
    assert (values[front].max(0) == values.max(0)).all()  # the best of each measure


def test_a_choice_costs_little_accuracy_and_falls_back_to_the_control() -> None:
    accuracy = np.array([0.8, 0.76, 0.5, 0.79])
    maps = np.array([[0.1, 0.1], [0.5, 0.2], [0.9, 0.3], [0.4, 0.1]])
    assert chosen(accuracy, maps, control=0) == 1  # the third finds one class only
    assert chosen(accuracy, maps, control=0, drop=0.02) == 3
    assert chosen(accuracy, maps, control=0, drop=0.04) == 1  # exactly as far below, but for rounding
    assert chosen(accuracy, np.array([[0.5, 0.1], [0.1, 0.1], [0.1, 0.1], [0.1, 0.1]]), control=0) == 0


def test_maps_without_a_measure_are_the_worst() -> None:
    accuracy, nothing = np.array([0.8, 0.8, 0.9]), np.nan
    assert pareto_front(np.array([[0.8, nothing], [0.8, 0.2], [0.9, nothing]])).tolist() == [False, True, True]
    assert chosen(accuracy, np.array([[nothing], [0.2], [nothing]]), control=0) == 1
    assert chosen(accuracy[1:], np.array([[nothing], [nothing]]), control=0) == 1  # the more accurate one is left
