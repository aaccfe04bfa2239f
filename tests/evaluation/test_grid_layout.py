"""Grids: shares of cells, how cells lie, who stands in them, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.grids.layout import Candidates, Kind, Layout, confident, draw_grids

LAYOUTS = [Layout((2, 1, 1)), Layout((1, 2, 2)), Layout((2, 2, 1)), Layout((2, 3, 2))]
CELL = (3, 5, 4)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_cells_stand_where_their_boxes_are(layout: Layout) -> None:
    cells = torch.arange(layout.cells).view(-1, 1, 1, 1, 1).expand(-1, 2, *CELL).double()
    whole = layout.compose(cells)
    assert whole.shape == (1, 2, *(n * side for n, side in zip(layout.counts, CELL, strict=True)))
    for number in range(layout.cells):
        assert (whole[0, 1][layout.box(number, CELL)] == number).all()
        corner = tuple(n * side for n, side in zip(layout.place(number), CELL, strict=True))
        assert whole[0, 0][corner] == number
    assert torch.equal(layout.split(whole), cells)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_even_map_has_the_share_of_chance(layout: Layout) -> None:
    shares = layout.shares(torch.full(layout.shape(CELL), 0.3))
    assert shares.tolist() == pytest.approx([1 / layout.cells] * layout.cells)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(LAYOUTS), st.sampled_from([0.5, 2.0, 1e6]))
def test_shares_add_up_to_one_whatever_the_scale(seed: int, layout: Layout, scale: float) -> None:
    values = torch.randn(layout.shape(CELL), generator=torch.Generator().manual_seed(seed))
    shares = layout.shares(values)
    assert float(shares.sum()) == pytest.approx(1)
    assert layout.shares(values * scale).tolist() == pytest.approx(shares.tolist())
    by_hand = [values[layout.box(n, CELL)].clamp(min=0).sum() for n in range(layout.cells)]
    assert shares.tolist() == pytest.approx([float(one / sum(by_hand)) for one in by_hand], abs=1e-6)


def test_a_map_of_one_cell_is_perfect_and_a_negative_one_has_nothing() -> None:
    layout = Layout((2, 2, 1))
    cells = -torch.rand(4, 1, *CELL)
    assert layout.shares(layout.compose(cells)[0, 0]).tolist() == [0, 0, 0, 0]
    cells[2] = 1
    assert layout.shares(layout.compose(cells)[0, 0]).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("broken", [0.0, math.nan, math.inf])
def test_undefined_maps_have_no_share(broken: float) -> None:
    values = torch.zeros(6, 5, 4)
    values[0, 0, 0] = broken
    assert torch.isnan(Layout((2, 1, 1)).shares(values)).all()


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 2), (0, 2, 1), (2, 1.5, 1), (2, -1, 1)])
def test_layouts_that_are_none_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="three whole numbers"):
        Layout(counts)


def test_volumes_and_cells_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInputError, match="cannot be cut"):
        Layout((2, 1, 1)).split(torch.zeros(1, 1, 5, 4, 3))
    with pytest.raises(BadInputError, match="needs 2 cells and gets 3"):
        Layout((2, 1, 1)).compose(torch.zeros(3, 1, 5, 4, 3))


LABELS = [0] * 6 + [1] * 6 + [2] * 6
PEOPLE = [f"p{n // 2}" for n in range(18)]


def probabilities(labels: list[int], seed: int = 0, classes: int = 3) -> np.ndarray:
    """Every scan recognised."""
    scores = np.random.default_rng(seed).random((len(labels), classes)) / 4
    scores[np.arange(len(labels)), labels] += 1
    return scores / scores.sum(axis=1, keepdims=True)


def everyone() -> Candidates:
    return confident(LABELS, PEOPLE, probabilities(LABELS), top=1)


def layout_of(kind: Kind) -> Layout:
    return Layout((2, 1, 1)) if kind == "pair" else Layout((2, 2, 1))


@pytest.mark.parametrize("kind", ["needle", "pair", "corner"])
def test_every_grid_is_as_its_kind_says(kind: Kind) -> None:
    layout = layout_of(kind)
    grids = draw_grids(everyone(), layout, kind, 1, 40, np.random.default_rng(4))
    for grid in grids:
        assert len(grid.scans) == layout.cells
        assert [LABELS[scan] for scan in grid.scans] == list(grid.labels)
        assert len({PEOPLE[scan] for scan in grid.scans}) == layout.cells
        assert grid.labels[grid.cell] == grid.target == 1
        same = {"corner": (0, layout.cells - 1)}.get(kind, (grid.cell,))
        assert grid.same_class == same
    targets = [grid.scans[grid.cell] for grid in grids]
    confidence = dict(zip(everyone().scans.tolist(), everyone().confidence.tolist(), strict=True))
    assert targets[:6] == sorted(set(targets), key=lambda scan: -confidence[scan])
    assert targets[6:12] == targets[:6]
    places = {grid.cell for grid in grids}
    assert places == ({0} if kind == "corner" else set(range(layout.cells)))
    assert grids == draw_grids(everyone(), layout, kind, 1, 40, np.random.default_rng(4))


def test_the_most_confident_scans_that_are_right_take_part() -> None:
    likely = probabilities(LABELS)
    likely[0] = [0.1, 0.8, 0.1]  # wrong, however sure
    found = confident(LABELS, PEOPLE, likely, top=0.5)
    assert 0 not in found.scans
    for label in range(3):
        own = [n for n in range(18) if LABELS[n] == label and n > 0]
        taken = found.scans[found.of(label)]
        limit = found.confidence[found.of(label)].min()
        assert limit == min(likely[n, label] for n in taken)
        assert all(likely[n, label] <= limit for n in set(own) - set(taken.tolist()))
        assert len(taken) == round(0.5 * len(own))


def test_a_class_that_is_never_recognised_is_refused_by_name() -> None:
    likely = probabilities(LABELS)
    likely[6:12] = [0.9, 0.05, 0.05]
    with pytest.raises(BadInputError, match="class 1 is recognised"):
        confident(LABELS, PEOPLE, likely)


def test_grids_of_more_cells_than_participants_are_refused() -> None:
    with pytest.raises(BadInputError, match="as many participants"):
        draw_grids(everyone(), Layout((3, 3, 2)), "needle", 1, 3, np.random.default_rng(0))


def test_a_participant_with_scans_of_two_classes_is_in_a_grid_once() -> None:
    found = confident([0, 1], ["p", "p"], probabilities([0, 1], classes=2), top=1)
    with pytest.raises(BadInputError, match="as many participants"):
        draw_grids(found, Layout((2, 1, 1)), "pair", 1, 1, np.random.default_rng(0))


@pytest.mark.parametrize(("top", "fewest", "taken"), [(0.1, 1, 1), (0.1, 4, 4), (0.5, 2, 3), (0.1, 40, 6)])
def test_at_least_as_many_scans_are_taken_as_a_grid_needs(top: float, fewest: int, taken: int) -> None:
    found = confident(LABELS, PEOPLE, probabilities(LABELS), top, fewest)
    assert [len(found.of(label)) for label in range(3)] == [taken] * 3
