"""Losses that depend on maps: closed forms, gradients against finite differences, plain training at weight 0."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from heatlas.pipeline.attribution.gradient.paths import IntegratedGradientsFromMean
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import explanation_mode
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training.objectives.of_task import classification
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.inherent import Inherent
from heatlas.studies.objectives.distillation import (
    Distillation,
    distillation_loss,
    distilled,
    frozen,
    multi_label_distillation_loss,
)
from heatlas.studies.objectives.guidance import LOSSES, Guidance, dilated, energy_share, explanation_distance, guided
from heatlas.studies.objectives.maps_in_training import MAPS, evidence_of, explained_batch
from heatlas.studies.objectives.readable_gradients import (
    DISTANCES,
    GuidedReLUs,
    both_gradients,
    guided_alone,
    readable,
)

SHAPE = (6, 7, 5)
TASK = classification(torch.ones(2))


def network(outputs: int = 2, seed: int = 0, norm: bool = True) -> StagedModel:
    torch.manual_seed(seed)
    first = [nn.Conv3d(1, 3, 3, padding=1), *([nn.BatchNorm3d(3)] if norm else []), nn.ReLU()]
    second = [nn.Conv3d(3, 4, 3, stride=2), nn.ReLU()]
    head = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, outputs)]
    return StagedModel([nn.Sequential(*part) for part in (first, second, head)]).double()


def batch(count: int = 3, seed: int = 1) -> Batch:
    torch.manual_seed(seed)
    volumes = torch.rand(count, 1, *SHAPE, dtype=torch.float64)
    return Batch(volumes, torch.arange(count) % 2, torch.arange(count))


def mask() -> torch.Tensor:
    found = torch.zeros(1, *SHAPE, dtype=torch.float64)
    found[0, 2:4, 3:6, 1:3] = 1
    return found


class TestLosses:
    def test_an_even_map_has_the_share_of_the_mask_and_scale_does_not_matter(self) -> None:
        maps = torch.rand(2, *SHAPE, dtype=torch.float64) - 0.3
        assert energy_share(torch.ones(1, *SHAPE), mask()).item() == pytest.approx(mask().mean().item())
        np.testing.assert_allclose(energy_share(7 * maps, mask()), energy_share(maps, mask()))
        larger = energy_share(maps, dilated(mask(), 1))
        assert (larger >= energy_share(maps, mask())).all()

    def test_the_gradient_of_energy_is_that_of_the_formula(self) -> None:
        maps = (torch.rand(1, *SHAPE, dtype=torch.float64) - 0.3).requires_grad_()
        share = energy_share(maps, mask())
        share.sum().backward()
        whole = maps.detach().clamp(min=0).sum()
        wanted = torch.where(mask() == 1, (1 - share) / whole, -share / whole) * (maps > 0)
        np.testing.assert_allclose(maps.grad, wanted.detach(), atol=1e-15)

    def test_what_each_loss_is_blind_to(self) -> None:
        inside, outside = mask(), 1 - mask()
        maps = torch.rand(1, *SHAPE, dtype=torch.float64)
        maps[0, 2, 3, 1] = 2.0  # the maximum, inside
        assert LOSSES["l1"](mask(), mask()).item() == 0
        assert LOSSES["ppce"](mask() + 0.5 * outside, mask()).item() == 0
        assert LOSSES["ppce"](maps * inside, mask()).item() == pytest.approx(LOSSES["ppce"](maps, mask()).item())
        assert LOSSES["rrr"](-maps * inside, mask()).item() == 0
        wanted = ((maps / 2) ** 2 * outside).mean().item()
        assert LOSSES["rrr"](-maps, mask()).item() == pytest.approx(wanted)
        assert LOSSES["l1"](maps - 9 * outside, mask()).item() == pytest.approx(((1 - maps / 2) * inside).mean().item())

    @pytest.mark.parametrize("name", LOSSES)
    def test_a_map_without_positive_values_has_a_finite_loss_and_gradient(self, name: str) -> None:
        maps = torch.zeros(1, *SHAPE, dtype=torch.float64, requires_grad=True)
        found = LOSSES[name](maps, mask())
        found.sum().backward()
        assert torch.isfinite(found).all()
        assert torch.isfinite(maps.grad).all()

    def test_maps_are_alike_whatever_their_scale_and_brain_alone_counts(self) -> None:
        maps = torch.randn(2, *SHAPE, dtype=torch.float64)
        assert explanation_distance(3 * maps, maps).abs().max() < 1e-12
        np.testing.assert_allclose(explanation_distance(-maps, maps), 2)
        changed = maps + 5 * (1 - mask())
        assert explanation_distance(changed, maps, mask()).abs().max() < 1e-12
        dead = torch.zeros(1, 4, requires_grad=True)
        found = explanation_distance(dead, torch.ones(1, 4))
        found.sum().backward()
        assert found.item() == 0
        assert dead.grad.abs().max() == 0


def require_gradient(value: Callable[[], torch.Tensor], model: nn.Module, weight: torch.Tensor) -> None:
    """The gradient of a value by some entries of a weight is that of central differences."""
    found = torch.autograd.grad(value(), list(model.parameters()), allow_unused=True)
    place = next(n for n, one in enumerate(model.parameters()) if one is weight)
    for place_in in ((0, 0, 0, 0, 0), (2, 1, 1, 2, 0)):
        index = tuple(min(at, side - 1) for at, side in zip(place_in, weight.shape, strict=True))
        step, sides = 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                weight[index] += sign * step
            sides.append(value().item())
            with torch.no_grad():
                weight[index] -= sign * step
        assert found[place][index].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("stage", [0, 1, -1])
def test_gradients_of_a_map_reach_the_weights_as_finite_differences_say(kind: str, stage: int) -> None:
    model, data = network().eval(), batch()

    def value() -> torch.Tensor:
        return LOSSES["energy"](explained_batch(model, data.volumes, data.targets, kind, stage).maps, mask()).sum()

    require_gradient(value, model, model.stages[1][0].weight)


def dynamic(seed: int = 2) -> StagedModel:
    torch.manual_seed(seed)
    return build_network(BcosSimpleConfig(channels=(3, 4), strides=(1, 1)), SHAPE, 2).double()


@pytest.mark.parametrize("stage", [0, 1, -1])
@pytest.mark.parametrize("training", [True, False])
def test_contributions_of_a_dynamic_network_are_exact_and_differentiable(stage: int, training: bool) -> None:
    """Also while statistics are those of the batch; with held factors detached, weights would get other gradients."""
    model, data = dynamic().train(training), batch()

    def value() -> torch.Tensor:
        found = explained_batch(model, data.volumes, data.targets, "inherent", stage)
        return LOSSES["energy"](found.maps, mask()).sum() + found.logits.pow(2).sum()

    require_gradient(value, model, next(one for one in model.parameters() if one.dim() == 5 and one.shape[1] == 3))
    explained = explained_batch(model, data.volumes, data.targets, "inherent", stage)
    if stage == 0:  # maps of later stages are interpolated
        np.testing.assert_allclose(
            explained.maps.detach().sum((1, 2, 3)), evidence_of(explained.logits, data.targets).detach(), atol=1e-12
        )
    if stage == 0 and not training:
        for target in (0, 1):
            own = data.targets == target
            other = attribute(model, data.volumes[own], target, Inherent(compare="nothing"), 0, "evidence")
            np.testing.assert_allclose(explained.maps[own].detach(), other.values[:, 0], atol=1e-12)


def test_evidence_in_training_is_expected_gradients_from_the_mean_control() -> None:
    model, data = network().train(), batch()
    reference = torch.rand(1, 1, *SHAPE, dtype=torch.float64)
    before = copy.deepcopy(model.state_dict())

    def explained(learning: bool = True):
        torch.manual_seed(3)
        return explained_batch(model, data.volumes, data.targets, "evidence", 0, learning, reference)

    found = explained()
    assert int(model.stages[0][1].num_batches_tracked) == 1  # by the scans, not by the points
    model.load_state_dict(before)
    assert torch.equal(found.logits, model(data.volumes))
    model.eval()
    require_gradient(lambda: LOSSES["energy"](explained().maps, mask()).sum(), model, model.stages[1][0].weight)
    own = IntegratedGradientsFromMean(Reference(reference, ("sub-1",)), steps=8)
    other = attribute(model, data.volumes[1:2], 1, own, 0, "evidence")
    np.testing.assert_allclose(explained(False).maps[1].detach(), other.values[0, 0], atol=1e-12)


def test_maps_that_a_network_has_not_are_refused_with_what_it_has() -> None:
    data = batch()
    with pytest.raises(UsageError, match=r"inherent explains networks that are one linear map .* expected-gradients"):
        explained_batch(network(), data.volumes, data.targets, "inherent", 0)
    dropping = dynamic()
    dropping.dropout = nn.Dropout(0.2)
    with pytest.raises(UsageError, match=r"drops units at random.* model.dropout = 0"):
        explained_batch(dropping, data.volumes, data.targets, "inherent", 0)
    for wrong in ({"kind": "distilled", "teacher": "/run"}, {"kind": "guided", "stage": 1}):
        with pytest.raises(UsageError, match=r'"evidence" is for objective.kind = "guided" at objective.stage = 0'):
            load_config(overrides={"objective": {"map": "evidence", **wrong}})


def test_the_map_is_that_of_the_evidence_of_the_own_class() -> None:
    model, data = network().eval(), batch()
    explained = explained_batch(model, data.volumes, data.targets, "input-x-gradient", 0)
    np.testing.assert_allclose(explained.logits.detach(), model(data.volumes).detach())
    for place, target in enumerate(data.targets.tolist()):
        leaf = data.volumes[place : place + 1].clone().requires_grad_()
        logits = model(leaf)[0]
        (gradient,) = torch.autograd.grad(logits[target] - logits[1 - target], leaf)
        np.testing.assert_allclose(explained.maps[place].detach(), (leaf * gradient)[0, 0].detach(), atol=1e-14)
    assert evidence_of(torch.tensor([[3.0]]), torch.tensor([0])).tolist() == [3.0]
    assert evidence_of(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0])).tolist() == [2.5]


def test_weight_zero_or_nobody_annotated_trains_as_without_guidance_to_the_bit() -> None:
    data, context = batch(), Context(masks=mask(), annotated=torch.zeros(3, dtype=torch.bool))
    everyone = Context(masks=mask())
    plain = steps(TASK, data, Context())
    for objective, seen in (
        (guided(TASK, Guidance(weight=0)), everyone),
        (guided(TASK, Guidance()), context),
        (readable(TASK, "cosine", 0), Context()),
    ):
        for name, value in steps(objective, data, seen).items():
            assert torch.equal(value, plain[name]), name
    moved = steps(guided(TASK, Guidance()), data, everyone)
    assert any(not torch.equal(value, plain[name]) for name, value in moved.items())


def steps(objective, data: Batch, context: Context, count: int = 2) -> dict[str, torch.Tensor]:
    model = network().train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(count):
        objective.loss(model, data, context)[0].backward()
        optimiser.step()
        optimiser.zero_grad()
    return dict(model.state_dict())


def test_guidance_is_a_mean_over_annotated_scans_of_guided_classes() -> None:
    model, data = network().eval(), batch()
    context = Context(masks=mask(), annotated=torch.tensor([True, True, False]))
    found = guided(TASK, Guidance(weight=2.0, classes=(1,))).loss(model, data, context)[0]
    maps = explained_batch(model, data.volumes, data.targets, "input-x-gradient", 0).maps
    wanted = TASK.loss(model, data, context)[0] + 2 * LOSSES["energy"](maps[1:2], mask())[0]
    assert found.item() == pytest.approx(wanted.item())
    own = torch.rand(3, *SHAPE, dtype=torch.float64).round()
    moved = guided(TASK, Guidance()).loss(model, data, Context(masks=own))[0]
    wanted = TASK.loss(model, data, context)[0] + LOSSES["energy"](maps, own).mean()
    assert moved.item() == pytest.approx(wanted.item())


def test_guided_training_brings_evidence_into_the_mask() -> None:
    """A strong marker and a weak sign in the mask both tell the classes: guidance moves the map to the mask."""
    torch.manual_seed(3)
    volumes = torch.rand(24, 1, *SHAPE, dtype=torch.float64) * 0.2
    targets = torch.arange(24) % 2
    volumes[targets == 1, :, 0, 0, 0] = 1.0
    volumes[targets == 1] += 0.4 * mask()
    data, context = Batch(volumes, targets, torch.arange(24)), Context(masks=mask())
    shares = []
    for objective in (TASK, guided(TASK, Guidance(weight=1.0))):
        model = network(norm=False).train()
        optimiser = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(40):
            objective.loss(model, data, context)[0].backward()
            optimiser.step()
            optimiser.zero_grad()
        explained = explained_batch(model, volumes, targets, "input-x-gradient", 0)
        shares.append(energy_share(explained.maps[targets == 1], mask()).mean().item())
    assert shares[1] > shares[0] + 0.1


class TestDistillation:
    def test_a_student_like_its_teacher_has_nothing_to_learn(self) -> None:
        teacher = network(norm=False).eval()
        loss, _ = distilled(TASK, Distillation()).loss(copy.deepcopy(teacher), batch(), Context(teacher=teacher))
        assert loss.item() == pytest.approx(0, abs=1e-12)
        loss.backward()
        assert all(weight.grad is None for weight in teacher.parameters())

    def test_both_forms_are_those_of_the_papers_with_the_gradient_of_cross_entropy(self) -> None:
        student = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        teacher = torch.randn(4, 3, dtype=torch.float64)
        t = 3.0
        p = torch.softmax(teacher / t, 1)
        entropy = -(p * torch.log_softmax(student / t, 1)).sum(1) * t**2
        own, other = (
            torch.autograd.grad(one.sum(), student)[0] for one in (distillation_loss(student, teacher, t), entropy)
        )
        np.testing.assert_allclose(own, other, atol=1e-14)
        s, q = torch.sigmoid(student / t), torch.sigmoid(teacher / t)
        wanted = t * (q * (q / s).log() + (1 - q) * ((1 - q) / (1 - s)).log()).sum(1)
        np.testing.assert_allclose(
            multi_label_distillation_loss(student, teacher, t).detach(), wanted.detach(), atol=1e-13
        )

    def test_the_teacher_stays_as_it_is_and_the_first_layer_of_the_student_learns(self) -> None:
        teacher, student, data = network(seed=5).eval(), network(seed=6).train(), batch()
        before = copy.deepcopy(teacher.state_dict())
        taught = Distillation(weight=5.0, map="input-x-gradient")
        loss, logged = distilled(TASK, taught).loss(student, data, Context(teacher=teacher))
        of_answers = distilled(TASK, replace(taught, weight=0.0)).loss(student, data, Context(teacher=teacher))[0]
        (loss - of_answers).backward()
        assert student.stages[0][0].weight.grad.abs().max() > 0
        assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
        assert set(logged) == {"loss", "output", "target"}

    def test_a_frozen_teacher_gives_the_loss_of_a_live_one_and_its_maps_move_along(self) -> None:
        teacher, student, data = network(seed=5).eval(), network(seed=6, norm=False), batch()
        taught = Distillation(weight=2.0, map="input-x-gradient", student_stage=0, teacher_stage=0)
        objective = distilled(TASK, taught)
        live = objective.loss(student, data, Context(teacher=teacher))[0]
        context = replace(frozen(Context(teacher=teacher), data.volumes, taught, size=2), teacher=None)
        assert objective.loss(student, data, context)[0].item() == pytest.approx(live.item(), rel=1e-6)
        part = Batch(data.volumes[[2, 0]], data.targets[[2, 0]], torch.tensor([2, 0]))
        own = [objective.loss(student, Batch(data.volumes[[n]], data.targets[[n]], torch.tensor([n])), context)[0]
               for n in (2, 0)]  # fmt: skip
        assert objective.loss(student, part, context)[0].item() == pytest.approx(sum(own).item() / 2, rel=1e-6)
        moved = replace(data, volumes=data.volumes.flip(2), masks=context.masks.flip(1))
        maps = explained_batch(student, moved.volumes, context.answers.argmax(1), "input-x-gradient", 0).maps
        of_answers = distilled(TASK, replace(taught, weight=0.0)).loss(student, moved, context)[0]
        far = explanation_distance(maps, context.masks.flip(1), (moved.volumes[:, 0] != 0).double()).mean()
        assert objective.loss(student, moved, context)[0].item() == pytest.approx((of_answers + 2 * far).item())

    def test_weights_of_dynamic_networks_are_compared_as_in_the_source_not_contributions(self) -> None:
        """W(x) of both channels (v, 1 - v), by an autograd of its own: the gradient of the output of held factors."""
        teacher, student, data = dynamic(3).eval(), dynamic(4).eval(), batch()
        data.volumes[:, :, :2] = 0  # outside the brain
        asked = teacher(data.volumes).argmax(1)

        def rows(model: StagedModel) -> torch.Tensor:
            encode, *rest = model.stages
            leaf = encode(data.volumes).detach().requires_grad_()
            with explanation_mode(model):
                out = leaf
                for layer in rest:
                    out = layer(out)
                (found,) = torch.autograd.grad(evidence_of(out, asked).sum(), leaf)
            return found

        own, other, brain = rows(student), rows(teacher), data.volumes != 0
        assert own.shape == (3, 2, *SHAPE)
        cosines = [torch.nn.functional.cosine_similarity((a * b)[None].flatten(1), (c * b)[None].flatten(1)).item()
                   for a, b, c in zip(own, brain, other, strict=True)]  # fmt: skip
        taught = Distillation(weight=2.0, map="dynamic-weights", student_stage=0, teacher_stage=0)
        context = Context(teacher=teacher)

        def far(how: Distillation) -> torch.Tensor:
            of_answers = distilled(TASK, replace(how, weight=0.0)).loss(student, data, context)[0]
            return (distilled(TASK, how).loss(student, data, context)[0] - of_answers) / how.weight

        assert far(taught).item() == pytest.approx(1 - np.mean(cosines), abs=1e-7)
        assert abs(far(replace(taught, map="inherent")).item() - far(taught).item()) > 0.01
        weight = next(one for one in student.parameters() if one.dim() == 5 and one.shape[1] == 3)
        require_gradient(lambda: explained_batch(student, data.volumes, asked, "dynamic-weights", 0).maps.pow(2).sum(),
                         student, weight)  # fmt: skip
        with pytest.raises(UsageError, match=r'this StagedModel is not one. Set objective.map = "grad-cam"'):
            distilled(TASK, taught).loss(student, data, Context(teacher=network().eval()))

    def test_weights_of_a_frozen_teacher_move_with_the_scans(self) -> None:
        teacher, student, data = dynamic(3).eval(), dynamic(4).eval(), batch()
        taught = Distillation(weight=2.0, map="dynamic-weights", student_stage=0, teacher_stage=0)
        objective = distilled(TASK, taught)
        live = objective.loss(student, data, Context(teacher=teacher))[0]
        context = frozen(Context(teacher=teacher), data.volumes, taught, size=2)
        assert context.masks.shape == (3, 2, *SHAPE)
        assert objective.loss(student, data, context)[0].item() == pytest.approx(live.item(), rel=1e-6)

    def test_labels_are_not_used(self) -> None:
        teacher, student, data = network(seed=5).eval(), network(seed=6, norm=False), batch()
        other = Batch(data.volumes, 1 - data.targets, data.scans)
        context, objective = Context(teacher=teacher), distilled(TASK, Distillation())
        assert objective.loss(student, data, context)[0] == objective.loss(student, other, context)[0]

    def test_a_teacher_of_another_task_or_none_is_refused(self) -> None:
        objective = distilled(TASK, Distillation(weight=0))
        with pytest.raises(UsageError, match="the teacher has 3 outputs and the student 2"):
            objective.loss(network(), batch(), Context(teacher=network(3).eval()))
        with pytest.raises(UsageError, match=r"needs a teacher \(objective.teacher"):
            objective.loss(network(), batch(), Context())

    @pytest.mark.parametrize("stage", [0, 1, -1])
    def test_frozen_weights_do_not_change_the_map_of_a_teacher(self, stage: int) -> None:
        teacher, data = network().eval(), batch()
        wanted = explained_batch(teacher, data.volumes, data.targets, "grad-cam", stage).maps.detach()
        teacher.requires_grad_(False)
        found = explained_batch(teacher, data.volumes, data.targets, "grad-cam", stage, learning=False)
        np.testing.assert_allclose(found.maps.detach(), wanted, atol=1e-15)
        student = network(seed=5).train()
        loss = distilled(TASK, Distillation(student_stage=stage, teacher_stage=stage)).loss
        loss(student, data, Context(teacher=teacher))[0].backward()
        assert all(weight.grad is None for weight in teacher.parameters())
        assert torch.isfinite(next(student.parameters()).grad).all()


class TestReadableGradients:
    @pytest.mark.parametrize("name", DISTANCES)
    def test_equal_gradients_are_nearest(self, name: str) -> None:
        own, other = torch.randn(2, 3, *SHAPE, dtype=torch.float64)
        own /= own.abs().sum((1, 2, 3), keepdim=True)  # the source's intersection is -1 over this sum
        wanted = {"mae": 0, "mse": 0}.get(name, -1)
        np.testing.assert_allclose(DISTANCES[name](own, own), wanted, atol=1e-12)
        if name != "intersection":  # it falls without end as the other gradient shrinks
            assert (DISTANCES[name](own, other) > wanted).all()

    def test_the_intersections_are_those_of_their_formulas(self) -> None:
        """Eq. 4.8 of Torres Figueroa 2024 over the product of both sums; ours of shares."""
        own, other = torch.randn(2, 3, *SHAPE, dtype=torch.float64)
        for a, b, of_source, of_shares in zip(
            own.numpy(), other.numpy(), DISTANCES["intersection"](own, other),
            DISTANCES["intersection_of_shares"](own, other), strict=True,
        ):  # fmt: skip
            a, b = np.abs(a), np.abs(b)
            assert float(of_source) == pytest.approx(-np.minimum(a, b).sum() / (a.sum() * b.sum()), rel=1e-12)
            assert float(of_shares) == pytest.approx(-np.minimum(a / a.sum(), b / b.sum()).sum(), rel=1e-12)

    @pytest.mark.parametrize("name", DISTANCES)
    def test_a_scan_without_a_gradient_teaches_nothing_and_leaves_the_others_their_share(self, name: str) -> None:
        """All units of a scan may be off: its gradient is 0 everywhere, and that of the weights must not be NaN."""
        weight = torch.tensor([0.3, -0.7, 0.2], dtype=torch.float64, requires_grad=True)
        scale, guided = torch.tensor([[2.0], [0.0]], dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
        DISTANCES[name](scale * weight, guided).sum().backward()
        both = weight.grad.clone()
        weight.grad = None
        DISTANCES[name](scale[:1] * weight, guided[:1]).sum().backward()
        assert torch.isfinite(both).all()
        assert both.tolist() == pytest.approx(weight.grad.tolist())

    def test_the_loss_is_that_of_both_gradients_by_hand(self) -> None:
        model, data = network(norm=False), batch()
        found = readable(TASK, "mse", 3.0).loss(model, data, Context())[0]
        gradients = []
        for rule in (False, True):
            leaf = data.volumes.clone().requires_grad_()
            x = leaf
            for stage in model.stages:
                for layer in stage:
                    x = layer(x)
                    if rule and isinstance(layer, nn.ReLU):
                        x.register_hook(lambda gradient: gradient.clamp(min=0))
            torch.nn.functional.cross_entropy(x.float(), data.targets).backward()
            gradients.append(leaf.grad)
        wanted = TASK.loss(model, data, Context())[0] + 3 * ((gradients[0] - gradients[1]).float() ** 2).mean()
        assert found.item() == pytest.approx(wanted.item(), rel=1e-6)

    def test_statistics_move_once_and_dropout_drops_the_same(self) -> None:
        model = StagedModel([nn.Sequential(nn.Conv3d(1, 2, 3), nn.BatchNorm3d(2), nn.ReLU()), nn.Sequential(
            nn.Dropout(0.5), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))]).double().train()  # fmt: skip
        once, data = copy.deepcopy(model), batch()
        torch.manual_seed(9)
        TASK.loss(once, data, Context())
        after = torch.get_rng_state()
        torch.manual_seed(9)
        loss = readable(TASK, "cosine", 1.0).loss(model, data, Context())[0]
        assert torch.equal(torch.get_rng_state(), after)
        loss.backward()  # through the first pass, whose statistics the second must not have replaced
        for name, value in once.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name

    @pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm in training"])
    def test_gradients_by_the_weights_are_finite_differences_with_the_guided_one_held(self, norm: bool) -> None:
        """Batch normalisation: scaled by the spread of the batch, which depends on the weights before it."""
        model, data = network(norm=norm).train(), batch()
        held: list[torch.Tensor] = []

        def loss() -> torch.Tensor:
            leaf = data.volumes.clone().requires_grad_()
            with GuidedReLUs():
                of_task = torch.nn.functional.cross_entropy(model(leaf), data.targets)  # in double precision
            own, guided = both_gradients(of_task, leaf, learning=True)
            held.append(guided)
            return DISTANCES["cosine"](own, held[0]).mean()

        assert loss().item() > -0.99
        for weight in [one for one in model.parameters() if one.dim() == 5]:
            require_gradient(loss, model, weight)

    def test_an_activation_without_a_rule_is_named(self) -> None:
        model = StagedModel([nn.Sequential(nn.Conv3d(1, 2, 3), nn.SiLU()), nn.Sequential(
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))]).double()  # fmt: skip
        with pytest.raises(UsageError, match="guided gradients are defined for ReLU only, and this network has silu"):
            readable(TASK, "cosine", 1.0).loss(model, batch(), Context())
        with pytest.raises(UsageError, match="guided gradients are defined for ReLU only, and this network has silu"):
            guided_alone(TASK).loss(model, batch(), Context())

    def test_alone_they_teach_every_weight_what_a_relu_lets_through_by_hand(self) -> None:
        data, gradients = batch(), []
        for rule in (True, False):
            model = network(norm=False)
            if rule:
                loss = guided_alone(TASK).loss(model, data, Context())[0]
            else:
                x = data.volumes
                for stage in model.stages:
                    for layer in stage:
                        x = layer(x)
                        if isinstance(layer, nn.ReLU):
                            x.register_hook(lambda gradient: gradient.clamp(min=0))
                loss = torch.nn.functional.cross_entropy(x.float(), data.targets)
            loss.backward()
            gradients.append({name: weight.grad for name, weight in model.named_parameters()})
        plain = network(norm=False)
        TASK.loss(plain, data, Context())[0].backward()
        for name, weight in plain.named_parameters():
            torch.testing.assert_close(gradients[0][name], gradients[1][name])
            behind = name.startswith("_stages.2")  # no ReLU stands between the last layer and the loss
            assert torch.allclose(weight.grad, gradients[0][name]) == behind, name


def test_networks_without_stages_and_stages_without_voxels_are_refused() -> None:
    data = batch()
    with pytest.raises(UsageError, match="Linear is not made of stages"):
        explained_batch(nn.Linear(1, 1), data.volumes, data.targets, "grad-cam", 0)
    with pytest.raises(UsageError, match=r"objective.stage = 3: this network has voxels at stages 0 to 2"):
        explained_batch(network(), data.volumes, data.targets, "grad-cam", 3)


@pytest.mark.parametrize("loss", ["l1", "ppce", "rrr"])
def test_losses_of_scaled_maps_do_not_depend_on_the_size_of_maps(loss: str) -> None:
    """Maps of many voxels are small: dividing by their largest value takes any size out of the loss."""
    generator = torch.Generator().manual_seed(3)
    maps = torch.randn((2, 4, 5, 6), generator=generator)
    masks = (torch.rand((2, 4, 5, 6), generator=generator) > 0.5).float()
    torch.testing.assert_close(LOSSES[loss](maps * 2.0**-40, masks), LOSSES[loss](maps, masks), rtol=0, atol=0)
    assert torch.isfinite(LOSSES[loss](torch.zeros_like(maps), masks)).all()
