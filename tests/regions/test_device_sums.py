"""Sums where the maps are made: equal to those with the atlas, on any layout of labels, the same on every call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from brute_region_sums import index_labels, region_sums
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heatlas.atlases.brain_box import Box
from heatlas.pipeline.regions.packed_labels import pack_labels
from heatlas.pipeline.regions.region_sums import ROW, device_labels, device_region_sums, lay_out_labels, ordered_total
from heatlas.pipeline.run.errors import BadInputError

CPU = torch.device("cpu")
NUMBERS = (2, 5, 7, 300)
GRID = (6, 5, 7)


@st.composite
def boxes(draw: st.DrawFn) -> Box | None:
    if draw(st.booleans()):
        return None
    starts = [draw(st.integers(0, side - 1)) for side in GRID]
    sides = [draw(st.integers(1, side - start)) for side, start in zip(GRID, starts, strict=True)]
    return Box(tuple(starts), tuple(sides))


@given(
    hnp.arrays(np.int32, GRID, elements=st.sampled_from([0, *NUMBERS])),
    boxes(),
    st.permutations(NUMBERS),
    st.integers(0, 2**32 - 1),
)
def test_equal_to_the_sums_of_the_pasted_map(labels, box, order, seed):
    packed = pack_labels(labels, order)
    laid_out = lay_out_labels(packed, box, CPU)
    shape = GRID if box is None else box.shape
    maps = np.random.default_rng(seed).normal(size=(3, *shape)).astype(np.float32)
    sums = device_region_sums(torch.from_numpy(maps), laid_out).numpy()
    index = index_labels(labels, order)
    whole = maps if box is None else box.paste(maps, GRID)
    for values, own in zip(whole, sums, strict=True):
        limit = 1e-12 * np.abs(values).sum(dtype=np.float64)
        assert (np.abs(own - region_sums(values, index)) <= limit).all()
        assert own.sum() == pytest.approx(values.sum(dtype=np.float64), abs=limit)
    assert laid_out.numbers == index.numbers
    assert laid_out.n_voxels.tolist() == index.n_voxels.tolist()


def labelled_map() -> tuple[np.ndarray, np.ndarray]:
    """Regions of many rows, of one row exactly, and of one voxel."""
    labels = np.zeros((40, 41, 42), np.int32)
    labels[5:35, 5:36, 5:37] = 7
    labels[0, 0, :] = 2
    labels[20, 20, 20] = 5
    labels.reshape(-1)[-ROW:] = 300
    return labels, np.random.default_rng(3).normal(size=(2, *labels.shape)).astype(np.float32)


def test_large_regions_and_both_shapes_of_maps():
    labels, maps = labelled_map()
    laid_out = lay_out_labels(pack_labels(labels, NUMBERS), None, CPU)
    sums = device_region_sums(torch.from_numpy(maps), laid_out)
    flat = device_region_sums(torch.from_numpy(maps.reshape(2, -1)), laid_out)
    assert torch.equal(sums, flat)
    for values, own in zip(maps.astype(np.float64), sums.tolist(), strict=True):
        for number, total in zip(laid_out.numbers, own, strict=True):
            assert total == pytest.approx(values[labels == number].sum(), abs=1e-12 * np.abs(values).sum())


def test_the_same_bits_for_any_number_of_threads_and_a_batch_as_single_maps():
    labels, maps = labelled_map()
    laid_out = lay_out_labels(pack_labels(labels, NUMBERS), None, CPU)
    tensors, before = torch.from_numpy(maps), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = device_region_sums(tensors, laid_out)
        torch.set_num_threads(2)
        two = device_region_sums(tensors, laid_out)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)
    assert torch.equal(one[1:], device_region_sums(tensors[1:], laid_out))


def test_summed_in_float64():
    values = torch.full((100, 100, 101), 0.1)
    assert float(ordered_total(values.reshape(-1))) == pytest.approx(1.01e6 * float(np.float32(0.1)), rel=1e-13)
    laid_out = lay_out_labels(pack_labels(np.ones(values.shape, np.int32), [1]), None, CPU)
    sums = device_region_sums(values[None], laid_out)
    assert sums.dtype == torch.float64
    assert float(sums[0, 1]) == pytest.approx(1.01e6 * float(np.float32(0.1)), rel=1e-13)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 30_000])
def test_what_is_not_finite_is_refused_wherever_it_lies(bad, place):
    labels, maps = labelled_map()
    maps[1].reshape(-1)[place] = bad
    laid_out = lay_out_labels(pack_labels(labels, NUMBERS), None, CPU)
    with pytest.raises(BadInputError, match="map 2 of 2 holds NaN or infinite"):
        device_region_sums(torch.from_numpy(maps), laid_out)


def test_other_shape_and_other_box_are_refused():
    packed = pack_labels(labelled_map()[0], NUMBERS)
    with pytest.raises(ValueError, match="shape"):
        device_region_sums(torch.zeros(1, 40, 42, 41), lay_out_labels(packed, None, CPU))
    with pytest.raises(BadInputError, match="reaches beyond"):
        lay_out_labels(packed, Box((0, 0, 0), (41, 1, 1)), CPU)


def test_labels_are_laid_out_once_per_process():
    packed = pack_labels(labelled_map()[0], NUMBERS)
    again = pack_labels(labelled_map()[0], NUMBERS)
    box = Box((1, 2, 3), (30, 20, 10))
    assert device_labels(packed, box, CPU) is device_labels(again, box, CPU)
    assert device_labels(packed, None, CPU).shape == (40, 41, 42)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_same_bits_on_every_call():
    labels, maps = labelled_map()
    packed, gpu = pack_labels(labels, NUMBERS), torch.device("cuda")
    laid_out, tensors = lay_out_labels(packed, None, gpu), torch.from_numpy(maps).to(gpu)
    first = device_region_sums(tensors, laid_out)
    assert all(torch.equal(first, device_region_sums(tensors, laid_out)) for _ in range(5))
    on_cpu = device_region_sums(torch.from_numpy(maps), lay_out_labels(packed, None, CPU))
    assert torch.allclose(first.cpu(), on_cpu, rtol=0, atol=1e-12 * float(np.abs(maps).sum()))
