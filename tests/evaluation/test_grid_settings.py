"""What each setting promises: locality bit for bit, identities between settings, and refusals (spec B.11)."""

from __future__ import annotations

import pytest
import torch
from grid_toys import CELL, CLASSES, LAYOUT, flattened, grid_map, pooled, scans
from torch import Tensor, nn

from heatlas.pipeline.attribution.cam.masked_volumes import AblationCam, ScoreCam
from heatlas.pipeline.attribution.cam.weighted_maps import GradCam, LayerCam
from heatlas.pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedBackprop
from heatlas.pipeline.attribution.gradient.paths import (
    ExpectedGradients,
    IntegratedGradients,
    IntegratedGradientsFromMean,
)
from heatlas.pipeline.attribution.lrp.relevance import Lrp
from heatlas.pipeline.attribution.methods import Method, attribute
from heatlas.pipeline.attribution.perturbation.masking import Occlusion
from heatlas.pipeline.attribution.reference.deeplift import DeepLift
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.grids.grid_scores import SETTINGS, Setting, grid_maps, is_local, network_of
from heatlas.studies.grids.layout import Layout
from heatlas.studies.grids.locality import convolved, filled_up, local_layers, looking_at_cell, reach

NETWORKS = {"pooled": pooled, "flattened": flattened, "instance norm": lambda: pooled(norm=nn.InstanceNorm3d)}
LOCAL: dict[str, Method] = {
    "gradient": Gradient(),
    "input-x-gradient": InputTimesGradient(),
    "integrated-gradients": IntegratedGradients(steps=20, tolerance=1),
    "layer-cam": LayerCam(),
    "lrp": Lrp(),
    "lrp focus": Lrp(rules="focus"),
    "guided-backpropagation": GuidedBackprop(),
}
CELLS = range(LAYOUT.cells)


def other_cells_changed(cells: Tensor, cell: int, seed: int) -> Tensor:
    noise = torch.randn(cells.shape, dtype=cells.dtype, generator=torch.Generator().manual_seed(seed)) * 50
    noise[cell] = cells[cell]
    return noise


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("cell", CELLS)
def test_difull_is_local_bit_by_bit(name: str, cell: int) -> None:
    model, cells = NETWORKS[name](), scans()
    network = network_of(model, LAYOUT, cells, cell, "DiFull")
    whole = LAYOUT.compose(cells)
    assert torch.equal(network(whole), model(cells[cell : cell + 1]))
    for seed in range(3):
        assert torch.equal(network(LAYOUT.compose(other_cells_changed(cells, cell, seed))), network(whole))


@pytest.mark.parametrize(("network", "stage"), [("pooled", 0), ("pooled", 1), ("pooled", 2), ("flattened", 1)])
@pytest.mark.parametrize("name", LOCAL)
def test_difull_methods_that_follow_the_network_mark_one_cell_only(name: str, network: str, stage: int) -> None:
    cells, model = scans(), pooled() if network == "pooled" else flattened(padding=0)
    for cell in (0, 3):
        values = grid_map(model, LAYOUT, cells, 1, cell, LOCAL[name], stage)
        assert values.shape == LAYOUT.shape(CELL)
        elsewhere = torch.cat([LAYOUT.cell(values[None, None], n) for n in CELLS if n != cell])
        assert not elsewhere.any()
        alone = attribute(model, cells[cell : cell + 1], 1, LOCAL[name], stage)
        torch.testing.assert_close(LAYOUT.cell(values[None, None], cell), alone.speaking_for, rtol=1e-9, atol=1e-12)


def test_difull_exposes_maps_that_mark_what_the_head_cannot_see() -> None:
    cells = scans()
    cells[3] = cells[0]
    for method in (GradCam(), ScoreCam(batch=2), AblationCam()):
        by_class = [LAYOUT.shares(grid_map(pooled(), LAYOUT, cells, target, 0, method, 2)) for target in range(CLASSES)]
        (shares, *_) = [one for one in by_class if one.sum() > 0]
        assert shares[0] < 0.7
        if not isinstance(method, ScoreCam):  # which masks the scan, and so breaks the likeness
            assert shares[3] == pytest.approx(float(shares[0]))


