"""The Pareto choice among trainings."""

from __future__ import annotations

import numpy as np

from heatlas.studies.before_after.stage import chosen, pareto_front


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
