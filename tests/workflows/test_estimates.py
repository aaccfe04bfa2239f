"""Estimates of time, memory and disk before a run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from heatlas.pipeline.run.config.files import load_config
from heatlas.workflows.estimates import (
    N4_SECONDS,
    TrainingStep,
    advice,
    bytes_kept,
    made_of,
    measured_step,
    not_estimated,
    registration_seconds,
    steps_of_maps,
)

ALL = ("registration", "training", "attribution")


def configured(**sections: Any) -> Any:
    return load_config(overrides=sections)


@pytest.mark.parametrize(
    ("transform", "resolution", "seconds"),
    [("affine", 4.0, 2.0), ("affine", 2.0, 5.0), ("syn", 2.0, 107.0), ("syn-quick", 1.0, 139.0), ("syn", 1.0, 150.0)],
)
def test_seconds_of_registration_are_those_of_the_pages(transform: str, resolution: float, seconds: float) -> None:
    own = {"transform": transform, "resolution_mm": resolution}
    bare = registration_seconds(configured(registration={**own, "bias_correction": False}))
    assert bare == pytest.approx(seconds, rel=0.05)
    assert registration_seconds(configured(registration=own)) == pytest.approx(bare + N4_SECONDS)


def test_training_is_steps_of_the_largest_fold_by_rounds_of_workers() -> None:
    config = configured(training={"max_epochs": 12, "min_epochs": 1, "ensemble": 3})
    made = made_of(config, 10, 10, [8, 9, 7, 8, 8], ALL, TrainingStep(2.0, 1e6), workers=4)
    # 15 networks on four workers: four rounds of 12 epochs of 9 scans, and validation at a twelfth of that
    assert made.seconds["training"] == pytest.approx(4 * 12 * 9 * 2.0 * 13 / 12)
    alone = made_of(config, 10, 10, [8, 9, 7, 8, 8], ALL, TrainingStep(2.0, 1e6), workers=15)
    assert alone.seconds["training"] == pytest.approx(made.seconds["training"] / 4)
    assert alone.seconds["maps"] == pytest.approx(3 * steps_of_maps(config) * 2.0)


def test_lrp_counts_for_each_beta_and_slow_methods_are_named() -> None:
    one = configured(attribution={"methods": ["lrp"], "betas": [0.0]})
    three = configured(attribution={"methods": ["lrp", "occlusion"], "betas": [0.0, 0.5, 1.0]})
    assert steps_of_maps(three) == 3 * steps_of_maps(one)
    assert not_estimated(one) == []
    assert not_estimated(three) == ["occlusion"]


def test_disk_holds_a_map_per_method_and_per_beta_of_lrp_alone() -> None:
    """Betas count only where LRP is asked for."""

    def voxel_bytes(**attribution: Any) -> float:
        return (bytes_kept(configured(attribution=attribution), 1000, with_maps=True) - 1e6) / 1000

    one = voxel_bytes(methods=["gradient"])
    assert voxel_bytes(methods=["gradient", "rise"]) - one == pytest.approx(1.2)
    assert voxel_bytes(methods=["gradient", "lrp"], betas=[0.0, 0.5, 1.0]) - one == pytest.approx(3 * 1.2)


def test_disk_without_warps_or_maps_is_smaller() -> None:
    def disk(transform: str, keep: str) -> float:
        config = configured(
            registration={"transform": transform, "resolution_mm": 2.0}, attribution={"keep_maps": keep}
        )
        return made_of(config, 40, 40, [30], ALL, None, 2).disk

    assert disk("syn", "all") == pytest.approx(1.1e9, rel=0.2)  # the demo: 40 scans, 1.1 GB
    assert disk("affine", "all") < disk("syn", "group") < disk("syn", "all")


def test_a_step_is_that_of_the_configured_network() -> None:
    small = measured_step(configured(registration={"resolution_mm": 4.0}, model={"pools": [2, 2, 2, 1]}))
    wide = measured_step(
        configured(registration={"resolution_mm": 4.0}, model={"pools": [2, 2, 2, 1], "channels": [32, 64, 128, 256]})
    )
    assert 0 < small.seconds < wide.seconds
    assert wide.memory > 2 * small.memory


class People:
    """A cohort of as many labelled people as asked for."""

    def __init__(self, count: int) -> None:
        self.table = self
        self.labelled = [type("Scan", (), {"participant_id": str(one % math.ceil(count))}) for one in range(2 * count)]


@pytest.mark.parametrize(("people", "resolution", "said"), [(133, 1.0, True), (500, 1.0, False), (133, 2.0, False)])
def test_few_people_at_a_fine_grid_are_told_of_the_preset(people: int, resolution: float, said: bool) -> None:
    lines = advice(configured(registration={"resolution_mm": resolution}), People(people))  # type: ignore[arg-type]
    assert bool(lines) is said
    assert all(f"{people} people" in line and "--preset patients" in line for line in lines)


def test_a_network_that_is_solved_is_not_counted_in_epochs() -> None:
    config = configured(model={"architecture": "linear"}, training={"max_epochs": 200})
    made = made_of(config, 10, 10, [8, 8], ALL, TrainingStep(2.0, 1e6), workers=2)
    assert made.seconds["training"] == pytest.approx(8 * 2.0)


def test_a_step_of_a_network_trained_elsewhere_is_timed_though_its_weights_are_held(tmp_path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    features = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1))\n"
        "    return nn.Sequential(features, nn.Flatten(), nn.Linear(2, 2))\n"
    )
    model = {"architecture": "foreign", "network": f"{tmp_path}/nets.py:net"}
    assert measured_step(load_config(overrides={"registration": {"resolution_mm": 4.0}, "model": model})).seconds > 0
