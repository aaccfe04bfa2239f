"""Students and teachers: attention transfer, MixUp, and what ``[objective]`` asks for."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
from torch import nn

from heatlas.atlases.labels import load_atlas
from heatlas.pipeline.cohort.people.splits import Fold, Split, annotated_people, few_people
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.networks import ObjectiveConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work import digests
from heatlas.pipeline.run.work.digests import file_digest
from heatlas.pipeline.training.objectives import records
from heatlas.pipeline.training.objectives.of_task import classification
from heatlas.pipeline.training.objectives.records import Batch, Context, kind_of
from heatlas.pipeline.training.stage import facts_of, fold_job
from heatlas.pipeline.training.volumes import LabelledVolumes, answered_by
from heatlas.studies.objectives.distillation import (
    Distillation,
    distillation_of,
    distilled,
    frozen,
    mixed,
    unlabelled_of,
)
from heatlas.studies.objectives.guidance import attention_distance, mask_of
from heatlas.studies.objectives.maps_in_training import MapSettings, attention_map, explained_batch, map_settings
from tests.training.run_of_folds import CONFIG, SPLIT, labelled_scans, save_untrained, train_all, write_registered

# Students: whom they learn from, and attention transfer and MixUp as rivals of distillation.


def test_a_share_of_each_class_is_drawn_and_fewer_are_among_more() -> None:
    labels = {f"sub-{number}": "AD" if number < 20 else "CN" for number in range(60)}
    fold = Fold(0, tuple(labels), ("a",), ("b",))
    parts = [set(few_people(fold, labels, share, seed=3).train) for share in (0.1, 0.25, 0.5, 1.0)]
    for smaller, larger in itertools.pairwise(parts):
        assert smaller < larger
    assert [sum(labels[name] == "AD" for name in part) for part in parts] == [2, 5, 10, 20]
    assert [len(part) for part in parts] == [6, 15, 30, 60]
    assert set(few_people(fold, labels, 0.1, seed=4).train) != parts[0]
    assert len(few_people(fold, labels, 0.001, seed=3).train) == 2
    assert len(few_people(fold, {}, 0.5, seed=3).train) == 30  # a number: nobody has a class


def test_a_teacher_gives_scans_their_classes() -> None:
    class Bright(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.least = nn.Parameter(torch.tensor(0.5))

        def forward(self, volumes: torch.Tensor) -> torch.Tensor:
            found = volumes.mean((1, 2, 3, 4)) - self.least
            return torch.stack([-found, found], 1)

    volumes = torch.tensor([0.1, 0.9, 0.7, 0.2, 0.6]).half()[:, None, None, None, None].expand(-1, 1, 2, 3, 2)
    found = answered_by(Bright(), LabelledVolumes(volumes, torch.zeros(5, dtype=torch.int64)), 2)
    assert found.targets.tolist() == [0, 1, 1, 0, 1]
    assert found.volumes is volumes


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunLayout:
    layout = RunLayout(tmp_path_factory.mktemp("teacher"))
    write_registered(layout)
    ScanTable(tuple(labelled_scans())).write(layout.root / "scans.tsv")
    train_all(layout, split=Split(SPLIT.folds[:1]))
    return layout


@pytest.mark.slow
class TestRun:
    @pytest.fixture
    def others(self, finished, tmp_path) -> RunLayout:
        """Three other people, one of whom has a name that the run knows."""
        layout = RunLayout(tmp_path / "others")
        scans = [Scan(f"sub-{name}", "ses-M00", f"O{name}", None) for name in ("x", "y", "3")]
        for scan, taken in zip(scans, labelled_scans()[2:], strict=False):
            for name in ("t1w", "brain_mask"):
                own, other = (
                    getattr(where.scan(one.participant_id, one.session_id, 4.0), name)
                    for where, one in ((layout, scan), (finished, taken))
                )
                own.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(other, own)
        ScanTable(tuple(scans)).write(layout.root / "scans.tsv")
        return layout

    def trained(self, finished, tmp_path, config):
        layout = RunLayout(tmp_path / "student")
        shutil.copytree(finished.root, layout.root, ignore=shutil.ignore_patterns("models", "predictions*", "logs"))
        outcomes = train_all(layout, split=Split(SPLIT.folds[:1]), config=config)
        return layout, outcomes

    def test_few_people_are_those_who_train_and_the_others_are_in_no_part(self, finished, tmp_path) -> None:
        few = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, participants=0.5))
        layout, (outcome,) = self.trained(finished, tmp_path, few)
        assert outcome.ok
        text = json.loads(layout.fold(0).description.read_text())
        train = text["participants"]["train"]
        assert len(train) == 2
        assert {int(name[-1]) % 2 for name in train} == {0, 1}
        assert text["participants"]["test"] == ["sub-1", "sub-2"]
        assert len(read_table(layout.group / "predictions.tsv")) == 3

    def test_a_student_learns_from_scans_without_labels(self, finished, others, tmp_path) -> None:
        wanted = ObjectiveConfig(
            kind="distilled", teacher=str(finished.root), scans=str(others.root), map="grad-cam", stage=-1
        )
        config = dataclasses.replace(CONFIG, objective=wanted)
        kind_of(config).require(config, Split(SPLIT.folds[:1]))
        layout, (outcome,) = self.trained(finished, tmp_path, config)
        assert outcome.ok, outcome.message
        text = json.loads(layout.fold(0).description.read_text())
        assert text["participants"]["train"] == ["sub-x", "sub-y"]  # sub-3 may be someone of the run
        student, teacher = (load_model(one.fold(0)).model.state_dict() for one in (layout, finished))
        assert any(not torch.equal(student[name], teacher[name]) for name in teacher)

    def test_a_folder_without_other_people_is_refused(self, finished, others) -> None:
        spec = load_model(finished.fold(0)).input
        for folder, text in (
            (finished.root, r"objective.scans: .*no scan of another person is registered .* 4 mm"),
            (others.root / "sub-x", r"no scans.tsv there; name the folder of a run"),
        ):
            wanted = ObjectiveConfig(kind="distilled", teacher="x", scans=str(folder))
            with pytest.raises(UsageError, match=text):
                unlabelled_of(dataclasses.replace(CONFIG, objective=wanted), spec, SPLIT.folds[0])


SHAPE = (6, 7, 5)
TASK = classification(torch.ones(2))
ATTENTION = Distillation(weight=3.0, map="attention-transfer")


def network(seed: int, stride: int = 2, width: int = 4) -> StagedModel:
    torch.manual_seed(seed)
    first = [nn.Conv3d(1, 3, 3, padding=1), nn.Tanh()]
    second = [nn.Conv3d(3, width, 3, stride=stride, padding=1), nn.ReLU()]
    head = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(width, 2)]
    return StagedModel([nn.Sequential(*part) for part in (first, second, head)]).double()


def batch(count: int = 3) -> Batch:
    torch.manual_seed(1)
    volumes = torch.rand(count, 1, *SHAPE, dtype=torch.float64)
    volumes[:, :, 0] = 0  # outside the brain
    return Batch(volumes, torch.arange(count) % 2, torch.arange(count))


def teacher_of(seed: int = 5, stride: int = 2, width: int = 4) -> StagedModel:
    return network(seed, stride, width).eval().requires_grad_(False)


class TestAttention:
    def test_map_and_distance_are_the_formulas_element_by_element(self) -> None:
        torch.manual_seed(2)
        own, other = torch.randn(2, 2, 3, 2, 3, 4, dtype=torch.float64).unbind(0)  # two volumes of three channels
        found = attention_distance(attention_map(own), attention_map(other))

        def normalised(features: torch.Tensor) -> list[float]:
            _, *sides = features.shape
            places = itertools.product(*map(range, sides))
            squares = [sum(float(features[(channel, *at)]) ** 2 for channel in range(3)) for at in places]
            length = sum(value**2 for value in squares) ** 0.5
            return [value / length for value in squares]

        for one in range(2):
            pairs = zip(normalised(own[one]), normalised(other[one]), strict=True)
            assert found[one].item() == pytest.approx(sum((a - b) ** 2 for a, b in pairs), rel=1e-12)
        np.testing.assert_allclose(attention_distance(attention_map(-7 * own), attention_map(own)), 0, atol=1e-15)

    def test_features_at_other_places_are_as_far_as_can_be_and_those_at_the_same_are_near(self) -> None:
        here, there = torch.zeros(2, 1, 2, 1, 1, 3, dtype=torch.float64)
        here[0, 0, 0, 0, 0], there[0, 1, 0, 0, 2] = 5.0, 0.1
        assert attention_distance(attention_map(here), attention_map(there)).item() == 2
        assert attention_distance(attention_map(here), attention_map(here.flip(1))).item() == 0

    def test_the_gradient_is_that_of_the_squared_distance(self) -> None:
        torch.manual_seed(3)
        maps = torch.rand(2, 24, dtype=torch.float64, requires_grad=True)
        other = torch.rand(2, 24, dtype=torch.float64)
        lengths = maps.norm(dim=1, keepdim=True)
        direct = ((maps / lengths - other / other.norm(dim=1, keepdim=True)) ** 2).sum()
        (wanted,) = torch.autograd.grad(direct, maps)
        (found,) = torch.autograd.grad(attention_distance(maps, other).sum(), maps)
        np.testing.assert_allclose(found, wanted, atol=1e-14)

    def test_the_loss_is_that_of_the_labels_and_the_distance_inside_the_brain(self) -> None:
        teacher, student, data = teacher_of(), network(6), batch()
        loss, logged = distilled(TASK, ATTENTION).loss(student, data, Context(teacher=teacher))
        of_labels = TASK.loss(student, data, Context())[0]
        last = [explained_batch(one, data.volumes, data.targets, "attention-transfer", -1, learn).maps.detach()
                for one, learn in ((student, True), (teacher, False))]  # fmt: skip
        parts = [maps[:, 1:].flatten(1) for maps in last]
        parts = [maps / maps.norm(dim=1, keepdim=True) for maps in parts]
        far = ((parts[0] - parts[1]) ** 2).sum(1).mean()
        assert loss.item() == pytest.approx((of_labels + 3 * far).item(), rel=1e-12)
        assert far > 1e-3
        assert set(logged) == {"loss", "output", "target"}
        alone = distilled(TASK, replace(ATTENTION, weight=0.0)).loss(student, data, Context(teacher=teacher))[0]
        assert alone.item() == of_labels.item()

    def test_a_map_on_the_grid_of_the_scan_is_that_of_the_features(self) -> None:
        student, data = network(6, stride=1), batch()
        found = explained_batch(student, data.volumes, data.targets, "attention-transfer", 2)
        features = student.stages[1](student.stages[0](data.volumes))
        np.testing.assert_allclose(found.maps.detach(), (features**2).sum(1).detach(), atol=1e-14)
        np.testing.assert_allclose(found.logits.detach(), student(data.volumes).detach(), atol=1e-14)

    def test_only_the_student_learns_whatever_the_grid_and_width_of_its_teacher(self) -> None:
        teacher, student, data = teacher_of(stride=3, width=6), network(6), batch()
        before = [value.clone() for value in teacher.state_dict().values()]
        distilled(TASK, replace(ATTENTION, weight=1e6)).loss(student, data, Context(teacher=teacher))[0].backward()
        assert all(weight.grad is None for weight in teacher.parameters())
        assert all(torch.equal(old, new) for old, new in zip(before, teacher.state_dict().values(), strict=True))
        assert student.stages[0][0].weight.grad.abs().max() > 0
        steps = torch.optim.Adam(student.parameters(), 1e-2)
        objective, far = distilled(TASK, replace(ATTENTION, weight=100.0)), []
        for _ in range(30):
            loss = objective.loss(student, data, Context(teacher=teacher))[0]
            far.append(loss.item())
            steps.zero_grad()
            loss.backward()
            steps.step()
        assert far[-1] < 0.5 * far[0]

    def test_a_frozen_teacher_gives_the_loss_of_a_live_one(self) -> None:
        teacher, student, data = teacher_of(), network(6), batch()
        objective = distilled(TASK, ATTENTION)
        live = objective.loss(student, data, Context(teacher=teacher))[0].item()
        context = frozen(Context(teacher=teacher), data.volumes, ATTENTION, size=2)
        assert objective.loss(student, data, context)[0].item() == pytest.approx(live, rel=1e-6)

    def test_features_that_no_weight_makes_are_refused(self) -> None:
        with pytest.raises(UsageError, match=r"features at stage 0 do not depend on weights .* choose a later stage"):
            explained_batch(network(6), batch().volumes, batch().targets, "attention-transfer", 0)


class TestMixUp:
    def test_each_scan_has_more_of_itself_than_of_the_one_before_it(self) -> None:
        volumes = torch.eye(4, dtype=torch.float64).view(4, 1, 4, 1, 1)  # what a voxel is says whose it is
        shares = []
        for seed in range(200):
            torch.manual_seed(seed)
            found = mixed(volumes, 1.0)[:, 0, :, 0, 0]
            shares.append(found[0, 0].item())
            wanted = shares[-1] * torch.eye(4) + (1 - shares[-1]) * torch.eye(4).roll(1, 0)
            np.testing.assert_allclose(found, wanted, atol=1e-7)
        assert min(shares) >= 0.5
        assert np.mean(shares) == pytest.approx(0.75, abs=0.04)  # of a uniform share, the larger part
        torch.manual_seed(0)
        assert mixed(volumes, 1.0)[0, 0, 0, 0, 0].item() == shares[0]

    def test_teacher_and_student_see_the_same_mixed_scans_and_labels_do_not_count(self) -> None:
        teacher, student, data = teacher_of(), network(6), batch()
        seen: list[tuple[int, torch.Tensor]] = []
        hooks = [one.stages[0].register_forward_pre_hook(lambda _, inputs, who=who: seen.append((who, inputs[0])))
                 for who, one in enumerate((teacher, student))]  # fmt: skip
        taught = Distillation(weight=2.0, mixup=1.0)
        torch.manual_seed(9)
        loss = distilled(TASK, taught).loss(student, data, Context(teacher=teacher))[0]
        for hook in hooks:
            hook.remove()
        torch.manual_seed(9)
        view = mixed(data.volumes, 1.0)
        assert {who for who, _ in seen} == {0, 1}
        assert all(torch.equal(one, view) for _, one in seen)
        assert not torch.equal(view, data.volumes)
        other = Batch(view, 1 - data.targets, data.scans)
        plain = distilled(TASK, replace(taught, mixup=0.0)).loss(student, other, Context(teacher=teacher))[0]
        assert loss.item() == plain.item()

    def test_nothing_is_drawn_where_it_is_off_or_validated(self) -> None:
        teacher, student, data = teacher_of(), network(6), batch()
        torch.manual_seed(4)
        before = torch.get_rng_state()
        distilled(TASK, Distillation()).loss(student, data, Context(teacher=teacher))
        with torch.inference_mode():
            found = distilled(TASK, Distillation(mixup=1.0)).loss(student, data, Context(teacher=teacher))[0]
        assert torch.equal(torch.get_rng_state(), before)
        assert found.item() == TASK.loss(student, data, Context())[0].item()


def objective(**values):
    return load_config(overrides={"objective": {"kind": "distilled", "teacher": "/run", **values}})


def test_settings_reach_the_student() -> None:
    found = distillation_of(objective(map="attention-transfer"))
    assert (found.map, found.student_stage, found.teacher_stage, found.mixup) == ("attention-transfer", -1, -1, 0.0)
    assert distillation_of(objective(mixup=0.2)).mixup == 0.2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "guided", "map": "attention-transfer"}, r'is for objective.kind = "distilled" after a stage'),
        ({"map": "attention-transfer", "stage": 0}, r'is for objective.kind = "distilled" after a stage'),
        ({"map": "attention-transfer", "scans": "/other"}, "learns the labels of single scans"),
        ({"map": "attention-transfer", "mixup": 1.0}, "learns the labels of single scans"),
        ({"mixup": 1.0, "frozen": True}, r"objective.mixup needs .* a teacher that sees each mixed scan"),
        ({"kind": "task", "mixup": 1.0}, r'objective.mixup needs objective.kind = "distilled"'),
        ({"mixup": -0.1}, "objective.mixup must lie between 0 and 100"),
        ({"mixup": 1e-50}, r"objective.mixup must be 0, or lie in 0.01\.\.100"),  # which no Beta distribution takes
    ],
)
def test_settings_that_exclude_each_other_are_refused(values, message) -> None:
    with pytest.raises(UsageError, match=message):
        objective(**values)


def test_a_network_without_features_has_no_attention() -> None:
    student = StagedModel([nn.Sequential(nn.Flatten(), nn.Linear(24, 2))])
    with pytest.raises(UsageError, match=r"features at stage 0 do not depend .* another map where a network has none"):
        explained_batch(student, torch.rand(1, 1, 2, 3, 4), torch.tensor([0]), "attention-transfer", -1)


def test_a_batch_of_one_scan_cannot_be_mixed() -> None:
    taught = {"kind": "distilled", "teacher": "/run", "mixup": 1.0}
    for training in ({"batch_size": 1}, {"batch_size": 3, "devices": 2}):
        with pytest.raises(UsageError, match=r"objective.mixup mixes scans of a batch: training.batch_size must be 2"):
            load_config(overrides={"objective": {**taught, "weight": 0.0}, "training": training})
    load_config(overrides={"objective": taught, "training": {"batch_size": 2}})


# Masks, annotated people and teachers as ``[objective]`` asks for them.

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
    """Weights of benchmarks/patients_guidance.py; weight 1 left the worst group where it was (.13)."""
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


def test_settings_that_exclude_each_other_are_refused_settings() -> None:
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
