"""Maps relative to controls: closed forms, what they must add up to, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gradient_toys import SHAPE, network, volumes
from hypothesis import given, settings
from hypothesis import strategies as st
from model_snapshot import snapshot
from reference_toys import branches, controls, four_regions
from torch import Tensor, nn

from heatlas.pipeline.attribution.gradient import paths
from heatlas.pipeline.attribution.gradient.paths import (
    ExpectedGradients,
    IntegratedGradientsFromMean,
    PathSample,
    path_integral,
    sample_paths,
    stratified_alphas,
)
from heatlas.pipeline.attribution.methods import attribute, require_defined
from heatlas.pipeline.attribution.network_view import start_values
from heatlas.pipeline.attribution.perturbation.masking import RegionLabels
from heatlas.pipeline.attribution.reference.deeplift import DeepLift, deeplift
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.reference.region_swap import RegionShapley, RegionSwap
from heatlas.pipeline.explaining.explained_scan import is_evidence
from heatlas.pipeline.models.graph.operations import ACTIVATIONS
from heatlas.pipeline.run.errors import BadInputError, UsageError

BY_VOXEL: list[Any] = [
    ExpectedGradients(),
    ExpectedGradients(alphas=3, batch=4),
    IntegratedGradientsFromMean(),
    DeepLift(),
    DeepLift(compare="each"),
]
BY_REGION: list[Any] = [RegionSwap(regions=four_regions()), RegionShapley(regions=four_regions())]
each = pytest.mark.parametrize("method", BY_VOXEL + BY_REGION, ids=repr)
by_voxel = pytest.mark.parametrize("method", BY_VOXEL, ids=repr)


def given_to(method: Any, reference: Reference | None = None) -> Any:
    return replace(method, reference=controls() if reference is None else reference)


def linear() -> nn.Sequential:
    torch.manual_seed(6)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 2)).double().eval()


def evidence(model: nn.Module, x: torch.Tensor, target: int) -> torch.Tensor:
    with torch.no_grad():
        return start_values(model(x), target, "evidence")


@by_voxel
def test_linear_network_gives_weight_times_difference(method: Any) -> None:
    model, x, reference = linear(), volumes(), controls()
    answer = attribute(model, x, 1, given_to(method), start="evidence")
    weight = (model[1].weight[1] - model[1].weight[0]).detach().view(1, *x.shape[2:])
    differences = x[:, None] - reference.volumes[None]
    if isinstance(method, ExpectedGradients | DeepLift):
        torch.testing.assert_close(answer.values, weight * differences.mean(1), rtol=1e-11, atol=1e-13)
    else:
        torch.testing.assert_close(answer.values, weight * (x - reference.mean), rtol=1e-11, atol=1e-13)
    assert answer.reference_value is not None
    torch.testing.assert_close(answer.reference_value, evidence(model, reference.volumes, 1).mean().expand(2))


@pytest.mark.parametrize("method", BY_REGION, ids=lambda method: method.name)
def test_regions_of_a_linear_network_have_their_sum(method: Any) -> None:
    model, x, reference = linear(), volumes(1), controls()
    answer = attribute(model, x, 1, given_to(method), start="evidence")
    weight = (model[1].weight[1] - model[1].weight[0]).detach().view(x.shape[2:])
    exact = (weight * (x - reference.mean))[0, 0]
    labels = four_regions().labels
    for number in (2, 3, 5, 9):
        own = answer.values[0, 0][labels == number]
        torch.testing.assert_close(own.sum(), exact[labels == number].sum(), rtol=1e-9, atol=1e-12)
        assert float(own.max() - own.min()) == 0
    rest = (labels == 0) & (x != reference.mean)[0, 0]
    torch.testing.assert_close(answer.values[0, 0][rest].sum(), exact[rest].sum(), rtol=1e-9, atol=1e-12)
    assert float(answer.values[0, 0][(labels == 0) & ~rest].abs().max()) == 0


COMPLETE: dict[str, tuple[Any, float]] = {
    "deeplift from the mean": (DeepLift(), 1e-11),
    "deeplift from each": (DeepLift(compare="each"), 1e-11),
    "region Shapley": (RegionShapley(regions=four_regions(), pairs=1), 1e-11),
    "integrated gradients": (IntegratedGradientsFromMean(steps=400), 5e-3),
    "expected gradients": (ExpectedGradients(), 1e-11),
    "expected gradients without control": (ExpectedGradients(alphas=200, control_variate=False), 2e-2),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize("build", [network, branches], ids=["stages", "branches"])
@pytest.mark.parametrize("start", ["evidence", "logit"])
def test_map_adds_up_to_the_difference_to_its_reference(name: str, build: Callable[[], nn.Module], start: Any) -> None:
    model, x, reference = build(), volumes(), controls()
    method, error = COMPLETE[name]
    answer = attribute(model, x, 2, given_to(method), start=start)
    over = name == "deeplift from each" or name.startswith("expected gradients")
    with torch.no_grad():
        of_reference = start_values(model(reference.volumes if over else reference.mean), 2, start).mean()
        expected = start_values(model(x), 2, start) - of_reference
    torch.testing.assert_close(answer.start_value - answer.reference_value, expected, rtol=1e-9, atol=1e-12)
    scale = float(expected.abs().max())
    torch.testing.assert_close(answer.values.flatten(1).sum(1), expected, rtol=0, atol=error * scale)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_deeplift_is_complete_for_every_activation(activation: type[nn.Module]) -> None:
    model, x, reference = branches(activation), volumes(), controls()
    answer = attribute(model, x, 0, given_to(DeepLift()), start="evidence")
    expected = evidence(model, x, 0) - evidence(model, reference.mean, 0)
    torch.testing.assert_close(answer.values.flatten(1).sum(1), expected, rtol=1e-7, atol=1e-10)
    assert float(answer.values.abs().max()) > 0


def test_deeplift_of_the_reference_itself_is_zero() -> None:
    reference = controls(1)
    found = deeplift(branches(), reference.volumes, reference.volumes, 1)
    assert float(found[0].abs().max()) == 0
    torch.testing.assert_close(found[1], found[2], rtol=0, atol=0)


def test_deeplift_in_single_precision_stays_complete() -> None:
    """Differences of a few roundings must not make slopes of thousands."""
    model = branches(nn.SiLU).float()
    reference = controls(1).volumes.float()
    x = reference * (1 + 1e-7 * torch.randn(reference.shape, generator=torch.Generator().manual_seed(2)))
    contributions = deeplift(model, x, reference, 1)[0]
    exact = deeplift(branches(nn.SiLU), x.double(), reference.double(), 1)[0]
    torch.testing.assert_close(contributions.double(), exact, rtol=1e-2, atol=1e-2 * float(exact.abs().max()))


@pytest.mark.parametrize("stage", [1, "stages.1.0", 2])
@by_voxel
def test_later_stages_add_up_too(method: Any, stage: int | str) -> None:
    fine = replace(method, alphas=100) if isinstance(method, ExpectedGradients) else method
    fine = replace(fine, steps=100) if isinstance(fine, IntegratedGradientsFromMean) else fine
    answer = attribute(network(), volumes(), 1, given_to(fine), stage, "evidence", at_input_grid=False)
    assert answer.reference_value is not None
    difference = answer.start_value - answer.reference_value
    torch.testing.assert_close(answer.values.flatten(1).sum(1), difference, rtol=0, atol=1e-2)


def test_expected_gradients_of_one_reference_are_integrated_gradients() -> None:
    model, x, reference = network(), volumes(), controls(1)

    def score(a: torch.Tensor) -> torch.Tensor:
        return start_values(model(a), 1, "evidence")

    ours = [sample_paths(score, one, reference.volumes, stratified_alphas(1, 16, seed=5)) for one in x]
    theirs = path_integral(score, x, reference.volumes, steps=16)
    torch.testing.assert_close(torch.stack([one.mean for one in ours]), theirs.attributions, rtol=1e-11, atol=1e-14)
    variation = torch.cat([one.path(one.mean).variation for one in ours])
    torch.testing.assert_close(variation, theirs.variation, rtol=1e-11, atol=1e-14)


def test_control_variate_is_the_regression_of_each_voxel_on_the_slope() -> None:
    """By least squares over all points at once, with the points themselves: fitted at the known mean of the slopes."""
    model, x, reference = network(), volumes(1), controls()

    def score(a: torch.Tensor) -> torch.Tensor:
        return start_values(model(a), 1, "evidence")

    alphas = stratified_alphas(len(reference.people), 2, seed=3)
    contributions = []
    for control, row in zip(reference.volumes, alphas, strict=True):
        for alpha in row:
            at = (control + alpha * (x[0] - control)).requires_grad_()
            contributions.append(((x[0] - control) * torch.autograd.grad(score(at[None]).sum(), at)[0]).flatten())
    points = torch.stack(contributions).numpy()
    slopes = points.sum(1)
    with torch.no_grad():
        wanted = float(score(x) - score(reference.volumes).mean())
    assert abs(slopes.mean() - wanted) > 1e-3 * abs(wanted)  # the plain mean misses
    design = np.stack([np.ones_like(slopes), slopes], axis=1)
    expected = np.array([1.0, wanted]) @ np.linalg.lstsq(design, points, rcond=None)[0]
    found = sample_paths(score, x[0], reference.volumes, alphas, batch=4).controlled(wanted)
    np.testing.assert_allclose(found.flatten().numpy(), expected, rtol=1e-9, atol=1e-13)
    answer = attribute(model, x, 1, ExpectedGradients(reference, alphas=2, seed=3), start="evidence")
    np.testing.assert_allclose(answer.values.flatten().numpy(), expected, rtol=1e-9, atol=1e-13)
    assert answer.sampling_error is not None
    assert float(answer.sampling_error) == pytest.approx(slopes.mean() - wanted, rel=1e-9)


def test_points_that_stand_for_too_little_are_not_weighted() -> None:
    """Two slopes of 2 and 6 cannot speak for a mean of 9, nor one slope for any other."""
    points = torch.tensor([[1.0, 1.0], [2.0, 4.0]])
    sample = PathSample(points.mean(0), torch.tensor([1.0, 3.0]), points.sum(1).double())
    assert sample.stands_for(6.0)
    assert not sample.stands_for(6.1)
    assert torch.equal(sample.controlled(6.1), points.mean(0))
    one = PathSample(points[0], torch.zeros(2), points[:1].sum(1).double())
    assert one.stands_for(2.0)
    assert not one.stands_for(2.1)
    assert torch.equal(one.controlled(2.1), points[0])


def test_more_points_are_taken_where_few_stand_for_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    true = paths.sample_paths
    monkeypatch.setattr(paths, "sample_paths", lambda *given: asked.append(tuple(given[3].shape)) or true(*given))
    single, several = controls(1), controls()
    method = ExpectedGradients(single, tolerance=math.inf)
    answer = attribute(network(), volumes(1), 1, method, start="evidence")
    assert asked[:2] == [(1, 1), (1, 2)]  # one slope has no spread
    assert answer.reference_value is not None
    if len(asked) == 2:
        total = answer.values.sum()
        torch.testing.assert_close(total, (answer.start_value - answer.reference_value)[0], rtol=1e-9, atol=1e-12)
    asked.clear()
    attribute(network(), volumes(1), 1, replace(method, control_variate=False), start="evidence")
    assert asked == [(1, 1)]
    asked.clear()
    attribute(network(), volumes(1), 1, replace(method, reference=several), start="evidence")
    assert asked == [(len(several.people), 1)]


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        (ExpectedGradients(control_variate=False), r"raise alphas \(now 1 for each control\)"),
        (IntegratedGradientsFromMean(steps=1), r"raise steps \(now 1\)"),
    ],
)
def test_a_map_that_misses_its_sum_is_refused_with_the_remedy(method: Any, remedy: str) -> None:
    strict = given_to(replace(method, tolerance=1e-4))
    with pytest.raises(
        UsageError, match=rf"{method.name}: the map of volume 0 .* % of the score's variation .*{remedy}"
    ):
        attribute(network(), volumes(1), 1, strict, start="evidence")
    attribute(network(), volumes(1), 1, replace(strict, tolerance=math.inf), start="evidence")


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_points_are_spread_evenly(references: int, per_reference: int, seed: int) -> None:
    alphas = stratified_alphas(references, per_reference, seed)
    assert alphas.shape == (references, per_reference)
    count = references * per_reference
    together = alphas.flatten().sort().values
    torch.testing.assert_close(together, (torch.arange(count).double() + 0.5) / count)
    parts = (alphas * per_reference).floor().long()
    assert torch.equal(parts, torch.arange(per_reference).expand_as(parts))


def test_known_logits_save_passes_and_change_nothing() -> None:
    model, x, reference = network(), volumes(), controls()
    with torch.no_grad():
        known = Reference(reference.volumes, reference.people, model(reference.volumes))
    plain = attribute(model, x, 1, given_to(ExpectedGradients()), start="evidence")
    quick = attribute(model, x, 1, given_to(ExpectedGradients(), known), start="evidence")
    # Logits of all controls in one pass may be summed in another order than in passes of their own.
    torch.testing.assert_close(plain.values, quick.values, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(plain.reference_value, quick.reference_value, rtol=1e-12, atol=0)


@each
def test_single_volumes_like_batches_and_a_network_never_touched(method: Any) -> None:
    model, x = network(), volumes(3)
    before, copy = snapshot(model), x.clone()
    together = attribute(model, x, 1, given_to(method), start="evidence")
    alone = [attribute(model, x[i : i + 1], 1, given_to(method), start="evidence") for i in range(3)]
    torch.testing.assert_close(together.values, torch.cat([one.values for one in alone]), rtol=1e-9, atol=1e-12)
    assert together.values.shape == x.shape
    assert not together.values.requires_grad
    assert snapshot(model) == before
    assert torch.equal(x, copy)
    with torch.inference_mode():
        again = attribute(model, x.clone(), 1, given_to(method), start="evidence").values
    torch.testing.assert_close(again, together.values, rtol=1e-12, atol=0)


@each
def test_order_of_the_controls_does_not_matter_but_for_sampling(method: Any) -> None:
    model, x, reference = linear(), volumes(1), controls()
    turned = Reference(reference.volumes.flip(0), reference.people[::-1])
    maps = [attribute(model, x, 1, given_to(method, one), start="evidence").values for one in (reference, turned)]
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-9, atol=1e-12)


@each
def test_single_precision_agrees_with_double(method: Any) -> None:
    """A reference is brought to the precision of the network."""
    exact = attribute(network(), volumes(), 1, given_to(method), start="evidence").values
    single = attribute(network().float(), volumes().float(), 1, given_to(method), start="evidence").values
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=2e-4 * float(exact.abs().max()))


@each
def test_without_a_reference_or_with_one_on_another_grid(method: Any) -> None:
    with pytest.raises(UsageError, match=f"^{method.name} compares with controls and was given none"):
        attribute(network(), volumes(), 1, method)
    other = Reference(torch.rand(2, 1, 9, 12, 11, dtype=torch.float64), ("sub-1", "sub-2"))
    with pytest.raises(BadInputError, match=rf"{method.name}: the reference volumes have the grid \(1, 9, 12, 11\)"):
        attribute(network(), volumes(), 1, given_to(method, other))


@pytest.mark.parametrize("method", BY_REGION, ids=lambda method: method.name)
def test_regions_are_asked_at_the_input_on_the_grid_of_the_volumes(method: Any) -> None:
    with pytest.raises(UsageError, match="explain at stage 0"):
        attribute(network(), volumes(), 1, given_to(method), 1)
    with pytest.raises(UsageError, match="was given none; set its regions"):
        attribute(network(), volumes(), 1, given_to(replace(method, regions=None)))
    elsewhere = RegionLabels("other", torch.ones(9, 12, 11, dtype=torch.int64))
    with pytest.raises(BadInputError, match=r"labels of 'other' have the grid \(9, 12, 11\)"):
        attribute(network(), volumes(), 1, given_to(replace(method, regions=elsewhere)))


@pytest.mark.parametrize(
    ("volumes_", "people", "logits", "words"),
    [
        (torch.zeros(0, 1, 3, 4, 5), (), None, "at least 1"),
        (torch.zeros(2, 3, 4, 5), ("a", "b"), None, r"must be \(R, 1, D, H, W\)"),
        (torch.zeros(2, 1, 3, 4, 5), ("a",), None, "2 volumes but 1 participants"),
        (torch.zeros(2, 1, 3, 4, 5), ("a", "b"), torch.zeros(1, 2), "1 rows of logits"),
        (torch.full((1, 1, 3, 4, 5), torch.nan), ("sub-7",), None, "sub-7 has values that are not finite"),
    ],
)
def test_references_that_cannot_be(volumes_: torch.Tensor, people: Any, logits: Any, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        Reference(volumes_, people, logits)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ExpectedGradients(alphas=0), "expected-gradients: alphas = 0"),
        (lambda: ExpectedGradients(seed=-1), "seed = -1"),
        (lambda: ExpectedGradients(tolerance=-1.0), "expected-gradients: tolerance = -1"),
        (lambda: IntegratedGradientsFromMean(tolerance=math.nan), "tolerance = nan"),
        (lambda: IntegratedGradientsFromMean(steps=0), "integrated-gradients-from-mean: steps = 0"),
        (lambda: DeepLift(compare="all"), "compare = 'all'"),  # type: ignore[arg-type]
        (lambda: RegionSwap(batch=0), "region-swap: batch = 0"),
        (lambda: RegionShapley(pairs=0), "region-shapley: pairs = 0"),
    ],
)
def test_settings_that_are_refused(build: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build()


class Squeeze(nn.Module):
    """Features times a gate that they compute, as in squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.head = nn.Conv3d(1, 2, 3), nn.Conv3d(2, 2, 1), nn.Linear(2, 2)
        self.pool = nn.AdaptiveAvgPool3d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.conv(x)
        a = a * torch.sigmoid(self.gate(self.pool(a)))
        return self.head(self.pool(a).flatten(1))  # type: ignore[no-any-return]


