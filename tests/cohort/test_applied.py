"""One image as a cohort, and cohorts without labels of both classes."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from heatlas.pipeline.cohort.applied import fitting_folds, read_scan, to_apply
from heatlas.pipeline.cohort.people.splits import SPLITS_TABLE, Fold, Split
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.run.config.settings import CohortConfig, Config, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache


def image(path: Path, affine: np.ndarray | None = None, values: np.ndarray | None = None, codes: int = 1) -> Path:
    values = np.random.default_rng(1).normal(size=(20, 24, 22)).astype(np.float32) if values is None else values
    made = nib.Nifti1Image(values, np.diag([8.0, 8.0, 8.0, 1.0]) if affine is None else affine)
    made.set_sform(made.affine, codes)
    made.set_qform(made.affine, codes)
    nib.save(made, path)
    return path


CONFIG = CohortConfig(max_voxel_mm=10.0)


def test_one_image_is_a_cohort_of_one_person_of_whom_nothing_is_known(tmp_path) -> None:
    cohort = read_scan(image(tmp_path / "sub-07_ses-M12_T1w.nii.gz"), CONFIG)
    (scan,) = cohort.table.kept
    assert (scan.participant_id, scan.session_id, scan.image) == ("sub-07", "ses-M12", "sub-07_ses-M12_T1w.nii.gz")
    assert (scan.entry, scan.label, scan.age, scan.sex) == ("scan", None, None, None)
    assert cohort.root == tmp_path
    assert "neither age, sex nor diagnosis" in cohort.notes[-1]


def test_the_name_says_whether_the_brain_was_extracted(tmp_path) -> None:
    assert read_scan(image(tmp_path / "sub-07_desc-brain_T1w.nii.gz"), CONFIG).table.kept[0].entry == "brain"
    plain = image(tmp_path / "scan.nii.gz")
    assert read_scan(plain, dataclasses.replace(CONFIG, start_at="brain")).table.kept[0].entry == "brain"


def test_someone_of_the_run_is_refused_under_the_names_of_sources(tmp_path) -> None:
    table = tmp_path / "splits.tsv"
    table.write_text("participant_id\nsub-ADNI131S0295\n")
    config = dataclasses.replace(CONFIG, without=str(table))
    with pytest.raises(BadInputError, match="sub-ADNI002S0295, who is among the people of the run"):
        read_scan(image(tmp_path / "ADNI_002_S_0295_MR.nii.gz"), config)
    assert read_scan(image(tmp_path / "ADNI_002_S_0296_MR.nii.gz"), config).table.kept


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.with_name("notes.txt"), "not an image"),
        (lambda path: image(path, codes=0), "no usable orientation in the header"),
        (lambda path: image(path, values=np.zeros((4, 4, 4, 2), np.float32)), "4D image where one 3D volume"),
        (lambda path: image(path, values=np.ones((20, 24, 22), np.float32)), "all voxels are alike"),
        (lambda path: image(path, values=np.full((20, 24, 22), np.nan, np.float32)), "alike or not numbers"),
        (lambda path: image(path.with_name("sub-1_space-MNI305_T1w.nii.gz")), "in another space"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(tmp_path, make, said) -> None:
    path = make(tmp_path / "scan.nii.gz")
    path.touch()
    with pytest.raises(BadInputError, match=said) as raised:
        read_scan(path, CONFIG)
    assert str(raised.value).startswith(str(path))
    assert len(str(raised.value).splitlines()) == 1


def test_an_image_that_ends_too_early_is_refused_before_it_is_registered(tmp_path) -> None:
    path = image(tmp_path / "scan.nii.gz")
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(BadInputError, match="truncated file"):
        read_scan(path, CONFIG)


def cohort_of(**labels: int) -> InputCohort:
    scans = [
        Scan(f"sub-{label}{number}", None, f"{label}{number}", f"{label}{number}.nii", diagnosis=label,
             label=None if label == "MCI" else label)
        for label, count in labels.items() for number in range(count)
    ]  # fmt: skip
    return InputCohort(Path("/input"), "bids", ScanTable(tuple(scans)), ())


@pytest.mark.parametrize(
    ("labels", "counts"), [({"AD": 5}, "CN 0, AD 5"), ({"AD": 5, "CN": 2}, "CN 2, AD 5"), ({"MCI": 3}, "CN 0, AD 0")]
)
def test_without_three_people_of_each_class_nobody_has_a_label(labels, counts) -> None:
    config = Config()
    config = dataclasses.replace(config, attribution=dataclasses.replace(config.attribution, keep_maps="none"))
    cohort, settings = to_apply(cohort_of(**labels), config)
    assert {scan.label for scan in cohort.table} == {None}
    assert {scan.diagnosis for scan in cohort.table} == set(labels)
    assert counts in cohort.notes[-1]
    assert settings.attribution.keep_maps == "all"  # the map of a person is what is asked for


def test_with_both_classes_folds_are_as_many_as_they_can_be() -> None:
    wanted = cohort_of(CN=4, AD=3)
    cohort, settings = to_apply(wanted, Config())
    assert cohort is wanted
    assert settings.cohort.folds == 3
    assert to_apply(cohort_of(CN=40, AD=30), Config())[1] == Config()
    assert [fitting_folds(n, 10) for n in (3, 4, 5, 100)] == [3, 4, 5, 10]


def test_a_task_other_than_two_classes_needs_its_labels(tmp_path) -> None:
    config = dataclasses.replace(Config(), cohort=CohortConfig(target="age", max_voxel_mm=10.0))
    with pytest.raises(BadInputError, match="networks that tell a number are applied to cohorts with age only"):
        to_apply(read_scan(image(tmp_path / "scan.nii.gz"), config.cohort), config)


def test_an_image_of_freesurfer_is_of_the_person_whose_folder_it_lies_in(tmp_path) -> None:
    (tmp_path / "sub-01" / "mri").mkdir(parents=True)
    path = tmp_path / "sub-01" / "mri" / "brain.mgz"
    nib.save(nib.MGHImage(np.arange(693, dtype=np.float32).reshape(7, 9, 11), np.eye(4)), path)
    (scan,) = read_scan(path, CONFIG).table.kept
    assert (scan.participant_id, scan.scan_id, scan.entry) == ("sub-01", "sub-01", "brain")
    known = tmp_path / "known.tsv"
    known.write_text("participant_id\nsub-01\n")
    with pytest.raises(BadInputError, match="sub-01, who is among the people of the run"):
        read_scan(path, dataclasses.replace(CONFIG, without=str(known)))


@pytest.fixture
def applied_to_copies(tmp_path: Path) -> tuple[InputCohort, Config]:
    """Three new people: copies of someone trained with and of someone who was not, and a scan of someone else."""
    run = RunLayout(tmp_path / "run")
    for folder in (tmp_path / "old", tmp_path / "new", run.logs):
        folder.mkdir(parents=True)
    run.config.write_text('[run]\ninput = "../old"\npreset = "standard"\n')
    Split((Fold(0, ("sub-a",), (), ("sub-b",)),)).write(run)
    ScanTable(tuple(Scan(f"sub-{name}", None, name, f"{name}.nii") for name in "abc")).write(run)
    digests = DigestCache(run.digests)
    for name, content in (("a", "one"), ("b", "two"), ("c", "six")):
        (tmp_path / "old" / f"{name}.nii").write_text(content)
        digests.stamp(tmp_path / "old" / f"{name}.nii")
    digests.save()
    shutil.rmtree(tmp_path / "old")  # the scans of a run need not be there
    for name, content in (("x", "one"), ("y", "six"), ("z", "ten")):
        (tmp_path / "new" / f"{name}.nii").write_text(content)
    scans = ScanTable(tuple(Scan(f"sub-{name}", None, name, f"{name}.nii") for name in "xyz"))
    config = dataclasses.replace(Config(), training=TrainingConfig(networks_of=str(run.root)))
    config = dataclasses.replace(config, cohort=CohortConfig(without=str(SPLITS_TABLE.path(run))))
    return InputCohort(tmp_path / "new", "bids", scans, ()), config


def test_copies_of_people_of_the_run_are_left_out_under_any_id(applied_to_copies) -> None:
    cohort, config = applied_to_copies
    table = to_apply(cohort, config)[0].table
    assert [scan.participant_id for scan in table.kept] == ["sub-y", "sub-z"]
    assert (
        table.scans[0].reason == "has the same image, byte for byte, as a person of the run whose networks are applied"
    )
    alone = dataclasses.replace(cohort, table=ScanTable(cohort.table.scans[:1]))
    with pytest.raises(BadInputError, match=r"byte for byte.*: sub-x\. Give scans of other people"):
        to_apply(alone, config)


def test_copies_among_new_people_are_named(applied_to_copies) -> None:
    cohort, config = applied_to_copies
    cohort, _ = to_apply(cohort, dataclasses.replace(config, cohort=CohortConfig()))
    assert len(cohort.table.kept) == 3
    assert any("byte for byte" in note and note.endswith(": sub-x") for note in cohort.notes)
