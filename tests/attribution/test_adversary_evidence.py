"""What is written as evidence in logits adds up to it, whatever the method, stage and network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.perturbation.occlusion import RegionLabels
from heatlas.pipeline.attribution.reference.deeplift import DeepLift
from heatlas.pipeline.attribution.reference.expected_gradients import ExpectedGradients, IntegratedGradientsFromMean
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.reference.region_swap import RegionShapley, RegionSwap
from heatlas.pipeline.explaining.explained_scan import is_evidence

SIDE = 6


class Pairs(nn.Module):
    """Twice the product of voxels 0 and 1 and the square of voxel 2; blind to all others."""

    def forward(self, volumes: Tensor) -> Tensor:
        a = volumes.flatten(1)
        return torch.stack([torch.zeros_like(a[:, 0]), 2 * a[:, 0] * a[:, 1] + a[:, 2] ** 2], dim=1)


def reference(n: int, duplicates: bool = False) -> Reference:
    volumes = torch.rand((n, 1, SIDE, SIDE, SIDE), generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    volumes = volumes[:1].expand_as(volumes) if duplicates else volumes
    return Reference(volumes, tuple(f"sub-{place}" for place in range(n)))


def volumes(n: int = 2) -> Tensor:
    return torch.rand((n, 1, SIDE, SIDE, SIDE), generator=torch.Generator().manual_seed(99), dtype=torch.float64)


@pytest.mark.parametrize("stage", [0, 1, 2, "1"])
@pytest.mark.parametrize("method", [DeepLift, ExpectedGradients, IntegratedGradientsFromMean])
def test_only_what_adds_up_is_written_as_evidence(method: type, stage: int | str) -> None:
    """A map of a stage is brought up to the input's grid, where its sum is no longer the evidence."""
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Conv3d(1, 2, 3), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(16, 3)).double().eval()
    )  # linear: every method is exact
    answer = attribute(model, volumes(), 2, method(reference(3)), stage, "evidence")
    assert answer.reference_value is not None
    error = (answer.values.sum((1, 2, 3, 4)) - (answer.start_value - answer.reference_value)).abs().max()
    assert is_evidence(answer) == (stage == 0)
    assert (float(error) < 1e-12) == is_evidence(answer)


@pytest.mark.parametrize("duplicates", [True, False])
@pytest.mark.parametrize("n", [1, 4])
def test_symmetry_and_dummies_of_a_quadratic_network(n: int, duplicates: bool) -> None:
    """Closed forms: of 2 a b + c^2 from (p, q, s), a gets (a - p)(b + q), b (b - q)(a + p), c c^2 - s^2."""
    found, given = reference(n, duplicates), volumes(1)
    labels = torch.zeros((SIDE, SIDE, SIDE), dtype=torch.long)
    labels.flatten()[:3] = torch.tensor([1, 2, 3])
    regions = RegionLabels("voxels", labels)
    a, b, c = given.flatten()[:3]
    p, q, s = found.mean.flatten()[:3]
    path = torch.stack([(a - p) * (b + q), (b - q) * (a + p), c**2 - s**2])
    swap = torch.stack([2 * (a - p) * b, 2 * (b - q) * a, c**2 - s**2])
    for method, wanted in (
        (IntegratedGradientsFromMean(found), path),
        (RegionShapley(found, regions), path),
        (RegionSwap(found, regions), swap),
    ):
        answer = attribute(Pairs().eval(), given, 1, method, 0, "evidence")
        torch.testing.assert_close(answer.values.flatten()[:3], wanted, atol=1e-12, rtol=0)
        assert not answer.values.flatten()[3:].any()
    each = found.volumes.flatten(1)[:, :3]
    wanted = torch.stack(
        [(a - each[:, 0]) * (b + each[:, 1]), (b - each[:, 1]) * (a + each[:, 0]), c**2 - each[:, 2] ** 2]
    ).mean(1)
    for batch in (1, 3):
        answer = attribute(Pairs().eval(), given, 1, ExpectedGradients(found, alphas=60, batch=batch), 0, "evidence")
        torch.testing.assert_close(answer.values.flatten()[:3], wanted, atol=2e-2, rtol=0)
        assert not answer.values.flatten()[3:].any()