class Product(Squeeze):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.conv(x)
        return self.head(self.pool(a * self.gate(a)).flatten(1))  # type: ignore[no-any-return]


class Sorting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).sort(1)[0]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Conv3d(1, 2, 3), Sorting(), nn.Linear(1120, 2)), "sort.*has no rule"),
        (nn.Sequential(nn.Conv3d(1, 2, 3), nn.SiLU(inplace=True)), "in place"),
    ],
)
def test_deeplift_refuses_by_name_what_the_rule_is_not_defined_for(model: nn.Module, words: str) -> None:
    method = given_to(DeepLift())
    with pytest.raises(UsageError, match=words):
        attribute(model.double().eval(), volumes(), 0, method)
    with pytest.raises(UsageError, match=words):
        require_defined(model, (9, 12, 10), method, 0, "evidence")


@pytest.mark.parametrize("model", [Squeeze(), Product()])
def test_deeplift_goes_through_products_completely(model: nn.Module) -> None:
    answer = attribute(model.double().eval(), volumes(), 0, given_to(DeepLift()))
    torch.testing.assert_close(answer.values.flatten(1).sum(1), answer.start_value - answer.reference_value)


def test_deeplift_refuses_the_probability() -> None:
    with pytest.raises(UsageError, match="the softmax has no rescale rule"):
        attribute(network(), volumes(), 0, given_to(DeepLift()), start="probability")


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("what", ["volumes", "logits"])
def test_a_reference_that_is_not_finite_is_refused_with_the_person(broken: float, what: str) -> None:
    given = {"volumes": torch.zeros(3, 1, 2, 2, 2), "logits": torch.zeros(3, 2)}
    given[what][1] = broken
    with pytest.raises(BadInputError, match=r"reference: .* of b .*not finite"):
        Reference(given["volumes"], ("a", "b", "c"), given["logits"])


