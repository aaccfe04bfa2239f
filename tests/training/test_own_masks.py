"""Guidance by masks of people's own anatomy: where labels arrive, who is annotated, what is refused."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import scipy.io
import scipy.ndimage
import torch

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid, write_template_image
from heatlas.pipeline.cohort.people.splits import Fold, Split, training_part
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.segmented.images import labels_of_scans, region_numbers
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.evaluation.planting.copies import require_masks_of_copies
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.registration import own_labels
from heatlas.pipeline.registration.own_labels import STAGE, OwnLabels, carry, carry_labels, require_own_labels
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE, record_failures
from heatlas.pipeline.training.objectives.of_task import classification
from heatlas.pipeline.training.objectives.records import Context, kind_of
from heatlas.pipeline.training.stage import facts_of, registered_versions
from heatlas.pipeline.training.trainer import Resumption, train
from heatlas.pipeline.training.volumes import STORED, LabelledVolumes
from heatlas.studies.objectives.guidance import Guidance, guided, mask_of, own_mask
from heatlas.workflows import stages
from heatlas.workflows.command_line import main
from heatlas.workflows.preflight import _objective_notes
from tests.training.test_objectives import PLAIN, SHAPE, small_network
from tests.workflows.template_cohort import write_config, write_template_cohort

GRID = template_grid(4.0)
FOLD = Fold(0, ("sub-1", "sub-2", "sub-3"), ("sub-4",), ("sub-5",))
SCANS = tuple(Scan(name, None, name, f"{name}/anat/{name}_T1w.nii.gz", label="CN") for name in FOLD.train)
STORED_AXES = np.array([[0, -1.0, 0, 104], [0, 0, 1.2, -140], [-0.9, 0, 0, 95], [0, 0, 0, 1]])
"""First axis to the feet, second to the left, third to the front; no two voxel sizes alike."""


def config(**others):
    objective = {"kind": "guided", "region_labels": "own", "regions": ["Hippocampus"], **others.pop("objective", {})}
    network = {"channels": [1], "pools": [8], "hidden_units": 2}
    return load_config(
        overrides={"registration": {"resolution_mm": 4.0}, "model": network, "objective": objective, **others}
    )


def planted_in(shape: tuple[int, int, int], affine: np.ndarray) -> np.ndarray:
    """Two boxes of unequal size in the scan, and one that is not asked for."""
    world = nib.affines.apply_affine(affine, np.moveaxis(np.indices(shape), 0, -1))
    labels = np.zeros(shape, np.int32)
    for number, centre, half in ((17, (-30, -22, -10), (9, 15, 6)), (53, (28, -18, -14), (6, 10, 8)),
                                 (1006, (-26, -2, -30), (8, 8, 8))):  # fmt: skip
        labels[(np.abs(world - centre) <= half).all(-1)] = number
    return labels


def write_transforms(files, matrix: np.ndarray, shift: np.ndarray, displacement: np.ndarray) -> None:
    """From template to scan, x -> M (x + u) + t in RAS, as ANTs stores it in LPS."""
    flip = np.diag([-1.0, -1.0, 1.0])
    parameters = np.concatenate([(flip @ matrix @ flip).ravel(), flip @ shift])[:, None]
    files.warp.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(
        files.affine_transform, {"AffineTransform_double_3_3": parameters, "fixed": np.zeros((3, 1))}, format="4"
    )
    field = np.broadcast_to((flip @ displacement).astype(np.float32), (*GRID.shape, 1, 3)).copy()
    image = nib.Nifti1Image(field, GRID.affine)
    image.header.set_intent("vector")
    nib.save(image, files.warp)


def write_brain(files, inside: np.ndarray | None = None) -> None:
    files.brain_mask.parent.mkdir(parents=True, exist_ok=True)
    write_template_image(files.brain_mask, np.ones(GRID.shape, bool) if inside is None else inside, GRID)


@pytest.mark.ci
def test_planted_labels_arrive_where_affine_and_warp_take_them_with_left_and_right(tmp_path) -> None:
    files = RunLayout(tmp_path).scan("sub-1", None, 4.0)
    angle = np.deg2rad(7)
    matrix = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]) @ np.diag(
        [1.1, 0.95, 1.05]
    )
    shift, displacement = np.array([5.0, -4.0, 7.0]), np.array([2.0, -3.0, 1.0])
    write_transforms(files, matrix, shift, displacement)
    write_brain(files)
    shape = (190, 205, 200)
    labels = planted_in(shape, STORED_AXES)
    path = tmp_path / "aparc+aseg.nii.gz"
    nib.save(nib.Nifti1Image(labels, STORED_AXES), path)
    carry({"labels": tmp_path / "own.nii.gz"}, OwnLabels(path, (("Hippocampus", (17, 53)),), files, placed=False))
    found = np.asarray(nib.load(tmp_path / "own.nii.gz").dataobj)

    centres = nib.affines.apply_affine(GRID.affine, np.moveaxis(np.indices(GRID.shape), 0, -1))
    voxels = nib.affines.apply_affine(np.linalg.inv(STORED_AXES), (centres + displacement) @ matrix.T + shift)
    shares = {number: scipy.ndimage.map_coordinates((labels == number).astype(float), np.moveaxis(voxels, -1, 0),
                                                    order=1) for number in (17, 53)}  # fmt: skip
    for number, share in shares.items():
        clear = np.abs(share - 0.5) > 1e-3
        np.testing.assert_array_equal((found == number)[clear], (share > 0.5)[clear])
    assert set(np.unique(found)) == {0, 17, 53}
    left, right = (centres[found == number][:, 0] for number in (17, 53))
    assert left.max() < 0 < right.min()
    assert len(left) > 1.2 * len(right)  # 18 x 30 x 12 mm against 12 x 20 x 16 mm: the larger one stays on the left


def test_labels_in_another_space_are_refused_by_their_share_outside_the_brain(tmp_path) -> None:
    files = RunLayout(tmp_path).scan("sub-1", None, 4.0)
    brain = np.zeros(GRID.shape, bool)
    brain[30:] = True  # only the right
    write_brain(files, brain)
    path = tmp_path / "x_dseg.nii.gz"
    nib.save(nib.Nifti1Image(planted_in(GRID.shape, GRID.affine), GRID.affine), path)
    with pytest.raises(BadInputError, match=r"the label image of the scan: \d+ % of it lies outside the brain"):
        carry({"labels": tmp_path / "own.nii.gz"}, OwnLabels(path, (("Hippocampus", (17,)),), files, placed=True))


def write_own(layout: RunLayout, name: str, labels: np.ndarray) -> None:
    files = layout.scan(name, None, 4.0)
    files.own_labels.parent.mkdir(parents=True, exist_ok=True)
    write_template_image(files.own_labels, labels.astype(np.float32), GRID)


def context(own, layout):
    return kind_of(own).context(
        own, task_of(own.cohort), configured_input(own), FOLD, SCANS, torch.device("cpu"), layout
    )


def test_masks_are_of_each_person_and_whoever_has_none_is_not_annotated(tmp_path) -> None:
    own, layout = config(), RunLayout(tmp_path)
    spec = configured_input(own)
    first, other = np.zeros((2, *GRID.shape), np.int32)
    first[20:23, 30:34, 20:22] = 17
    first[30:32, 31:33, 20:22] = 53
    write_own(layout, "sub-1", first)
    write_own(layout, "sub-3", other)  # a segmentation without the region
    found = context(own, layout)
    assert found.masks.shape == (3, *spec.shape)
    np.testing.assert_array_equal(found.masks[0], spec.box.crop(first > 0))
    assert not found.masks[1:].any()
    assert found.annotated.tolist() == [True, False, False]
    wider = context(replace(own, objective=replace(own.objective, dilate_voxels=1)), layout)
    grown = scipy.ndimage.binary_dilation(first > 0, np.ones((3, 3, 3)))
    np.testing.assert_array_equal(wider.masks[0], spec.box.crop(grown))
    outside = own_mask(replace(own.objective, outside=True), layout.scan("sub-1", None, 4.0), spec)
    np.testing.assert_array_equal(outside, spec.box.crop(first == 0))
    first[20, 30, 25] = 17  # the box of each side, and none across
    write_own(layout, "sub-1", first)
    boxes = own_mask(replace(own.objective, boxes=True), layout.scan("sub-1", None, 4.0), spec)
    assert boxes.sum() == 3 * 4 * 6 + 2 * 2 * 2
    assert own_mask(own.objective, layout.scan("sub-2", None, 4.0), spec) is None


def test_a_share_of_annotated_people_is_of_those_with_labels(tmp_path) -> None:
    layout, labels = RunLayout(tmp_path), np.zeros(GRID.shape)
    labels[20:23, 30:34, 20:22] = 17
    for name in ("sub-2", "sub-3"):
        write_own(layout, name, labels)
    found = context(config(objective={"annotated": 0.5}), layout).annotated.tolist()
    assert found in ([False, True, False], [False, False, True])
    with pytest.raises(UsageError, match=r"nobody in the training part of fold 0 has labels of their own with Hippo"):
        context(config(), RunLayout(tmp_path / "empty"))


def test_own_masks_that_are_the_atlas_are_the_masks_of_the_atlas(tmp_path) -> None:
    own, layout = config(), RunLayout(tmp_path)
    spec, atlas = configured_input(own), load_atlas(own.regions.atlas, GRID)
    for name in FOLD.train:
        write_own(layout, name, np.isin(atlas.labels, atlas.regions.groups["Hippocampus"]) * 17)
    found = context(own, layout)
    usual = mask_of(replace(own.objective, region_labels="atlas"), own.regions.atlas, spec)
    assert found.annotated.all()
    for mask in found.masks:
        np.testing.assert_array_equal(mask, usual)


def test_training_differs_by_nothing_but_the_masks_which_move_with_the_scans(tmp_path) -> None:
    """One mask for everybody, and the same mask for each person: the same weights, with flips and shifts."""
    random = np.random.default_rng(1)
    volumes = torch.from_numpy(random.uniform(0.2, 0.8, (12, 1, *SHAPE)).astype(np.float32)).to(STORED)
    data = LabelledVolumes(volumes, torch.arange(12) % 2)
    mask = torch.zeros(1, *SHAPE)
    mask[0, 2:5, 3:9, 4:8] = 1  # on one side
    objective = guided(classification(torch.ones(2)), Guidance(weight=5.0))
    augmented = replace(PLAIN, flip_probability=0.5, max_shift_voxels=2)

    def weights(name, masks, annotated=None):
        seen = {"masks": masks, "annotated": annotated}
        one = train(
            small_network(2), data, data, objective, augmented, 3, Resumption(tmp_path / name, name), Context(**seen)
        )
        return torch.cat([value.flatten() for value in one.weights.values()])

    of_everybody = weights("a", mask)
    own = mask.to(torch.uint8).repeat(12, 1, 1, 1)
    torch.testing.assert_close(weights("b", own, torch.ones(12, dtype=torch.bool)), of_everybody, rtol=0, atol=0)
    own[3] = own[3].flip(0)
    assert not torch.equal(weights("c", own), of_everybody)
    nobody = torch.ones(12, dtype=torch.bool)
    nobody[3] = False
    other = own.clone()
    other[3] = 1
    torch.testing.assert_close(weights("d", own, nobody), weights("e", other, nobody), rtol=0, atol=0)


def bids(folder: Path, names=("sub-1", "sub-2"), entities: str = "") -> list[Scan]:
    """T1-weighted images with labels beside them, and one table for all."""
    for name in names:
        (folder / name / "anat").mkdir(parents=True)
        image = nib.Nifti1Image(np.zeros(GRID.shape, np.uint8), GRID.affine)
        nib.save(image, folder / name / "anat" / f"{name}_T1w.nii.gz")
        nib.save(image, folder / name / "anat" / f"{name}{entities}_dseg.nii.gz")
    (folder / "dseg.tsv").write_text("index\tname\n1\tLeft Hippocampus\n2\tRight Hippocampus\n9\tBrain-Stem\n")
    return [Scan(name, None, name, f"{name}/anat/{name}_T1w.nii.gz", label="CN") for name in names]


def test_labels_are_found_beside_the_image_by_pattern_and_in_a_folder_of_subjects(tmp_path) -> None:
    root = tmp_path / "bids"
    scans = bids(root, entities="_desc-aseg")
    first = root / "sub-1" / "anat" / "sub-1_desc-aseg_dseg.nii.gz"
    assert labels_of_scans(root, scans, config(), scans)["sub-1"] == first
    assert region_numbers(first, root, ["Hippocampus"]) == (("Hippocampus", (1, 2)),)
    assert region_numbers(first, root, ["Right Hippocampus", "Brain-Stem"]) == (
        ("Right Hippocampus", (2,)),
        ("Brain-Stem", (9,)),
    )
    own = first.with_name("sub-1_desc-aseg_dseg.tsv")
    own.write_text("index\tname\n7\tLeft Hippocampus\n")  # nearer than that of all
    assert region_numbers(first, root, ["Hippocampus"]) == (("Hippocampus", (7,)),)
    (first.parent / "sub-1_space-MNI152NLin2009cAsym_dseg.nii.gz").write_bytes(first.read_bytes())
    assert labels_of_scans(root, scans, config(), scans)["sub-1"] == first  # another space is not that of the image
    (first.parent / "sub-1_dseg.nii.gz").write_bytes(first.read_bytes())
    with pytest.raises(BadInputError, match=r"sub-1_T1w.nii.gz: 2 segmentations lie beside it"):
        labels_of_scans(root, scans, config(), scans)
    named = config(regions={"own_labels": "{participant_id}/anat/{name}_desc-aseg_dseg.nii.gz"})
    assert labels_of_scans(root, scans, named, scans)["sub-1"] == first

    subjects = tmp_path / "subjects"
    for name in ("sub-1", "sub-7"):
        for part in ("mri/aseg.mgz", "stats/aseg.stats"):
            (subjects / name / part).parent.mkdir(parents=True, exist_ok=True)
            (subjects / name / part).touch()
    of_subjects = config(cohort={"freesurfer_folder": str(subjects)})
    plain = [replace(scan, image=f"raw/{scan.participant_id}_T1w.nii.gz") for scan in scans]
    assert labels_of_scans(root, plain, of_subjects, plain) == {"sub-1": subjects / "sub-1" / "mri" / "aseg.mgz"}
    (subjects / "sub-1" / "mri" / "aparc+aseg.mgz").touch()
    assert labels_of_scans(root, plain, of_subjects, plain)["sub-1"].name == "aparc+aseg.mgz"


SPLIT = Split((Fold(0, ("sub-1",), ("sub-2",), ()),))


def test_what_cannot_guide_is_refused_by_name_before_work(tmp_path) -> None:
    scans = bids(tmp_path)
    assert require_own_labels(config(), tmp_path, scans, SPLIT, scans)[0].startswith(
        "at most 2 of 2 participants have labels"
    )
    lost = [replace(scan, image=f"x/{scan.name}_T1w.nii.gz") for scan in scans]
    with pytest.raises(BadInputError, match=r"no scan has a label image. Put _dseg.nii.gz beside"):
        require_own_labels(config(), tmp_path, lost, SPLIT, lost)
    half = [*scans[1:], *lost[:1]]
    with pytest.raises(UsageError, match=r"nobody in the training part of fold 0 has labels of their own"):
        require_own_labels(config(), tmp_path, half, SPLIT, half)
    with pytest.raises(UsageError, match=r"objective.regions: Hipocampus: no such region of dseg.tsv; similar: Hippoc"):
        require_own_labels(config(objective={"regions": ["Hipocampus"]}), tmp_path, scans, SPLIT, scans)
    path = tmp_path / "sub-1" / "anat" / "sub-1_dseg.nii.gz"
    moved = GRID.affine.copy()
    moved[0, 3] += 8
    nib.save(nib.Nifti1Image(np.zeros(GRID.shape, np.uint8), moved), path)
    with pytest.raises(BadInputError, match=r"sub-1_dseg.nii.gz and its image sub-1_T1w.nii.gz lie on different grids"):
        require_own_labels(config(), tmp_path, scans, SPLIT, scans)
    path.write_bytes(b"no image")
    with pytest.raises(BadInputError, match=r"sub-1_dseg.nii.gz: not a readable NIfTI image"):
        require_own_labels(config(), tmp_path, scans, SPLIT, scans)
    (tmp_path / "dseg.tsv").unlink()
    with pytest.raises(BadInputError, match=r"no label table; put sub-\d_dseg.tsv"):
        require_own_labels(config(), tmp_path, scans, SPLIT, scans)


def test_labels_of_freesurfer_lie_on_its_grid_not_on_that_of_the_scan(tmp_path) -> None:
    scans = [replace(scan, image=f"raw/{scan.participant_id}_T1w.nii.gz") for scan in bids(tmp_path)]
    folder = tmp_path / "subjects" / "sub-1"
    (folder / "stats").mkdir(parents=True)
    (folder / "mri").mkdir()
    (folder / "stats" / "aseg.stats").touch()
    labels = nib.MGHImage(np.zeros((40, 41, 42), np.int32), np.diag([-4.0, 4, 4, 1]))
    nib.save(labels, folder / "mri" / "aparc+aseg.mgz")
    own = config(cohort={"freesurfer_folder": str(tmp_path / "subjects")})
    assert require_own_labels(own, tmp_path, scans, SPLIT, scans)[0].startswith("at most 1 of 2 participants")
    nib.save(nib.MGHImage(np.zeros((40, 41, 43), np.float32), labels.affine), folder / "mri" / "orig.mgz")
    with pytest.raises(BadInputError, match=r"aparc\+aseg.mgz and its image orig.mgz lie on different grids"):
        require_own_labels(own, tmp_path, scans, SPLIT, scans)


def of_subject(folder: Path, name: str) -> Path:
    """The label image of a subject of FreeSurfer, without voxels."""
    for part in ("mri/aseg.mgz", "stats/aseg.stats"):
        (folder / name / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / part).touch()
    return folder / name / "mri" / "aseg.mgz"


def test_a_subject_without_a_session_is_of_the_only_visit_among_all_kept_scans(tmp_path) -> None:
    visits = [
        Scan("sub-1", session, f"sub-1_{session}", f"sub-1_{session}_T1w.nii.gz", label=label)
        for session, label in (("ses-1", "CN"), ("ses-2", None))
    ]
    other = Scan("sub-2", "ses-1", "sub-2_ses-1", "sub-2_ses-1_T1w.nii.gz", label="CN")
    subjects = tmp_path / "subjects"
    of_subject(subjects, "sub-1")
    second = of_subject(subjects, "sub-2")
    own = config(cohort={"freesurfer_folder": str(subjects)})
    labelled, kept = [visits[0], other], [*visits, other]
    assert labels_of_scans(tmp_path, labelled, own, kept) == {"sub-2_ses-1": second}
    first = of_subject(subjects, "sub-1_ses-1")
    assert labels_of_scans(tmp_path, labelled, own, kept) == {"sub-1_ses-1": first, "sub-2_ses-1": second}
    (tmp_path / "sub-1.nii.gz").touch()
    named = config(regions={"own_labels": "{participant_id}.nii.gz"})
    with pytest.raises(BadInputError, match="several scans would have the same segmentation"):
        labels_of_scans(tmp_path, labelled, named, kept)


def test_check_and_run_match_subjects_with_all_kept_scans(tmp_path, monkeypatch) -> None:
    visits = [
        Scan("sub-1", session, f"sub-1_{session}", f"sub-1_{session}_T1w.nii.gz", label=label)
        for session, label in (("ses-1", "CN"), ("ses-2", None))
    ]
    of_subject(tmp_path / "subjects", "sub-1")
    own = config(cohort={"freesurfer_folder": str(tmp_path / "subjects")})
    with pytest.raises(BadInputError, match="no scan has a label image"):
        _objective_notes(own, InputCohort(tmp_path, "bids", ScanTable(tuple(visits)), ()), SPLIT)

    seen = {}

    def labels(_root, scans, _config, kept):
        seen["scans"], seen["kept"] = scans, kept
        raise InterruptedError

    def carried(work, scans, box):
        seen["box"] = box
        return carry_labels(work, scans, box)

    monkeypatch.setattr(own_labels, "labels_of_scans", labels)
    monkeypatch.setattr(stages, "carry_labels", carried)
    layout = RunLayout(tmp_path / "run")
    ScanTable(tuple(visits)).write(layout)
    record_failures(layout, [])
    dropped = replace(visits[1], scan_id="other", image="x.nii").dropped("a reason")
    work = Work(layout, tmp_path, own, (*visits, dropped), SPLIT, None, None)
    with pytest.raises(InterruptedError):
        stages.train(work)
    assert seen == {"scans": visits[:1], "kept": visits, "box": configured_input(own).box}


def test_longitudinal_results_have_no_labels_of_the_scan(tmp_path) -> None:
    scans, subjects = bids(tmp_path), tmp_path / "subjects"
    scans = [replace(scan, image=f"raw/{scan.participant_id}_T1w.nii.gz") for scan in scans]
    of_subject(subjects, "sub-1.long.sub-1_base")
    own = config(cohort={"freesurfer_folder": str(subjects)})
    assert labels_of_scans(tmp_path, scans, own, scans) == {}
    with pytest.raises(BadInputError, match=r"no scan has a label image.*Note: 1 longitudinal result \(.long.\)"):
        require_own_labels(own, tmp_path, scans, SPLIT, scans)
    path = of_subject(subjects, "sub-1")
    nib.save(nib.MGHImage(np.zeros((40, 41, 42), np.int32), np.eye(4)), path)
    _, note = require_own_labels(own, tmp_path, scans, SPLIT, scans)
    assert note.startswith("1 longitudinal result (.long.) in cohort.freesurfer_folder left out")
    assert labels_of_scans(tmp_path, scans, own, scans) == {"sub-1": path}


@pytest.mark.parametrize(
    ("image", "labels", "same"),
    [
        ("bert_T1.nii.gz", "anna_dseg.nii.gz", False),
        ("bert_T1w.nii.gz", "bert_dseg.nii.gz", True),
        ("bert.nii", "bert_dseg.nii.gz", True),
        ("bert_T1w.nii.gz", "berta_dseg.nii.gz", False),
        ("sub-1_T1w.nii.gz", "sub-1_desc-aseg_dseg.nii.gz", True),
        ("sub-1_T1w.nii.gz", "sub-1_seg-dk_atlas-x_label-GM_dseg.nii.gz", True),
        ("sub-1_rec-norm_T1w.nii.gz", "sub-1_rec-norm_dseg.nii.gz", True),
        *(
            (f"sub-1_{entity}-a_T1w.nii.gz", f"sub-1{other}_dseg.nii.gz", False)
            for entity in ("rec", "ce", "echo", "part")
            for other in ("", f"_{entity}-b")
        ),
    ],
)
def test_labels_beside_an_image_are_of_no_other_image(tmp_path, image, labels, same) -> None:
    (tmp_path / labels).touch()
    scan = Scan("sub-1", None, "sub-1", image)
    assert labels_of_scans(tmp_path, [scan], config(), [scan]) == ({"sub-1": tmp_path / labels} if same else {})


def test_the_exact_name_of_a_region_is_before_that_of_both_sides(tmp_path) -> None:
    names = ["WM-hypointensities", "Hippocampus", "Left-Hippocampus"]
    assert region_numbers(tmp_path / "aseg.mgz", tmp_path, names) == (
        ("WM-hypointensities", (77,)), ("Hippocampus", (17, 53)), ("Left-Hippocampus", (17,)),
    )  # fmt: skip


def test_settings_by_which_nobody_is_guided_are_refused_before_work(tmp_path) -> None:
    names = tuple(f"sub-{number}" for number in range(1, 9))
    scans = [replace(scan, label="AD" if number % 2 else "CN") for number, scan in enumerate(bids(tmp_path, names))]
    for name in names[3:]:  # labels are those of sub-1 (CN), sub-2 (AD) and sub-3 (CN)
        (tmp_path / name / "anat" / f"{name}_dseg.nii.gz").unlink()
    split = Split((Fold(3, names[:4], names[4:6], names[6:]), Fold(4, names[:1] + names[2:3], names[1:2], names[3:6])))

    def check(**others):
        return require_own_labels(config(**others), tmp_path, scans, split, scans)

    assert check()[0].startswith("at most 3 of 8 participants")
    with pytest.raises(UsageError, match=r"objective.annotated = 0.1: of 3 training participants that is nobody"):
        check(objective={"annotated": 0.1})
    with pytest.raises(UsageError, match=r"nobody of AD in the training part of fold 4 is annotated and has labels"):
        check(objective={"classes": ["AD"]})
    check(objective={"classes": ["CN"]})
    few = config(training={"participants": 0.25})
    learning = training_part(few, split.folds[0], scans).train  # one of each class
    assert len(learning) == 2
    for name in set(learning) & set(names[:3]):
        (tmp_path / name / "anat" / f"{name}_dseg.nii.gz").unlink()
    with pytest.raises(UsageError, match=r"nobody in the training part of fold \d has labels of their own"):
        require_own_labels(few, tmp_path, scans, Split(split.folds[:1]), scans)


def test_whose_labels_lack_a_region_is_not_annotated_and_is_named(tmp_path, caplog) -> None:
    """A hippocampus for all; an entorhinal cortex for the first, nowhere for the second, unseen for the third."""
    root, layout = tmp_path / "in", RunLayout(tmp_path / "run")
    scans = [replace(scan, entry="template") for scan in bids(root, FOLD.train)]
    (root / "dseg.tsv").write_text("index\tname\n1\tHippocampus\n2\tEntorhinal\n")
    own = config(objective={"regions": ["Hippocampus", "Entorhinal"]})
    box = configured_input(own).box
    for number, scan in enumerate(scans):
        write_brain(layout.scan(scan.participant_id, None, 4.0))
        labels = np.zeros(GRID.shape, np.uint8)
        labels[20:23, 30:34, 20:22] = 1
        if number != 1:
            labels[(slice(25, 27), slice(30, 32), slice(20, 22)) if number == 0 else (0, 0, 0)] = 2
        nib.save(nib.Nifti1Image(labels, GRID.affine), root / scan.name / "anat" / f"{scan.name}_dseg.nii.gz")
    assert min(box.start) > 0  # the first voxel is not seen
    for status in ("done", "unchanged"):
        caplog.clear()
        with ThreadPoolExecutor(1) as executor, caplog.at_level("INFO", "heatlas"):
            digests = DigestCache(tmp_path / "digests.json")
            found = carry_labels(Work(layout, root, own, tuple(scans), SPLIT, executor, digests), scans, box)
        assert [one.status for one in found] == [status] * 3
        assert (
            "sub-2: their maps are not guided, as their labels lack Entorhinal (not in the label image)" in caplog.text
        )
        assert "sub-3: their maps are not guided, as their labels lack Entorhinal (no voxel that" in caplog.text
        assert "1 of 3 labelled scans have labels of their own with Hippocampus, Entorhinal" in caplog.text
    assert context(own, layout).annotated.tolist() == [True, False, False]


def test_failures_of_own_labels_are_gone_with_the_masks_of_the_atlas(tmp_path) -> None:
    root, layout = tmp_path / "in", RunLayout(tmp_path / "run")
    scans = [replace(scan, entry="template") for scan in bids(root)]
    for scan in scans:
        write_brain(layout.scan(scan.participant_id, None, 4.0), np.zeros(GRID.shape, bool))
    for own, failed in ((config(), [STAGE, STAGE]), (config(objective={"region_labels": "atlas"}), [])):
        with ThreadPoolExecutor(1) as executor:
            digests = DigestCache(tmp_path / "digests.json")
            carry_labels(Work(layout, root, own, tuple(scans), SPLIT, executor, digests), scans)
        failures = FAILURES_TABLE.read(layout.failures)
        assert failures["stage"].tolist() == failed
        assert failures["message"].str.contains("the brain mask is empty; check the registration").all()


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (
            {"objective": {"regions": ["brain"]}},
            'must name regions of the labels where objective.region_labels = "own"',
        ),
        ({"objective": {"mask": "mask.nii.gz"}}, "must name regions of the labels"),
        ({"privacy": {"pseudonyms": ["ids"]}}, 'objective.region_labels = "own" finds files by ids'),
    ],
)
def test_settings_that_exclude_own_labels_are_refused(others, said) -> None:
    with pytest.raises(UsageError, match=said):
        config(**others)


def test_copies_have_no_labels_of_their_own() -> None:
    require_masks_of_copies(config(objective={"region_labels": "atlas"}))
    with pytest.raises(UsageError, match="copies of scans have no labels of their own"):
        require_masks_of_copies(config())


def test_labels_that_are_gone_leave_the_run_and_a_change_trains_again(tmp_path) -> None:
    scans, own = bids(tmp_path / "in"), config()
    layout, digests = RunLayout(tmp_path / "run"), DigestCache(tmp_path / "digests.json")
    scans = [replace(scan, entry="template") for scan in scans]
    for scan in scans:
        write_brain(layout.scan(scan.participant_id, None, 4.0))
    labels = np.zeros(GRID.shape, np.uint8)
    labels[20:30, 20:30, 20:30], labels[5:9, 20:30, 20:30] = 2, 9
    for scan in scans:
        nib.save(
            nib.Nifti1Image(labels, GRID.affine), tmp_path / "in" / scan.name / "anat" / f"{scan.name}_dseg.nii.gz"
        )

    def carried():
        with ThreadPoolExecutor(1) as executor:
            work = Work(layout, tmp_path / "in", own, tuple(scans), SPLIT, executor, digests)
            return [outcome.status for outcome in carry_labels(work, scans)]

    assert carried() == ["done", "done"]
    assert carried() == ["unchanged", "unchanged"]
    first = layout.scan("sub-1", None, 4.0)
    np.testing.assert_array_equal(np.asarray(nib.load(first.own_labels).dataobj), np.where(labels == 2, 2, 0))
    before = registered_versions(layout, scans, own, digests)
    assert before != registered_versions(layout, scans, config(objective={"region_labels": "atlas"}), digests)
    (tmp_path / "in" / "sub-1" / "anat" / "sub-1_dseg.nii.gz").unlink()
    assert carried() == ["unchanged"]
    assert not first.own_labels.exists()
    assert registered_versions(layout, scans, own, digests)["sub-1"] != before["sub-1"]
    facts, atlas = facts_of(own, FOLD)[0]
    assert facts.region_labels == "own"
    assert atlas is None  # of another atlas nothing is trained again


def test_guidance_by_an_atlas_of_the_users_own_depends_on_its_labels_and_not_on_its_place(tmp_path) -> None:
    def facts(folder: Path) -> object:
        overrides = {"regions": {"atlas": str(folder / "mine.nii.gz")}, "objective": {"kind": "guided"}}
        return facts_of(load_config(overrides=overrides), FOLD)

    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    (first / "mine.nii.gz").write_bytes(b"one")  # only its digest is taken
    (first / "mine.tsv").write_text("index\tname\n1\tA\n")
    before = facts(first)
    shutil.copytree(first, other)
    assert facts(other) == before
    (other / "mine.nii.gz").write_bytes(b"two")
    assert facts(other) != before
    (first / "mine.tsv").write_text("index\tname\n1\tB\n")
    assert facts(first) != before


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    """A dataset in template space in which all but two people have labels, and settings of a guided run."""
    folder = tmp_path_factory.mktemp("own")
    table = write_template_cohort(folder / "bids")
    atlas = load_atlas("neuromorphometrics-cat12", GRID)
    both = np.isin(atlas.labels, atlas.regions.groups["Hippocampus"])
    for number, name in enumerate(table["participant_id"]):
        if number >= 2:
            labels = np.roll(both, number % 2, axis=1).astype(np.uint8) * 4
            nib.save(nib.Nifti1Image(labels, GRID.affine), folder / "bids" / name / "anat" / f"{name}_dseg.nii.gz")
    (folder / "bids" / "dseg.tsv").write_text("index\tname\n4\tHippocampus\n")
    settings = write_config(folder / "own.toml")
    guided_by = '[objective]\nkind = "guided"\nregions = ["Hippocampus"]\nregion_labels = "own"\nweight = 5.0\n'
    settings.write_text(settings.read_text() + guided_by)
    return folder


@pytest.mark.slow
def test_a_run_says_how_many_have_labels_and_is_compared_with_one_without_maps(cohort, capsys) -> None:
    run, config_file = cohort / "run", str(cohort / "own.toml")
    assert main(["check", str(cohort / "bids"), "--config", config_file]) == 0
    said = "of 8 participants have labels of their own with all of Hippocampus, and only their maps are guided"
    assert said in capsys.readouterr().out
    command = ["run", str(cohort / "bids"), str(run), "--config", config_file, "--n-procs", "1"]
    assert main([*command, "--stop-after", "training"]) == 0
    assert "labelled scans have labels of their own with Hippocampus" in "".join(capsys.readouterr())
    assert main(["evaluate", str(run), "--parts", "objective", "--n-procs", "1"]) == 0
    table = (run / "evaluation" / "before_after.tsv").read_text()
    assert {line.split("\t")[1] for line in table.splitlines()[1:]} >= {"correct", "epg"}
    assert main(["evaluate", str(run), "--parts", "marker", "--n-procs", "1"]) == 2
    (cohort / "bids" / "sub-03" / "anat" / "sub-03_dseg.nii.gz").write_bytes(b"no image")
    assert main(["check", str(cohort / "bids"), "--config", config_file]) == 65
