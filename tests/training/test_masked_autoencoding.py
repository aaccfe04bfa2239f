"""Masked autoencoding: patches in the order of tokens; hidden ones are not seen, and they alone are in the loss."""

import numpy as np
import pytest
import torch

from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.probes.backbone import kept_stages
from heatlas.pipeline.models.families.vit import build
from heatlas.pipeline.run.config.pretraining import PretrainingConfig
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.pipeline.training.pretraining.masked import MaskedAutoencoder, masked_autoencoding, standardised_patches

MODEL = ViTConfig(patch=4, dim=12, depth=2, heads=2)
SHAPE = (9, 12, 8)
"""Eight of nine voxels are in whole patches along the first axis."""


def autoencoder(seed: int = 1, ratio: float = 0.5) -> MaskedAutoencoder:
    torch.manual_seed(seed)
    stages, _ = kept_stages(build(SHAPE, MODEL, 2), SHAPE)
    return MaskedAutoencoder(stages, SHAPE, MODEL, ratio)


def volumes(count: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 1, *SHAPE, generator=torch.Generator().manual_seed(seed))


def batch(given: torch.Tensor) -> Batch:
    return Batch(given, torch.arange(len(given)), torch.arange(len(given)), epoch=1)


def test_patches_are_those_of_the_tokens():
    """A filter of ones adds up the voxels of a patch: the same order, and the same remainder left out."""
    given, network = volumes(), autoencoder()
    patches = standardised_patches(given, 4)
    brute = [
        given[:, 0, x : x + 4, y : y + 4, z : z + 4].flatten(1).numpy()
        for x in (0, 4)
        for y in (0, 4, 8)
        for z in (0, 4)
    ]
    expected = np.stack([(part - part.mean(1)[:, None]) / part.std(1)[:, None] for part in brute], 1)
    np.testing.assert_allclose(patches, expected, atol=2e-4)
    embedding = network.tokens
    torch.nn.init.ones_(embedding[0].weight)
    torch.nn.init.zeros_(embedding[0].bias)
    torch.nn.init.zeros_(embedding[1].values)
    tokens = embedding(given).flatten(2)[:, 0].detach()
    np.testing.assert_allclose(tokens, np.stack([part.sum(1) for part in brute], 1), rtol=1e-5)


def test_an_even_patch_is_zero():
    assert standardised_patches(torch.full((1, 1, *SHAPE), 0.3), 4).abs().max() < 1e-3


def test_hidden_voxels_are_not_seen():
    given, network = volumes(1).requires_grad_(), autoencoder().eval()
    restored, hidden = network(given)
    assert int(hidden.sum()) == 6
    (gradient,) = torch.autograd.grad((restored * torch.rand_like(restored)).sum(), given)
    patches = gradient[:, 0, :8].unfold(1, 4, 4).unfold(2, 4, 4).unfold(3, 4, 4).flatten(4).flatten(1, 3)
    seen = patches.abs().sum(2)[0] > 0
    assert seen.tolist() == (hidden[0] == 0).tolist()


def test_the_loss_is_that_of_hidden_patches():
    given, network = volumes(), autoencoder()
    objective = masked_autoencoding(PretrainingConfig(method="masked"), 5)
    wanted = standardised_patches(given, 4)
    hidden = torch.zeros(2, 12)
    hidden[0, [1, 5]] = hidden[1, [0, 11]] = 1
    wrong = torch.where(hidden[..., None] == 1, wanted + 2.0, wanted + 100.0)
    network.forward = lambda _: (wrong, hidden)
    loss, logged = objective.loss(network, batch(given), Context())
    assert float(loss) == pytest.approx(4.0, rel=1e-5)
    assert logged["loss"].tolist() == pytest.approx([4.0, 4.0], rel=1e-5)
    assert objective.measures(logged).score == pytest.approx(1 - 4.0, abs=1e-3)
    network.forward = lambda _: (wanted, hidden)
    assert objective.measures(objective.loss(network, batch(given), Context())[1]).score == pytest.approx(1.0)


def test_in_validation_the_same_patches_are_hidden_and_training_draws_on():
    given, network = volumes(), autoencoder().eval()
    objective = masked_autoencoding(PretrainingConfig(method="masked"), 5)
    before = torch.random.get_rng_state()
    with torch.no_grad():
        one, two = (float(objective.loss(network, batch(given), Context())[0]) for _ in range(2))
    assert one == two
    assert torch.equal(torch.random.get_rng_state(), before)
    network.train()
    three, four = (float(objective.loss(network, batch(given), Context())[0].detach()) for _ in range(2))
    assert three != four


def test_patterns_are_restored_after_some_steps():
    """Each scan is one wave through the whole volume: what is seen says what is hidden."""
    objective = masked_autoencoding(PretrainingConfig(method="masked"), 5)
    phase = torch.linspace(0, 3.1, 8)[:, None, None, None]
    places = torch.stack(torch.meshgrid(*(torch.arange(side) for side in SHAPE), indexing="ij")).sum(0)
    given = (1 + torch.sin(0.8 * places + phase))[:, None]
    network = autoencoder(ratio=0.5)
    optimiser = torch.optim.Adam(network.parameters(), 5e-3)
    scores = []
    for _ in range(150):
        loss, logged = objective.loss(network, batch(given), Context())
        scores.append(objective.measures(logged).score)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    assert scores[0] < 0.05
    assert np.mean(scores[-10:]) > 0.4  # .52 to .7, by processor
