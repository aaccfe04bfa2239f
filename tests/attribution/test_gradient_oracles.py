"""Gradient methods against captum: live where it is installed, and frozen float64 maps for everyone.

``python tests/attribution/test_gradient_oracles.py`` writes the frozen maps anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gradient_toys import network, volumes
from torch import Tensor

from heatlas.pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients, completeness_delta
from heatlas.pipeline.attribution.gradient.smoothing import SmoothGrad, noise_pattern
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.perturbation.masking import Masking

FROZEN = Path(__file__).parent / "data" / "captum_gradients.npz"
TARGET, SAMPLES = 1, 3
STEPS = 16
"""A power of two: captum rounds the points of the path to float32, which then changes nothing."""

METHODS: dict[str, Method] = {
    "saliency": Gradient(),
    "input_x_gradient": InputTimesGradient(),
    "integrated_gradients": IntegratedGradients(steps=STEPS, batch=7, tolerance=1),
    "integrated_gradients_grey": IntegratedGradients(Masking(baseline=0.4), steps=STEPS, tolerance=1),
    "noise_tunnel": SmoothGrad(samples=SAMPLES, noise=0.2, seed=11),
}


def captum_maps(name: str, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Maps of captum at the input. Its noise is replaced by ours, sample by sample; its path rule is the midpoint's."""
    from captum import attr

    model, x = network(), volumes()
    leaf = x.clone().requires_grad_()
    if name == "saliency":
        return attr.Saliency(model).attribute(leaf, target=TARGET).detach()
    if name == "input_x_gradient":
        return attr.InputXGradient(model).attribute(leaf, target=TARGET).detach()
    if name.startswith("integrated"):
        baseline = 0.4 if name.endswith("grey") else 0.0
        return attr.IntegratedGradients(model).attribute(
            leaf, baseline, target=TARGET, n_steps=STEPS, method="riemann_middle"
        ).detach()  # fmt: skip
    noise = torch.stack([noise_pattern(x, 11, sample) for sample in range(SAMPLES)])
    maps = []
    for volume in x:
        share = 0.2 * (volume.max() - volume.min())
        monkeypatch.setattr(torch, "normal", lambda mean, std, share=share: share * noise)
        tunnel = attr.NoiseTunnel(attr.Saliency(model))
        maps.append(
            tunnel.attribute(
                volume[None].requires_grad_(), nt_type="smoothgrad", nt_samples=SAMPLES, target=TARGET, abs=False
            ).abs()
        )
    return torch.cat(maps).detach()


@pytest.mark.oracle
@pytest.mark.parametrize("name", METHODS)
def test_equals_captum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("captum.attr")
    theirs = captum_maps(name, monkeypatch)
    monkeypatch.undo()
    ours = attribute(network(), volumes(), TARGET, METHODS[name]).values
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12 * float(theirs.abs().max()))


@pytest.mark.oracle
@pytest.mark.parametrize("stage", [0, 1])
def test_inner_stage_equals_captum_layer_methods(stage: int) -> None:
    attr = pytest.importorskip("captum.attr")
    model, x = network(), volumes()
    layer = model.stages[stage]
    ours = attribute(model, x, TARGET, InputTimesGradient(), stage + 1, at_input_grid=False).values
    theirs = attr.LayerGradientXActivation(model, layer).attribute(x.clone().requires_grad_(), target=TARGET)
    torch.testing.assert_close(ours, theirs.detach().sum(1, keepdim=True), rtol=1e-10, atol=1e-14)
    method = IntegratedGradients(steps=STEPS, tolerance=1)
    ours = attribute(model, x, TARGET, method, stage + 1, at_input_grid=False).values
    theirs = attr.LayerIntegratedGradients(model, layer).attribute(
        x.clone(), torch.zeros_like(x), target=TARGET, n_steps=STEPS, method="riemann_middle"
    )
    torch.testing.assert_close(ours, theirs.detach().sum(1, keepdim=True), rtol=1e-10, atol=1e-14)


@pytest.mark.oracle
def test_completeness_delta_equals_captum() -> None:
    attr = pytest.importorskip("captum.attr")
    model, x = network(), volumes()
    theirs, delta = attr.IntegratedGradients(model).attribute(
        x, target=TARGET, n_steps=5, return_convergence_delta=True
    )
    with torch.no_grad():
        ours = completeness_delta(theirs.detach(), model(x)[:, TARGET], model(torch.zeros_like(x))[:, TARGET])
    assert float(delta.abs().max()) > 1e-6
    torch.testing.assert_close(ours, delta, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_equals_frozen_captum(name: str) -> None:
    """Weights and volume are frozen too, so that another random generator changes nothing."""
    with np.load(FROZEN) as frozen:
        arrays = {key: torch.from_numpy(frozen[key]) for key in frozen.files}
    model = network()
    model.load_state_dict({key.removeprefix("weights."): v for key, v in arrays.items() if key.startswith("weights.")})
    ours = attribute(model, arrays["volume"], TARGET, METHODS[name]).values
    expected = arrays[name]
    if name == "noise_tunnel":
        noise = noise_pattern(arrays["volume"], 11, 0)
        # In float32 by a logarithm and a cosine, which AVX2 approximates: 1e-6 apart from those without it.
        torch.testing.assert_close(noise, arrays["noise"], rtol=0, atol=1e-5, msg="PyTorch draws other noise")
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11 * float(expected.abs().max()))


def freeze() -> None:
    """Write what captum gives for the first volume."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        maps = {name: captum_maps(name, monkeypatch)[:1].numpy() for name in METHODS}
    weights = {f"weights.{key}": values.numpy() for key, values in network().state_dict().items()}
    noise = noise_pattern(volumes(), 11, 0).numpy()
    np.savez_compressed(FROZEN, volume=volumes()[:1].numpy(), noise=noise, **weights, **maps)


if __name__ == "__main__":
    freeze()
