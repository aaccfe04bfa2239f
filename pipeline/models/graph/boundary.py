"""Split any traceable network at a layer: what comes before it and what follows.

A `StagedModel` lists its stages; any other network has only names. A name is a boundary if every path from the volumes
to the output crosses the value of that layer, so that ``after(before(volumes)) == model(volumes)``. The value inside of
a residual block, which the skip connection passes by, is none.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor, fx, nn

from heatlas.pipeline.models.graph.operations import AsCalled, tensor_arguments
from heatlas.pipeline.models.graph.tracing import Operation, Program, trace
from heatlas.pipeline.run.errors import UsageError

_IN_STAGES = re.compile(r"^(stages\.\d+\.)?(network\.)*")
ADAPTIVE = (nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d)
"""Poolings to a grid of their own, behind which nobody knows where in the volume a value is."""
Layers = tuple[tuple[str, nn.Module], ...]


def split_at(model: nn.Module, name: str) -> tuple[Layers, Layers]:
    """The layers before and after a named layer of any network that can be traced.

    `name`: a module as in ``named_modules()``, or an operation as attribution names it; the boundary is right after it.
    Raises UsageError if the network cannot be traced, there is no such layer, it is the output, or a connection passes
    it by.
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
    if any(one.value == value for one in open_ends):
        return
    order = [one.value for one in needed.operations]
    later = [one.name for one in open_ends if value not in order or order.index(one.value) > order.index(value)]
    raise UsageError(
        f"stage {stage!r}: a connection passes this layer by, so that it is not all that the output depends on. "
        f"Name a layer where the paths meet{', as ' + later[0] if later else ''}."
    )


def _split_after(program: Program, place: int) -> tuple[Layers, Layers]:
    return _layers(program, 0, place + 1), _layers(program, place + 1, len(program.operations))


def staged(model: nn.Module, volume: Tensor) -> tuple[nn.Module, ...]:
    """A network as two stages, up to the last value with several voxels and from there; one if there is no such value.

    `model`: in evaluation mode. `volume`: (1, C, D, H, W), any volume; the network runs once. Returns they share the
    layers of the network, which are not copied. A network that cannot be traced is one stage.
    """
    try:
        program = _needed(trace(model))
    except UsageError:
        return (model,)
    shapes = _shapes(program, volume)

    def has_voxels(operation: Operation) -> bool:  # and not patches or slices as a batch
        shape = shapes.get(operation.value, ())
        return len(shape) == 5 and shape[0] == len(volume) and max(shape[2:]) > 1

    placed = list(takewhile(lambda one: not (isinstance(one.module, ADAPTIVE) and has_voxels(one)), program.operations))
    for operation in reversed(crossed(program)):
        if operation in placed and has_voxels(operation):
            before, after = _split_after(program, program.operations.index(operation))
            return _one(before), _one(after)
    return (model,)


def _one(layers: Layers) -> nn.Module:
    """Layers as one module, which has their names; a name may not hold a dot, so that a slash stands for it."""
    if len(layers) == 1 and isinstance(layers[0][1], fx.GraphModule):
        return layers[0][1]  # has the names in it
    one = nn.Sequential()
    for number, (name, layer) in enumerate(layers):
        key = name.replace(".", "/")
        one.add_module(f"{key}/{number}" if key in one._modules else key, layer)
    return one


def crossed(program: Program) -> list[Operation]:
    """Operations whose value every path from the volumes to the output crosses, in order.

    How many volumes there are, and what is made of weights alone, is known on both sides of a boundary.
    """
    known = _known_anywhere(program)
    reads: dict[str, int] = {}
    for number, operation in enumerate(program.operations):
        if operation.value not in known:
            reads.update({node.name: number for node in operation.node.all_input_nodes})
    furthest, found = -1, []  # the latest operation that reads a value computed earlier
    for number, operation in enumerate(program.operations[:-1]):
        before = program.source if number == 0 else program.operations[number - 1].value
        furthest = max(furthest, -1 if before in known else reads.get(before, -1))
        if furthest <= number and operation.value not in known:
            found.append(operation)
    return found


def _known_anywhere(program: Program) -> set[str]:
    """Values that are known wherever a network is cut: numbers of volumes, and what is made of these and of weights."""
    found = _batch_sizes(program)
    for node in program.graph.graph.nodes:
        if node.op != "placeholder" and all(one.name in found for one in node.all_input_nodes):
            found.add(node.name)
    return found


def _batch_sizes(program: Program) -> set[str]:
    """Values that say how many volumes there are: ``x.size(0)``, ``x.shape[0]``, a shape of which 0 alone is read."""
    found: set[str] = set()
    for node in program.graph.graph.nodes:
        if node.target == "size" and (node.args[1:] == (0,) or node.kwargs.get("dim") == 0):
            found.add(node.name)
        elif (node.target == "size" and len(node.args) == 1) or (node.target is getattr and node.args[1] == "shape"):
            firsts = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
            found |= {user.name for user in firsts}
            found |= {node.name} if len(firsts) == len(node.users) else set()
    return found


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
    return any(one == name or one.startswith(f"{name}.") for one in names)


def _shapes(program: Program, volume: Tensor) -> dict[str, tuple[int, ...]]:
    """Shape of each value that is a tensor, by name."""
    found: dict[str, tuple[int, ...]] = {}

    class _Shapes(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                found[n.name] = tuple(value.shape)
            return value

    with torch.no_grad():
        _Shapes(program.graph).run(volume)
    return found


def _layers(program: Program, start: int, stop: int) -> Layers:
    """Operations of a part of a network: one layer each if they form a chain of modules, else one module together."""
    known = _known_anywhere(program)
    part = [operation for operation in program.operations[start:stop] if operation.value not in known]
    before = program.source if start == 0 else program.operations[start - 1].value
    chain, value, sizes = [], before, _batch_sizes(program)
    for operation in part:
        read = [node.name for node in tensor_arguments(operation.node) if node.name not in sizes]
        further = operation.node.op == "call_module" and (len(operation.node.args) > 1 or operation.node.kwargs)
        module = nn.Flatten() if _flattens(operation.node, sizes) else operation.module
        if read != [value] or further or module is None or isinstance(module, AsCalled):
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
    """The operations of a part as a module of their own, which shares its layers with the network."""
    graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
    source, sizes = graph.placeholder("features"), _batch_sizes(program)
    for node in program.graph.graph.nodes:
        if node.name == before:
            known[node] = source

    def copied(node: fx.Node) -> fx.Node:
        """A node in the new graph; what is known on both sides of a boundary is made again."""
        if node not in known and node.name in sizes:
            known[node] = graph.call_method("size", (known.get(_measured(node), source), 0))
        if node not in known:
            for one in node.all_input_nodes:
                copied(one)
            known[node] = graph.node_copy(node, known.__getitem__)
        return known[node]

    for operation in part:
        copied(operation.node)
    graph.output(known[part[-1].node])
    return fx.GraphModule(program.graph, graph)
