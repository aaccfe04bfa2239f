"""Images that others processed: CAPS, FreeSurfer, and where they enter."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from input_trees import BidsTree, image_bytes

from heatlas.atlases.spaces import Grid, template_grid
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.applied import read_scan
from heatlas.pipeline.cohort.bids.derivatives import over_template, template_space_problem
from heatlas.pipeline.cohort.candidates import Candidate
from heatlas.pipeline.cohort.images.headers import check_header
from heatlas.pipeline.cohort.reading import InputCohort, read_cohort
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.sharing import image_digest
from heatlas.pipeline.registration.entry_points import place_in_template, placed_brain
from heatlas.pipeline.registration.images.t1w import load_labels, load_t1w
from heatlas.pipeline.run.config.images import KINDS
from heatlas.pipeline.run.config.settings import CohortConfig, RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError

# Where images of others enter.

SEX = {"contrast_column": "sex", "negative": "F", "positive": "M"}
SPACE = "space-MNI152NLin2009cAsym_res-4_desc-preproc"


def on_grid(affine: np.ndarray, shape: tuple[int, ...]) -> bytes:
    image = nib.Nifti1Image(np.ones(shape, np.int16), affine)
    image.set_sform(affine, 4)
    return image.to_bytes()


TEMPLATE = on_grid(template_grid(4.0).affine, template_grid(4.0).shape)


@pytest.fixture
def dataset(bids: BidsTree) -> BidsTree:
    """One person with a raw scan, one with a brain, one registered, one with all three."""
    bids.table("participants.tsv", "participant_id sex", "sub-1 M", "sub-2 F", "sub-3 F", "sub-4 M")
    bids.image("sub-1/anat/sub-1_T1w.nii")
    bids.image("sub-2/anat/sub-2_desc-brain_T1w.nii")
    bids.image(f"sub-3/anat/sub-3_{SPACE}_T1w.nii", TEMPLATE)
    bids.image("sub-4/anat/sub-4_T1w.nii")
    bids.image("sub-4/anat/sub-4_desc-brain_T1w.nii")
    bids.image(f"sub-4/anat/sub-4_{SPACE}_T1w.nii", TEMPLATE)
    return bids


def entries(cohort: InputCohort) -> dict[str, str]:
    return {scan.participant_id: scan.entry for scan in cohort.table.kept}


def test_images_enter_where_their_names_say_and_a_note_says_so(dataset: BidsTree) -> None:
    cohort = dataset.read(**SEX)
    assert entries(cohort) == {"sub-1": "scan", "sub-2": "brain", "sub-3": "template", "sub-4": "scan"}
    note = next(note for note in cohort.notes if note.startswith("images enter"))
    assert note.startswith("images enter 2 as scans, 1 brain-extracted, 1 registered to MNI152NLin2009cAsym; networks")
    assert len([scan for scan in cohort.table if not scan.kept]) == 2


@pytest.mark.parametrize(("start", "people"), [("brain", ["sub-2", "sub-4"]), ("template", ["sub-3", "sub-4"])])
def test_start_at_uses_only_what_is_recognised_as_such(dataset: BidsTree, start: str, people: list[str]) -> None:
    cohort = dataset.read(**SEX, start_at=start)
    assert entries(cohort) == dict.fromkeys(people, start)
    assert next(s.reason for s in cohort.table if s.scan_id == "sub-1_T1w") == (
        f"enters as scan, and --start-at is {start}"
    )


def test_start_at_takes_all_images_at_their_word_where_none_is_recognised(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    bids.image("sub-1/anat/sub-1_T1w.nii")
    bids.image("sub-2/anat/sub-2_T1w.nii", TEMPLATE)
    assert entries(bids.read(**SEX, start_at="brain")) == {"sub-1": "brain", "sub-2": "brain"}
    cohort = bids.read(**SEX, start_at="template")
    assert entries(cohort) == {"sub-2": "template"}
    assert (cohort.table.scans[0].reason or "").startswith("not in the space of MNI152NLin2009cAsym: its grid misses ")


@pytest.mark.parametrize(("stated", "entry"), [(True, "brain"), (False, "scan"), (None, "scan")])
def test_the_sidecar_says_whether_a_skull_is_there(bids: BidsTree, stated: bool | None, entry: str) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    for person in "12":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    if stated is not None:
        (bids.root / "T1w.json").write_text(json.dumps({"SkullStripped": stated}))  # for all images of the dataset
    (bids.root / "sub-2/anat/sub-2_T1w.json").write_text(json.dumps({"SkullStripped": False}))
    assert entries(bids.read(**SEX)) == {"sub-1": entry, "sub-2": "scan"}


def test_derivatives_that_are_no_scans_are_dropped_with_the_reason(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 F", "sub-2 M")
    for person in "12":
        bids.image(f"sub-{person}/anat/sub-{person}_T1w.nii")
    bids.image("sub-1/anat/sub-1_space-MNI152NLin2009cAsym_res-1_desc-logjacobian_T1w.nii")
    bids.image("sub-1/anat/sub-1_space-MNI152NLin6Asym_T1w.nii")
    dropped = {scan.scan_id: scan.reason or "" for scan in bids.read(**SEX).table if not scan.kept}
    assert dropped["sub-1_space-MNI152NLin2009cAsym_res-1_desc-logjacobian_T1w"].startswith(
        "not known as a T1-weighted"
    )
    assert dropped["sub-1_space-MNI152NLin6Asym_T1w"].startswith("in another space than MNI152NLin2009cAsym: space-MNI")


def test_a_grid_in_template_space_reaches_over_the_brain_in_any_orientation() -> None:
    grid = template_grid(2.0)
    assert template_space_problem(grid) is None
    flipped = grid.affine.copy()
    flipped[0, 0], flipped[0, 3] = -2.0, grid.to_world([grid.shape[0] - 1, 0, 0])[0]
    assert template_space_problem(Grid(grid.shape, flipped)) is None
    moved = grid.affine.copy()
    moved[1, 3] += 60
    assert "misses" in (template_space_problem(Grid(grid.shape, moved)) or "")
    assert "misses" in (template_space_problem(Grid(grid.shape, np.diag([2.0, 2, 2, 1]))) or "")


def test_fmriprep_writes_each_scan_in_two_spaces_and_nothing_is_mixed(bids: BidsTree) -> None:
    bids.table("participants.tsv", "participant_id sex", "sub-1 M", "sub-2 F")
    for name in ("sub-1", "sub-2"):
        bids.image(f"{name}/anat/{name}_desc-preproc_T1w.nii")
        bids.image(f"{name}/anat/{name}_{SPACE}_T1w.nii", TEMPLATE)
    cohort = bids.read(**SEX)
    assert entries(cohort) == {"sub-1": "scan", "sub-2": "scan"}
    assert not any(note.startswith("images enter") for note in cohort.notes)
    placed = bids.read(start_at="template", **SEX)
    assert entries(placed) == {"sub-1": "template", "sub-2": "template"}


# A CAPS dataset of Clinica as input.

CROPPED = "space-MNI152NLin2009cSym_desc-Crop_res-1x1x1_T1w.nii.gz"
WHOLE = "space-MNI152NLin2009cSym_res-1x1x1_T1w.nii.gz"


def linear(person: str, session: str, ending: str, before: str = "") -> str:
    return f"subjects/{person}/{session}/t1_linear/{person}_{session}_{before}{ending}"


@pytest.fixture
def caps(tmp_path) -> BidsTree:
    """Two people of a BIDS dataset, one of them seen twice, as versions of Clinica name their images."""
    made = BidsTree(tmp_path / "caps")
    content = gzip.compress(image_bytes())
    for path in (
        linear("sub-01", "ses-M000", CROPPED, "T1w_"),
        linear("sub-01", "ses-M012", CROPPED),
        linear("sub-01", "ses-M012", WHOLE),
        linear("sub-02", "ses-M000", CROPPED, "acq-MPRAGE_run-2_"),
        linear("sub-02", "ses-M000", CROPPED, "acq-MPRAGE_run-1_"),
        "subjects/sub-02/ses-M000/t1/spm/segmentation/normalized_space/sub-02_ses-M000_T1w.nii.gz",
        "subjects/sub-02/ses-M000/pet_linear/sub-02_ses-M000_pet.nii.gz",
    ):
        made.image(path, content)
    return made


def images(caps: BidsTree, **settings: str) -> list[tuple[str, str | None]]:
    cohort = read_cohort(caps.root, CohortConfig(**settings), 43)
    assert cohort.layout == "caps"
    assert {scan.entry for scan in cohort.table} == {"scan"}
    return [(scan.file, scan.label) for scan in cohort.table.kept]


EXPECTED = [
    (linear("sub-01", "ses-M000", CROPPED, "T1w_"), "CN"),
    (linear("sub-01", "ses-M012", WHOLE), "AD"),
    (linear("sub-02", "ses-M000", CROPPED, "acq-MPRAGE_run-1_"), "AD"),
]


def test_one_image_per_session_with_a_table(caps) -> None:
    caps.table(
        "people.tsv", "participant_id session_id diagnosis", "sub-01 ses-M000 CN", "sub-01 ses-M012 AD", "02 bl AD"
    )
    assert images(caps, table="people.tsv") == EXPECTED


def test_the_tables_of_the_bids_dataset(caps, tmp_path) -> None:
    bids = BidsTree(tmp_path / "bids")
    bids.table("participants.tsv", "participant_id sex diagnosis_sc", "sub-01 F CN", "sub-02 M AD")
    bids.table("sub-01/sub-01_sessions.tsv", "session_id diagnosis", "ses-M000 CN", "ses-M012 AD")
    assert images(caps, table=str(bids.root / "participants.tsv")) == EXPECTED


def test_without_a_table_or_without_images_it_is_refused(caps) -> None:
    with pytest.raises(BadInputError, match=r"no table of its people\. Give one with --table"):
        images(caps)
    empty = BidsTree(caps.root.parent / "other")
    empty.image("subjects/sub-01/ses-M000/t1/sub-01_ses-M000_T1w.nii")
    with pytest.raises(BadInputError, match=r"no image of a participant found\. `clinica run t1-linear` makes"):
        images(empty)


SPM_AFFINE = np.array([[-1.5, 0, 0, 90], [0, 1.5, 0, -126], [0, 0, 1.5, -72], [0, 0, 0, 1]])
"""Grid of SPM's normalised maps, 121 x 145 x 121."""


