"""Families of networks: MONAI, SFCN and Conv5-FC3 as published, seen as stages, the smallest grid, and their page."""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import monai.networks.nets as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.records import LOSSES
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.plain import Conv5FC3Config, SFCNConfig
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES, build_network, parameter_count
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.networks import NETWORKS
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.reports.content.run.colophon import _CITATION, REFERENCES
from heatlas.studies.bcos.records import BCOS_FAMILIES
from heatlas.studies.coda.records import CODA_FAMILIES
from tests.attribution.every_method import SMALL

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
    page = (ROOT / "docs" / "theory" / "inherent.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (S\d\d) \|(.*)\|$", page, re.MULTILINE))
    assert list(rows) == [f"S{number:02}" for number in range(1, 41)]
    for part, row in rows.items():
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named or "Missing:" in row, part
        for file, test in named:
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\(", source, re.MULTILINE), f"{part}: {file} has no {test}"
