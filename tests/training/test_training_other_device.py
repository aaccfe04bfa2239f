"""Training on a stand-in for a GPU, and what the program asks of ``torch.cuda``, by a stub."""

from __future__ import annotations

import copy
import dataclasses
import types
from contextlib import nullcontext
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from heatlas.pipeline.attribution.network_view import exact_float32
from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import BUILT, build_network, family_of
from heatlas.pipeline.models.kept_volumes import KeptVolumes
from heatlas.pipeline.run.config.networks import ModelConfig, ObjectiveConfig, PretrainingConfig
from heatlas.pipeline.run.config.settings import CohortConfig, Config, TrainingConfig
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training import steps
from heatlas.pipeline.training import volumes as volumes_module
from heatlas.pipeline.training.objectives.of_task import objective_of
from heatlas.pipeline.training.objectives.records import Batch, Context, Objective, kind_of
from heatlas.pipeline.training.steps import (
    ALONE,
    Ranks,
    device_of_rank,
    mixed_precision,
    repeatable,
    require_devices,
    synchronised,
)
from heatlas.pipeline.training.trainer import Resumption, Trained, train
from heatlas.pipeline.training.volumes import LabelledVolumes
from heatlas.studies.coda import network as coda
from heatlas.studies.objectives.distillation import distillation_of, frozen
from heatlas.studies.pretraining.methods import MaskedAutoencoder, masked_autoencoding, pretraining
from heatlas.studies.pretraining.networks import Pretraining
from tests.attribution.every_method import SMALL
from tests.other_device import CPU, ON_HOST, OTHER, Waits, large_ones_slow, other_device
from tests.training.planted import QUICK, planted_volumes, small_network

SETTINGS = dataclasses.replace(
    QUICK, max_epochs=2, min_epochs=2, batch_size=3, weight_average=0.5, clip_gradients=0.1, learning_rate=1e-3
)
"""Without [augmentation]: MONAI puts volumes into a class of its own, which no stand-in can follow, and computes bias
fields and cut-outs by numpy, so that it waits for the device with each volume."""


def trained(
    folder: Any, parts: tuple[LabelledVolumes, LabelledVolumes], config: TrainingConfig, device: torch.device
) -> Trained:
    folder.mkdir()
    objective = objective_of(task_of(CohortConfig()), config, parts[0].targets)
    with repeatable(CPU, 43, 1):
        model = small_network(43).to(device)
        return train(model, *parts, objective, config, 43, Resumption(folder / "c.safetensors", "key"))


def on_other(data: LabelledVolumes, kept: bool, folder: Any) -> LabelledVolumes:
    """Volumes in the memory of the device, or in files."""
    assert isinstance(data.volumes, torch.Tensor)
    if not kept:
        return LabelledVolumes(data.volumes.to(OTHER), data.targets.to(OTHER))
    paths = tuple(folder / f"{len(data)}-{place}.npy" for place in range(len(data)))
    for path, volume in zip(paths, data.volumes, strict=True):
        np.save(path, volume.numpy())
    return LabelledVolumes(KeptVolumes(paths, tuple(data.volumes.shape), OTHER), data.targets.to(OTHER))


@pytest.mark.parametrize("kept", [False, True])
def test_a_training_gives_what_it_gives_on_the_cpu(tmp_path, kept: bool) -> None:
    parts = planted_volumes(7, 1), planted_volumes(4, 2)
    expected = trained(tmp_path / "here", parts, SETTINGS, CPU)
    with other_device() as waits:
        there = tuple(on_other(part, kept, tmp_path) for part in parts)
        found = trained(tmp_path / "there", there, SETTINGS, OTHER)  # type: ignore[arg-type]
        assert all(weight.device == OTHER for weight in found.weights.values())
        weights = {name: weight.cpu() for name, weight in found.weights.items()}
    for one, other in zip(found.history, expected.history, strict=True):
        assert dataclasses.astuple(one) == pytest.approx(dataclasses.astuple(other), rel=1e-5)
    for name, weight in expected.weights.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)
    assert set(waits.values) <= {ON_HOST, "tests"}
    assert not waits.sizes


@pytest.mark.ci
@pytest.mark.parametrize("kept", [False, True])
def test_only_the_end_of_an_epoch_waits(tmp_path, kept: bool) -> None:
    """As often with twice the steps, but for the counts of batches of the first ten."""
    config = dataclasses.replace(SETTINGS, max_epochs=1, min_epochs=1)
    found = []
    for count in (10, 20):
        with other_device() as waits:
            parts = planted_volumes(3 * count, 1), planted_volumes(4, 2)
            there = tuple(on_other(part, kept, tmp_path) for part in parts)
            trained(tmp_path / f"{count}", there, config, OTHER)  # type: ignore[arg-type]
        found.append(len([place for place in waits.values if place != "tests"]))
    assert found[0] == found[1]


