"""The boundary: what is before and after it is the model, and what cannot be split is refused by name."""

from __future__ import annotations

import pytest
import torch
from gradient_toys import network, volumes
from torch import Tensor, nn

from heatlas.pipeline.attribution.graph.layers import run_layer
from heatlas.pipeline.attribution.network_view import explaining, open_parts, split_layers
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.run.errors import BadInputError, UsageError

NAMES = [name for name, _ in open_parts(network())]


def sequential() -> nn.Sequential:
    """A sequence whose one ReLU is used twice and that holds another sequence."""
    torch.manual_seed(2)
    relu = nn.ReLU()
    inner = nn.Sequential(nn.Conv3d(4, 2, 2), nn.Flatten())
    return nn.Sequential(nn.Conv3d(1, 4, 3), relu, nn.Conv3d(4, 4, 3), relu, inner, nn.LazyLinear(2)).double().eval()


@pytest.mark.parametrize("stage", [0, 1, 2, 3, *NAMES[:-1], "stages.0", "stages.1", "stages.2"])
@pytest.mark.parametrize("start", ["logit", "probability"])
def test_rest_of_pre_is_the_model_at_every_boundary(stage: int | str, start: str) -> None:
    model, x = network(), volumes()
    logits = model(x)
    expected = logits[:, 2] if start == "logit" else logits.softmax(1)[:, 2]
    with explaining(model, x, 2, stage, start) as view:
        assert torch.equal(view.pre(x), view.features)
        assert torch.equal(view.rest(view.features), logits)
        assert torch.equal(view.score(view.features), expected)
        assert torch.equal(view.score_of(x), expected)
        assert view.at_input == (stage == 0)
        assert not view.features.requires_grad


def test_boundary_lies_where_it_says() -> None:
    """By number: after so many stages; by name: right after the layer; a group of layers ends with its last."""
    model, x = network(), volumes()
    after_stage, after_relu = model.stages[0](x), model.stages[0][:3](x)
    for stage, expected in ((1, after_stage), ("stages.0", after_stage), ("stages.0.2", after_relu)):
        with explaining(model, x, 0, stage) as view:
            assert torch.equal(view.features, expected)


def test_a_layer_used_twice_counts_twice() -> None:
    model = sequential()
    x = torch.rand(2, 1, 9, 8, 7, dtype=torch.float64)
    model(x)
    for number in range(1, 6):
        with explaining(model, x, 1, number) as view:
            assert torch.equal(view.features, model[:number](x))
            assert torch.equal(view.rest(view.features), model(x))


@pytest.mark.parametrize("stage", [4, 5, -1, "stages.4", "stages", "", "stages.0.9", "conv1"])
def test_stage_that_does_not_exist_is_refused(stage: int | str) -> None:
    with pytest.raises(UsageError, match="stage"), explaining(network(), volumes(), 0, stage):
        pass


def test_output_is_no_stage() -> None:
    with pytest.raises(UsageError, match="output itself"), explaining(network(), volumes(), 0, "stages.3"):
        pass


def test_unknown_name_lists_the_layers() -> None:
    with pytest.raises(UsageError, match=r"stages\.1\.0, stages\.1\.1"):
        split_layers(network(), "layer4")


class Detour(StagedModel):
    """Computes something other than its stages in a row."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Skipping(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return self[1](x)


@pytest.mark.parametrize("kind", ["staged", "sequential"])
def test_a_model_with_a_forward_of_its_own_is_not_opened(kind: str) -> None:
    """Its children in a row are not the model, so only the input is a boundary."""
    model: nn.Module = (
        Detour(network().stages) if kind == "staged" else Skipping(nn.Identity(), nn.Sequential(*network().stages))
    )
    model, x = model.double().eval(), volumes()
    with explaining(model, x, 1) as view:
        assert torch.equal(view.rest(x), model(x))
    with pytest.raises(UsageError, match="does not exist"), explaining(model, x, 1, 1):
        pass


class InPlace(nn.Module):
    """In place without an attribute that says so."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


def _in_training(model: StagedModel) -> nn.Module:
    model.stages[1][0].train()
    return model


def _replaced(place: int, layer: nn.Module) -> nn.Module:
    layers = [*network().stages[0], *network().stages[1], *network().stages[2], network().stages[3]]
    layers[place] = layer
    return nn.Sequential(*layers).double().eval()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_in_training(network()), r"_stages\.1\.0 \(Conv3d\) is in training mode"),
        (_replaced(2, nn.ReLU(inplace=True)), r"layer 2 \(ReLU\) works in place"),
        (_replaced(2, InPlace()), r"layer 2 \(InPlace\) changes its input in place"),
        (_replaced(1, nn.BatchNorm3d(4, track_running_stats=False)), r"layer 1 \(BatchNorm3d\).*running statistics"),
    ],
)
def test_model_that_would_change_is_refused_by_layer(model: nn.Module, words: str) -> None:
    with pytest.raises(UsageError, match=words), explaining(model, volumes(), 0):
        pass


@pytest.mark.parametrize("target", [-1, 3, 99])
def test_target_out_of_range(target: int) -> None:
    with pytest.raises(UsageError, match="outputs 0 to 2"), explaining(network(), volumes(), target):
        pass


def test_unknown_start() -> None:
    with pytest.raises(UsageError, match="'softmax'"), explaining(network(), volumes(), 0, 0, "softmax"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_volumes_that_are_not_finite(broken: float) -> None:
    x = volumes(3)
    x[1, 0, 4, 5, 6] = broken
    with pytest.raises(BadInputError, match="volume 1 "), explaining(network(), x, 0):
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_precision_other_than_the_models(dtype: torch.dtype) -> None:
    with pytest.raises(BadInputError, match=str(dtype)), explaining(network(), volumes().to(dtype), 0):
        pass


@pytest.mark.parametrize("shape", [(1, 9, 12, 10), (9, 12, 10), (0, 1, 9, 12, 10)])
def test_volumes_without_all_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInputError, match="must be"), explaining(network(), torch.zeros(shape).double(), 0):
        pass


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1, 3, "same"])
@pytest.mark.parametrize("mode", ["zeros", "replicate"])
def test_gradients_to_the_input_of_a_convolution_are_those_of_pytorch(groups, dilation, stride, padding, mode) -> None:
    """On a CPU they are made by turning the weights round, where nothing is skipped; a kernel with unequal sides."""
    if padding == "same" and stride == 2:
        return  # PyTorch refuses it
    torch.manual_seed(0)
    layer = nn.Conv3d(4, 6, (3, 2, 1), stride, padding, dilation, groups, padding_mode=mode).double()
    x = torch.randn(2, 4, 7, 8, 9, dtype=torch.float64, requires_grad=True)
    y, expected = run_layer(layer, x), layer(x)
    weights = torch.randn_like(y)
    assert torch.equal(y, expected)
    ours, theirs = (torch.autograd.grad((one * weights).sum(), x)[0] for one in (y, expected))
    torch.testing.assert_close(ours, theirs)