def tissue(person: str, session: str, ending: str, place: str = "dartel/group-AD", segm: str = "graymatter") -> str:
    name = f"{person}_{session}_T1w_segm-{segm}_space-Ixi549Space_{ending}_probability.nii.gz"
    return f"subjects/{person}/{session}/t1/spm/{place}/{name}"


@pytest.fixture
def volumes(tmp_path) -> BidsTree:
    """Maps as t1-volume leaves them; sub-03 stopped before DARTEL."""
    made = BidsTree(tmp_path / "volumes")
    image = nib.Nifti1Image(np.zeros((121, 145, 121), np.uint8), SPM_AFFINE)
    content = gzip.compress(image.to_bytes(), 1)
    for person, session in (("sub-01", "ses-M000"), ("sub-01", "ses-M012"), ("sub-02", "ses-M000")):
        for segm in ("graymatter", "whitematter"):
            for ending in ("modulated-on", "modulated-off", "modulated-on_fwhm-8mm"):
                made.image(tissue(person, session, ending, segm=segm), content)
    segmented = "segmentation/normalized_space"
    made.image(tissue("sub-03", "ses-M000", "modulated-on", segmented), content)
    made.image(linear("sub-01", "ses-M000", WHOLE), content)
    made.table("people.tsv", "participant_id diagnosis", "sub-01 CN", "sub-02 AD", "sub-03 AD")
    return made


