"""CA-Stream: closed forms of the attention, what is trained, and its maps."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.attribution.attention.rollout import RawAttention
from pipeline.attribution.methods import attribute
from pipeline.attribution.network_view import explaining
from pipeline.attribution.registry import METHODS
from pipeline.attribution.upsampling import receptive_centres
from pipeline.models.contract import StagedModel
from pipeline.models.families.probes.ca_stream import attended, attention, attention_scores
from pipeline.models.families.probes.network import backbone_of
from pipeline.models.families.registry import build_network, family_of
from pipeline.run.config.networks import ProbeConfig
from pipeline.run.errors import UsageError

SHAPE = (16, 14, 20)
BODY = json.dumps({"architecture": "founding", "channels": [3, 4, 5], "pools": [1, 2, 1], "hidden_units": 4})
WIDTHS = (3, 4, 5)


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


@pytest.mark.parametrize(("first", "count"), [(0, 3 + 3 * 4 + 4 * 5), (1, 4 + 4 * 5), (2, 5)])
def test_only_the_stream_and_the_head_learn(first: int, count: int) -> None:
    model = built(first_attended=first).train()
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


def test_maps_are_of_the_attended_features() -> None:
    """CAM adds up to the logit without its constant, and raw attention is the pooling of every class."""
    model, scans = built().double(), volumes().double()
    linear, stage = model.stages[1][2], METHODS["cam"].stage_of(model)
    assert stage == METHODS["raw-attention"].stage_of(model) == 1
    with explaining(model, scans, 1, stage) as view:
        cam, raw = METHODS["cam"].record().maps(view), RawAttention().maps(view)
        np.testing.assert_allclose(cam.mean((1, 2, 3, 4)), view.own_score - linear.bias[1].item(), atol=1e-12)
        wanted = torch.einsum("k,bkxyz->bxyz", linear.weight[1].detach(), model.stages[0].body(scans))
        np.testing.assert_allclose(cam[:, 0] / raw[:, 0].numel() * 2, (wanted * raw[:, 0]).detach(), atol=1e-12)
        assert (receptive_centres(view.before)) == receptive_centres(
            [(str(number), stage) for number, stage in enumerate(model.stages[0].body)]
        )
    assert (raw[..., 0] == 0).all()  # its part of the input is all background
    np.testing.assert_allclose(raw.sum((1, 2, 3, 4)), 1, atol=1e-12)
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
    assert {"lrp", "deeplift", "inherent", "rollout"} <= set(refused)
    assert not {"raw-attention", "cam", "guided-backpropagation", "expected-gradients"} & set(refused)
    for method in ("lrp", "rollout", "inherent"):
        entry, model = METHODS[method], built()
        with pytest.raises(UsageError):
            attribute(model, volumes(), 1, entry.record(), entry.stage_of(model))
    with pytest.raises(UsageError, match=r"first_attended = 3: stages 0 to 2 of the backbone"):
        built(first_attended=3)
