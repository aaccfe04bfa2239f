import json

import pytest
import torch
from torch import nn

from heatlas.atlases.brain_box import Box
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.bcos.records import (
    BcosConvNeXtConfig,
    BcosDenseNetConfig,
    BcosResNetConfig,
    BcosResNeXtConfig,
    BcosSimpleConfig,
    BcosVggConfig,
    BcosViTConfig,
)
from heatlas.pipeline.models.families.coda.records import CodaSConfig, CodaSWbConfig
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.halving import Conv5FC3Config, SFCNConfig
from heatlas.pipeline.models.families.linear import LinearConfig
from heatlas.pipeline.models.families.monai import (
    DenseNetConfig,
    EfficientNetConfig,
    ResNetConfig,
    SEResNetConfig,
    ViTConfig,
)
from heatlas.pipeline.models.families.probes.settings import ProbeConfig
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES, build_network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import load_model, require_family, save_model
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.run_layout import FoldFiles

SPEC = NetworkInput(4.0, Box((3, 8, 5), (31, 40, 33)))
POOLS = (2, 2, 1, 1)


@pytest.fixture
def stored(tmp_path):
    torch.manual_seed(11)
    model = FoundingCNN(SPEC.shape, channels=(2, 3, 4, 5), pools=POOLS, hidden_units=6, dropout=0.25)
    model.to(memory_format=torch.channels_last_3d)
    with torch.no_grad():  # running statistics other than the initial ones
        model(torch.rand(3, 1, *SPEC.shape))
    files = FoldFiles(tmp_path / "fold-0")
    save_model(files, model, SPEC, ("young", "old"), {"fold": 0, "seed": 43})
    return files, model.eval()


def test_round_trip_is_exact(stored):
    files, model = stored
    loaded = load_model(files)
    assert loaded.input == SPEC
    assert loaded.classes == ("young", "old")
    assert not loaded.model.training
    state = loaded.model.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert loaded.settings == FoundingConfig(channels=(2, 3, 4, 5), pools=POOLS, hidden_units=6, dropout=0.25)
    assert loaded.family.name == "founding"
    x = torch.rand(2, 1, *SPEC.shape)
    torch.testing.assert_close(loaded.model(x), model(x))


def test_same_model_gives_same_bytes(stored, tmp_path):
    files, model = stored
    again = FoldFiles(tmp_path / "again")
    save_model(again, model, SPEC, ("young", "old"), {"fold": 0, "seed": 43})
    assert again.weights.read_bytes() == files.weights.read_bytes()
    assert again.description.read_bytes() == files.description.read_bytes()
    assert {path.name for path in again.folder.iterdir()} == {"model.safetensors", "model.json"}


def test_the_description_says_what_the_network_is(stored):
    files, model = stored
    text = json.loads(files.description.read_text())
    assert text["parameters"] == sum(p.numel() for p in model.parameters())
    assert text["input"]["box"] == {"start": [3, 8, 5], "shape": [31, 40, 33]}
    assert [row[3] for row in text["input"]["affine"][:3]] == [-96 + 4 * 3, -132 + 4 * 8, -78 + 4 * 5]
    assert (text["fold"], text["seed"]) == (0, 43)


def test_reading_draws_no_random_numbers(stored):
    files, _ = stored
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_model(files)
    assert torch.equal(torch.rand(3), expected)


def test_altered_weights_are_refused(stored):
    files, _ = stored
    content = bytearray(files.weights.read_bytes())
    content[-3] ^= 1
    files.weights.write_bytes(bytes(content))
    with pytest.raises(BadInputError, match=r"model\.safetensors.*SHA-256 differs"):
        load_model(files)


