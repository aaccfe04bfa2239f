"""What the program asks of ``torch.cuda``, by a stub: which memory, which precision, which settings, which GPU."""

from __future__ import annotations

import types
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from heatlas.pipeline.attribution.numerics import exact_float32
from heatlas.pipeline.models.families.coda import dau
from heatlas.pipeline.models.kept_volumes import KeptVolumes
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.training import parallel
from heatlas.pipeline.training import volumes as volumes_module
from heatlas.pipeline.training.numerics import mixed_precision, repeatable
from heatlas.pipeline.training.parallel import ALONE, Ranks, device_of_rank, require_devices, synchronised

CUDA = torch.device("cuda")
CPU = torch.device("cpu")
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
    monkeypatch.setattr(parallel, "DistributedDataParallel", lambda model, devices: wrapped.append(devices))
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
    layer = dau.CodaConv3d.__new__(dau.CodaConv3d)
    nn.Module.__init__(layer)
    with pytest.raises(Stopped):
        layer.forward(x)
    assert asked == [(kind, False)]