def read_maps(tree: BidsTree, label: str = "GM"):
    return read_cohort(tree.root, CohortConfig(table="people.tsv", suffix="probseg", label=label), 43)


@pytest.mark.parametrize(("label", "segm"), [("GM", "graymatter"), ("WM", "whitematter")])
def test_everybody_has_one_version_of_the_map(volumes, label, segm) -> None:
    cohort = read_maps(volumes, label)
    assert [(scan.file, scan.entry) for scan in cohort.table.kept] == [
        (tissue(person, session, "modulated-on", segm=segm), "template")
        for person, session in (("sub-01", "ses-M000"), ("sub-01", "ses-M012"), ("sub-02", "ses-M000"))
    ]
    notes = " | ".join(cohort.notes)
    assert "maps of dartel/group-AD, modulated, not smoothed, are in the space of SPM (Ixi549Space)" in notes
    assert f"{6 + (label == 'GM')} maps of {label} of other versions ignored" in notes
    assert "without a probseg image: sub-03" in notes


def test_without_maps_of_dartel_those_of_the_segmentation(volumes) -> None:
    for path in volumes.root.rglob("group-AD/*"):
        path.unlink()
    kept = read_maps(volumes).table.kept
    assert [scan.file for scan in kept] == [
        tissue("sub-03", "ses-M000", "modulated-on", "segmentation/normalized_space")
    ]