@pytest.mark.parametrize("setting", SETTINGS)
def test_occlusion_finds_its_cell_in_difull_and_not_only_there_otherwise(setting: Setting) -> None:
    shares = LAYOUT.shares(grid_map(pooled(), LAYOUT, scans(), 2, 1, Occlusion(size=4, stride=4), 0, setting))
    assert float(shares.sum()) == pytest.approx(1)
    assert (shares[1] == 1) == (setting == "DiFull")


def test_heads_of_dipart_average_to_gridpg_and_read_their_cell() -> None:
    model, cells = pooled(), scans()
    whole = LAYOUT.compose(cells)
    heads = torch.stack([network_of(model, LAYOUT, cells, cell, "DiPart")(whole) for cell in CELLS])
    torch.testing.assert_close(heads.mean(0), model(whole), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        heads.mean(0), network_of(model, LAYOUT, cells, 0, "GridPG")(whole), rtol=1e-12, atol=1e-12
    )
    features = model.stages[1](model.stages[0](whole))
    for cell in CELLS:
        own = model.stages[2](LAYOUT.cell(features, cell))
        torch.testing.assert_close(heads[cell], own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gradient", "input-x-gradient", "lrp", "guided-backpropagation"])
def test_dipart_evidence_stays_within_the_receptive_field(name: str) -> None:
    layout, cell = Layout((2, 1, 1)), (32, 8, 12)
    model, cells = pooled(), scans(2, cell=cell)
    values = grid_map(model, layout, cells, 1, 0, LOCAL[name], 0, "DiPart")
    border = reach(local_layers(model))[0]
    assert 0 < border < 32
    assert values[:32].abs().sum() > 0
    assert not values[32 + border :].any()
    if name == "gradient":
        assert values[32 : 32 + border].any()


def test_dipart_conserves_relevance() -> None:
    cells = scans()
    network = looking_at_cell(pooled(), LAYOUT, 2)
    answer = attribute(network, LAYOUT.compose(cells), 1, Lrp(rules="founding"))
    ledger = answer.ledger
    assert ledger is not None
    assert float(ledger.residual) == pytest.approx(0, abs=1e-12)
    assert float(ledger.map_sum) != 0


def without_last_bias() -> StagedModel:
    """A network whose logits are made by its features alone; classes 1 and 2 have logits of either sign."""
    model = pooled()
    head = model.stages[2][3]  # type: ignore[index]
    nn.init.zeros_(head.bias)
    head.weight.data[1] = torch.tensor([1.0, -0.5, 0.8, -1.2, 0.6, -0.9])
    head.weight.data[2] = -head.weight.data[1]
    return model


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", [Lrp(rules="focus"), Lrp(rules="composite"), Lrp(rules="composite", epsilon=0.0)])
def test_relevance_is_positive_where_features_speak_for_a_class_whatever_its_logit(
    method: Lrp, setting: Setting
) -> None:
    """The ε-rule of a linear head keeps the signs of contributions: at the last stage the shares are those of IxG."""
    model, cells, signs = without_last_bias(), scans(), set()
    for target in (1, 2):
        logit = network_of(model, LAYOUT, cells, 1, setting)(LAYOUT.compose(cells))[0, target]
        signs.add(bool(logit > 0))
        relevance = grid_map(model, LAYOUT, cells, target, 1, method, 2, setting)
        contributions = grid_map(model, LAYOUT, cells, target, 1, InputTimesGradient(), 2, setting)
        inside = LAYOUT.cell(relevance[None, None], 1), LAYOUT.cell(contributions[None, None], 1)
        assert torch.corrcoef(torch.stack([one.flatten() for one in inside]))[0, 1] == pytest.approx(1)
        if setting != "DiFull":  # where relevance outside the cell is 0 by construction
            assert LAYOUT.shares(relevance).tolist() == pytest.approx(LAYOUT.shares(contributions).tolist(), abs=1e-3)
    assert signs == {False, True}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_negative_logit_turns_relevance_of_one_signed_rules_back(setting: Setting) -> None:
    """β = 0 shares the start value among positive contributions, which speak for the class whatever its logit."""
    model, cells = without_last_bias(), scans()
    for target in (1, 2):
        values = grid_map(model, LAYOUT, cells, target, 1, Lrp(beta=0.0), 2, setting)
        assert float(values.min()) >= 0
        assert float(values.sum()) > 0


@pytest.mark.parametrize("logit", [-50.0, 50.0])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rules", ["focus", "composite"])
def test_a_bias_that_makes_the_sign_of_a_logit_does_not_turn_the_map(rules: str, bias: bool, logit: float) -> None:
    model, cells = without_last_bias(), scans()
    method = Lrp(rules=rules, bias=bias)  # type: ignore[arg-type]
    plain = LAYOUT.shares(grid_map(model, LAYOUT, cells, 1, 0, method, 2, "GridPG")).tolist()
    nn.init.constant_(model.stages[2][3].bias, logit)  # type: ignore[index]
    assert LAYOUT.shares(grid_map(model, LAYOUT, cells, 1, 0, method, 2, "GridPG")).tolist() == pytest.approx(plain)


def places_of_either_sign(against: float) -> tuple[StagedModel, Tensor]:
    """A head without biases whose logit is the first voxel of a cell less the second, and two cells.

    The first cell has the logit 0.5, the second ``-against``; slid along their axis it sees one after the other.
    """
    head = nn.Linear(2, 2, bias=False)
    head.weight.data[:] = torch.tensor([1.0, -1.0])
    same = nn.Conv3d(1, 1, 1, bias=False)
    nn.init.ones_(same.weight)
    model = StagedModel([nn.Sequential(same, nn.ReLU()), nn.Sequential(nn.Flatten(), head)]).double().eval()
    return model, torch.tensor([[1.0, 0.5], [0.5, 0.5 + against]], dtype=torch.float64).view(2, 1, 1, 1, 2)


@pytest.mark.parametrize("against", [0.2, 3.0])
def test_a_mixture_marks_the_place_whose_logit_speaks_for_the_class(against: float) -> None:
    """Focus of a slid head: ε hands each place its logit, z+ keeps its sign; *composite* keeps those of all voxels."""
    model, cells = places_of_either_sign(against)
    pair = Layout((2, 1, 1))
    logit = network_of(model, pair, cells, 0, "GridPG")(pair.compose(cells))[0, 1]
    assert (float(logit) > 0) == (against < 0.5)
    focus = grid_map(model, pair, cells, 1, 0, Lrp(rules="focus"), 1, "GridPG").flatten()
    torch.testing.assert_close(
        focus, torch.tensor([0.25, 0, -against / 2, 0], dtype=torch.float64), rtol=1e-5, atol=1e-6
    )
    for gamma in (0.0, 0.25):
        method = Lrp(rules="composite", gamma=gamma)
        assert torch.sign(grid_map(model, pair, cells, 1, 0, method, 1, "GridPG")).flatten().tolist() == [1, -1, 1, -1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("cell", [0, 3])
def test_integrated_gradients_are_complete_in_every_setting(cell: int) -> None:
    model, cells = pooled(), scans()
    method = IntegratedGradients(steps=64, tolerance=1)
    for setting in SETTINGS:
        network = network_of(model, LAYOUT, cells, cell, setting)
        whole = LAYOUT.compose(cells)
        with torch.no_grad():
            difference = float((network(whole) - network(torch.zeros_like(whole)))[0, 1])
        total = float(grid_map(model, LAYOUT, cells, 1, cell, method, 0, setting).sum())
        assert total == pytest.approx(difference, abs=0.01 * abs(difference) + 1e-3)


@pytest.mark.parametrize("shape", [CELL, (24, 8, 16)])
def test_a_head_slid_over_its_own_size_is_the_head(shape: tuple[int, int, int]) -> None:
    founding = FoundingCNN((26, 31, 28), channels=(2, 3), pools=(2, 3), hidden_units=4).double().eval()
    for model, x in ((flattened(), scans()), (founding, scans(2, cell=(26, 31, 28)))):
        slid = convolved(model, tuple(x.shape[-3:]))
        torch.testing.assert_close(slid(x), model(x), rtol=1e-12, atol=1e-12)
        assert len(slid.stages) == len(model.stages)
        larger = slid(LAYOUT.compose(x[:1].expand(4, -1, -1, -1, -1)))
        assert larger.shape == (1, model(x).shape[1])


def test_logits_of_a_slid_head_are_averaged_over_all_positions() -> None:
    model, cells = flattened(), scans()
    whole = LAYOUT.compose(cells)
    features = model.stages[0](whole)
    d, h, _ = (side // n for side, n in zip(features.shape[-3:], LAYOUT.counts, strict=True))
    places = [features[:, :, a : a + d, b : b + h] for a in range(d + 1) for b in range(h + 1)]
    logits = [model.stages[2](model.stages[1](place.contiguous())) for place in places]
    torch.testing.assert_close(convolved(model, CELL)(whole), torch.stack(logits).mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("setting", ["GridPG", "DiPart"])
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("name", LOCAL)
def test_all_methods_run_in_all_settings_at_every_stage(name: str, stage: int, setting: Setting) -> None:
    values = grid_map(pooled(), LAYOUT, scans(), 1, 2, LOCAL[name], stage, setting)
    assert values.shape == LAYOUT.shape(CELL)
    assert torch.isfinite(values).all()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: pooled(norm=nn.InstanceNorm3d), "InstanceNorm3d.*DiFull"),
        (lambda: pooled(norm=nn.GroupNorm), "GroupNorm.*DiFull"),
        (flattened, "DiFull"),
        (lambda: FoundingCNN(CELL, channels=(2,), pools=(2,), hidden_units=3).double().eval(), "DiFull"),
    ],
)
def test_dipart_of_a_network_that_is_not_local_is_refused(model: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        grid_map(model(), LAYOUT, scans(), 1, 0, Gradient(), 0, "DiPart")  # type: ignore[operator]


class Places(nn.Module):
    """Adds a weight per voxel of one size, as embeddings of places do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CELL, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def test_gridpg_of_a_network_for_one_size_is_refused_and_difull_is_not() -> None:
    model = StagedModel([Places(), *pooled().stages]).eval()
    with pytest.raises(UsageError, match=r"cannot take .* DiFull is defined"):
        grid_map(model, LAYOUT, scans(), 1, 0, Gradient(), 0, "GridPG")
    assert LAYOUT.shares(grid_map(model, LAYOUT, scans(), 1, 0, Gradient(), 0, "DiFull"))[0] == 1


def test_dipart_of_cells_that_strides_do_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="strides do not divide"):
        grid_map(pooled(), LAYOUT, scans(cell=(15, 9, 12)), 1, 0, Gradient(), 0, "DiPart")


def resnet10() -> StagedModel:
    """A network of the run: strides of 16 and shortcuts beside its convolutions."""
    model = {"architecture": "resnet10", "width": 0.0625, "stem_stride": 1}
    return build_network(load_config(overrides={"model": model}).model, (20, 18, 17), CLASSES).double().eval()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("network", "side", "filled"), [(pooled, (15, 9, 12), (16, 12, 12)), (resnet10, (20, 18, 17), (32, 32, 32))]
)
def test_cells_filled_up_with_air_have_a_local_dipart(network, side, filled) -> None:
    """No brain box is a multiple of the strides; the methods then run on every cell of the grid."""
    model, cells = network(), scans(cell=side)
    cells_filled = filled_up(cells, model)
    assert cells_filled.shape[-3:] == filled
    a, b, c = side
    assert torch.equal(cells_filled[..., :a, :b, :c], cells)
    assert float(cells_filled.sum()) == pytest.approx(float(cells.sum()))
    assert is_local(model, LAYOUT, cells_filled, 1, "DiPart")
    values = grid_map(model, LAYOUT, cells_filled, 1, 3, InputTimesGradient(), 0, "DiPart")
    assert LAYOUT.shares(values)[3] > 1 / LAYOUT.cells


@pytest.mark.parametrize("name", ["flattened", "instance norm"])
def test_networks_without_a_dipart_see_their_volumes_as_they_are(name: str) -> None:
    cells = scans(cell=(15, 9, 12))
    assert filled_up(cells, NETWORKS[name]()) is cells


def test_no_weight_or_mode_of_the_model_changes() -> None:
    model = pooled()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for setting in SETTINGS:
        grid_map(model, LAYOUT, scans(), 1, 0, InputTimesGradient(), 0, setting)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="known are GridPG"):
        network_of(pooled(), LAYOUT, scans(), 0, "GridPh")  # type: ignore[arg-type]


CONTROLS = Reference(scans(3, seed=8), ("a", "b", "c"))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", [ExpectedGradients, IntegratedGradientsFromMean, DeepLift])
def test_a_grid_is_compared_with_grids_of_each_control(method: type, setting: Setting) -> None:
    model, cells = pooled(), scans()
    own = {} if method is DeepLift else {"tolerance": 1.0}  # of a toy, whose path bends more than few points can follow
    values = grid_map(model, LAYOUT, cells, 1, 2, method(reference=CONTROLS, **own), 0, setting, "evidence")
    network, whole = network_of(model, LAYOUT, cells, 2, setting), LAYOUT.compose(cells)
    grids = torch.cat([LAYOUT.join([one] * LAYOUT.cells) for one in torch.split(CONTROLS.volumes, 1)])
    if method is DeepLift:  # complete up to rounding
        logits = [network(one)[0] for one in (whole, grids.mean(0, keepdim=True))]
        of_scan, of_controls = (one[1] - (one[0] + one[2]) / 2 for one in logits)
        assert float(values.sum()) == pytest.approx(float(of_scan - of_controls), abs=1e-9)
    if setting == "DiFull":
        assert LAYOUT.shares(values)[2] == 1
        alone = attribute(model, cells[2:3], 1, method(reference=CONTROLS, **own), 0, "evidence").values
        torch.testing.assert_close(LAYOUT.cell(values[None, None], 2), alone, rtol=1e-9, atol=1e-12)


def test_several_betas_are_one_pass_and_the_same_maps() -> None:
    together = grid_maps(pooled(), LAYOUT, scans(), 1, 0, Lrp(beta=(0.0, 1.0)), 0, "GridPG")
    for beta, values in zip((0.0, 1.0), together, strict=True):
        torch.testing.assert_close(values, grid_map(pooled(), LAYOUT, scans(), 1, 0, Lrp(beta=beta), 0, "GridPG"))


class Leaky(nn.Module):
    """Lets every voxel know the mean of the volume."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean()


@pytest.mark.parametrize(("network", "setting", "kept"), [
    ("pooled", "DiFull", True), ("flattened", "DiFull", True), ("instance norm", "DiFull", True),
    ("pooled", "DiPart", True),
])  # fmt: skip
def test_promises_of_locality_are_kept(network: str, setting: Setting, kept: bool) -> None:
    assert is_local(NETWORKS[network](), LAYOUT, scans(), 1, setting) is kept


def test_a_broken_promise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pooled()
    leaky = StagedModel([Leaky(), *model.stages]).eval()
    monkeypatch.setattr("heatlas.studies.grids.grid_scores.network_of", lambda *_: leaky)
    for setting in ("DiFull", "DiPart"):
        assert not is_local(model, LAYOUT, scans(), 1, setting)


def test_gridpg_promises_nothing() -> None:
    with pytest.raises(UsageError, match="nothing to check"):
        is_local(pooled(), LAYOUT, scans(), 1, "GridPG")
