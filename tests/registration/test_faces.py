"""Heads converted from DICOM: no face is kept, the brain is, and a second run does nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.cohort.images import conversion
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.registration.images import faces
from heatlas.pipeline.registration.images.brain_extraction import find_brain
from heatlas.pipeline.registration.images.faces import MARGIN_MM, voxels_near, without_face
from heatlas.pipeline.registration.images.t1w import load_t1w
from heatlas.pipeline.run.config.settings import PrivacyConfig, RegistrationConfig
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome

SHAPE, SIDES = (60, 44, 50), (3.0, 5.0, 4.0)
AFFINE = np.diag([*SIDES, 1.0])
WORLD = np.stack(np.meshgrid(*(np.arange(n) * side for n, side in zip(SHAPE, SIDES, strict=True)), indexing="ij"), -1)
CENTRE = np.array([90.0, 110.0, 100.0])
BRAIN = np.linalg.norm((WORLD - CENTRE) / [65, 80, 60], axis=-1) <= 1
HEAD = np.linalg.norm((WORLD - CENTRE) / [88, 108, 98], axis=-1) <= 1


@pytest.fixture(autouse=True)
def converter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter that makes a noisy head of any series."""
    grey = np.random.default_rng(7).integers(200, 900, SHAPE).astype(np.int16)

    def convert_one(
        outputs: dict[str, Path], root: Path, file: str, source: str, max_voxel_mm: float
    ) -> dict[str, str]:
        nib.Nifti1Image(np.where(HEAD, grey, np.int16(3)), AFFINE).to_filename(outputs["image"])
        outputs["sidecar"].write_text(json.dumps({"Sources": [f"bids:raw:{source}"]}))
        return {"series": "series 2"}

    monkeypatch.setattr(faces, "convert_one", convert_one)
    monkeypatch.setattr(conversion, "is_image", lambda name: False)


@pytest.fixture
def place(tmp_path: Path) -> SimpleNamespace:
    """An input with one series and a brain mask, and a run folder."""
    (tmp_path / "in").mkdir()
    nib.Nifti1Image(BRAIN.astype(np.uint8), AFFINE).to_filename(tmp_path / "in" / "sub-01_ses-M000_brain.nii.gz")
    return SimpleNamespace(root=tmp_path / "in", layout=RunLayout(tmp_path / "out"))


CONFIG = RegistrationConfig(resolution_mm=4.0, mask_pattern="{name}_brain.nii.gz")


def convert(
    place: SimpleNamespace, config: RegistrationConfig = CONFIG, entry: str = "scan"
) -> tuple[Scan | None, Outcome]:
    scan = Scan("sub-01", "ses-M000", "I1", "1906-04-18/1.dcm", entry=entry, location="2006-04-18/1.dcm")
    digests = DigestCache(place.layout.root / "digests.json")
    files = place.layout.scan("sub-01", "ses-M000", 4.0)
    with ThreadPoolExecutor(1) as executor:
        scans, (outcome,) = conversion.convert_scans(
            place.layout, place.root, [scan], 5.0, executor,
            lambda job, one: without_face(job, one, files, place.root, config, digests),
        )  # fmt: skip
    return (scans[0] if scans else None), outcome


def test_nothing_far_from_the_brain_is_kept_and_all_that_is_near(place: SimpleNamespace) -> None:
    scan, outcome = convert(place)
    assert (outcome.status, outcome.message) == ("done", "")
    assert scan is not None
    kept = np.asarray(nib.load(scan.file).dataobj)
    assert kept.dtype == np.int16
    distance = np.min(np.linalg.norm(WORLD[BRAIN][None, ::7] - WORLD[kept != 0][::200, None], axis=-1), axis=1)
    assert distance.max() <= MARGIN_MM + 2 * max(SIDES)  # only every seventh voxel of the brain was asked
    assert (kept[BRAIN] >= 200).all()
    assert (kept[HEAD & ~voxels_near(BRAIN, np.array(SIDES), MARGIN_MM)] == 0).all()
    said = json.loads(Path(scan.file.replace(".nii.gz", ".json")).read_text())
    assert said["SkullStripped"] is False
    assert said["Sources"] == ["bids:raw:1906-04-18/1.dcm"]
    assert "2006" not in "".join(p.read_text(errors="replace") for p in place.layout.root.rglob("*.json"))


def test_registration_takes_the_same_brain_though_the_image_has_an_empty_background(place: SimpleNamespace) -> None:
    scan, _ = convert(place)
    assert scan is not None
    files = place.layout.scan("sub-01", "ses-M000", 4.0)
    from heatlas.pipeline.registration.images.brain_extraction import mask_path

    beside = mask_path(place.root, scan)
    assert beside == files.converted_brain
    found = find_brain(load_t1w(Path(scan.file)), "auto", beside)
    assert (found.source, np.array_equal(found.mask, BRAIN)) == ("given", True)


def test_a_second_run_does_nothing_and_another_mask_does_it_again(place: SimpleNamespace) -> None:
    first, _ = convert(place)
    assert convert(place) == (first, convert(place)[1])
    assert convert(place)[1].status == "unchanged"
    nib.Nifti1Image(voxels_near(BRAIN, np.array(SIDES), 5).astype(np.uint8), AFFINE).to_filename(
        place.root / "sub-01_ses-M000_brain.nii.gz"
    )
    assert convert(place)[1].status == "done"


@pytest.mark.parametrize(
    ("config", "entry"),
    [
        (RegistrationConfig(mask_pattern="{name}_absent.nii.gz", brain_extraction="given-mask"), "scan"),
        (RegistrationConfig(brain_extraction="none"), "scan"),
        (RegistrationConfig(), "brain"),
    ],
)
def test_a_head_without_a_known_brain_is_not_kept(
    place: SimpleNamespace, config: RegistrationConfig, entry: str
) -> None:
    """None and brain take the whole head for a brain: its size gives it away."""
    scan, outcome = convert(place, config, entry)
    assert (scan, outcome.status) == (None, "failed")
    assert "1906-04-18/1.dcm: " in outcome.message
    assert not list(place.layout.root.rglob("*.nii.gz"))


@pytest.mark.parametrize(
    ("settings", "removed"),
    [
        ({}, False),
        ({"shift_dates": True}, True),
        ({"pseudonyms": ("ids",)}, True),
        ({"shift_dates": True, "faces": "keep"}, False),
        ({"faces": "remove"}, True),
    ],
)
def test_faces_go_when_anything_is_hidden_unless_told_otherwise(settings: dict[str, object], removed: bool) -> None:
    assert PrivacyConfig(**settings).removes_faces is removed  # type: ignore[arg-type]
