"""A stand-in for a GPU on a machine without one: tensors that compute on the CPU and say that they lie elsewhere.

They report the device ``meta``, keep to the rules of a GPU (a product, convolution or loss that mixes them with tensors
of the CPU raises, and so do ``.numpy()`` and a generator of the CPU), and have values, so that code which depends on
them runs as well and can be compared with the CPU. Branches for ``device.type == "cpu"`` are not taken. Whatever comes
back to the CPU, for which a program waits for its GPU, is noted with the line that asked.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

LARGE = ("densenet121", "seresnet50", "efficientnet-b0", "bcos-resnext50", "bcos-densenet121", "bcos-vgg11")
"""Families with so many layers that a test takes seconds for each, of the parts that smaller families have as well."""
OTHER = torch.device("meta")
CPU = torch.device("cpu")
aten: Any = torch.ops.aten
MOVES = (aten.copy_.default, aten._to_copy.default)
SCALAR_OF_THE_CPU = (aten.where.self, aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.fill_.Tensor)
"""Take a tensor of the CPU without axes, besides all functions of single values."""
INDEXING = (
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
)  # fmt: skip
COUNTED = (
    aten.nonzero.default, aten._unique2.default, aten.unique_dim.default, aten.masked_select.default,
    aten.equal.default, aten.bincount.default, aten.repeat_interleave.Tensor,
)  # fmt: skip
"""Wait for the device to know how large their result is, or what it is."""
MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)
ON_HOST = "pipeline/run/work/host.py:on_host"
"""Where the product waits for values, and nowhere else."""
ROOM = Path(__file__).parents[1]


class MixedDevicesError(RuntimeError):
    """What a GPU refuses."""


@dataclass
class Waits:
    """Lines of the product that waited for the device, as ``file:function``: for values, and for a size."""

    values: list[str] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)


class OnOther(torch.Tensor):
    """A tensor of the other device."""

    own: torch.Tensor

    @staticmethod
    def __new__(cls, own: torch.Tensor) -> OnOther:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, own.size(), strides=own.stride(), storage_offset=own.storage_offset(), dtype=own.dtype, device=OTHER
        )
        made.own = own
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnOther({self.own})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("a tensor of the other device was used outside of `other_device`")


def _there(value: object) -> bool:
    return isinstance(value, OnOther)


def _here(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, OnOther)


def _refuse_mixed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse tensors of the CPU beside those of the other device, as a GPU does."""
    if func in INDEXING and _there(args[0]):  # places may be given from the CPU
        args = (args[0], *args[2:])
        scalar = True
    else:
        scalar = torch.Tag.pointwise in func.tags or func in SCALAR_OF_THE_CPU
    mutated = args and _here(args[0]) and func._schema.is_mutable
    if any(_here(one) and (one.dim() or not scalar or mutated) for one in tree_leaves((args, kwargs))):
        raise MixedDevicesError(f"{func}: tensors of the CPU and of the other device")


def _site() -> str:
    """The innermost line of the product that is at work."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if ROOM in path.parents and "tests" not in path.parts and ".venv" not in path.parts:
            return f"{path.relative_to(ROOM)}:{frame.f_code.co_name}".removeprefix("heatlas/")
        frame = frame.f_back  # type: ignore[assignment]
    return "tests"


class _Device(TorchDispatchMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        involved = any(map(_there, leaves))
        wanted = kwargs.get("device")
        made_there = involved if wanted is None else torch.device(wanted).type == OTHER.type
        if wanted is not None:
            kwargs["device"] = CPU
        if any(_here(one) and one.device == OTHER for one in leaves):
            raise AssertionError(f"{func}: a tensor that the stand-in has not made, without values")
        if involved:
            if func not in MOVES:
                _refuse_mixed(func, args, kwargs)
            self._note(func, args, made_there)
        if made_there and kwargs.get("generator") is not None:
            raise MixedDevicesError(f"{func}: a generator of the CPU")
        args, kwargs = tree_map(lambda one: one.own if _there(one) else one, (args, kwargs))
        known = {id(one.own): one for one in leaves if _there(one)}
        answer = func(*args, **kwargs)
        if not made_there or (func is aten.copy_.default and id(answer) not in known):
            return answer
        return tree_map(lambda one: _wrapped(one, known) if _here(one) else one, answer)

    def _note(self, func: Any, args: tuple[Any, ...], made_there: bool) -> None:
        leaves = func is aten._local_scalar_dense.default or (
            func in MOVES and _there(args[0] if func is MOVES[1] else args[1]) and not (made_there and _there(args[0]))
        )
        if leaves:
            self.waits.values.append(_site())
        by_mask = func in INDEXING and any(_there(one) and one.dtype == torch.bool for one in tree_leaves(args[1]))
        if func in COUNTED or by_mask:
            self.waits.sizes.append(_site())


def _wrapped(own: torch.Tensor, known: dict[int, OnOther]) -> OnOther:
    """What was changed in place stays the same tensor."""
    return known[id(own)] if id(own) in known else OnOther(own)


def _places(index: Any) -> Any:
    """An index whose lists are tensors."""
    if isinstance(index, tuple):
        return tuple(map(_places, index))
    return torch.as_tensor(index) if isinstance(index, list | np.ndarray) else index


class _Made(TorchFunctionMode):
    """Makers of tensors from lists, which never reach the dispatcher for ``meta``, and `Tensor.data`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and _there(args[0]):
            args = (args[0], _places(args[1]), *args[2:])
        if func is torch.Tensor.new_tensor and _there(args[0]):
            return torch.tensor(args[1], **{"dtype": args[0].dtype, **kwargs}).to(OTHER)
        if func in MAKERS and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func == torch.Tensor.data.__set__ and _there(args[0]) and _there(args[1]):
            args[0].own = args[1].own.detach()
        if func is torch.Tensor.tolist and _there(args[0]):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


@contextlib.contextmanager
def other_device() -> Iterator[Waits]:
    """Within it, the device `OTHER` exists."""
    real, waits = torch.autocast, Waits()

    def autocast(kind: str, *args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext() if kind == OTHER.type else real(kind, *args, **kwargs)

    with mock.patch.object(torch, "autocast", autocast), _Made(), _Device(waits):
        yield waits


def large_ones_slow(families: Iterable[str]) -> list[Any]:
    """Families as parameters of a test, the large ones for the slow suite."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in families]
