"""CA-Stream: closed forms of the attention, what is trained, and its maps."""

from __future__ import annotations

import copy
import json
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from heatlas.pipeline.attribution.attention import RawAttention
from heatlas.pipeline.attribution.cam.masked_volumes import drop_of_score, increase_of_score
from heatlas.pipeline.attribution.cam.weighted_maps import feature_gradient
from heatlas.pipeline.attribution.gradient.paths import ExpectedGradients, IntegratedGradientsFromMean
from heatlas.pipeline.attribution.methods import attribute, receptive_centres, to_input_grid
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.run.config.settings import CohortConfig, Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.objectives.maps_in_training import explained_batch
from heatlas.studies.probes.network import attended, attention, attention_scores, backbone_of
from heatlas.studies.probes.records import ProbeConfig

SHAPE = (16, 14, 20)
BODY = json.dumps({"architecture": "founding", "channels": [3, 4, 5], "pools": [1, 2, 1], "hidden_units": 4})
WIDTHS = (3, 4, 5)
OF_GRADIENT = ("grad-cam", "xgrad-cam", "hires-cam")


VARIANTS = [{"projections": True}, {"class_queries": True}, {"projections": True, "class_queries": True}]


def built(head: str = "ca-stream", **settings: int) -> StagedModel:
    torch.manual_seed(0)
    return build_network(ProbeConfig(body=BODY, head=head, **settings), SHAPE, 2).eval()


def volumes() -> torch.Tensor:
    torch.manual_seed(1)
    found = torch.rand(2, 1, *SHAPE)
    found[..., :12] = 0
    return found


def test_a_query_of_zero_is_global_average_pooling() -> None:
    gap, stream, scans = built("linear"), built(), volumes() + 0.1
    weights = {name.replace("_stages.0.", "_stages.0.body."): value for name, value in gap.state_dict().items()}
    stream.load_state_dict({**stream.state_dict(), **weights})
    with torch.no_grad():
        stream.stages[0].query.zero_()
        for one in stream.stages[0].projections:
            one.weight.zero_()
        np.testing.assert_allclose(stream(scans), gap(scans), atol=1e-6)


def test_attention_is_the_softmax_of_a_class_agnostic_cam() -> None:
    features, query = torch.randn(2, 5, 3, 4, 2), torch.randn(2, 5)
    found = attention(features, query)
    for one in range(2):
        cam = sum(query[one, k] * features[one, k] for k in range(5)) / math.sqrt(5)
        np.testing.assert_allclose(attention_scores(features, query)[one], cam, atol=1e-5)
        np.testing.assert_allclose(found[one], (cam.exp() / cam.exp().sum()), atol=1e-6)
    order = torch.randperm(24)
    moved = features.flatten(2)[:, :, order].view_as(features)
    pooled = attended(features, found).mean((2, 3, 4))
    np.testing.assert_allclose(attended(moved, attention(moved, query)).mean((2, 3, 4)), pooled, atol=1e-6)
    flat = features.flatten(2)
    assert ((pooled >= flat.amin(2)) & (pooled <= flat.amax(2))).all()


def test_the_gradient_of_a_logit_is_the_closed_form() -> None:
    """dy/dphi_i = a_i [w + (s_i - sum_j a_j s_j) q / sqrt(d)], with s_i = w' phi_i."""
    features = torch.randn(1, 5, 3, 2, 2, requires_grad=True)
    query, weight = torch.randn(1, 5), torch.randn(5)
    pooled = attended(features, attention(features, query)).mean((2, 3, 4))
    (found,) = torch.autograd.grad(pooled[0] @ weight, features)
    phi, a = features.detach()[0].flatten(1), attention(features.detach(), query)[0].flatten()
    s = weight @ phi
    wanted = a * (weight[:, None] + (s - (a * s).sum()) * query[0][:, None] / math.sqrt(5))
    np.testing.assert_allclose(found[0].flatten(1), wanted, atol=1e-5)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"first_attended": 0}, 3 + 3 * 4 + 4 * 5),
        ({"first_attended": 1}, 4 + 4 * 5),
        ({"first_attended": 2}, 5),
        ({"first_attended": 1, "projections": True}, 4 + 4 * 5 + 2 * (4 * 4 + 5 * 5)),
        ({"class_queries": True}, 2 * 3 + 3 * 4 + 4 * 5),
    ],
)
def test_only_the_stream_and_the_head_learn(settings: dict[str, int], count: int) -> None:
    model = built(**settings).train()
    before = copy.deepcopy(model.state_dict())
    learning = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert sum(weight.numel() for weight in learning.values()) == count + 2 * 5 + 2
    optimiser = torch.optim.Adam(learning.values(), 0.1)
    nn.functional.cross_entropy(model(volumes()), torch.tensor([0, 1])).backward()
    assert all(weight.grad.abs().max() > 0 for weight in learning.values())
    optimiser.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) != (name in learning), name