def literals(record: type, name: str) -> tuple[str, ...]:
    """What a setting may be."""
    (kind,) = [field.type for field in dataclasses.fields(record) if field.name == name]  # type: ignore[arg-type]
    return tuple(get_args(eval(str(kind), vars(__import__(record.__module__, fromlist=["x"])))))


CONV = SMALL["founding"]
BCOS = SMALL["bcos-simple"]
OBJECTIVES: dict[str, tuple[ModelConfig, ObjectiveConfig]] = {
    "task": (CONV, ObjectiveConfig()),
    **{f"guided by {loss}": (CONV, ObjectiveConfig("guided", loss=loss)) for loss in literals(ObjectiveConfig, "loss")},
    **{
        f"guided {shown}": (
            BCOS if shown == "inherent" else CONV,
            ObjectiveConfig("guided", map=shown, annotated=0.5),
        )
        for shown in literals(ObjectiveConfig, "map")
        if shown not in ("usual", "dynamic-weights", "attention-transfer")
    },
    "attention transfer": (CONV, ObjectiveConfig("distilled", teacher="run", map="attention-transfer")),
    "distilled, mixed": (CONV, ObjectiveConfig("distilled", teacher="run", mixup=1.0)),
    "distilled": (CONV, ObjectiveConfig("distilled", teacher="run")),
    "distilled, frozen": (CONV, ObjectiveConfig("distilled", teacher="run", frozen=True)),
    "distilled, dynamic-weights": (BCOS, ObjectiveConfig("distilled", teacher="run")),
    **{
        f"readable by {distance}": (CONV, ObjectiveConfig("readable-gradients", distance=distance))
        for distance in literals(ObjectiveConfig, "distance")
    },
    "readable, guided alone": (CONV, ObjectiveConfig("readable-gradients", guided_alone=True)),
}
PER_BATCH = {"guided": 1}
"""Kinds that look at a batch once: which of its scans have a mask."""


def test_every_kind_of_objective_is_here() -> None:
    kinds = {objective.kind for _, objective in OBJECTIVES.values()}
    assert kinds == set(literals(ObjectiveConfig, "kind"))
    assert {objective.map for _, objective in OBJECTIVES.values()} | {"dynamic-weights"} == set(
        literals(ObjectiveConfig, "map")
    )


def one_step(objective: Objective, model: torch.nn.Module, batch: Batch, context: Context) -> tuple[float, list[float]]:
    """Loss, and how much each weight changes by Adam in training mode."""
    torch.manual_seed(5)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    loss, logged = objective.loss(model.train(), batch, context)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    optimiser.step()
    with torch.no_grad():
        objective.loss(model.eval(), dataclasses.replace(batch, masks=None), context)
    objective.measures({name: values.detach().cpu() for name, values in logged.items()})
    return float(loss.detach().cpu()), [float(one.abs().sum().cpu()) for one in gradients]


def both(make: Any) -> Waits:
    """The same step on both devices: `make` gives what `one_step` is asked, for a device."""
    loss, gradients = one_step(*make(CPU))
    with other_device() as waits:
        asked = make(OTHER)
        before = len(waits.values)
        found = one_step(*asked)
        waits.values[:before] = []
    assert found[0] == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert sum(gradients) > 0
    assert found[1] == pytest.approx(gradients, rel=1e-3, abs=1e-5 * max(gradients))
    assert set(waits.values) <= {ON_HOST, "tests"}
    assert not waits.sizes
    return waits


def network(settings: ModelConfig, outputs: int = 2) -> tuple[StagedModel, tuple[int, int, int]]:
    side = family_of(settings).smallest_side(settings)
    shape = (side, side + 2, side + 1)
    torch.manual_seed(7)
    return build_network(settings, shape, outputs), shape


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_takes_a_step_where_its_batch_is(name: str) -> None:
    settings, wanted = OBJECTIVES[name]
    config = Config(objective=wanted, model=settings)
    task = task_of(config.cohort)

    def make(device: torch.device) -> tuple[Any, ...]:
        model, shape = network(settings)
        teacher = copy.deepcopy(model).eval().requires_grad_(False).to(device)
        volumes = torch.rand(4, 1, *shape).half()
        masks = (torch.rand(1, *shape) > 0.5).float().to(device)
        targets = torch.tensor([0, 1, 1, 0]).to(device)
        plain = objective_of(task, config.training, targets, family_of(settings).loss)
        objective = kind_of(config).objective(plain, config, task)
        context = Context(reference=volumes.float().mean(0)[None].to(device))
        if wanted.kind == "guided":
            annotated = torch.tensor([True, False, True, wanted.annotated == 1]).to(device)
            context = dataclasses.replace(context, masks=masks, annotated=annotated)
        if wanted.kind == "distilled":
            context = dataclasses.replace(context, teacher=teacher)
        if wanted.frozen:
            context = frozen(context, volumes.to(device), distillation_of(config), 2)
        batch = Batch(volumes.float().to(device), targets, torch.arange(4).to(device))
        return objective, model.to(device), batch, context

    waits = both(make)
    assert waits.values.count(ON_HOST) == PER_BATCH.get(wanted.kind, 0)


