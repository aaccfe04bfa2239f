"""The vision transformer: MONAI's own computation, positions on other grids, and attention that can be read."""

from unittest import mock

import monai.networks.nets as nets
import numpy as np
import pytest
import torch
from torch import nn

import heatlas
from heatlas.pipeline.models.contract import attention_layers, kept_attention
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.registry import FAMILIES, build_network
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError

SETTINGS = ViTConfig(patch=4, dim=12, depth=3, heads=2)
SHAPE = (8, 12, 17)


class Rearrange(nn.Module):
    """The two patterns that MONAI's attention takes from einops, which is not among the packages here."""

    def __init__(self, pattern, qkv=1, l=1):  # noqa: E741
        super().__init__()
        self.splits, self.parts, self.heads = pattern == "b h (qkv l d) -> qkv b l h d", qkv, l

    def forward(self, x):
        if self.splits:
            return x.unflatten(2, (self.parts, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x.permute(0, 2, 1, 3).flatten(2)


def of_monai(outputs=3):
    with mock.patch("monai.networks.blocks.selfattention.Rearrange", Rearrange):
        vit = nets.ViT(1, SHAPE, 4, 12, 48, 3, 2)
    return vit, nn.Linear(12, outputs)


def test_it_computes_what_monai_computes_from_the_same_seed():
    torch.manual_seed(1)
    ours = build_network(SETTINGS, SHAPE, 3).eval().double()
    torch.manual_seed(1)
    vit, head = of_monai()
    x = torch.rand(2, 1, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        expected = head.double()(vit.eval().double()(x)[0].mean(1))
        torch.testing.assert_close(ours(x), expected, rtol=1e-12, atol=1e-14)
        tokens = vit.patch_embedding(x)
        torch.testing.assert_close(ours.stages[0](x).flatten(2).transpose(1, 2), tokens, rtol=1e-12, atol=1e-14)


def test_all_weights_are_trained():
    model = build_network(SETTINGS, SHAPE, 2)
    model(torch.rand(2, 1, *SHAPE))[:, 1].sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_attention_is_kept_with_its_graph_and_the_network_stays_as_it_was():
    torch.manual_seed(0)
    model = build_network(SETTINGS, SHAPE, 2).eval()
    x = torch.rand(2, 1, *SHAPE)
    before = model(x)
    with kept_attention(model) as kept:
        logits = model(x)
    assert torch.equal(logits, before)
    assert [tuple(weights.shape) for weights in kept] == [(2, 2, 24, 24)] * 3
    for weights in kept:
        torch.testing.assert_close(weights.sum(3), torch.ones(2, 2, 24))
    gradients = torch.autograd.grad(logits[:, 1].sum(), kept)
    assert all(bool((gradient != 0).any()) for gradient in gradients)
    assert not any(layer._forward_pre_hooks for layer in attention_layers(model))


def test_what_fills_no_token_is_unseen_and_the_box_is_a_multiple_of_the_patch():
    family = FAMILIES["vit"]
    assert [family.seen_side(side, SETTINGS) for side in SHAPE] == [8, 12, 16]
    assert [family.covering_side(side, SETTINGS) for side in (3, 8, 9)] == [8, 8, 12]
    model = build_network(SETTINGS, SHAPE, 2).eval()
    x = torch.rand(1, 1, *SHAPE, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x)[0, 1], x)
    assert bool((gradient[..., :16] != 0).all())
    assert not bool(gradient[..., 16:].any())


def test_positions_are_interpolated_on_another_grid():
    model = build_network(SETTINGS, SHAPE, 2).eval()
    positions = model.stages[0][1]
    with torch.no_grad():
        positions.values.copy_(torch.arange(4.0).expand(1, 12, 2, 3, 4))  # grows along the last axis
        assert torch.equal(positions(torch.zeros(1, 12, 2, 3, 4)), positions.values)
        wide = positions(torch.zeros(1, 12, 2, 3, 8))[0, 0, 0, 0]
    assert wide.tolist() == [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("dim = 10\nheads = 3", "model.dim must be a multiple of model.heads"),
        ("heads = 0", "model.heads must be 1 or more"),
        ("patch = 1", "model.patch must lie between 2 and 64"),
        ("depth = 0", "model.depth must lie between 1 and 64"),
        ("dropout = 1.0", "model.dropout must lie in"),
    ],
)
def test_settings_that_make_no_network_are_refused(tmp_path, settings, said):
    file = tmp_path / "vit.toml"
    file.write_text(f'[model]\narchitecture = "vit"\n{settings}\n')
    with pytest.raises(UsageError, match=said):
        load_config(file=file)


def test_a_grid_of_less_than_two_tokens_per_axis_is_refused():
    with pytest.raises(BadInputError, match=r"8x7x9 voxels is too small for vit.*least 8"):
        build_network(SETTINGS, (8, 7, 9), 2)


def test_a_run_asks_for_no_method_that_the_family_refuses():
    config = load_config(overrides={"model": {"architecture": "vit"}})
    assert not set(config.attribution.methods) & set(FAMILIES["vit"].refused)
    assert set(Config().attribution.methods) & set(FAMILIES["vit"].refused)


class Whole(nn.Module):
    """MONAI's transformer with the mean of its tokens classified."""

    def __init__(self, vit, head):
        super().__init__()
        self.vit, self.head = vit, head

    def forward(self, x):
        return self.head(self.vit(x)[0].mean(1))


@pytest.mark.parametrize("method", ["lrp", "deeplift"])
def test_its_rules_give_the_map_of_monais_own_modules(method):
    torch.manual_seed(1)
    ours = build_network(SETTINGS, SHAPE, 3).eval()
    torch.manual_seed(1)
    theirs = Whole(*of_monai()).eval()
    volume, controls = torch.rand(SHAPE), [torch.rand(SHAPE) for _ in range(2)]
    options = {"target": 1, "reference": controls if method == "deeplift" else ()}
    found, expected = (heatlas.explain(network, volume, method, **options) for network in (ours, theirs))
    ours, theirs = found.map.get_fdata(), expected.map.get_fdata()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    if method == "deeplift":
        assert abs(found.missing) < 1e-5
