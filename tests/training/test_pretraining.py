"""Pre-training: masked autoencoding and contrastive losses."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.vit import build
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.networks import PretrainingConfig
from heatlas.pipeline.run.config.settings import AugmentationConfig, TrainingConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_json
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.pipeline.training.progress import BestEpoch, EpochRecord
from heatlas.pipeline.training.steps import ALONE, Ranks, in_processes
from heatlas.pipeline.training.trainer import Resumption, Trained, train
from heatlas.pipeline.training.volumes import FurtherAugmentation, LabelledVolumes
from heatlas.studies.pretraining.methods import (
    MaskedAutoencoder,
    against_keys,
    info_nce,
    masked_autoencoding,
    nt_xent,
    pretraining,
    standardised_patches,
    views_of_scans,
)
from heatlas.studies.pretraining.networks import Pretraining, temperature_at, temperature_of
from heatlas.studies.pretraining.stage import (
    PRETRAINING_TABLE,
    PretrainingTask,
    _description,
    _history,
    _objective,
    classes_of,
    parts_of,
    tail_people,
)
from heatlas.studies.probes.network import kept_stages
from heatlas.studies.probes.records import ProbeConfig, knows_labels

# Pre-training: masked autoencoding, who takes part, and who has which temperature.

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


def cohort(**sizes: int) -> list[Scan]:
    """As many people of each diagnosis, two scans each; the second of AD says MCI."""
    scans = []
    for name, size in sizes.items():
        for number in range(size):
            later = "MCI" if name == "AD" else name
            for session, diagnosis in (("ses-1", name), ("ses-2", later)):
                label = diagnosis if diagnosis != "MCI" else None
                person = f"sub-{name}{number:02d}"
                scans.append(Scan(person, session, f"{person}_{session}", None, diagnosis=diagnosis, label=label))
    return scans


def config(**settings):
    return load_config(overrides={"pretraining": settings, "seed": 3})


def drawn(scans: list[Scan], **settings) -> set[str]:
    return {scan.participant_id for scan in parts_of(config(**settings), scans)[0]}


def test_the_number_of_people_falls_from_class_to_class():
    scans = cohort(AD=30, CN=40, MCI=20)
    left, validation = parts_of(config(long_tail=["CN", "MCI", "AD"], long_tail_ratio=16.0), scans)
    people = {scan.participant_id for scan in left}
    assert Counter(person[4:-2] for person in people) == {"CN": 40, "MCI": 10, "AD": 2}  # 40 / 16 = 2.5
    assert Counter(scan.participant_id for scan in left) == dict.fromkeys(people, 2)  # with all their scans
    assert set(validation) < people
    assert left == parts_of(config(long_tail=["CN", "MCI", "AD"], long_tail_ratio=16.0), scans)[0]


def test_draws_are_nested_and_a_ratio_of_one_has_as_many_of_each():
    scans = cohort(AD=30, CN=40, MCI=20)
    few, more = (drawn(scans, long_tail=["CN", "AD"], long_tail_ratio=ratio) for ratio in (10.0, 4.0))
    assert few < more
    assert Counter(person[4:-2] for person in few) == {"CN": 40, "AD": 4}
    assert Counter(person[4:-2] for person in drawn(scans, long_tail=["CN", "AD"])) == {"CN": 30, "AD": 30}
    assert drawn(scans) == {scan.participant_id for scan in scans}


def test_a_class_is_that_of_the_first_scan_and_nobody_without_one_is_of_the_tail():
    scans = [*cohort(AD=2, CN=3), Scan("sub-x", None, "x", None)]
    assert classes_of(scans) == {
        "sub-AD00": "AD", "sub-AD01": "AD", "sub-CN00": "CN", "sub-CN01": "CN", "sub-CN02": "CN"
    }  # fmt: skip
    assert tail_people(config(schedule="by-class", tail_classes=["AD"]), scans) == ("sub-AD00", "sub-AD01")
    assert tail_people(config(), scans) == ()


def test_a_queue_is_not_averaged():
    own = load_config(overrides={"training": {"weight_average": 0.9}, "pretraining": {"method": "moco"}})
    with pytest.raises(UsageError, match=r"training.weight_average must be 0 where pretraining.method = \"moco\""):
        parts_of(own, cohort(AD=9, CN=12))


def test_nobody_left_is_said_so_whatever_the_classes():
    with pytest.raises(BadInputError, match="the input has 0 participants"):
        parts_of(config(), [])


@pytest.mark.parametrize(("schedule", "tail"), [("by-class", ("AD",)), ("cosine", ())])
def test_a_backbone_with_temperatures_by_class_knows_labels(tmp_path, schedule, tail):
    """So no network on shuffled labels may stand on it."""
    own = config(schedule=schedule, tail_classes=list(tail))
    scans = tuple(cohort(AD=2, CN=2))
    task = PretrainingTask(own, ("sub-AD00",), 1, (), {}, scans, configured_input(own), RunLayout(tmp_path))
    description = _description(task, Trained(BestEpoch(), (), {}), torch.device("cpu"))
    write_json(task.layout.backbone.description, description)
    assert knows_labels(ProbeConfig(backbone=str(tmp_path))) == (schedule == "by-class")


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"schedule": "by-class", "tail_classes": ["ad"]}, BadInputError, r"nobody is of ad. Classes .* are AD, CN\."),
        ({"schedule": "by-class", "tail_classes": ["AD", "CN"]}, BadInputError, "everybody is of these"),
        ({"long_tail": ["CN", "FTD"]}, BadInputError, "pretraining.long_tail: class FTD has no participant"),
        ({"long_tail": ["CN", "AD"], "long_tail_ratio": 90.0}, UsageError, r"the rarest would\s+have none"),
        ({"tail_classes": ["AD"]}, UsageError, "tail_classes and .* go together"),
        ({"schedule": "by-class"}, UsageError, "tail_classes and .* go together"),
        ({"schedule": "by-class", "tail_classes": ["AD"], "method": "byol"}, UsageError, '"simclr" or "moco"'),
        ({"long_tail_ratio": 10.0}, UsageError, "long_tail must name two classes"),
        ({"long_tail": ["CN"]}, UsageError, "long_tail must name two classes"),
        ({"long_tail": ["CN", "CN"]}, UsageError, "name each value once"),
    ],
)
def test_what_cannot_be_drawn_is_named(settings, error, said):
    with pytest.raises(error, match=said):
        parts_of(config(**settings), cohort(AD=9, CN=12))


def test_a_head_has_no_rate_of_its_own_where_there_are_no_classes():
    own = load_config(overrides={"training": {"head_learning_rate_factor": 0.1}})
    with pytest.raises(UsageError, match="must be 1"):
        parts_of(own, cohort(AD=9, CN=12))


def test_the_temperature_of_a_person_is_that_of_the_class_in_the_stage_and_its_history_has_none(tmp_path):
    """People are numbered by name, so those with AD come first."""
    settings = {"schedule": "by-class", "tail_classes": ["AD"], "dimensions": 6}
    own, scans = config(**settings), tuple(cohort(AD=2, CN=2)[::2])
    task = PretrainingTask(own, (), 1, tail_people(own, scans), {}, scans, configured_input(own), RunLayout(tmp_path))
    torch.manual_seed(0)
    network = Pretraining([torch.nn.Conv3d(1, 4, 3)], 4, own.pretraining, 1, False)
    people = torch.arange(4)
    batch = Batch(torch.rand(8, 1, 5, 4, 6), people, people, epoch=1)
    with torch.no_grad():
        found = _objective(task).loss(network.eval(), batch, Context())[1]["loss"]
        one = pretraining(replace(own.pretraining, schedule="fixed", tail_classes=()), 1, 1)
        other = pretraining(replace(own.pretraining, schedule="fixed", tail_classes=(), temperature=1.0), 1, 1)
        low, high = (each.loss(network, batch, Context())[1]["loss"] for each in (one, other))
    assert torch.equal(found, torch.cat([low[:2], high[2:]]))
    assert not torch.allclose(low, high)
    record = EpochRecord(1, 0.5, 0.5, 0.5, 0.5)
    PRETRAINING_TABLE.write(tmp_path / "history.tsv", _history(task, Trained(BestEpoch(), (record,), {})))
    assert read_table(tmp_path / "history.tsv")["temperature"].isna().all()


# Contrastive losses and temperatures against closed forms, and what moving copies and queues hold.


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return nn.functional.normalize(torch.randn(*shape, generator=random, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("tau", [0.07, 0.5, 3.0])
def test_the_loss_is_the_logarithm_of_distances_to_negatives(tau):
    """Kukleva et al. 2023, eq. 9.1 = 9.3, 9.4, and its gradient, eq. 9.2."""
    scores = (unit(6, 4) @ unit(6, 4, seed=1).T).requires_grad_()
    positives = torch.tensor([3, 0, 5, 1, 2, 4])
    losses = info_nce(scores, positives, tau)
    distance = (1 - scores.detach()) / tau
    for anchor, place in enumerate(positives.tolist()):
        others = [j for j in range(6) if j != place]
        far = sum(math.exp(-float(distance[anchor, j])) for j in others)
        expected = math.log1p(math.exp(float(distance[anchor, place])) * far)
        assert float(losses[anchor].detach()) == pytest.approx(expected, abs=1e-10)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    expected = (scores.detach() / tau).softmax(1)
    expected[torch.arange(6), positives] -= 1
    torch.testing.assert_close(gradient, expected / tau, rtol=1e-10, atol=1e-12)
    assert float(losses.detach().min()) >= 0


def test_one_temperature_is_that_of_every_anchor_and_none_may_be_zero():
    scores, positives = unit(5, 7), torch.tensor([0, 1, 2, 3, 4])
    torch.testing.assert_close(
        info_nce(scores, positives, 0.2),
        info_nce(scores, positives, torch.full((5,), 0.2, dtype=torch.float64)),
        rtol=0,
        atol=0,
    )
    mixed = info_nce(scores, positives, torch.tensor([0.2, 1, 1, 1, 1], dtype=torch.float64))
    assert float(mixed[0]) == float(info_nce(scores, positives, 0.2)[0])
    for tau in (0.0, -1.0, torch.tensor([1.0, 1, 1, 0, 1])):
        with pytest.raises(UsageError, match="above 0"):
            info_nce(scores, positives, tau)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_low_temperature_does_not_overflow(dtype):
    scores = torch.tensor([[1.0, -1.0, 0.5], [-1.0, 1.0, 0.5]], dtype=dtype)
    losses = info_nce(scores, torch.tensor([0, 0]), 0.07)
    expected = [math.log(sum(math.exp((s - row[0]) / 0.07) for s in row)) for row in scores.double().tolist()]
    assert losses.tolist() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_embeddings_that_are_all_the_same_have_the_loss_of_guessing(tau):
    same = unit(1, 3).expand(8, 3)
    losses, _ = nt_xent(same, torch.arange(4), tau)
    assert losses.tolist() == pytest.approx([math.log(7)] * 8, abs=1e-12)


def test_other_scans_of_a_participant_are_no_negatives():
    people = torch.tensor([4, 9, 4])
    places, excluded = views_of_scans(3, people)
    assert places.tolist() == [3, 4, 5, 0, 1, 2]
    assert {(0, 2), (0, 5), (0, 0)} == {(0, j) for j in range(6) if excluded[0, j]}
    assert {(1, 1)} == {(1, j) for j in range(6) if excluded[1, j]}
    embeddings = unit(6, 5).requires_grad_()
    losses, _ = nt_xent(embeddings, people, 0.3)
    (gradient,) = torch.autograd.grad(losses[0], embeddings)
    assert bool((gradient[[2, 5]] == 0).all())
    assert bool((gradient[[1, 3, 4]] != 0).any(1).all())
    scores = (embeddings @ embeddings.T).detach()[0]
    wrong = sum(math.exp(float(scores[j]) / 0.3) for j in (1, 4))
    right = math.exp(float(scores[3]) / 0.3)
    assert float(losses[0].detach()) == pytest.approx(-math.log(right / (right + wrong)), abs=1e-12)
    with pytest.raises(UsageError, match="no negatives"):
        nt_xent(embeddings, torch.tensor([4, 4, 4]), 0.3)


def test_keys_of_the_queue_are_negatives_unless_they_are_empty_or_of_the_same_person():
    queries, keys, queue = unit(2, 4), unit(2, 4, seed=1), unit(3, 4, seed=2)
    losses, _ = against_keys(queries, keys, torch.tensor([1, 2]), queue, torch.tensor([-1, 1, 3]), 0.2)
    for n, candidates in ((0, [keys[0], keys[1], queue[2]]), (1, [keys[1], keys[0], queue[1], queue[2]])):
        weights = [math.exp(float(queries[n] @ one) / 0.2) for one in candidates]
        assert float(losses[n]) == pytest.approx(-math.log(weights[0] / sum(weights)), abs=1e-10)


def test_a_schedule_has_the_published_values():
    found = [temperature_at("cosine", 0.1, 1.0, t) for t in (0, 0.25, 0.5, 0.7, 1.0)]
    assert found == pytest.approx([1, 0.55, 0.1, 0.4109, 1], abs=1e-4)
    settings = PretrainingConfig(period_epochs=400)
    assert [round(temperature_of(settings, epoch, 2000, 1), 3) for epoch in (1, 101, 201, 281, 401)] == [
        1.0, 0.55, 0.1, 0.411, 1.0
    ]  # fmt: skip
    assert [temperature_at("linear", 0.1, 1.0, t) for t in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx(
        [1, 0.55, 0.1, 0.55, 1]
    )
    assert [temperature_at("step", 0.1, 1.0, t) for t in (0, 0.49, 0.5, 0.99, 1)] == [1, 1, 0.1, 0.1, 1]


@given(
    st.sampled_from(["fixed", "cosine", "linear", "step", "random"]), st.floats(0.01, 2), st.floats(0, 3),
    st.integers(1, 500), st.floats(1, 100),
)  # fmt: skip
def test_temperatures_stay_between_their_bounds(schedule, low, span, epoch, period):
    settings = PretrainingConfig(
        schedule=schedule, temperature=low, highest_temperature=low + span, period_epochs=period
    )
    found = temperature_of(settings, epoch, 500, 3)
    assert low - 1e-12 <= found <= low + span + 1e-12
    assert found == temperature_of(settings, epoch, 500, 3)
    same = dataclasses.replace(settings, highest_temperature=low)
    assert temperature_of(same, epoch, 500, 3) == low
    if schedule in ("cosine", "linear"):
        phases = (epoch - 1) / period, -(epoch - 1) / period
        ends = [temperature_at(schedule, low, low + span, phase) for phase in phases]
        assert ends[0] == pytest.approx(ends[1], abs=1e-9)


@pytest.mark.parametrize("epochs", [2, 3, 7, 30, 60, 800, 2000])
def test_without_a_period_a_schedule_ends_at_its_best_point_whatever_the_number_of_epochs(epochs):
    found = [temperature_of(PretrainingConfig(), epoch, epochs, 1) for epoch in range(1, epochs + 1)]
    assert found[0] == pytest.approx(1.0, abs=1e-12)
    assert found[-1] == pytest.approx(0.1 + 0.45 * (1 + math.cos(2 * math.pi * 0.7)), abs=1e-9)  # 0.411
    peaks = [here for before, here, after in zip(found, found[1:], found[2:], strict=False) if before < here > after]
    assert epochs < 30 or len(peaks) == 4  # after the first; the fifth period is not finished


def test_a_single_epoch_has_the_temperature_of_the_end():
    assert temperature_of(PretrainingConfig(), 1, 1, 1) == pytest.approx(0.411, abs=1e-3)


def learner(method: str, seed: int = 4, **settings: object) -> Pretraining:
    torch.manual_seed(seed)
    stage = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU())
    return Pretraining([stage], 4, PretrainingConfig(method=method, dimensions=6, **settings), 5, False)


def step(network: Pretraining, volumes: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
    settings = PretrainingConfig(method=network.method, dimensions=6, schedule="fixed")
    objective = pretraining(settings, 10, 1)
    loss, logged = objective.loss(network, Batch(volumes, people, torch.arange(len(people)), epoch=1), Context())
    assert set(logged) == {"loss", "right"}
    assert all(value.shape == people.shape for value in logged.values())
    return loss


@pytest.mark.parametrize("method", ["moco", "byol", "dino"])
def test_the_moving_copy_gets_no_gradient_and_moves_exactly(method):
    network = learner(method, momentum=0.75).train()
    before = copy.deepcopy(network.copy)
    with torch.no_grad():
        for weight in network.learner.parameters():
            weight.add_(torch.randn_like(weight))
    step(network, torch.rand(6, 1, 5, 4, 6), torch.arange(3)).backward()
    assert all(weight.grad is None for weight in network.copy.parameters())
    assert all(weight.grad is not None for weight in network.learner.backbone.parameters())
    for now, was, given_weight in zip(
        network.copy.parameters(), before.parameters(), network.learner.parameters(), strict=True
    ):
        torch.testing.assert_close(now, 0.75 * was + 0.25 * given_weight.detach(), rtol=1e-6, atol=1e-6)
    rested = copy.deepcopy(network.copy.state_dict())
    with torch.no_grad():
        step(network.eval(), torch.rand(3, 1, 5, 4, 6), torch.arange(3))
    assert all(torch.equal(value, rested[name]) for name, value in network.copy.state_dict().items())


@pytest.mark.parametrize(
    ("epoch", "epochs", "stays"), [(1, 8, 0.75), (5, 12, 1 - 0.25 * 0.75), (5, 8, 0.875), (9, 12, 1 - 0.25 * 0.25)]
)
def test_a_schedule_moves_the_copy_less_and_less(epoch, epochs, stays):
    """From the first epoch on: nothing, a third, a half and two thirds of the way."""
    network = learner("byol", momentum=0.5).train()
    settings = PretrainingConfig(method="byol", dimensions=6, momentum=0.75, momentum_schedule="cosine")
    before = copy.deepcopy(network.copy)
    with torch.no_grad():
        for weight in network.learner.parameters():
            weight.add_(torch.randn_like(weight))
    batch = Batch(torch.rand(6, 1, 5, 4, 6), torch.arange(3), torch.arange(3), epoch=epoch)
    pretraining(settings, epochs, 1).loss(network, batch, Context())
    for now, was, given_weight in zip(
        network.copy.parameters(), before.parameters(), network.learner.parameters(), strict=True
    ):
        torch.testing.assert_close(now, stays * was + (1 - stays) * given_weight.detach(), rtol=1e-6, atol=1e-6)


def test_the_queue_is_first_in_first_out():
    network = learner("moco")
    for start in (0, 3):
        people = torch.arange(start, start + 3)
        network.enqueue(people[:, None].expand(3, 6).float(), people)
    assert network.queued.tolist() == [1, 2, 3, 4, 5]
    assert network.queue[:, 0].tolist() == [1, 2, 3, 4, 5]
    network.train()
    step(network, torch.rand(4, 1, 5, 4, 6), torch.tensor([8, 9]))
    assert network.queued.tolist() == [3, 4, 5, 8, 9]
    assert network.queue[3:].norm(dim=1).tolist() == pytest.approx([1, 1], abs=1e-5)
    step(network.eval(), torch.rand(2, 1, 5, 4, 6), torch.tensor([6, 7]))
    assert network.queued.tolist() == [3, 4, 5, 8, 9]  # validation leaves no trace


@pytest.mark.parametrize("method", ["simclr", "moco", "byol", "dino"])
def test_patterns_are_told_apart_after_some_steps(method):
    """Eight people, each with a pattern; views differ in noise."""
    torch.manual_seed(2)
    patterns = torch.rand(8, 1, 5, 4, 6)
    network = learner(method, momentum=0.9).train()
    optimiser = torch.optim.Adam([one for one in network.parameters() if one.requires_grad], 5e-3)
    objective = pretraining(PretrainingConfig(method=method, dimensions=6, schedule="fixed", temperature=0.2), 10, 1)
    history, right = [], []
    for _ in range(60):
        views = torch.cat([patterns, patterns]) + 0.02 * torch.randn(16, 1, 5, 4, 6)
        loss, logged = objective.loss(network, Batch(views, torch.arange(8), torch.arange(8), epoch=1), Context())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        history.append(float(loss.detach()))
        right.append(float(logged["right"].mean()))
    assert np.mean(history[-10:]) < 0.8 * np.mean(history[:5])
    if method in ("simclr", "moco"):
        candidates = 15 if method == "simclr" else 13
        assert np.mean(history[-10:]) < 0.6 * math.log(candidates)
        assert np.mean(right[-10:]) > 0.7


def with_two_temperatures(method: str, highest: float = 1.0) -> PretrainingConfig:
    return PretrainingConfig(
        method=method, dimensions=6, schedule="by-class", tail_classes=("AD",), highest_temperature=highest
    )


@pytest.mark.parametrize("method", ["simclr", "moco"])
def test_each_anchor_has_the_temperature_of_its_class(method):
    """-log of the share of the other view, at .1 for people of rare classes and at 1 for the others (Kukleva 2023)."""
    people, tail = torch.tensor([2, 0, 1, 2]), [False, True, False]
    network = learner(method).train()
    if method == "moco":
        network.enqueue(unit(3, 6, seed=3).float(), torch.tensor([1, 7, 2]))
    with torch.no_grad():
        volumes = torch.rand(8, 1, 5, 4, 6)
        first, second = copy.deepcopy(network)(volumes)
        queue = network.queue.clone() if method == "moco" else torch.empty(0, 6)
        queued = network.queued.tolist() if method == "moco" else []
    objective = pretraining(with_two_temperatures(method), 10, 1, tail)
    logged = objective.loss(network, Batch(volumes, people, torch.arange(4), epoch=3), Context())[1]
    both = people.repeat(2)
    expected = torch.zeros(8, dtype=torch.float64)
    for anchor in range(8):
        tau, other = 0.1 if tail[both[anchor]] else 1.0, (anchor + 4) % 8
        candidates = [n for n in range(8) if both[n] != both[anchor]]
        if method == "moco":  # keys of the other views
            candidates = [n for n in candidates if (n < 4) != (anchor < 4)]
        scores = [float(first[anchor] @ second[n]) / tau for n in (other, *candidates)]
        held = [n for n, person in enumerate(queued) if person not in (-1, int(both[anchor]))]
        scores += [float(first[anchor] @ queue[n]) / tau for n in held]
        expected[anchor] = torch.tensor(scores, dtype=torch.float64).logsumexp(0) - scores[0]
    torch.testing.assert_close(logged["loss"].double(), expected.view(2, 4).mean(0), rtol=2e-5, atol=1e-6)


def test_two_equal_temperatures_are_one_to_the_last_bit():
    volumes, people = torch.rand(6, 1, 5, 4, 6), torch.arange(3)
    batch = Batch(volumes, people, people, epoch=2)
    fixed = PretrainingConfig(dimensions=6, schedule="fixed", temperature=0.1)
    same = pretraining(with_two_temperatures("simclr", 0.1), 10, 1, [True, False, True])
    with torch.no_grad():
        losses = [one.loss(learner("simclr"), batch, Context())[0] for one in (pretraining(fixed, 10, 1), same)]
    assert torch.equal(*losses)
    assert math.isnan(temperature_of(with_two_temperatures("simclr"), 1, 10, 1))


def test_in_validation_the_second_view_is_the_mirror_image():
    network, volumes = learner("simclr").eval(), torch.rand(3, 1, 5, 4, 6)
    people = torch.arange(3)
    with torch.no_grad():
        alone = step(network, volumes, people)
        given_both = step(network, torch.cat([volumes, volumes.flip(2)]), people)
    assert float(alone) == float(given_both)


def test_views_of_a_scan_differ_and_the_first_is_that_of_a_training_with_one():
    config = AugmentationConfig(noise_probability=1.0)
    further, volumes = FurtherAugmentation(config, 3, 1), torch.rand(2, 1, 5, 4, 6)
    plain = further(volumes, np.array([0, 4]))
    both = further(torch.cat([volumes, volumes]), np.array([0, 4, 0, 4]), np.array([0, 0, 1, 1]))
    assert torch.equal(both[:2], plain)
    assert not torch.equal(both[2:], plain)


PLAIN = TrainingConfig(
    learning_rate=1e-3, batch_size=8, max_epochs=2, min_epochs=2, flip_probability=0.0, max_shift_voxels=0,
    augmentation=AugmentationConfig(noise_probability=1.0),
)  # fmt: skip


def learnt(folder: Path, method: str, ranks: Ranks = ALONE) -> Mapping[str, torch.Tensor]:
    """Weights after two epochs on seven scans of six people, without batch statistics, which processes do not share."""
    network = learner(method)
    for part in (network.learner, network.copy):
        if part is not None:
            part.projector = nn.Linear(4, 6)
    if network.copy is not None:
        network.copy.load_state_dict(network.learner.state_dict())
        network.copy.requires_grad_(False)
    torch.manual_seed(8)
    volumes, people = torch.rand(7, 1, 5, 4, 6).half(), torch.tensor([0, 1, 2, 3, 4, 5, 0])
    part = LabelledVolumes(volumes, people)
    objective = pretraining(PretrainingConfig(method=method, dimensions=6), 2, 1)
    return train(network, part, part, objective, PLAIN, 3, Resumption(folder / "x", "key"), ranks=ranks).weights


def _as_one_of_two(ranks: Ranks, folder: Path) -> None:
    for method in ("simclr", "moco"):
        torch.save(dict(learnt(folder / method, method, ranks)), folder / f"{method}-{ranks.rank}.pt")


@pytest.mark.ci
def test_two_processes_compare_with_the_scans_of_both(tmp_path):
    for method in ("simclr", "moco"):
        (tmp_path / method).mkdir()
    in_processes(2, torch.device("cpu"), _as_one_of_two, tmp_path)
    for method in ("simclr", "moco"):
        alone = learnt(tmp_path / f"{method}-alone", method)
        first, second = (torch.load(tmp_path / f"{method}-{rank}.pt") for rank in (0, 1))
        for name, value in alone.items():
            torch.testing.assert_close(first[name], value, rtol=0, atol=5e-5)
            assert torch.equal(first[name], second[name])