SIDE = 6


class Pairs(nn.Module):
    """Twice the product of voxels 0 and 1 and the square of voxel 2; blind to all others."""

    def forward(self, cubes: Tensor) -> Tensor:
        a = cubes.flatten(1)
        return torch.stack([torch.zeros_like(a[:, 0]), 2 * a[:, 0] * a[:, 1] + a[:, 2] ** 2], dim=1)


def reference(n: int, duplicates: bool = False) -> Reference:
    cubes = torch.rand((n, 1, SIDE, SIDE, SIDE), generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    cubes = cubes[:1].expand_as(cubes) if duplicates else cubes
    return Reference(cubes, tuple(f"sub-{place}" for place in range(n)))


def cubes(n: int = 2) -> Tensor:
    return torch.rand((n, 1, SIDE, SIDE, SIDE), generator=torch.Generator().manual_seed(99), dtype=torch.float64)


@pytest.mark.parametrize("stage", [0, 1, 2, "1"])
@pytest.mark.parametrize("method", [DeepLift, ExpectedGradients, IntegratedGradientsFromMean])
def test_only_what_adds_up_is_written_as_evidence(method: type, stage: int | str) -> None:
    """A map of a stage is brought up to the input's grid, where its sum is no longer the evidence."""
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Conv3d(1, 2, 3), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(16, 3)).double().eval()
    )  # linear: every method is exact
    answer = attribute(model, cubes(), 2, method(reference(3)), stage, "evidence")
    assert answer.reference_value is not None
    error = (answer.values.sum((1, 2, 3, 4)) - (answer.start_value - answer.reference_value)).abs().max()
    assert is_evidence(answer) == (stage == 0)
    assert (float(error) < 1e-12) == is_evidence(answer)