LOSSES = [*literals(TrainingConfig, "loss"), *literals(TrainingConfig, "regression_loss"), "weight_penalty"]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_of_a_task_takes_a_step_where_its_batch_is(loss: str) -> None:
    is_number = loss in literals(TrainingConfig, "regression_loss")
    config = TrainingConfig(
        **({"regression_loss": loss} if is_number else {"weight_penalty": 0.1} if "_" in loss else {"loss": loss})
    )
    task = task_of(CohortConfig(target="age") if is_number else CohortConfig())

    def make(device: torch.device) -> tuple[Any, ...]:
        model, shape = network(BCOS, len(task.outputs))
        targets = torch.tensor([60.0, 71.5, 80.25]) if is_number else torch.tensor([0, 1, 1])
        objective = objective_of(task, config, targets.to(device))
        batch = Batch(torch.rand(3, 1, *shape).to(device), targets.to(device), torch.arange(3).to(device))
        return objective, model.to(device), batch, Context()

    assert both(make).values.count(ON_HOST) == 0


@pytest.mark.parametrize("method", literals(PretrainingConfig, "method"))
def test_every_pretraining_takes_a_step_where_its_batch_is(method: str) -> None:
    settings = PretrainingConfig(method=method, dimensions=6)  # type: ignore[arg-type]

    def make(device: torch.device) -> tuple[Any, ...]:
        whole, shape = network(SMALL["vit" if method == "masked" else "resnet10"])
        stages = list(whole.stages[:-1])
        learner: torch.nn.Module
        if method == "masked":
            learner, objective = MaskedAutoencoder(stages, shape, SMALL["vit"], 0.5), masked_autoencoding(settings, 3)
        else:
            with torch.no_grad():
                probe = torch.zeros(1, 1, *shape)
                for stage in stages:
                    probe = stage(probe)
            learner = Pretraining(stages, probe.shape[1], settings, 5, False)
            objective = pretraining(settings, 4, 3)
        batch = Batch(torch.rand(6, 1, *shape).to(device), torch.arange(3).to(device), torch.arange(3).to(device))
        if method == "masked":
            batch = dataclasses.replace(batch, volumes=batch.volumes[:3])
        return objective, learner.to(device), batch, Context()

    # simclr asks twice whether there is a wrong answer, once in training and once in validation
    assert both(make).values.count(ON_HOST) == {"simclr": 2}.get(method, 0)


@pytest.mark.sample(8)
@pytest.mark.parametrize("family", large_ones_slow(BUILT))
def test_every_family_learns_where_its_batch_is(family: str) -> None:
    settings = SMALL[family]

    def make(device: torch.device) -> tuple[Any, ...]:
        model, shape = network(settings)
        targets = torch.tensor([0, 1])
        objective = objective_of(
            task_of(CohortConfig()), TrainingConfig(), targets.to(device), family_of(settings).loss
        )
        batch = Batch(torch.rand(2, 1, *shape).to(device), targets.to(device), torch.arange(2).to(device))
        return objective, model.to(device), batch, Context()

    assert both(make).values.count(ON_HOST) == 0


CUDA = torch.device("cuda")
SHAPE = (3, 4, 5)


@pytest.mark.parametrize(("free", "resident"), [(2 * 5 * 60 * 2, True), (2 * 5 * 60 * 2 - 1, False)])
def test_volumes_are_kept_on_the_gpu_where_they_take_half_of_its_free_memory(monkeypatch, tmp_path, free, resident):
    """Five scans of 60 voxels in two bytes; one byte less of memory, and they stay in files."""
    values = np.random.default_rng(3).random((5, 1, *SHAPE)).astype(np.float16)
    paths = tuple(tmp_path / f"{number}.npy" for number in range(5))
    for path, one in zip(paths, values, strict=True):
        np.save(path, one)
    kept = KeptVolumes(paths, values.shape, CPU)
    asked: list[Any] = []
    empty = torch.empty

    def on_cpu(*args: Any, device: torch.device | None = None, **kwargs: Any) -> torch.Tensor:
        asked.append(device)
        return empty(*args, **kwargs)

    monkeypatch.setattr(volumes_module, "keep_volumes", lambda *_: kept)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10 * free))
    monkeypatch.setattr(volumes_module.torch, "empty", on_cpu)
    targets: Any = types.SimpleNamespace(to=lambda device: torch.arange(5))
    found = volumes_module.load_volumes((), targets, None, tmp_path, CUDA, 1)  # type: ignore[arg-type]
    assert isinstance(found.volumes, torch.Tensor) == resident
    assert asked == [CUDA] * resident
    got, own = found.batch(np.array([4, 0]))
    np.testing.assert_array_equal(got.numpy(), values[[4, 0]])
    assert own.tolist() == [4, 0]


