"""Scans kept uncompressed for training: values, changed scans, two writers, a full disk."""

from __future__ import annotations

import dataclasses
import errno

import nibabel as nib
import numpy as np
import pytest
import torch

from heatlas.atlases.brain_box import Box
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.models import kept_volumes
from heatlas.pipeline.models.inputs import NetworkInput, read_network_volume
from heatlas.pipeline.models.kept_volumes import keep_volumes
from heatlas.pipeline.run.layout.scan_files import ScanFiles

CPU = torch.device("cpu")
SPEC = NetworkInput(8.0, Box((2, 3, 1), (7, 9, 8)))


def register(root, names=("sub-1", "sub-2", "sub-3")):
    """Random scans at 8 mm, each with its own range of intensities."""
    grid, files = template_grid(8.0), [ScanFiles(root, name, None, 8.0) for name in names]
    for number, one in enumerate(files):
        values = np.random.default_rng(number).normal(100 * (number + 1), 10, grid.shape)
        one.t1w.parent.mkdir(parents=True)
        nib.Nifti1Image(values.astype(np.float32), grid.affine).to_filename(one.t1w)
        nib.Nifti1Image(np.ones(grid.shape, np.uint8), grid.affine).to_filename(one.brain_mask)
    return files


def test_a_batch_holds_what_the_network_sees_of_each_scan(tmp_path):
    files = register(tmp_path)
    volumes = keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=2)
    wanted = torch.from_numpy(np.stack([read_network_volume(one, SPEC)[None] for one in files])).half()
    assert volumes.shape == wanted.shape == (3, 1, 7, 9, 8)
    for chosen in (slice(1, 3), torch.tensor([2, 0, 0]), torch.tensor([True, False, True])):
        assert torch.equal(volumes[chosen], wanted[chosen])


def test_a_scan_is_read_once_until_it_changes(tmp_path, monkeypatch):
    files, read = register(tmp_path), []
    reads = kept_volumes.read_channels

    def counted(one, spec):
        read.append(one.participant_id)
        return reads(one, spec)

    monkeypatch.setattr(kept_volumes, "read_channels", counted)
    keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=1)
    keep_volumes(files[::-1], SPEC, tmp_path / "kept", CPU, threads=1)
    assert read == ["sub-1", "sub-2", "sub-3"]
    image = nib.Nifti1Image.from_filename(files[1].t1w)
    nib.Nifti1Image(1000 - image.get_fdata(dtype=np.float32), image.affine).to_filename(files[1].t1w)
    again = keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=1)
    assert read[3:] == ["sub-2"]
    assert torch.equal(again[1:2][0], torch.from_numpy(reads(files[1], SPEC)).half())
    binary = dataclasses.replace(SPEC, normalisation="binary-brain")
    assert keep_volumes(files, binary, tmp_path / "kept", CPU, threads=1)[:].min() == 1


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    files = register(tmp_path)

    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_volumes.Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=2)
    assert not list((tmp_path / "kept").iterdir())
    monkeypatch.undo()
    keep_volumes(files, SPEC, tmp_path / "kept", CPU, threads=2)
    assert len(list((tmp_path / "kept").iterdir())) == 3
