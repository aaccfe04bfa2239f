"""Networks of others: what they answer becomes logits, and what cannot be explained is refused before any work."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from heatlas.pipeline.models.families.foreign import FOREIGN, ForeignConfig, described_network, with_weights
from heatlas.pipeline.models.foreign.adapted import OutputForm, adapted
from heatlas.pipeline.models.graph.tracing import split_at, staged
from heatlas.pipeline.run.errors import BadInputError, UsageError

VOLUME = torch.rand((1, 1, 8, 9, 10), generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Logits by a convolution, a residual block, pooling and a linear layer; `last` is applied to them."""

    def __init__(self, outputs: int = 3, last: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(inplace=True))
        self.block = nn.Conv3d(4, 4, 3, padding=1)
        self.pool, self.head = nn.AdaptiveAvgPool3d(1), nn.Linear(4, outputs)
        self.last = last or nn.Identity()

    def logits(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(self.block(x) + x)
        return self.head(self.pool(x).view(x.size(0), -1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.logits(x))


class Outside(Net):
    """The same, with what it does at the end given as a function."""

    def __init__(self, end, outputs: int = 3) -> None:
        super().__init__(outputs)
        self.end = end

    def forward(self, x: Tensor):
        return self.end(self.logits(x))


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_softmax_at_the_end_is_taken_off(last):
    network = Net(last=last).eval()
    with torch.no_grad():
        assert torch.equal(adapted(network, VOLUME)(VOLUME), network.logits(VOLUME))


@pytest.mark.parametrize(
    "end", [lambda z: torch.softmax(z, 1), lambda z: z.log_softmax(dim=1), lambda z: torch.softmax(z, 1).flatten(1)]
)
def test_a_softmax_called_as_a_function_is_taken_off(end):
    network = Outside(end).eval()
    with torch.no_grad():
        assert torch.equal(adapted(network, VOLUME)(VOLUME), network.logits(VOLUME))


def test_probabilities_of_a_network_that_cannot_be_traced_become_logits_up_to_a_constant():
    def end(z: Tensor) -> Tensor:
        return torch.softmax(z, 1) if float(z.sum()) > -1e9 else z  # control flow on values

    network = Outside(end).eval()
    with torch.no_grad():
        given, logits = adapted(network, VOLUME)(VOLUME), network.logits(VOLUME)
    torch.testing.assert_close(given - given.mean(), logits - logits.mean())


def test_a_sigmoid_is_taken_off_where_it_is_named_and_never_guessed():
    network = Net(1, nn.Sigmoid()).eval()
    with torch.no_grad():
        assert torch.equal(adapted(network, VOLUME)(VOLUME), network(VOLUME))
        found = adapted(network, VOLUME, outputs=2, form=OutputForm("sigmoid"))(VOLUME)
        torch.testing.assert_close(found, torch.cat([torch.zeros(1, 1), network.logits(VOLUME)], 1))
        torch.testing.assert_close(torch.softmax(found, 1)[:, 1:], network(VOLUME))


def test_the_expected_value_of_bins_is_the_output():
    network = Net(last=nn.LogSoftmax(1)).eval()
    with torch.no_grad():
        found = adapted(network, VOLUME, form=OutputForm(bins=(60.0, 70.0, 90.0)))(VOLUME)
        wanted = (torch.softmax(network.logits(VOLUME), 1) * torch.tensor([60.0, 70.0, 90.0])).sum(1, keepdim=True)
    torch.testing.assert_close(found, wanted)
    with pytest.raises(UsageError, match="2 centres, but the network has 3 outputs"):
        adapted(network, VOLUME, form=OutputForm(bins=(60.0, 70.0)))


@pytest.mark.parametrize(
    ("end", "item"),
    [(lambda z: (z.sum(), z), "1"), (lambda z: {"features": z.sum(), "logits": z}, "logits"),
     (lambda z: {"logits": z[:, :, None, None, None]}, "logits")],
)  # fmt: skip
def test_of_several_answers_one_is_named(end, item):
    network = Outside(end).eval()
    with torch.no_grad():
        found = adapted(network, VOLUME, form=OutputForm(item=item))(VOLUME)
        torch.testing.assert_close(found, network.logits(VOLUME))
    with pytest.raises(UsageError, match=r"say which is the answer, as output_item = "):
        adapted(network, VOLUME)


def test_the_network_itself_is_not_changed():
    network = Net(last=nn.Softmax(1)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    adapted(network, VOLUME)
    assert network.training
    assert network.stem[1].inplace
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


class _Random(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x) + torch.rand(1)


class _Overwriting(Net):
    def forward(self, x: Tensor) -> Tensor:
        x -= x.mean()
        return self.logits(x)


class _Drawing(Net):
    """Draws in evaluation, though seldom so that its answer changes; in a layer of its own or as a function."""

    def __init__(self, draw: Callable[[_Drawing], Any]) -> None:
        super().__init__()
        self.draw, self.numbers, self.generator = draw, np.random.default_rng(0), torch.Generator()
        self.noise = nn.Dropout(0.5)
        self.noise.train = lambda *_: self.noise  # stays in training

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x) + (1 if float(self.draw(self)) < 1e-9 else 0)


@pytest.mark.parametrize(
    ("draw", "where"),
    [
        (lambda _: torch.rand(()), r"_Drawing \(rand\)"),
        (lambda _: nn.functional.dropout(torch.ones(3), 0.5).sum(), r"_Drawing \(bernoulli_\)"),
        (lambda net: net.noise(torch.ones(3)).sum(), r"layer noise \(Dropout, bernoulli_\)"),
        (lambda net: torch.rand((), generator=net.generator), r"_Drawing \(rand\)"),
        (lambda net: net.numbers.random(), r"_Drawing \(numpy or random\)"),
        (lambda _: random.random(), r"_Drawing \(numpy or random\)"),
    ],
)
def test_what_draws_in_evaluation_is_refused_by_name_though_answers_seldom_differ(draw, where):
    with pytest.raises(UsageError, match=f"answers at random in evaluation mode, in {where}"):
        adapted(_Drawing(draw), VOLUME)


@pytest.mark.parametrize(
    "quiet",
    [
        lambda _: nn.functional.dropout(torch.ones(3), 0.5, training=False).sum(),
        lambda _: nn.functional.scaled_dot_product_attention(*(torch.ones(1, 3, 4),) * 3).sum(),  # might draw
    ],
)
def test_what_does_not_draw_is_not_blamed(quiet):
    adapted(_Drawing(quiet), VOLUME)


def test_the_gradient_of_the_network_is_taken_or_where_it_stops_is_said():
    """Backward hooks are left out, and `no_grad` is where the network can be traced; `detach` stays, and is named."""

    class Stopping(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                known = self.logits(x)
            return self.logits(x) + known if float(x.sum()) > 0 else known

    class Detaching(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.logits(x) + self.logits(x.detach())

    hooked = Net()
    hooked.stem.register_full_backward_hook(lambda *_: (torch.zeros_like(VOLUME),))
    gradients = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for network in (hooked, Net()):
            volume = VOLUME.clone().requires_grad_()
            adapted(network, VOLUME)(volume)[0, 0].backward()
            gradients.append(volume.grad)
    torch.testing.assert_close(*gradients)

    class Leaving(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.logits(torch.from_numpy(x.numpy() ** 2))

    stopped = (
        (Leaving(), "outside of PyTorch"), (Stopping(), r"layer stem.0 \(Conv3d, no_grad"), (Detaching(), "detach"),
    )  # fmt: skip
    for network, where in stopped:
        with pytest.warns(UserWarning, match=f"its gradient stops in .*{where}"):
            adapted(network, VOLUME)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: Net().half(), "stem.0.weight is float16, and maps need float32 or float64"),
        (lambda: Net().to("meta"), "stem.0.weight has no values yet"),
        (lambda: nn.Sequential(nn.LazyConv3d(2, 3)), "0.weight has no values yet"),
        (lambda: torch.jit.trace(Net(), VOLUME), "TorchScript cannot be taken apart; give the network in Python"),
        (lambda: Outside(lambda z: z.argmax(1)), "answers with torch.int64, as a class"),
        (lambda: Outside(lambda z: z[:, :0]), r"answers \(1, 0\) to one volume"),
        (lambda: Outside(lambda z: torch.stack([z, z], 2)), r"answers \(1, 3, 2\) to one volume"),
    ],
)
def test_weights_and_answers_that_are_none_are_refused(network, message):
    with pytest.raises(UsageError, match=message):
        adapted(network(), VOLUME)


@pytest.mark.parametrize(
    ("meaning", "words"),
    [("softmax", "no probabilities that add up to 1"), ("sigmoid", "no probabilities;"),
     ("log-softmax", "no logarithms of probabilities that add up to 1")],
)  # fmt: skip
def test_logits_are_not_believed_to_be_probabilities(meaning, words):
    network = Outside(lambda z: z * 0 + torch.tensor([2.94, -1.0, 0.5]))
    with pytest.raises(UsageError, match=f'output = "{meaning}", but its answers are {words}'):
        adapted(network, VOLUME, form=OutputForm(meaning))


@pytest.mark.parametrize(
    ("network", "volume", "message"),
    [
        (_Random(), VOLUME, "answers at random in evaluation mode"),
        (_Overwriting(), VOLUME, "changes its input in place"),
        (Net(), VOLUME.expand(1, 2, -1, -1, -1), "does not take a volume of"),
        (Net(), VOLUME * float("nan"), "not finite"),
        (Outside(lambda z: z[:, :, None].expand(-1, -1, 2).mean()), VOLUME, "it must be one row of numbers"),
        (Outside(lambda _: "AD"), VOLUME, "gives a str"),
    ],
)
def test_what_cannot_be_explained_is_refused(network, volume, message):
    with pytest.raises((UsageError, BadInputError), match=message):
        adapted(network, volume.clone())


def test_the_number_of_outputs_must_be_that_of_the_classes():
    with pytest.raises(UsageError, match="has 3 outputs, but 2 are needed, one for each class; name 3 classes"):
        adapted(Net(), VOLUME, outputs=2)
    with pytest.raises(UsageError, match="give their centres as bins"):
        adapted(Net(), VOLUME, outputs=1)


def test_both_parts_of_a_split_network_compute_the_network():
    network = Net().eval()
    for stage in ("stem", "stem.0", "pool"):
        before, after = split_at(network, stage)
        x = VOLUME
        for _, layer in (*before, *after):
            x = layer(x)
        torch.testing.assert_close(x, network(VOLUME))
    first, second = staged(network, VOLUME)
    torch.testing.assert_close(second(first(VOLUME)), network(VOLUME))
    assert first(VOLUME).shape == (1, 4, 6, 7, 8)  # after the sum, before the pooling


def test_a_layer_that_a_skip_connection_passes_by_is_no_boundary():
    with pytest.raises(UsageError, match=r"a connection passes this layer by.*as add"):
        split_at(Net().eval(), "block")
    with pytest.raises(UsageError, match="no such layer"):
        split_at(Net().eval(), "layer4")
    with pytest.raises(UsageError, match="is the output itself"):
        split_at(nn.Sequential(Net()).eval()[0], "last")


CODE = """
from torch import nn

def small(outputs=2):
    return nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
                         nn.Linear(2, outputs))

def broken():
    raise RuntimeError("no licence")

def text():
    return "network"

def leaving():
    raise SystemExit(0)

def odd():
    raise BaseException("anything")

class Leaving(nn.Module):
    def forward(self, x):
        raise SystemExit(0)
"""


@pytest.fixture
def description(tmp_path) -> ForeignConfig:
    (tmp_path / "nets.py").write_text(CODE)
    config = ForeignConfig(network=f"{tmp_path}/nets.py:small", weights=str(tmp_path / "w.safetensors"))
    torch.manual_seed(4)
    safetensors.torch.save_file(described_network(config).state_dict(), config.weights)
    return config


def test_a_description_gives_the_network_with_its_weights(description):
    model = FOREIGN.build((8, 9, 10), description, 2)
    wanted = with_weights(described_network(description), Path(description.weights)).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(VOLUME), wanted(VOLUME))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "nowhere.py:small"}, "No such file"),
        ({"network": "no_such_module:small"}, "No module named"),
        ({"network": "small"}, "write FILE.py:NAME"),
        ({"network": "{place}/nets.py:large"}, "has no large"),
        ({"network": "{place}/nets.py:broken"}, "RuntimeError: no licence"),
        ({"network": "{place}/nets.py:leaving"}, "SystemExit: 0"),
        ({"network": "{place}/nets.py:odd"}, "BaseException: anything"),
        ({"network": "{place}/nets.py:Leaving", "weights": ""}, "does not take a volume of .*SystemExit"),
        ({"network": "{place}/nets.py:text"}, "gives a str, no torch.nn.Module"),
        ({"arguments": '{"depth": 3}'}, "TypeError"),
        ({"arguments": '{"outputs": 3}'}, r"another shape: 4.weight \(2, 2\), not \(3, 2\)"),
    ],
)
def test_a_wrong_description_is_refused_with_the_reason(description, change, message):
    place = Path(description.weights).parent
    values = {name: value.replace("{place}", str(place)) for name, value in change.items()}
    config = ForeignConfig(**{"network": description.network, "weights": description.weights, **values})
    with pytest.raises((UsageError, BadInputError), match=message):
        FOREIGN.build((8, 9, 10), config, 2)