def test_maps_of_two_groups_another_label_and_no_maps_are_refused(volumes, caps) -> None:
    with pytest.raises(BadInputError, match=r'cohort\.label = "bone" is no tissue .* one of GM, WM, CSF'):
        read_maps(volumes, "bone")
    volumes.image(tissue("sub-02", "ses-M000", "modulated-on", "dartel/group-old"), gzip.compress(image_bytes()))
    with pytest.raises(BadInputError, match=r"several groups of DARTEL \(group-AD, group-old\)"):
        read_maps(volumes)
    caps.table("people.tsv", "participant_id diagnosis", "sub-01 CN", "sub-02 AD")
    with pytest.raises(BadInputError, match="`clinica run t1-volume` makes the maps"):
        read_maps(caps)
    with pytest.raises(BadInputError, match=r'cohort\.suffix = "pet" are read of a BIDS dataset'):
        read_cohort(caps.root, CohortConfig(table="people.tsv", suffix="pet"), 43)


def test_the_grid_of_spm_covers_the_brain_of_the_template() -> None:
    assert template_space_problem(Grid((121, 145, 121), SPM_AFFINE)) is None
    assert template_space_problem(Grid((121, 145, 60), SPM_AFFINE)) is not None


def test_a_map_on_the_grid_of_spm_is_placed_by_its_affine(tmp_path) -> None:
    """The map rises by 1 per mm to the right, 1000 per mm to the front; so do its values on the template's grid."""
    source = Grid((121, 145, 121), SPM_AFFINE)
    x, y, _ = np.moveaxis(source.to_world(np.argwhere(np.ones(source.shape, bool))), -1, 0)
    values = (200 + x + 1000 * (200 + y)).reshape(source.shape).astype(np.float32)
    nib.save(nib.Nifti1Image(values, SPM_AFFINE), path := tmp_path / "map.nii.gz")
    template, image, kind = load_template(4.0), load_t1w(path), KINDS["probseg"]
    placed = place_in_template(image, placed_brain(image, kind, template, RegistrationConfig()), template, True, kind)
    inside = np.argwhere(template.brain_mask)
    x, y, z = template.grid.to_world(inside).T
    deep = z > -60
    found = placed.t1w[tuple(inside.T)]
    np.testing.assert_allclose(found[deep], (200 + x + 1000 * (200 + y))[deep], atol=0.5)


# A folder of FreeSurfer or FastSurfer subjects as input.

STATS = """# Measure EstimatedTotalIntraCranialVol, eTIV, Estimated Total Intracranial Volume, {tiv}, mm^3
# ColHeaders Index SegId NVoxels Volume_mm3 StructName
 1 17 4000 {left} Left-Hippocampus
 2 53 4000 3900.0 Right-Hippocampus
"""


