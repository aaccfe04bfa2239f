"""Masks, annotated people and teachers as ``[objective]`` asks for them."""

from __future__ import annotations

from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch

from heatlas.atlases.labels import load_atlas
from heatlas.pipeline.cohort.people.splits import Fold, Split, annotated_people
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.work import digests
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.training.objectives import records
from heatlas.pipeline.training.objectives.of_task import classification
from heatlas.pipeline.training.objectives.records import kind_of
from heatlas.pipeline.training.stage import facts_of, fold_job
from heatlas.studies.objectives.distillation import distillation_of
from heatlas.studies.objectives.guidance import mask_of
from heatlas.studies.objectives.maps_in_training import MapSettings, map_settings
from tests.training.run_of_folds import save_untrained

FOLD = Fold(0, ("sub-1", "sub-2"), ("sub-3",), ("sub-4",))
NETWORK = {"channels": [1], "pools": [8], "hidden_units": 2}


def config(**objective):
    return load_config(overrides={"registration": {"resolution_mm": 4.0}, "model": NETWORK, "objective": objective})


def context_of(own, *rest):
    return kind_of(own).context(own, *rest, None)


def learned(task, own):
    return kind_of(own).objective(task, own, task_of(own.cohort))


def test_a_mask_is_the_regions_on_the_part_that_the_network_sees() -> None:
    own = config(kind="guided", regions=["Hippocampus"])
    spec = configured_input(own)
    atlas = load_atlas(own.regions.atlas, spec.template_grid)
    both = np.isin(atlas.labels, atlas.regions.groups["Hippocampus"])
    found = mask_of(own.objective, own.regions.atlas, spec)
    np.testing.assert_array_equal(found, spec.box.crop(both))
    boxes = mask_of(replace(own.objective, boxes=True), own.regions.atlas, spec)
    assert (boxes & found).sum() == found.sum() < boxes.sum() < 10 * found.sum()  # one box a side, none across
    middle = boxes.shape[0] // 2
    assert not boxes[middle - 1 : middle + 1].any()
    context = context_of(replace(own, objective=replace(own.objective, dilate_voxels=1)), task_of(own.cohort), spec,
                         FOLD, (), torch.device("cpu"))  # fmt: skip
    assert context.masks.shape == (1, *spec.shape)
    assert context.masks.sum() > found.sum()


def test_a_mask_from_a_file_replaces_the_regions(tmp_path) -> None:
    spec = configured_input(config())
    values = np.zeros(spec.template_grid.shape, np.uint8)
    values[20:24, 30:33, 20:22] = 3
    path = tmp_path / "mask.nii.gz"
    nib.save(nib.Nifti1Image(values, spec.template_grid.affine), path)
    wanted = ObjectiveConfig(kind="guided", mask=str(path))
    np.testing.assert_array_equal(mask_of(wanted, "", spec), spec.box.crop(values) > 0)
    nib.save(nib.Nifti1Image(values * 0, spec.template_grid.affine), path)
    with pytest.raises(UsageError, match=r"the mask \(.*mask.nii.gz\) has no voxel that the network sees"):
        mask_of(wanted, "", spec)
    nib.save(nib.Nifti1Image(values[:-1], spec.template_grid.affine), path)
    with pytest.raises(BadInputError, match=r"objective.mask"):
        mask_of(wanted, "", spec)
    path.write_bytes(b"no image")
    with pytest.raises(BadInputError, match=r"mask.nii.gz: cannot be read"):
        mask_of(wanted, "", spec)


def test_annotated_people_are_a_share_and_the_same_in_every_fold() -> None:
    people = [f"sub-{n}" for n in range(40)]
    some, fewer = annotated_people(people, 0.5, 7), annotated_people(people, 0.1, 7)
    assert len(some) == 20
    assert fewer < some
    assert annotated_people(people[10:], 0.5, 7) - some <= set(people[10:])
    assert annotated_people(people, 0.5, 8) != some
    with pytest.raises(UsageError, match=r"objective.annotated = 0.01: of 40 training participants that is nobody"):
        annotated_people(people, 0.01, 7)


def test_regions_and_classes_that_are_not_there_are_named_with_similar_ones() -> None:
    own = config(kind="guided", regions=["Hipocampus"])
    spec, task = configured_input(own), task_of(own.cohort)
    with pytest.raises(UsageError, match=r"objective.regions: Hipocampus: no such group .* similar: Hippocampus"):
        context_of(own, task, spec, FOLD, (), torch.device("cpu"))
    with pytest.raises(UsageError, match=r"objective.classes: MCI: no such class; there are CN, AD"):
        context_of(config(kind="guided", classes=["MCI"]), task, spec, FOLD, (), torch.device("cpu"))


