"""The marker cohort: who has the marker when, what is planted, how groups and maps are scored."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from heatlas.atlases.templates import load_template
from heatlas.pipeline.models.inputs import configured_input, read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout, FoldFiles
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.studies.marker.marked import MARKED, PLAIN, block, mark_scan, places_of
from heatlas.studies.marker.marker_groups import (
    DIAGNOSIS,
    GROUPS,
    MARKER_TABLE,
    MEASURES_TABLE,
    REVERSED,
    map_measures,
    marker_row,
    tied_marks,
)
from heatlas.studies.marker.stage import (
    CONTROL,
    GUIDED,
    TAUGHT,
    _people,
    _seen,
    copy_of,
    marker_cohort,
    recipe_of,
    training_with_maps,
)
from heatlas.studies.objectives.guidance import mask_of
from heatlas.studies.objectives.maps_in_training import MapSettings, map_settings
from tests.evaluation.block_run import CONFIG, block_cohort, scans, split, train_run
from tests.training.run_of_folds import Inline


def test_the_marker_goes_with_the_class_in_training_and_with_nothing_in_testing() -> None:
    positive = np.array([scan.label == "AD" for scan in scans()])
    marks = tied_marks(positive, 3, share=11 / 12)
    assert (marks == positive).sum() == 22  # one exception in either class
    assert marks.sum() == 12
    tied = {scan.participant_id: bool(mark) for scan, mark in zip(scans(), marks, strict=True)}
    copies = [copy_of(scan, which, DIAGNOSIS) for scan in scans() for which in (PLAIN, MARKED)]
    for fold in split().folds:
        seen = pd.DataFrame([(one.participant_id, one.session_id, one.label) for one in _seen(copies, fold, tied)])
        for who, own in seen.groupby(0):
            wanted = {"ses-plain", "ses-marked"} if who in fold.test else {f"ses-{MARKED if tied[who] else PLAIN}"}
            assert set(own[1]) == wanted
        tested = seen[seen[0].isin(fold.test)]
        assert (tested.groupby([1, 2]).size() == 6).all()  # four groups, equally many
    reversed_ = [copy_of(scan, which, REVERSED) for scan in scans()[:2] for which in (PLAIN, MARKED)]
    assert [one.label for one in reversed_] == [PLAIN, MARKED] * 2


def test_accuracies_of_groups_and_their_changes_by_hand() -> None:
    positive = {"a": False, "b": False, "c": True, "d": True}

    def answers(plain: str, marked: str, epg: float) -> pd.DataFrame:
        rows = [
            [who, copy, found == "1", agreed == "1", epg + 0.1 * copy, 0.5, 0.5, 0.2 * copy]
            for copy, own, as_teacher in ((False, plain, marked), (True, marked, "1001"))
            for who, found, agreed in zip("abcd", own, as_teacher, strict=True)
        ]
        return MEASURES_TABLE.frame(rows)

    def bounds(name: str) -> list[float]:
        return [row[f"{name}_change{end}"] for end in ("", "_low", "_high")]

    control, guided = answers("1100", "1011", 0.1), answers("1101", "1111", 0.4)
    row = marker_row(DIAGNOSIS, GUIDED, guided.sample(frac=1, random_state=0), control, 1.0, positive)
    assert [row[f"accuracy_{name}"] for name in GROUPS] == [1.0, 1.0, 0.5, 1.0]
    assert (row["worst_group"], row["mean_accuracy"], row["as_in_training"]) == (0.5, 0.875, 1.0)
    assert row["against_training"] == 0.75
    assert row["worst_group_change"] == 0.5  # the control recognises no patient without the marker
    assert "worst_group_change_low" not in MARKER_TABLE.meanings
    # Changes of people: of the copies that go against training 0, 1 (controls) and 0, 1 (patients); of the others 0.
    half = stats.t.ppf(0.975, 2) * np.sqrt(2 * 0.5 / 2) / 2
    assert bounds("against_training") == pytest.approx([0.5, 0.5 - half, 0.5 + half])
    assert bounds("as_in_training") == pytest.approx([0, np.nan, np.nan], nan_ok=True)
    # The teacher's answers: as in training those of a and b without and of c and d with the marker.
    assert (row["agreement_as_in_training"], row["agreement_against_training"]) == (0.75, 0.75)
    assert bounds("agreement_as_in_training")[0] == pytest.approx(0.25)  # the control: 1011 and 1001
    assert bounds("agreement_against_training") == pytest.approx([0, np.nan, np.nan], nan_ok=True)
    assert bounds("mean_accuracy") == pytest.approx([0.25, 0.25 - half / 2, 0.25 + half / 2])
    assert (row["chance"], row["chance_low"], row["chance_high"]) == (5 / 16, 0, 1)  # of nine pairs of 0, 1/2 and 1
    assert row["epg"] == pytest.approx(0.45)
    assert row["epg_change"] == pytest.approx(0.3)
    assert row["on_marker"] == pytest.approx(0.2)  # of copies that have one
    assert set(marker_row(DIAGNOSIS, CONTROL, control, control, 0.0, positive)) <= set(MARKER_TABLE.meanings)
    assert row["n_no_positive"] == 0
    guided.loc[guided["participant_id"] == "a", "epg"] = np.nan  # both copies have a map without positive values
    row = marker_row(DIAGNOSIS, GUIDED, guided, control, 1.0, positive)
    assert (row["n_no_positive"], row["epg"]) == (2, pytest.approx(0.45))
    assert row["epg_change"] == pytest.approx(0.3)


def test_only_the_block_outside_the_brain_differs_between_copies(tmp_path) -> None:
    cohort = block_cohort(EvaluationLayout(tmp_path))
    spec, scan = configured_input(CONFIG), scans()[0]
    files = cohort.layout.scan(scan.participant_id, None, 4.0)
    names = [f"{which}_{part}" for which in (PLAIN, MARKED) for part in ("t1w", "mask")]
    outputs = {name: tmp_path / f"{name}.nii.gz" for name in names}
    mark_scan(outputs, files, spec)
    found = {name: np.asarray(nib.load(path).dataobj) for name, path in outputs.items()}
    before, brain = (np.asarray(nib.load(path).dataobj) for path in (files.t1w, files.brain_mask))
    cube = block(spec) & (brain == 0)
    np.testing.assert_array_equal(found["plain_t1w"], before)
    np.testing.assert_array_equal(found["plain_mask"], brain)
    np.testing.assert_array_equal(found["marked_t1w"] != before, cube)
    np.testing.assert_array_equal(found["marked_mask"] != brain, cube)
    assert (found["marked_t1w"][cube] == before.max()).all()
    assert block(spec).sum() == 6**3  # 24 mm


def test_the_mask_of_the_reversed_task_is_all_but_the_brain() -> None:
    spec = configured_input(CONFIG)
    recipe = recipe_of(CONFIG, REVERSED, GUIDED)
    brain = mask_of(ObjectiveConfig(kind="guided", regions=("brain",)), "neuromorphometrics-cat12", spec)
    np.testing.assert_array_equal(brain, load_template(4.0).brain_mask)
    places = places_of(recipe.objective, "neuromorphometrics-cat12", spec)
    np.testing.assert_array_equal(places.mask, ~brain)
    assert (recipe.cohort.negative, recipe.cohort.positive) == (PLAIN, MARKED)
    assert recipe_of(CONFIG, DIAGNOSIS, CONTROL).objective.weight == 0
    usual = recipe_of(CONFIG, DIAGNOSIS, GUIDED)
    assert map_settings(usual) == MapSettings(30.0, "input-x-gradient", 0)  # as studied, where weight 1 did nothing
    np.testing.assert_array_equal(mask_of(usual.objective, "neuromorphometrics-cat12", spec), brain)
    own = dataclasses.replace(CONFIG, objective=ObjectiveConfig(kind="guided", regions=("Amygdala",), weight=3.0))
    assert recipe_of(own, DIAGNOSIS, GUIDED).objective == own.objective


def test_a_distilled_run_keeps_its_teacher() -> None:
    taught = ObjectiveConfig(kind="distilled", teacher="run", temperature=3.0)
    own = dataclasses.replace(CONFIG, objective=taught)
    assert training_with_maps(own) == TAUGHT
    assert recipe_of(own, DIAGNOSIS, TAUGHT).objective == taught
    assert recipe_of(own, DIAGNOSIS, CONTROL).objective == dataclasses.replace(taught, weight=0.0)
    answers = dataclasses.replace(CONFIG, objective=dataclasses.replace(taught, weight=0.0))
    assert training_with_maps(answers) == training_with_maps(CONFIG) == GUIDED
    assert recipe_of(answers, DIAGNOSIS, GUIDED).objective == ObjectiveConfig(kind="guided")


def test_boxes_of_a_mask_file_are_those_of_its_connected_parts(tmp_path) -> None:
    spec = configured_input(CONFIG)
    mask = np.zeros(spec.template_grid.shape, np.uint8)
    mask[4, 5:9, 6] = mask[4:7, 8, 6] = 1  # an L
    mask[20, 20, 20] = mask[21, 21, 21] = 1  # voxels that share a corner
    nib.save(nib.Nifti1Image(mask, spec.template_grid.affine), tmp_path / "mask.nii.gz")
    places = places_of(ObjectiveConfig(kind="guided", mask=str(tmp_path / "mask.nii.gz")), "", spec)
    wanted = np.zeros(spec.shape, bool)
    wanted[4:7, 5:9, 6] = wanted[20:22, 20:22, 20:22] = True
    np.testing.assert_array_equal(places.mask, mask > 0)
    np.testing.assert_array_equal(places.boxes, wanted)
    values = np.where(wanted, 2.0, 9.0) * np.where(mask > 0, 3.0, 1.0)  # what lies outside boxes does not count
    on_object = map_measures(values, places)["on_object_epg"]
    assert on_object == pytest.approx(3 * 8 / (3 * 8 + (12 - 6) + (8 - 2)))


def test_people_have_one_scan_each() -> None:
    folds = split().folds
    twice = tuple(dataclasses.replace(one, session_id=f"ses-{n}") for one in scans() for n in (2, 1))
    cohort = SimpleNamespace(labelled=twice, tested_folds=folds, config=CONFIG)
    found = _people(cohort)
    assert [one.participant_id for one in found] == [one.participant_id for one in scans()]
    assert {one.session_id for one in found} == {"ses-1"}


@pytest.mark.slow
def test_all_networks_are_trained_tested_and_not_trained_again(tmp_path) -> None:
    cohort = block_cohort(EvaluationLayout(tmp_path))
    digests = DigestCache(cohort.layout.digests)
    outcomes = marker_cohort(cohort, Inline(), digests)
    assert all(one.ok for one in outcomes)
    table = MARKER_TABLE.read(cohort.layout)
    assert list(zip(table["task"], table["training"], strict=True)) == [
        (task, kind) for task in (DIAGNOSIS, REVERSED) for kind in (CONTROL, GUIDED)
    ]
    assert (table["n_participants"] == len(scans())).all()
    assert table[[f"accuracy_{name}" for name in GROUPS]].min(axis=1).to_numpy() == pytest.approx(table["worst_group"])
    again = marker_cohort(cohort, Inline(), digests)
    assert {one.status for one in again} == {"unchanged"}


@pytest.mark.slow
def test_a_teacher_teaches_the_diagnosis_with_its_maps_and_without(tmp_path) -> None:
    cohort = block_cohort(EvaluationLayout(tmp_path))
    train_run(cohort)
    taught = ObjectiveConfig(kind="distilled", teacher=str(tmp_path))
    cohort = dataclasses.replace(cohort, config=dataclasses.replace(CONFIG, objective=taught))
    digests = DigestCache(cohort.layout.digests)
    assert all(one.ok for one in marker_cohort(cohort, Inline(), digests))
    table = MARKER_TABLE.read(cohort.layout)
    assert list(zip(table["task"], table["training"], table["weight"], strict=True)) == [
        (DIAGNOSIS, CONTROL, 0.0),
        (DIAGNOSIS, TAUGHT, 1.0),
    ]
    files = cohort.layout.evaluation / "models" / f"marker_diagnosis_{TAUGHT}" / "fold-0"
    answers = MEASURES_TABLE.read(files / "measures.tsv")
    spec = configured_input(CONFIG)
    copies = dataclasses.replace(cohort.layout, images="marker")
    student, teacher = (load_model(FoldFiles(one)).model for one in (files, tmp_path / "models" / "fold-0"))
    for row in answers.to_dict("records")[:6]:
        image = copies.scan(row["participant_id"], f"ses-{MARKED if row['marked'] else PLAIN}", 4.0)
        volume = torch.from_numpy(read_network_volume(image, spec))[None, None]
        assert row["agrees"] == (student(volume).argmax() == teacher(volume).argmax())
    assert table["agreement_as_in_training"].between(0, 1).all()
    assert table["agreement_against_training_change"].notna().tolist() == [False, True]
    assert {one.status for one in marker_cohort(cohort, Inline(), digests)} == {"unchanged"}
