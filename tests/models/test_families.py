"""Families of networks: records, stored networks, and the code that keys hold."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import monai.networks.nets as nets
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from heatlas.atlases.spaces import Box
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.records import LOSSES
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.scan_jobs import JobMaker, explanations_of_run
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.monai import DenseNetConfig, ResNetConfig
from heatlas.pipeline.models.families.plain import Conv5FC3Config, SFCNConfig
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES, build_network, code_of, parameter_count
from heatlas.pipeline.models.inputs import NetworkInput, configured_input
from heatlas.pipeline.models.storage import from_file, load_model, require_family, save_model, to_monai
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.networks import NETWORKS
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles, RunLayout
from heatlas.pipeline.run.work import digests
from heatlas.pipeline.run.work.digests import DigestCache, import_closure
from heatlas.pipeline.training.stage import fold_job
from heatlas.reports.content.run.colophon import _CITATION, REFERENCES
from heatlas.studies.bcos.records import BCOS_FAMILIES, BcosSimpleConfig
from heatlas.studies.coda.records import CODA_FAMILIES
from heatlas.studies.probes.network import backbone_weights
from heatlas.studies.probes.records import ProbeConfig, with_body
from tests.attribution.every_method import SMALL

# Families of networks: MONAI, SFCN and Conv5-FC3 as published, seen as stages, the smallest grid, and their page.

THREE_D = {"spatial_dims": 3, "in_channels": 1}
MONAI = {
    "resnet10": lambda: nets.resnet10(spatial_dims=3, n_input_channels=1, conv1_t_stride=2, num_classes=3),
    "resnet18": lambda: nets.resnet18(
        spatial_dims=3, n_input_channels=1, conv1_t_stride=2, num_classes=3, bias_downsample=True
    ),
    "densenet121": lambda: nets.DenseNet121(**THREE_D, out_channels=3),
    "seresnet50": lambda: nets.SEResNet50(**THREE_D, num_classes=3),
    "efficientnet-b0": lambda: nets.EfficientNetBN("efficientnet-b0", pretrained=False, **THREE_D, num_classes=3),
}

ONE_GRID = ("founding", "conv5-fc3")
"""Families whose linear layers have a weight for each place."""


def test_every_network_of_monai_is_compared():
    dynamic = [family.name for family in (*BCOS_FAMILIES, *CODA_FAMILIES)]
    assert ["founding", "linear", "sfcn", "conv5-fc3", *MONAI, "vit", *dynamic, "probe"] == list(BUILT)
    assert [*BUILT, "foreign"] == list(NETWORKS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MONAI)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_stages_compute_what_monai_computes(name, training):
    settings = NETWORKS[name](name)
    side = FAMILIES[name].smallest_side(settings)
    networks = []
    for build in (lambda: build_network(settings, (side, side, side + 3), 3), MONAI[name]):
        torch.manual_seed(1)
        networks.append(build().train(training))
    ours, theirs = networks
    x = torch.rand(2, 1, side, side, side + 3)
    answers = []
    for network in (ours, theirs):
        torch.manual_seed(2)  # dropout and skipped blocks
        with torch.no_grad():
            answers.append(network(x))
    assert torch.equal(*answers)
    with torch.no_grad():
        assert torch.equal(nn.Sequential(*ours.eval().stages)(x), ours(x))


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [name for name in BUILT if name != "linear"])  # which has no features
def test_the_smallest_grid_is_the_smallest(name):
    family, settings = FAMILIES[name], NETWORKS[name](name)
    if name == "bcos-simple":
        settings = replace(settings, head="average")  # weights for each place fit one grid only
    side = family.smallest_side(settings)
    last = []
    with torch.device("meta"):
        model = build_network(settings, (side,) * 3, 2).eval()
        spatial = [stage for stage in model.stages[:-1] if any(weight.dim() == 5 for weight in stage.parameters())]
        spatial[-1].register_forward_hook(lambda module, given, answer: last.append(tuple(answer.shape[2:])))
        for n in (side, side - 1):
            if n == side or name not in ONE_GRID:
                model(torch.empty(1, 1, n, n, n))
    found = {"founding": [(1, 1, 1)], "conv5-fc3": [(2, 2, 2)]}
    assert last == found.get(name, [(2, 2, 2), (1, 1, 1)])
    kind = "resnet10" if name == "probe" else name  # its backbone
    for shape in ((side - 1, side, side), (side, side, side - 1)):
        with pytest.raises(BadInputError, match=f"{shape[0]}x{side}x{shape[2]} .* too small for {kind}.*least {side}"):
            build_network(settings, shape, 2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["sfcn", "conv5-fc3", *MONAI])
def test_every_voxel_reaches_a_feature(name):
    family, settings = FAMILIES[name], NETWORKS[name](name)
    side = family.smallest_side(settings)
    shape = (side, side + 1, side + 2)
    torch.manual_seed(4)
    model = build_network(settings, shape, 2).eval()
    x = torch.rand(1, 1, *shape, requires_grad=True)
    (gradient,) = torch.autograd.grad(nn.Sequential(*model.stages[:-1])(x).square().sum(), x)
    assert bool((gradient != 0).flatten(2).any())
    seen = [(gradient[0, 0] != 0).any(dim=[other for other in range(3) if other != axis]) for axis in range(3)]
    assert all(bool(planes.all()) for planes in seen)


@pytest.mark.parametrize("name", BUILT)
def test_the_box_has_room_for_the_network_where_the_template_has(name):
    family, settings = FAMILIES[name], NETWORKS[name](name)
    for resolution in (1.0, 2.0, 3.0):
        box = configured_input(Config(registration=RegistrationConfig(resolution_mm=resolution), model=settings)).shape
        if name == "founding" and resolution == 3:
            with pytest.raises(BadInputError, match="65x77x65 voxels is too small for founding"):
                family.require_fits(box, settings)
        else:
            family.require_fits(box, settings)


def test_parameters_are_counted_without_making_them():
    assert parameter_count(FoundingConfig(), (193, 229, 193)) == 728_898
    assert parameter_count(NETWORKS["resnet10"]("resnet10"), (80, 80, 80)) == 14_357_442


@pytest.mark.parametrize("name", BUILT)
def test_the_methods_text_cites_known_works(name):
    text = FAMILIES[name].described(NETWORKS[name](name))
    assert set(_CITATION.findall(text)) <= set(REFERENCES)
    assert _CITATION.search(text)


def test_the_page_lists_what_each_family_refuses():
    page = (Path(__file__).parents[2] / "docs" / "networks.md").read_text(encoding="utf-8")
    table = page.split("## Which methods explain them")[1].split("\n## ")[0]
    said = set()
    for row in re.findall(r"^\| (.+?) \| (.+?) \|", table, re.M)[1:]:
        named, methods = (re.findall("`(.+?)`", cell) for cell in row)
        if "with" not in row[0]:  # depends on settings
            hit = [name for name in BUILT if any(fnmatch(name, pattern) for pattern in named)]
            wanted = [name for name in BUILT if name not in hit] if row[0].startswith("all but") else hit
            assert wanted
            said |= set(product(wanted, methods))
    assert said == {(name, method) for name in BUILT for method in FAMILIES[name].refused}


HALVING = ("sfcn", "conv5-fc3")
SHAPE = (11, 17, 14)


def network(name, plain=False):
    """With statistics of data; `plain` has no constant anywhere, so that its logits are linear along a ray."""
    torch.manual_seed(5)
    model = build_network(SMALL[name], SHAPE, 2).double()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm3d):
            layer.running_mean.normal_(0, 0 if plain else 0.3)
            layer.running_var.uniform_(0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias, 0, 0 if plain else 0.3)
        elif plain and isinstance(layer, nn.Conv3d | nn.Linear):
            nn.init.zeros_(layer.bias)
    volume = torch.rand(1, 1, *SHAPE, dtype=torch.float64)
    volume[..., :2] = 0
    return model.eval(), volume


def test_published_sizes():
    convolutions = [(27 * a + 1) * b for a, b in ((1, 32), (32, 64), (64, 128), (128, 256), (256, 256))]
    norms = 2 * (32 + 64 + 128 + 256 + 256 + 64)
    # Peng et al. give 3.0 million for 40 age bins on 160x192x160.
    assert parameter_count(SFCNConfig(), (160, 192, 160), 40) == sum(convolutions) + 257 * 64 + norms + 65 * 40
    with torch.device("meta"):
        sfcn = build_network(SFCNConfig(), (160, 192, 160), 40)
        features = nn.Sequential(*sfcn.stages[:-1])(torch.empty(1, 1, 160, 192, 160))
        conv5 = build_network(Conv5FC3Config(), (169, 208, 179), 2)
    assert features.shape == (1, 64, 5, 6, 5)
    # Wen et al.: 128 features on 6x7x6 places for their grid of 169x208x179.
    linear = [(one.in_features, one.out_features) for one in conv5.modules() if isinstance(one, nn.Linear)]
    assert linear == [(128 * 6 * 7 * 6, 1300), (1300, 50), (50, 2)]
    convolutions = [(27 * a + 1) * b + 2 * b for a, b in ((1, 8), (8, 16), (16, 32), (32, 64), (64, 128))]
    expected = sum(convolutions) + 32256 * 1300 + 1300 + 1301 * 50 + 51 * 2
    assert parameter_count(Conv5FC3Config(), (169, 208, 179)) == expected


@pytest.mark.parametrize("name", HALVING)
def test_logits_are_those_of_the_formulas(name):
    model, x = network(name)
    expected, state = x, list(model.modules())
    convolutions, norms, linear = (
        [one for one in state if isinstance(one, kind)] for kind in (nn.Conv3d, nn.BatchNorm3d, nn.Linear)
    )
    for convolution, norm in zip(convolutions, norms, strict=True):
        last = name == "sfcn" and convolution is convolutions[-1]
        expected = F.conv3d(expected, convolution.weight, convolution.bias, padding=0 if last else 1)
        mean, sd = norm.running_mean, (norm.running_var + 1e-5).sqrt()
        scaled = ((expected.movedim(1, -1) - mean) / sd * norm.weight + norm.bias).movedim(-1, 1)
        odd = [side % 2 for side in reversed(scaled.shape[2:])]
        # Pooling commutes with ReLU; what is left of an odd side is pooled alone, so a padding of 0 changes nothing.
        padded = F.pad(scaled.clamp(min=0), [n for side in odd for n in (0, side)])
        expected = scaled.clamp(min=0) if last else F.max_pool3d(padded, 2)
    expected = expected.mean((2, 3, 4)) if name == "sfcn" else expected.flatten(1)
    for layer in linear:
        expected = expected @ layer.weight.T + layer.bias
        expected = expected if layer is linear[-1] else expected.clamp(min=0)
    torch.testing.assert_close(model(x), expected)
    assert [one.p for one in state if isinstance(one, nn.Dropout)] == [0.5]


@pytest.mark.parametrize("name", HALVING)
def test_deeplift_adds_up_to_the_difference_of_the_logits(name):
    model, x = network(name)
    controls = torch.rand(3, 1, *SHAPE, dtype=torch.float64)
    answer = attribute(model, x, 1, METHODS["deeplift"].record(reference=Reference(controls, ("a", "b", "c"))), 0)
    difference = model(x)[0, 1] - model(controls.mean(0, keepdim=True))[0, 1]
    torch.testing.assert_close(answer.values.sum(), difference.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch_norm", ["fold", "identity"])
@pytest.mark.parametrize("name", HALVING)
def test_lrp_accounts_for_the_whole_logit(name, batch_norm):
    model, x = network(name)
    logit = model(x)[:, 1].detach()
    answer = attribute(model, x, 1, METHODS["lrp"].record(beta=0.5, batch_norm=batch_norm), 0)
    ledger = answer.ledger
    lost = sum(ledger.total(loss) for loss in LOSSES)
    torch.testing.assert_close(answer.values.flatten(1).sum(1) + lost, logit, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", HALVING)
def test_without_constants_nothing_is_absorbed(name):
    """With no bias in folded layers, input x gradient and LRP (beta = 0) hand the whole logit to the voxels."""
    model, x = network(name, plain=True)
    leaf = x.clone().requires_grad_()
    logit = model(leaf)[0, 1]
    (gradient,) = torch.autograd.grad(logit, leaf)
    torch.testing.assert_close((leaf * gradient).sum(), logit)
    product = attribute(model, x, 1, METHODS["input-x-gradient"].record(), 0)
    torch.testing.assert_close(product.values.sum(), logit.detach())
    lrp = attribute(model, x, 1, METHODS["lrp"].record(beta=0.0), 0)
    lost = lrp.ledger.total("lost_no_contribution")
    torch.testing.assert_close(lrp.values.sum() + lost[0], logit.detach())


ROOT = Path(__file__).parents[2]


def test_every_part_has_a_row_and_every_named_test_exists():
    page = (ROOT / "docs" / "benchmarks" / "inherent_tests.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (S\d\d) \|(.*)\|$", page, re.MULTILINE))
    assert list(rows) == [f"S{number:02}" for number in range(1, 41)]
    for part, row in rows.items():
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named or "Missing:" in row, part
        for file, test in named:
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\(", source, re.MULTILINE), f"{part}: {file} has no {test}"


# Networks as files: what is stored with them, and weights that go to networks of MONAI and come back.

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


STORAGE_SHAPE = (33, 35, 34)
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
    ours = build_network(RESNET, STORAGE_SHAPE, 2).eval()
    ours.load_state_dict({**ours.state_dict(), **from_file(path, ours)})
    volume = torch.rand(1, 1, *STORAGE_SHAPE)
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
    model = build_network(RESNET, STORAGE_SHAPE, 2)
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
        to_monai(build_network(BcosSimpleConfig(channels=(3, 4), strides=(2, 1)), STORAGE_SHAPE, 2))


# Keys of work hold the code of its network, be it the program's or a plug-in's.

FOLD = Fold(0, ("a",), ("b",), ("c",))
SCANS = [Scan(name, None, name, None, label="AD") for name in "abc"]
LAYERS = "heatlas.studies.bcos.layers"
STEM = "heatlas.studies.coda.network"


def keys_of(name: str, folder) -> list[str]:
    """Keys of training a network, and of explaining a scan by it."""
    digests._modules_digest.cache_clear()
    config = load_config(overrides={"model": {"architecture": name}, "attribution": {"methods": ["gradient"]}})
    layout, cache = RunLayout(folder), DigestCache(folder / "digests.json")
    training = fold_job(layout, FOLD, SCANS, None, config, dict.fromkeys("abc", "1"))
    maker = JobMaker(layout, "explaining", SimpleNamespace(version="1"), config, cache, None)
    return [training.key, maker.job("c", SCANS[2], [0], explanations_of_run(config), {}).key]


@pytest.mark.parametrize(
    ("name", "module", "changes"),
    [("bcos-simple", LAYERS, True), ("bcos-simple", STEM, False), ("founding", LAYERS, False), ("coda-s", STEM, True)],
)
def test_a_changed_layer_changes_the_keys_of_networks_that_have_it(name, module, changes, tmp_path, monkeypatch):
    before, read = keys_of(name, tmp_path), digests._module_code
    monkeypatch.setattr(digests, "_module_code", lambda other: read(other) + "changed" * (other == module))
    after = keys_of(name, tmp_path)
    monkeypatch.undo()
    digests._modules_digest.cache_clear()
    in_training = changes or module in import_closure([fold_job.__module__])  # while training imports the objectives
    assert [one != other for one, other in zip(before, after, strict=True)] == [in_training, changes]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_code_of_every_family_is_what_builds_it(name):
    """The program's families are in every key already, so theirs is not changed by naming them."""
    modules = code_of(NETWORKS[name](architecture=name))
    always = import_closure(["heatlas.pipeline.models.families.registry"])
    own = {module for module in modules if module.startswith("heatlas.pipeline.")}
    assert own <= always
    assert bool(set(modules) - always) == (FAMILIES[name].encoding == "pair" or name == "probe")
    assert not {module for module in always if module.startswith("heatlas.studies.")}


def test_the_code_of_a_probe_holds_that_of_its_backbone():
    of_bcos = code_of(ProbeConfig(body='{"architecture": "bcos-vgg11"}'))
    assert set(of_bcos) - set(code_of(ProbeConfig())) == {"heatlas.studies.bcos.records"}