class TestTeacher:
    @pytest.fixture
    def folder(self, tmp_path):
        return save_untrained(tmp_path, config(), FOLD)

    def context(self, folder, fold=FOLD, outputs=None, **model):
        own = config(kind="distilled", teacher=str(folder))
        other = load_config(overrides={"registration": {"resolution_mm": 4.0}, "model": {**NETWORK, **model}})
        task = task_of(own.cohort) if outputs is None else task_of(replace(own.cohort, classes=outputs))
        return context_of(own, task, configured_input(other), fold, (), torch.device("cpu"))

    def test_it_is_the_frozen_network_of_the_same_fold(self, folder) -> None:
        teacher = self.context(folder).teacher
        assert not teacher.training
        assert not any(weight.requires_grad for weight in teacher.parameters())

    def test_a_folder_of_networks_beside_a_run_teaches_as_well(self, folder) -> None:
        other = folder / "marker_diagnosis_guided"
        (folder / "models").rename(other)
        assert self.context(other).teacher is not None
        _, files = facts_of(config(kind="distilled", teacher=str(other)), FOLD)
        assert files["teacher"] == file_digest(FoldFiles(other / "fold-0").weights)

    def test_one_that_knows_the_people_of_the_test_part_is_refused(self, folder) -> None:
        with pytest.raises(UsageError, match=r"was trained with 1 test participant of this fold \(sub-2\)"):
            self.context(folder, Fold(0, ("sub-1",), ("sub-3",), ("sub-2",)))

    def test_one_of_other_classes_or_another_grid_is_refused(self, folder) -> None:
        with pytest.raises(UsageError, match="its outputs are CN, AD, those of this run CN, MCI, AD"):
            self.context(folder, outputs=("CN", "MCI", "AD"))
        with pytest.raises(UsageError, match=r"it sees \(\d+, \d+, \d+\) voxels of .* this run"):
            self.context(folder, pools=[9])

    def test_none_is_refused_with_the_remedy(self, tmp_path) -> None:
        with pytest.raises((BadInputError, UsageError), match=r"finish the run|cannot be read|no such"):
            facts_of(config(kind="distilled", teacher=str(tmp_path / "nothing")), FOLD)


def test_what_a_training_depends_on_is_the_content_of_its_files(tmp_path) -> None:
    path = tmp_path / "mask.nii.gz"
    path.write_bytes(b"one")
    own = config(kind="guided", mask=str(path))
    first = facts_of(own, FOLD)
    path.write_bytes(b"two")
    assert facts_of(own, FOLD) != first
    assert facts_of(config(), FOLD) == (None, {})


def test_changed_code_of_an_objective_trains_again_what_learned_by_it_alone(tmp_path, monkeypatch) -> None:
    def keys():
        settings = [config(), config(kind="guided"), config(kind="readable-gradients")]
        return [fold_job(RunLayout(tmp_path), FOLD, (), configured_input(own), own, {}).key for own in settings]

    written = digests._module_code
    monkeypatch.setattr(digests, "_modules_digest", digests._modules_digest.__wrapped__)  # without its memory
    before = keys()
    changed = f"{kind_of(config(kind='guided')).objective.__module__}"
    monkeypatch.setattr(digests, "_module_code", lambda name: written(name) + "changed" * (name == changed))
    assert [a == b for a, b in zip(before, keys(), strict=True)] == [True, False, True]


def test_a_kind_that_nothing_installed_has_is_named(monkeypatch) -> None:
    monkeypatch.setattr(records, "objective_kinds", lambda: {"task": records.TASK})
    with pytest.raises(UsageError, match=r'objective.kind = "guided": no installed distribution has it'):
        kind_of(config(kind="guided"))


def test_settings_reach_the_objective() -> None:
    task, own = classification(torch.ones(2)), config()
    assert learned(task, own) is task
    guided = learned(task, config(kind="guided", classes=["AD"], loss="l1"))
    assert guided.facts["guidance"] == dict(loss="l1", map="input-x-gradient", stage=0, weight=100.0, classes=(1,))
    assert "readable gradients" in learned(task, config(kind="readable-gradients")).name
    alone = {"kind": "readable-gradients", "guided_alone": True}
    assert learned(task, config(**alone)).name.endswith("by guided gradients alone")
    assert "alone" not in learned(task, config(**alone, weight=0)).name


def test_usual_guidance_is_the_one_that_was_studied() -> None:
    """Weights of benchmarks/guidance_study.py; weight 1 left the worst group where it was (.13)."""
    for loss, weight in {"energy": 30.0, "l1": 100.0, "ppce": 1.0, "rrr": 1e4}.items():
        own = config(kind="guided", loss=loss)
        assert map_settings(own) == MapSettings(weight, "input-x-gradient", 0)
        assert own.objective.regions == ("brain",)
        assert own.objective.uses_maps
    assert map_settings(load_config("guided")) == MapSettings(30.0, "input-x-gradient", 0)
    assert map_settings(config(kind="guided", map="grad-cam", weight=2.5)) == MapSettings(2.5, "grad-cam", -1)
    assert map_settings(config(kind="guided", map="grad-cam", stage=1, weight=0)) == MapSettings(0.0, "grad-cam", 1)
    assert not config(kind="guided", weight=0).objective.uses_maps