def edit(files, change):
    text = json.loads(files.description.read_text())
    change(text)
    files.description.write_text(json.dumps(text))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.update(format=99), "format 1"),
        (lambda text: text.pop("classes"), "classes"),
        (lambda text: text["architecture"].update(name="resnet"), "resnet"),
        (lambda text: text["architecture"].update(hidden_units=7), "not the weights of a founding"),
        (lambda text: text["input"].pop("box"), "box"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(stored, change, message):
    files, _ = stored
    edit(files, change)
    with pytest.raises(BadInputError, match=message):
        load_model(files)


SETTINGS = {
    "founding": FoundingConfig(channels=(2, 3), pools=(2, 2), hidden_units=6),
    "linear": LinearConfig(fwhm_voxels=3.0, step=2),
    "sfcn": SFCNConfig(channels=(2, 3, 4), dropout=0.25),
    "conv5-fc3": Conv5FC3Config(channels=(2, 3), hidden_units=(6, 4), dropout=0.25),
    "resnet10": ResNetConfig(width=0.05, stem_stride=1),
    "resnet18": ResNetConfig(architecture="resnet18", width=0.05, stem_stride=1),
    "densenet121": DenseNetConfig(first_channels=2, growth=1, dropout=0.1),
    "seresnet50": SEResNetConfig(dropout=0.5),
    "efficientnet-b0": EfficientNetConfig(drop_connect=0.0),
    "vit": ViTConfig(dim=12, dropout=0.1),
    "bcos-simple": BcosSimpleConfig(channels=(3, 4), strides=(2, 1), norm="none", background="dark"),
    "bcos-resnet18": BcosResNetConfig(width=1 / 32),
    "bcos-resnext50": BcosResNeXtConfig(width=1 / 16),
    "bcos-densenet121": BcosDenseNetConfig(first_channels=2, growth=1),
    "bcos-convnext-tiny": BcosConvNeXtConfig(width=1 / 32),
    "bcos-vgg11": BcosVggConfig(width=1 / 64),
    "bcos-vit": BcosViTConfig("bcos-vit", dim=12),
    "bcos-vit-c": BcosViTConfig(dim=12),
    "coda-s": CodaSConfig(units=(3, 4), ranks=(2, 2, 3), kernels=(3, 3, 1), strides=(2, 2, 1), background="dark"),
    "coda-s-wb": CodaSWbConfig(units=(3,), ranks=(2, 3), kernels=(3, 1), strides=(2, 1), temperature=2.5, embedding=4),
    "probe": ProbeConfig(body='{"architecture": "resnet10", "width": 0.05, "stem_stride": 1}', head="mlp-2"),
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", BUILT)
def test_every_family_is_stored_and_read(name, tmp_path):
    settings, whole = SETTINGS[name], NetworkInput(3.0, None)
    torch.manual_seed(3)
    model = build_network(settings, whole.shape, 2)
    files = FoldFiles(tmp_path / "fold-0")
    save_model(files, model, whole, ("CN", "AD"), {})
    loaded = load_model(files)
    assert (loaded.family.name, loaded.settings) == (name, settings)
    assert loaded.description["seen_shape"] == [FAMILIES[name].seen_side(side, settings) for side in whole.shape]
    assert [module.p for module in loaded.model.modules() if isinstance(module, nn.Dropout)] == [
        module.p for module in model.modules() if isinstance(module, nn.Dropout)
    ]
    state = model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in loaded.model.state_dict().items())


@pytest.mark.parametrize("name", ["resnet10", "densenet121"])
def test_a_network_of_another_family_is_refused_by_name(stored, tmp_path, name):
    files, _ = stored
    settings, loaded = SETTINGS[name], load_model(files)
    with pytest.raises(BadInputError, match=rf'model\.json: the network is a founding, and .* "{name}"'):
        require_family(loaded, settings, files)
    edit(files, lambda text: text.update(architecture={"name": name, "input_shape": list(SPEC.shape)}))
    with pytest.raises(BadInputError, match=rf"model\.safetensors: not the weights of a {name}|too small for {name}"):
        load_model(files)


def test_a_network_of_no_family_cannot_be_stored(tmp_path):
    model = StagedModel([nn.Flatten(), nn.Linear(8, 2)])
    with pytest.raises(ValueError, match="no family"):
        save_model(FoldFiles(tmp_path), model, SPEC, ("CN", "AD"), {})


def test_missing_files_are_refused(stored, tmp_path):
    with pytest.raises(BadInputError, match=r"model\.json: cannot be read"):
        load_model(FoldFiles(tmp_path / "nowhere"))
    files, _ = stored
    files.description.write_text("{")
    with pytest.raises(BadInputError, match=r"model\.json: not a readable JSON object"):
        load_model(files)
