from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.registration.images import brain_extraction
from heatlas.pipeline.registration.images.brain_extraction import find_brain, is_stripped, nonzero_brain
from heatlas.pipeline.registration.images.t1w import T1wImage, load_t1w
from heatlas.pipeline.run.errors import BadInputError

AFFINE = np.diag([-3.0, 3.0, 4.0, 1.0])
SHAPE = (80, 90, 65)


def ellipsoid(*radii_mm: float) -> np.ndarray:
    centre = (np.array(SHAPE) - 1) / 2
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in SHAPE], indexing="ij"), -1)
    return np.asarray((((indices - centre) * np.abs(np.diag(AFFINE)[:3]) / radii_mm) ** 2).sum(-1) <= 1)


def scan(data: np.ndarray, folder: Path = Path("/nowhere")) -> T1wImage:
    return T1wImage(folder / "sub-01_T1w.nii.gz", data.astype(np.float32), AFFINE, "sform")


BRAIN = ellipsoid(68, 85, 62)  # 1.5 litres
HEAD = ellipsoid(85, 105, 115)  # 4.3 litres


@pytest.fixture
def no_deepbet(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise AssertionError("deepbet must not be asked")

    monkeypatch.setattr(brain_extraction, "_deepbet", refuse)


def with_deepbet(monkeypatch: pytest.MonkeyPatch, answer: np.ndarray | Exception) -> None:
    class Model:
        def run(self, image: Any) -> tuple[Any, Any, float]:
            if isinstance(answer, Exception):
                raise answer
            return image, nib.Nifti1Image(answer.astype(np.uint8), image.affine), 0.0

    monkeypatch.setattr(brain_extraction, "_deepbet", Model)


class TestIsStripped:
    def test_brain_on_zero(self) -> None:
        assert is_stripped(scan(np.where(BRAIN, 100, 0)))

    def test_head_whose_air_is_zero(self) -> None:
        assert not is_stripped(scan(np.where(HEAD, 100, 0)))

    def test_brain_in_noise(self) -> None:
        noise = np.random.default_rng(1).uniform(1, 5, SHAPE)
        assert not is_stripped(scan(np.where(BRAIN, 100, noise)))

    def test_specks_outside_and_holes_inside_do_not_matter(self) -> None:
        data = np.where(BRAIN, 100, 0)
        data[40, 45, 32] = 0
        data[1, 1, 1] = 50
        assert is_stripped(scan(data))
        mask = nonzero_brain(data)
        np.testing.assert_array_equal(mask, BRAIN)

    @pytest.mark.parametrize("stated", [True, False])
    def test_the_sidecar_decides(self, tmp_path: Path, stated: bool) -> None:
        (tmp_path / "sub-01_T1w.json").write_text(json.dumps({"SkullStripped": stated}))
        for body in (BRAIN, HEAD):
            assert is_stripped(scan(np.where(body, 100, 0), tmp_path)) is stated

    def test_a_sidecar_without_the_field_decides_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "sub-01_T1w.json").write_text('{"MagneticFieldStrength": 3}')
        assert is_stripped(scan(np.where(BRAIN, 100, 0), tmp_path))

    @pytest.mark.parametrize("content", ["{", '{"SkullStripped": "yes"}'])
    def test_a_broken_sidecar_is_named(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "sub-01_T1w.json").write_text(content)
        with pytest.raises(BadInputError, match=r"sub-01_T1w\.json"):
            is_stripped(scan(np.where(BRAIN, 100, 0), tmp_path))


class TestFindBrain:
    @pytest.mark.parametrize("method", ["auto", "none", "template-mask"])
    def test_a_stripped_image_is_left_alone(self, no_deepbet: None, method: str) -> None:
        found = find_brain(scan(np.where(BRAIN, 100, 0)), method)
        np.testing.assert_array_equal(found.mask, BRAIN)
        assert found.source == "stripped"
        assert found.litres == pytest.approx(4 / 3 * np.pi * 0.68 * 0.85 * 0.62, rel=0.02)

    @pytest.mark.parametrize("method", ["auto", "deepbet", "template-mask"])
    def test_a_head_goes_to_deepbet(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        with_deepbet(monkeypatch, BRAIN)
        found = find_brain(scan(np.where(HEAD, 100, 0)), method)
        np.testing.assert_array_equal(found.mask, BRAIN)
        assert found.source == "deepbet"

    def test_none_takes_a_head_for_a_brain(self, no_deepbet: None) -> None:
        assert find_brain(scan(np.where(HEAD, 100, 0)), "none").litres > 4

    @pytest.mark.parametrize("answer", [ellipsoid(20, 20, 20), HEAD, AssertionError("foreground"), ValueError("empty")])
    def test_no_brain(self, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
        with_deepbet(monkeypatch, answer)
        with pytest.raises(BadInputError, match=r"sub-01_T1w\.nii\.gz: deepbet finds"):
            find_brain(scan(np.where(HEAD, 100, 0)), "auto")


class TestRealData:
    @pytest.mark.ci
    def test_stripped_brains_and_heads_are_told_apart_without_sidecars(self, real_data: Path) -> None:
        for number in (1003, 1005, 1128):
            image = load_t1w(real_data / f"oasis20/sub-{number}/anat/sub-{number}_T1w.nii.gz")
            assert is_stripped(T1wImage(Path("/nowhere.nii"), image.data, image.affine, ""))
        for name in ("chris_t1", "IXI012-HH-1211_T1", "pycortex-S1_raw"):
            assert not is_stripped(load_t1w(real_data / "heads" / f"{name}.nii.gz"))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["chris_t1", "IXI012-HH-1211_T1", "pycortex-S1_raw"])
    def test_deepbet_finds_the_brain_in_any_orientation(self, real_data: Path, name: str) -> None:
        image = load_t1w(real_data / "heads" / f"{name}.nii.gz")
        before = image.data.copy()
        found = find_brain(image, "auto")
        assert found.source == "deepbet"
        assert 1.2 < found.litres < 1.9
        np.testing.assert_array_equal(image.data, before)
        # The brain lies in the upper part of a head, and is brighter than the rest on average.
        height = np.argwhere(found.mask) @ image.affine[2, :3]
        everything = np.argwhere(image.data > image.data.mean()) @ image.affine[2, :3]
        assert height.mean() > everything.mean()
        assert image.data[found.mask].mean() > 1.5 * image.data[~found.mask].mean()
