import numpy as np
import pytest
from atlas_grids import oriented, small_grid
from hypothesis import given
from hypothesis import strategies as st

from heatlas.atlases.spaces import Box, Grid
from heatlas.atlases.templates import Template, brain_box, load_template
from heatlas.pipeline.run.errors import BadInputError


def template(mask, grid):
    return Template(grid, mask.astype(np.float32), mask, "test", "")


def test_box_of_the_template():
    box = brain_box(load_template(2.0))
    assert (box.start, box.shape) == ((9, 9, 0), (79, 97, 84))
    mask = load_template(2.0).brain_mask
    assert box.crop(mask).sum() == mask.sum()
    tight = brain_box(load_template(1.0), 0.0)
    assert (tight.start, tight.shape) == ((24, 24, 6), (145, 182, 155))


def test_margin_is_in_millimetres_rounded_up_and_clipped_to_the_grid():
    mask = np.zeros((7, 9, 11), bool)
    mask[3, 2:5, 1:9] = True  # voxels of 2, 3 and 1.5 mm
    box = brain_box(template(mask, small_grid()), margin_mm=3.0)
    assert (box.start, box.shape) == ((1, 1, 0), (5, 5, 11))


spans = [st.tuples(st.integers(0, side - 1), st.integers(1, side)) for side in (7, 9, 11)]


@given(st.tuples(*spans))
def test_crop_and_paste_are_inverse_and_keep_world_positions(parts):
    start = tuple(first for first, _ in parts)
    shape = tuple(min(side, full - first) for (first, side), full in zip(parts, (7, 9, 11), strict=True))
    box, whole = Box(start, shape), np.arange(2 * 7 * 9 * 11, dtype=np.int64).reshape(2, 7, 9, 11) + 1
    cropped = box.crop(whole)
    pasted = box.paste(cropped, whole.shape)
    assert np.array_equal(box.crop(pasted), cropped)
    assert pasted.sum() == cropped.sum()
    grid = oriented(small_grid(), "RAS")
    last = np.array(shape) - 1
    assert np.allclose(box.grid(grid).to_world(last), grid.to_world(np.array(start) + last))


def test_arrays_and_grids_that_do_not_fit_are_refused():
    box = Box((1, 0, 0), (7, 9, 11))
    for refused in (
        lambda: box.crop(np.zeros((7, 9, 11))),
        lambda: box.paste(np.zeros((7, 9, 11)), (7, 9, 11)),
        lambda: box.grid(Grid((7, 9, 11), np.eye(4))),
    ):
        with pytest.raises(BadInputError, match="reaches beyond"):
            refused()
    with pytest.raises(BadInputError, match="does not fit"):
        box.paste(np.zeros((7, 9, 10)), (8, 9, 11))
    with pytest.raises(BadInputError, match="not a box"):
        Box((0, 0, -1), (7, 9, 11))
