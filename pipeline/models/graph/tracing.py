"""Trace a model, the list of its operations and their inputs, without running it; and split it at one of its layers.

`torch.fx` records every call of a model's forward, including functional ones, so residual sums, concatenations, shared
modules and nested blocks need no special treatment. Each call becomes an `Operation`, with the module that is
equivalent to it (`pipeline.models.graph.operations`).

A name is a boundary if every path from the volumes to the output crosses the value of that layer, so that
``after(before(volumes)) == model(volumes)``. The value inside of a residual block, which the skip connection passes by,
is none.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import Tensor, fx, nn

from heatlas.pipeline.models.graph import operations as ops
from heatlas.pipeline.run.errors import UsageError


@dataclass(frozen=True)
class Operation:
    """One call of the forward pass.

    `name`: of the module as in the model, or of the function with its module path. `node`: its name is that of the
    output value. `module`: equivalent module; None if it cannot carry relevance. `inputs`: names of the input values
    that relevance may be passed to.
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

    `source`, `result`: names of the values that hold the volumes and the logits. `graph`: keeps the modules that
    `Operation.node` refers to. `constants`: values that depend on the volumes by their shape at most.
    """

    operations: tuple[Operation, ...]
    source: str
    result: str
    graph: fx.GraphModule
    constants: frozenset[str] = frozenset()


class NotFollowed(UsageError):
    """Operations that are not known as the code of a model calls them; those of one pass may be (`exporting`)."""


def not_followed(model: nn.Module, reason: object) -> NotFollowed:
    return NotFollowed(
        f"model ({type(model).__name__}): its operations cannot be traced ({reason}), and this method follows them "
        "one by one. Expected gradients need only outputs and gradients: heatlas.explain(network, image, "
        '"expected-gradients", reference=[control]); in a run set attribution.methods = ["expected-gradients"].'
    )


class LayerTracer(fx.Tracer):
    """Traces into everything except single layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = isinstance(m, ops.KNOWN + ops.ACTIVATIONS + ops.NORMALISATIONS + ops.GATES + ops.DYNAMIC)
        whole = whole or type(m).__module__.startswith("einops.")
        whole = whole or (getattr(m, "keeps_places", False) and not getattr(m, "rules_inside", False))
        return whole or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> Program:
    """Record the operations of a model that takes one tensor of volumes and returns logits."""
    if isinstance(model, ops.KNOWN):
        model = nn.Sequential(model)
    if getattr(model, "misread", False):
        raise not_followed(model, "it takes another way through its code than for an image")
    try:
        tracer = LayerTracer()
        graph = tracer.trace(model)
    except Exception as error:  # fx passes on any error of the model's code
        raise not_followed(model, error) from error
    ops.with_parts(graph)
    return program_of(model, fx.GraphModule(tracer.root, graph), dict(model.named_modules(remove_duplicate=False)))


def program_of(model: nn.Module, module: fx.GraphModule, modules: dict[str, nn.Module]) -> Program:
    """The program of a graph whose nodes call `modules`, functions and methods."""
    graph = module.graph
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    results = [node.args[0] for node in graph.nodes if node.op == "output"]
    if len(sources) != 1 or not isinstance(results[0], fx.Node):
        raise UsageError(f"model ({type(model).__name__}): must take one tensor and return one tensor of logits.")
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    constants = ops.constants_of(graph)
    operations = tuple(_operation(node, modules, constants) for node in nodes)
    return Program(operations, sources[0].name, results[0].name, module, constants)


def is_piecewise_linear(model: nn.Module) -> bool:
    """Whether all operations are convolutions, linear layers, ReLUs, batch norms, poolings, and sums of these.

    Products of two values, softmax, smooth activations and other norms are none; nor is what cannot be traced.

    >>> is_piecewise_linear(nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU())), is_piecewise_linear(nn.Sequential(nn.GELU()))
    (True, False)
    """
    try:
        program = trace(model)
    except UsageError:
        return False
    linear = (*ops.KNOWN, nn.LeakyReLU, nn.ConstantPad3d, ops.Sum, ops.Concatenate)
    return all(isinstance(step.module, linear) or step.value in program.constants for step in program.operations)


