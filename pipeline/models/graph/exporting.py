"""The operations of one pass of a model, for code that symbolic tracing cannot follow.

`torch.export` runs the code once on an image, so that control flow on shapes, functional and in-place calls, tokens
made by hand and modules of any library arrive as one closed set of operations (ATen). Each is written here as what the
tracer knows: a layer of PyTorch with the model's own weights, an operation on tensors, or several of these. What does
not depend on the image is computed. So there is one set of rules, however the code is written.

Shapes are those of the image: a program serves one grid, one volume at a time.
"""

from __future__ import annotations

import copy
import io
import logging
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from heatlas.pipeline.models.graph.aten import Written, is_whole
from heatlas.pipeline.models.graph.tracing import Program, not_followed, program_of

_programs: WeakKeyDictionary[nn.Module, tuple[object, Program]] = WeakKeyDictionary()


def exported(model: nn.Module, volume: Tensor) -> Program:
    """The operations of a pass of a model in evaluation mode on one volume (1, C, D, H, W)."""
    weights = (*model.parameters(), *model.buffers())
    versions = tuple((id(one), 0 if one.is_inference() else one._version) for one in weights)
    state = (volume.shape, volume.dtype, volume.device, versions)
    known = _programs.get(model)
    if known is None or known[0] != state:
        known = state, _exported(model, volume)
        _programs[model] = known
    return known[1]


def _exported(model: nn.Module, volume: Tensor) -> Program:
    volume = volume.detach().clone()
    plain = copy.copy(model)  # without hooks that give weights other names
    plain._state_dict_hooks, plain._load_state_dict_pre_hooks = OrderedDict(), OrderedDict()
    try:
        with torch.inference_mode(False), torch.no_grad(), _quiet():
            with _detached():
                program = torch.export.export(plain, (volume,), strict=False)
            module = Written(volume).module(program.run_decompositions(_parts()))
            found, wanted = module(volume), model(volume)
    except Exception as error:  # export passes on any error of the model's code
        raise not_followed(model, _reason(error)) from error
    if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4):
        raise not_followed(model, "the operations of one pass give another answer than the model")
    return program_of(model, module, dict(module.named_modules(remove_duplicate=False)))


@cache
def _parts() -> dict[Any, Any]:
    """What operations are taken apart into, for which nothing stands in `aten`."""
    table = torch.export.default_decompositions().items()  # type: ignore[no-untyped-call]
    return {operation: rule for operation, rule in table if not is_whole(operation)}


@contextmanager
def _detached() -> Iterator[None]:
    """``x.data`` as ``x.detach()``, which an export follows."""
    data = torch._C.TensorBase.data
    Tensor.data = property(Tensor.detach, data.__set__)  # type: ignore[assignment, attr-defined]
    try:
        yield
    finally:
        del Tensor.data  # back to that of its base


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what an export prints, and without the one operation for a whole layer of attention."""
    fast, level = torch.backends.mha.get_fastpath_enabled(), logging.root.manager.disable
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)
        torch.backends.mha.set_fastpath_enabled(fast)


def _reason(error: BaseException) -> str:
    """What an export says, in one line, and the line of the model's code where it stopped."""
    ours, torchs = Path(__file__).parents[2], Path(torch.__file__).parent
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame, Path(frame.filename)) for frame in frames if frame.line and not frame.filename.startswith("<")]
    code = [
        f", at {path.name}, line {frame.lineno}: {frame.line}"
        for frame, path in places
        if ours not in path.parents
        and (torchs not in path.parents or (path.parent == torchs / "nn" / "modules" and path.name != "module.py"))
    ]
    text = next(iter(str(error).strip().splitlines()), repr(error))
    if "data-dependent" in str(error).lower() or "DataDependent" in type(error).__name__:
        text = "its code decides by values"
    return text + "".join(code[-1:])