@pytest.mark.parametrize("duplicates", [True, False])
@pytest.mark.parametrize("n", [1, 4])
def test_symmetry_and_dummies_of_a_quadratic_network(n: int, duplicates: bool) -> None:
    """Closed forms: of 2 a b + c^2 from (p, q, s), a gets (a - p)(b + q), b (b - q)(a + p), c c^2 - s^2."""
    found, given = reference(n, duplicates), cubes(1)
    labels = torch.zeros((SIDE, SIDE, SIDE), dtype=torch.long)
    labels.flatten()[:3] = torch.tensor([1, 2, 3])
    regions = RegionLabels("voxels", labels)
    a, b, c = given.flatten()[:3]
    p, q, s = found.mean.flatten()[:3]
    path = torch.stack([(a - p) * (b + q), (b - q) * (a + p), c**2 - s**2])
    swap = torch.stack([2 * (a - p) * b, 2 * (b - q) * a, c**2 - s**2])
    for method, wanted in (
        (IntegratedGradientsFromMean(found), path),
        (RegionShapley(found, regions), path),
        (RegionSwap(found, regions), swap),
    ):
        answer = attribute(Pairs().eval(), given, 1, method, 0, "evidence")
        torch.testing.assert_close(answer.values.flatten()[:3], wanted, atol=1e-12, rtol=0)
        assert not answer.values.flatten()[3:].any()
    each = found.volumes.flatten(1)[:, :3]
    wanted = torch.stack(
        [(a - each[:, 0]) * (b + each[:, 1]), (b - each[:, 1]) * (a + each[:, 0]), c**2 - each[:, 2] ** 2]
    ).mean(1)
    for batch in (1, 3):
        answer = attribute(Pairs().eval(), given, 1, ExpectedGradients(found, alphas=60, batch=batch), 0, "evidence")
        torch.testing.assert_close(answer.values.flatten()[:3], wanted, atol=2e-2, rtol=0)
        assert not answer.values.flatten()[3:].any()