class Subjects:
    """A SUBJECTS_DIR in the making."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, *images: str, left: float = 0.0) -> None:
        folder = self.root / name / "mri"
        (folder / "orig").mkdir(parents=True)
        for image in images:
            nib.save(nib.MGHImage(np.ones((7, 9, 11), np.uint8), np.eye(4)), folder / image)
        if left:
            (self.root / name / "stats").mkdir()
            (self.root / name / "stats" / "aseg.stats").write_text(STATS.format(tiv=1.5e6 + left, left=left))

    def table(self, name: str, *lines: str) -> None:
        (self.root / name).write_text("\n".join(lines) + "\n")

    def read(self, **settings: Any) -> InputCohort:
        return read_cohort(self.root, CohortConfig(**settings), 43)


@pytest.fixture
def subjects(tmp_path: Path) -> Subjects:
    made = Subjects(tmp_path / "freesurfer")
    made.add("sub-01", "brain.mgz", "T1.mgz", "orig.mgz", left=3500.0)
    made.add("sub-02", "orig.mgz", "orig_nu.mgz")
    made.add("fsaverage", "brain.mgz")
    made.table("participants.tsv", "participant_id\tage\tdiagnosis", "sub-01\t70\tCN", "sub-02\t80\tAD")
    return made


def rows(cohort: InputCohort) -> list[tuple[Any, ...]]:
    return [(s.participant_id, s.session_id, s.scan_id, s.image, s.entry, s.age, s.label) for s in cohort.table.kept]


def test_brains_enter_as_brains_and_heads_as_scans(subjects) -> None:
    cohort = subjects.read()
    assert cohort.layout == "freesurfer"
    assert rows(cohort) == [
        ("sub-01", None, "sub-01", "sub-01/mri/brain.mgz", "brain", 70.0, "CN"),
        ("sub-02", None, "sub-02", "sub-02/mri/orig_nu.mgz", "scan", 80.0, "AD"),
    ]
    assert len(cohort.table) == 2  # fsaverage is nobody
    one, other = cohort.table
    assert (one.hippocampus_mm3, one.tiv_mm3, one.hippocampus_source) == (
        7400.0, 1503500.0, "aseg.stats (FreeSurfer, version unknown)"
    )  # fmt: skip
    assert (other.hippocampus_mm3, one.diagnosis_source) == (None, "participants.tsv: diagnosis")
    assert not any("unsupported format" in note for note in cohort.notes)


def test_whole_heads_on_demand(subjects) -> None:
    kept = subjects.read(start_at="scan").table.kept
    assert [(scan.image, scan.entry) for scan in kept] == [
        ("sub-01/mri/T1.mgz", "scan"),
        ("sub-02/mri/orig_nu.mgz", "scan"),
    ]


def test_subjects_of_any_name_with_a_table(subjects) -> None:
    for number, name in enumerate(("I118671", "bert", "subj_3")):
        subjects.add(name, "brain.mgz", left=3000.0 + number)
    subjects.table("people.csv", "scan code,PTID,visit,age,dx", "I118671,002_S_0295,m12,74,CN", "bert,007,,61,AD",
                   "subj_3,8,bl,66,AD")  # fmt: skip
    cohort = subjects.read(table="people.csv")
    assert rows(cohort) == [
        ("sub-007", None, "bert", "bert/mri/brain.mgz", "brain", 61.0, "AD"),
        ("sub-8", "ses-M000", "subj_3", "subj_3/mri/brain.mgz", "brain", 66.0, "AD"),
        ("sub-ADNI002S0295", "ses-M012", "I118671", "I118671/mri/brain.mgz", "brain", 74.0, "CN"),
    ]
    assert [scan.hippocampus_left_mm3 for scan in cohort.table.kept] == [3001.0, 3002.0, 3000.0]
    assert [scan.reason for scan in cohort.table if not scan.kept] == ["no row in people.csv"] * 2
    assert any("scan code for the subject, PTID for the participant, visit for the session" in n for n in cohort.notes)


def test_a_table_of_people_whose_folders_are_named_after_them(subjects) -> None:
    subjects.table("people.csv", "id,dx", "01,CN", "02,AD")
    assert [scan.label for scan in subjects.read(table="people.csv").table.kept] == ["CN", "AD"]


def test_longitudinal_results_stand_in_for_absent_visits_only(subjects) -> None:
    for name in ("sub-03_ses-M000", "sub-03_ses-M000.long.sub-03", "sub-03_ses-M012.long.sub-03", "sub-03"):
        subjects.add(name, "brain.mgz")
    (subjects.root / "sub-03" / "base-tps").write_text("sub-03_ses-M000\n")
    with (subjects.root / "participants.tsv").open("a") as table:
        table.write("sub-03\t66\tAD\n")
    cohort = subjects.read()
    assert [(scan.session_id, scan.scan_id) for scan in cohort.table.kept if scan.participant_id == "sub-03"] == [
        ("ses-M000", "sub-03_ses-M000"),
        ("ses-M012", "sub-03_ses-M012.long.sub-03"),
    ]
    (dropped,) = (scan for scan in cohort.table if not scan.kept)
    assert dropped.reason == "another scan of this session is preferred: sub-03_ses-M000 (cross-sectional)"
    assert "1 base template of the longitudinal stream ignored: sub-03" in cohort.notes


def test_tables_of_the_dataset_above(subjects, tmp_path) -> None:
    dataset = tmp_path / "bids"
    inside = dataset / "derivatives" / "fmriprep" / "sourcedata" / "freesurfer"
    inside.parent.mkdir(parents=True)
    subjects.root.rename(inside)
    (inside / "participants.tsv").rename(dataset / "participants.tsv")
    (dataset / "sessions.tsv").write_text("participant_id\tsession_id\tdiagnosis\nsub-09\tses-1\tAD\n")
    subjects.root = inside
    subjects.add("sub-09_ses-1", "brain.mgz")
    for table in ("", str(dataset / "participants.tsv")):
        cohort = subjects.read(table=table)
        assert [scan.label for scan in cohort.table.kept] == ["CN", "AD", "AD"]
    assert "tables come from bids" in cohort.notes


def test_what_cannot_be_used(subjects) -> None:
    subjects.add("sub-04", "aseg.mgz")
    assert [scan.reason for scan in subjects.read().table if not scan.kept] == [
        "no brain.mgz or T1.mgz or orig_nu.mgz or orig.mgz in its folder mri"
    ]
    subjects.table("people.csv", "id,visit,dx", "sub-01,1,CN", "sub-01,2,CN", "sub-02,1,AD")
    with pytest.raises(BadInputError, match=r"sub-01 is in lines 2 and 3 \(of sub-01\)"):
        subjects.read(table="people.csv")
    (subjects.root / "participants.tsv").unlink()
    with pytest.raises(BadInputError, match=r"no table of its people\. Give one with --table"):
        subjects.read()


def test_a_column_that_holds_numbers_of_folders_by_chance_names_nobody(tmp_path) -> None:
    made = Subjects(tmp_path / "numbered")
    for number in (1, 2, 4, 5, 6, 7, 8):
        made.add(str(number), "brain.mgz")
    lines = [f"sub-{number},{'AD' if number % 2 else 'CN'},{7 if number == 3 else 12},{number % 3},{9 - number}"
             for number in range(1, 9)]  # fmt: skip
    made.table("people.csv", "participant_id,diagnosis,education,apoe4,rank", *lines)
    cohort = made.read(table="people.csv")
    kept = {scan.participant_id: scan.image for scan in cohort.table.kept}
    assert kept == {f"sub-{number}": f"{number}/mri/brain.mgz" for number in (1, 2, 4, 5, 6, 7, 8)}
    assert any("sub-3" in note for note in cohort.notes)


def test_a_folder_that_no_row_names_is_not_taken_for_a_person_of_the_table(tmp_path) -> None:
    made = Subjects(tmp_path / "named")
    for name in ("b1", "b2", "b3", "1"):
        made.add(name, "brain.mgz")
    made.table("people.csv", "folder,participant,dx", "b1,1,CN", "b2,2,AD", "b3,3,CN")
    cohort = made.read(table="people.csv")
    assert {scan.participant_id: scan.image for scan in cohort.table.kept} == {
        "sub-1": "b1/mri/brain.mgz", "sub-2": "b2/mri/brain.mgz", "sub-3": "b3/mri/brain.mgz"
    }  # fmt: skip
    (dropped,) = (scan for scan in cohort.table if not scan.kept)
    assert (dropped.scan_id, dropped.reason) == ("1", "no row in people.csv")


def test_a_table_of_images_is_one_of_images_beside_a_subject_too(subjects) -> None:
    subjects.table("paths.csv", "path,id,dx", "sub-01/mri/T1.mgz,7,CN", "sub-02/mri/orig.mgz,8,AD")
    cohort = subjects.read(table="paths.csv")
    assert cohort.layout == "table"
    assert [(scan.participant_id, scan.image) for scan in cohort.table.kept] == [
        ("sub-7", "sub-01/mri/T1.mgz"),
        ("sub-8", "sub-02/mri/orig.mgz"),
    ]


# Images of FreeSurfer (``.mgz``) against the same voxels as NIfTI.

VALUES = np.random.default_rng(5).normal(100, 20, size=(50, 61, 47)).astype(np.float32)
LIA = np.array([[-2.5, 0, 0, 61], [0, 0, 2.25, -50], [0, -2.0, 0, 70], [0, 0, 0, 1.0]])
"""Left, inferior, anterior, as FreeSurfer's conformed images; voxels of three sizes."""


