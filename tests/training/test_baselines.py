"""Simple predictors, and networks that are solved."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from torch import nn

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.models.families.plain import LinearConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.training import exact
from heatlas.pipeline.training.baselines import images, stage
from heatlas.pipeline.training.baselines.images import (
    CHANNELS,
    ImageFeatures,
    by_region,
    coarsened,
    random_features,
    random_weights,
    smoothed,
    standardised,
)
from heatlas.pipeline.training.baselines.ridge import fit, power_of_ten, predicted, rotation
from heatlas.pipeline.training.baselines.stage import BASELINES, Seen
from heatlas.pipeline.training.exact import Columns, require_plain, solved
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.volumes import LabelledVolumes

# Simple predictors: closed forms, identities, and what they must not see.

BY_NAME = {one.name: one for one in BASELINES}


def people(n: int) -> list[str]:
    return [f"sub-{i}" for i in range(n)]


def test_means_and_spreads_are_those_of_the_voxels() -> None:
    rng = np.random.default_rng(0)
    volume, labels = rng.random((5, 6, 7), np.float32), rng.integers(0, 4, (5, 6, 7))
    means, spreads = by_region(volume, labels)
    for place, number in enumerate((1, 2, 3)):
        own = volume[labels == number].astype(np.float64)
        assert (means[place], spreads[place]) == (pytest.approx(own.mean()), pytest.approx(own.std(), abs=1e-7))


def test_the_scale_and_the_brightest_voxel_of_an_image_do_not_matter() -> None:
    volume = np.random.default_rng(1).random((6, 7, 8), np.float32)
    volume[0] = 0
    np.testing.assert_allclose(standardised(3 * volume), standardised(volume), atol=1e-5)
    assert standardised(volume)[1:].mean() == pytest.approx(0, abs=1e-6)
    assert (standardised(volume)[0] == 0).all()


def test_a_point_becomes_a_gaussian_of_8_mm() -> None:
    point = np.zeros((41, 41, 41), np.float32)
    point[20, 20, 20] = 1
    found = smoothed(point, 2.0).reshape(21, 21, 21)
    assert found[10, 10, 12] / found[10, 10, 10] == pytest.approx(2.0 ** -(2 * (8 / 4) ** 2 / 2), rel=2e-3)  # at 8 mm


def test_an_untrained_network_is_the_one_of_its_description() -> None:
    """As layers of torch: two full convolutions, then depthwise and pointwise ones, at four scales."""
    volume = np.random.default_rng(11).standard_normal((1, 32, 17, 16)).astype(np.float32)
    values, expected = torch.from_numpy(volume)[None], []
    for scale, (weights, width) in enumerate(zip(random_weights(1), CHANNELS, strict=True)):
        layers: list[nn.Module] = []
        for one in weights:
            depthwise = scale > 0 and one.shape[1] == 1
            inputs = len(one) if depthwise else one.shape[1]
            layer = nn.Conv3d(
                inputs, len(one), one.shape[2], padding="same", groups=len(one) if depthwise else 1, bias=False
            )
            layer.weight.data = one.clone()
            layers += [layer] if depthwise else [layer, nn.GroupNorm(8, width), nn.ReLU()]
        values = nn.Sequential(*layers, nn.AvgPool3d(2, ceil_mode=True))(values)
        expected.append(nn.AdaptiveAvgPool3d(2)(values).flatten())
        rows = values[0, :32].flatten(1).detach()
        expected.append(torch.tensor([np.cov(a, b, ddof=0)[0, 1] for a, b in itertools.combinations(rows.numpy(), 2)]))
    found = random_features(volume)
    np.testing.assert_allclose(found, torch.cat(expected).detach().numpy(), rtol=1e-3, atol=1e-4)
    assert found.shape == (3528,)
    assert np.isfinite(random_features(volume[:, :5, :4, :3])).all()  # of a template that is small


def test_random_filters_have_the_variance_that_no_scale_fades_by() -> None:
    full, pointwise = random_weights(1)[0][1], random_weights(1)[3][3]
    assert full.var().item() == pytest.approx(2 / (16 * 27), rel=0.1)
    assert pointwise.var().item() == pytest.approx(2 / 128, rel=0.1)


def test_cubes_have_the_mean_of_their_voxels() -> None:
    volume = np.random.default_rng(12).random((5, 4, 7), np.float32)
    found = coarsened(volume, 2.0)
    assert found.shape == (2, 2, 3)
    assert found[1, 0, 2] == pytest.approx(volume[2:4, 0:2, 4:6].mean(), rel=1e-6)
    np.testing.assert_array_equal(coarsened(volume, 4.0), volume)


def test_a_ridge_separates_what_is_separable_and_guesses_where_there_is_nothing() -> None:
    rng = np.random.default_rng(2)
    x, target = rng.standard_normal((60, 3)), np.arange(60) % 2.0
    x[:, 1] += 4 * target
    found = predicted(x[:40], target[:40], people(40), x[40:], 2, 1)
    assert ((found[:, 1] > 0.5) == target[40:]).mean() >= 0.9
    numbers = x @ np.array([1.0, 2.0, -1.0]) + 70
    np.testing.assert_allclose(predicted(x[:40], numbers[:40], people(40), x[40:], 0, 1), numbers[40:], atol=0.05)


def test_more_columns_than_scans_change_nothing_but_the_time() -> None:
    """Rotated to as many columns as scans, a ridge predicts what it predicts of all columns."""
    rng = np.random.default_rng(3)
    x, target = rng.standard_normal((30, 50)), np.arange(20) % 2.0
    x[:20, 0] += 2 * target
    mean, scale = x[:20].mean(axis=0), x[:20].std(axis=0)
    z = (x - mean) / scale
    found = predicted(x[:20], target, people(20), x[20:], 2, 1)
    penalties = [20 * 10.0**k for k in range(-4, 5)]
    direct = [
        LogisticRegression(C=1 / one, class_weight="balanced", tol=1e-9, max_iter=5000)
        .fit(z[:20], target)
        .predict_proba(z[20:])
        for one in penalties
    ]
    assert min(np.abs(one - found).max() for one in direct) < 1e-4


def test_gaps_are_filled_by_the_training_part_alone() -> None:
    rng = np.random.default_rng(4)
    x, target = rng.standard_normal((40, 2)), np.arange(30) % 2.0
    x[:30, 0] += 2 * target
    test = x[30:].copy()
    test[0, 0] = np.nan
    filled = test.copy()
    filled[0, 0] = x[:30, 0].mean()
    both = [predicted(x[:30], target, people(30), one, 2, 1) for one in (test, filled)]
    np.testing.assert_allclose(*both)


def seen(predicted_column: str = "diagnosis", **facts: object) -> Seen:
    scans = [Scan(f"sub-{i}", None, f"I{i}", None, age=60.0 + i, sex="FM"[i % 2], **facts) for i in range(4)]
    image = ImageFeatures(np.ones(3), np.zeros(3), np.ones(5, np.float32), np.ones(7, np.float32))
    return Seen(scans, pd.DataFrame({"nwbv": [0.7, 0.8]}, index=["I0", "I2"]), [image] * 4, predicted_column)


def test_each_baseline_sees_what_it_says() -> None:
    assert BY_NAME["demographics"].columns(seen()).tolist() == [[60, 0], [61, 1], [62, 0], [63, 1]]
    volumes = BY_NAME["volumes"].columns(seen(hippocampus_mm3=6000.0, tiv_mm3=1.5e6))
    assert volumes[0].tolist() == [6000, 0.004, 0.7, 1.5e6, 60, 0]
    assert np.isnan(volumes[1, 2])
    assert BY_NAME["regions"].columns(seen()).shape == (4, 6)
    assert BY_NAME["voxels"].columns(seen()).shape == (4, 5)
    assert BY_NAME["untrained"].columns(seen()).shape == (4, 7)


def test_what_is_to_be_predicted_is_hidden() -> None:
    assert np.isnan(BY_NAME["demographics"].columns(seen("age"))[:, 0]).all()
    assert np.isnan(BY_NAME["demographics"].columns(seen("sex"))[:, 1]).all()
    assert BY_NAME["volumes"].columns(seen("nWBV")).shape == (4, 0)  # a contrast by number, as OASIS spells it


def test_without_any_volume_the_baseline_of_volumes_is_left_out() -> None:
    nobody = seen()
    nobody = Seen(nobody.scans, pd.DataFrame(), nobody.images, "diagnosis")
    assert BY_NAME["volumes"].columns(nobody).shape == (4, 0)


class Here:
    """An executor without processes."""

    map = staticmethod(map)


def predictions_of_run(tmp_path, monkeypatch, several: bool, **facts: object) -> pd.DataFrame:
    """What `_predictions` makes of 24 people, whose age says their class, in two folds."""
    classes = ["CN", "MCI", "AD"] if several else ["CN", "AD"]
    rng = np.random.default_rng(8)
    scans = [
        Scan(f"sub-{i:02d}", None, f"I{i}", None, diagnosis=classes[i % len(classes)], label=classes[i % len(classes)],
             sex="FM"[i // 2 % 2], **{name: value(i % len(classes)) for name, value in facts.items()})
        for i in range(24)
    ]  # fmt: skip
    names = [one.participant_id for one in scans]
    folds = (Fold(0, tuple(names[12:20]), tuple(names[20:]), tuple(names[:12])),
             Fold(1, tuple(names[:8]), tuple(names[8:12]), tuple(names[12:])))  # fmt: skip
    layout = RunLayout(tmp_path)
    (layout.group / "predictions.tsv").parent.mkdir(parents=True)
    own = pd.DataFrame({"scan_id": [one.scan_id for one in scans], "fold": np.arange(24) // 12})
    own.to_csv(layout.group / "predictions.tsv", sep="\t", index=False)
    flat = [rng.random((len(scans), width)).astype(np.float32) for width in (5, 7)]
    images = [ImageFeatures(rng.random(3), rng.random(3), *each) for each in zip(*flat, strict=True)]
    monkeypatch.setattr(stage, "image_features", lambda *_: images.pop())
    config = load_config(overrides={"cohort": {"classes": classes} if several else {}})
    files = [None] * len(scans)
    work = Work(layout, tmp_path, config, (), Split(folds), Here(), DigestCache(layout.digests))
    return stage._predictions(work, scans, files, None, None, tmp_path)


def test_baselines_of_several_classes_know_what_can_be_known(tmp_path, monkeypatch) -> None:
    made = predictions_of_run(tmp_path, monkeypatch, True, age=lambda k: 60.0 + 10 * k)
    every = ["probability_CN", "probability_MCI", "probability_AD"]
    np.testing.assert_allclose(made[every].sum(axis=1), 1)
    assert (made["prediction"] == made["probability_AD"]).all()
    own = made[made["baseline"] == "demographics"]
    assert len(own) == 24
    assert (own[every].to_numpy().argmax(axis=1) == own["target"]).all()


def test_columns_that_nobody_has_lose_nothing_else(tmp_path, monkeypatch, caplog) -> None:
    caplog.set_level("INFO", "heatlas")
    made = predictions_of_run(tmp_path, monkeypatch, False)
    assert sorted(made["baseline"].unique()) == [
        "demographics",
        "regions",
        "untrained",
        "voxels",
    ]  # of sex alone, and of images
    assert made.groupby("baseline").size().eq(24).all()
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith("baseline volumes: nobody has what it sees")
    assert "add these columns" in said


def test_a_baseline_that_cannot_be_fitted_is_named_and_the_others_are_made(tmp_path, monkeypatch, caplog) -> None:
    usual = stage.predicted

    def failing(train, *others):
        if train.shape[1] == 6:
            raise ValueError("no")
        return usual(train, *others)

    monkeypatch.setattr(stage, "predicted", failing)
    made = predictions_of_run(tmp_path, monkeypatch, False)
    assert sorted(made["baseline"].unique()) == ["demographics", "untrained", "voxels"]
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [one[:24] for one in said] == ["baseline regions, fold 0", "baseline regions, fold 1"]


# Networks that are solved: the ridge of scikit-learn on all voxels, and the baseline on the smoothed image.

SHAPE = (9, 11, 10)
COHORTS = {
    "two": {},
    "three": {"classes": ["CN", "MCI", "AD"]},
    "number": {"target": "age"},
}


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


def test_a_worker_reads_the_rows_of_its_fold_alone(tmp_path: Path) -> None:
    x = np.random.default_rng(4).normal(size=(34, 40)).astype(np.float32)
    x[30:] = np.nan  # of other people; a gap would be filled with the mean
    np.save(tmp_path / "x.npy", x)
    target, train, test = (np.arange(26) % 2).astype(float), [*range(4, 30)], [0, 1, 2, 3]
    found = stage._attempt(tmp_path / "x.npy", train, test, target, people(26), 2, 1)
    scaler = StandardScaler().fit(x[train].astype(float))
    once = [scaler.transform(x[rows].astype(float)) for rows in (train, test)]
    np.testing.assert_allclose(found, predicted(once[0], target, people(26), once[1], 2, 1), atol=1e-6)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)


def test_a_baseline_is_not_said_to_see_what_is_predicted():
    named = {one.name: one for one in BASELINES}
    assert named["volumes"].in_words("Age") == "hippocampal and brain volume and sex"
    assert named["volumes"].in_words("mmse") == "hippocampal and brain volume, age and sex"