@pytest.mark.parametrize(
    ("setting", "device", "native", "expected"),
    [
        ("auto", CUDA, True, ("cuda", True)), ("auto", CUDA, False, ("cuda", False)),
        ("auto", CPU, True, ("cpu", False)), ("float32", CUDA, True, ("cuda", False)),
        ("bfloat16-mixed", CUDA, False, ("cuda", True)), ("bfloat16-mixed", CPU, False, ("cpu", True)),
    ],
)  # fmt: skip
def test_bfloat16_is_used_where_a_gpu_computes_in_it(monkeypatch, setting, device, native, expected):
    asked = []

    def autocast(kind: str, dtype: torch.dtype, enabled: bool) -> Any:
        asked.append((kind, enabled, dtype))
        return nullcontext()

    def supported(including_emulation: bool) -> bool:
        assert not including_emulation  # which is slower than float32
        return native

    monkeypatch.setattr(torch, "autocast", autocast)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    with mixed_precision(device, setting):
        pass
    assert asked == [(*expected, torch.bfloat16)]


def test_on_a_gpu_what_has_no_deterministic_form_is_warned_of_and_its_generator_is_restored(monkeypatch):
    forked = []

    def fork(devices: list[int]) -> Any:
        forked.append(devices)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.random, "fork_rng", fork)
    before = torch.get_rng_state()
    with repeatable(CUDA, 4, 1):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
    with repeatable(CPU, 4, 1):
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert forked == [[1], []]
    torch.set_rng_state(before)


def test_explanations_use_no_tf32_and_no_autocast_and_leave_the_settings(monkeypatch):
    asked = []

    def autocast(kind: str, enabled: bool) -> Any:
        asked.append((kind, enabled))
        return nullcontext()

    monkeypatch.setattr(torch, "autocast", autocast)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        with exact_float32(CUDA):
            inside = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
        assert inside == (False, False, False, True)
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
    assert asked == [("cuda", False)]


def test_each_process_has_a_gpu_of_its_own_and_no_more_are_taken_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of_rank(CUDA, Ranks(1, 2)) == torch.device("cuda", 1)
    assert device_of_rank(CUDA, ALONE) == CUDA
    assert device_of_rank(CPU, Ranks(1, 2)) == CPU
    require_devices(2, CUDA)
    require_devices(9, CPU)
    with pytest.raises(UsageError, match=r"training\.devices = 3: this machine has 2 usable GPUs\. Set at most that\."):
        require_devices(3, CUDA)


def test_batch_statistics_are_those_of_all_gpus(monkeypatch):
    def network() -> nn.Module:
        return nn.Sequential(nn.Conv3d(1, 2, 1), nn.BatchNorm3d(2))

    assert isinstance(synchronised(network(), Ranks(0, 2), CUDA)[1], nn.SyncBatchNorm)  # type: ignore[index]
    for ranks, device in ((ALONE, CUDA), (Ranks(0, 2), CPU)):
        assert type(synchronised(network(), ranks, device)[1]) is nn.BatchNorm3d  # type: ignore[index]
    wrapped = []
    monkeypatch.setattr(steps, "DistributedDataParallel", lambda model, devices: wrapped.append(devices))
    on_gpu: Any = types.SimpleNamespace(
        parameters=lambda: iter([types.SimpleNamespace(device=torch.device("cuda", 1))])
    )
    Ranks(1, 2).wrapped(on_gpu)
    Ranks(1, 2).wrapped(network())
    assert wrapped == [[torch.device("cuda", 1)], None]


@pytest.mark.parametrize(("is_cuda", "kind"), [(True, "cuda"), (False, "cpu")])
def test_alignment_of_coda_computes_in_float32_on_either(monkeypatch, is_cuda, kind):
    asked = []

    class Stopped(Exception):
        pass

    def autocast(kind: str, enabled: bool) -> Any:
        asked.append((kind, enabled))
        raise Stopped

    monkeypatch.setattr(torch, "autocast", autocast)
    x: Any = types.SimpleNamespace(is_cuda=is_cuda)
    layer = coda.CodaConv3d.__new__(coda.CodaConv3d)
    nn.Module.__init__(layer)
    with pytest.raises(Stopped):
        layer.forward(x)
    assert asked == [(kind, False)]
