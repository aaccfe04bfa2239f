"""A graph of the operations that the tracer knows, written from an exported program node by node.

A value is a node of the new graph where it depends on the volume, and is itself where it does not. Names are those of
the model's layers, or of the functions that these call.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import OutputKind

from heatlas.pipeline.models.graph import operations as ops

_MAKING = "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty"
_OF_SHAPES = frozenset(_MAKING.split())
"""Read the shape of a value alone."""
_INLINED = frozenset(("wrap_with_set_grad_enabled", "wrap_with_autocast"))


def name_of(target: Any) -> str:
    """Name of an operation without its overload."""
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def changing(*values: Any) -> list[fx.Node]:
    """Values among these that depend on the volume."""
    found: list[fx.Node] = []
    fx.node.map_arg(values, found.append)
    return found


class GraphWriter:
    """Writes an exported program of one volume; `written` says what stands for an operation."""

    def __init__(self, volume: Tensor) -> None:
        self.volume = volume
        self._root, self._graph = nn.Module(), fx.Graph()
        self._shapes: dict[fx.Node, tuple[int, ...]] = {}
        self._read: fx.Node  # of the exported program
        self._constants = 0

    def written(self, name: str, given: Sequence[Any]) -> Any:
        """What stands for an operation, given its arguments in the order of its schema; NotImplemented for itself."""
        raise NotImplementedError

    def module(self, program: torch.export.ExportedProgram) -> fx.GraphModule:
        tensors = {**program.state_dict, **program.constants}
        given: list[Any] = []
        for spec in program.graph_signature.input_specs:
            if spec.target is None:
                given.append(self._graph.placeholder("volumes"))
                self._shapes[given[-1]] = tuple(self.volume.shape)
            else:
                given.append(tensors[spec.target])
        kinds = [spec.kind for spec in program.graph_signature.output_specs]
        answer = self._copied(program.graph_module, given)[kinds.index(OutputKind.USER_OUTPUT)]
        self._graph.output(self._held(answer))
        ops.with_parts(self._graph)
        return fx.GraphModule(self._root.eval(), self._graph)

    def _copied(self, owner: fx.GraphModule, given: Sequence[Any]) -> Any:
        """The result of a graph whose inputs are given."""
        values: dict[fx.Node, Any] = {}
        inputs = iter(given)
        for node in owner.graph.nodes:
            if node.op == "output":
                break
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(owner)
            else:
                values[node] = self._value(node, *fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__))
        return fx.node.map_arg(node.args[0], values.__getitem__)

    def _value(self, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name, self._read = name_of(node.target), node
        if name in _INLINED:
            place = next(number for number, value in enumerate(args) if isinstance(value, fx.GraphModule))
            return self._copied(args[place], args[place + 1 :])
        if name in _OF_SHAPES:
            args = fx.node.map_arg(args, lambda n: self.volume.new_empty(self._shapes[n]))
        if not changing(args, kwargs):
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.target is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]
        schema = getattr(node.target, "_schema", None)
        named = kwargs if schema is None else dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        given = args if schema is None else [named.get(a.name, a.default_value) for a in schema.arguments]
        result = self.written(name, given)
        if result is NotImplemented:
            options = {key: self._held(value) for key, value in kwargs.items()}
            called = ("call_function", node.target, self._held(tuple(args)), options, name)
            result = self.placed(self._graph.create_node(*called))
        first = result[0] if isinstance(result, tuple) else result
        if isinstance(first, fx.Node):
            self._shapes[first] = self.answer_shape
        return result

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """Shape of what the operation gives; of the first of several."""
        shown = self._read.meta.get("val")
        return tuple(getattr(shown[0] if isinstance(shown, tuple | list) else shown, "shape", ()))

    def shape(self, value: Any) -> tuple[int, ...]:
        return self._shapes[value] if isinstance(value, fx.Node) else tuple(getattr(value, "shape", ()))

    def method(self, name: str, *args: Any, shape: Sequence[int] = ()) -> fx.Node:
        """A method of a tensor; `shape` is that of its value, if it is not the last for an operation."""
        return self.placed(self._graph.call_method(name, self._held(args)), shape)

    def function(self, function: Any, *args: Any, shape: Sequence[int] = ()) -> fx.Node:
        return self.placed(self._graph.call_function(function, self._held(args)), shape)

    def layer(self, layer: nn.Module, *inputs: Any, shape: Sequence[int] = ()) -> fx.Node:
        """A layer under the name that it has in the model, or that of the function in its place."""
        path, kind = self._place()
        name = (
            path if kind.startswith("torch.nn.modules.") and path else f"{path}.{name_of(self._read.target)}".strip(".")
        )
        taken, free = 0, name
        while self._has(free):
            taken += 1
            free = f"{name}_{taken}"
        owner: nn.Module = self._root
        *parents, last = free.split(".")
        for parent in parents:
            if not hasattr(owner, parent):
                owner.add_module(parent, nn.Module())
            owner = getattr(owner, parent)
        owner.add_module(last, layer)
        return self.placed(self._graph.call_module(free, self._held(inputs)), shape or self.shape(inputs[0]))

    def _has(self, name: str) -> bool:
        owner: Any = self._root
        for part in name.split("."):
            owner = getattr(owner, part, None)
        return owner is not None

    def placed(self, node: fx.Node, shape: Sequence[int] = ()) -> fx.Node:
        path, _ = self._place()
        node.meta["nn_module_stack"] = {path: None} if path else {}
        self._shapes[node] = tuple(shape)
        return node

    def _place(self) -> tuple[str, str]:
        """Path and kind of the module whose code calls the operation."""
        stack = list((self._read.meta.get("nn_module_stack") or {}).values())
        path, kind = stack[-1] if stack else ("", "")
        return str(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"

    def _held(self, value: Any) -> Any:
        """An argument whose tensors are constants of the graph."""
        if isinstance(value, list | tuple):
            return tuple(map(self._held, value))
        if not isinstance(value, Tensor):
            return value
        name, self._constants = f"constant_{self._constants}", self._constants + 1
        self._root.register_buffer(name, value.detach().to(self.volume.dtype if value.is_floating_point() else None))
        return self._graph.get_attr(name)

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        if not isinstance(x, fx.Node):
            return x.reshape(tuple(shape))
        return x if self.shape(x) == tuple(shape) else self.method("reshape", x, tuple(shape), shape=shape)

    def expanded(self, x: Any, shape: Sequence[int]) -> Any:
        if not isinstance(x, fx.Node) or self.shape(x) == tuple(shape):
            return x
        return self.method("expand", x, tuple(shape), shape=shape)
