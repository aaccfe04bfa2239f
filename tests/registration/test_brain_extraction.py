"""Whose brain mask it is: what is stripped, deepbet, given masks, and the SynthStrip of the user."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.images import brain_extraction
from heatlas.pipeline.registration.images.brain_extraction import (
    find_brain,
    is_stripped,
    mask_path,
    nonzero_brain,
    read_mask,
    require_synthstrip,
)
from heatlas.pipeline.registration.images.t1w import T1wImage, load_t1w
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, MissingDataError, UsageError

AFFINE = np.array([[-3.0, 0, 0, 110], [0, 3, 0, -120], [0, 0, 4, -100], [0, 0, 0, 1]])
SHAPE = (76, 88, 61)


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


GIVEN = ellipsoid(62, 80, 60)  # 1.25 litres
GIVEN[:20] = False  # sides differ, so that a swapped axis shows
NOISY_HEAD = np.where(ellipsoid(85, 110, 100), 100.0, 5.0).astype(np.float32)


@pytest.fixture
def head(tmp_path: Path) -> T1wImage:
    return T1wImage(tmp_path / "sub-01_ses-1_T1w.nii.gz", NOISY_HEAD, AFFINE, "sform")


def save(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(values.astype(np.uint8), affine)
    image.set_sform(affine, 1)
    image.to_filename(path)
    return path


SCAN = Scan("sub-01", "ses-1", "I77", "sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz")


def test_a_mask_is_found_by_its_bids_name_or_by_a_pattern(tmp_path: Path) -> None:
    expected = tmp_path / "sub-01/ses-1/anat/sub-01_ses-1_desc-brain_mask.nii.gz"
    assert mask_path(tmp_path, SCAN) == expected  # where it should be
    plain = save(expected.with_suffix("").with_suffix(".nii"), GIVEN)
    assert mask_path(tmp_path, SCAN) == plain
    pattern = "derivatives/{participant_id}/{session_id}/{name}_{scan_id}.nii.gz"
    assert mask_path(tmp_path, SCAN, pattern) == tmp_path / "derivatives/sub-01/ses-1/sub-01_ses-1_I77.nii.gz"


@pytest.mark.parametrize("pattern", ["masks/mask.nii.gz", "{subject}.nii", "{name", "{name.folder}.nii"])
def test_a_pattern_that_names_no_scan_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"registration\.mask_pattern"):
        load_config(overrides={"registration": {"mask_pattern": pattern}})


def test_a_mask_in_another_order_of_axes_lies_where_it_should(head: T1wImage, tmp_path: Path) -> None:
    stored = nib.Nifti1Image(GIVEN.astype(np.uint8), AFFINE)
    psr = stored.as_reoriented(
        nib.orientations.ornt_transform(nib.io_orientation(AFFINE), nib.orientations.axcodes2ornt("PSR"))
    )
    path = save(tmp_path / "mask.nii.gz", np.asarray(psr.dataobj), psr.affine)
    assert psr.shape != SHAPE
    np.testing.assert_array_equal(read_mask(path, head), GIVEN)


def test_masks_that_cannot_be_used_are_named(head: T1wImage, tmp_path: Path) -> None:
    empty = save(tmp_path / "empty.nii.gz", np.zeros(SHAPE))
    with pytest.raises(BadInputError, match=r"empty\.nii\.gz: the mask is empty"):
        read_mask(empty, head)
    away = AFFINE.copy()
    away[:3, 3] += 900
    with pytest.raises(BadInputError, match=r"away\.nii\.gz: the mask does not overlap"):
        read_mask(save(tmp_path / "away.nii.gz", GIVEN, away), head)
    tiny = save(tmp_path / "tiny.nii.gz", ellipsoid(20, 20, 20))
    with pytest.raises(BadInputError, match=r"the mask .*tiny\.nii\.gz finds 0\.03 litres"):
        find_brain(head, "given-mask", tiny)


@pytest.mark.parametrize("method", ["auto", "template-mask", "given-mask"])
def test_a_given_mask_comes_before_deepbet(
    head: T1wImage, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brain_extraction, "_deepbet_mask", lambda image: pytest.fail("deepbet must not be asked"))
    found = find_brain(head, method, save(tmp_path / "mask.nii.gz", GIVEN))
    np.testing.assert_array_equal(found.mask, GIVEN)
    assert found.source == "given"


def test_given_mask_without_a_mask_fails_and_says_where_it_was_looked_for(head: T1wImage, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"sub-01_ses-1_T1w\.nii\.gz: no mask is given at .*nowhere\.nii"):
        find_brain(head, "given-mask", tmp_path / "nowhere.nii")


def test_deepbet_by_name_ignores_a_given_mask(head: T1wImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ellipsoid(65, 80, 60)
    monkeypatch.setattr(brain_extraction, "_deepbet_mask", lambda image: other)
    assert find_brain(head, "deepbet", save(tmp_path / "mask.nii.gz", GIVEN)).source == "deepbet"


FAKE = """#!{python}
import sys
import nibabel, numpy
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if open(options["--model"]).read() == "broken":
    sys.exit("cannot load the model")
image = nibabel.load(options["-i"])
values = numpy.asarray(image.dataobj)
mask = (values > 50).astype("uint8")
mask[:40] = 0
nibabel.Nifti1Image(mask, image.affine).to_filename(options["-m"])
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for FreeSurfer's command: same options, a threshold for a network. Gives the weights file."""
    program = tmp_path / "bin" / "mri_synthstrip"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(program.parent))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    weights = tmp_path / "synthstrip.1.pt"
    weights.write_text("weights")
    return weights


def test_synthstrip_is_the_users_own_command(head: T1wImage, command: Path, tmp_path: Path) -> None:
    expected = NOISY_HEAD > 50
    expected[:40] = False
    found = find_brain(head, "synthstrip", synthstrip_model=command)
    np.testing.assert_array_equal(found.mask, expected)
    assert found.source == "synthstrip"
    assert not list((tmp_path / "temporary").iterdir())


def test_synthstrip_that_fails_says_what_it_said(head: T1wImage, command: Path) -> None:
    command.write_text("broken")
    with pytest.raises(BadInputError, match=r"T1w\.nii\.gz: mri_synthstrip ended with code 1 .*cannot load the model"):
        find_brain(head, "synthstrip", synthstrip_model=command)


def test_synthstrip_without_command_or_weights_is_refused_before_work(
    command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_synthstrip(command)
    with pytest.raises(MissingDataError, match=r"none\.pt: no such file"):
        require_synthstrip(tmp_path / "none.pt")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDataError, match="mri_synthstrip is not on the PATH"):
        require_synthstrip(command)
    with pytest.raises(UsageError, match="synthstrip_model"):
        load_config(overrides={"registration": {"brain_extraction": "synthstrip"}})
