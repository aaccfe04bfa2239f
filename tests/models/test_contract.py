import pytest
import torch
from torch import nn

from pipeline.models.contract import StagedModel, layers, pre, rest
from pipeline.models.families.founding import FoundingCNN

SHAPE = (23, 26, 24)
POOLS = (2, 1, 2, 1)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return FoundingCNN(SHAPE, pools=POOLS).eval()


@pytest.mark.parametrize("boundary", range(7))
def test_rest_of_pre_is_forward_for_every_boundary(model, boundary):
    x = torch.randn(2, 1, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rest(model, pre(model, x, boundary), boundary), model(x))


def test_pre_at_zero_is_the_input_and_rest_at_the_end_the_identity(model):
    x = torch.randn(1, 1, *SHAPE)
    assert pre(model, x, 0) is x
    logits = model(x)
    assert rest(model, logits, len(model.stages)) is logits


@pytest.mark.parametrize("boundary", [-1, 7])
def test_a_boundary_that_does_not_exist_is_refused(model, boundary):
    with pytest.raises(ValueError, match="6 stages"):
        pre(model, torch.zeros(1, 1, *SHAPE), boundary)


def test_layers_in_order_of_computation(model):
    block = ["Conv3d", "BatchNorm3d", "ReLU", "MaxPool3d"]
    head = ["Flatten", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    assert [type(layer).__name__ for layer in layers(model)] == block * 4 + head
    x = torch.randn(2, 1, *SHAPE)
    a = x
    for layer in layers(model):
        a = layer(a)
    assert torch.equal(a, model(x))


def test_shared_and_in_place_modules_are_refused():
    relu = nn.ReLU()
    with pytest.raises(ValueError, match=r"stage 1\.1 \(ReLU\) is used twice"):
        StagedModel([nn.Sequential(nn.Linear(3, 3), relu), nn.Sequential(nn.Linear(3, 2), relu)])
    with pytest.raises(ValueError, match=r"stage 0\.1 \(ReLU\) works in place"):
        StagedModel([nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))])
    with pytest.raises(ValueError, match="at least one stage"):
        StagedModel([])
