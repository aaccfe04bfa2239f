"""Probes: what is frozen stays, heads compute what their formulas say, and which methods apply follows from both."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from heatlas.pipeline.attribution.gradient.gradients import InputTimesGradient
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.dynamic import Gain, LogitLayer, calibrate, needs_calibration
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.monai import ResNetConfig
from heatlas.pipeline.models.families.registry import build_network, family_of
from heatlas.pipeline.models.inputs import NetworkInput
from heatlas.pipeline.models.storage import save_model
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.studies.bcos.layers import BcosConv3d
from heatlas.studies.bcos.records import BcosSimpleConfig
from heatlas.studies.inherent import Inherent
from heatlas.studies.probes.network import Backbone, UnitProjection, kept_stages
from heatlas.studies.probes.records import ProbeConfig, body_of, with_body

SHAPE = (18, 17, 19)
RESNET = json.dumps({"architecture": "resnet10", "width": 0.05, "stem_stride": 1})
BCOS = json.dumps({"architecture": "bcos-simple", "channels": [3, 4], "strides": [2, 1], "norm": "none"})
HEADS = ("linear", "mlp-2", "mlp-3", "bcos-1", "bcos-2", "bcos-3", "coda")


def probe(head: str = "linear", body: str = RESNET, outputs: int = 3, **settings) -> StagedModel:
    """A probe whose backbone has statistics of data, in evaluation mode."""
    torch.manual_seed(3)
    model = build_network(ProbeConfig(body=body, head=head, **settings), SHAPE, outputs)
    backbone = model.stages[0]
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    if needs_calibration(model):
        calibrate(model.train(), volumes())
    return model.eval()


def volumes(count: int = 2) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.rand(count, 1, *SHAPE)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("body", [RESNET, BCOS], ids=["conventional", "dynamic"])
def test_a_step_changes_the_head_alone(head, body):
    model = probe(head, body, hidden_channels=3)
    before = copy.deepcopy(model.state_dict())
    optimiser = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], 0.01)
    for _ in range(2):
        functional.cross_entropy(model.train()(volumes()), torch.tensor([0, 2])).backward()
        optimiser.step()
    after = model.state_dict()
    same = {name: torch.equal(value, before[name]) for name, value in after.items()}
    assert all(equal for name, equal in same.items() if name.startswith("_stages.0."))
    learnt = [name for name, value in model.named_parameters() if value.requires_grad]
    assert learnt
    assert not any(name.startswith("_stages.0.") for name in learnt)
    assert not any(same[name] for name in learnt)
    assert not any(module.training for module in model.stages[0].modules())


def test_a_backbone_that_is_trained_on_changes_too():
    model = probe(train_backbone=True)
    assert all(weight.requires_grad for weight in model.parameters())
    assert model.train().stages[0].training


def test_a_backbone_keeps_its_constants_while_the_head_takes_its_own():
    model = probe("bcos-2", BCOS)
    gains = [float(module.gain) for module in model.stages[0].modules() if isinstance(module, Gain)]
    assert set(gains) == {1.0}  # fresh ones, which calibration would have changed
    (logits,) = (module for module in model.stages[-1].modules() if isinstance(module, LogitLayer))
    assert float(logits.temperature) != 1


def test_a_linear_head_may_classify_before_or_after_the_average_and_an_mlp_may_not():
    model = probe()
    features = model.stages[0](volumes())
    weight = model.stages[1][2].weight
    first = functional.conv3d(features, weight[:, :, None, None, None], model.stages[1][2].bias).mean((2, 3, 4))
    torch.testing.assert_close(model(volumes()), first, rtol=1e-5, atol=1e-6)
    deep = probe("mlp-2").double()
    features = deep.stages[0](volumes().double())
    one_voxel = deep.stages[2](deep.stages[1](features.mean((2, 3, 4), keepdim=True)))
    assert float((deep(volumes().double()) - one_voxel).detach().abs().max()) > 1e-3
    conv, norm, _ = deep.stages[1]
    hidden = torch.einsum("hc,bcxyz->bhxyz", conv.weight[:, :, 0, 0, 0], features)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    hidden = ((hidden - norm.running_mean[:, None, None, None]) * scale[:, None, None, None]).clamp(min=0)
    last = deep.stages[2][0]
    logits = torch.einsum("kh,bhxyz->bkxyz", last.weight[:, :, 0, 0, 0], hidden).mean((2, 3, 4)) + last.bias
    torch.testing.assert_close(deep(volumes().double()), logits, rtol=1e-9, atol=1e-9)


def losses(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wanted = functional.one_hot(targets, logits.shape[1]).to(logits)
    return functional.cross_entropy(logits, targets), functional.binary_cross_entropy_with_logits(logits, wanted)


def test_cross_entropy_cannot_tell_probes_apart_that_are_explained_differently():
    """Gairola et al. 2025: weights shifted alike for all classes."""
    model, targets = probe().double(), torch.tensor([0, 2])
    shifted = copy.deepcopy(model)
    with torch.no_grad():
        shifted.stages[1][2].weight += torch.randn(1, shifted.stages[1][2].weight.shape[1], dtype=torch.float64)
    x = volumes().double()
    with torch.no_grad():
        one, other = model(x), shifted(x)
    torch.testing.assert_close(one.softmax(1), other.softmax(1), rtol=1e-9, atol=1e-12)
    (ce, bce), (ce_shifted, bce_shifted) = losses(one, targets), losses(other, targets)
    assert float((ce - ce_shifted).abs()) < 1e-12
    assert float((bce - bce_shifted).abs()) > 1e-4
    maps = [attribute(network, x[:1], 1, InputTimesGradient()).values for network in (model, shifted)]
    assert float(torch.corrcoef(torch.stack([one.flatten() for one in maps]))[0, 1]) < 0.9

    def centred(network: StagedModel) -> torch.Tensor:
        leaf = x[:1].clone().requires_grad_()
        logits = network(leaf)
        return torch.autograd.grad(logits[0, 1] - logits.mean(), leaf)[0]

    torch.testing.assert_close(centred(model), centred(shifted), rtol=1e-8, atol=1e-12)


def test_rows_of_the_classifier_share_their_gradient_with_cross_entropy_alone():
    model, targets = probe(outputs=4).double(), torch.tensor([0, 3])
    for loss, shared in zip(losses(model(volumes().double()), targets), (True, False), strict=True):
        (gradient,) = torch.autograd.grad(loss, model.stages[1][2].weight, retain_graph=True)
        assert bool(gradient.sum(0).abs().max() < 1e-12) == shared
    weight = model.stages[1][2].weight
    before = weight.detach().sum(0).clone()
    optimiser = torch.optim.SGD([weight], 0.1, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        losses(model(volumes().double()), targets)[0].backward()
        optimiser.step()
    torch.testing.assert_close(weight.detach().sum(0), before, rtol=1e-9, atol=1e-12)


def test_the_map_of_a_linear_probe_is_made_of_the_maps_of_features():
    model, x = probe().double(), volumes(1).double()
    leaf = x.clone().requires_grad_()
    features = model.stages[0](leaf).mean((2, 3, 4))[0]
    maps = torch.stack([leaf.detach() * torch.autograd.grad(one, leaf, retain_graph=True)[0] for one in features])
    weights = model.stages[1][2].weight.detach()[2]
    expected = torch.einsum("d,dbcxyz->bcxyz", weights, maps)
    torch.testing.assert_close(attribute(model, x, 2, InputTimesGradient()).values, expected, rtol=1e-9, atol=1e-12)


def test_cam_of_a_linear_probe_weights_its_features_by_the_classifier():
    model, x = probe().double(), volumes(1).double()
    with explaining(model, x, 1, stage=METHODS["cam"].stage_of(model)) as view:
        answer = METHODS["cam"].record().maps(view)
    expected = torch.einsum("k,bkxyz->bxyz", model.stages[1][2].weight.detach()[1], model.stages[0](x))[:, None]
    torch.testing.assert_close(answer, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_bcos_head_has_no_constants_and_the_degree_of_a_linear_map(layers):
    model = probe(f"bcos-{layers}", hidden_channels=4)
    head = nn.Sequential(*model.stages[1:]).double()
    assert not [name for name, _ in head.named_parameters() if name.endswith("bias")]
    assert sum(isinstance(module, BcosConv3d) for module in head.modules()) == layers
    features = torch.rand(2, model.stages[0](volumes()).shape[1], 2, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(head(3 * features), 3 * head(features), rtol=1e-4, atol=1e-6)
    if layers == 1:
        rows = functional.normalize(head[0][0].weight[:, :, 0, 0, 0], dim=1)
        linear = torch.einsum("kc,bcxyz->bkxyz", rows, features)
        scaled = linear * linear.abs() / features.norm(dim=1, keepdim=True)
        expected = scaled.mean((2, 3, 4)) / head[0][3].temperature
        torch.testing.assert_close(head(features), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", ["linear", "mlp-2", "bcos-2", "coda"])
def test_maps_of_a_probe_on_a_dynamic_backbone_add_up_to_the_logit(head):
    model, x = probe(head, BCOS, hidden_channels=3).double(), volumes().double()
    answer = attribute(model, x, 1, Inherent(compare="nothing"))
    torch.testing.assert_close(answer.values.flatten(1).sum(1), model(x)[:, 1].detach(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("head", ["bcos-1", "bcos-3", "coda"])
def test_a_dynamic_head_on_a_conventional_backbone_is_explained_from_its_features_on(head):
    model, x = probe(head, hidden_channels=3, stages=2).double(), volumes().double()
    with pytest.raises(UsageError, match="--stage 1"):
        attribute(model, x, 1, Inherent(compare="nothing"))
    with explaining(model, x, 1, stage=1) as view:
        found = Inherent(compare="nothing").maps(view)
    torch.testing.assert_close(found.flatten(1).sum(1), model(x)[:, 1].detach(), rtol=1e-9, atol=1e-12)
    for module in model.modules():
        if isinstance(module, UnitProjection):
            torch.testing.assert_close(module.rows.norm(dim=1), torch.ones(3, dtype=torch.float64))


def test_what_a_probe_refuses_follows_from_head_and_backbone():
    def refused(head: str, body: str) -> set[str]:
        return set(family_of(ProbeConfig(head=head, body=body)).refused) - {
            "raw-attention",
            "rollout",
            "cgw1",
            "vit-cx",
        }

    assert refused("linear", RESNET) == {"inherent"}
    assert refused("mlp-2", RESNET) == {"inherent", "cam"}
    assert refused("bcos-1", RESNET) == {"lrp", "deeplift", "guided-backpropagation", "cam"}
    assert {"lrp", "deeplift"} <= refused("linear", BCOS)
    assert "inherent" not in refused("linear", BCOS)
    for head in ("bcos-2", "coda"):
        model = probe(head)
        for method in ("lrp", "deeplift", "guided-backpropagation", "cam"):
            entry = METHODS[method]
            given = {"reference": None} if entry.needs_reference else {}
            with pytest.raises((UsageError, BadInputError)):
                attribute(model, volumes(1), 1, entry.record(**given), entry.stage_of(model))


def test_the_logit_bias_is_that_of_chance():
    assert torch.allclose(probe(outputs=3, logit_bias=True).stages[1][2].bias, torch.tensor(0.5).log())
    dynamic = probe("linear", BCOS, outputs=3, logit_bias=True)
    assert float(dynamic.stages[1][3].bias) == pytest.approx(-0.6931, abs=1e-4)
    assert float(probe("bcos-1", outputs=2, logit_bias=True).stages[-1][-1].bias) == 0


def test_stages_that_cannot_be_kept_are_named():
    network = build_network(ResNetConfig(width=0.05, stem_stride=1), SHAPE, 2)
    stages, widths = kept_stages(network, SHAPE, 2)
    assert (len(stages), widths) == (2, (3, 3))
    with pytest.raises(UsageError, match=r"model\.stages = 6: 5 stages .* keep 1 to 5"):
        kept_stages(network, SHAPE, 6)
    flat = StagedModel([nn.Sequential(nn.Flatten(), nn.Linear(8, 3)), nn.Linear(3, 2)])
    with pytest.raises(UsageError, match="no stage of the backbone gives features with voxels"):
        kept_stages(flat, (2, 2, 2))


def test_the_backbone_is_read_from_its_folder_and_then_written_out(tmp_path):
    settings = BcosSimpleConfig(channels=(3, 4), strides=(2, 1))
    spec = NetworkInput(4.0, None)
    save_model(RunLayout(tmp_path).backbone, build_network(settings, spec.shape, 1), spec, ("features",), {})
    asked = ProbeConfig(backbone=str(tmp_path), head="bcos-2")
    written = with_body(asked)
    assert (written.backbone, body_of(written), written.head) == ("", settings, "bcos-2")
    assert family_of(written).encoding == "pair"
    nested = replace(asked, backbone="", body=json.dumps({"architecture": "probe"}))
    with pytest.raises(UsageError, match="cannot be the backbone of another"):
        body_of(nested)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no backbone there"):
        with_body(ProbeConfig(backbone=str(tmp_path / "empty")))
    RunLayout(tmp_path).backbone.description.write_text('{"architecture": 3}')
    with pytest.raises(BadInputError, match=r"model\.json: no readable network"):
        with_body(asked)


def test_looking_a_family_up_opens_no_folder(tmp_path):
    gone = ProbeConfig(backbone=str(tmp_path / "gone"), body=BCOS)
    assert family_of(gone).encoding == "pair"
    with pytest.raises(UsageError, match=r"gone: no such folder.*earlier versions hold no copy"):
        with_body(replace(gone, body=""))
    with pytest.raises(UsageError, match=r"model\.body does not say which network"):
        family_of(replace(gone, body=""))


def test_a_run_of_one_conventional_network_can_be_the_backbone(tmp_path):
    settings, spec = FoundingConfig(channels=(2, 3), pools=(2, 2), hidden_units=6), NetworkInput(4.0, None)
    save_model(RunLayout(tmp_path).fold(0), build_network(settings, spec.shape, 2), spec, ("CN", "AD"), {})
    asked = with_body(ProbeConfig(backbone=str(tmp_path)))
    assert body_of(asked) == settings
    assert isinstance(build_network(asked, spec.shape, 2).stages[0], Backbone)
