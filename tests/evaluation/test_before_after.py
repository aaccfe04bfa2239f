"""What training with maps changed: measures of both networks of a fold, and their table."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
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
    measures_of_weights,
    objective_weights_table,
    require_maps,
    trained_weights,
)
from heatlas.studies.marker.marked import MeanEnergyMap, write_pooled
from heatlas.studies.marker.marker_groups import MarkerMasks
from heatlas.studies.objectives.maps_in_training import MapSettings, explained_batch
from tests.evaluation.block_run import CONFIG, block_cohort, split, train_run
from tests.training.run_of_folds import Inline

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
