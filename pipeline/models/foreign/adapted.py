"""A network that somebody else made, as one that can be explained: a copy in evaluation mode that gives logits.

In-place operations of the copy are switched off, and its answer is made into one row of logits, or one number, per
volume. A softmax or log-softmax at the end is taken off, so that the logits are explained and not what is left of them
near 0 and 1.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.foreign import code_of_others
from heatlas.pipeline.models.foreign.layers import draws, stops
from heatlas.pipeline.models.graph.tracing import LayerTracer, NotFollowed, staged
from heatlas.pipeline.models.storage import names_in
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.plain_text import counted

Meaning = Literal["auto", "logits", "softmax", "log-softmax", "sigmoid"]
_SOFTMAX_CALLS = (torch.softmax, torch.log_softmax, F.softmax, F.log_softmax, "softmax", "log_softmax")
SOFTMAX = (nn.Softmax, nn.LogSoftmax, *_SOFTMAX_CALLS)
SIGMOID = (nn.Sigmoid, torch.sigmoid, F.sigmoid, "sigmoid")
_SHAPE_CALLS = (torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze, nn.Flatten)
SHAPES = ("view", "reshape", "flatten", "squeeze", "unsqueeze", *_SHAPE_CALLS)
SMALLEST = 1e-4
"""Probability below which rounding shows in its logarithm, where what made it cannot be taken off."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class OutputForm:
    """What a network answers.

    `meaning`: ``auto``: probabilities that sum to 1 are a softmax, their logarithms a log-softmax, all else logits. A
    sigmoid is never guessed, since a number may lie between 0 and 1 too. `item`: place or key of the answer among
    several. `bins`: centres of the bins of a number, as of ages: their expected value under the softmax is explained.
    `times`: what answers are multiplied by.
    """

    meaning: Meaning = "auto"
    item: str = ""
    bins: tuple[float, ...] = ()
    times: float = 1.0


