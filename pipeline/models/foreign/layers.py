"""What a pass of somebody else's network does beside computing: it draws at random, or stops the gradient, in a layer.

Comparing answers finds neither reliably: with a layer that is dropped one time in ten most answers are the same.
"""

from __future__ import annotations

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
