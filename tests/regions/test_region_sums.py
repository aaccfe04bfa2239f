"""Sums per region: brute force, nilearn, and identities that hold for any labels."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toy_run import GRID, REGIONS, toy_labels

from pipeline.regions.region_sums import REST, index_labels, pack_labels, region_sums, unpack_labels
from pipeline.run.errors import BadInputError

NUMBERS = (2, 5, 7, 300)


@given(
    hnp.arrays(np.int32, (3, 4, 2), elements=st.sampled_from([0, *NUMBERS])),
    hnp.arrays(np.float32, (3, 4, 2), elements=st.floats(-1e4, 1e4, width=32)),
    st.permutations(NUMBERS),
)
def test_rows_are_keyed_by_number_and_add_to_the_total(labels, values, order):
    index = index_labels(labels, order)
    assert index.numbers == (REST, *order)
    sums = dict(zip(index.numbers, region_sums(values, index), strict=True))
    wide = values.astype(np.float64)
    for number in index.numbers:
        assert sums[number] == pytest.approx(wide[labels == number].sum(), rel=1e-12, abs=1e-9)
    assert sum(sums.values()) == pytest.approx(wide.sum(), rel=1e-12, abs=1e-9)
    counts = dict(zip(index.numbers, index.n_voxels.tolist(), strict=True))
    assert counts == {number: int((labels == number).sum()) for number in index.numbers}


@given(hnp.arrays(np.int32, (2, 3, 4), elements=st.sampled_from([0, *NUMBERS])), st.permutations(NUMBERS))
def test_renaming_labels_permutes_rows(labels, renamed):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    new = dict(zip(NUMBERS, renamed, strict=True)) | {0: 0}
    other = np.vectorize(new.get)(labels).astype(np.int32)
    before = region_sums(values, index_labels(labels, NUMBERS))
    after = region_sums(values, index_labels(other, renamed))
    assert before.tolist() == after.tolist()


def test_memory_order_of_the_map_does_not_matter():
    values = np.random.default_rng(0).normal(size=GRID.shape)
    index = index_labels(toy_labels(), REGIONS.numbers)
    assert region_sums(np.asfortranarray(values), index).tolist() == region_sums(values, index).tolist()


def test_float32_maps_are_summed_in_float64():
    labels = np.ones((100, 100, 100), np.int32)
    values = np.full(labels.shape, 0.1, np.float32)
    _, total = region_sums(values, index_labels(labels, [1]))
    assert total == pytest.approx(1e6 * float(np.float32(0.1)), rel=1e-12)


def test_equal_to_nilearn_masker():
    nilearn_maskers = pytest.importorskip("nilearn.maskers")
    import nibabel as nib

    values = np.random.default_rng(1).normal(size=GRID.shape)
    labels = nib.Nifti1Image(toy_labels(), GRID.affine)
    masker = nilearn_maskers.NiftiLabelsMasker(labels, strategy="sum", resampling_target=None, standardize=None)
    oracle = masker.fit_transform(nib.Nifti1Image(values, GRID.affine)).ravel()
    index = index_labels(toy_labels(), REGIONS.numbers)
    sums = dict(zip(index.numbers, region_sums(values, index), strict=True))
    assert sums.pop(63) == 0.0  # nilearn has no column for it
    assert [sums[number] for number in sorted(sums) if number] == pytest.approx(oracle.tolist(), rel=1e-10)


def test_packed_labels_are_small_and_come_back():
    labels = np.zeros((97, 115, 97), np.int32)
    labels[30:60, 40:80, 20:50] = 47
    packed = pack_labels(labels, [47, 48])
    assert len(pickle.dumps(packed)) < 20_000
    index = unpack_labels(packed)
    assert index.n_voxels.tolist() == [labels.size - 36_000, 36_000, 0]
    assert np.array_equal(np.unravel_index(index.voxels, labels.shape, order="F"), np.nonzero(labels.T)[::-1])


def test_label_without_a_region_is_refused():
    with pytest.raises(BadInputError, match="label 101 without a row"):
        index_labels(toy_labels(), [n for n in REGIONS.numbers if n != 101])
    with pytest.raises(BadInputError, match="twice"):
        index_labels(np.zeros((2, 2, 2), int), [4, 4])


def test_other_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        region_sums(np.zeros((7, 9, 12)), index_labels(toy_labels(), REGIONS.numbers))


@pytest.mark.oracle
def test_faster_than_nilearn_on_a_whole_map(capsys):
    """One 1 mm map, 136 labels; the ratio is printed, and asserted far below what it is."""
    import nibabel as nib
    from nilearn.maskers import NiftiLabelsMasker

    rng = np.random.default_rng(2)
    labels = np.zeros((193, 229, 193), np.int32)
    blocks = rng.permutation(np.arange(1, 137)).reshape(4, 34).repeat(25, axis=0).repeat(5, axis=1)
    labels[40:140, 30:200, 40:150] = blocks[:, :, None]
    values = np.asfortranarray(rng.normal(size=labels.shape).astype(np.float32))
    affine = np.diag([1.0, 1, 1, 1])
    image = nib.Nifti1Image(values, affine)
    atlas = nib.Nifti1Image(labels, affine)
    masker = NiftiLabelsMasker(atlas, strategy="sum", resampling_target=None, standardize=None).fit()
    started = time.perf_counter()
    oracle = masker.transform(image).ravel()
    peer = time.perf_counter() - started
    index = index_labels(labels, range(1, 137))
    times = []
    for _ in range(5):
        started = time.perf_counter()
        sums = region_sums(values, index)
        times.append(time.perf_counter() - started)
    with capsys.disabled():
        print(f"\nregion sums {1e3 * min(times):.0f} ms, nilearn {1e3 * peer:.0f} ms, {peer / min(times):.0f} x")
    assert np.allclose(sums[1:], oracle, rtol=1e-6, atol=1e-3)
    assert peer > 5 * min(times)
