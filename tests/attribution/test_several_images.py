"""Several kinds of images as channels of one network: what enters, what is built, and whose maps they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from every_method import SMALL, built
from torch import nn

from heatlas.atlases.spaces import Box, template_grid
from heatlas.pipeline.attribution.methods import attribute, attribute_all
from heatlas.pipeline.attribution.records import RunningMean
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.registry import FAMILIES, build_network
from heatlas.pipeline.models.inputs import NetworkInput, configured_input, read_channels, read_network_volume
from heatlas.pipeline.models.kept_volumes import keep_volumes
from heatlas.pipeline.models.storage import load_model, save_model
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.training.volumes import FurtherAugmentation, flip_and_shift

CPU = torch.device("cpu")
TWO = NetworkInput(8.0, Box((3, 5, 2), (7, 9, 8)), images=("T1w", "FLAIR"))
TAKING = sorted(name for name, family in FAMILIES.items() if family.several_images and name != "foreign")


def registered(root: Path, name: str = "sub-1") -> ScanFiles:
    """A T1w image and a FLAIR on another scale, in one brain mask."""
    grid, files = template_grid(8.0), ScanFiles(root, name, None, 8.0, further=("FLAIR",))
    random = np.random.default_rng(4)
    files.image.parent.mkdir(parents=True)
    for path, scale in zip(files.images, (100.0, 7.0), strict=True):
        values = random.normal(scale, scale / 10, grid.shape).astype(np.float32)
        nib.Nifti1Image(values, grid.affine).to_filename(path)
    mask = random.random(grid.shape) > 0.2
    nib.Nifti1Image(mask.astype(np.uint8), grid.affine).to_filename(files.brain_mask)
    return files


def test_each_channel_is_what_a_network_of_that_kind_alone_sees(tmp_path: Path) -> None:
    files = registered(tmp_path)
    seen = read_channels(files, TWO)
    assert seen.shape == (2, *TWO.shape)
    one = dataclasses.replace(TWO, images=())
    for channel, suffix in zip(seen, ("T1w", "FLAIR"), strict=True):
        alone = dataclasses.replace(files, suffix=suffix, further=())
        np.testing.assert_array_equal(channel, read_network_volume(alone, one))
    np.testing.assert_array_equal(read_network_volume(files, TWO), seen[0])
    assert not np.array_equal(seen[0], seen[1])
    kept = keep_volumes([files], TWO, tmp_path / "kept", CPU, threads=1)
    assert kept.shape == (1, 2, *TWO.shape)
    np.testing.assert_array_equal(kept[:][0].numpy(), seen.astype(np.float16))
    with pytest.raises(
        BadInputError, match=r"sub-1: its images are T1w, FLAIR, and the network sees one image\. Train again"
    ):
        read_channels(files, one)
    for others in (("FLAIR", "T1w"), ("T1w", "pet")):  # as many, but in another order, or of another kind
        with pytest.raises(BadInputError, match=f"its images are T1w, FLAIR, and the network sees {', '.join(others)}"):
            read_channels(files, dataclasses.replace(TWO, images=others))
    files.images[1].unlink()
    with pytest.raises(BadInputError, match="desc-preproc_FLAIR"):
        read_channels(files, TWO)


def test_a_changed_second_image_is_kept_anew(tmp_path: Path) -> None:
    files = registered(tmp_path)
    before = keep_volumes([files], TWO, tmp_path / "kept", CPU, threads=1)[:]
    image = nib.Nifti1Image.from_filename(files.images[1])
    nib.Nifti1Image(20 - image.get_fdata(dtype=np.float32), image.affine).to_filename(files.images[1])
    after = keep_volumes([files], TWO, tmp_path / "kept", CPU, threads=1)[:]
    assert torch.equal(before[:, 0], after[:, 0])
    torch.testing.assert_close(
        after[:, 1], torch.where(before[:, 1] > 0, 1 - before[:, 1], after[:, 1]), atol=2e-3, rtol=0
    )


def test_channels_are_augmented_alike() -> None:
    one = torch.rand(3, 1, 7, 5, 6)
    both = torch.cat([one, one], 1)
    moved = flip_and_shift(both, [True, False, True], [2, -1, 0])
    assert torch.equal(moved[:, 0], moved[:, 1])
    assert torch.equal(moved[:, :1], flip_and_shift(one, [True, False, True], [2, -1, 0]))
    config = load_config(
        overrides={"training": {"augmentation": {"affine_probability": 1.0, "bias_field_probability": 1.0}}}
    ).training.augmentation
    changed = FurtherAugmentation(config, 1, 1)(both, np.arange(3))
    assert torch.equal(changed[:, 0], changed[:, 1])
    assert not torch.equal(changed[:, :1], one)


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", TAKING)
def test_a_family_takes_them_and_is_stored_with_them(family: str, tmp_path: Path) -> None:
    settings = SMALL[family]
    side = FAMILIES[family].smallest_side(settings)
    shape = (side, side + 2, side + 1)
    torch.manual_seed(3)
    model = build_network(settings, shape, 2, images=2).eval()
    assert model.architecture is not None
    assert model.architecture.images == 2
    volumes = torch.rand(1, 2, *shape)
    swapped = model(volumes.flip(1))
    assert swapped.shape == (1, 2)
    assert not torch.equal(model(volumes), swapped)
    one = build_network(settings, shape, 2)
    shapes = [(a.shape, b.shape) for a, b in zip(model.parameters(), one.parameters(), strict=True)]
    (first,) = [both for both in shapes if both[0] != both[1]]  # nothing but the first layer differs
    assert (first[0][1], first[1][1]) == (2, 1)
    spec = NetworkInput(1.0, Box((2, 3, 4), shape), images=("T1w", "FLAIR"))
    files = RunLayout(tmp_path).fold(0)
    save_model(files, model, spec, ("CN", "AD"), {})
    loaded = load_model(files)
    assert loaded.input == spec
    assert torch.equal(loaded.model(volumes), model(volumes))
    description = files.description.read_text()
    files.description.write_text(description.replace('"FLAIR"', '"FLAIR", "pet"'))
    with pytest.raises(BadInputError, match="the network takes 2 images, the input is 3"):
        load_model(files)


def test_a_family_of_one_image_refuses_them_before_work() -> None:
    from heatlas.studies.pretraining.command import require_settings as of_pretraining
    from heatlas.workflows.preflight import require_settings

    config = load_config(overrides={"cohort": {"further_suffixes": ["FLAIR"]}})
    assert configured_input(config).images == ("T1w", "FLAIR")
    require_settings(config, ("training",), False)
    for name in set(FAMILIES) - set(TAKING) - {"foreign", "probe"}:
        one = load_config(
            overrides=dict(model={"architecture": name}, cohort={"further_suffixes": ["FLAIR"]})
            | dict(registration={"resolution_mm": 1.0})
        )
        with pytest.raises(UsageError, match=f"of the family {name} see one image, not 2 as channels"):
            require_settings(one, ("training",), False)
    with pytest.raises(UsageError, match="a backbone is trained on images of one kind"):
        of_pretraining(config, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('further_suffixes = ["FLAIR", "FLAIR"]', "must name other kinds than cohort.suffix, each once"),
        ('suffix = "FLAIR"\nfurther_suffixes = ["T1w"]', "T1-weighted images come first"),
        ('further_suffixes = ["probseg"]', "go together"),
        (
            'further_suffixes = ["FLAIR"]\n[objective]\nkind = "readable-gradients"',
            "is the map of one|map of one image",
        ),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "my.toml").write_text(f"[cohort]\n{text}\n")
    with pytest.raises(UsageError, match=words):
        load_config("default", tmp_path / "my.toml", {})


SHAPE = (9, 12, 10)


def second_only() -> StagedModel:
    """A linear network with nothing but the second channel in it."""
    torch.manual_seed(2)
    convolution = nn.Conv3d(2, 3, 3, padding=1, bias=False)
    with torch.no_grad():
        convolution.weight[:, 0] = 0
    head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 2, bias=False))
    return StagedModel([nn.Sequential(convolution, nn.ReLU()), head]).eval()


@pytest.mark.parametrize(
    "method", ["input-x-gradient", "deeplift", "expected-gradients", "lrp", "integrated-gradients"]
)
def test_relevance_is_where_the_only_information_is(method: str) -> None:
    model, volume = second_only(), torch.rand(1, 2, *SHAPE)
    answer = attribute(model, volume, 1, built(method, "founding", volume, CPU), 0, "logit")
    assert answer.channels is not None
    first, second = answer.channels[0]
    assert not first.any()
    assert second.abs().max() > 0
    torch.testing.assert_close(answer.values[0, 0], second)
    if answer.reference_value is not None:  # complete, all channels together
        wanted = float(answer.start_value[0] - answer.reference_value[0])
        assert float(answer.channels.double().sum()) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_explains_them(method: str) -> None:
    """Channels add up to the map, which has one value per voxel."""
    family = next((name for name in ("founding", "vit") if method not in FAMILIES[name].refused), "")
    if not family:
        pytest.skip("defined for families of one image only")
    settings = SMALL[family]
    side = FAMILIES[family].smallest_side(settings)
    shape = (side, side + 2, side + 1)
    torch.manual_seed(7)
    model = build_network(settings, shape, 2, images=2).eval()
    volume = torch.rand(1, 2, *shape)
    volume[..., :3] = 0
    answers = attribute_all(model, volume, 1, built(method, family, volume, CPU), METHODS[method].stage_of(model))
    for answer in answers:
        assert answer.values.shape == (1, 1, *shape)
        assert torch.isfinite(answer.values).all()
        if answer.channels is not None:
            assert answer.channels.shape == volume.shape
            torch.testing.assert_close(answer.channels.sum(1, keepdim=True), answer.values, atol=1e-5, rtol=1e-4)


def test_channels_of_several_networks_are_averaged() -> None:
    volume, mean = torch.rand(1, 2, *SHAPE), RunningMean()
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = StagedModel([nn.Sequential(nn.Flatten(), nn.Linear(2 * 9 * 12 * 10, 2))]).eval()
        answers.append(attribute(model, volume, 0, built("input-x-gradient", "founding", volume, CPU)))
        mean.add(answers[-1])
    found = mean.result()
    assert found.channels is not None
    wanted = (answers[0].channels.double() + answers[1].channels.double()) / 2
    torch.testing.assert_close(found.channels.double(), wanted, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(found.channels.sum(1, keepdim=True), found.values)
