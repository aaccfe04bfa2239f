"""Maps of vision transformers against values by hand, loops and brute force; float64 on a grid of 2 x 3 x 2 tokens."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from attention_loops import GRID, SETTINGS, SHAPE, TOKENS, cgw1, network, run, volume
from torch import nn

from heatlas.pipeline.attribution.attention import (
    Cgw1,
    RawAttention,
    Rollout,
    ViTCX,
    attention_after,
    by_sum,
    forward,
    merged_masks,
    rollout_matrix,
)
from heatlas.pipeline.attribution.entry import token_stage
from heatlas.pipeline.attribution.methods import attribute, require_defined
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.contract import attention_layers
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.bcos.records import BcosViTConfig
from heatlas.studies.probes.network import build
from heatlas.studies.probes.records import ProbeConfig

EXACT = {"rtol": 1e-10, "atol": 1e-13}
LAST = SETTINGS.depth + 2
"""The stage after the last norm."""


BODY = json.dumps({"architecture": "vit", **SETTINGS.own})
TOKENS_OF_PROBE = "stages.0.0.2"


def probe(body, head="linear", **settings):
    """A probe on the stages of a network, which share their weights."""
    return build(body, SHAPE, ProbeConfig(body=BODY, head=head, **settings), False, 3).eval().double()


def tokens_of(model, x):
    return model.stages[0](x)[0].flatten(1).T.detach().numpy()


def on_tokens(method, model, x, target=1, stage=1):
    return attribute(model, x, target, method, stage, at_input_grid=False).values


def test_raw_attention_is_the_softmax_of_queries_and_keys():
    model, x = network(), volume()
    _, passes, _ = run(model, tokens_of(model, x))
    expected = torch.from_numpy(passes[-1]["attention"].mean((0, 1))).view(1, 1, *GRID)
    torch.testing.assert_close(on_tokens(RawAttention(), model, x), expected, **EXACT)
    assert float(expected.max() / expected.min()) > 1.5  # far from uniform


def test_rollout_is_the_product_of_the_layers_and_its_rows_sum_to_1():
    model, x = network(), volume(batch=2)
    with explaining(model, x, 0, 1) as view:
        matrix = rollout_matrix(attention_after(view, "rollout"))
    torch.testing.assert_close(matrix.sum(2), torch.ones(2, TOKENS, dtype=torch.float64), **EXACT)
    expected = np.eye(TOKENS)
    for made in run(model, tokens_of(model, x))[1]:
        layer = 0.5 * made["attention"].mean(0) + 0.5 * np.eye(TOKENS)
        expected = np.array(
            [[sum(layer[i, m] * expected[m, j] for m in range(TOKENS)) for j in range(TOKENS)] for i in range(TOKENS)]
        )
    torch.testing.assert_close(matrix[0], torch.from_numpy(expected), **EXACT)
    torch.testing.assert_close(on_tokens(Rollout(), model, x)[0].flatten(), torch.from_numpy(expected.mean(0)), **EXACT)


def test_a_later_stage_follows_only_the_attention_behind_it():
    model, x = network(), volume()
    layer = torch.from_numpy(run(model, tokens_of(model, x))[1][1]["attention"].mean(0))
    expected = (layer / 2 + torch.eye(TOKENS) / 2).mean(0)
    torch.testing.assert_close(on_tokens(Rollout(), model, x, stage=2).flatten(), expected, **EXACT)


def test_cgw1_is_the_published_propagation_value_by_value():
    model, x = network(), volume(batch=2)
    maps = {target: on_tokens(Cgw1(), model, x, target).flatten(1).numpy() for target in (0, 1)}
    for target, of_class in maps.items():
        np.testing.assert_allclose(of_class[0], cgw1(model, tokens_of(model, x), target), rtol=1e-5, atol=1e-11)
        assert of_class[0].max() > 1e-4


@pytest.mark.parametrize(
    ("method", "depends"), [(RawAttention(), False), (Rollout(), False), (Cgw1(), True), (ViTCX(noise=0), True)]
)
def test_the_map_depends_on_the_class_where_it_should(method, depends):
    model, x = network(), volume()
    stage = LAST if isinstance(method, ViTCX) else 1
    first, second = (on_tokens(method, model, x, target, stage) for target in (0, 1))
    assert torch.equal(first, second) != depends
    if depends:
        assert float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.999


def test_relevance_is_conserved_down_to_the_tokens():
    model, x = network(settings=replace(SETTINGS, dim=24)), volume()  # wide: no unit without a positive contribution
    tokens = model.stages[0](x).flatten(2).transpose(1, 2).detach()
    answer, _, backward = forward(model.stages[1].block, tokens)
    torch.testing.assert_close(answer, model.stages[1].block(tokens), **EXACT)
    relevance = torch.rand(answer.shape, dtype=torch.float64)
    with torch.no_grad():
        of_weights, below = backward(relevance)
    torch.testing.assert_close(below.sum(), relevance.sum(), rtol=1e-8, atol=0)
    assert of_weights.shape == (1, 2, TOKENS, TOKENS)


def test_a_sum_shares_relevance_in_proportion_to_both_parts():
    a, b = torch.tensor([[[3.0, 2.0]]]), torch.tensor([[[1.0, -1.0]]])
    first, second = by_sum(a, b, torch.tensor([[[4.0, 1.0]]]))  # shares: [3, 2] and [1, -1], of sizes 5 and 0
    torch.testing.assert_close(first, torch.tensor([[[3.0, 2.0]]]))
    assert second.abs().sum() == 0


def permuted(x, order):
    """The volume with its patches in another order."""
    patches = x.unflatten(4, (GRID[2], 2)).unflatten(3, (GRID[1], 2)).unflatten(2, (GRID[0], 2))
    rows = patches.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(1, 3)[:, order]
    again = rows.unflatten(1, GRID).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return again.flatten(6, 7).flatten(4, 5).flatten(2, 3)


@pytest.mark.parametrize("method", [RawAttention(), Rollout(), Cgw1()], ids=lambda method: method.name)
def test_without_positions_maps_move_with_the_tokens_and_equal_tokens_are_equal(method):
    model, x = network(positions=False), volume()
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1))
    whole = on_tokens(method, model, x).flatten()
    moved = on_tokens(method, model, permuted(x, order)).flatten()
    torch.testing.assert_close(moved, whole[order], rtol=1e-8, atol=1e-13)
    order[7] = order[2]
    twins = on_tokens(method, model, permuted(x, order)).flatten()
    torch.testing.assert_close(twins[7], twins[2], rtol=1e-8, atol=1e-13)
    assert float((twins - twins.mean()).abs().max()) > 1e-6


def merged_by_force(features, threshold):
    """Masks by complete linkage in loops: join the two closest groups until none is within the threshold."""
    masks = np.stack([(f - f.min()) / (f.max() - f.min()) for f in features])
    groups = [[number] for number in range(len(masks))]

    def apart(a, b):
        sizes = np.linalg.norm(masks, axis=1)
        return max(1 - masks[i] @ masks[j] / sizes[i] / sizes[j] for i in a for j in b)

    while len(groups) > 1:
        pairs = [(apart(a, b), i, j) for i, a in enumerate(groups) for j, b in enumerate(groups) if i < j]
        least, i, j = min(pairs)
        if least > threshold:
            break
        groups[i] += groups.pop(j)
    sums = [sum(masks[number] for number in group) for group in groups]
    return sorted([tuple((s - s.min()) / (s.max() - s.min())) for s in sums])


@pytest.mark.parametrize(("threshold", "count"), [(1e-6, 6), (0.2, 3), (1.0, 1)])
def test_masks_are_joined_as_by_complete_linkage(threshold, count):
    features = torch.randn(7, *GRID, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    features[3] = 5 * features[1] - 2  # the same mask
    found = merged_masks(features, threshold)
    expected = merged_by_force(features.flatten(1).numpy(), threshold)
    np.testing.assert_allclose(sorted(map(tuple, found.flatten(1).numpy())), expected, atol=1e-12)
    assert len(expected) == count


def test_vit_cx_is_the_mean_worth_of_the_masks_that_show_a_place():
    model, x = network(), volume(batch=2)
    noise, seed = 0.1, 4
    found = on_tokens(ViTCX(noise=noise, seed=seed, batch=3, threshold=0.05), model, x, 1, LAST)
    with torch.no_grad():
        features = nn.Sequential(*model.stages[:LAST])(x)
        for volume_, mine in zip(x, found, strict=True):
            masks = merged_masks(features[0], 0.05)
            generator = torch.Generator().manual_seed(seed)
            top, bottom = torch.zeros(GRID, dtype=torch.float64), torch.zeros(GRID, dtype=torch.float64)
            for mask in masks:
                keep = spread(mask)
                e = noise * torch.randn(1, *SHAPE, generator=generator, dtype=torch.float64)
                scores = [
                    torch.softmax(model(v[None]), 1)[0, 1]
                    for v in (keep * volume_ + (1 - keep) * e, volume_ + (1 - keep) * e, volume_)
                ]
                top += (scores[0] - scores[1] + scores[2]) * mask
                bottom += mask
            torch.testing.assert_close(mine[0], top / bottom, **EXACT)
            features = features[1:]
    assert len(masks) > 1


def spread(mask):
    """Trilinear interpolation between the centres of patches of two voxels, constant beyond them."""
    for axis in range(3):
        places = (torch.arange(SHAPE[axis]) - 0.5) / 2
        places = places.clamp(0, GRID[axis] - 1)
        low = places.floor().long().clamp(max=max(GRID[axis] - 2, 0))
        weight = (places - low).double().view(*(-1 if a == axis else 1 for a in range(3)))
        mask = mask.index_select(axis, low) * (1 - weight) + mask.index_select(axis, low + 1) * weight
    return mask


def test_maps_are_brought_to_voxels_between_the_centres_of_patches():
    model, x = network(), volume()
    coarse = on_tokens(Rollout(), model, x)
    torch.testing.assert_close(attribute(model, x, 1, Rollout(), 1).values[0, 0], spread(coarse[0, 0]), **EXACT)


def test_without_noise_or_effect_vit_cx_is_the_probability_everywhere():
    model, x = network(), volume()
    with torch.no_grad():
        model.stages[-1][2].weight.zero_()
    share = torch.softmax(model.stages[-1][2].bias, 0)[1].item()
    for noise in (0.0, 0.5):
        torch.testing.assert_close(on_tokens(ViTCX(noise=noise), model, x, 1, LAST),
                                   torch.full((1, 1, *GRID), share, dtype=torch.float64), **EXACT)  # fmt: skip


def test_a_bcos_transformer_is_read_the_same_way_and_refuses_the_rules_of_another():
    torch.manual_seed(0)
    model = build_network(BcosViTConfig("bcos-vit", patch=2, dim=6, depth=2, heads=2), SHAPE, 2).eval().double()
    x = volume()
    assert token_stage(model) == 2  # after the encoding and the tokens
    block = model.stages[3][0].block  # norm, attention, projection
    with torch.no_grad():
        normed = block[0](nn.Sequential(*model.stages[:3])(x)).flatten(2)[0]
        q, k, _ = (block[1].weight @ normed).view(3, 2, 3, TOKENS).unbind(0)
        by_hand = torch.softmax(torch.einsum("hdi,hdj->hij", q, k) / 3**0.5, 2).mean((0, 1))
    torch.testing.assert_close(on_tokens(RawAttention(), model, x, stage=2).flatten(), by_hand, **EXACT)
    with pytest.raises(UsageError, match=r"cgw1 has rules for MONAI's transformer blocks.*Use rollout"):
        require_defined(model, SHAPE, Cgw1(), 2, "logit")


@pytest.mark.parametrize("name", ["raw-attention", "rollout", "cgw1", "vit-cx"])
def test_networks_without_attention_and_the_input_are_refused(name):
    method = METHODS[name].record()
    conv = nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2)).double()
    for stage in (0, 1):
        with pytest.raises(UsageError, match=f"{name} .* (grad-cam|score-cam)"):
            require_defined(conv.eval(), SHAPE, method, stage, "logit")
    model, x = network(), volume()
    if name != "cgw1":  # whose rules begin with the blocks
        with pytest.raises(UsageError, match=f"{name}.*(tokens|input)"):
            attribute(model, x, 1, method, 0)
    after = {"vit-cx": 0}.get(name, LAST)
    with pytest.raises(UsageError):
        attribute(model, x, 1, method, after)


@pytest.mark.parametrize("name", ["raw-attention", "rollout", "cgw1", "vit-cx"])
def test_a_probe_with_the_head_of_its_backbone_has_the_maps_of_the_whole_transformer(name):
    model, x = network(), volume(batch=2)
    own = probe(model)
    changed = attribute(own, x, 1, METHODS[name].record(), METHODS[name].stage_of(own))
    own.stages[-1].load_state_dict(model.stages[-1].state_dict())
    wanted, found = (attribute(one, x, 1, METHODS[name].record(), METHODS[name].stage_of(one)) for one in (model, own))
    assert torch.equal(found.values, wanted.values)
    assert torch.equal(found.start_value, wanted.start_value)
    assert torch.equal(changed.values, found.values) == (name in ("raw-attention", "rollout"))
    assert not any(weight.requires_grad for weight in own.stages[0].parameters())


def test_attention_of_a_probe_is_read_at_the_tokens_inside_of_its_backbone():
    model, x = network(), volume()
    own = probe(model)
    stages = {"raw-attention": TOKENS_OF_PROBE, "rollout": TOKENS_OF_PROBE, "cgw1": TOKENS_OF_PROBE, "vit-cx": 1,
              "grad-cam": 1, "gradient": 0}  # fmt: skip
    assert {name: METHODS[name].stage_of(own) for name in stages} == stages
    deep = probe(model, "mlp-2", hidden_channels=3)
    assert METHODS["rollout"].stage_of(deep) == TOKENS_OF_PROBE
    assert torch.equal(*(on_tokens(Rollout(), one, x, stage=TOKENS_OF_PROBE) for one in (own, deep)))
    for head in ("mlp-2", "bcos-1", "coda"):
        assert {"cgw1", "rollout"} & set(family_of(ProbeConfig(body=BODY, head=head)).refused) == {"cgw1"}
    with pytest.raises(UsageError, match=r"cgw1 has rules .*one linear layer.*Use rollout"):
        require_defined(deep, SHAPE, Cgw1(), TOKENS_OF_PROBE, "logit")
    stream = probe(model, "ca-stream")
    assert METHODS["raw-attention"].stage_of(stream) == 1  # that of its pooling
    assert {"cgw1", "rollout"} <= set(family_of(ProbeConfig(body=BODY, head="ca-stream")).refused)


def test_cgw1_explains_the_logit_only():
    with pytest.raises(UsageError, match="start = 'logit' only, not 'probability'"):
        require_defined(network(), SHAPE, Cgw1(), 1, "probability")


@pytest.mark.parametrize("given", [{"threshold": -0.1}, {"noise": -1.0}, {"batch": 0}, {"seed": -1}, {"score": "loss"}])
def test_settings_of_vit_cx_are_checked(given):
    with pytest.raises(UsageError, match=f"vit-cx: .*{next(iter(given))}"):
        ViTCX(**given)


def test_the_network_is_left_as_it_was():
    model, x = network(), volume()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for method, stage in ((RawAttention(), 1), (Rollout(), 1), (Cgw1(), 1), (ViTCX(), LAST)):
        on_tokens(method, model, x, stage=stage)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(layer._forward_pre_hooks for layer in attention_layers(model))


def test_each_method_is_asked_at_its_stage_and_the_head_is_one_that_cam_explains():
    model, x = network(), volume()
    stages = {"raw-attention": 1, "rollout": 1, "cgw1": 1, "vit-cx": LAST, "grad-cam": LAST, "cam": LAST, "gradient": 0}
    assert {name: METHODS[name].stage_of(model) for name in stages} == stages
    cam = attribute(model, x, 1, METHODS["cam"].record(), LAST, at_input_grid=False).values
    torch.testing.assert_close(cam.mean() + model.stages[-1][2].bias[1], model(x)[0, 1], **EXACT)