def test_weights_that_differ_are_listed(description, tmp_path):
    state = safetensors.torch.load_file(description.weights)
    state["5.weight"] = state.pop("0.weight")
    safetensors.torch.save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(BadInputError, match=r"missing: 0\.weight; unexpected: 5\.weight"):
        with_weights(described_network(description), tmp_path / "other.safetensors")


def test_a_pickle_that_executes_is_not_read(description, tmp_path):
    torch.save(Net(), tmp_path / "whole.pt")
    with pytest.raises(BadInputError, match=r"no weights that can be read safely .*more than tensors") as caught:
        with_weights(described_network(description), tmp_path / "whole.pt")
    assert "weights_only" not in str(caught.value), "torch's advice would run what is in the file"


class _ReadsWhatWasOverwritten(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.stem[0](x))
        y = self.stem[1](x)  # in place: x is changed too
        return self.head((self.block(y) + x).mean((2, 3, 4)))


def test_a_network_that_is_another_without_in_place_operations_is_refused():
    with pytest.raises(UsageError, match="without its in-place operations"):
        adapted(_ReadsWhatWasOverwritten(), VOLUME)


def test_a_hook_that_changes_the_answer_is_part_of_the_network():
    network = Net().eval()
    network.register_forward_hook(lambda _module, _input, output: output * 10)
    found = adapted(network, VOLUME)
    assert len(found.stages) == 1
    torch.testing.assert_close(found(VOLUME), network(VOLUME))