def _operation(node: fx.Node, modules: dict[str, nn.Module], constants: frozenset[str]) -> Operation:
    tensors = tuple(argument.name for argument in node.all_input_nodes)
    if node.op == "call_module":
        layer = modules[str(node.target)]
        layer = ops.Moved() if type(layer).__module__.startswith("einops.") else layer
        joins = isinstance(layer, ops.Gate | ops.Concatenate)
        read = tuple(argument.name for argument in ops.tensor_arguments(node)) if joins else tensors[:1]
        return Operation(shown_name(str(node.target)), node, layer, read)
    module = ops.function_module(node, modules, constants)
    name = f"{_place(node)}{node.name}"
    if isinstance(module, ops.Gate):
        tensors = tuple(argument.name for argument in ops.gated(node, modules))
    elif isinstance(module, ops.Sum | ops.Concatenate | ops.Product | ops.MatrixProduct):
        tensors = tuple(argument.name for argument in ops.tensor_arguments(node))
    elif isinstance(module, ops.Scaled | ops.Shifted):
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


_IN_STAGES = re.compile(r"^(stages\.\d+\.)?(network\.)*")
ADAPTIVE = (nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d)
"""Poolings to another grid, behind which nobody knows where in the volume a value is."""
Layers = tuple[tuple[str, nn.Module], ...]


def split_at(model: nn.Module, name: str) -> tuple[Layers, Layers]:
    """The layers before and after a named layer of any network that can be traced; the boundary is right after it.

    `name`: a module as in ``named_modules()``, or an operation as attribution names it.
    """
    program = _needed(trace(model))
    places = [place for place, operation in enumerate(program.operations) if is_in(operation, name)]
    if not places:
        raise UsageError(f"stage {name!r}: no such layer; the model has {', '.join(o.name for o in crossed(program))}.")
    last = program.operations[places[-1]]
    if last.value == program.result:
        raise UsageError(f"stage {name!r} is the output itself; name an earlier layer.")
    require_crossed(program, last.value, name)
    return _split_after(program, places[-1])


def require_crossed(program: Program, value: str, stage: int | str) -> None:
    """Refuse a value as a boundary that a connection passes by."""
    if value == program.source:
        return
    needed = _needed(program)
    open_ends = crossed(needed)
    if any(end.value == value for end in open_ends):
        return
    order = [operation.value for operation in needed.operations]
    later = [end.name for end in open_ends if value not in order or order.index(end.value) > order.index(value)]
    raise UsageError(
        f"stage {stage!r}: a connection passes this layer by, so that it is not all that the output depends on. "
        f"Name a layer where the paths meet{', as ' + later[0] if later else ''}."
    )


def _split_after(program: Program, place: int) -> tuple[Layers, Layers]:
    return _layers(program, 0, place + 1), _layers(program, place + 1, len(program.operations))


def staged(model: nn.Module, volume: Tensor) -> tuple[nn.Module, ...]:
    """A network as two stages, up to the last value with several voxels and from there; one if there is no such value.

    The network, in evaluation mode, runs once on a volume (1, C, D, H, W). Its layers are shared, not copied.
    """
    program = _needed(trace(model))
    shapes, answer = _shapes(program, volume)

    def has_voxels(operation: Operation) -> bool:  # and not patches or slices as a batch
        shape = shapes.get(operation.value, ())
        return len(shape) == 5 and shape[0] == len(volume) and max(shape[2:]) > 1

    placed = list(takewhile(lambda op: not (isinstance(op.module, ADAPTIVE) and has_voxels(op)), program.operations))
    for operation in reversed(crossed(program)):
        if operation in placed and has_voxels(operation):
            before, after = _split_after(program, program.operations.index(operation))
            return _one(before), _one(after)
    with torch.no_grad():
        if not torch.allclose(answer, model(volume), rtol=1e-4, atol=1e-5):
            raise not_followed(model, "it takes another way through its code than for an image")
    return (model,)


def _one(layers: Layers) -> nn.Module:
    """Layers as one module, which has their names; a name may not hold a dot, so that a slash stands for it."""
    if len(layers) == 1 and isinstance(layers[0][1], fx.GraphModule):
        return layers[0][1]  # has the names in it
    stages = nn.Sequential()
    for number, (name, layer) in enumerate(layers):
        key = name.replace(".", "/")
        stages.add_module(f"{key}/{number}" if key in stages._modules else key, layer)
    return stages


def crossed(program: Program) -> list[Operation]:
    """Operations whose value every path from the volumes to the output crosses, in order.

    How many volumes there are, and what is made of weights alone, is known on both sides of a boundary.
    """
    anywhere = _known_anywhere(program)
    reads: dict[str, int] = {}
    for number, operation in enumerate(program.operations):
        if operation.value not in anywhere:
            reads.update({node.name: number for node in operation.node.all_input_nodes})
    furthest, ends = -1, []  # the latest operation that reads a value computed earlier
    for number, operation in enumerate(program.operations[:-1]):
        before = program.source if number == 0 else program.operations[number - 1].value
        furthest = max(furthest, -1 if before in anywhere else reads.get(before, -1))
        if furthest <= number and operation.value not in anywhere:
            ends.append(operation)
    return ends