def test_each_query_is_what_the_stage_before_pooled() -> None:
    model, scans = built(), volumes()
    stream = model.stages[0]
    with torch.no_grad():
        query, features = stream.query.expand(2, -1), scans
        for number, stage in enumerate(stream.body):
            features = stage(features)
            brain = torch.stack(
                [(nn.functional.adaptive_max_pool3d(one, features.shape[2:]) > 0)[0] for one in scans.clone()]
            )
            scores = torch.stack([torch.tensordot(query[b], features[b], 1) for b in range(2)]) / WIDTHS[number] ** 0.5
            weights = torch.where(brain, scores.exp(), 0)
            weights = weights / weights.sum((1, 2, 3), keepdim=True)
            pooled = torch.stack([(features[b] * weights[b]).sum((1, 2, 3)) for b in range(2)])
            query = pooled @ stream.projections[number].weight.T if number < 2 else pooled
        linear = model.stages[1][2]
        np.testing.assert_allclose(model(scans), pooled @ linear.weight.T + linear.bias, atol=1e-6)
        np.testing.assert_allclose(stream.pooling_weights(scans), weights, atol=1e-6)


def last_attention(model: StagedModel, scan: torch.Tensor, first: int = 0, target: int = 0) -> tuple[torch.Tensor, ...]:
    """Last features phi (d, p), attention a (p,) and query q (d,) of one scan, from the formulas of the source.

    With projections phi_i' K q is written voxel by voxel, and q is K q.
    """
    stream = model.stages[0]
    query = stream.query.detach() if stream.query.dim() == 1 else stream.query.detach()[target]
    features = scan
    for number, stage in enumerate(stream.body):
        features = stage(features).detach()
        if number < first:
            continue
        phi = features[0].flatten(1)
        keys, values = (
            one[number - first].detach() if one else torch.eye(len(phi)).to(phi) for one in (stream.keys, stream.values)
        )
        brain = nn.functional.adaptive_max_pool3d(scan, features.shape[2:])[0, 0].flatten() > 0
        scores = torch.stack([(keys @ phi[:, voxel]) @ query for voxel in range(phi.shape[1])])
        a = torch.where(brain, (scores / math.sqrt(len(phi))).exp(), 0)
        a = a / a.sum()
        if number < len(stream.body) - 1:
            query = stream.projections[number - first].weight.detach() @ (values @ phi @ a)
    return phi, a, keys.T @ query


def row_of(model: StagedModel, target: int) -> torch.Tensor:
    """The weights (d,) by which a logit reads the last features that are pooled for it."""
    pool, *layers = model.stages[1][:3]
    assert isinstance(pool, nn.AdaptiveAvgPool3d)
    weight = next(one for one in layers if not isinstance(one, nn.Flatten)).weight.detach()[target].flatten()
    values = model.stages[0].values
    return values[-1].detach().T @ weight if values else weight