class _Counting(Net):
    def __init__(self, held: str) -> None:
        super().__init__()
        self.held, self.calls = held, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.held == "calls":
            self.calls += 1
        else:
            self.seen += 1
        return self.logits(x) + self.calls + self.seen


@pytest.mark.parametrize("held", ["calls", "seen"])
def test_state_that_each_call_changes_is_named(held):
    with pytest.raises(UsageError, match=f"its answer changes with {held}, which each call changes"):
        adapted(_Counting(held), VOLUME)


class _Branching(Net):
    """Symbolic tracing takes the other way: what it sees is no tensor to `isinstance` of TorchScript."""

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.logits(x) if torch.jit.isinstance(x, Tensor) else self.logits(x * 0))

    end = staticmethod(lambda z: z)


@pytest.mark.parametrize("end", [lambda z: z, lambda z: torch.softmax(z, 1)])
def test_code_that_tracing_misreads_is_taken_whole(end):
    network = _Branching().eval()
    network.end = end
    found = adapted(network, VOLUME)
    assert found.misread
    given = found(VOLUME).detach()
    torch.testing.assert_close(torch.softmax(given, 1), torch.softmax(network.logits(VOLUME), 1).detach())


class _Reused(nn.Module):
    """One activation for all layers, a sum of a value with itself, and a weight that is read early and late."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv1, self.conv2, self.head = nn.Conv3d(1, 3, 3), nn.Conv3d(3, 3, 3), nn.Linear(3, 2)
        self.relu, self.gain = nn.ReLU(), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x)) * self.gain
        x = self.relu(self.conv2(x))
        x = (x + x).mean((2, 3, 4))
        return self.head(self.relu(x * x) * self.gain)


def test_reused_modules_values_and_weights_do_not_mislead_a_boundary():
    network = _Reused().eval()
    first, second = staged(network, VOLUME)
    assert first(VOLUME).shape == (1, 3, 4, 5, 6)
    torch.testing.assert_close(second(first(VOLUME)), network(VOLUME))
    for stage in ("conv1", "conv2"):
        x = VOLUME
        for _, layer in (one for part in split_at(network, stage) for one in part):
            x = layer(x)
        torch.testing.assert_close(x, network(VOLUME))


def test_layers_of_a_chain_keep_their_names():
    network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.Conv3d(2, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1),
                            nn.Flatten(), nn.Linear(2, 2)).eval()  # fmt: skip
    model = adapted(network, VOLUME)
    before, _ = split_at(model, "0")
    assert [type(layer) for _, layer in before] == [nn.Conv3d]
    assert len(split_at(model, "2")[0]) == 3


@pytest.mark.parametrize("end", [lambda p: p[:, 0], lambda p: p.squeeze(1), lambda p: p])
def test_a_saturated_sigmoid_is_taken_off_whatever_its_shape(end):
    network = Outside(lambda z: end(torch.sigmoid(100 * z)), outputs=1).eval()
    with torch.no_grad():
        found = adapted(network, VOLUME, form=OutputForm("sigmoid"))(VOLUME)
        torch.testing.assert_close(found, 100 * network.logits(VOLUME))


def test_saturated_probabilities_that_cannot_be_taken_off_are_refused():
    def end(z: Tensor) -> Tensor:
        p = torch.sigmoid(200 * z)
        return torch.cat([1 - p, p], 1)

    with pytest.raises(UsageError, match="lost in rounding"):
        adapted(Outside(end, outputs=1), VOLUME)


class Tied(Net):
    """Two layers with the same weight, and a fixed tensor that no file of weights holds."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__(outputs)
        self.second = nn.Conv3d(4, 4, 3, padding=1, bias=False)
        self.second.weight = self.block.weight
        self.offset = torch.tensor([[1.0, -1.0]])

    def logits(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.block(self.stem(x))))
        return self.head(self.pool(x).flatten(1)) + self.offset


