from __future__ import annotations

import pytest
import torch
from torch import nn

from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import Masking, mixed
from heatlas.pipeline.run.errors import BadInputError, UsageError


def volumes(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(2, 1, 5, 6, 7, dtype=dtype, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("baseline", [0.0, -1.7])
def test_both_ends_are_exact_and_the_middle_is_the_mix(baseline, dtype):
    x, masking = volumes(dtype), Masking(baseline)
    hidden = masking.hidden(x).expand_as(x)
    assert torch.equal(masking.apply(x, torch.ones_like(x)), x)
    assert torch.equal(masking.apply(x, torch.zeros_like(x)), hidden)
    keep = torch.rand(x.shape, dtype=dtype)
    torch.testing.assert_close(masking.apply(x, keep), hidden + keep * (x - hidden))


def test_masking_commutes_with_affine_scaling():
    raw, keep = volumes(), torch.rand(2, 1, 5, 6, 7, dtype=torch.float64)
    mean, deviation = 0.4, 0.2
    scaled = (raw - mean) / deviation
    expected = (Masking(0.0).apply(raw, keep) - mean) / deviation
    torch.testing.assert_close(Masking(-mean / deviation).apply(scaled, keep), expected)
    assert (Masking(0.0).apply(scaled, keep) - expected).abs().max() > 0.5  # zero of a z-score is mean tissue, not air


def test_keep_broadcasts_over_channels_and_gradient_is_the_difference():
    x = torch.rand(2, 3, 4, 5, 6, dtype=torch.float64)
    hidden = torch.rand(3, 4, 5, 6, dtype=torch.float64)
    keep = torch.rand(2, 1, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(mixed(x, keep, hidden).sum(), keep)
    torch.testing.assert_close(gradient, (x - hidden).sum(dim=1, keepdim=True))


@pytest.mark.parametrize("keep", [torch.tensor(float("nan")), torch.tensor(1.1), torch.tensor(-0.1)])
def test_a_mask_outside_its_range_is_refused(keep):
    with pytest.raises(BadInputError, match=r"\[0, 1\]"):
        Masking().apply(volumes(), keep)


def test_bad_settings_are_refused_by_name():
    with pytest.raises(UsageError, match="inner"):
        Masking(inner="mean")
    with pytest.raises(UsageError, match="baseline"):
        Masking(float("nan"))


@pytest.mark.parametrize("baseline", [0.3, -1.7])
def test_hidden_features_are_those_of_the_baseline_volume_or_zero(baseline):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(630, 2)).double().eval()
    x = volumes()
    with explaining(net, x, 1, stage=2) as view, torch.no_grad():
        hidden = Masking(baseline).hidden(x).expand_as(x)
        torch.testing.assert_close(Masking(baseline).hidden_features(view), net[:2](hidden))
        zero = Masking(baseline, inner="zero").hidden_features(view)
        assert zero.shape == view.features.shape
        assert not zero.any()
    with explaining(net, x, 1) as view:
        assert torch.equal(Masking(baseline, inner="zero").hidden_features(view), hidden)  # at the input: the baseline
