"""Coding of maps for the page: the stated error holds, blocks keep sums, sides stay sides."""

from __future__ import annotations

import base64
import itertools
import zlib

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatlas.atlases.spaces import Grid, template_grid
from heatlas.reports.viewer.component import LEVELS, Coded, block_grid, block_mean, packed


@given(hnp.arrays(np.float32, (3, 4, 5), elements=st.floats(-1e3, 1e3, width=32)))
def test_the_stated_error_is_never_exceeded(values):
    coded = Coded.of(values)
    slack = 1e-12 * coded.top
    assert (np.abs(coded.values - values.astype(float)) <= coded.error + slack).all()


def test_the_stated_error_is_reached_and_no_larger_than_needed():
    """Just below the middle between two levels of the root, the error is that of the bound."""
    top, code = 2.0, 50
    edge = top * ((code + 0.5 - 1e-9) / LEVELS) ** 2
    coded = Coded.of(np.asarray([[[top, edge, -edge]]]))
    assert coded.codes.ravel().tolist() == [LEVELS, code, -code]
    found = np.abs(coded.values - [top, edge, -edge]).ravel()
    assert found[1] == pytest.approx(coded.error.ravel()[1], rel=1e-6)
    assert found[2] == found[1]
    assert found[0] == 0


def test_an_empty_map_is_all_zero():
    coded = Coded.of(np.zeros((2, 3, 4)))
    assert coded.top == 0
    assert not coded.values.any()
    assert not coded.error.any()


@pytest.mark.parametrize("side", [1, 2, 3])
def test_blocks_are_means_of_their_voxels(side):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 7, 4)).astype(np.float32)
    means = block_mean(values, side)
    for place in itertools.product(*map(range, means.shape)):
        block = values[tuple(slice(k * side, (k + 1) * side) for k in place)]
        assert means[place] == pytest.approx(block.astype(float).mean(), rel=1e-6)


def test_blocks_lie_where_their_voxels_lie():
    grid = template_grid(1.0)
    coarse = block_grid(grid, 2)
    corners = np.asarray(list(itertools.product((6, 7), (10, 11), (20, 21))))
    assert np.allclose(coarse.to_world([3, 5, 10]), grid.to_world(corners).mean(axis=0))
    assert coarse.shape == block_mean(np.zeros(grid.shape, np.int8), 2).shape
    assert coarse.voxel_sizes_mm == (2.0, 2.0, 2.0)


def test_packed_bytes_run_along_the_first_axis_and_are_little_endian():
    array = np.arange(24, dtype=">u2").reshape(2, 3, 4)
    found = np.frombuffer(zlib.decompress(base64.b64decode(packed(array))), "<u2")
    assert found.tolist() == array.ravel(order="F").tolist()


def test_a_grid_of_one_voxel_blocks_is_the_grid():
    grid = template_grid(4.0)
    assert block_grid(grid, 1) == Grid(grid.shape, grid.affine)