class ForeignNetwork(StagedModel):
    """A foreign network as two stages, up to its last value with voxels and from there; it may share layers.

    It is stored under the names of the `original`, so that a stored network does not depend on how this or a later
    version takes it apart; what the stages have beside its tensors is constant, and not stored. `answer`: (1, K), its
    logits of the volume that it was taken apart with. `others`: inputs besides the volume, which are held fixed.
    `bins`: as of `OutputForm`.
    """

    answer: Tensor | None
    others: Mapping[str, Tensor]
    bins: Sequence[float]
    misread = False
    """Whether symbolic tracing takes another way through its code than an image does."""

    def __init__(self, stages: Sequence[nn.Module], original: nn.Module) -> None:
        nn.Module.__init__(self)
        self._stages = nn.ModuleList(stages)
        self.answer, self.others, self.bins = None, {}, ()
        names = names_in(original, self)
        stage_names = tuple(self.state_dict())

        def to_original(_: nn.Module, state: dict[str, Tensor], prefix: str, __: Any) -> None:
            for name in stage_names:
                value = state.pop(prefix + name)
                if name in names:
                    state[prefix + names[name]] = value

        def to_stages(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
            held = dict(
                (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
            )
            given = {name: state.pop(prefix + name) for name in set(names.values()) if prefix + name in state}
            for name in stage_names:
                if name not in names:
                    state[prefix + name] = held[name]
                elif names[name] in given:
                    state[prefix + name] = given[names[name]]

        self.register_state_dict_post_hook(to_original)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(to_stages)  # type: ignore[no-untyped-call]


def adapted(
    network: nn.Module, volume: Tensor, outputs: int | None = None, form: OutputForm | None = None
) -> ForeignNetwork:
    """A copy of any network that can be explained; the network is not changed.

    `volume`: (1, C, D, H, W), one that it takes; on the device of the network. `outputs`: classes that are told apart.
    For 2, a network with one logit gets 0 as the other. Warns if the network stops the gradient of its input somewhere.
    """
    form = form or OutputForm()
    network = getattr(network, "_orig_mod", network)  # of torch.compile
    weights_of(network)
    with code_of_others(f"network ({type(network).__name__}): cannot be copied ({{}})."):
        copied = copy.deepcopy(network).eval().requires_grad_(False)
    original = copied
    first_copy = copy.deepcopy(copied)
    with draws(first_copy) as drawing:
        untouched = asked(first_copy, volume)
    for module in copied.modules():
        module._backward_hooks.clear()  # change gradients, not answers
        module._backward_pre_hooks.clear()
        if getattr(module, "inplace", False):
            module.inplace = False
    given = asked(copied, volume)
    differs = not _same(asked(copied, volume), given)
    changed_state = _changed_state(network, copied) if differs and not drawing.seen else ""
    if changed_state:
        raise UsageError(
            f"network {type(network).__name__}: its answer changes with {changed_state}, which each call changes, so a "
            "map would be one of the images before; let it keep nothing in evaluation mode."
        )
    if drawing.seen or differs:
        raise UsageError(
            f"network {type(network).__name__}: answers at random in evaluation mode"
            f"{f', in {drawing.seen}' if drawing.seen else ''}, so a map would be one of chance; let it draw in "
            "training alone, as F.dropout(x, p, training=self.training)."
        )
    if not _same(given, untouched):
        raise UsageError(
            f"network {type(network).__name__}: answers differently without its in-place operations, since a later "
            "layer reads a value that one of them changed; create that layer with inplace=False and train again."
        )
    item = _item_of(given, form.item)
    first = given if item is None else given[item]
    values = first
    if item is not None or first.dim() != 2:
        copied = _OneRow(copied, item, flat=first.dim() > 2, lone=first.dim() == 1)
        values = copied.row(given)
    several = sum(length > 1 for length in first.shape[1:]) > 1
    if values.dim() != 2 or len(values) != 1 or several or not values.numel():
        raise UsageError(f"network: answers {tuple(first.shape)} to one volume; it must be one row of numbers.")
    if not values.is_floating_point():
        raise UsageError(f"network: answers with {values.dtype}, as a class; let it give the logits of all classes.")
    if not bool(torch.isfinite(values).all()):
        raise BadInputError("network: its answer is not finite (NaN or infinity); check weights and intensities.")
    changed = _with_logits(copied, form.meaning, values, volume)
    changed = _with_outputs(changed, values.shape[1], outputs, form, volume)
    with torch.no_grad():
        wanted = values if changed is copied else changed(volume)
    model = _taken_apart(changed.eval(), original, volume, wanted)
    with stops(model) as stopping:
        try:
            answer = model(volume.clone().requires_grad_())
        except RuntimeError:  # it leaves PyTorch, as by x.numpy(), which no gradient can follow
            stopping.note("outside of PyTorch")
            with torch.no_grad():
                answer = model(volume)
    answer = answer.detach()
    if stopping.seen:
        warnings.warn(
            f"network {type(network).__name__}: its gradient stops in {stopping.seen}: what passes there has no share "
            "in maps by gradients, as of expected gradients; occlusion and RISE need none.",
            stacklevel=2,
        )
    model.answer = answer
    return model


def weights_of(network: nn.Module) -> Tensor:
    """A tensor with the precision and on the device of a network's weights."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in network.modules()):
        raise UsageError(
            f"network ({type(network).__name__}): TorchScript cannot be taken apart; give the network in Python that "
            "it was made of, with its weights: network.load_state_dict(scripted.state_dict())."
        )
    like = None
    for name, weight in network.named_parameters():
        if nn.parameter.is_lazy(weight) or (weight.is_meta and type(weight) is nn.Parameter):
            raise UsageError(f"network: {name} has no values yet (a lazy layer, or the device meta); load its weights.")
        if weight.dtype not in (torch.float32, torch.float64):
            raise UsageError(
                f"network: {name} is {str(weight.dtype).removeprefix('torch.')}, and maps need float32 or float64; "
                "bring it to float32 (network.float()), or give the network that a quantised one was made of."
            )
        like = weight if like is None else like
        if (weight.dtype, weight.device) != (like.dtype, like.device):
            raise UsageError(
                f"network: {name} is {weight.dtype} on {weight.device}, and others are {like.dtype} on {like.device}; "
                "bring all to one, as by network.float()."
            )
    return torch.zeros(()) if like is None else like


def _taken_apart(network: nn.Module, original: nn.Module, volume: Tensor, wanted: Tensor) -> ForeignNetwork:
    """A network as stages; as one where its layers, as they are traced, do not show all that it does."""
    try:
        model = ForeignNetwork(staged(network, volume), original).eval()
        with torch.no_grad():
            if _same(model(volume), wanted, within=1e-4):
                return model
    except (NotFollowed, RuntimeError):
        pass
    model = ForeignNetwork((network,), original).eval()
    model.misread = True
    return model


def _changed_state(before: nn.Module, after: nn.Module) -> str:
    """The first buffer or number of a network that has another value in the network that ran."""
    for (name, module), ran in zip(before.named_modules(), after.modules(), strict=False):
        held: dict[str, Any] = {**vars(ran), **ran._buffers}
        for key, value in {**vars(module), **module._buffers}.items():
            if key in ("training", "inplace") or not isinstance(value, Tensor | int | float):
                continue
            other = held.get(key)
            if isinstance(value, Tensor):
                same = isinstance(other, Tensor) and torch.equal(value, other)
            else:
                same = value == other
            if not same:
                return f"{name}.{key}".lstrip(".")
    return ""


class _OneRow(nn.Module):
    """A network of whose answer one item counts, as one row per volume."""

    def __init__(self, network: nn.Module, item: Any, flat: bool, lone: bool) -> None:
        super().__init__()
        self.network, self.item, self.flat, self.lone = network, item, flat, lone

    def forward(self, x: Tensor) -> Tensor:
        return self.row(self.network(x))

    def row(self, answer: Any) -> Tensor:
        row: Tensor = answer if self.item is None else answer[self.item]
        if self.lone:
            return row.unsqueeze(1)
        return row.flatten(1) if self.flat else row


class _Logarithm(nn.Module):
    """Log-probabilities, or log odds of a sigmoid, where what made the probabilities cannot be taken off."""

    def __init__(self, odds: bool) -> None:
        super().__init__()
        self.odds = odds

    def forward(self, p: Tensor) -> Tensor:
        near = () if torch.compiler.is_exporting() else (p, 1 - p) if self.odds else (p,)
        if any(bool((share < SMALLEST).any()) for share in near):
            raise UsageError(
                "network: a probability is so near 0 or 1 that its logarithm is lost in rounding, and what made it "
                "cannot be taken off; let the network give logits."
            )
        return torch.log(p) - torch.log(1 - p) if self.odds else torch.log(p)


def asked(network: nn.Module, volume: Tensor) -> Any:
    """What a network answers to a volume, which it must leave as it is."""
    before = volume.clone()
    given = getattr(network, "others", ())  # of `WithOthers`
    refused = (
        f"network {type(getattr(network, 'network', network) if given else network).__name__}: does not take a volume "
        f"of {tuple(volume.shape)}{' with the others given' * bool(given)} ({{}}). Check channels, grid and spacing of "
        "the images; other inputs than the image are given as others=[…], an index among them as torch.tensor([2])."
    )
    with torch.no_grad(), code_of_others(refused):
        answer = network(volume)
    if not _same(before, volume):
        raise UsageError(
            f"network {type(network).__name__}: changes its input in place; let it work on a copy (x.clone())."
        )
    return answer


def _same(a: Any, b: Any, within: float = 0.0) -> bool:
    """Whether two answers are equal, NaN included, or differ by a share at most."""
    if isinstance(a, Tensor):
        if within:
            return torch.allclose(a, b, rtol=within, atol=within / 10)
        return torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, Mapping):
        return all(_same(a[key], b[key], within) for key in a)
    pairs = zip(a, b, strict=False) if isinstance(a, Sequence) and not isinstance(a, str) else ()
    return all(_same(first, second, within) for first, second in pairs)


def _item_of(given: Any, item: str) -> Any:
    """Key or place of the answer in what a network gives; None if it is the answer itself."""
    if isinstance(given, Tensor):
        if item:
            raise UsageError(f"output_item = {item!r}: the network gives one tensor; leave output_item empty.")
        return None
    if isinstance(given, Mapping):
        shown = {str(key): value for key, value in given.items()}
    elif isinstance(given, Sequence):
        shown = {str(place): value for place, value in enumerate(given)}
    else:
        raise UsageError(f"network: gives a {type(given).__name__}; it must give a tensor, or a tuple or dict of them.")
    tensors = {key: value for key, value in shown.items() if isinstance(value, Tensor)}
    if item not in tensors:
        listed = ", ".join(f"{key} {tuple(value.shape)}" for key, value in tensors.items())
        raise UsageError(
            f"network: gives a {type(given).__name__} of {listed or 'no tensors'}; say which is the answer, as "
            f"output_item = {next(iter(tensors), '0')!r}."
        )
    return item if isinstance(given, Mapping) else int(item)


def _with_logits(network: nn.Module, meaning: Meaning, values: Tensor, volume: Tensor) -> nn.Module:
    """The network without a softmax, log-softmax or sigmoid at its end."""
    sums = values.exp().sum().item(), values.sum().item()
    if meaning == "auto":
        several = values.shape[1] > 1
        is_log = several and bool((values <= 0).all()) and abs(sums[0] - 1) < TOLERANCE
        is_softmax = several and bool((values >= 0).all()) and abs(sums[1] - 1) < TOLERANCE
        meaning = "log-softmax" if is_log else "softmax" if is_softmax else "logits"
    if meaning == "logits":
        return network
    shares = values.exp() if meaning == "log-softmax" else values
    within = bool(((shares >= 0) & (shares <= 1 + TOLERANCE)).all())
    if not within or (meaning != "sigmoid" and abs(shares.sum().item() - 1) > TOLERANCE):
        what = "logarithms of probabilities" if meaning == "log-softmax" else "probabilities"
        what += "" if meaning == "sigmoid" else " that add up to 1"
        raise UsageError(f'network: output = "{meaning}", but its answers are no {what}; leave it "auto".')
    without = _without_last(network, SIGMOID if meaning == "sigmoid" else SOFTMAX)
    if without is not None and _gives(without, torch.sigmoid if meaning == "sigmoid" else _softmax, shares, volume):
        return without
    if meaning == "log-softmax":
        return network  # log-probabilities are logits up to a constant, which the evidence does not see
    return nn.Sequential(OrderedDict(network=network, logarithm=_Logarithm(odds=meaning == "sigmoid")))


def _gives(network: nn.Module, last: Callable[[Tensor], Tensor], wanted: Tensor, volume: Tensor) -> bool:
    """Whether a network answers as wanted with a last function, which it may not if its code was misread."""
    try:
        with torch.no_grad():
            found = network(volume)
        return found.shape == wanted.shape and _same(last(found), wanted, within=1e-4)
    except Exception:  # as of shapes that do not fit
        return False


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, 1)


def _without_last(network: nn.Module, kinds: Sequence[Any]) -> nn.Module | None:
    """The network without a function at its end, changes of shape after it aside; None if there is none to be found."""
    tracer = LayerTracer()
    try:
        graph = tracer.trace(network)
    except Exception:  # control flow on values; such a network is explained as it is
        return None
    modules = dict(tracer.root.named_modules()) if isinstance(tracer.root, nn.Module) else {}
    node = next(node for node in graph.nodes if node.op == "output").args[0]

    def is_a(node: fx.Node, kinds: Sequence[Any]) -> bool:
        if node.op == "call_module":
            return isinstance(modules[str(node.target)], tuple(kind for kind in kinds if isinstance(kind, type)))
        return node.target in kinds

    shapes = (*SHAPES, operator.getitem) if kinds is SIGMOID else SHAPES  # one of several sigmoids stands alone
    while isinstance(node, fx.Node) and is_a(node, shapes):
        node = node.args[0]
    if not isinstance(node, fx.Node) or not is_a(node, kinds):
        return None
    node.replace_all_uses_with(node.all_input_nodes[0])
    graph.erase_node(node)
    return fx.GraphModule(tracer.root, graph)


def _with_outputs(network: nn.Module, given: int, wanted: int | None, form: OutputForm, volume: Tensor) -> nn.Module:
    """The network with the outputs that are wanted: the expected value of bins, or two logits of one."""
    weight, bins = next(network.parameters(), torch.zeros(())), form.bins
    if form.times != 1:
        unit = nn.Linear(given, given, bias=False, device=weight.device, dtype=weight.dtype)
        unit.weight.data = torch.eye(given, device=weight.device, dtype=weight.dtype) * form.times
        network = nn.Sequential(OrderedDict(network=network, unit=unit))
    if bins:
        if len(bins) != given:
            raise UsageError(f"bins: {len(bins)} centres, but the network has {given} outputs; give one centre each.")
        mean = nn.Linear(given, 1, bias=False, device=weight.device, dtype=weight.dtype)
        mean.weight.data = torch.tensor([bins], device=weight.device, dtype=weight.dtype)
        network = nn.Sequential(OrderedDict(network=network, shares=nn.Softmax(1), expected=mean))
        given = 1
    if wanted == 2 and given == 1:
        both = nn.Linear(1, 2, bias=False, device=weight.device, dtype=weight.dtype)
        both.weight.data = torch.tensor([[0.0], [1.0]], device=weight.device, dtype=weight.dtype)
        return nn.Sequential(OrderedDict(network=network, both=both)).requires_grad_(False)
    if wanted is not None and wanted != given:
        each = f"one for each class; name {given} classes"
        one = "for a number; if each stands for a bin of the number, give their centres as bins"
        needed = f"{wanted} are needed, {each}" if wanted > 1 else f"1 is needed {one}"
        raise UsageError(f"network: has {counted(given, 'output')}, but {needed}.")
    return network.requires_grad_(False)
