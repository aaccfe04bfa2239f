"""Weights go to MONAI's networks and come back, from files that hold nothing but tensors."""

import json

import monai.networks.nets as nets
import pytest
import safetensors.torch
import torch

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.models.families.bcos.records import BcosSimpleConfig
from heatlas.pipeline.models.families.exchange import from_file, to_monai
from heatlas.pipeline.models.families.monai import DenseNetConfig, ResNetConfig
from heatlas.pipeline.models.families.probes.body import with_body
from heatlas.pipeline.models.families.probes.settings import ProbeConfig
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.training.objectives.known_networks import backbone_weights

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
    found = backbone_weights(settings, spec, Fold(0, ("a",), ("b",), ("c",)))
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
