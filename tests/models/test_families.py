"""Families of networks: MONAI's own computation seen as stages, and the smallest grid of each."""

import re
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import monai.networks.nets as nets
import pytest
import torch
from torch import nn

from heatlas.pipeline.models.families.bcos.records import BCOS_FAMILIES
from heatlas.pipeline.models.families.coda.records import CODA_FAMILIES
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES, build_network, parameter_count
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.run.config.networks import NETWORKS
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError
from heatlas.reports.content.run.colophon import _CITATION, REFERENCES

THREE_D = {"spatial_dims": 3, "in_channels": 1}
MONAI = {
    "resnet10": lambda: nets.resnet10(spatial_dims=3, n_input_channels=1, conv1_t_stride=2, num_classes=3),
    "resnet18": lambda: nets.resnet18(
        spatial_dims=3, n_input_channels=1, conv1_t_stride=2, num_classes=3, bias_downsample=True
    ),
    "densenet121": lambda: nets.DenseNet121(**THREE_D, out_channels=3),
    "seresnet50": lambda: nets.SEResNet50(**THREE_D, num_classes=3),
    "efficientnet-b0": lambda: nets.EfficientNetBN("efficientnet-b0", pretrained=False, **THREE_D, num_classes=3),
}  # fmt: skip

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
