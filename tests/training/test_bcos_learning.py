"""B-cos networks learn patterns in noise for every exponent, and the larger it is, the better maps localise."""

from statistics import mean

import pytest
import torch
from torch import nn

from heatlas.pipeline.models.dynamic.calibration import calibrate
from heatlas.pipeline.models.dynamic.linear_map import dynamic_weights
from heatlas.pipeline.models.families.bcos.records import BcosSimpleConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.training.objectives.off_target import binary_cross_entropy
from tests.training.pattern_scenes import CLASSES, SIDE, alignment, scenes


def trained(b: float, seed: int, steps: int) -> nn.Sequential:
    """A network trained as `trained_coda` trains CoDA networks."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(100 + seed)
    config = BcosSimpleConfig(channels=(16, 16, 16), strides=(1, 2, 1), b=b, max_out=2, norm="none")
    model = build_network(config, (SIDE,) * 3, CLASSES)
    calibrate(model, scenes(32, draw)[0])
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        volumes, classes, _ = scenes(32, draw)
        optimiser.zero_grad()
        binary_cross_entropy(model(volumes), classes).mean().backward()
        optimiser.step()
    return nn.Sequential(*model.stages).eval()


@pytest.mark.slow
@pytest.mark.parametrize("b", [1.0, 1.5, 2.0, 2.5])
def test_patterns_are_learnt_for_every_exponent_and_maps_add_up(b):
    model = trained(b, 1, 300)
    volumes, classes, _ = scenes(128, torch.Generator().manual_seed(7))
    assert float((model(volumes).argmax(1) == classes).float().mean()) >= 0.95
    pairs, rest = model[0](volumes[:4]), model[1:]
    found = dynamic_weights(rest, lambda x: rest(x)[:, 2], pairs) * pairs
    bias = model[-1][-1].bias
    error = found.double().flatten(1).sum(1) - (rest(pairs)[:, 2] - bias).double().detach()
    assert float((error.abs() / found.double().abs().flatten(1).sum(1)).max()) < 1e-5


@pytest.mark.slow
def test_a_larger_exponent_localises_better():
    linear, aligned = ([alignment(trained(b, seed, 300)) for seed in range(2)] for b in (1.0, 2.5))
    assert min(one[0] for one in (*linear, *aligned)) > 0.9
    assert mean(one[2] for one in aligned) > mean(one[2] for one in linear) + 0.25  # a quarter is chance