class OfTokens(Net):
    """With attention, which is opened."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__(outputs)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def logits(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


@pytest.mark.parametrize(
    ("network", "outputs", "form"),
    [
        (Tied(), 2, OutputForm()), (Net(1), 2, OutputForm()), (Net(3), 1, OutputForm(bins=(1, 2, 3))),
        (OfTokens(), 2, OutputForm()),
    ],
)  # fmt: skip
def test_a_network_is_stored_under_its_own_names_and_read_back_whatever_its_stages_are_called(network, outputs, form):
    model = adapted(network, VOLUME, outputs, form)
    state = model.state_dict()
    assert set(state) <= set(network.state_dict())
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in state.items())
    safetensors.torch.save(state)  # which refuses the same tensor under two names
    other = adapted(type(network)(network.head.out_features), VOLUME, outputs, form)
    for value in other.state_dict().values():
        value.zero_()
    both = nn.ModuleDict({"first": other})
    both.load_state_dict({f"first.{name}": value for name, value in state.items()})
    with torch.no_grad():
        assert torch.equal(other(VOLUME), model(VOLUME))
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({name: value for name, value in state.items() if name != "head.bias"})


class _SizeFirst(Net):
    """Reads the number of volumes before all else, as much code does."""

    def __init__(self, read) -> None:
        super().__init__(2)
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        volumes = self.read(x)
        x = self.stem(x)
        x = torch.nn.functional.adaptive_avg_pool3d(self.block(x) + x, 1)
        return self.head(x.view(volumes, -1))


def _unpacked(x: Tensor) -> int:
    volumes, *_ = x.shape[0], x.shape[2]
    return volumes


@pytest.mark.parametrize("read", [lambda x: x.size(0), lambda x: x.shape[0], lambda x: x.size()[0], _unpacked])
def test_a_number_of_volumes_that_is_read_early_leaves_the_boundaries(read):
    network = _SizeFirst(read).eval()
    first, second = staged(network, VOLUME)
    two = torch.cat([VOLUME, VOLUME.flip(2)])
    assert first(two).shape == (2, 4, 6, 7, 8)
    torch.testing.assert_close(second(first(two)), network(two))
    x = two
    for _, layer in (one for part in split_at(network, "stem") for one in part):
        x = layer(x)
    torch.testing.assert_close(x, network(two))


class _Patches(nn.Module):
    """Looks at patches one by one, as if they were a batch, and takes the mean of its answers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.head = nn.Conv3d(1, 3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = x.unfold(2, 4, 4).unfold(3, 4, 4).unfold(4, 4, 4).reshape(-1, 1, 4, 4, 4)
        y = torch.relu(self.conv(y)).mean((2, 3, 4))
        return self.head(y.view(x.size(0), -1, 3).mean(1))


def test_patches_in_place_of_volumes_are_no_boundary_but_the_network_is_explained():
    volume, network = torch.rand(1, 1, 8, 8, 8), _Patches().eval()
    torch.testing.assert_close(adapted(network, volume)(volume), network(volume))
    assert len(adapted(network, volume).stages) == 1


def test_the_last_features_are_before_a_pooling_to_a_grid_of_its_own():
    network = nn.Sequential(nn.Conv3d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(24, 2))
    first, _ = staged(network.eval(), VOLUME)
    assert first(VOLUME).shape == (1, 3, 6, 7, 8)


def test_the_pooling_of_a_gate_ends_no_features():
    class SqueezeExcite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gate, self.head = nn.Conv3d(1, 3, 3), nn.Conv3d(3, 3, 1), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.conv(x))
            x = x * torch.sigmoid(self.gate(nn.functional.adaptive_avg_pool3d(x, 1)))
            return self.head(x.mean((2, 3, 4)))

    network = SqueezeExcite().eval()
    first, second = staged(network, VOLUME)
    assert [name for name, _ in second.named_children()] == ["mean", "head"]
    torch.testing.assert_close(second(first(VOLUME)), network(VOLUME))
