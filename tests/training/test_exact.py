"""Networks that are solved: the ridge of scikit-learn on all voxels, and the baseline on the smoothed image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.families.linear import LinearConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.training import exact
from heatlas.pipeline.training.baselines import images
from heatlas.pipeline.training.baselines.ridge import fit, power_of_ten, predicted, rotation
from heatlas.pipeline.training.exact import Columns, require_plain, solved
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.volumes import LabelledVolumes

SHAPE = (9, 11, 10)
COHORTS = {
    "two": {},
    "three": {"classes": ["CN", "MCI", "AD"]},
    "number": {"target": "age"},
}


def people(n: int) -> list[str]:
    return [f"sub-{i}" for i in range(n)]


def settings(kind: str, **model: object) -> Config:
    return load_config(overrides={"cohort": COHORTS[kind], "model": {"architecture": "linear", **model}})


def scans(kind: str, n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Volumes with a background of 0 and a cube that grows with the target."""
    rng = np.random.default_rng(5)
    number = np.arange(n) % {"two": 2, "three": 3, "number": 7}[kind]
    volumes = rng.random((n, *SHAPE), np.float32) + 0.1
    volumes[:, 3:6, 3:6, 3:6] += 0.4 * number[:, None, None, None]
    volumes[:, :, :, :2] = 0
    volumes /= volumes.max()
    targets = torch.as_tensor(60 + 3.0 * number, dtype=torch.float32) if kind == "number" else torch.as_tensor(number)
    return torch.from_numpy(volumes), targets


def solve(config: Config, volumes: torch.Tensor, targets: torch.Tensor, folder: Path, validation: int = 8):
    task = task_of(config.cohort)
    model = build_network(config.model, SHAPE, len(task.outputs))
    cut = len(volumes) - validation
    parts = [
        LabelledVolumes(own[:, None], of)
        for own, of in ((volumes[:cut], targets[:cut]), (volumes[cut:], targets[cut:]))
    ]
    objective = objective_of(task, config.training, targets[:cut])
    found = solved(model, parts, people(len(volumes)), objective, task, config, 1, folder)
    return model.eval(), found, objective


@pytest.mark.parametrize("kind", COHORTS)
@pytest.mark.parametrize("part", [64, 2**15])
def test_weights_are_those_of_scikit_learn_on_all_voxels(kind, part, tmp_path, monkeypatch) -> None:
    """Solved in the space of scans, read in parts; here in the space of voxels, with the same penalty."""
    monkeypatch.setattr(exact, "PART", part)
    volumes, targets = scans(kind)
    model, _, objective = solve(settings(kind), volumes, targets, tmp_path)
    x = volumes.flatten(1).double().numpy()
    scaler = StandardScaler().fit(x)
    z, y = scaler.transform(x), targets.numpy().astype(float)
    if kind == "number":
        y = (y - objective.facts["target_mean"]) / objective.facts["target_sd"]
    inner = z @ z.T
    penalty = fit(inner @ rotation(inner, z.shape[1]), y, people(40), {"two": 2, "three": 3}.get(kind, 0), 1).penalty
    penalty *= power_of_ten(z.shape[1] / len(z))  # rotated columns are divided by the root of this
    if kind == "number":
        reference = Ridge(penalty, solver="cholesky").fit(z, y)
        outputs = reference.predict(z)[:, None]
    else:
        reference = LogisticRegression(C=1 / penalty, class_weight="balanced", tol=1e-10, max_iter=20000).fit(z, y)
        outputs = reference.decision_function(z)
    weights = np.atleast_2d(reference.coef_) / scaler.scale_
    if kind == "two":
        weights, outputs = np.concatenate([-weights, weights]) / 2, np.stack([-outputs, outputs], 1) / 2
    own = model.stages[-1][-1].weight.detach().double().numpy()
    np.testing.assert_allclose(own, weights, atol=2e-3 * np.abs(weights).max())
    with torch.no_grad():
        np.testing.assert_allclose(model(volumes[:, None]).numpy(), outputs, atol=2e-3 * np.abs(outputs).max())


