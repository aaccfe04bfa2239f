import pytest
import torch
from torch import nn

from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN

SHAPE = (23, 26, 24)
POOLS = (2, 1, 2, 1)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return FoundingCNN(SHAPE, pools=POOLS).eval()


def test_a_network_is_the_composition_of_its_stages(model):
    block = ["Conv3d", "BatchNorm3d", "ReLU", "MaxPool3d"]
    head = ["Flatten", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    layers = [layer for stage in model.stages for layer in stage]
    assert [type(layer).__name__ for layer in layers] == block * 4 + head
    x = torch.randn(2, 1, *SHAPE)
    a = x
    for layer in layers:
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