def oblique() -> np.ndarray:
    turn = np.deg2rad(12)
    rotation = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    affine = LIA.copy()
    affine[:3, :3] = rotation @ LIA[:3, :3]
    return affine


def mgz(path: Path, affine: np.ndarray = LIA, values: np.ndarray = VALUES) -> Path:
    nib.save(nib.MGHImage(values, affine), path)
    return path


@pytest.mark.parametrize("affine", [LIA, oblique()], ids=["LIA", "oblique"])
def test_voxels_and_world_are_those_of_the_same_image_as_nifti(tmp_path, affine) -> None:
    nib.save(nib.Nifti1Image(VALUES, affine), tmp_path / "T1.nii.gz")
    nifti, freesurfer = load_t1w(tmp_path / "T1.nii.gz"), load_t1w(mgz(tmp_path / "T1.mgz", affine))
    np.testing.assert_array_equal(freesurfer.data, nifti.data)
    np.testing.assert_allclose(freesurfer.affine, affine, atol=1e-4)
    np.testing.assert_allclose(freesurfer.affine, nifti.affine, atol=1e-4)
    assert freesurfer.orientation == "MGZ"
    assert check_header(tmp_path, "T1.mgz", 5).problem is None
    assert check_header(tmp_path, "T1.mgz", 2.4).problem == (
        "slices too thick: voxels of 2.5 x 2 x 2.25 mm, cohort.max_voxel_mm is 2.4"
    )


