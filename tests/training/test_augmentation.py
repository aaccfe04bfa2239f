import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heatlas.pipeline.run.config.settings import TrainingConfig
from heatlas.pipeline.training.volumes import augment, flip_and_shift

SHAPE = (7, 4, 5)


def brute_force(volume, flip, shift):
    """Voxel by voxel; volume (D, H, W)."""
    width = volume.shape[0]
    result = np.zeros_like(volume)
    for i in range(width):
        source = i - shift
        if 0 <= source < width:
            result[i] = volume[width - 1 - source] if flip else volume[source]
    return result


@given(
    flips=st.lists(st.booleans(), min_size=3, max_size=3),
    shifts=st.lists(st.integers(-9, 9), min_size=3, max_size=3),
)
def test_values_against_brute_force(flips, shifts):
    volumes = np.random.default_rng(1).random((3, 1, *SHAPE)).astype(np.float16)
    result = flip_and_shift(torch.from_numpy(volumes.copy()), flips, shifts)
    expected = np.stack([brute_force(v[0], f, s)[None] for v, f, s in zip(volumes, flips, shifts, strict=True)])
    np.testing.assert_array_equal(result.numpy(), expected)


def test_a_marked_voxel_goes_to_the_right_place():
    volume = torch.zeros(1, 1, *SHAPE)
    volume[0, 0, 1, 2, 3] = 1
    assert flip_and_shift(volume, [False], [2])[0, 0, 3, 2, 3] == 1
    assert flip_and_shift(volume, [True], [0])[0, 0, 5, 2, 3] == 1
    assert flip_and_shift(volume, [True], [-1])[0, 0, 4, 2, 3] == 1
    assert flip_and_shift(volume, [False], [-2]).sum() == 0


def test_input_is_left_alone():
    volumes = torch.rand(2, 1, *SHAPE)
    before = volumes.clone()
    augment(volumes, TrainingConfig(), np.random.default_rng(0))
    assert torch.equal(volumes, before)


def test_off_means_identity_and_certain_flip_means_flip():
    volumes = torch.rand(5, 1, *SHAPE)
    off = TrainingConfig(flip_probability=0.0, max_shift_voxels=0)
    assert torch.equal(augment(volumes, off, np.random.default_rng(0)), volumes)
    always = TrainingConfig(flip_probability=1.0, max_shift_voxels=0)
    assert torch.equal(augment(volumes, always, np.random.default_rng(0)), volumes.flip(2))


def test_draws_are_as_configured_and_repeat_with_the_seed():
    # One marked voxel right of the middle tells flip and shift of each volume from its place.
    count, width = 4000, 21
    volumes = torch.zeros(count, 1, width, 1, 1)
    volumes[:, 0, 15] = 1
    result = augment(volumes, TrainingConfig(), np.random.default_rng(7))
    place = result[:, 0, :, 0, 0].argmax(1).numpy()
    flipped = place < 10
    shift = np.where(flipped, place - 5, place - 15)
    assert set(shift) == {-2, -1, 0, 1, 2}
    assert flipped.mean() == pytest.approx(0.5, abs=0.03)
    for value in range(-2, 3):
        assert (shift == value).mean() == pytest.approx(0.2, abs=0.03)
    assert abs(np.corrcoef(flipped, shift)[0, 1]) < 0.06
    assert torch.equal(result, augment(volumes, TrainingConfig(), np.random.default_rng(7)))
    assert not torch.equal(result, augment(volumes, TrainingConfig(), np.random.default_rng(8)))
