"""A small vision transformer, and CGW1 of it written out value by value in NumPy; float64."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import erf
from torch import nn

from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.registry import build_network

SETTINGS = ViTConfig(patch=2, dim=4, depth=2, heads=2)
SHAPE = (2 * 2, 3 * 2, 2 * 2)
GRID = (2, 3, 2)
TOKENS = 12


def network(seed=3, positions=True, settings=SETTINGS):
    """Weights larger than at the start of training, so that attention is far from uniform."""
    torch.manual_seed(seed)
    model = build_network(settings, SHAPE, 3).eval().double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv3d):
                module.weight.mul_(2.5)
            if isinstance(module, nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
        model.stages[0][1].values.normal_(std=0.5).mul_(positions)
    return model


def volume(seed=5, batch=1):
    return torch.rand(batch, 1, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _norm(x, layer):
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + layer.eps) * _np(layer.weight) + _np(layer.bias)


def _np(weight):
    return weight.detach().numpy()


def run(model, x, given=None):
    """All values of a pass from tokens (N, C); `given` replaces the attention of single layers."""
    passes = []
    for number, stage in enumerate(model.stages[1:-2]):
        block = stage.block
        n, c = x.shape
        heads = block.attn.heads
        d = c // heads
        v = {"x": x, "normed": _norm(x, block.norm1)}
        qkv = v["normed"] @ _np(block.attn.qkv.weight).T
        v["q"], v["k"], v["v"] = (qkv[:, p * c : (p + 1) * c].reshape(n, heads, d) for p in range(3))
        likeness = np.exp(np.einsum("ihe,jhe->hij", v["q"], v["k"]) / np.sqrt(d))
        attention = likeness / likeness.sum(2, keepdims=True)
        v["attention"] = attention if given is None or number not in given else given[number]
        v["read"] = np.stack([v["attention"][h] @ v["v"][:, h] for h in range(heads)], 1).reshape(n, c)
        v["attended"] = v["read"] @ _np(block.attn.out_proj.weight).T + _np(block.attn.out_proj.bias)
        v["middle"] = x + v["attended"]
        v["normed_middle"] = _norm(v["middle"], block.norm2)
        inner = v["normed_middle"] @ _np(block.mlp.linear1.weight).T + _np(block.mlp.linear1.bias)
        v["hidden"] = inner * (1 + erf(inner / np.sqrt(2))) / 2
        v["answer"] = v["hidden"] @ _np(block.mlp.linear2.weight).T + _np(block.mlp.linear2.bias)
        x = v["middle"] + v["answer"]
        passes.append(v)
    last = _norm(x, model.stages[-2].block)
    head = model.stages[-1][2]
    return last.mean(0) @ _np(head.weight).T + _np(head.bias), passes, last


def _linear(x, weight, relevance):
    found = np.zeros_like(x)
    for n in range(len(x)):
        for i in range(len(weight)):
            gains = [max(x[n, j] * weight[i, j], 0.0) for j in range(len(x[n]))]
            for j, gain in enumerate(gains):
                found[n, j] += gain / sum(gains) * relevance[n, i] if sum(gains) else 0.0
    return found


def _sum(a, b, relevance):
    first, second = a / (a + b) * relevance, b / (a + b) * relevance
    size = abs(first.sum()) + abs(second.sum())
    return tuple(part * (abs(part.sum()) / size * relevance.sum() / part.sum()) for part in (first, second))


def cgw1(model, tokens, target, step=1e-6):
    """The map (N,) of one volume; gradients by central differences."""
    _, passes, last = run(model, tokens)
    row = _np(model.stages[-1][2].weight)[target]
    relevance = np.maximum(last * row, 0)
    relevance /= relevance.sum()
    n, c = tokens.shape
    matrices = []
    for number in reversed(range(len(passes))):
        v, block = passes[number], model.stages[1 + number].block
        heads, d = block.attn.heads, c // block.attn.heads
        around, through = _sum(v["middle"], v["answer"], relevance)
        through = _linear(v["hidden"], _np(block.mlp.linear2.weight), through)
        through = _linear(v["normed_middle"], _np(block.mlp.linear1.weight), through)
        around, through = _sum(v["x"], v["attended"], around + through)
        of_read = _linear(v["read"], _np(block.attn.out_proj.weight), through).reshape(n, heads, d)
        of_weights, of_qkv = np.zeros((heads, n, n)), np.zeros((n, 3, heads, d))
        for h in range(heads):
            for i in range(n):
                for j in range(n):
                    for e in range(d):
                        part = v["attention"][h, i, j] * v["v"][j, h, e]
                        total = sum(v["attention"][h, i, m] * v["v"][m, h, e] for m in range(n))
                        of_weights[h, i, j] += part / total * of_read[i, h, e] / 2
                        of_qkv[j, 2, h, e] += part / total * of_read[i, h, e] / 2
            for i in range(n):
                for j in range(n):
                    total = v["q"][i, h] @ v["k"][j, h]
                    for e in range(d):
                        share = v["q"][i, h, e] * v["k"][j, h, e] / total * of_weights[h, i, j] / 2
                        of_qkv[i, 0, h, e] += share
                        of_qkv[j, 1, h, e] += share
        relevance = around + _linear(v["normed"], _np(block.attn.qkv.weight), of_qkv.reshape(n, 3 * c))
        effect = np.zeros((n, n))
        for h in range(heads):
            for i in range(n):
                for j in range(n):
                    scores = []
                    for sign in (1, -1):
                        changed = v["attention"].copy()
                        changed[h, i, j] += sign * step
                        scores.append(run(model, tokens, {number: changed})[0][target])
                    gradient = (scores[0] - scores[1]) / (2 * step)
                    effect[i, j] += max(gradient * of_weights[h, i, j], 0) / heads
        matrices.append(np.eye(n) + effect)
    product = np.eye(n)
    for matrix in reversed(matrices):
        product = matrix @ product
    return (product - np.eye(n)).mean(0)
