"""What lies inside the layers of somebody else's network.

Transformer layers of PyTorch, which run as one operation, are opened into the operations that they consist of, so that
methods that go through a network operation by operation (LRP) find products of matrices and softmaxes there. Layers
keep their names and their weights, which are not copied.

A pass is watched for what it does beside computing: it draws at random, or stops the gradient, and in which layer.
Comparing answers finds neither reliably: with a layer that is dropped one time in ten most answers are the same.
"""

from __future__ import annotations

import copy
import pickle
import random
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


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
    opened = copy.deepcopy(network, {id(value): value for value in (*network.parameters(), *network.buffers())})
    changed = False
    for module in list(opened.modules()):
        for name, child in list(module.named_children()):
            new = _opened(child)
            if new is not None:
                setattr(module, name, new)
                changed = True
    return opened.eval() if changed else None


def _opened(layer: nn.Module) -> nn.Module | None:
    if type(layer) is nn.TransformerEncoder:
        open_encoder = OpenEncoder(layer)
        open_encoder.layers = nn.ModuleList(_opened(inner) or inner for inner in layer.layers)
        return open_encoder
    if type(layer) is nn.TransformerEncoderLayer and _plain(layer.self_attn):
        return OpenEncoderLayer(layer)
    return OpenAttention(layer) if type(layer) is nn.MultiheadAttention and _plain(layer) else None


def _plain(layer: nn.MultiheadAttention) -> bool:
    return layer.in_proj_weight is not None and layer.bias_k is None and not layer.add_zero_attn


_DETACHING = (Tensor.detach, Tensor.detach_, torch.detach, torch.detach_, Tensor.data.__get__)  # type: ignore[attr-defined]
_IN_STAGES = re.compile(r"^(_stages\.\d+\.?)?(network\.?)*")
"""What a network that was taken apart puts before the names of its layers."""
_HELD = (random.Random, np.random.Generator, np.random.RandomState)
"""Sources of numbers that a module may hold."""


class _Layers:
    """Which layer runs, by hooks that see all of them, and whether it draws from generators outside of PyTorch."""

    def __init__(self, network: nn.Module) -> None:
        self.seen = ""
        self._names = {id(module): name for name, module in network.named_modules()}
        self._running: list[tuple[nn.Module, bytes]] = [(network, _state(network))]

    def enter(self, module: nn.Module, _: Any) -> None:
        self._running.append((module, _state(module)))

    def leave(self, module: nn.Module, *_: Any) -> None:
        if len(self._running) > 1:
            if self._running[-1][1] != _state(module):
                self.note("numpy or random")
            self._running.pop()

    def note(self, called: str) -> None:
        """Keep the layer that runs, if it is the first to be noted."""
        layer = self._running[-1][0]
        name = _IN_STAGES.sub("", self._names.get(id(layer), "")).replace("/", ".")
        kind = type(layer).__name__
        self.seen = self.seen or (f"layer {name} ({kind}, {called})" if name else f"{kind} ({called})")


@contextmanager
def _layers_of(network: nn.Module) -> Iterator[_Layers]:
    layers = _Layers(network)
    hooks = [
        register_module_forward_pre_hook(layers.enter),
        register_module_forward_hook(layers.leave, always_call=True),
    ]
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def draws(network: nn.Module) -> Iterator[_Layers]:
    """The first layer that draws at random in a pass within the context, as ``seen``; empty if none does.

    >>> network = nn.Sequential(nn.Dropout3d(0.5))
    >>> with draws(network) as layers:
    ...     _ = network(torch.ones(1, 1, 4, 4, 4))
    >>> layers.seen
    'layer 0 (Dropout3d, bernoulli_)'
    """
    with _layers_of(network) as layers, _Draws(layers):
        yield layers


@contextmanager
def stops(network: nn.Module) -> Iterator[_Layers]:
    """The first layer that stops the gradient of the input in a pass within the context; nothing is kept for it."""
    with (
        _layers_of(network) as layers,
        warnings.catch_warnings(action="ignore"),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: torch.empty(())),
        _Stops(layers),
    ):
        yield layers


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of PyTorch; one that may draw has drawn if the state of its generator has changed."""

    def __init__(self, layers: _Layers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layers = layers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._layers.seen or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        generators = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
        generators = generators or [torch.default_generator, *torch.cuda.default_generators]
        before = [generator.get_state() for generator in generators]
        answer = func(*args, **kwargs)
        if not all(map(torch.equal, before, [generator.get_state() for generator in generators])):
            self._layers.note(str(func.overloadpacket.__name__))
        return answer


class _Stops(TorchFunctionMode):
    """Sees every call of a function of PyTorch; what comes out without the gradient that went in has lost it."""

    def __init__(self, layers: _Layers) -> None:
        super().__init__()
        self._layers = layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        had = not self._layers.seen and any(isinstance(value, Tensor) and value.requires_grad for value in args)
        answer = func(*args, **(kwargs or {}))
        if had and isinstance(answer, Tensor) and answer.is_floating_point() and not answer.requires_grad:
            name = str(getattr(func, "__name__", func))
            made_new = name.endswith("_like") or name.startswith("new_")
            if func in _DETACHING:
                self._layers.note("detach")
            elif not torch.is_grad_enabled() and not made_new:
                self._layers.note("no_grad")
        return answer


def _state(module: nn.Module) -> bytes:
    """State of the generators outside of PyTorch that a module can draw from: those of everybody, and what it holds."""
    held = [value for value in vars(module).values() if isinstance(value, _HELD)]
    return pickle.dumps([random.getstate(), np.random.get_state(), *map(_state_held, held)])  # noqa: NPY002


def _state_held(source: Any) -> Any:
    if isinstance(source, np.random.Generator):
        return source.bit_generator.state
    return source.getstate() if isinstance(source, random.Random) else source.get_state()
