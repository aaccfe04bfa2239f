"""Transformer layers of PyTorch, which run as one operation, as the operations that they consist of.

Methods that go through a network operation by operation (LRP) find products of matrices and softmaxes there. Layers
keep their names and their weights, which are not copied.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class OpenAttention(nn.Module):
    """``nn.MultiheadAttention`` of tokens with themselves, (B, N, C) or (N, B, C), in evaluation mode without masks."""

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        self.heads, self.batch_first, self.scale = layer.num_heads, layer.batch_first, layer.head_dim**-0.5
        self.qkv = nn.Linear(layer.embed_dim, 3 * layer.embed_dim, layer.in_proj_bias is not None, device="meta")
        self.qkv.weight, self.out_proj = layer.in_proj_weight, layer.out_proj
        if layer.in_proj_bias is not None:
            self.qkv.bias = layer.in_proj_bias

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        masked = any(options.get(name) is not None for name in ("key_padding_mask", "attn_mask"))
        if masked or query is not key or key is not value:
            raise NotImplementedError("masks, and attention to others")
        x = query if self.batch_first else query.transpose(0, 1)
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = self._by_head(parts[0]), self._by_head(parts[1]), self._by_head(parts[2])
        weights = torch.softmax(torch.matmul(q * self.scale, k.transpose(2, 3)), 3)
        answer = self.out_proj(torch.matmul(weights, v).transpose(1, 2).flatten(2))
        shown = weights.mean(1) if options.get("need_weights", True) else None
        return answer if self.batch_first else answer.transpose(0, 1), shown

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)


class OpenEncoderLayer(nn.Module):
    """``nn.TransformerEncoderLayer`` in evaluation mode, without masks."""

    self_attn: nn.Module
    linear1: nn.Module
    linear2: nn.Module
    norm1: nn.Module
    norm2: nn.Module
    dropout: nn.Module
    dropout1: nn.Module
    dropout2: nn.Module

    def __init__(self, layer: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.norm_first, self.activation = layer.norm_first, layer.activation
        for name, child in layer.named_children():
            self.add_module(name, OpenAttention(child) if isinstance(child, nn.MultiheadAttention) else child)

    def forward(self, src: Tensor) -> Tensor:
        x = src
        if self.norm_first:
            x = x + self._attended(self.norm1(x))
            return x + self._transformed(self.norm2(x))
        x = self.norm1(x + self._attended(x))
        answer: Tensor = self.norm2(x + self._transformed(x))
        return answer

    def _attended(self, x: Tensor) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, need_weights=False)[0])  # type: ignore[no-any-return]

    def _transformed(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))  # type: ignore[no-any-return]


class OpenEncoder(nn.Module):
    """``nn.TransformerEncoder`` without masks."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        super().__init__()
        self.layers, self.norm = encoder.layers, encoder.norm

    def forward(self, src: Tensor) -> Tensor:
        for layer in self.layers:
            src = layer(src)
        return src if self.norm is None else self.norm(src)


def with_open_layers(network: nn.Module) -> nn.Module | None:
    """A network in which such layers are opened, with the very weights of the other; None if there are none."""
    opened = copy.deepcopy(network, {id(one): one for one in (*network.parameters(), *network.buffers())})
    found = False
    for module in list(opened.modules()):
        for name, child in list(module.named_children()):
            new = _opened(child)
            if new is not None:
                setattr(module, name, new)
                found = True
    return opened.eval() if found else None


def _opened(layer: nn.Module) -> nn.Module | None:
    if type(layer) is nn.TransformerEncoder:
        open_encoder = OpenEncoder(layer)
        open_encoder.layers = nn.ModuleList(_opened(one) or one for one in layer.layers)
        return open_encoder
    if type(layer) is nn.TransformerEncoderLayer and _plain(layer.self_attn):
        return OpenEncoderLayer(layer)
    return OpenAttention(layer) if type(layer) is nn.MultiheadAttention and _plain(layer) else None


def _plain(layer: nn.MultiheadAttention) -> bool:
    return layer.in_proj_weight is not None and layer.bias_k is None and not layer.add_zero_attn