@pytest.mark.parametrize("kind", COHORTS)
def test_it_equals_the_baseline_on_the_smoothed_image(kind, tmp_path, monkeypatch) -> None:
    """Voxels of 2 mm: 8 mm and every 4 mm, on the same people, scale and inner folds."""
    volumes, targets = scans(kind, 48)
    model, _, objective = solve(settings(kind, fwhm_voxels=4, step=2), volumes[:40], targets[:40], tmp_path)
    flat = np.stack([images.smoothed(one.numpy(), 2.0) for one in volumes]).astype(np.float64)
    with torch.no_grad():
        seen = model.stages[0][:-1](volumes[:, None])
        outputs = model(volumes[40:, None]).double().numpy()
    np.testing.assert_allclose(seen.numpy(), flat, atol=1e-6)
    classes = {"two": 2, "three": 3}.get(kind, 0)
    baseline = predicted(flat[:40], targets[:40].numpy().astype(float), people(40), flat[40:], classes, 1)
    if classes:
        np.testing.assert_allclose(softmax(outputs, axis=1), baseline, atol=1e-4)
    else:
        scale = objective.facts
        np.testing.assert_allclose(outputs[:, 0] * scale["target_sd"] + scale["target_mean"], baseline, atol=1e-3)


def test_a_planted_cube_is_found_and_the_history_is_of_people_not_learned_from(tmp_path) -> None:
    volumes, targets = scans("two", 60)
    model, found, _ = solve(settings("two"), volumes, targets, tmp_path)
    weights = model.stages[-1][-1].weight.detach()[1].reshape(SHAPE)
    cube = torch.zeros(SHAPE, dtype=torch.bool)
    cube[3:6, 3:6, 3:6] = True
    assert float(weights[cube].mean()) > 5 * float(weights[~cube].abs().mean())
    assert bool((weights[:, :, :2] == 0).all())  # outside every brain
    assert found.history[0].validation_score >= 0.9
    shuffled = targets[torch.randperm(60, generator=torch.Generator().manual_seed(2))]
    _, chance, _ = solve(settings("two"), volumes, shuffled, tmp_path)
    assert chance.history[0].validation_score < 0.75 <= 0.9 <= found.history[0].train_score


def test_columns_are_read_from_a_file_and_nothing_is_left_behind(tmp_path) -> None:
    volumes, targets = scans("two")
    solve(settings("two"), volumes, targets, tmp_path)
    assert list(tmp_path.iterdir()) == []
    x = np.array([[1.0, 5.0], [3.0, 5.0]], np.float32)
    np.testing.assert_allclose(Columns(x).inner(), [[1, -1], [-1, 1]])
    weights, intercepts = Columns(x).weights(np.array([[0.0], [2.0]]), np.array([1.0]))
    np.testing.assert_allclose(weights, [[2.0, 0.0]])  # 2 (3 - 2) / 1, and 0 where all are the same
    assert intercepts == pytest.approx([1 - 2 * 2.0])


def test_exact_maps_coincide(tmp_path) -> None:
    """Weight times difference from the controls: expected gradients, DeepLIFT, and input times gradient less theirs."""
    volumes, targets = scans("two")
    for model_settings in ({}, {"fwhm_voxels": 3, "step": 2}):
        model, _, _ = solve(settings("two", **model_settings), volumes, targets, tmp_path)
        model = model.double()
        image, controls = volumes[1:2, None].double(), volumes[targets == 0][:5, None].double()
        reference = Reference(controls, people(5))
        maps = {
            name: attribute(model, image, 1, METHODS[name].record(reference=reference), 0, "evidence").values
            for name in ("expected-gradients", "integrated-gradients-from-mean", "deeplift")
        }
        product = METHODS["input-x-gradient"].record()
        own, of_controls = (attribute(model, one, 1, product, 0, "evidence").values for one in (image, controls))
        exact_map = own - of_controls.mean(0, keepdim=True)
        for found in maps.values():
            torch.testing.assert_close(found, exact_map, rtol=1e-6, atol=1e-9)
        x = image.requires_grad_()
        logits = model(x)
        (gradient,) = torch.autograd.grad(logits[0, 1] - logits[0, 0], x)
        torch.testing.assert_close(exact_map, gradient * (image - controls.mean(0)).detach(), rtol=1e-6, atol=1e-9)


def test_too_few_people_of_a_class_are_named(tmp_path) -> None:
    volumes, targets = scans("two", 10)
    with pytest.raises(BadInputError, match="Use fewer folds, or add participants"):
        solve(settings("two"), volumes, torch.zeros_like(targets), tmp_path, validation=2)


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("training", {"ensemble": 2}, "training.ensemble = 1"),
        ("training", {"loss": "off-target"}, 'training.loss = "usual"'),
    ],
)
def test_settings_that_have_no_place_are_refused(section, values, said) -> None:
    config = load_config(overrides={"model": {"architecture": "linear"}, section: values})
    with pytest.raises(UsageError, match=said):
        require_plain(config)
    require_plain(settings("two"))


def test_smoothing_without_a_width_skips_no_voxel() -> None:
    assert not all(passes for passes, _ in LinearConfig(step=2).checks())
    assert all(passes for passes, _ in LinearConfig(fwhm_voxels=4, step=2).checks())