@pytest.mark.parametrize(("model", "shown"), [
    ({"architecture": "founding"}, ("grad-cam", -1)), ({"architecture": "densenet121"}, ("grad-cam", -1)),
    ({"architecture": "bcos-simple"}, ("dynamic-weights", 0)), ({"architecture": "coda-s"}, ("dynamic-weights", 0)),
])  # fmt: skip
@pytest.mark.parametrize("preset", ["default", "distilled"])
def test_students_are_shown_the_maps_of_the_source_with_or_without_the_preset(model, shown, preset) -> None:
    wanted = {"kind": "distilled", "teacher": "/run"}
    found = distillation_of(load_config(preset, overrides={"model": model, "objective": wanted}))
    assert (found.map, found.student_stage, found.teacher_stage, found.weight) == (shown[0], shown[1], shown[1], 1.0)


def test_a_usual_setting_and_its_value_are_one_training(tmp_path) -> None:
    """Keys hold what is trained, so that another usual weight would train again."""
    usual, named = (
        facts_of(config(kind="guided", **own), FOLD)
        for own in ({}, {"weight": 30.0, "map": "input-x-gradient", "stage": 0})
    )
    assert usual == named
    assert facts_of(config(kind="guided", loss="l1"), FOLD) != facts_of(
        config(kind="guided", loss="l1", weight=30), FOLD
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight": -1.0}, "objective.weight must lie between 0"),
        ({"annotated": 0.0}, "objective.annotated must lie above 0"),
        ({"kind": "distilled"}, "objective.teacher must name the folder"),
        ({"kind": "guided", "regions": []}, "objective.regions must name at least one group"),
        ({"stage": -2}, "objective.stage must be -1 or more, or be 'usual'"),
        ({"weight": "much"}, "objective.weight = 'much': must be 'usual' or a number"),
        ({"kind": "guided", "map": "dynamic-weights"}, '"dynamic-weights" is for objective.kind = "distilled"'),
        (
            {"kind": "distilled", "teacher": "x", "map": "dynamic-weights", "stage": 1},
            '"dynamic-weights" is for objective.kind = "distilled" at objective.stage = 0',
        ),
    ],
)
def test_bad_settings_are_refused_by_name(values, message) -> None:
    with pytest.raises(UsageError, match=message):
        config(**values)


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match=r"training.devices must be 1"):
        load_config(overrides={"training": {"devices": 2}, "objective": {"kind": "guided"}})
    with pytest.raises(UsageError, match="affine_probability must be 0"):
        load_config(
            overrides={"training": {"augmentation": {"affine_probability": 0.5}}, "objective": {"kind": "guided"}}
        )


class TestBeforeAnyWork:
    def require(self, model=None, **objective) -> None:
        own = {"registration": {"resolution_mm": 4.0}, "model": model or NETWORK, "objective": objective}
        settings = load_config(overrides=own)
        kind_of(settings).require(settings, Split((FOLD,)))

    def test_what_can_be_trained_passes(self) -> None:
        self.require(kind="guided", stage=1)
        self.require(kind="readable-gradients")
        self.require(kind="readable-gradients", guided_alone=True)

    def test_a_stage_without_voxels_and_an_activation_without_a_rule_are_named(self) -> None:
        with pytest.raises(UsageError, match=r"objective.stage = 4: this network has voxels at stages 0 to 1"):
            self.require(kind="guided", stage=4)
        swish = {"registration": {"resolution_mm": 2.0}, "model": {"architecture": "efficientnet-b0"}}
        own = load_config(overrides={**swish, "objective": {"kind": "readable-gradients"}})
        with pytest.raises(UsageError, match="this network has silu"):
            kind_of(own).require(own, Split((FOLD,)))

    @pytest.mark.parametrize("alone", [False, True])
    def test_a_network_without_a_relu_has_no_guided_gradient(self, alone) -> None:
        bcos = {"architecture": "bcos-simple", "channels": [2], "strides": [8]}
        with pytest.raises(UsageError, match="defined for ReLU only, and this network has none"):
            self.require(bcos, kind="readable-gradients", guided_alone=alone)


def test_the_preset_of_distillation_wants_a_teacher_and_maps_that_can_be_moved() -> None:
    with pytest.raises(UsageError, match=r"objective.teacher must name the folder of a run"):
        load_config("distilled")
    teacher = {"teacher": "/run", "frozen": True}
    load_config("distilled", overrides={"objective": teacher})
    moved = {"augmentation": {"affine_probability": 0.5}}
    with pytest.raises(UsageError, match=r"affine_probability must be 0 where .* objective.frozen"):
        load_config("distilled", overrides={"objective": teacher, "training": moved})
    with pytest.raises(UsageError, match=r'objective.guided_alone needs objective.kind = "readable-gradients"'):
        load_config(overrides={"objective": {"guided_alone": True}})
    with pytest.raises(UsageError, match=r'objective.frozen needs objective.kind = "distilled"'):
        load_config(overrides={"objective": {"frozen": True}})
