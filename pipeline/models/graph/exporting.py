"""The operations of one pass of a model, for code that symbolic tracing cannot follow.

`torch.export` runs the code once on an image, so that control flow on shapes, functional and in-place calls, tokens
made by hand and modules of any library arrive as one closed set of operations (ATen). Each is written here as what the
tracer knows: a layer of PyTorch with the model's own weights, an operation on tensors, or several of these. What does
not depend on the image is computed. So there is one set of rules, however the code is written.

Shapes are those of the image: a program serves one grid, one volume at a time.
"""

from __future__ import annotations

import copy
import traceback
import warnings
from collections import OrderedDict
from pathlib import Path
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
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation for a whole layer of attention
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            program = torch.export.export(plain, (volume,), strict=False)
            table = {op: rule for op, rule in torch.export.default_decompositions().items() if not is_whole(op)}
            program = program.run_decompositions(table)
            module = Written(volume).module(program)
            found, wanted = module(volume), model(volume)
    except Exception as error:  # export passes on any error of the model's code
        raise not_followed(model, _reason(error)) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4):
        raise not_followed(model, "the operations of one pass give another answer than the model")
    return program_of(model, module, dict(module.named_modules(remove_duplicate=False)))


def _reason(error: BaseException) -> str:
    """What an export says, in one line, and the line of the model's code where it stopped."""
    inside = (Path(torch.__file__).parent, Path(__file__).parents[2])
    frames = traceback.extract_tb(error.__traceback__)
    code = [
        frame for frame in frames if frame.line and not any(folder in Path(frame.filename).parents for folder in inside)
    ]
    by_values = "data-dependent" in str(error).lower() or "DataDependent" in type(error).__name__
    text = (
        "its code decides by values of the image" if by_values else (str(error).strip() or repr(error)).splitlines()[0]
    )
    return f"{text}, at {Path(code[-1].filename).name}, line {code[-1].lineno}: {code[-1].line}" if code else text
