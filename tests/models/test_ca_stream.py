"""CA-Stream: closed forms of the attention, what is trained, and its maps."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.models.ca_stream import CAStream, attended, attention, attention_scores
from pipeline.models.contract import StagedModel
from pipeline.models.families.family import Architecture
from pipeline.run.config.networks import ResNetConfig
from pipeline.run.errors import UsageError

SHAPE = (8, 10, 6)
WIDTHS = (3, 4, 5)


def backbone(head: nn.Module | None = None) -> StagedModel:
    torch.manual_seed(0)
    stages = [
        nn.Sequential(nn.Conv3d(before, after, 3, padding=1, stride=stride), nn.BatchNorm3d(after), nn.ReLU())
        for before, after, stride in ((1, 3, 1), (3, 4, 2), (4, 5, 1))
    ]
    head = head or nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(5, 2))
    model = StagedModel([*stages, head])
    model.architecture = Architecture(ResNetConfig(), SHAPE)
    return model


def volumes() -> torch.Tensor:
    torch.manual_seed(1)
    found = torch.rand(2, 1, *SHAPE)
    found[..., :3] = 0
    return found


def test_a_query_of_zero_is_global_average_pooling() -> None:
    features = torch.randn(2, 5, 3, 4, 2)
    np.testing.assert_allclose(attended(features, torch.zeros(2, 5)), features.mean((2, 3, 4)), atol=1e-6)
    model, gap = CAStream(backbone(), within_brain=False), backbone().eval()
    with torch.no_grad():
        for one in model.projections[:-1]:
            one.weight.zero_()
        model.projections[-1].weight.copy_(torch.eye(5))
        np.testing.assert_allclose(model(volumes()), gap(volumes()), atol=1e-6)


def test_attention_is_the_softmax_of_a_class_agnostic_cam() -> None:
    features, query = torch.randn(2, 5, 3, 4, 2), torch.randn(2, 5)
    found = attention(features, query)
    for one in range(2):
        cam = sum(query[one, k] * features[one, k] for k in range(5)) / math.sqrt(5)
        np.testing.assert_allclose(attention_scores(features, query)[one], cam, atol=1e-5)
        np.testing.assert_allclose(found[one], (cam.exp() / cam.exp().sum()), atol=1e-6)
    order = torch.randperm(24)
    moved = features.flatten(2)[:, :, order].view_as(features)
    np.testing.assert_allclose(attended(moved, query), attended(features, query), atol=1e-6)
    flat = features.flatten(2)
    pooled = attended(features, query)
    assert ((pooled >= flat.amin(2)) & (pooled <= flat.amax(2))).all()


def test_the_gradient_of_a_logit_is_the_closed_form() -> None:
    """dy/dphi_i = a_i [w + (s_i - sum_j a_j s_j) q / sqrt(d)], with w = W' w_c and s_i = w' phi_i."""
    features = torch.randn(1, 5, 3, 2, 2, dtype=torch.float32, requires_grad=True)
    query, weight = torch.randn(1, 5), torch.randn(5)
    (found,) = torch.autograd.grad(attended(features, query)[0] @ weight, features)
    phi, a = features.detach()[0].flatten(1), attention(features.detach(), query)[0].flatten()
    s = weight @ phi
    wanted = a * (weight[:, None] + (s - (a * s).sum()) * query[0][:, None] / math.sqrt(5))
    np.testing.assert_allclose(found[0].flatten(1), wanted, atol=1e-5)


@pytest.mark.parametrize(("first", "count"), [(0, 3 + 3 * 4 + 4 * 5 + 5 * 5), (1, 4 + 4 * 5 + 5 * 5), (2, 5 + 5 * 5)])
def test_only_the_stream_learns(first: int, count: int) -> None:
    model = CAStream(backbone(), first).train()
    before = copy.deepcopy(model.state_dict())
    learning = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert sum(weight.numel() for weight in learning.values()) == count
    optimiser = torch.optim.Adam(model.parameters(), 0.1, weight_decay=0.1)
    nn.functional.cross_entropy(model(volumes()), torch.tensor([0, 1])).backward()
    assert all(weight.grad.abs().max() > 0 for weight in learning.values())
    optimiser.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) != (name in learning), name


def test_the_background_is_not_attended_to_and_stages_give_the_same_logits() -> None:
    model, scans = CAStream(backbone()).eval(), volumes()
    found = model.attention(scans)
    assert (found[..., 0] == 0).all()  # its 2 x 2 x 2 voxels of the input are all background
    np.testing.assert_allclose(found.sum((1, 2, 3)).detach(), 1, atol=1e-6)
    for one in range(2):
        staged = model.staged(scans[one : one + 1])
        np.testing.assert_allclose(
            staged(scans[one : one + 1]).detach(), model(scans)[one : one + 1].detach(), atol=1e-6
        )


def test_other_heads_and_stages_are_refused() -> None:
    head = nn.Sequential(nn.Flatten(), nn.Linear(300, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(UsageError, match="ends with Flatten, Linear, ReLU, Linear; choose a ResNet"):
        CAStream(backbone(head))
    with pytest.raises(UsageError, match="first = 3, and this network has stages 0 to 2"):
        CAStream(backbone(), first=3)