def closed_gradient(
    model: StagedModel, scan: torch.Tensor, first: int, target: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """phi (d, p) and dy/dphi_i = a_i [w + (s_i - sum_j a_j s_j) q / sqrt(d)], with s_i = w' phi_i."""
    phi, a, query = last_attention(model, scan, first, target)
    w = row_of(model, target)
    s = w @ phi
    return phi, a * (w[:, None] + (s - (a * s).sum()) * query[:, None] / math.sqrt(len(phi)))


@pytest.mark.parametrize("first", [0, 2])
def test_cam_methods_explain_the_features_before_the_attention(first: int) -> None:
    """Their gradient is the closed form of the source, so that three CAMs differ which are one behind GAP."""
    model, scan = built(first_attended=first).double(), volumes()[:1].double()
    with torch.no_grad():
        model.stages[1][2].weight[1] = torch.rand(WIDTHS[-1])
    phi, g = closed_gradient(model, scan, first)
    stage = METHODS["grad-cam"].stage_of(model)
    with explaining(model, scan, 1, stage) as view:
        np.testing.assert_allclose(view.features[0].flatten(1), phi, atol=1e-14)
        np.testing.assert_allclose(view.rest(view.features).detach(), model(scan).detach(), atol=1e-14)
        np.testing.assert_allclose(feature_gradient(view)[0].flatten(1), g, atol=1e-13)
        maps = {name: METHODS[name].record().maps(view)[0, 0].flatten() for name in (*OF_GRADIENT, "layer-cam")}
    np.testing.assert_allclose(maps["grad-cam"], (g.mean(1) @ phi).relu(), atol=1e-13)
    weights = torch.where(phi.sum(1) > 0, (phi * g).sum(1) / phi.sum(1).clamp(min=1e-300), 0)
    np.testing.assert_allclose(maps["xgrad-cam"], (weights @ phi).relu(), atol=1e-13)
    np.testing.assert_allclose(maps["hires-cam"], (phi * g).sum(0).relu(), atol=1e-13)
    np.testing.assert_allclose(maps["layer-cam"], (phi * g.relu()).sum(0), atol=1e-13)
    for one, other in combinations(OF_GRADIENT, 2):
        share = [maps[name] / maps[name].max() for name in (one, other)]
        assert (share[0] - share[1]).abs().max() > 0.01, (one, other)


@pytest.mark.parametrize("settings", VARIANTS)
def test_variants_are_the_formulas_of_the_source(settings: dict[str, int]) -> None:
    """Logits, attention and gradients of both classes, from loops over voxels."""
    model, scan = built(**settings).double(), volumes()[:1].double()
    biases = next(one.bias for one in model.stages[1] if hasattr(one, "bias")).detach()
    logits, raw = model(scan)[0].detach(), []
    for target in (0, 1):
        phi, a, _ = last_attention(model, scan, target=target)
        np.testing.assert_allclose(logits[target], row_of(model, target) @ phi @ a + biases[target], atol=1e-13)
        with explaining(model, scan, target, 1) as view:
            raw.append(RawAttention().maps(view))
            gradient = feature_gradient(view)[0].flatten(1)
            np.testing.assert_allclose(view.own_score[0], logits[target], atol=1e-14)
        np.testing.assert_allclose(raw[-1].flatten(), a, atol=1e-14)
        np.testing.assert_allclose(gradient, closed_gradient(model, scan, 0, target)[1], atol=1e-13)
    assert torch.equal(*raw) != ("class_queries" in settings)


def test_projections_that_are_the_identity_and_queries_that_are_alike_change_nothing() -> None:
    plain, scans = built().double(), volumes().double()
    linear = plain.stages[1][2]
    for settings in VARIANTS:
        model = built(**settings).double()
        state, head = dict(plain.state_dict()), {"weight": linear.weight, "bias": linear.bias}
        if "class_queries" in settings:
            state["_stages.0.query"] = torch.stack(2 * [state["_stages.0.query"]])
            head = {"weight": linear.weight[..., None, None, None], "bias": linear.bias}
        model.load_state_dict({**model.state_dict(), **{k: v for k, v in state.items() if "_stages.1" not in k}})
        next(one for one in model.stages[1] if hasattr(one, "bias")).load_state_dict(head)
        with torch.no_grad():
            for one in (*model.stages[0].keys, *model.stages[0].values):
                assert not torch.equal(one, torch.eye(len(one)).double())
                one.copy_(torch.eye(len(one)))
            np.testing.assert_allclose(model(scans), plain(scans), atol=1e-14)


def test_behind_a_query_of_zero_the_same_maps_are_one() -> None:
    model, scan = built().double(), volumes()[:1].double() + 0.1
    with torch.no_grad():
        for one in model.stages[0].projections:
            one.weight.zero_()
    with explaining(model, scan, 1, 1) as view:
        cams = [METHODS[name].record().maps(view) for name in OF_GRADIENT]
    for one in cams[1:]:
        np.testing.assert_allclose(one, cams[0], atol=1e-14)


def test_masked_volumes_are_seen_by_a_query_of_their_own() -> None:
    """Score-CAM runs the whole network on what it masks; Ablation-CAM keeps the query of the scan."""
    model, scan = built().double(), volumes()[:1].double()
    with explaining(model, scan, 1, 1) as view, torch.no_grad():
        found, drops = increase_of_score(view, Masking(), 4)[0], drop_of_score(view, 4)[0]
        ups = to_input_grid(view.features[0][:, None], view)
        whole, features = model(scan)[0, 1], view.features
    low, high = ups.amin((1, 2, 3, 4), keepdim=True), ups.amax((1, 2, 3, 4), keepdim=True)
    shown = scan * (ups - low) / (high - low).clamp(min=1e-300)
    with torch.no_grad():
        wanted = model(shown)[:, 1] - model(torch.zeros_like(scan))[0, 1]
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    _, _, query = last_attention(model, scan)
    linear = model.stages[1][2]
    brain = nn.functional.adaptive_max_pool3d(scan, features.shape[2:])[:, 0] > 0
    for channel in range(WIDTHS[-1]):
        ablated = features.clone()
        ablated[:, channel] = 0
        pooled = attended(ablated, attention(ablated, query[None], brain)).mean((2, 3, 4))[0]
        score = (linear.weight[1] @ pooled + linear.bias[1]).detach()
        np.testing.assert_allclose(drops[channel], (whole - score) / whole.abs(), atol=1e-12)


@pytest.mark.parametrize("method", ["grad-cam", "ablation-cam", "score-cam", "opti-cam", "smoothgrad", "raw-attention"])
def test_scans_of_a_batch_are_explained_alone(method: str) -> None:
    model, scans, entry = built(), volumes(), METHODS[method]
    small = {"iterations": 3} if method == "opti-cam" else {"samples": 2} if method == "smoothgrad" else {}
    both, *alone = (attribute(model, one, 1, entry.record(**small), 1) for one in (scans, scans[:1], scans[1:]))
    np.testing.assert_allclose(both.values, torch.cat([one.values for one in alone]), atol=1e-6)
    np.testing.assert_allclose(both.start_value, torch.cat([one.start_value for one in alone]), atol=1e-6)


def test_maps_in_training_are_of_the_same_features() -> None:
    """They equal the method's, and depend on the query as finite differences say."""
    model, scans = built().double(), volumes().double()
    labels = torch.tensor([1, 1])
    found = explained_batch(model, scans, labels, "grad-cam", -1)
    wanted = attribute(model, scans, 1, METHODS["grad-cam"].record(), 1, "evidence")
    np.testing.assert_allclose(found.maps.detach(), wanted.values[:, 0], atol=1e-13)
    query = model.stages[0].query
    (slope,) = torch.autograd.grad((found.maps**2).sum(), query)
    step, sides = 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            query[0] += sign * step
        sides.append((explained_batch(model, scans, labels, "grad-cam", -1, learning=False).maps ** 2).sum().item())
        with torch.no_grad():
            query[0] -= sign * step
    assert slope[0].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5)
    assert slope[0] != 0


