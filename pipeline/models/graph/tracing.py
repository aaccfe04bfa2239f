"""Trace a model: the list of its operations and their inputs, without running it.

`torch.fx` records every call of a model's forward, including functional ones, so residual sums, concatenations, shared
modules and nested blocks need no special treatment. Each call becomes an `Operation`, with the module that is
equivalent to it (`pipeline.models.graph.operations`). Relevance can be propagated only through operations that the
planner supports. Parts without relevance (the branch that computes a gate) are run unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn

from heatlas.pipeline.models.graph.operations import (
    ACTIVATIONS,
    DYNAMIC,
    GATES,
    KNOWN,
    NORMALISATIONS,
    Concatenate,
    Gate,
    MatrixProduct,
    Moved,
    Product,
    Scaled,
    Shifted,
    Sum,
    constants_of,
    function_module,
    gated,
    tensor_arguments,
    with_open_attention,
    with_parts,
)
from heatlas.pipeline.run.errors import UsageError


@dataclass(frozen=True)
class Operation:
    """One call of the forward pass.

    `name`: of the module as in the model, or of the function with its module path. `node`: as traced; its name is the
    name of the output value. `module`: equivalent module; None if it cannot carry relevance. `inputs`: names of the
    input values that relevance may be passed to.
    """

    name: str
    node: fx.Node
    module: nn.Module | None
    inputs: tuple[str, ...]

    @property
    def value(self) -> str:
        return str(self.node.name)


@dataclass(frozen=True)
class Program:
    """All operations of a model, in order of computation.

    `source`: name of the value that holds the volumes. `result`: name of the value that holds the logits. `graph`:
    keeps the modules that `Operation.node` refers to. `constants`: values that do not depend on the volumes other than
    by their shape.
    """

    operations: tuple[Operation, ...]
    source: str
    result: str
    graph: fx.GraphModule
    constants: frozenset[str] = frozenset()


class LayerTracer(fx.Tracer):
    """Traces into everything except single layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = isinstance(m, KNOWN + ACTIVATIONS + NORMALISATIONS + GATES + DYNAMIC)
        whole = whole or type(m).__module__.startswith("einops.")
        whole = whole or (getattr(m, "keeps_places", False) and not getattr(m, "rules_inside", False))
        return whole or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> Program:
    """Record the operations of a model.

    `model`: takes one tensor of volumes and returns logits. Raises UsageError if its forward depends on values (Python
    control flow on tensors), takes other arguments, or returns more than one tensor.
    """
    if isinstance(model, KNOWN):
        model = nn.Sequential(model)
    try:
        tracer = LayerTracer()
        graph = tracer.trace(model)
    except Exception as error:  # fx passes on any error of the model's code
        raise UsageError(
            f"model ({type(model).__name__}): its operations cannot be traced ({error}); attribution needs a "
            "forward without control flow on tensors."
        ) from error
    with_parts(graph)
    with_open_attention(graph)
    module = fx.GraphModule(tracer.root, graph)
    modules = dict(model.named_modules(remove_duplicate=False))
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    results = [node.args[0] for node in graph.nodes if node.op == "output"]
    if len(sources) != 1 or not isinstance(results[0], fx.Node):
        raise UsageError(f"model ({type(model).__name__}): must take one tensor and return one tensor of logits.")
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    constants = constants_of(graph)
    operations = tuple(_operation(node, modules, constants) for node in nodes)
    return Program(operations, sources[0].name, results[0].name, module, constants)


def is_piecewise_linear(model: nn.Module) -> bool:
    """Whether all operations are convolutions, linear layers, ReLUs, batch norms, poolings, and sums of these.

    Products of two values, softmax, smooth activations and other norms are none; nor is what cannot be traced.

    Examples
    --------
    >>> is_piecewise_linear(nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU())), is_piecewise_linear(nn.Sequential(nn.GELU()))
    (True, False)
    """
    try:
        program = trace(model)
    except UsageError:
        return False
    asked = (one for one in program.operations if one.value not in program.constants)
    return all(isinstance(one.module, (*KNOWN, nn.LeakyReLU, nn.ConstantPad3d, Sum, Concatenate)) for one in asked)


def _operation(node: fx.Node, modules: dict[str, nn.Module], constants: frozenset[str]) -> Operation:
    tensors = tuple(argument.name for argument in node.all_input_nodes)
    if node.op == "call_module":
        layer = modules[str(node.target)]
        layer = Moved() if type(layer).__module__.startswith("einops.") else layer
        return Operation(shown_name(str(node.target)), node, layer, tensors[:1])
    module = function_module(node, modules, constants)
    name = f"{_place(node)}{node.name}"
    if isinstance(module, Gate):
        tensors = tuple(argument.name for argument in gated(node, modules))
    elif isinstance(module, Sum | Concatenate | Product | MatrixProduct):
        tensors = tuple(argument.name for argument in tensor_arguments(node))
    elif isinstance(module, Scaled | Shifted):
        tensors = tuple(name for name in tensors if name not in constants)
    else:
        tensors = tensors[:1]
    return Operation(name, node, module, tensors)


def shown_name(target: str) -> str:
    """Name of a module as known to users: stages of a `StagedModel` without the underscore."""
    return ".".join("stages" if part == "_stages" else part for part in target.split("."))


def _place(node: fx.Node) -> str:
    """Module path in which a function was called, with a dot, or nothing at the top."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack), "") if stack else ""
    return f"{shown_name(str(path))}." if path else ""
