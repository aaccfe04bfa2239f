"""CoDA layers and networks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from bias_guard import bias_terms, require_bias_free
from explicit_matrices import matrix_of, patches, product
from torch import Tensor, nn

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import (
    LogitLayer,
    calibrate,
    differentiable_weights,
    dynamic_weights,
    explanation_mode,
    forget,
    needs_calibration,
)
from heatlas.pipeline.models.families.family import Shape
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.ranges import problems
from heatlas.pipeline.run.config.settings import CohortConfig, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.training.objectives.of_task import (
    classification,
    mean_absolute_weights,
    objective_of,
    with_weight_penalty,
    wrong_classes,
)
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.studies.coda.network import PUBLISHED, CodaConv3d, Layers, bounding_scale, require_voxel_level, stack
from heatlas.studies.coda.records import CodaConfig, CodaSConfig, CodaSWbConfig
from heatlas.studies.inherent import Inherent

# Dynamic alignment units: explicit weights as oracle, bounds, capsules, and rows of their matrices.

BOUNDS = ["l2", "sq", "wb"]


def noise(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(*arguments: int, **settings: object) -> CodaConv3d:
    torch.manual_seed(5)
    return CodaConv3d(*arguments, eps=1e-30, **settings).double()  # type: ignore[arg-type]


def explicit_weights(one: CodaConv3d, x: Tensor) -> Tensor:
    """w(x) of every unit at every place, (B, units, d, h, w, C k³), with a matrix per unit as in the source."""
    side, step = one.kernel_size[0], one.stride[0]
    p = patches(x, side, step, side // 2).permute(0, 2, 3, 4, 1, 5).flatten(4)
    found = []
    for unit in range(one.out_channels):
        own = slice(unit * one.rank, (unit + 1) * one.rank)
        a = one.expand_weight[own].flatten(1).T
        b = (one.reduce_weight[own] if one.bound == "wb" else one.reduce_weight).flatten(1)
        u = p @ b.T @ a.T
        if one.bound == "wb":
            found.append(u / (torch.linalg.matrix_norm(a) * torch.linalg.vector_norm(p @ b.T, dim=-1, keepdim=True)))
            continue
        if one.vote_weight is not None:
            u = u + one.vote_weight[unit].flatten()
        size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        found.append(u / size if one.bound == "l2" else u / size * size**2 / (1 + size**2))
    return torch.stack(found, 1)


def explicit(one: CodaConv3d, x: Tensor) -> Tensor:
    side, step = one.kernel_size[0], one.stride[0]
    p = patches(x, side, step, side // 2).permute(0, 2, 3, 4, 1, 5).flatten(4)
    return (explicit_weights(one, x) * p[:, None]).sum(-1)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1), (5, 3)])
def test_no_weight_is_made_and_yet_they_are_the_explicit_ones(bound, kernel, stride):
    """Answers, gradients of the input and of every parameter; whole, and in chunks computed again."""
    x = noise(2, 2, 4, 3, 5).requires_grad_()
    one = layer(2, 5, kernel, stride, rank=3, bound=bound)
    given = [x, *one.parameters()]
    expected = explicit(one, x)
    seen = torch.autograd.grad((expected * expected.detach().cos()).sum(), given)
    for at_once in (one.values_at_once, 2 * 2 * 3 * expected[0, 0].numel()):
        one.values_at_once = at_once
        answer = one(x)
        torch.testing.assert_close(answer, expected, rtol=1e-12, atol=1e-12)
        gradients = torch.autograd.grad((answer * expected.detach().cos()).sum(), given)
        for ours, theirs in zip(gradients, seen, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("bound", BOUNDS)
def test_norms_of_weights_and_the_bound_of_answers(bound):
    x, one = 3 * noise(3, 2, 4, 5, 3), layer(2, 6, 3, rank=4, bound=bound)
    sizes = explicit_weights(one, x).norm(dim=-1).detach()
    if bound == "l2":
        torch.testing.assert_close(sizes, torch.ones_like(sizes), rtol=1e-12, atol=0)
    else:
        assert float(sizes.max()) < 1
    reach = patches(x, 3, 1, 1).permute(0, 2, 3, 4, 1, 5).flatten(4).norm(dim=-1)[:, None]
    assert bool((one(x).abs() <= reach * (1 + 1e-9)).all())


def test_an_eigenvector_reaches_the_bound():
    """Of A B with l2: w is the patch itself, made long 1."""
    one = layer(4, 1, 1, rank=2, bound="l2", vote=False)
    along = noise(4)
    one.reduce_weight.data = torch.stack([along, torch.zeros(4)]).view(one.reduce_weight.shape)
    one.expand_weight.data = torch.stack([along, noise(4, seed=1)]).view(one.expand_weight.shape)
    x = (2.5 * along).view(1, 4, 1, 1, 1)
    torch.testing.assert_close(one(x).squeeze(), x.norm(), rtol=1e-9, atol=0)
    torch.testing.assert_close(one(-x).squeeze(), x.norm(), rtol=1e-9, atol=0)


def pair(first: str, second: str, rank: int) -> list[CodaConv3d]:
    """Two layers with the same A and B and no vote; a layer with its own B has one of them per unit."""
    units = 5
    made = [layer(2, units, 3, rank=rank, bound=bound, vote=False) for bound in (first, second)]
    a, b = noise(*made[0].expand_weight.shape), noise(rank, 2, 3, 3, 3, seed=8)
    for one in made:
        one.expand_weight.data = a
        one.reduce_weight.data = b.repeat(units, 1, 1, 1, 1) if one.bound == "wb" else b
    return made


@pytest.mark.parametrize("rank", [1, 4])
def test_squashed_weights_answer_less_and_so_do_bounded_ones_except_of_rank_one(rank):
    x = noise(2, 2, 4, 5, 3)
    l2, sq = pair("l2", "sq", rank)
    assert bool((sq(x).abs() < l2(x).abs()).all())
    l2, wb = pair("l2", "wb", rank)
    if rank == 1:
        torch.testing.assert_close(wb(x), l2(x), rtol=1e-9, atol=1e-11)
    else:
        assert bool((wb(x).abs() < l2(x).abs()).all())


def test_without_a_vote_the_weights_are_a_capsule():
    """w = SQ(V x), V = A B (Sabour, Frosst & Hinton 2017), and the answer is its product with x."""
    x, one = noise(7, 6), layer(6, 2, 1, rank=3, bound="sq", vote=False)
    with explanation_mode(one):
        for unit in range(2):
            v = one.expand_weight[3 * unit : 3 * unit + 3].flatten(1).T @ one.reduce_weight.flatten(1)
            size = (x @ v.T).norm(dim=1, keepdim=True)
            capsule = size**2 / (1 + size**2) * (x @ v.T) / size
            volumes = x.view(7, 6, 1, 1, 1).requires_grad_()
            answer = one(volumes)[:, unit].flatten()
            (weights,) = torch.autograd.grad(answer.sum(), volumes)
            torch.testing.assert_close(weights.flatten(1), capsule, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(answer, (capsule * x).sum(1), rtol=1e-10, atol=1e-12)


@pytest.mark.sample(2)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("chunked", [False, True])
def test_rows_of_the_matrix_and_not_the_gradient(bound, chunked):
    x, one = noise(1, 2, 2, 3, 3), layer(2, 3, 3, rank=2, bound=bound)
    w = explicit_weights(one, x).detach()

    def held(unit: Tensor) -> Tensor:
        return (w * patches(unit, 3, 1, 1).permute(0, 2, 3, 4, 1, 5).flatten(4)[:, None]).sum(-1)

    if chunked:
        one.values_at_once = 1
    written_out = matrix_of(held, x)
    answers = one(x).numel()
    rows = torch.stack(
        [dynamic_weights(one, lambda a, n=n: one(a).flatten()[n : n + 1], x).flatten() for n in range(answers)]
    )
    torch.testing.assert_close(rows, written_out, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rows @ x.flatten(), one(x).flatten(), rtol=1e-9, atol=1e-12)
    true = torch.autograd.functional.jacobian(one, x).view(answers, -1)
    assert not torch.allclose(true, rows, rtol=0.1)
    assert bias_terms(one) == ()


@pytest.mark.parametrize("bound", BOUNDS)
def test_input_times_gradient_adds_up_without_being_the_weights(bound):
    """Layers of degree 1 (Euler): completeness alone does not prove that factors were held. ``sq`` is of no degree."""
    x, one = noise(1, 2, 3, 4, 3).requires_grad_(), layer(2, 2, 3, rank=3, bound=bound, vote=False)
    (gradient,) = torch.autograd.grad(one(x).sum(), x)
    assert torch.allclose(one(3 * x), 3 * one(x), rtol=1e-8) == (bound != "sq")
    assert torch.allclose((gradient * x).sum(), one(x).sum(), rtol=1e-8) == (bound != "sq")


@pytest.mark.parametrize("bound", BOUNDS)
def test_weights_can_be_differentiated(bound):
    """Against finite differences of the detached weights, along a direction in the space of each parameter."""
    x, one = noise(1, 2, 3, 4, 3), layer(2, 2, 3, rank=2, bound=bound)
    one.values_at_once = 1
    linear = lambda a: one(a)[:, 1].flatten(1).sum(1)  # noqa: E731
    recorded, weights = differentiable_weights(one, linear, x)
    torch.testing.assert_close(weights, dynamic_weights(one, linear, x), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(recorded, linear(x), rtol=1e-12, atol=1e-14)
    for parameter, slope in zip(
        one.parameters(), torch.autograd.grad(weights.abs().mean(), [*one.parameters()]), strict=True
    ):
        direction, kept = noise(*parameter.shape, seed=4), parameter.data.clone()
        ends = []
        for step in (1e-6, -1e-6):
            parameter.data = kept + step * direction
            ends.append(dynamic_weights(one, linear, x).abs().mean())
        parameter.data = kept
        torch.testing.assert_close((slope * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("bound", BOUNDS)
def test_empty_patches_say_nothing_and_have_finite_slopes(bound):
    one = CodaConv3d(2, 3, 3, rank=2, bound=bound)
    x = torch.zeros(1, 2, 4, 5, 3, requires_grad=True)
    answer = one(x)
    gradients = torch.autograd.grad(answer.square().sum() + answer.sum(), [x, *one.parameters()])
    assert torch.equal(answer, torch.zeros_like(answer))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def test_no_tensor_of_a_value_per_patch_and_unit_is_made():
    """The largest tensor that is kept for the backward pass has r values per unit and voxel, not C k³."""
    x, one = torch.rand(1, 4, 6, 7, 5, requires_grad=True), CodaConv3d(4, 8, 3, rank=2, bound="wb")
    voxels, sizes = 6 * 7 * 5, []

    def note(kept: Tensor) -> Tensor:
        sizes.append(kept.numel())
        return kept

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        one(x)
        whole, sizes = max(sizes), []
        one.values_at_once = 2 * voxels
        one(x)
    assert whole == 8 * 2 * voxels
    assert max(sizes) == 4 * 3 * 7 * 5  # a slab of the input: one layer of voxels and its borders


def test_networks_of_the_source_have_as_many_parameters_as_published():
    counts = {}
    with torch.device("meta"):
        for name, bound, channels in (("S", "sq", 6), ("S-WB", "wb", 6), ("S-WB", "wb", 32)):
            layers = stack(PUBLISHED[name], channels, 10, bound, flat=True)
            counts[name, channels] = sum(weight.numel() for one in layers for weight in one.parameters())
        large = stack(PUBLISHED["L"], 6, 100, "sq", flat=True)
    assert counts["S", 6] == 7_782_816
    assert counts["S-WB", 6] == 7_072_768
    assert counts["S-WB", 32] + 3 * 32 * 9 + 2 * 32 == 7_193_504  # with the learnt embedding
    assert round(sum(weight.numel() for one in large for weight in one.parameters()) / 1e6, 1) == 47.5


@pytest.mark.parametrize(("share", "millions"), [(1 / 8, 1.08), (1 / 4, 2.03), (1 / 2, 3.95), (4.5, 34.6)])
def test_parameters_grow_with_the_rank_as_published(share, millions):
    full = PUBLISHED["S"]
    with torch.device("meta"):
        layers = stack(
            type(full)(full.units, tuple(int(rank * share) for rank in full.ranks), full.kernels, full.strides),
            6, 10, "sq", flat=True,
        )  # fmt: skip
    assert sum(weight.numel() for one in layers for weight in one.parameters()) == pytest.approx(
        millions * 1e6, rel=5e-3
    )


def test_bounding_factors_of_very_long_and_empty_weights_are_finite():
    squared = torch.tensor([0.0, 1e-30, 1e30])
    for bound in ("l2", "sq"):
        scale = bounding_scale(bound, squared)
        assert bool(torch.isfinite(scale).all())
        assert float((scale * squared.sqrt()).max()) <= 1


def test_wrong_settings_are_refused():
    with pytest.raises(UsageError, match=r"bound = 'l1'.* l2, sq, wb"):
        CodaConv3d(2, 2, bound="l1")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="rank = 0"):
        CodaConv3d(2, 2, rank=0)
    with pytest.raises(UsageError, match="kernel_size = 2: sides must be odd"):
        CodaConv3d(2, 2, 2)


def test_half_precision_is_computed_in_single():
    one, x = CodaConv3d(2, 3, rank=2, bound="sq"), 300 * torch.rand(1, 2, 3, 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        answer = one(x)
    assert answer.dtype == torch.float32
    assert torch.equal(answer, one(x))


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["l2", "sq"])
def test_one_unit_learns_the_templates_as_principal_components(bound):
    """Three templates in noise: the columns of A span them (Böhle, Fritz & Schiele 2021, figure 2)."""
    draw = torch.Generator().manual_seed(1)
    templates = torch.nn.functional.normalize(torch.randn(3, 125, generator=draw), dim=1) * math.sqrt(125) / 2
    which = torch.randint(3, (3072,), generator=draw)
    x = (templates[which] + 0.5 * torch.randn(3072, 125, generator=draw)).view(-1, 125, 1, 1, 1)
    torch.manual_seed(2)
    one = CodaConv3d(125, 1, 1, rank=3, bound=bound, vote=False)
    optimiser = torch.optim.Adam(one.parameters(), 0.01)
    for _ in range(400):
        optimiser.zero_grad()
        (-one(x).mean()).backward()
        optimiser.step()
    span = torch.linalg.qr(one.expand_weight.flatten(1).T.detach()).Q
    truth = torch.linalg.qr(templates.T).Q
    assert float(torch.linalg.svdvals(span.T @ truth).min()) > 0.98


# CoDA networks: completeness at every stage, bounds, pooling and temperature, embeddings, the penalty.

NARROW = {"units": (3, 4), "ranks": (2, 3, 2), "kernels": (3, 3, 1), "strides": (2, 1, 1)}
TINY: dict[str, CodaConfig] = dict(
    sq=CodaSConfig(**NARROW), l2=CodaSConfig(bound="l2", **NARROW), wb=CodaSWbConfig(**NARROW)
)


def network(settings: CodaConfig, shape: Shape = (5, 4, 6), outputs: int = 3) -> tuple[StagedModel, Tensor]:
    torch.manual_seed(6)
    model = build_network(settings, shape, outputs)
    volumes = torch.rand(2, 1, *shape)
    volumes[..., :1] = 0
    calibrate(model.train(), volumes)
    return model.eval(), volumes


def logits_of(model: StagedModel) -> LogitLayer:
    (layer,) = (module for module in model.modules() if isinstance(module, LogitLayer))
    return layer


@pytest.mark.parametrize("name", TINY)
def test_contributions_add_up_at_every_stage_in_both_precisions(name):
    model, volumes = network(TINY[name])
    require_bias_free(model)
    for precise, bound in ((False, 1e-5), (True, 1e-12)):
        a = volumes.double() if precise else volumes
        model = model.double() if precise else model
        for stage, after in enumerate(model.stages[:-1], 1):
            a = after(a).detach()
            rest = nn.Sequential(*model.stages[stage:])
            for unit in range(3):
                shares = dynamic_weights(model, lambda x, rest=rest, unit=unit: rest(x)[:, unit], a) * a
                error = shares.flatten(1).sum(1) - (rest(a)[:, unit].detach() - logits_of(model).bias)
                assert float((error.abs() / shares.flatten(1).abs().sum(1)).max()) < bound


def test_rows_are_the_product_of_the_matrices_of_the_layers():
    settings = CodaSConfig(units=(2,), ranks=(2, 2), kernels=(3, 1), strides=(2, 1))
    model, volumes = network(settings, (4, 3, 5))
    model = model.double()
    first = model.stages[0](volumes[:1].double())
    bias = float(logits_of(model).bias)
    with explanation_mode(model, "record"), torch.no_grad():
        bounds = [first]
        for stage in model.stages[1:]:
            bounds.append(stage(bounds[-1]))

    def replayed(stage: nn.Module, unit: Tensor) -> Tensor:
        with explanation_mode(stage, "replay"), torch.no_grad():
            return stage(unit) - (bias if stage is model.stages[-1] else 0)

    stages = zip(model.stages[1:], bounds[:-1], strict=True)
    expected = product([matrix_of(lambda unit, s=stage: replayed(s, unit), a) for stage, a in stages])
    forget(model)
    rest = nn.Sequential(*model.stages[1:])
    rows = [dynamic_weights(model, lambda x, u=unit: rest(x)[:, u], first).flatten() for unit in range(3)]
    torch.testing.assert_close(torch.stack(rows), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", TINY)
def test_the_bound_of_the_network_does_not_depend_on_its_weights(name):
    """Each layer at most reproduces its patches: |a_l|^2 <= n m |a_(l-1)|^2, m patches covering a voxel."""
    model, volumes = network(TINY[name], (7, 6, 5))
    for size in (1.0, 100.0):
        for weight in model.parameters():
            weight.data *= size
        a = model.stages[0](volumes)
        for stage, units, kernel, stride in zip(model.stages[1:-1], (3, 4), (3, 3), (2, 1), strict=True):
            after = stage(a)
            reach = units * math.ceil(kernel / stride) ** 3
            assert bool((after.square().flatten(1).sum(1) <= reach * a.square().flatten(1).sum(1) * (1 + 1e-5)).all())
            a = after
        top = a.flatten(1).norm(dim=1) * math.sqrt(a[0, 0].numel()) / logits_of(model).temperature
        assert bool(((model(volumes) - logits_of(model).bias).abs() <= top[:, None] * (1 + 1e-5)).all())


def test_logits_are_a_sum_over_voxels_and_scale_with_the_temperature():
    model, volumes = network(replace(TINY["wb"], temperature=2.0))
    assert not needs_calibration(model)
    last, *_ = model.stages[-1]
    evidence = last(nn.Sequential(*model.stages[:-1])(volumes)).sum((2, 3, 4))
    layer = logits_of(model)
    assert float(layer.temperature) == 2.0 * 3 * 2 * 3  # voxels of the last layer
    torch.testing.assert_close(model(volumes), evidence / layer.temperature + math.log(1 / 2))
    before = model(volumes) - layer.bias
    layer.temperature *= 4
    torch.testing.assert_close(model(volumes) - layer.bias, before / 4)


def test_the_temperature_follows_from_data_unless_it_is_given():
    model, volumes = network(replace(TINY["sq"], initial_logits=0.25))
    sizes = (model(volumes) - logits_of(model).bias).square().mean().sqrt()
    torch.testing.assert_close(sizes, torch.tensor(0.25), rtol=1e-4, atol=0)


def test_one_output_has_no_logit_bias():
    model, _ = network(TINY["sq"], outputs=1)
    assert float(logits_of(model).bias) == 0


def test_the_default_networks_fit_the_brain_at_two_millimetres():
    for settings in (CodaSConfig(), CodaSWbConfig()):
        assert problems(settings) == []
        with torch.device("meta"):
            model = build_network(settings, (75, 93, 80), 2)
            assert model(torch.empty(1, 1, 75, 93, 80)).shape == (1, 2)


def test_a_network_of_the_source_runs_in_three_dimensions():
    torch.manual_seed(1)
    layers = PUBLISHED["S-WB"]
    narrow = Layers(tuple(units // 8 for units in layers.units), (2,) * 9, layers.kernels, layers.strides)
    answer = nn.Sequential(*stack(narrow, 2, 10, "wb"))(torch.rand(1, 2, 9, 8, 7))
    assert answer.shape == (1, 10, 3, 2, 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bound": "wb"}, "choose the architecture coda-s-wb"),
        ({"ranks": (2, 2)}, "one value more than model.units"),
        ({"kernels": (3, 2, 1)}, "each odd"),
        ({"strides": (3, 1, 1)}, "twice the stride less one"),
        ({"units": (3, 0)}, "model.units must name"),
        ({"temperature": -1.0}, "model.temperature"),
        ({"embedding": -1}, "model.embedding"),
    ],
)
def test_settings_that_make_no_network_are_named(changed, message):
    assert any(message in problem for problem in problems(replace(TINY["sq"], **changed), "model."))


def test_a_grid_that_is_too_small_is_refused():
    with pytest.raises(BadInputError, match=r"2x3x3 voxels is too small for coda-s-wb.*at least 3"):
        build_network(TINY["wb"], (2, 3, 3), 2)


def test_a_learnt_embedding_is_explained_but_not_called_a_map_of_voxels():
    model, volumes = network(replace(TINY["wb"], embedding=5))
    model, volumes = model.double(), volumes.double()
    with torch.no_grad():
        model.stages[0].train()(volumes)
    model.eval()
    features, rest = model.stages[0](volumes).detach(), nn.Sequential(*model.stages[1:])
    rows = dynamic_weights(model, lambda x: rest(x)[:, 1], features)
    expected = model(volumes)[:, 1].detach() - logits_of(model).bias
    torch.testing.assert_close((rows * features).flatten(1).sum(1), expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(UsageError, match="no map of voxels"):
        require_voxel_level(model)
    with pytest.raises(UsageError, match="no map of voxels"):
        attribute(model, volumes, 1, Inherent(compare="nothing"))
    at_embedding = attribute(model, volumes, 1, Inherent(compare="nothing"), stage=1)
    torch.testing.assert_close(at_embedding.values, (rows * features).sum(1, keepdim=True), rtol=1e-9, atol=1e-12)
    require_voxel_level(network(TINY["wb"])[0])


@pytest.mark.parametrize("name", TINY)
def test_the_penalty_is_the_mean_absolute_weight_and_a_step_lowers_it(name):
    model, volumes = network(TINY[name])
    model, volumes, classes = model.double(), volumes.double(), torch.tensor([2, 0])
    pairs, rest = model.stages[0](volumes), nn.Sequential(*model.stages[1:])
    rows = dynamic_weights(rest, lambda x: rest(x).gather(1, classes[:, None])[:, 0], pairs)
    found = mean_absolute_weights(model.train(), volumes, classes)
    torch.testing.assert_close(found, rows.abs().flatten(1).mean(1) * logits_of(model).temperature)
    weights = [*model.parameters()]
    slopes = torch.autograd.grad(found.mean(), weights, allow_unused=True)
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight -= 1e-3 * (0 if slope is None else slope)
    assert bool(mean_absolute_weights(model, volumes, classes).mean() < found.mean())


def test_the_penalty_is_added_for_the_true_and_one_wrong_class():
    model, volumes = network(TINY["sq"], outputs=2)
    targets = torch.tensor([0, 1])
    batch, context = Batch(volumes, targets, torch.arange(2)), Context()
    plain = classification(torch.ones(2))
    assert with_weight_penalty(plain, 0.0) is plain
    both = [mean_absolute_weights(model, volumes, classes).mean() for classes in (targets, 1 - targets)]
    total, logged = with_weight_penalty(plain, 0.5).loss(model, batch, context)
    expected, same = plain.loss(model, batch, context)
    torch.testing.assert_close(total, expected + 0.5 * (both[0] + both[1]) / 2)
    assert torch.equal(logged["loss"], same["loss"])
    with pytest.raises(UsageError, match="B-cos, CoDA"):
        mean_absolute_weights(StagedModel([nn.Flatten(), nn.Linear(120, 2)]), volumes, targets)


def test_a_number_has_no_classes_to_penalise():
    task = task_of(CohortConfig(target="age"))
    with pytest.raises(UsageError, match="weight_penalty is for classes, and age is a number"):
        objective_of(task, TrainingConfig(weight_penalty=0.1), torch.tensor([60.0, 80.0]))
    classes = objective_of(task_of(CohortConfig()), TrainingConfig(weight_penalty=0.1), torch.tensor([0, 1]))
    assert classes.facts["weight_penalty"] == 0.1


def test_wrong_classes_are_drawn_evenly_from_all_others():
    torch.manual_seed(0)
    drawn = wrong_classes(torch.full((3000,), 2), 4)
    assert sorted(drawn.unique().tolist()) == [0, 1, 3]
    assert bool((torch.bincount(drawn, minlength=4)[[0, 1, 3]] - 1000).abs().max() < 120)


def test_the_layout_of_weights_in_memory_does_not_matter():
    """Training stores weights channels last."""
    model, volumes = network(TINY["sq"])
    answer = model(volumes)
    model.to(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(model(volumes), answer, rtol=1e-5, atol=1e-6)
    model(volumes).sum().backward()