def _known_anywhere(program: Program) -> set[str]:
    """Values that are known wherever a network is cut: numbers of volumes, and what is made of these and of weights."""
    names = _batch_sizes(program)
    for node in program.graph.graph.nodes:
        if node.op != "placeholder" and all(source.name in names for source in node.all_input_nodes):
            names.add(node.name)
    return names


def _batch_sizes(program: Program) -> set[str]:
    """Values that say how many volumes there are: ``x.size(0)``, ``x.shape[0]``, a shape of which 0 alone is read."""
    names: set[str] = set()
    for node in program.graph.graph.nodes:
        if node.target == "size" and (node.args[1:] == (0,) or node.kwargs.get("dim") == 0):
            names.add(node.name)
        elif (node.target == "size" and len(node.args) == 1) or (node.target is getattr and node.args[1] == "shape"):
            firsts = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
            names |= {user.name for user in firsts}
            names |= {node.name} if len(firsts) == len(node.users) else set()
    return names


def _needed(program: Program) -> Program:
    """The operations that the output depends on, and those that change a value in place."""
    wanted, kept = {program.result}, []
    for operation in reversed(program.operations):
        name = str(getattr(operation.node.target, "__name__", operation.node.target))
        if operation.value in wanted or (name.endswith("_") and operation.node.op != "get_attr"):
            wanted |= {node.name for node in operation.node.all_input_nodes}
            kept.append(operation)
    return replace(program, operations=tuple(reversed(kept)))


def is_in(operation: Operation, name: str) -> bool:
    """Whether an operation is a layer of this name, or in it; a foreign network's names count without our stages."""
    full = operation.name.replace("/", ".")
    names = {full, _IN_STAGES.sub("", full)}
    return any(alias == name or alias.startswith(f"{name}.") for alias in names)


def _shapes(program: Program, volume: Tensor) -> tuple[dict[str, tuple[int, ...]], Tensor]:
    """Shapes of all values of a program by name, and its answer."""
    shapes: dict[str, tuple[int, ...]] = {}

    class _Shapes(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                shapes[n.name] = tuple(value.shape)
            return value

    with torch.no_grad():
        answer: Tensor = _Shapes(program.graph).run(volume)
    return shapes, answer


def _layers(program: Program, start: int, stop: int) -> Layers:
    """Operations of a part of a network: one layer each if they form a chain of modules, else one module together."""
    anywhere = _known_anywhere(program)
    part = [operation for operation in program.operations[start:stop] if operation.value not in anywhere]
    before = program.source if start == 0 else program.operations[start - 1].value
    chain, value, sizes = [], before, _batch_sizes(program)
    for operation in part:
        read = [node.name for node in ops.tensor_arguments(operation.node) if node.name not in sizes]
        further = operation.node.op == "call_module" and (len(operation.node.args) > 1 or operation.node.kwargs)
        module = nn.Flatten() if _flattens(operation.node, sizes) else operation.module
        if read != [value] or further or module is None or isinstance(module, ops.AsCalled):
            return ((f"{part[0].name} to {part[-1].name}", _cut_out(program, part, before)),)
        chain.append((operation.name, module))
        value = operation.value
    return tuple(chain)


def _measured(node: fx.Node) -> fx.Node:
    """The value whose number of volumes is read."""
    read = node.all_input_nodes[0]
    return read.all_input_nodes[0] if node.target is operator.getitem else read


def _flattens(node: fx.Node, batch_sizes: Collection[str]) -> bool:
    """Whether a change of shape leaves one axis besides the batch."""
    if node.target in ("flatten", torch.flatten):
        return tuple(node.args[1:]) == (1,) and not node.kwargs
    sizes = node.args[1:]
    first = sizes[0] if len(sizes) == 2 and sizes[1] == -1 else None
    return node.target in ("view", "reshape") and isinstance(first, fx.Node) and first.name in batch_sizes


def _cut_out(program: Program, part: Sequence[Operation], before: str) -> fx.GraphModule:
    """The operations of a part as one module, which shares its layers with the network."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    source, sizes = graph.placeholder("features"), _batch_sizes(program)
    for node in program.graph.graph.nodes:
        if node.name == before:
            copies[node] = source

    def copied(node: fx.Node) -> fx.Node:
        """A node in the new graph; what is known on both sides of a boundary is made again."""
        if node not in copies and node.name in sizes:
            copies[node] = graph.call_method("size", (copies.get(_measured(node), source), 0))
        if node not in copies:
            for needed in node.all_input_nodes:
                copied(needed)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    for operation in part:
        copied(operation.node)
    graph.output(copies[part[-1].node])
    return fx.GraphModule(program.graph, graph)
