"""Affine registration without ANTs: the map that was planted is found, and its files mean what those of ANTs mean."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from registration_phantom import TEMPLATE_TO_SCAN

from heatlas.atlases.templates import Template
from heatlas.pipeline.registration import ants_transform, torch_affine
from heatlas.pipeline.registration.ants_transform import (
    AFFINE,
    AFFINE_TORCH,
    RegistrationError,
    Volume,
    engine_of,
    read_affine,
    read_displacement,
    require_ants,
    resample,
)
from heatlas.pipeline.registration.scan import register_image
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.images import KINDS, T1W
from heatlas.pipeline.run.errors import MissingDataError

SETTINGS = replace(load_config("patients").registration, brain_extraction="none")


@pytest.fixture
def no_ants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ants", None)


def test_without_ants_the_affine_planted_is_the_affine_found(
    no_ants: None, phantom: Any, template: Template, write: Any
) -> None:
    path = write(phantom, "PSR")
    result = register_image(path, template, SETTINGS, 1, path.with_name("of_"))
    found = read_affine(result.transforms.affine)
    points = template.grid.to_world(np.argwhere(template.brain_mask)[::50])
    apart = np.linalg.norm(points @ (found - TEMPLATE_TO_SCAN)[:3, :3].T + (found - TEMPLATE_TO_SCAN)[:3, 3], axis=1)
    assert apart.mean() < 0.5  # mm; voxels are of 4 mm, and the phantom of 3 mm
    assert apart.max() < 1.5
    assert not read_displacement(result.transforms.warp).any()
    assert result.quality["scale"] == pytest.approx(np.cbrt(np.linalg.det(TEMPLATE_TO_SCAN[:3, :3])), abs=0.01)
    inside = result.brain_mask & template.brain_mask & (result.t1w < 110)  # but the ball
    assert np.corrcoef(result.t1w[inside], template.t1w[inside])[0, 1] > 0.9


@pytest.mark.ci
def test_a_head_turned_by_twenty_degrees_is_found_from_the_centres_of_mass(template: Template) -> None:
    cosine, sine = np.cos(np.radians(20)), np.sin(np.radians(20))
    planted = np.array([[1, 0, 0, 30], [0, cosine, -sine, -20], [0, sine, cosine, 40], [0, 0, 0, 1.0]])
    fixed = Volume(template.t1w, template.grid.affine)
    found = torch_affine.affine_map(fixed, Volume(template.t1w, planted @ template.grid.affine))
    points = template.grid.to_world(np.argwhere(template.brain_mask)[::50])
    apart = np.linalg.norm(points @ (found - planted)[:3, :3].T + (found - planted)[:3, 3], axis=1)
    assert apart.mean() < 0.5


def information_of(shift: torch.Tensor) -> torch.Tensor:
    draw = np.random.default_rng(0)
    fixed, moving = (Volume(draw.random((5, 6, 4)), np.diag([2.0, 3.0, 1.0, 1.0])) for _ in range(2))
    zero = np.zeros(3)
    return torch_affine._information(fixed, moving, zero, zero)(torch.eye(3, dtype=torch.float64), shift)


def test_mutual_information_is_that_of_the_smoothed_histogram() -> None:
    """By hand: weights of a cubic B-spline for every pair of a voxel and a bin, places shifted by one voxel along y."""
    draw = np.random.default_rng(0)
    fixed, moving = draw.random((5, 6, 4)), draw.random((5, 6, 4))
    bins = [np.clip(data / np.percentile(data, 99.5), 0, 1) * 31 for data in (fixed, moving)]
    joint = np.zeros((32, 35))
    for i, j, k in itertools.product(range(5), range(6), range(4)):
        seen = bins[1][i, j + 1, k] if j < 5 else 0.0  # outside is background
        for bin_number in range(-1, 34):
            u = abs(seen - bin_number)
            weight = 2 / 3 - u**2 + u**3 / 2 if u < 1 else (2 - u) ** 3 / 6 if u < 2 else 0.0
            joint[round(bins[0][i, j, k]), bin_number + 1] += weight / fixed.size
    apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    expected = (joint[joint > 0] * np.log(joint[joint > 0] / apart[joint > 0])).sum()
    assert float(information_of(torch.tensor([0.0, 3.0, 0.0]).double())) == pytest.approx(expected, rel=1e-9)


def test_its_gradient_is_that_of_finite_differences() -> None:
    shift = torch.tensor([0.3, 0.7, -0.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(information_of, (shift,), eps=1e-6, atol=1e-5)


def test_a_map_is_read_as_it_was_written(tmp_path: Path) -> None:
    torch_affine.write_affine(tmp_path / "a.mat", TEMPLATE_TO_SCAN)
    np.testing.assert_allclose(read_affine(tmp_path / "a.mat"), TEMPLATE_TO_SCAN, atol=1e-12)


UNUSABLE = {
    "covers 0% of the template's brain": np.array([[1, 0, 0, 500], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]),
    "exchanges left and right": np.diag([-1.0, 1, 1, 1]),
    "changes lengths by a factor of 0.1 to 1": np.diag([0.1, 1, 1, 1]),
    "no affine map onto the template was found": np.diag([np.nan, 1, 1, 1]),
}


@pytest.mark.parametrize("said", UNUSABLE)
def test_a_map_that_is_of_no_use_is_refused_by_the_name_of_the_scan(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(torch_affine, "affine_map", lambda *_: UNUSABLE[said])
    brain, source = Volume(template.t1w, template.grid.affine), tmp_path / "sub-1_T1w.nii.gz"
    with pytest.raises(RegistrationError, match=rf"sub-1_T1w.nii.gz: is not registered: .*{said}.*Look at the scan"):
        torch_affine.register(brain, brain, tmp_path / "of_", source)
    assert [*tmp_path.iterdir()] == []
    monkeypatch.setattr(torch_affine, "affine_map", lambda *_: np.eye(4))
    half = Volume(
        np.where(np.arange(len(brain.data))[:, None, None] < len(brain.data) / 2, brain.data, 0), brain.affine
    )
    torch_affine.register(brain, half, tmp_path / "half_", source)
    with pytest.raises(RegistrationError, match="no affine map"):
        torch_affine.register(brain, Volume(np.zeros_like(brain.data), brain.affine), tmp_path / "none_", source)


@pytest.mark.ci
def test_ants_reads_the_files_and_resamples_as_is_done_without_it(
    phantom: Any, template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = Volume(phantom.get_fdata(dtype=np.float32), phantom.affine)
    fixed = Volume(template.t1w, template.grid.affine)
    files = torch_affine.register(fixed, scan, tmp_path / "of_", tmp_path)
    again = torch_affine.register(fixed, scan, tmp_path / "again_", tmp_path)
    assert again.affine.read_bytes() == files.affine.read_bytes()  # nothing is drawn
    by_ants = resample(scan, files, fixed.data.shape, fixed.affine)
    monkeypatch.setattr(ants_transform, "has_ants", lambda: False)
    np.testing.assert_allclose(resample(scan, files, fixed.data.shape, fixed.affine), by_ants, atol=0.02)
    with pytest.raises(MissingDataError, match="a transform needs ANTs"):
        resample(scan, files, fixed.data.shape, fixed.affine, "genericLabel")


def test_what_needs_ants_is_refused_where_it_is_absent(no_ants: None) -> None:
    assert engine_of(AFFINE) == AFFINE_TORCH
    scan = type("Scan", (), {"entry": "brain"})()
    require_ants([scan], SETTINGS, [T1W])
    for settings, kinds in (
        (replace(SETTINGS, bias_correction=True), [T1W]),
        (replace(SETTINGS, transform="syn"), [T1W]),
        (SETTINGS, [T1W, KINDS["FLAIR"]]),
    ):
        with pytest.raises(MissingDataError, match=r"heatlas\[registration\]"):
            require_ants([scan], settings, kinds)
    with pytest.raises(MissingDataError, match=r"objective\.region_labels.*heatlas\[registration\]"):
        require_ants([scan], SETTINGS, [T1W], own_labels=True)
    placed = type("Scan", (), {"entry": "template"})()
    require_ants([placed], SETTINGS, [T1W], own_labels=True)