def test_raw_attention_is_the_pooling_and_the_same_for_every_class() -> None:
    model, scans = built().double(), volumes().double()
    assert METHODS["raw-attention"].stage_of(model) == METHODS["grad-cam"].stage_of(model) == 1
    with explaining(model, scans[:1], 1, 1) as view:
        raw = RawAttention().maps(view)
        assert receptive_centres(view.before) == receptive_centres(
            [(str(number), stage) for number, stage in enumerate(model.stages[0].body)]
        )
    np.testing.assert_allclose(raw.flatten(), last_attention(model, scans[:1])[1], atol=1e-14)
    assert (raw[..., 0] == 0).all()  # its part of the input is all background
    first, second = (attribute(model, scans, target, RawAttention(), 1) for target in (0, 1))
    np.testing.assert_array_equal(first.values, second.values)
    assert first.values.shape == scans.shape


def test_the_backbone_of_a_stream_is_that_of_its_control() -> None:
    stream, gap = (backbone_of(built(head)).state_dict() for head in ("ca-stream", "linear"))
    assert list(stream) == list(gap)
    assert all(torch.equal(stream[name], value) for name, value in gap.items())


def test_an_empty_volume_is_pooled_as_a_whole() -> None:
    model = built()
    weights = model.stages[0].pooling_weights(torch.zeros(1, 1, *SHAPE)).detach()
    np.testing.assert_allclose(weights.sum(), 1, atol=1e-6)
    assert float(weights.min()) > 0


def test_methods_and_stages_that_are_not_there_are_refused() -> None:
    refused = family_of(ProbeConfig(body=BODY, head="ca-stream")).refused
    assert {"lrp", "deeplift", "inherent", "rollout", "cam"} <= set(refused)
    assert not {"raw-attention", "grad-cam", "guided-backpropagation", "expected-gradients"} & set(refused)
    for method in ("lrp", "rollout", "inherent", "cam"):
        entry, model = METHODS[method], built()
        with pytest.raises(UsageError):
            attribute(model, volumes(), 1, entry.record(), entry.stage_of(model))
    controls = Reference(volumes(), ("a", "b"))
    for relative in (ExpectedGradients(reference=controls), IntegratedGradientsFromMean(reference=controls)):
        with pytest.raises(UsageError, match="another query for each scan"):
            attribute(built(), volumes()[:1], 1, relative, 1, "evidence")
    with pytest.raises(UsageError, match="one at a time"), explaining(built(), volumes(), 1, 1):
        pass
    with pytest.raises(UsageError, match=r"first_attended = 3: stages 0 to 2 of the backbone"):
        built(first_attended=3)
    for name in ("projections", "class_queries"):
        model = ProbeConfig(body=BODY, head="linear", **{name: True})
        with pytest.raises(UsageError, match=rf'model\.{name} is of a CA-Stream: set model\.head = "ca-stream"'):
            Config(model=model)
    with pytest.raises(UsageError, match=r"model\.class_queries is not defined for a number \(cohort\.target\)"):
        Config(cohort=CohortConfig(target="age"), model=ProbeConfig(body=BODY, head="ca-stream", class_queries=True))
