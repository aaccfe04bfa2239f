"""Operations of a traced graph in terms of others that have rules; and which values do not depend on the volumes."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

SEVERAL = ("chunk", "split", "unbind", torch.chunk, torch.split, torch.unbind)
"""Give several parts of a value."""
_FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


def constants_of(graph: fx.Graph) -> frozenset[str]:
    """Values of a graph that are shapes, or made of shapes and of weights alone."""
    found: set[str] = set()
    for node in graph.nodes:
        made = node.op != "placeholder" and all(one.name in found for one in node.all_input_nodes)
        if made or reads_shape(node):
            found.add(node.name)
    return frozenset(found)


def reads_shape(node: fx.Node) -> bool:
    """Whether an operation reads only the shape of a value; ``x.data`` has its values."""
    return node.target in ("size", "dim") or (
        node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")
    )


def with_parts(graph: fx.Graph) -> None:
    """Write ``x.chunk(3)[1]`` as one operation, of which the value is a tensor."""
    for node in list(graph.nodes):
        source = node.args[0] if node.target is operator.getitem else None
        if not isinstance(source, fx.Node) or source.target not in SEVERAL or not isinstance(node.args[1], int):
            continue
        with graph.inserting_before(node):
            name = str(getattr(source.target, "__name__", source.target))
            part = graph.call_function(part_of, (name, node.args[1], *source.args), dict(source.kwargs))
        part.meta = dict(node.meta)
        node.replace_all_uses_with(part)
        graph.erase_node(node)
        if not source.users:
            graph.erase_node(source)


def part_of(method: str, number: int, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """One of the parts that a method of a value gives."""
    return getattr(x, method)(*args, **kwargs)[number]  # type: ignore[no-any-return]


def with_open_attention(graph: fx.Graph) -> None:
    """Write fused attention, unless it is masked, as products of matrices and a softmax."""
    for node in list(graph.nodes):
        if node.target is not F.scaled_dot_product_attention:
            continue
        given = {**dict(zip(_FUSED, node.args, strict=False)), **node.kwargs}
        if set(given) - set(_FUSED) or any(given.get(name) for name in _FUSED[3:6]):
            continue
        q, k, v = (given[name] for name in _FUSED[:3])
        with graph.inserting_before(node):
            scale = given.get("scale")
            if scale is None:
                scale = graph.call_function(operator.pow, (graph.call_method("size", (q, -1)), -0.5))
            scores = graph.call_function(torch.matmul, (q, graph.call_method("transpose", (k, -2, -1))))
            weights = graph.call_function(torch.softmax, (graph.call_function(operator.mul, (scores, scale)), -1))
            product = graph.call_function(torch.matmul, (weights, v))
        for new in (scores, weights, product):
            new.meta = dict(node.meta)
        node.replace_all_uses_with(product)
        graph.erase_node(node)
