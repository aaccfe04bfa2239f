"""Split any traceable network at a layer: what comes before it and what follows.

A `StagedModel` lists its stages; any other network has only names. A name is a boundary if every path from the volumes
to the output crosses the value of that layer, so that ``after(before(volumes)) == model(volumes)``. The value inside of
a residual block, which the skip connection passes by, is none.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx, nn

from heatlas.pipeline.models.graph.tracing import Operation, Program, Reshape, tensor_arguments, trace
from heatlas.pipeline.run.errors import UsageError

_IN_STAGES = re.compile(r"^(stages\.\d+\.)?(network\.)?")
Layers = tuple[tuple[str, nn.Module], ...]


def split_at(model: nn.Module, name: str) -> tuple[Layers, Layers]:
    """The layers before and after a named layer of any network that can be traced.

    Parameters
    ----------
    model : nn.Module
    name : str
        A module as in ``named_modules()``, or an operation as attribution names it; the boundary is right after it.

    Raises
    ------
    UsageError
        If the network cannot be traced, there is no such layer, it is the output, or a connection passes it by.
    """
    program = _needed(trace(model))
    places = [place for place, operation in enumerate(program.operations) if is_in(operation, name)]
    if not places:
        raise UsageError(f"stage {name!r}: no such layer; the model has {', '.join(o.name for o in crossed(program))}.")
    last = program.operations[places[-1]]
    if last.value == program.result:
        raise UsageError(f"stage {name!r} is the output itself; name an earlier layer.")
    if last not in (open_ends := crossed(program)):
        later = [one.name for one in open_ends if program.operations.index(one) > places[-1]]
        raise UsageError(
            f"stage {name!r}: a connection passes this layer by, so that it is not all that the output depends on. "
            f"Name a layer where the paths meet{', as ' + later[0] if later else ''}."
        )
    return _split_after(program, places[-1])


def _split_after(program: Program, place: int) -> tuple[Layers, Layers]:
    return _layers(program, 0, place + 1), _layers(program, place + 1, len(program.operations))


def staged(model: nn.Module, volume: Tensor) -> tuple[nn.Module, ...]:
    """A network as two stages, up to the last value with several voxels and from there; one if there is no such value.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode.
    volume : Tensor
        (1, C, D, H, W), any volume; the network runs once.

    Returns
    -------
    tuple of nn.Module
        They share the layers of the network, which are not copied. A network that cannot be traced is one stage.
    """
    try:
        program = _needed(trace(model))
    except UsageError:
        return (model,)
    shapes = _shapes(program, volume)
    for operation in reversed(crossed(program)):
        shape = shapes.get(operation.value, ())
        if len(shape) == 5 and max(shape[2:]) > 1:
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
    """Operations whose value every path from the volumes to the output crosses, in order."""
    place = {program.source: -1, **{operation.value: n for n, operation in enumerate(program.operations)}}
    furthest, found = -1, []  # the latest operation that reads a value computed earlier
    reads: dict[str, int] = {}
    for number, operation in enumerate(program.operations):
        for node in operation.node.all_input_nodes:
            if node.op != "get_attr" and not _is_batch_size(operation.node):
                reads[node.name] = number
    for number, operation in enumerate(program.operations[:-1]):
        before = program.source if number == 0 else program.operations[number - 1].value
        furthest = max(furthest, reads.get(before, -1))
        if furthest <= number and operation.node.op != "get_attr" and place[operation.value] == number:
            found.append(operation)
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
    part = program.operations[start:stop]
    before = program.source if start == 0 else program.operations[start - 1].value
    chain, value = [], before
    for operation in part:
        if operation.node.target == "size" and all(_flattens(user) for user in operation.node.users):
            continue  # view(x.size(0), -1)
        read = [node.name for node in tensor_arguments(operation.node) if node.target != "size"]
        further = operation.node.op == "call_module" and (len(operation.node.args) > 1 or operation.node.kwargs)
        module = nn.Flatten() if _flattens(operation.node) else operation.module
        if read != [value] or further or module is None or isinstance(module, Reshape):
            return ((f"{part[0].name} to {part[-1].name}", _cut_out(program, part, before)),)
        chain.append((operation.name, module))
        value = operation.value
    return tuple(chain)


def _is_batch_size(node: fx.Node) -> bool:
    """Whether an operation reads how many volumes there are: ``x.size(0)`` or ``x.shape``, of which 0 is taken."""
    if node.target == "size":
        return node.args[1:] == (0,)
    takes = [user.target is operator.getitem and user.args[1] == 0 for user in node.users]
    return node.target is getattr and node.args[1:] == ("shape",) and all(takes)


def _flattens(node: fx.Node) -> bool:
    """Whether a change of shape leaves one axis besides the batch."""
    if node.target in ("flatten", torch.flatten):
        return tuple(node.args[1:]) == (1,) and not node.kwargs
    sizes = node.args[1:]
    first = sizes[0] if len(sizes) == 2 and sizes[1] == -1 else None
    return node.target in ("view", "reshape") and isinstance(first, fx.Node) and first.target == "size"


def _cut_out(program: Program, part: Sequence[Operation], before: str) -> fx.GraphModule:
    """The operations of a part as a module of their own, which shares its layers with the network."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    source = graph.placeholder("features")
    for node in program.graph.graph.nodes:
        if node.name == before:
            known[node] = source
    for operation in part:
        if _is_batch_size(operation.node):  # which all values have in common
            known.setdefault(operation.node.all_input_nodes[0], source)
        for node in operation.node.all_input_nodes:  # a weight that is read on both sides of the boundary
            if node.op == "get_attr" and node not in known:
                known[node] = graph.node_copy(node)
        known[operation.node] = graph.node_copy(operation.node, lambda node: known[node])
    graph.output(known[part[-1].node])
    return fx.GraphModule(program.graph, graph)
