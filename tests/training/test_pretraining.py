"""Pre-training: masked autoencoding, who takes part, and who has which temperature."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.models.families.monai import ViTConfig
from heatlas.pipeline.models.families.vit import build
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.networks import PretrainingConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_json
from heatlas.pipeline.training.objectives.records import Batch, Context
from heatlas.pipeline.training.progress import BestEpoch, EpochRecord
from heatlas.pipeline.training.trainer import Trained
from heatlas.studies.pretraining.methods import (
    MaskedAutoencoder,
    masked_autoencoding,
    pretraining,
    standardised_patches,
)
from heatlas.studies.pretraining.networks import Pretraining
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
