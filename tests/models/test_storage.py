"""Networks as files: what is stored with them, and weights that go to networks of MONAI and come back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import monai.networks.nets as nets
import pytest
import safetensors.torch
import torch
from torch import nn

from heatlas.atlases.spaces import Box
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.monai import DenseNetConfig, ResNetConfig
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES, build_network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import from_file, load_model, require_family, save_model, to_monai
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.probes.network import backbone_weights
from heatlas.studies.probes.records import ProbeConfig, with_body
from tests.attribution.every_method import SMALL

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


OTHER_THAN_THE_DEFAULT: dict[str, dict[str, Any]] = {
    "sfcn": {"dropout": 0.25},
    "conv5-fc3": {"dropout": 0.25},
    "densenet121": {"dropout": 0.1},
    "seresnet50": {"dropout": 0.5},
    "efficientnet-b0": {"drop_connect": 0.0},
    "vit": {"dropout": 0.1},
    "bcos-simple": {"norm": "none", "background": "dark"},
    "coda-s": {"background": "dark"},
    "coda-s-wb": {"temperature": 2.5, "embedding": 4},
    "probe": {"head": "mlp-2"},
}
SETTINGS = {name: replace(settings, **OTHER_THAN_THE_DEFAULT.get(name, {})) for name, settings in SMALL.items()}


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


SHAPE = (33, 35, 34)
RESNET = ResNetConfig("resnet10", width=0.125, stem_stride=1)


def theirs(outputs: int = 3) -> torch.nn.Module:
    torch.manual_seed(2)
    return nets.ResNet(
        "basic", [1, 1, 1, 1], [64, 128, 256, 512], n_input_channels=1, conv1_t_stride=1, widen_factor=0.125,
        num_classes=outputs,
    )  # fmt: skip


@pytest.mark.parametrize("settings", [RESNET, DenseNetConfig(first_channels=2, growth=1)], ids=["resnet", "densenet"])
def test_monai_loads_our_weights(settings):
    torch.manual_seed(1)
    ours = build_network(settings, (61, 62, 61), 3).eval()
    if settings is RESNET:
        other = theirs()
    else:
        other = nets.DenseNet121(spatial_dims=3, in_channels=1, out_channels=3, init_features=2, growth_rate=1)
    other.load_state_dict(to_monai(ours))
    volume = torch.rand(1, 1, 61, 62, 61)
    with torch.no_grad():
        assert torch.equal(other.eval()(volume), ours(volume))


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("before", ["", "module."])
def test_we_load_the_weights_of_monai_but_for_the_head(tmp_path, suffix, before):
    network, path = theirs(7).eval(), tmp_path / f"weights.{suffix}"
    state = {before + name: value for name, value in network.state_dict().items()}
    if suffix == "pt":
        torch.save({"state_dict": state, "epoch": 3} if before else state, path)
    else:
        safetensors.torch.save_file(state, path)
    ours = build_network(RESNET, SHAPE, 2).eval()
    ours.load_state_dict({**ours.state_dict(), **from_file(path, ours)})
    volume = torch.rand(1, 1, *SHAPE)
    with torch.no_grad():
        features = torch.nn.Sequential(*ours.stages[:-1])(volume)
        x = network.maxpool(network.act(network.bn1(network.conv1(volume))))
        for layer in (network.layer1, network.layer2, network.layer3, network.layer4):
            x = layer(x)
    assert torch.equal(features, x)


def test_a_probe_can_stand_on_a_file(tmp_path):
    spec, path = NetworkInput(4.0, None), tmp_path / "weights.safetensors"
    safetensors.torch.save_file(theirs().state_dict(), path)
    body = json.dumps({"architecture": "resnet10", **RESNET.own})
    settings = ProbeConfig(backbone=str(path), body=body)
    found = backbone_weights(settings, spec, 0, load_model)
    probe = build_network(settings, spec.shape, 2)
    probe.load_state_dict({**probe.state_dict(), **found})
    assert torch.equal(probe.stages[0][0][0].weight, theirs().conv1.weight)
    with pytest.raises(UsageError, match=r"model\.body, such as"):
        with_body(ProbeConfig(backbone=str(path)))


class Trap:
    """What a pickle would run."""

    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.filterwarnings("ignore")  # torch warns of its own odd tensors
def test_what_is_no_file_of_weights_is_refused(tmp_path, capsys):
    model = build_network(RESNET, SHAPE, 2)
    torch.save({"weight": Trap()}, tmp_path / "trap.pt")
    (tmp_path / "text.safetensors").write_text("no")
    torch.save([1, 2], tmp_path / "list.pt")
    for name in ("trap.pt", "text.safetensors", "list.pt", "missing.pt"):
        with pytest.raises(BadInputError, match=name):
            from_file(tmp_path / name, model)
    assert "executed" not in capsys.readouterr().out
    loop: dict[str, object] = {}
    loop["model"] = loop
    plain = torch.ones(2, 2)
    odd = {
        "loop": loop,
        "numbered": {1: plain, "conv1.weight": plain},
        "sparse": {"conv1.weight": plain.to_sparse()},
        "quantised": {"conv1.weight": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8)},
        "meta": {"conv1.weight": plain.to("meta")},
        "nested": {"conv1.weight": torch.nested.nested_tensor([plain, plain[:1]])},
        "complex": {"conv1.weight": plain * 1j},
        "none": {"conv1.weight": None},
    }
    for name, content in odd.items():
        torch.save(content, tmp_path / f"{name}.pt")
        with pytest.raises(BadInputError, match=rf"{name}\.pt: [^\n]+$"):
            from_file(tmp_path / f"{name}.pt", model)
    torch.save({name: value / 0 for name, value in theirs().state_dict().items()}, tmp_path / "infinite.pt")
    with pytest.raises(BadInputError, match=r"infinite\.pt: conv1\.weight has values that are no finite numbers"):
        from_file(tmp_path / "infinite.pt", model)
    for name in ("endless.pt", "endless.safetensors"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(BadInputError, match=rf"{name}: .*a device, not a file"):
            from_file(tmp_path / name, model)
    with (tmp_path / "sparse.safetensors").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BadInputError, match=r"1,099,511,627,776 bytes, more than"):
        from_file(tmp_path / "sparse.safetensors", model)
    safetensors.torch.save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "small.safetensors")
    with pytest.raises(UsageError, match=r"conv1\.weight has shape"):
        from_file(tmp_path / "small.safetensors", model)
    safetensors.torch.save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match=r"has no weight _stages\.0\.0\.weight or conv1\.weight"):
        from_file(tmp_path / "other.safetensors", model)
    with pytest.raises(UsageError, match="none of MONAI's"):
        to_monai(build_network(BcosSimpleConfig(channels=(3, 4), strides=(2, 1)), SHAPE, 2))