def test_labels_are_read(tmp_path) -> None:
    labels = (VALUES > 100).astype(np.int32) * 2035
    read, affine = load_labels(mgz(tmp_path / "aparc+aseg.mgz", values=labels))
    np.testing.assert_array_equal(read, labels)
    np.testing.assert_allclose(affine, LIA, atol=1e-4)


def changed(path: Path, start: int, content: bytes) -> None:
    """Replace bytes of the header."""
    stored = bytearray(gzip.decompress(path.read_bytes()))
    stored[start : start + len(content)] = content
    path.write_bytes(gzip.compress(bytes(stored)))


@pytest.mark.parametrize(
    ("start", "content", "said"),
    [
        (28, b"\x00\x00", "no orientation in the header"),  # goodRASFlag; nibabel would take LIA
        (0, b"\x00\x00\x00\x07", "does not begin like an MGZ header"),
        (30, np.array([0, 1, 1], ">f4").tobytes(), "impossible voxel size: 0 x 1 x 1 mm"),
        (30, np.array([0.001, 1, 1], ">f4").tobytes(), "units other than mm"),
        (42, np.array([1, 0, 0, 1, 0, 0], ">f4").tobytes(), "no usable orientation in the header: singular"),
        (4, np.array([0], ">i4").tobytes(), "image without voxels"),
        (16, np.array([3], ">i4").tobytes(), "4D image"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path, start, content, said) -> None:
    changed(mgz(tmp_path / "T1.mgz"), start, content)
    assert said in (check_header(tmp_path, "T1.mgz", 5).problem or "")


def test_damaged_files(tmp_path) -> None:
    whole = mgz(tmp_path / "T1.mgz").read_bytes()
    (tmp_path / "T1.mgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInputError, match=r"T1\.mgz: not a readable MGZ image \(Compressed file ended"):
        load_t1w(tmp_path / "T1.mgz")
    (tmp_path / "T1.mgz").write_bytes(b"no image")
    assert "not a readable MGZ file" in (check_header(tmp_path, "T1.mgz", 5).problem or "")
    with pytest.raises(BadInputError, match=r"T1\.mgz: not a readable MGZ image"):
        load_t1w(tmp_path / "T1.mgz")


def test_one_image_is_a_cohort(tmp_path) -> None:
    (scan,) = read_scan(mgz(tmp_path / "sub-07_T1w.mgz"), CohortConfig()).table.kept
    assert (scan.participant_id, scan.scan_id, scan.image) == ("sub-07", "sub-07_T1w", "sub-07_T1w.mgz")


def test_digest_is_of_the_voxels(tmp_path) -> None:
    one = image_digest(mgz(tmp_path / "a.mgz"))
    assert image_digest(mgz(tmp_path / "b.mgz")) == one
    assert image_digest(mgz(tmp_path / "c.mgz", values=VALUES + 1)) != one


def test_an_image_that_does_not_lie_over_the_template_is_told_by_its_header(tmp_path) -> None:
    far = LIA.copy()
    far[0, 3] += 300
    mgz(tmp_path / "T1.mgz", far)
    (found,) = over_template(tmp_path, [Candidate(Scan("sub-1", None, "T1", "T1.mgz", entry="template"))])
    assert "its grid misses 100% of the template's brain" in (found.scan.reason or "")
